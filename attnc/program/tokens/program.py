"""A token program: nodes over a vocabulary and a largest length, with their domains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from textwrap import shorten
from typing import Any

import numpy as np

from attnc.errors import InputError
from attnc.program.tokens.nodes import (
    KINDS,
    Count,
    Get,
    Index,
    Linear,
    Map,
    Mean,
    Node,
    Predicate,
    Token,
    Value,
    arguments,
    references,
)
from attnc.program.tokens.positions import ByPosition, Codes, UndefinedError, by_position
from attnc.program.tokens.written import node_text

MOST_VALUES = 1 << 17  # of a domain
MOST_LENGTH = 512
MOST_BITS = 1024  # of a whole number
Domain = tuple[Value, ...]
DERIVED = ("places", "positional", "_atoms")  # what a program keeps beside its fields and domains
CACHED = ("_by_position",)  # what deriving the domains keeps for later nodes


@dataclass(frozen=True, eq=False)
class TokenProgram:
    """What a token network computes: `output` names the node whose value is the output at each position.

    Sequences have 1 to `length` tokens of `vocabulary`. If `causal`, every key is at or before its query. `names` are the names
    of the nodes, for people."""

    vocabulary: tuple[str | int, ...]
    length: int
    causal: bool
    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    output: int

    def __post_init__(self) -> None:
        _check_vocabulary(self.vocabulary)
        check_sizes([self.length])
        if type(self.length) is not int or not 0 < self.length <= MOST_LENGTH:
            raise InputError(
                f"max_len={self.length!r}: give a positive whole number of at most {MOST_LENGTH}"
            )
        if type(self.causal) is not bool:
            raise InputError(f"causal={self.causal!r}: give True or False")
        if len(self.names) != len(self.nodes) or not all(type(name) is str for name in self.names):
            raise InputError(f"{len(self.nodes)} nodes need as many names")
        if type(self.output) is not int or not 0 <= self.output < len(self.nodes):
            raise InputError(f"the output is node {self.output!r} of {len(self.nodes)}")
        for at, node in enumerate(self.nodes):
            _check_fields(node)
            if any(type(n) is not int or not 0 <= n < at for n in references(node)):
                raise InputError(f"{self.title(at)} reads {references(node)}: expected earlier nodes")
        assert self.domains  # deriving them checks each node against those before it

    def extended(self, node: Node, name: str) -> TokenProgram:
        """The program with one more node, which is its output; the domains of the others are not derived again."""
        longer = TokenProgram.__new__(TokenProgram)
        fields = {name: value for name, value in vars(self).items() if name not in DERIVED}
        at = len(self.nodes)
        longer.__dict__.update(fields, nodes=(*self.nodes, node), names=(*self.names, name), output=at)
        longer.__dict__["_by_position"] = dict(self._by_position)
        longer.__dict__["domains"] = (*self.domains, longer._domain(at, self.domains))
        return longer

    def renamed(self, names: tuple[str, ...]) -> TokenProgram:
        """The same program with other names."""
        other = TokenProgram.__new__(TokenProgram)
        other.__dict__.update({**vars(self), "names": names})
        return other

    def closure(self, at: int) -> frozenset[int]:
        """A node and all that it reads, at any position."""
        found: set[int] = set()
        todo = [at]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += references(self.nodes[node])
        return frozenset(found)

    def sequence(self, given: Iterable[str | int]) -> list[str | int]:
        """Tokens as a list; raises unless all are in the vocabulary."""
        if not isinstance(given, Iterable):
            raise InputError(f"got {given!r}: give a sequence of tokens, a string or a list")
        if hasattr(given, "detach"):  # a tensor, of ids
            raise InputError(
                f"got a {type(given).__name__}: give a list of tokens; net(ids) takes a tensor of ids"
            )
        tokens, kind, known = list(given), type(self.vocabulary[0]), set(self.vocabulary)
        check_sizes(tokens)
        for token in tokens:
            if type(token) is not kind or token not in known:
                how = self._how(given, token)
                raise InputError(f"the token {token!r} is not in the vocabulary {self.vocabulary}{how}")
        return tokens

    def _how(self, given: object, token: object) -> str:
        """What to do about something that is not a token, if it was meant in another way."""
        letters = {v for v in self.vocabulary if isinstance(v, str)}
        if isinstance(token, (list, tuple)) or (
            isinstance(token, str) and len(token) > 1 and set(token) <= letters
        ):
            return ": one sequence is taken at a time; for a batch give net(ids, lengths) a tensor of ids"
        if isinstance(given, str):
            words = max(map(len, letters), default=2) > 1
            advice = f"; give a list of tokens, as in {given[:20]!r}.split()" if words else ""
            return f": a string is one sequence, each letter a token{advice}"
        if isinstance(token, int) and letters:
            return ": ids are for net(ids), a tensor; here give the tokens"
        return ""

    def __repr__(self) -> str:
        size = f"{len(self.vocabulary)} tokens, length <= {self.length}{', causal' * self.causal}"
        return f"TokenProgram({size}, {len(self.nodes)} variables, output: {self.title(self.output)})"

    def title(self, at: int) -> str:
        """The kind and the name of a node; without a name, the expression that it stands for."""
        if self.names[at]:
            return f"{type(self.nodes[at]).__name__.lower()} {self.names[at]!r}"
        return shorten(node_text(self, at), 100, placeholder=" …")

    @cached_property
    def domains(self) -> tuple[Domain, ...]:
        """The values that each node can take, or more. Those of nodes that do not depend on tokens are exact."""
        found: list[Domain] = []
        for at in range(len(self.nodes)):
            found.append(self._domain(at, found))
        return tuple(found)

    @cached_property
    def positional(self) -> tuple[bool, ...]:
        """Whether a node depends on the index and the length of the sequence alone."""
        found: list[bool] = []
        for node in self.nodes:
            found.append(not isinstance(node, Token) and all(found[n] for n in references(node)))
        return tuple(found)

    def atoms(self, at: int) -> tuple[int, ...]:
        """The nodes that are not elementwise which the value of a node at a position is a function of."""
        return self._atoms[at]

    @cached_property
    def _atoms(self) -> tuple[tuple[int, ...], ...]:
        found: list[tuple[int, ...]] = []
        for at, node in enumerate(self.nodes):
            elementwise = isinstance(node, (Map, Linear))
            atoms = {atom for arg in arguments(node) for atom in found[arg]} if elementwise else {at}
            found.append(tuple(sorted(atoms)))
        return tuple(found)

    def elementwise(self, at: int) -> list[int]:
        """A node and the nodes that its value at a position is computed from there, each once, in order."""
        found: set[int] = set()
        todo = [at]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += arguments(self.nodes[node])
        return sorted(found)

    def along(self, atom: int, at: int) -> list[Value]:
        """The value of a node for each value of its only atom."""
        found: dict[int, list[Value]] = {}
        size = len(self.domains[atom])
        for n in self.elementwise(at):
            node = self.nodes[n]
            if isinstance(node, (Map, Linear)):
                rows = zip(*(found[arg] for arg in node.args), strict=True) if node.args else [()] * size
                found[n] = [self._value(node, values) for values in rows]
            else:
                found[n] = list(self.domains[atom])
        return found[at]

    def _value(self, node: Map | Linear, values: Sequence[Value]) -> Value:
        """The value of an elementwise node for values of its arguments."""
        if isinstance(node, Linear):
            terms = (c * Fraction(v) for c, v in zip(node.coefficients, values, strict=True))
            return whole(node.constant + sum(terms, Fraction(0)))
        place, places = 0, self.places
        for arg, value in zip(node.args, values, strict=True):
            place = place * len(places[arg]) + places[arg][value]
        return node.table[place]

    def possible(self, at: int) -> Domain:
        """The values that a node can take, or more: exact for a function of one variable, which a domain need not be."""
        atoms = self.atoms(at)
        if self.positional[at]:
            return ordered(self._by_position[at].values)
        return ordered(self.along(atoms[0], at)) if len(atoms) == 1 else self.domains[at]

    @cached_property
    def places(self) -> tuple[dict[Value, int], ...]:
        """The place of each value in the domain of its node."""
        return tuple({value: i for i, value in enumerate(domain)} for domain in self.domains)

    def position_places(self, at: int) -> Codes:
        """The place in its domain of a positional node's value, [index, length - 1]; -1 unless the index is below the length."""
        assert self.domains
        found = self._by_position[at]
        table = np.array([self.places[at][v] for v in found.values] + [-1], np.int64)
        return np.asarray(table[found.codes], np.int64)

    @cached_property
    def _by_position(self) -> dict[int, ByPosition]:
        """Positional nodes as they are derived, with the domains."""
        return {}

    def _positions(self, at: int, before: Sequence[Domain]) -> Domain:
        """Derive the values of a positional node; those that it reads are derived."""
        try:
            self._by_position[at] = by_position(self, at, before, self._by_position)
        except UndefinedError:
            places = [{value: i for i, value in enumerate(domain)} for domain in before]
            explain(self, at, places)
        return self._by_position[at].values

    def _domain(self, at: int, before: Sequence[Domain]) -> Domain:
        """The domain of a node, given those of the nodes before it; raises unless it fits them."""
        self._check_node(at, before)
        node = self.nodes[at]
        if isinstance(node, Token):
            return self.vocabulary
        values = self._positions(at, before) if self.positional[at] else ()
        if isinstance(node, Index):
            return tuple(range(self.length))
        if isinstance(node, Map):
            return ordered(node.table)
        if values:
            return ordered(values)
        if isinstance(node, Linear):
            return _sums(node, before)
        if isinstance(node, Count):
            return tuple(range(self.length + 1))
        if isinstance(node, Mean):
            return _means(node, before[node.value], self.length)
        extra = () if node.default is None else (node.default,)
        return ordered((*before[node.value], *extra))

    def _check_node(self, at: int, domains: Sequence[Domain]) -> None:
        """Raise unless a node fits the domains of what it reads."""
        node = self.nodes[at]
        if isinstance(node, Map):
            size = math.prod(len(domains[n]) for n in node.args)
            if not node.args or len(node.table) != size or size > MOST_VALUES:
                raise InputError(f"{self.title(at)}: {len(node.table)} values for {size} arguments")
        if isinstance(node, Linear):
            wholes = (*node.coefficients, node.constant)
            if len(node.args) != len(node.coefficients) or {type(c) for c in wholes} != {int}:
                raise InputError(f"{self.title(at)}: expected a whole coefficient for each of {node.args}")
            self._check_numbers(at, node.args, domains)
        if isinstance(node, (Count, Mean, Get)):
            for predicate in node.where:
                self._check_predicate(at, predicate, domains)
        if isinstance(node, Mean):
            self._check_numbers(at, [node.value], domains)
            if type(node.default) is not int or any(v.denominator != 1 for v in numbers(domains[node.value])):
                raise InputError(f"{self.title(at)}: the mean is of whole numbers, with a whole default")
        if isinstance(node, Get):
            if node.tie not in (None, "first", "last"):
                raise InputError(f"{self.title(at)}: tie={node.tie!r}: give 'first', 'last' or None")
            if node.prefer is not None:
                self._check_numbers(at, [node.prefer], domains)
            if type(node.default) not in (str, int, bool, type(None)):
                raise InputError(f"{self.title(at)}: default={node.default!r}: give a token or a number")

    def _check_numbers(self, at: int, args: Iterable[int], domains: Sequence[Domain]) -> None:
        for n in args:
            if not all(isinstance(v, (int, Fraction)) for v in domains[n]):
                kind = f"{self.title(n)} has the values {domains[n][:4]}"
                raise InputError(f"{self.title(at)} takes numbers: {kind}")

    def _check_predicate(self, at: int, p: Predicate, domains: Sequence[Domain]) -> None:
        rows, columns = (1 if n is None else len(domains[n]) for n in (p.query, p.key))
        table = p.table
        if len(table) != rows or any(len(row) != columns for row in table):
            raise InputError(f"{self.title(at)}: a predicate needs a table of {rows} rows, {columns} columns")
        if {type(x) for row in table for x in row} - {bool}:
            raise InputError(f"{self.title(at)}: a predicate must be True or False for every pair of values")


