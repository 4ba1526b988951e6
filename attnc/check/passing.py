"""One step of a program on its way through the composition of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attnc.arithmetic import Arithmetic
from attnc.check.values import Errors, Value
from attnc.program import Program, Step
from attnc.program.step import Numbers


class StoredLayer(Protocol):
    """The stored numbers of a step: a `records.layers.Layer`, or one of a block of a converted model."""

    @property
    def kind(self) -> str: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def value(self) -> int: ...
    @property
    def tensors(self) -> Mapping[str, Numbers]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Passing:
    """A layer, the value of the program that it computes, what holds of its inputs, and what was proved of its heads."""

    program: Program
    layer: StoredLayer
    inputs: Sequence[Value]
    arithmetic: Arithmetic
    errors: Errors = None

    @property
    def step(self) -> Step:
        return self.program.steps[self.layer.value - 1]

    def stored(self, name: str) -> Numbers:
        return self.layer.tensors[name]
