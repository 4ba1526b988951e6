"""`attnc.tokens.program`: the object on which a token program is written and compiled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from attnc.errors import ExpressionError, InputError
from attnc.frontends.tokens.variables import Constant, Query, Variable, Where, hidden_keys, never_holds
from attnc.lower.tokens_to_network import compile_tokens
from attnc.network.tokens import TokenNetwork
from attnc.program.tokens import (
    Count,
    Get,
    Index,
    Linear,
    Map,
    Mean,
    Node,
    Predicate,
    Token,
    TokenProgram,
    Value,
    run,
)
from attnc.program.tokens.nodes import references
from attnc.program.tokens.program import MOST_VALUES, check_sizes

Condition = Where | Variable | bool


def program(vocab: Iterable[str | int], max_len: int, causal: bool = False) -> ProgramBuilder:
    """Start a program over sequences of 1 to `max_len` tokens of `vocab`; in a causal one, positions see only earlier ones and
    themselves.

    >>> p = program("abcd", max_len=9, causal=True)
    >>> t, i = p.tokens, p.indices
    >>> prev = p.get(i == i.q - 1, t, default="-")
    >>> induction = p.get(prev == t.q, t, default="-", tie="last")
    >>> net = p.compile(induction)
    >>> "".join(net.run("abcab")), net.certificate.proved
    ('---bc', True)
    """
    return ProgramBuilder(vocab, max_len, causal)


class ProgramBuilder:
    """A token program while it is written: `tokens` and `indices` are its first variables."""

    def __init__(self, vocab: Iterable[str | int], max_len: int, causal: bool = False) -> None:
        if not isinstance(vocab, Iterable) or isinstance(vocab, (set, frozenset, bytes, bytearray)):
            raise InputError(f"vocab={vocab!r:.80}: give the tokens in their order, as a string or a list")
        self.known = TokenProgram(tuple(vocab), max_len, causal, (Token(), Index()), ("token", "index"), 0)
        self.conjunctions: dict[
            int, tuple[int, int]
        ] = {}  # of True/False variables: kept apart in a selection
        self.tokens, self.indices = Variable(self, 0), Variable(self, 1)
        # by their text: Map((0,), (True, False)) == Map((0,), (1, 0)), but they are different variables
        self._seen: dict[str, int] = {repr(Token()): 0, repr(Index()): 1}

    @property
    def length(self) -> Variable:
        """The length of the sequence, at each position: twice the mean index, plus 1. Causal programs do not know it."""
        if self.known.causal:
            raise InputError("a causal program does not know the length of the sequence: use indices + 1")
        return self.linear(((2, self.mean(True, self.indices, name="mean index")),), 1)

    def select(self, keys: Variable, queries: Variable, predicate: Callable[[Any, Any], bool]) -> Where:
        """The pairs of positions for which predicate(value at the key, value at the query) is True.

        >>> p = program([0, 1, 2], max_len=4)
        >>> p.compile(p.count(p.select(p.tokens, p.tokens, lambda k, q: k > q))).run([0, 2, 1])
        [2, 0, 1]
        """
        return self.pair(self._own(keys), self._own(queries), predicate, "the predicate")

    def get(
        self,
        where: Condition,
        value: Variable,
        default: Constant | None = None,
        tie: str | None = None,
        prefer: Variable | None = None,
        name: str = "",
    ) -> Variable:
        """The value at the selected position.

        Exactly one position must be selected: by the condition, or by `prefer` (those with its largest value), then `tie` (the
        "first" or the "last" of them). Without `default` there must always be one."""
        default = None if default is None else self.constant(default)
        if default is not None and type(default) not in {type(v) for v in self._own(value).domain}:
            known = ", ".join(map(repr, self._own(value).domain[:4]))
            raise InputError(
                f"default={default!r} has another type than the values {known}: give one of their type"
            )
        preferred = None if prefer is None else self._own(prefer).node
        return self._add(Get(self._where(where), self._own(value).node, default, tie, preferred), name)

    def count(self, where: Condition, name: str = "") -> Variable:
        """How many positions are selected (RASP's selector width)."""
        return self._add(Count(self._where(where)), name)

    def mean(self, where: Condition, value: Variable, default: int = 0, name: str = "") -> Variable:
        """The mean of whole numbers over the selected positions (RASP's aggregate)."""
        return self._add(Mean(self._where(where), self._own(value).node, _plain(default)), name)

    def exists(self, where: Condition, name: str = "") -> Variable:
        """Whether a position is selected."""
        nothing = self.map(lambda i: True, self.indices)
        return self._add(Get(self._where(where), nothing.node, False), name)

    def map(self, function: Callable[..., Any], *variables: Variable, name: str = "") -> Variable:
        """A function of the values of variables at the same position. It must be defined for all values of their domains.

        >>> p = program("ab", max_len=3)
        >>> p.compile(p.map(lambda t, i: t * (i + 1), p.tokens, p.indices)).run("aba")
        ['a', 'bb', 'aaa']
        """
        if not callable(function) or not variables:
            hint = ": give its method __getitem__" if hasattr(function, "__getitem__") else ""
            raise InputError(f"map takes a function and one or more variables, got {function!r:.80}{hint}")
        return self.mapped(function, variables, "the map", name)

    def mapped(
        self, function: Callable[..., Any], variables: Sequence[Variable], what: str, name: str = ""
    ) -> Variable:
        """A map, which errors call `what`."""
        args = tuple(self._own(v).node for v in variables)
        domains = [self.known.domains[n] for n in args]
        if math.prod(map(len, domains)) > MOST_VALUES:
            sizes = " · ".join(str(len(d)) for d in domains)
            raise InputError(
                f"a map of {sizes} values: at most {MOST_VALUES:,} are supported; use smaller domains"
            )
        table = tuple(self._called(function, values, what) for values in itertools.product(*domains))
        return self._add(Map(args, table), name)

    def linear(self, terms: Sequence[tuple[int, Variable]], constant: int = 0) -> Variable:
        """constant + Σ coefficient · variable."""
        try:
            pairs = [(self.whole(c), self._own(v).node) for c, v in terms]
        except (TypeError, ValueError) as problem:
            raise InputError(
                f"linear takes pairs of a whole number and a variable: got {terms!r}"
            ) from problem
        return self._add(
            Linear(tuple(n for _, n in pairs), tuple(c for c, _ in pairs), self.whole(constant)), ""
        )

    def program(self, output: Variable) -> TokenProgram:
        """The finished program with this output: the nodes that it needs."""
        kept = sorted(self.known.closure(self._own(output).node) | {0, 1})
        at = {old: new for new, old in enumerate(kept)}
        nodes = tuple(_renumbered(self.known.nodes[n], at) for n in kept)
        names = tuple(self.known.names[n] for n in kept)
        return TokenProgram(
            self.known.vocabulary, self.known.length, self.known.causal, nodes, names, at[output.node]
        )

    def interpret(self, output: Variable, sequence: Sequence[str | int]) -> list[Value]:
        """The output for a sequence, by the interpreter: the meaning of the program.

        >>> p = program("ab", max_len=4)
        >>> p.interpret(p.count(p.tokens == p.tokens.q), "aab")
        [2, 2, 1]
        """
        return run(self.program(output), sequence)

    def compile(
        self, output: Variable, dtype: torch.dtype | str = torch.float32, claim: str = "proved", seed: int = 0
    ) -> TokenNetwork:
        """The attention-only transformer that computes the output, with a certificate.

        What cannot be proved exact raises `attnc.errors.NotExactError`; claim="measured" compares it with the interpreter at
        random sequences instead, and the certificate says so."""
        return compile_tokens(self.program(output), dtype, claim, seed)

    def named(self, name: str, variable: Variable) -> Variable:
        """The same variable with another name, which heads and coordinates show."""
        if type(name) is not str:
            raise InputError(f"name={name!r}: give a string")
        names = list(self.known.names)
        names[self._own(variable).node] = name
        self.known = self.known.renamed(tuple(names))
        return variable

    def pair(self, key: Variable, query: Variable, function: Callable[[Any, Any], Any], what: str) -> Where:
        """The condition function(value at the key, value at the query), as a table."""
        keys, queries = self._own(key).domain, self._own(query).domain
        if len(keys) * len(queries) > 8 * MOST_VALUES:
            raise InputError(f"a condition on {len(keys)} · {len(queries)} values: use smaller domains")
        rows = []
        for q in queries:
            row = [self._called(function, (k, q), what, (bool,)) for k in keys]
            rows.append(tuple(row))
        if not any(map(any, rows)):
            never_holds(f"{what} with the key {key!r} and the query {query!r}")
        return Where(self, (Predicate(key.node, query.node, tuple(rows)),))

    def condition(self, given: Condition, query: bool = False) -> Where:
        """A condition: a `Where`, a variable of True and False at the key (or the query), or True for all positions."""
        if isinstance(given, Where):
            if given.builder is not self:
                raise InputError("the condition belongs to another program")
            return given
        if given is True:
            return Where(self, ())
        if not isinstance(given, Variable):
            raise ExpressionError(
                f"a condition is a comparison, or True for all positions: got {given!r}. Put parentheses around each comparison, "
                "as in (x == x.q) & (i < i.q)"
            )
        self.check_bool(given)
        return Where(self, tuple(self._alone(node, query) for node in self._parts(given.node)))

    def _parts(self, node: int) -> list[int]:
        """The variables whose conjunction a variable is, from left to right, each once."""
        found: dict[int, None] = {}
        seen: set[int] = set()
        todo = [node]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            if at in self.conjunctions:
                todo += reversed(self.conjunctions[at])
            else:
                found[at] = None
        return list(found)

    def _alone(self, node: int, query: bool) -> Predicate:
        values = tuple(bool(v) for v in self.known.domains[node])
        return (
            Predicate(None, node, tuple((v,) for v in values)) if query else Predicate(node, None, (values,))
        )

    def check_bool(self, variable: Variable) -> None:
        """Raise unless a variable is True or False."""
        if not all(isinstance(v, bool) for v in self._own(variable).domain):
            raise ExpressionError(
                f"{variable!r} is no condition: its values must be True and False. Compare it with a value, and put parentheses "
                "around each comparison, as in (x == x.q) & (i < i.q)"
            )

    def constant(self, value: object) -> Constant:
        """A constant of a program."""
        value = _plain(value)
        if not isinstance(value, (str, int, bool)):
            raise InputError(f"{value!r}: variables have strings, whole numbers, True and False as values")
        return value

    def whole(self, value: object) -> int:
        """A whole number."""
        value = _plain(value)
        if type(value) is not int:
            raise InputError(
                f"{value!r}: sums and products of variables are with whole numbers, or other variables"
            )
        return value

    def _called(
        self,
        function: Callable[..., Any],
        values: Sequence[Value],
        what: str,
        kinds: tuple[type, ...] = (str, int, bool),
    ) -> Any:
        try:
            found = function(*values)
        except Exception as problem:
            kind, shown = type(problem).__name__, ", ".join(map(repr, values))
            raise InputError(f"{what} is not defined for ({shown}): {kind}: {problem}") from problem
        found = _plain(found)
        if isinstance(found, Fraction) and found.denominator == 1:
            found = int(found)
        if type(found) not in kinds:
            accepted = "True or False" if kinds == (bool,) else "a string, a whole number, True or False"
            shown = ", ".join(map(_shown, values))
            rounds = "; int(…) rounds" if isinstance(found, Fraction) else ""
            raise InputError(f"{what} returns {_shown(found)} for ({shown}): return {accepted}{rounds}")
        return found

    def __repr__(self) -> str:
        kind = "causal, " if self.known.causal else ""
        named = [name for name in self.known.names[2:] if name]
        size = f"{len(self.known.vocabulary)} tokens, length <= {self.known.length}"
        return f"ProgramBuilder({size}, {kind}{len(self.known.nodes)} variables: {', '.join(['tokens', 'indices', *named])})"

    def _where(self, given: Condition) -> tuple[Predicate, ...]:
        where = self.condition(given)
        if self.known.causal and self._hidden(where.predicates):
            hidden_keys(repr(where))
        return where.predicates

    def _hidden(self, where: Sequence[Predicate]) -> bool:
        """Whether conditions on the index alone hold for keys after the query, and for no others."""
        held = np.ones((self.known.length, self.known.length), bool)  # [query, key]
        for p in where:
            sides = [n for n in (p.query, p.key) if n is not None]
            if all(self.known.positional[n] for n in sides):
                held &= self._at_indices(p)
        return bool(held.any()) and not bool(np.tril(held).any())

    def _at_indices(self, p: Predicate) -> np.ndarray[Any, Any]:
        """Whether a condition on the index alone holds: [query, key], or 1 in the place of a side that it does not read."""
        query, key = (
            np.zeros(1, np.int64) if n is None else self.known.position_places(n)[:, -1]
            for n in (p.query, p.key)
        )
        return np.array(p.table)[query[:, None], key[None]]

    def _own(self, variable: Variable) -> Variable:
        if isinstance(variable, Where):
            raise ExpressionError(
                f"expected a variable, with one value at each position: got the condition {variable!r} on pairs of positions. "
                "p.count(…) counts the positions that it selects, p.exists(…) tells whether there are any, p.get(…, x) copies x"
            )
        if isinstance(variable, Query):
            raise ExpressionError(f"expected a variable of the program, got {variable!r}: leave out .q")
        if not isinstance(variable, Variable):
            raise ExpressionError(f"expected a variable of the program, got {variable!r}")
        if variable.builder is not self:
            raise InputError(f"{variable!r} belongs to another program")
        return variable

    def _add(self, node: Node, name: str) -> Variable:
        """The variable of a node; one that is there already is not added again."""
        if type(name) is not str:
            raise InputError(f"name={name!r}: give a string")
        table = node.table if isinstance(node, Map) else ()
        numbers = (*node.coefficients, node.constant) if isinstance(node, Linear) else ()
        check_sizes((*table, *numbers, getattr(node, "default", None)))
        text = repr(node)
        if text not in self._seen or (name and self.known.names[self._seen[text]] not in ("", name)):
            self.known = self.known.extended(node, name)
            self._seen[text] = len(self.known.nodes) - 1
        elif name:
            self.named(name, Variable(self, self._seen[text]))
        return Variable(self, self._seen[text])


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Fraction) else repr(value)


def _plain(value: Any) -> Any:
    """Truth values, whole numbers and strings of numpy as those of Python."""
    return value.item() if isinstance(value, (np.bool_, np.integer, np.str_)) else value


def _renumbered(node: Node, at: dict[int, int]) -> Node:
    """A node with other numbers of the nodes that it reads."""
    if not references(node) and not isinstance(node, (Count, Get, Mean)):
        return node
    if isinstance(node, Map):
        return Map(tuple(at[n] for n in node.args), node.table)
    if isinstance(node, Linear):
        return Linear(tuple(at[n] for n in node.args), node.coefficients, node.constant)
    assert isinstance(node, (Count, Get, Mean))
    new: dict[int | None, int | None] = dict(at.items())
    new[None] = None
    where = tuple(Predicate(new[p.key], new[p.query], p.table) for p in node.where)
    if isinstance(node, Count):
        return Count(where)
    if isinstance(node, Mean):
        return Mean(where, at[node.value], node.default)
    prefer = None if node.prefer is None else at[node.prefer]
    return Get(where, at[node.value], node.default, node.tie, prefer)
