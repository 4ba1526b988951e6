"""What is asked of the lowering of a program, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnc.domain import Box
from attnc.heads.target import Progress
from attnc.lower.pointwise import HeadGroup
from attnc.lower.quadratic import QuadraticProof
from attnc.program.program import Program
from attnc.prove.bounds import ValueBounds
from attnc.records.layers import Layer


@dataclass(frozen=True)
class Request:
    """A program to compile, and the error that is allowed."""

    program: Program
    box: Box
    eps: float  # of the output; infinity if `approximation` is given
    dtype: str
    progress: Progress = lambda _: None
    approximation: float | None = None  # of each layer of attention alone, in exact arithmetic
    lattices: bool = False  # whether heads that miss their share may be replaced by lattices


@dataclass(frozen=True)
class Lowered:
    """Layers, the heads of each layer of attention by its value, those of the norms, and the bounds of every value."""

    layers: tuple[Layer, ...]
    heads: dict[int, list[HeadGroup]]
    known: dict[int, ValueBounds]
    roots: dict[int, QuadraticProof] = field(default_factory=dict)

    def layer(self, value: int) -> Layer:
        """The layer that computes a value."""
        return next(layer for layer in self.layers if layer.value == value)

    @property
    def output(self) -> ValueBounds:
        return self.known[self.layers[-1].value]

    @property
    def error(self) -> float:
        return float(self.output.error.max())
