"""Variables of token programs and conditions on them, as Python expressions.

`x` is a variable at the key, `x.q` the same variable at the query. A comparison of a variable with a value or with another
variable is a variable again, True or False at each position; one with `.q` is a condition on pairs of positions, a `Where`."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn

from attnc.errors import ConditionWarning, ExpressionError, InputError
from attnc.program.tokens import Predicate, Value
from attnc.program.tokens.written import COMPARE, condition_text

if TYPE_CHECKING:
    from attnc.frontends.tokens.builder import ProgramBuilder

Constant = str | int | bool
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def never_holds(condition: str) -> None:
    """Warn about a condition that no values of its variables fulfil; the condition shows them."""
    _warn(
        f"{condition} holds for none of these values, so nothing is ever selected: compare with a value that can occur"
    )


def same_position(condition: str, always: bool) -> None:
    """Warn about a comparison of two variables at one position that has the same value everywhere."""
    _warn(
        f"{condition} {'always' if always else 'never'} holds: both sides belong to the same position. Did you mean to compare a "
        "key with a query, as in i == i.q - 1?"
    )


def hidden_keys(condition: str) -> None:
    """Warn about a condition of a causal program that holds for keys after the query alone."""
    _warn(
        f"{condition} never holds in a causal program: keys after the query are hidden, so nothing is ever selected. Select keys "
        "at or before it, as in i == i.q - 1, or use causal=False"
    )


def _warn(text: str) -> None:
    """A `ConditionWarning` at the line outside of this package that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        "attnc.frontends.tokens"
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, ConditionWarning, stacklevel=level)


_EITHER = (
    "Select twice and combine the results: p.count(a) + p.count(b) for conditions a and b that never hold together, "
    "p.exists(a) | p.exists(b) for any"
)


def _no_condition(given: object) -> str:
    """What is wrong with an operand of & and |: & binds more tightly than ==, as in x == y.q & i < i.q."""
    return f"& and | combine conditions: got {given!r}. Put parentheses around each comparison, as in (x == x.q) & (i < i.q)"


