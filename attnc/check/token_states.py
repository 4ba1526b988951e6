"""What the checker knows of the stream of a token network, as functions of few variables with finite domains.

At a position with data every coordinate of the stream is a function of *variables*: "token", "index", "length" (of the whole
sequence), and the values of selections of the program, by the number of their node. Values of different positions, and of
different selections, are taken as independent: that covers every sequence. What depends on positions alone is a function of
index and length.

    |executed - values| <= errors,        values in rational arithmetic; no errors: the executed number is exactly the value"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.arithmetic import Arithmetic
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.program.tokens import Index, Linear, Map, Token, TokenProgram

Variable = str | int
Exact = NDArray[Any]  # int64, or objects: Python's whole numbers and fractions
MOST_STATES = 1 << 22


@dataclass(frozen=True)
class States:
    """Joint assignments: for each variable the places of its values in their domain."""

    places: Mapping[Variable, NDArray[np.int64]]  # (S,) each
    count: int


@dataclass(frozen=True)
class Column:
    """A coordinate of the stream: `values` has an axis for each variable."""

    variables: tuple[Variable, ...]
    values: Exact
    errors: Exact | None = None
    codes: NDArray[np.int64] | None = (
        None  # equal codes have equal values and errors; None: the values themselves
    )

    @cached_property
    def floats(self) -> tuple[Array, Array]:
        """Values and errors, each within a relative 2^-53 (errors 2^-52, never too small); NaN beyond the range of float64."""
        if self.codes is None:
            values, errors = self.values.ravel(), None if self.errors is None else self.errors.ravel()
            back = np.arange(self.values.size)
        else:
            _, first, back = np.unique(self.codes.ravel(), return_index=True, return_inverse=True)
            values, errors = (
                self.values.ravel()[first],
                None if self.errors is None else self.errors.ravel()[first],
            )
        near, over = _floats(values), np.zeros(len(values))
        if errors is not None:
            above = np.nextafter(_floats(errors), np.inf)
            over = np.where(np.asarray(errors == 0, bool), 0.0, above)
        return near[back].reshape(self.values.shape), over[back].reshape(self.values.shape)

    def at(self, states: States) -> tuple[Exact, Exact | None]:
        """Values and errors for joint assignments that include the variables."""
        where = tuple(states.places[v] for v in self.variables)
        spread = np.zeros(states.count, np.int64)
        values = self.values[where] if where else self.values[()] + spread
        if self.errors is None:
            return values, None
        return values, self.errors[where] if where else self.errors[()] + spread


class Meaning:
    """The values of the nodes of a program for assignments of variables."""

    def __init__(self, program: TokenProgram) -> None:
        self.program, self.n = program, program.length
        self._places: dict[int, NDArray[np.int64]] = {}

    def size(self, variable: Variable) -> int:
        """How many values a variable has. That at place p of "length" is p + 1."""
        if variable == "token":
            return len(self.program.vocabulary)
        return self.n if isinstance(variable, str) else len(self.program.domains[variable])

    def variables(self, *nodes: int | None) -> frozenset[Variable]:
        """The variables that nodes are functions of."""
        found: set[Variable] = set()
        for atom in {a for node in nodes if node is not None for a in self.program.atoms(node)}:
            if isinstance(self.program.nodes[atom], Token):
                found.add("token")
            elif self.program.positional[atom]:
                found |= self.position_variables(atom)
            else:
                found.add(atom)
        return frozenset(found)

    def position_variables(self, atom: int) -> set[Variable]:
        """Those of a node that depends on positions alone: a causal one does not see the length."""
        alone = isinstance(self.program.nodes[atom], Index) or self.program.causal
        return {"index"} if alone else {"index", "length"}

    def own_variables(self, node: int) -> tuple[Variable, ...]:
        """The variables of the coordinates that hold a selection."""
        return tuple(sorted(self.position_variables(node))) if self.program.positional[node] else (node,)

    def own_places(self, node: int) -> NDArray[np.int64]:
        """The place of a selection's value, with an axis for each of its own variables."""
        if not self.program.positional[node]:
            return np.arange(self.size(node))
        table = self._position_places(node)
        return table if len(self.own_variables(node)) == 2 else table[:, -1]

    def _position_places(self, node: int) -> NDArray[np.int64]:
        """[index, length - 1]; 0 where there is no such position."""
        if node not in self._places:
            self._places[node] = np.maximum(self.program.position_places(node), 0)
        return self._places[node]

    def states(self, variables: Iterable[Variable], length: int | None = None) -> States:
        """All joint assignments; an index is below the length, which may be fixed."""
        names = sorted(set(variables), key=str)
        sizes = self.check_count(names)
        if not names:
            return States({}, 1)
        grid = np.indices(sizes, np.int64).reshape(len(names), -1)
        places = dict(zip(names, grid, strict=True))
        keep = np.ones(grid.shape[1], bool)
        if length is not None and "length" in places:
            keep &= places["length"] == length - 1
        if "index" in places and length is not None:
            keep &= places["index"] < length
        if "index" in places and "length" in places:
            keep &= places["index"] <= places["length"]
        return States({v: p[keep] for v, p in places.items()}, int(keep.sum()))

    def check_count(self, names: Iterable[Variable]) -> list[int]:
        """How many values each variable has; raises if all of them together have too many states."""
        sizes = [self.size(v) for v in names]
        if math.prod(sizes) > 4 * MOST_STATES:
            raise CheckError(
                f"{math.prod(sizes):,} states of {self.titles(names)} are too many to check, over {4 * MOST_STATES:,}: use "
                "smaller domains, or a smaller max_len"
            )
        return sizes

    def titles(self, variables: Iterable[Variable]) -> str:
        """The variables by the names of their nodes."""
        found = (v if isinstance(v, str) else self.program.title(v) for v in variables)
        return ", ".join(sorted(found))

    def place(self, node: int, states: States) -> NDArray[np.int64]:
        """The place of a node's value in its domain, for each assignment; what it reads is evaluated once each."""
        found: dict[int, NDArray[np.int64]] = {}
        for at in self.program.elementwise(node):
            found[at] = self._place(at, states, found)
        return found[node]

    def _place(self, node: int, states: States, found: Mapping[int, NDArray[np.int64]]) -> NDArray[np.int64]:
        kind = self.program.nodes[node]
        if isinstance(kind, Token):
            return states.places["token"]
        if isinstance(kind, Index):
            return states.places["index"]
        if isinstance(kind, Map):
            at = np.zeros(states.count, np.int64)
            for arg in kind.args:
                at = at * len(self.program.domains[arg]) + found[arg]
            table = np.array([self.program.places[node][v] for v in kind.table], np.int64)
            return np.asarray(table[at], np.int64)
        if isinstance(kind, Linear):
            return self._sums(node, kind, states, found)
        if not self.program.positional[node]:
            return states.places[node]
        last = np.full(states.count, self.n - 1) if self.program.causal else states.places["length"]
        return np.asarray(self._position_places(node)[states.places["index"], last], np.int64)

    def _sums(
        self, node: int, kind: Linear, states: States, found: Mapping[int, NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        total: Exact = np.full(states.count, kind.constant, dtype=object)
        for arg, c in zip(kind.args, kind.coefficients, strict=True):
            total = total + c * self._numbers(arg)[found[arg]]
        places = self.program.places[node]
        try:
            return np.array([places[v] for v in total.tolist()], np.int64)
        except KeyError as problem:  # index and length of another node's domain
            raise CheckError(
                f"{self.program.title(node)} may have the value {problem}, outside of its domain"
            ) from None

    def number(self, node: int, states: States) -> Exact:
        """The values of a node of numbers, exactly."""
        values: Exact = self._numbers(node)[self.place(node, states)]
        return values

    def _numbers(self, node: int) -> Exact:
        known = np.empty(len(self.program.domains[node]), dtype=object)
        known[:] = [v if isinstance(v, Fraction) else int(v) for v in self.program.domains[node]]
        return known

    def dense(self, states: States, variables: tuple[Variable, ...], values: Exact) -> Exact:
        """Values of assignments as an array with an axis for each variable; 0 where there is none."""
        found = np.zeros([self.size(v) for v in variables], values.dtype)
        found[tuple(states.places[v] for v in variables)] = values if variables else values[0]
        return found


@dataclass(frozen=True)
class Forms:
    """Linear functions of the stream, for each of S assignments: |executed - values| <= errors."""

    values: Exact  # (S, r)
    errors: Exact | None = None

    @property
    def lo(self) -> Exact:
        return self.values if self.errors is None else self.values - self.errors

    @property
    def hi(self) -> Exact:
        return self.values if self.errors is None else self.values + self.errors


class Stream:
    """The coordinates of the stream at positions with data, and their numbers at BOS."""

    def __init__(self, meaning: Meaning, tokens: Array, positions: Array, arithmetic: Arithmetic) -> None:
        self.meaning, self.arithmetic = meaning, arithmetic
        self.unit = Fraction(arithmetic.unit)
        self.limit = int(1 / self.unit)
        for name, table in (("token", tokens), ("position", positions)):
            if not _is_whole(table) or np.abs(table).max() >= self.limit / 2:
                raise CheckError(f"the {name} embedding has numbers that are not whole, or too large")
        embedded, placed = tokens.astype(np.int64), positions.astype(np.int64)
        self.bos = embedded[-1] + placed[0]
        self.columns: dict[int, Column] = {}
        places: dict[Variable, NDArray[np.int64]]
        places = {name: np.arange(meaning.size(name)) for name in ("token", "index")}
        for c in range(tokens.shape[1]):
            by_token, by_index = embedded[:-1, c], placed[1:, c]
            if by_token.any() or by_index.any():
                total = by_token[:, None] + by_index[None, :]
                names: tuple[Variable, ...] = ("token", "index")
                if (total == total[:, :1]).all():
                    total, names = total[:, 0], names[:1]
                if (total == total[:1]).all():
                    total, names = total[0], names[1:]
                codes = places[names[0]] if len(names) == 1 else None
                self.columns[c] = Column(names, total, None, codes)
        self.written = {c for c in range(tokens.shape[1]) if c in self.columns or self.bos[c]}

    def variables(self, matrix: Array) -> frozenset[Variable]:
        """The variables that the rows of a matrix read."""
        return frozenset(v for c in self.rows(matrix) for v in self.columns[c].variables)

    def rows(self, matrix: Array) -> list[int]:
        """The coordinates with data that a matrix reads."""
        return [c for c in np.flatnonzero(matrix.any(1)).tolist() if c in self.columns]

    def read(self, matrix: Array, states: States, rounded: bool = False) -> Forms:
        """x·matrix for each assignment; with errors in any case if `rounded`."""
        few, back = self.distinct(matrix, states)
        rows = self.rows(matrix)
        if not rows:
            return Forms(np.zeros((states.count, matrix.shape[1]), np.int64))
        found = [self.columns[c].at(few) for c in rows]
        values = np.stack([v for v, _ in found], 1)
        errors = None
        if any(e is not None for _, e in found):
            none = np.full(few.count, Fraction(0), dtype=object)
            errors = np.stack([none if e is None else e for _, e in found], 1)
        forms = (self._rounded if rounded else self.product)(values, errors, matrix[rows])
        return Forms(forms.values[back], None if forms.errors is None else forms.errors[back])

    def read_bos(self, matrix: Array, rounded: bool = False) -> Forms:
        """x·matrix at BOS: one row."""
        rows = np.flatnonzero(matrix.any(1))
        return (self._rounded if rounded else self.product)(self.bos[None, rows], None, matrix[rows])

    def distinct(
        self, matrix: Array, states: States, label: NDArray[np.int64] | None = None
    ) -> tuple[States, NDArray[np.int64]]:
        """Assignments that stand for all, and which of them stands for each: those with other numbers in the rows that a matrix
        reads, or another label."""
        joint = np.zeros(states.count, np.int64) if label is None else label
        groups: dict[tuple[Variable, ...], list[NDArray[np.int64]]] = {}
        for c in self.rows(matrix):
            column = self.columns[c]
            codes = column.values if column.codes is None else column.codes
            if codes.dtype != np.int64 or (column.codes is None and column.errors is not None):
                codes = np.arange(codes.size).reshape(codes.shape)
            own = groups.setdefault(column.variables, [])
            if not any(codes is other for other in own):
                own.append(codes)
        for variables, arrays in groups.items():
            where = tuple(states.places[v] for v in variables)
            if len(arrays) > 4:  # one code for all of them
                _, code = np.unique(np.stack([c.ravel() for c in arrays], 1), axis=0, return_inverse=True)
                arrays = [code.reshape(arrays[0].shape)]
            for codes in arrays:
                _, new = np.unique(codes[where], return_inverse=True)
                _, joint = np.unique(joint * (new.max(initial=0) + 1) + new.reshape(-1), return_inverse=True)
        _, first, back = np.unique(joint.reshape(-1), return_index=True, return_inverse=True)
        return States({v: p[first] for v, p in states.places.items()}, len(first)), back.reshape(-1)

    def product(self, x: Exact, errors: Exact | None, matrix: Array) -> Forms:
        """x·matrix and its error: none for whole numbers with Σ|terms| < 1/u, else by assumption 4

        Σ errors·|W| + γ Σ (|x| + errors)·|W|,    γ = mu/(1 - mu), m products that are not 0 and one more rounding."""
        if errors is None and x.dtype == np.int64 and _is_whole(matrix):
            whole = matrix.astype(np.int64)
            if np.abs(x).max(initial=0) * np.abs(matrix).max(initial=0) * len(whole) < 2.0**62:
                if whole_product(np.abs(x), np.abs(whole)).max(initial=0) >= self.limit:
                    raise CheckError(
                        f"a sum reaches 1/u = {self.limit:,}, beyond which whole numbers are not exact in "
                        f"{self.arithmetic.dtype}: use float64, or a smaller vocabulary, length or range of preferences"
                    )
                return Forms(whole_product(x, whole))
        return self._rounded(x, errors, matrix)

    def _rounded(self, x: Exact, errors: Exact | None, matrix: Array) -> Forms:
        exact = fractions(matrix)
        wide = x.astype(object)
        errors = np.full(x.shape, Fraction(0), dtype=object) if errors is None else errors
        sizes = (abs(wide) + errors) @ abs(exact)
        terms = int((matrix != 0).sum(0).max(initial=0))
        return Forms(wide @ exact, errors @ abs(exact) + self.rounding(sizes, terms))

    def rounding(self, sizes: Exact, terms: int) -> Exact:
        """How far rounding moves sums of so many products whose sizes add up to `sizes`; underflow costs τ an operation."""
        if sizes.size and not sizes.max() * (1 + self.gamma(terms + 1)) < self.arithmetic.largest:
            raise CheckError(f"sums may overflow in {self.arithmetic.dtype}")
        found: Exact = self.gamma(terms + 1) * sizes + (2 * terms + 1) * Fraction(self.arithmetic.tiny)
        return found

    def gamma(self, roundings: int) -> Fraction:
        """A bound of (1 + u)^m - 1 and of 1 - (1 - u)^m."""
        return roundings * self.unit / (1 - roundings * self.unit)

    def add(self, coordinate: int, column: Column, bos: int) -> None:
        """A head writes a coordinate, which nothing wrote before."""
        if coordinate in self.written:
            raise CheckError(f"coordinate {coordinate} is written twice")
        self.written.add(coordinate)
        self.columns[coordinate] = column
        self.bos[coordinate] = bos


def whole_product(x: Exact, y: Exact) -> Exact:
    """x·y for int64, exactly; sums that cannot overflow int64. Below 2^53 float64 is exact in any order, and much faster."""
    if np.abs(x).max(initial=0) * 1.0 * np.abs(y).max(initial=0) * x.shape[1] < 2.0**53:
        found: Exact = np.rint(x.astype(np.float64) @ y.astype(np.float64)).astype(np.int64)
        return found
    return x @ y


def fractions(array: Array) -> Exact:
    """Floats as exact fractions; whole numbers as ints, which are faster."""
    found = np.empty(array.size, dtype=object)
    found[:] = [int(x) if x == int(x) else Fraction(x) for x in array.ravel().tolist()]
    return found.reshape(array.shape)


def _floats(values: Exact) -> Array:
    """The nearest numbers of float64."""
    if values.dtype == np.int64:
        return values.astype(np.float64)
    found = np.full(values.shape, np.nan)
    try:
        found[:] = [float(x) for x in values.tolist()]
    except OverflowError:
        return np.full(values.shape, np.nan)
    return found


def _is_whole(array: Array) -> bool:
    return bool((np.abs(array) < 2.0**53).all() and (array == np.floor(array)).all())


def copies(bos: Forms, output: Array) -> bool:
    """Whether v·O copies one number 1 to each coordinate that it writes."""
    v = bos.values[0]
    whole = bos.errors is None and bool(np.isin(v.astype(np.float64), (0, 1)).all())
    used = output[v.astype(bool)] if whole else output[:0]
    return whole and bool(np.isin(output, (0.0, 1.0)).all()) and bool((used.sum(0) == output.any(0)).all())


def chunks(states: States, rows: int) -> Iterator[States]:
    """The assignments in parts."""
    for a in range(0, states.count, rows):
        part = {v: p[a : a + rows] for v, p in states.places.items()}
        yield States(part, min(rows, states.count - a))
