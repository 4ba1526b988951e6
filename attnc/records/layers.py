"""The layers of a network: stored numbers of the same kinds as the steps of a program.

A layer executes one step of the program, or an affine step together with the normalisation that follows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.errors import FileError, InputError
from attnc.program.step import Numbers
from attnc.records.fields import seal
from attnc.records.numbers import TENSORS, HeadNumbers, QuadraticNumbers, digest

Index = NDArray[np.int64]
Heads = list[tuple[Index | None, HeadNumbers]]  # the neurons that use a head (None: all), and the head

NORM_HEADS = ("slope", "intercept", "output")

# Tensors of each kind; those with a "?" are optional. A pointwise layer has those of its heads (`heads_of`).
KINDS: dict[str, tuple[str, ...]] = {
    "affine": ("weight", "bias?"),  # weight · x + bias
    "batch_norm": ("scale", "shift"),  # scale ∘ x + shift
    "pointwise": (),  # head_j(x_j) for every neuron j
    # x∘y by squares: exponents of λ and of the radius of each neuron, and the head of the square in a network
    "product": ("scale", "radius", *(f"square.0.{name}?" for name in TENSORS)),
    "norm": (
        *NORM_HEADS,
        "gain",
        "shift",
    ),  # gain∘(Σ_j output_j w_j z) + shift, w_j of intercept_j - slope_j z·z
    "attend": ("mask?", "bias?"),  # softmax(scale·q kᵀ + bias) v where the mask is 1
    "embed": ("table",),  # the rows of the table
    "scale": ("scale", "shift"),  # scale ∘ x + shift
    "mix": ("matrix",),  # matrix · x over the tokens
    "lookup": ("centre", "key", "offset", "values"),  # Σ_k softmax_k(key·(x - centre) + offset) values_k
    "combine": (),  # Σ coefficients_i x_i
    "reshape": (),  # the numbers of x, row by row, in the shape `to`
}
# How many values a layer reads; None: any number. The other kinds read one.
INPUTS: dict[str, int | None] = {"product": 2, "attend": 3, "combine": None}
SETTINGS = {
    "pointwise": "heads", "combine": "coefficients", "reshape": "to", "norm": "centred", "attend": "split",
}  # fmt: skip
_VALID: dict[str, Callable[[Any], bool]] = {
    "heads": lambda count: type(count) is int and count >= 0,
    "coefficients": lambda numbers: all(type(c) is float and math.isfinite(c) for c in numbers),
    "to": lambda shape: all(type(n) is int and n > 0 for n in shape),
    "centred": lambda flag: type(flag) is bool,
    # heads, slices of the keys and values, scale
    "split": lambda s: (
        [*map(type, s)] == [int, int, float] and s[0] >= s[1] > 0 == s[0] % s[1] and math.isfinite(s[2])
    ),
}


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: it reads the values `inputs` of the program and computes the value `value`."""

    kind: str
    inputs: tuple[int, ...]
    value: int
    tensors: Mapping[str, Numbers] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # JSON values

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"layer of kind {self.kind!r}: expected one of {', '.join(KINDS)}")
        count = INPUTS.get(self.kind, 1)
        if count not in (None, len(self.inputs)):
            raise InputError(f"{self.kind} layer: it reads {len(self.inputs)} values, expected {count}")
        if not all(type(i) is int for i in (*self.inputs, self.value)):
            raise InputError(f"{self.kind} layer: inputs {self.inputs}, value {self.value!r} are not valid")
        if list(self.settings) != [name for kind, name in SETTINGS.items() if kind == self.kind]:
            raise InputError(f"{self.kind} layer: settings {sorted(self.settings)} are not valid")
        for name, value in self.settings.items():
            if not _VALID[name](value):
                raise InputError(f"{self.kind} layer: {name}={value!r} is not valid")
        order = sorted(self.tensors)
        if self.kind != "pointwise":
            allowed = [name.rstrip("?") for name in KINDS[self.kind]]
            required = {name for name in KINDS[self.kind] if not name.endswith("?")}
            order = [name for name in allowed if name in self.tensors]
            if not required <= set(self.tensors) <= set(allowed):
                raise InputError(f"{self.kind} layer: tensors {sorted(self.tensors)} are not valid")
        object.__setattr__(self, "tensors", {name: self.tensors[name] for name in order})

    @property
    def input(self) -> int:
        """The value that a layer with one input reads."""
        return self.inputs[0]

    def tensor(self, name: str) -> Numbers:
        """A tensor by name; raises `InputError` if the layer has none of this name."""
        if name not in self.tensors:
            raise InputError(f"{self.kind} layer of value {self.value}: there is no tensor {name!r}")
        return self.tensors[name]

    def structure(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON values."""
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in self.settings.items()}
        return {"kind": self.kind, "inputs": list(self.inputs), "value": self.value, "settings": settings}

    @classmethod
    def from_structure(cls, record: Mapping[str, Any], tensors: Mapping[str, Numbers]) -> Layer:
        """The inverse of `structure`."""
        if set(record) != {"kind", "inputs", "value", "settings"}:
            raise FileError(f"a layer has the fields {sorted(record)}")
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in record["settings"].items()}
        return cls(record["kind"], tuple(record["inputs"]), record["value"], dict(tensors), settings)


def pointwise_layer(input: int, value: int, heads: Heads) -> Layer:
    """A pointwise layer of heads; the heads of a group of neurons share their keys and values."""
    tensors: dict[str, Numbers] = {}
    for g, (neurons, head) in enumerate(heads):
        tensors |= {f"{g}.{name}": array for name, array in head.tensors().items()}
        if neurons is not None:
            tensors[f"neurons_{g}"] = neurons
    return Layer("pointwise", (input,), value, tensors, {"heads": len(heads)})


def heads_of(layer: Layer) -> Heads:
    """The heads of a pointwise layer, with the neurons that use them."""
    found: Heads = []
    for g in range(layer.settings["heads"]):
        parts = {name: layer.tensor(f"{g}.{name}") for name in TENSORS}
        found.append((layer.tensors.get(f"neurons_{g}"), HeadNumbers.of(parts, parts["key"].dtype.name)))
    return found


def square_of(layer: Layer) -> HeadNumbers:
    """The head of the square of a product."""
    parts = {name: layer.tensor(f"square.0.{name}") for name in TENSORS}
    return HeadNumbers.of(parts, parts["key"].dtype.name)


def quadratic_of(layer: Layer, epsilon: float) -> QuadraticNumbers:
    """The heads of two keys of a norm."""
    slope, intercept, value = (layer.tensor(name).astype(np.float64) for name in NORM_HEADS)
    dim, dtype = len(layer.tensor("gain")), layer.tensor("slope").dtype.name
    return QuadraticNumbers(slope, intercept, value, dim, epsilon, 0.5, dtype)


@dataclass(frozen=True, eq=False)
class NetworkNumbers:
    """The layers of a network in order, each on values computed before it; every number is representable in `dtype`."""

    layers: tuple[Layer, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype {self.dtype!r}: networks run in float32 or float64")
        products = [i for i, layer in enumerate(self.layers) if layer.kind == "product"]
        powers = {f"stages.{i}.{name}" for i in products for name in ("scale", "radius")}
        for name, array in self.tensors().items():
            if array.dtype.name != (
                "int64" if "neurons" in name else "int8" if name in powers else self.dtype
            ):
                raise InputError(f"tensor {name!r} is {array.dtype}: the network is {self.dtype}")
            if not np.isfinite(array).all():
                raise InputError(f"tensor {name!r} contains NaN or infinity: use finite numbers")

    def tensors(self) -> dict[str, Numbers]:
        """By name: 'stages.0.weight', 'stages.1.0.key', …: as in the state dict of the module"""
        layers = enumerate(self.layers)
        return {f"stages.{i}.{name}": a for i, layer in layers for name, a in layer.tensors.items()}

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each tensor (name, dtype, shape and little-endian bytes), and of the structure of the layers."""
        found = {name: digest(name, array) for name, array in self.tensors().items()}
        return {**found, "structure": seal([layer.structure() for layer in self.layers])}
