"""The steps of a program: maps of exact arithmetic between values of a shape (tokens …, features).

Value 0 is the input; step i makes value i + 1. The numbers of a step are those of the source, in the source's
dtype; they are taken as exact."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError
from attnc.functions import Function

Shape = tuple[int, ...]
Numbers = NDArray[Any]


def frozen(numbers: Numbers) -> Numbers:
    """A copy of float32 or float64 numbers that nobody can change."""
    array = np.array(numbers, order="C")
    if array.dtype not in (np.float32, np.float64):
        raise InputError(f"a program holds numbers of float32 or float64: got {array.dtype}")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Affine:
    """y = W x + b on the features of every token."""

    input: int
    weight: Numbers  # (out, in)
    bias: Numbers | None = None  # (out,)
    name: str = ""
    kind: str = field(default="affine", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", frozen(self.weight))
        object.__setattr__(self, "bias", None if self.bias is None else frozen(self.bias))
        if self.weight.ndim != 2 or 0 in self.weight.shape:
            raise InputError(
                f"{self.name or 'an affine map'} has a weight of shape {self.weight.shape}: (out, in)"
            )
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise InputError(
                f"{self.name or 'an affine map'} has a weight of shape {self.weight.shape} and a bias of shape "
                f"{self.bias.shape}: one number for each output is expected"
            )

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)

    def tensors(self) -> dict[str, Numbers]:
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}

    def shape(self, *given: Shape) -> Shape:
        if not given[0] or given[0][-1] != self.weight.shape[1]:
            raise InputError(f"it takes {self.weight.shape[1]} features, and gets the shape {given[0]}")
        return (*given[0][:-1], self.weight.shape[0])


@dataclass(frozen=True, eq=False)
class Normalise:
    """y = (x - mean)/√(variance + ε)·gain + shift on the features: a normalisation whose statistics are fixed."""

    input: int
    mean: Numbers
    variance: Numbers
    gain: Numbers
    shift: Numbers
    epsilon: float
    name: str = ""
    kind: str = field(default="normalise", init=False)

    def __post_init__(self) -> None:
        for part in ("mean", "variance", "gain", "shift"):
            object.__setattr__(self, part, frozen(getattr(self, part)))
        shapes = {a.shape for a in self.tensors().values()}
        if len(shapes) != 1 or len(self.mean.shape) != 1:
            raise InputError(
                f"{self.name or 'a normalisation'} has parts of the shapes {sorted(shapes)}: one vector each"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if float(np.min(self.variance)) + self.epsilon <= 0 or not math.isfinite(self.epsilon):
            raise InputError(
                f"{self.name or 'a normalisation'} divides by zero: variance + epsilon must be positive"
            )

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)

    def tensors(self) -> dict[str, Numbers]:
        return {"mean": self.mean, "variance": self.variance, "gain": self.gain, "shift": self.shift}

    def shape(self, *given: Shape) -> Shape:
        if given[0][-1:] != self.mean.shape:
            raise InputError(f"it takes {self.mean.shape[0]} features, and gets the shape {given[0]}")
        return given[0]


@dataclass(frozen=True, eq=False)
class Pointwise:
    """y = f(x), element by element.

    `deviation` bounds how far the source's own function is from f where x > `beyond`: torch's softplus turns
    into the identity beyond its threshold, and is off by up to log(1 + exp(-threshold))/beta there.
    """

    input: int
    function: Function
    name: str = ""
    deviation: float = 0.0
    beyond: float = math.inf
    kind: str = field(default="pointwise", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deviation", float(self.deviation))
        object.__setattr__(self, "beyond", float(self.beyond))
        if not (math.isfinite(self.deviation) and self.deviation >= 0) or math.isnan(self.beyond):
            raise InputError(
                f"{self.name or 'a function'} has deviation={self.deviation} beyond {self.beyond}: a finite number that is not "
                "negative, and where it begins"
            )

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)

    def tensors(self) -> dict[str, Numbers]:
        return {}

    def shape(self, *given: Shape) -> Shape:
        return given[0]


@dataclass(frozen=True, eq=False)
class Lookup:
    """y = f(x) for a function of all features, known at points and by how fast it can change. In every output

        |f(points_k) - values_k| <= noise        |f(x) - f(x')| <= lipschitz·|x - x'|₂

    What is proved of it is proved of every such f."""

    input: int
    points: Numbers  # (K, in)
    values: Numbers  # (K, out)
    lipschitz: float
    noise: float = 0.0
    name: str = ""
    kind: str = field(default="lookup", init=False)

    def __post_init__(self) -> None:
        for part in ("points", "values"):
            object.__setattr__(self, part, frozen(getattr(self, part)))
        shapes = self.points.shape, self.values.shape
        if any(len(s) != 2 or 0 in s for s in shapes) or len(self.points) != len(self.values):
            raise InputError(
                f"{self.name or 'a lookup'} has points and values of the shapes {shapes}: (K, in) and (K, out)"
            )
        for part in ("lipschitz", "noise"):
            object.__setattr__(self, part, float(getattr(self, part)))
            if not (math.isfinite(getattr(self, part)) and getattr(self, part) >= 0):
                raise InputError(
                    f"{part}={getattr(self, part)}: a finite number that is not negative is accepted"
                )

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)

    def tensors(self) -> dict[str, Numbers]:
        return {"points": self.points, "values": self.values}

    def shape(self, *given: Shape) -> Shape:
        if given[0] != self.points.shape[1:]:
            raise InputError(f"it takes {self.points.shape[1]} features, and gets the shape {given[0]}")
        return self.values.shape[1:]


@dataclass(frozen=True, eq=False)
class Opaque:
    """y = f(x) for a function of which nothing is stored but its size: what is known of it was measured."""

    input: int
    outputs: int
    name: str = ""
    kind: str = field(default="opaque", init=False)

    def __post_init__(self) -> None:
        if type(self.outputs) is not int or self.outputs < 1:
            raise InputError(f"a function has at least one output: got {self.outputs!r}")

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)

    def tensors(self) -> dict[str, Numbers]:
        return {}

    def shape(self, *given: Shape) -> Shape:
        if len(given[0]) != 1:
            raise InputError(f"it takes all features at once, and gets the shape {given[0]}: reshape before")
        return (self.outputs,)


@dataclass(frozen=True, eq=False)
class Combine:
    """y = Σ c_i x_i of values of one shape: a residual connection, a difference, a multiple."""

    inputs: tuple[int, ...]
    coefficients: tuple[float, ...]
    name: str = ""
    kind: str = field(default="combine", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))
        if not self.inputs or len(self.inputs) != len(self.coefficients):
            raise InputError(
                f"{self.name or 'a combination'} of {len(self.inputs)} values has {len(self.coefficients)} coefficients"
            )
        if not all(map(math.isfinite, self.coefficients)):
            raise InputError(
                f"{self.name or 'a combination'} has the coefficients {self.coefficients}: finite ones are accepted"
            )

    def tensors(self) -> dict[str, Numbers]:
        return {}

    def shape(self, *given: Shape) -> Shape:
        if len(set(given)) != 1:
            raise InputError(f"it combines values of one shape, and gets {', '.join(map(str, given))}")
        return given[0]


@dataclass(frozen=True, eq=False)
class Reshape:
    """The same numbers, row by row, in another shape: tokens joined into one, or one cut into tokens."""

    input: int
    to: Shape
    name: str = ""
    kind: str = field(default="reshape", init=False)

    def __post_init__(self) -> None:
        if not self.to or not all(type(n) is int and n > 0 for n in self.to):
            raise InputError(
                f"{self.name or 'a reshape'} makes the shape {self.to}: positive whole numbers are accepted"
            )

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.input,)

    def tensors(self) -> dict[str, Numbers]:
        return {}

    def shape(self, *given: Shape) -> Shape:
        if math.prod(given[0]) != math.prod(self.to):
            raise InputError(f"it makes the shape {self.to}, and gets {given[0]}: another number of elements")
        return self.to


Step = Affine | Normalise | Pointwise | Lookup | Opaque | Combine | Reshape
