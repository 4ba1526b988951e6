"""y = f(x) for a function that is not stored."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, OneInput, Shape


@dataclass(frozen=True, eq=False)
class BlackBox(OneInput):
    """y = f(x) for a callable of which only the number of outputs is stored: its error was measured, not proved."""

    outputs: int
    kind = "black_box"
    linear = False

    def __post_init__(self) -> None:
        if type(self.outputs) is not int or self.outputs < 1:
            raise InputError(f"outputs={self.outputs!r} must be a positive whole number")

    def shape(self, *given: Shape) -> Shape:
        if len(given[0]) != 1:
            raise InputError(f"it takes one vector of all features: reshape its input of shape {given[0]}")
        return (self.outputs,)

    def exact(self, *x: Balls) -> Balls:
        raise InputError(f"{self.label} is a black box: the program does not store it")

    def approximate(self, *x: Tensor) -> Tensor:
        raise InputError(f"{self.label} is a black box: the program does not store it")
