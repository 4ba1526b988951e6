"""The base of every step: a map of exact arithmetic between values of shape (tokens …, features).

Value 0 is the input; step i computes value i + 1. The numbers of a step are those of the source, taken as exact."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flint import arb
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from attnc.errors import InputError

Shape = tuple[int, ...]
Numbers = NDArray[Any]
Balls = NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Step(ABC):
    """One operation of a program. Each kind of step is one file of this folder."""

    name: str = field(default="", kw_only=True)  # in the source
    kind: ClassVar[str]
    linear: ClassVar[bool] = True  # False: the step becomes attention

    if TYPE_CHECKING:  # a field of steps with several inputs, a property of the others

        @property
        def inputs(self) -> tuple[int, ...]:
            """The values that the step reads."""

    @abstractmethod
    def shape(self, *given: Shape) -> Shape:
        """The shape of its result; raises `InputError` if the inputs do not fit."""

    @abstractmethod
    def exact(self, *x: Balls) -> Balls:
        """An enclosure of the result for a batch (N, *shape) of balls."""

    @abstractmethod
    def approximate(self, *x: Tensor) -> Tensor:
        """The result in float64 for a batch (N, *shape), differentiable."""

    def magnitude(self, *x: Tensor) -> Tensor:
        """The step on non-negative x with the absolute values of its numbers, in float64, so that nothing cancels: what the
        rounding of an execution is relative to. Only steps that the front end of torch modules emits need it."""
        raise NotImplementedError(f"{type(self).__name__} has no magnitude: a front end needs it")

    def reading(self, place: Mapping[int, int]) -> Step:
        """The same step with its inputs renumbered."""
        return replace(self, **{"inputs": tuple(place[i] for i in self.inputs)})  # type: ignore[arg-type]

    def tensors(self) -> dict[str, Numbers]:
        """The arrays of the step, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}

    def work(self, *given: Shape) -> int:
        """How many multiplications the step applies to inputs of these shapes, if it is a matrix product."""
        return 0

    def problem(self) -> str | None:
        """Why the step cannot be compiled, or None."""
        return None

    @property
    def label(self) -> str:
        """The name in the source, or the kind."""
        return self.name or self.kind

    def settings(self) -> dict[str, Any]:
        """The fields that are not arrays; a function is given by its label."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        return {k: v for k, v in found.items() if not isinstance(v, np.ndarray) and v is not None}


@dataclass(frozen=True, eq=False)
class OneInput(Step):
    """A step that reads a single value."""

    input: int

    def check_features(self, given: Shape, features: int) -> None:
        if given[-1:] != (features,):
            raise InputError(f"it takes {features} features, but its input has shape {given}")

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)

    def reading(self, place: Mapping[int, int]) -> Step:
        return replace(self, input=place[self.input])


def freeze(step: Step, *names: str) -> None:
    """Replace arrays of a new step by read-only copies of float32 or float64 numbers."""
    for name in names:
        if (numbers := getattr(step, name)) is not None:
            array = np.array(numbers, order="C")
            if array.dtype not in (np.float32, np.float64):
                raise InputError(f"{step.label}: {name} has dtype {array.dtype}, expected float32 or float64")
            array.flags.writeable = False
            object.__setattr__(step, name, array)


def finite_setting(step: Step, name: str) -> None:
    """Store a setting as a float; it must be finite and not negative."""
    value = float(getattr(step, name))
    object.__setattr__(step, name, value)
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{step.label}: {name}={value} must be finite and not negative")


def balls(numbers: Numbers) -> Balls:
    """Numbers as balls of radius 0."""
    return np.asarray(np.frompyfunc(lambda number: arb(float(number)), 1, 1)(numbers), dtype=object)


def wide(numbers: Numbers) -> Tensor:
    """Numbers as a float64 tensor."""
    return from_numpy(numbers.astype(np.float64))
