"""The numbers of a network: what is stored, what runs, what is certified.

A stage executes one step of the program, or an affine map together with the normalisation behind it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError
from attnc.program.step import Numbers, Shape
from attnc.records.numbers import TENSORS, HeadNumbers

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Linear:
    """value = weight · input + bias, over the features of every token."""

    input: int
    value: int  # which value of the program it computes
    weight: Numbers
    bias: Numbers | None

    def tensors(self) -> dict[str, Numbers]:
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}


@dataclass(frozen=True, eq=False)
class Scale:
    """value = scale ∘ input + shift, over the features of every token."""

    input: int
    value: int
    scale: Numbers
    shift: Numbers

    def tensors(self) -> dict[str, Numbers]:
        return {"scale": self.scale, "shift": self.shift}


@dataclass(frozen=True, eq=False)
class Group:
    """Neurons of one layer that share keys and values; `neurons` is None where they are all of the layer."""

    neurons: Index | None
    head: HeadNumbers


@dataclass(frozen=True, eq=False)
class Attention:
    """value_j = head(input_j), a head for every neuron j; the heads of a group share their keys and values."""

    input: int
    value: int
    groups: tuple[Group, ...]

    def tensors(self) -> dict[str, Numbers]:
        found: dict[str, Numbers] = {}
        for g, group in enumerate(self.groups):
            for name in TENSORS:
                found[f"{g}.{name}"] = getattr(group.head, name).astype(group.head.dtype)
            if group.neurons is not None:
                found[f"neurons_{g}"] = group.neurons
        return found


@dataclass(frozen=True, eq=False)
class Selection:
    """value = Σ_k softmax_k(key·(input - centre) + offset) values_k: one head whose anchors are points of the whole input."""

    input: int
    value: int
    centre: Numbers  # (m,)
    key: Numbers  # (K, m)
    offset: Numbers  # (K,)
    values: Numbers  # (K, outputs)

    def tensors(self) -> dict[str, Numbers]:
        return {"centre": self.centre, "key": self.key, "offset": self.offset, "values": self.values}


@dataclass(frozen=True, eq=False)
class Sum:
    """value = Σ c_i input_i."""

    inputs: tuple[int, ...]
    value: int
    coefficients: tuple[float, ...]

    def tensors(self) -> dict[str, Numbers]:
        return {}


@dataclass(frozen=True, eq=False)
class Reorder:
    """value = the numbers of the input, row by row, in another shape."""

    input: int
    value: int
    shape: Shape

    def tensors(self) -> dict[str, Numbers]:
        return {}


Stage = Linear | Scale | Attention | Selection | Sum | Reorder


@dataclass(frozen=True, eq=False)
class NetworkNumbers:
    """Stages in order, each on values made before it; every number is representable in `dtype`."""

    stages: tuple[Stage, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype {self.dtype!r}: networks run in float32 or float64")
        for name, array in self.tensors().items():
            if array.dtype.name != ("int64" if "neurons" in name else self.dtype):
                raise InputError(f"tensor {name!r} is {array.dtype}: the network is {self.dtype}")
            if not np.isfinite(array).all():
                raise InputError(f"tensor {name!r} holds a NaN or an infinity: every number is finite")

    def tensors(self) -> dict[str, Numbers]:
        """By name: 'stages.0.weight', 'stages.1.0.key', …"""
        return {
            f"stages.{i}.{name}": a
            for i, stage in enumerate(self.stages)
            for name, a in stage.tensors().items()
        }

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each tensor (name, dtype, shape and little-endian bytes), and of how the stages hang together."""
        found = {name: digest(name, array) for name, array in self.tensors().items()}
        return {
            **found,
            "structure": hashlib.sha256(repr([_structure(s) for s in self.stages]).encode()).hexdigest(),
        }


def _structure(stage: Stage) -> tuple[object, ...]:
    """Everything of a stage that is not a tensor."""
    match stage:
        case Sum():
            return "sum", stage.inputs, stage.value, tuple(map(float, stage.coefficients))
        case Reorder():
            return "reorder", stage.input, stage.value, tuple(stage.shape)
        case Attention():
            return "attention", stage.input, stage.value, len(stage.groups)
        case _:
            return type(stage).__name__.lower(), stage.input, stage.value


def digest(name: str, array: NDArray[Any]) -> str:
    """The SHA-256 of one tensor: name, dtype, shape and bytes (little-endian)."""
    head = f"{name} {array.dtype.name} {array.shape} ".encode()
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(head + little.tobytes()).hexdigest()
