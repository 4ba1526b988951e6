"""Tape: the operations of a traced function while it is being written; equal operations are written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from attnc.program.traced import MOST_OPERATIONS, Operation, Traced, operands

_EXACT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
}
_PARTIAL = ("divide", "log", "sqrt", "power")  # not defined everywhere


class TooLongError(Exception):
    """The function has more operations than the format accepts."""


class Tape:
    """Scalar operations in order. Value i < `inputs` is an input; `write` adds an operation and returns the number of its value.

    Identities that hold for all real numbers are applied: x + 0, 1·x, 0·x where x is defined everywhere, and sums and products of
    constants whose result is a double."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.operations: list[Operation] = []
        self._known: dict[Operation, int] = {}
        self._partial: set[int] = set()  # values that may be undefined somewhere

    def constant(self, number: float) -> int:
        return self._append(("constant", float(number) + 0.0))

    def value_of(self, at: int) -> float | None:
        """The number, if the value is a constant."""
        operation = self.operations[at - self.inputs] if at >= self.inputs else ("",)
        return operation[1] if operation[0] == "constant" else None

    def is_partial(self, at: int) -> bool:
        """Whether the value may be undefined somewhere."""
        return at in self._partial

    def write(self, name: str, *given: Any) -> int:
        """The value of an operation on values."""
        numbers = [self.value_of(i) for i in given] if name != "power" else []
        if name in _EXACT:
            simple = self._simplified(name, given, numbers)
            if simple is not None:
                return simple
        if name == "where" and (chosen := self._chosen(*given)) is not None:
            return chosen
        if name == "divide" and numbers[1] == 1:
            return int(given[0])
        if name == "negate" and numbers[0] is not None:
            return self.constant(-numbers[0])
        if name == "power" and given[1] == 1:
            return int(given[0])
        return self._append((name, *given))

    def _chosen(self, c: int, a: int, b: int) -> int | None:
        """The branch that is taken everywhere, if it is known."""
        number = self.value_of(c)
        if number is not None:
            return a if number > 0 else b
        return a if a == b and c not in self._partial else None

    def _simplified(self, name: str, given: Sequence[int], numbers: Sequence[float | None]) -> int | None:
        a, b = numbers
        if a is not None and b is not None:
            exact = _EXACT[name](Fraction(a), Fraction(b))
            try:
                rounded = float(exact)
            except OverflowError:
                return None
            return self.constant(rounded) if Fraction(rounded) == exact else None
        if name in ("add", "subtract") and b == 0:
            return given[0]
        if name == "add" and a == 0:
            return given[1]
        if name == "multiply":
            for number, other in ((a, given[1]), (b, given[0])):
                if number == 1:
                    return other
                if number == 0 and other not in self._partial:
                    return self.constant(0.0)
        return None

    def _append(self, operation: Operation) -> int:
        read = operands(operation)
        order = sorted(read) if operation[0] in ("add", "multiply", "maximum", "minimum") else read
        key = (operation[0], *order, *operation[1 + len(read) :], *map(type, operation))
        if key not in self._known:
            if len(self.operations) >= 4 * MOST_OPERATIONS:
                raise TooLongError
            at = self._known[key] = self.inputs + len(self.operations)
            self.operations.append(operation)
            if operation[0] in _PARTIAL or any(i in self._partial for i in operands(operation)):
                self._partial.add(at)
        return self._known[key]

    def reached(self, outputs: Iterable[int]) -> list[int]:
        """The values that the outputs depend on, the outputs included, each after those that it reads."""
        found: dict[int, None] = {}
        for output in outputs:
            stack = [(output, False)]
            while stack:
                at, ready = stack.pop()
                if at in found:
                    continue
                read = operands(self.operations[at - self.inputs]) if at >= self.inputs else ()
                if ready or not read:
                    found[at] = None
                else:
                    stack.append((at, True))
                    stack += [(i, False) for i in reversed(read)]
        return list(found)

    def cut(self, first: int, width: int, outputs: Sequence[int], name: str = "") -> Traced | None:
        """The function of inputs first … first + width - 1 alone; None if the outputs depend on others."""
        place = {first + i: i for i in range(width)}
        kept: list[Operation] = []
        for at in self.reached(outputs):
            if at < self.inputs:
                if at not in place:
                    return None
                continue
            operation = self.operations[at - self.inputs]
            read = operands(operation)
            kept.append((operation[0], *(place[i] for i in read), *operation[1 + len(read) :]))
            place[at] = width + len(kept) - 1
        return Traced(0, width, tuple(kept), tuple(place[i] for i in outputs), name=name)


class Symbols:
    """A tensor of values of a tape: their numbers as an int64 tensor, so that torch moves them as it moves the values."""

    def __init__(self, at: Tensor) -> None:
        self.at = at

    @property
    def shape(self) -> torch.Size:
        return self.at.shape