class _Comparable:
    """Comparisons by one method, `_compare(sign, other)`."""

    __hash__ = None  # type: ignore[assignment]

    def _compare(self, sign: str, other: Any) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> Any:
        return self._compare("==", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("!=", other)

    def __lt__(self, other: object) -> Any:
        return self._compare("<", other)

    def __le__(self, other: object) -> Any:
        return self._compare("<=", other)

    def __gt__(self, other: object) -> Any:
        return self._compare(">", other)

    def __ge__(self, other: object) -> Any:
        return self._compare(">=", other)

    def __bool__(self) -> bool:
        raise InputError(
            "a variable has a value at each position, no truth value: use &, | and ~, not and, or, not; for x in values, "
            "x.map(lambda v: v in values)"
        )

    def __len__(self) -> int:
        raise ExpressionError(
            "a variable has a value at each position, and no length: p.length is that of the sequence, len(x.domain) counts the "
            "values that x can take"
        )

    def __contains__(self, value: object) -> bool:
        raise ExpressionError(
            f"{value!r} in x has no meaning for variables: compare, x == {value!r}, or select, p.exists(x == {value!r})"
        )


class Variable(_Comparable):
    """A variable of a program: one value at each position. `domain` lists the values that it can take."""

    def __init__(self, builder: ProgramBuilder, node: int) -> None:
        self.builder, self.node = builder, node

    @property
    def domain(self) -> tuple[Value, ...]:
        """The values that it can take, or more."""
        return self.builder.known.domains[self.node]

    @property
    def q(self) -> Query:
        """The variable at the query, for conditions on pairs of positions."""
        return Query(self)

    def map(self, function: Callable[[Any], Any], name: str = "") -> Variable:
        """The function of its value, at each position."""
        return self.builder.map(function, self, name=name)

    def __getitem__(self, position: object) -> Any:
        name = "p.tokens" if self.node == self.builder.tokens.node else "x"
        at = position if isinstance(position, int) and position >= 0 else 0
        raise InputError(
            f"{name}[{position!r}]: a variable has a value at each position and cannot be indexed. To read it at one position, "
            f"use p.get(p.indices == {at}, {name}), p being the program"
        )

    def _compare(self, sign: str, other: Any) -> Variable | Where:
        if isinstance(other, Query):
            return self.builder.pair(self, other.variable, COMPARE[sign], f"key {sign} query")
        if isinstance(other, Variable):
            found = self.builder.map(COMPARE[sign], self, other)
            known, possible = self.builder.known, self.builder.known.possible(found.node)
            varies = any(len(known.domains[atom]) > 1 for atom in known.atoms(found.node))
            if len(possible) == 1 and (varies or not possible[0]):
                same_position(f"{self!r} {sign} {other!r}", always=bool(possible[0]))
            return found
        value = self.builder.constant(other)
        found = self.builder.map(lambda x: COMPARE[sign](x, value), self)
        if True not in found.domain:
            never_holds(f"{self!r} {sign} {other!r}")
        return found

    def __add__(self, other: object) -> Variable:
        if isinstance(other, Variable):
            return self.builder.linear(((1, self), (1, other)))
        return self.builder.linear(((1, self),), self.builder.whole(other))

    __radd__ = __add__

    def __sub__(self, other: object) -> Variable:
        if isinstance(other, Variable):
            return self.builder.linear(((1, self), (-1, other)))
        return self.builder.linear(((1, self),), -self.builder.whole(other))

    def __rsub__(self, other: object) -> Variable:
        return self.builder.linear(((-1, self),), self.builder.whole(other))

    def __neg__(self) -> Variable:
        return self.builder.linear(((-1, self),))

    def __mul__(self, other: object) -> Variable:
        if isinstance(other, Variable):
            return self._times(other)
        return self.builder.linear(((self.builder.whole(other), self),))

    __rmul__ = __mul__

    def _times(self, other: Variable) -> Variable:
        """The product with a variable, as a map."""
        try:
            return self.builder.mapped(operator.mul, (self, other), "the product")
        except InputError as problem:
            if not any(isinstance(v, Fraction) for v in (*self.domain, *other.domain)):
                raise
            x, y = (self.builder.known.title(variable.node) for variable in (self, other))
            raise InputError(
                f"the product of {x} and {y}: means are fractions, and products must be whole numbers. If this one always is, "
                "write p.map(lambda x, y: int(x * y), x, y); a sum over positions is a sum of counts"
            ) from problem

    def __mod__(self, other: object) -> Variable:
        modulus = self.builder.whole(other)
        return self.map(lambda x: x % modulus)

    def __floordiv__(self, other: object) -> Variable:
        divisor = self.builder.whole(other)
        return self.map(lambda x: x // divisor)

    def _refused(self, *_: object) -> NoReturn:
        raise InputError(
            f"{self!r}: variables have +, -, * by whole numbers, // and %; for other functions use .map, as in "
            "x.map(lambda v: v ** 2)"
        )

    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __abs__ = __rmod__ = __rfloordiv__ = _refused

    def __and__(self, other: Variable | Where) -> Any:
        return self._both(other, operator.and_)

    def __rand__(self, other: object) -> NoReturn:
        raise ExpressionError(_no_condition(other))

    __ror__ = __rand__

    def __or__(self, other: Variable | Where) -> Any:
        return self._both(other, operator.or_)

    def _both(self, other: Variable | Where, combine: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, Where):
            return combine(self.builder.condition(self), other)
        if not isinstance(other, Variable):
            raise ExpressionError(_no_condition(other))
        for side in (self, other):
            self.builder.check_bool(side)
        combined = self.builder.map(combine, self, other)
        if combine is operator.and_:
            self.builder.conjunctions[combined.node] = (self.node, other.node)
        return combined

    def __invert__(self) -> Variable:
        self.builder.check_bool(self)
        return self.map(lambda x: not x)

    def __repr__(self) -> str:
        values = (str(v) if isinstance(v, Fraction) else repr(v) for v in self.domain[:6])
        shown = ", ".join(values) + (", …" if len(self.domain) > 6 else "")
        return f"<{self.builder.known.title(self.node)}: {shown}>"


class Query(_Comparable):
    """A variable at the query."""

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def _compare(self, sign: str, other: Any) -> Where:
        builder = self.variable.builder
        if isinstance(other, Variable):
            compare = COMPARE[_MIRRORED[sign]]
            return builder.pair(other, self.variable, compare, f"key {_MIRRORED[sign]} query")
        compared = self.variable._compare(sign, other.variable if isinstance(other, Query) else other)
        assert isinstance(compared, Variable)
        return builder.condition(compared, query=True)

    def _arithmetic(self, other: object, combine: Callable[[Any, Any], Any]) -> Query:
        if isinstance(other, Variable):
            raise InputError(
                "arithmetic of a key and a query is not possible: move everything of the query to one side, for instance "
                "p.indices == p.indices.q - 1"
            )
        return Query(combine(self.variable, other.variable if isinstance(other, Query) else other))

    def __add__(self, other: object) -> Query:
        return self._arithmetic(other, operator.add)

    __radd__ = __add__

    def __sub__(self, other: object) -> Query:
        return self._arithmetic(other, operator.sub)

    def __rsub__(self, other: object) -> Query:
        return self._arithmetic(other, lambda x, y: y - x)

    def __mul__(self, other: object) -> Query:
        return self._arithmetic(other, operator.mul)

    __rmul__ = __mul__

    def __mod__(self, other: object) -> Query:
        return self._arithmetic(other, operator.mod)

    def __floordiv__(self, other: object) -> Query:
        return self._arithmetic(other, operator.floordiv)

    def __neg__(self) -> Query:
        return Query(-self.variable)

    def _refused(self, *_: object) -> NoReturn:
        self.variable._refused()

    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __abs__ = __rmod__ = __rfloordiv__ = _refused

    def __and__(self, other: object) -> NoReturn:
        raise ExpressionError(_no_condition(self))

    __or__ = __rand__ = __ror__ = __and__

    def __invert__(self) -> NoReturn:
        raise ExpressionError(f"~ takes a condition: got {self!r}. Write ~(x.q == value), or ~x for x.q")

    def __repr__(self) -> str:
        return f"{self.variable!r}.q"


@dataclass(frozen=True, eq=False)
class Where:
    """A conjunction of conditions on a key and a query."""

    builder: ProgramBuilder
    predicates: tuple[Predicate, ...]

    def __and__(self, other: Where | Variable) -> Where:
        others = self.builder.condition(other).predicates
        return Where(self.builder, (*self.predicates, *others))

    __rand__ = __and__

    def __or__(self, other: Where | Variable) -> Where:
        a, b = self._alone(), self.builder.condition(other)._alone()
        if (a.key, a.query) != (b.key, b.query):
            raise InputError(f"| combines conditions on the same two variables. {_EITHER}")
        table = tuple(
            tuple(x or y for x, y in zip(*rows, strict=True)) for rows in zip(a.table, b.table, strict=True)
        )
        return Where(self.builder, (Predicate(a.key, a.query, table),))

    __ror__ = __or__

    def __invert__(self) -> Where:
        p = self._alone()
        return Where(
            self.builder, (Predicate(p.key, p.query, tuple(tuple(not x for x in row) for row in p.table)),)
        )

    def __bool__(self) -> bool:
        raise InputError("a condition holds for pairs of positions, it has no truth value: use &, | and ~")

    def __len__(self) -> int:
        raise ExpressionError("a condition has no length: p.count(condition) counts the selected positions")

    def __contains__(self, value: object) -> bool:
        raise ExpressionError(f"{value!r} in a condition has no meaning: combine conditions by & and |")

    def _alone(self) -> Predicate:
        if len(self.predicates) != 1:
            raise InputError(f"| and ~ take single comparisons, not conjunctions by &. {_EITHER}")
        return self.predicates[0]

    def __repr__(self) -> str:
        known = self.builder.known
        return f"<Where: {' and '.join(condition_text(known, p) for p in self.predicates) or 'all keys'}>"