def numbers(domain: Domain) -> list[Fraction]:
    """The values of a domain of numbers, exactly."""
    return [Fraction(v) for v in domain if isinstance(v, (int, Fraction))]


def ordered(values: Iterable[Value]) -> Domain:
    """The distinct values in a fixed order: numbers by size, then strings. Raises if True and 1 are both among them."""
    kinds = {(type(v).__name__, v) for v in values}
    distinct = {v for _, v in kinds}
    check_sizes(distinct)
    if len(distinct) != len(kinds):
        both = ", ".join(sorted(repr(v) for _, v in kinds))
        raise InputError(f"the values {both} mix True with 1, or False with 0: use one of them")
    strange = [v for v in distinct if type(v) not in (str, int, bool, Fraction)]
    if strange or not distinct:
        shown = repr(strange[0]) if strange else "none"
        raise InputError(f"a variable has the value {shown}: use strings, whole numbers, True and False")
    if len(distinct) > MOST_VALUES:
        raise InputError(f"a variable has {len(distinct):,} values: at most {MOST_VALUES:,} are supported")
    return tuple(sorted(distinct, key=lambda v: (isinstance(v, str), v)))


def explain(program: TokenProgram, at: int, places: Sequence[Mapping[Value, int]]) -> None:
    """Raise as the interpreter does for a positional node that has no value at some position."""
    from attnc.program.tokens.interpret import columns

    for length in range(1, program.length + 1):
        columns(program, [program.vocabulary[0]] * length, at, places)
    raise InputError(f"{program.title(at)} has no value at some position")


