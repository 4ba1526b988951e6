"""A network with its affine maps multiplied out: neurons, or a lookup, between two maps of the whole sequence.

neurons    s = first·vec(X) + offset        h_j = g_j(s_j)                          vec(Y) = second·h + shift
lookup     z = key·(vec(X) - centre) + offset          h = softmax(z)               vec(Y) = second·h + shift
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnc.domain import Box, Interval
from attnc.errors import InputError
from attnc.network.literal import steps
from attnc.program.step import Numbers
from attnc.records.layers import Index, Layer, heads_of
from attnc.records.numbers import Array, HeadNumbers

if TYPE_CHECKING:
    from attnc.network.network import Network

Shape = tuple[int, ...]
# An affine function of the input or, if True, of the neurons: its images of the unit vectors, then of 0: (size + 1, *shape).
_Affine = tuple[bool, Array]


@dataclass(frozen=True, eq=False)
class Group:
    """Neurons that share keys and values, certified on [lo, hi]."""

    numbers: HeadNumbers
    neurons: Index
    lo: float
    hi: float


@dataclass(frozen=True, eq=False)
class Neurons:
    first: Array  # (N, m)
    offset: Array  # (N,)
    groups: tuple[Group, ...]
    second: Array  # (outputs, N)
    shift: Array  # (outputs,)

    @property
    def group_of(self) -> list[int]:
        """The group of every neuron."""
        found = {int(j): g for g, group in enumerate(self.groups) for j in group.neurons}
        return [found[j] for j in range(len(self.first))]

    @property
    def heads(self) -> int:
        """The largest number of heads of a neuron."""
        return max(group.numbers.heads for group in self.groups)


@dataclass(frozen=True, eq=False)
class Lookup:
    centre: Array  # (m,)
    key: Array  # (K, m)
    offset: Array  # (K,)
    second: Array  # (outputs, K)
    shift: Array  # (outputs,)
    largest: float  # at least every score on the box


@dataclass(frozen=True, eq=False)
class Parts:
    shape: Shape
    result: Shape
    dtype: str
    body: Neurons | Lookup

    @property
    def given(self) -> tuple[int, int]:
        """(n, d): tokens and coordinates of the input."""
        return math.prod(self.shape[:-1]), self.shape[-1]

    @property
    def made(self) -> tuple[int, int]:
        """Tokens and coordinates of the output."""
        return math.prod(self.result[:-1]), self.result[-1]


def read(net: Network) -> Parts:
    """Multiply out the affine maps of a network with one layer of attention, or one lookup."""
    numbers, values = net.numbers(), {0: (False, _units(net.program.shape))}
    found: list[tuple[Layer, _Affine]] = []
    for layer in numbers.layers:
        given = [values[value] for value in layer.inputs]
        if layer.kind in ("pointwise", "lookup"):
            found.append((layer, given[0]))
        if layer.kind == "lookup":  # an affine function of the weights of its anchors
            table = array(layer.tensor("values"))
            values[layer.value] = True, np.r_[table, np.zeros_like(table[:1])]
        elif layer.kind == "pointwise":
            values[layer.value] = True, _units(given[0][1].shape[1:])
        else:
            values[layer.value] = _applied(layer, given)
    hidden, last = values[numbers.layers[-1].value] if numbers.layers else values[0]
    if len(found) != 1 or found[0][1][0] or not hidden:
        raise InputError(
            f"form {net.form!r} has one layer of neurons or a lookup, not {len(found)}: use 'layers'"
        )
    (layer, (_, entering)), (second, shift) = found[0], _matrix(last)
    first, offset = _matrix(entering)
    body: Neurons | Lookup
    if layer.kind == "pointwise":
        groups = _groups(domains_of(net)[layer.value], layer, entering.shape[1:])
        body = Neurons(first, offset, tuple(groups), second, shift)
    else:
        centre, key, score = (array(layer.tensor(name)) for name in ("centre", "key", "offset"))
        if offset.any() or not np.array_equal(first, np.eye(len(first))):
            score, centre, key = score + key @ (offset - centre), np.zeros(first.shape[1]), key @ first
        body = Lookup(centre, key, score, second, shift, _largest(centre, key, score, net.domain))
    return Parts(net.program.shape, last.shape[1:], numbers.dtype, body)


def domains_of(net: Network) -> dict[int, list[Interval | None]]:
    """By the value of a layer of attention: the intervals of its heads."""
    return {layer.value: [head.domain for _, head in layer.groups] for layer in net.layers}


def groups_of(layer: Layer, domains: Sequence[Interval | None], gated: bool = False) -> Iterator[Group]:
    """The groups of neurons of a layer that share keys and values; all neurons if `neurons` is empty."""
    for (neurons, numbers), domain in zip(heads_of(layer), domains, strict=True):
        if domain is None or (numbers.gated and not gated):
            reason = "an unknown interval" if domain is None else "the design 'gated'"
            raise InputError(f"value {layer.value}: a head with {reason} cannot be written as self-attention")
        yield Group(numbers, np.zeros(0, np.int64) if neurons is None else neurons, domain.lo, domain.hi)


def _units(shape: Shape) -> Array:
    """The unit vectors, and 0."""
    size = math.prod(shape)
    _check(size * size)
    found: Array = np.eye(size + 1, size).reshape(size + 1, *shape)
    return found


def _matrix(images: Array) -> tuple[Array, Array]:
    flat = images.reshape(len(images), -1)
    return np.ascontiguousarray(flat[:-1].T), flat[-1]


def _applied(layer: Layer, given: list[_Affine]) -> _Affine:
    if len({hidden for hidden, _ in given}) > 1:
        raise InputError("this network adds its input to neurons (a residual stream): use form='layers'")
    (hidden, x), constant = given[0], layer.tensors.get("bias", layer.tensors.get("shift"))
    if layer.kind == "affine":
        weight = array(layer.tensor("weight"))
        _check(x[..., 0].size * len(weight))
        images = x @ weight.T
    elif layer.kind in ("batch_norm", "scale"):
        images = x * array(layer.tensor("scale"))
    elif layer.kind == "combine":
        terms = zip(layer.settings["coefficients"], given, strict=True)
        images = np.sum([c * term for c, (_, term) in terms], axis=0)
    elif layer.kind == "reshape":
        images = x.reshape(len(x), *layer.settings["to"])
    else:
        raise InputError(f"layers of the kind {layer.kind!r} cannot be written as self-attention")
    if constant is not None:
        images[-1] += array(constant)
    return hidden, images


def _groups(domains: Sequence[Interval | None], layer: Layer, shape: Shape) -> Iterator[Group]:
    """The neurons of a group in every token."""
    tokens = np.arange(math.prod(shape[:-1]))
    for group in groups_of(layer, domains):
        own = group.neurons if len(group.neurons) else np.arange(shape[-1])
        yield replace(group, neurons=(tokens[:, None] * shape[-1] + own).reshape(-1))


def _largest(centre: Array, key: Array, offset: Array, box: Box) -> float:
    """max over k and x in the box of |key_k·(x - centre) + offset_k|."""
    middle, radius = ((box.hi + box.lo) / 2).reshape(-1), ((box.hi - box.lo) / 2).reshape(-1)
    return float((np.abs(key @ (middle - centre) + offset) + np.abs(key) @ radius).max())


def _check(size: int) -> None:
    if size > steps.LARGEST:
        raise InputError(f"a map of the sequence would have {size:,} numbers, the limit is {steps.LARGEST:,}")


def array(numbers: Numbers) -> Array:
    return numbers.astype(np.float64)