def _check_vocabulary(vocabulary: Any) -> None:
    if not isinstance(vocabulary, tuple) or not vocabulary:
        raise InputError(f"the vocabulary is {vocabulary!r}: give at least one token")
    check_sizes(vocabulary)
    if {type(v) for v in vocabulary} not in ({str}, {int}) or len(set(vocabulary)) != len(vocabulary):
        raise InputError("the tokens of a vocabulary are distinct strings, or distinct whole numbers")


def check_sizes(values: Iterable[object]) -> None:
    """Raise for whole numbers that are too long to be shown or stored."""
    for value in values:
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise InputError(
                f"a whole number of {value.bit_length():,} bits: at most {MOST_BITS:,} are supported; use strings"
            )


def _check_fields(node: Any) -> None:
    """Raise unless an object is a node whose tables and arguments are tuples."""
    if type(node) not in KINDS.values():
        raise InputError(f"{node!r:.80} is no node of a token program: use one of {', '.join(KINDS)}")
    where = getattr(node, "where", ())
    tuples = [getattr(node, name, ()) for name in ("args", "table", "coefficients")] + [where]
    if all(type(t) is tuple for t in tuples) and all(type(p) is Predicate for p in where):
        tables = [p.table for p in where]
        if all(type(t) is tuple and all(type(row) is tuple for row in t) for t in tables):
            return
    raise InputError(
        f"{node!r:.80}: arguments, tables and conditions are tuples, conditions are of Predicate"
    )


def _sums(node: Linear, before: Sequence[Domain]) -> Domain:
    found: set[Any] = {node.constant}  # whole numbers as ints, which are much faster
    words = [v for n in node.args for v in before[n] if isinstance(v, str)]
    if words:
        raise InputError(f"the value {words[0]!r} is not a number: map the variable to numbers, then add")
    for n, c in zip(node.args, node.coefficients, strict=True):
        if len(found) * len(before[n]) > 8 * MOST_VALUES:
            raise InputError(
                f"a sum has up to {len(found) * len(before[n]):,} values: use a smaller vocabulary, length, or coefficients"
            )
        values = [whole(v) for v in numbers(before[n])]
        found = {a + c * b for a, b in itertools.product(found, values)}
    return ordered(whole(v) for v in found)


def _means(node: Mean, values: Domain, length: int) -> Domain:
    """Every p/c of at most `length` whole numbers between the least and the largest value, and the default."""
    known = numbers(values)
    if len(known) < len(values):
        raise InputError(
            f"the values {values[:4]} are not numbers: map them to whole numbers, then take the mean"
        )
    lo, hi = math.floor(min(known)), math.ceil(max(known))
    if (hi - lo) * length * length > 8 * MOST_VALUES:
        raise InputError(f"a mean over {length} positions of values from {lo} to {hi} has too many values")
    found = {Fraction(p, c) for c in range(1, length + 1) for p in range(c * lo, c * hi + 1)}
    return ordered(whole(v) for v in found | {Fraction(node.default)})


def whole(x: Fraction) -> Value:
    """A whole number as an int."""
    return x.numerator if x.denominator == 1 else x
