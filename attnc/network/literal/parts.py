"""A network with its affine maps multiplied out: neurons, or a lookup, between two maps of the whole sequence.

neurons    s = first·vec(X) + offset                  h_j = g_j(s_j)          vec(Y) = second·h + shift
lookup     s = first·(vec(X) - centre) + offset       h = softmax(s)          vec(Y) = second·h + shift
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnc.domain import Interval
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
class Parts:
    """N neurons in groups, or the N anchors of a lookup, which has no groups."""

    shape: Shape
    result: Shape
    dtype: str
    first: Array  # (N, m)
    offset: Array  # (N,)
    second: Array  # (outputs, N)
    shift: Array  # (outputs,)
    groups: tuple[Group, ...] = ()
    centre: Array | None = None  # (m,)
    largest: float = 0.0  # at least every score of a lookup on the box

    @property
    def given(self) -> tuple[int, int]:
        """(n, d): tokens and coordinates of the input."""
        return math.prod(self.shape[:-1]), self.shape[-1]

    @property
    def made(self) -> tuple[int, int]:
        """Tokens and coordinates of the output."""
        return math.prod(self.result[:-1]), self.result[-1]

    @property
    def group_of(self) -> list[int]:
        """The group of every neuron."""
        found = {int(j): g for g, group in enumerate(self.groups) for j in group.neurons}
        return [found[j] for j in range(len(self.first))]

    @property
    def keys(self) -> list[tuple[Group, int]]:
        """The groups, and the heads of each."""
        return [(group, h) for group in self.groups for h in range(group.numbers.heads)]


def read(net: Network) -> Parts:
    """Multiply out the affine maps of a network with one layer of attention, or one lookup."""
    numbers, values = net.numbers(), {0: (False, _units(net.program.shape))}
    found: list[tuple[Layer, _Affine]] = []
    for layer in numbers.layers:
        given = [values[value] for value in layer.inputs]
        if layer.kind == "lookup":  # an affine function of the weights of its anchors
            table = array(layer.tensor("values"))
            values[layer.value] = True, np.r_[table, np.zeros_like(table[:1])]
        elif layer.kind == "pointwise":
            values[layer.value] = True, _units(given[0][1].shape[1:])
        else:
            values[layer.value] = _applied(layer, given)
            continue
        found.append((layer, given[0]))
    hidden, last = values[numbers.layers[-1].value] if numbers.layers else values[0]
    if len(found) != 1 or found[0][1][0] or not hidden:
        raise InputError(
            f"form {net.form!r} has one layer of neurons or a lookup, not {len(found)}: use 'layers'"
        )
    (layer, (_, entering)), (second, shift) = found[0], _matrix(last)
    first, offset = _matrix(entering)
    shapes = net.program.shape, last.shape[1:], numbers.dtype
    if layer.kind == "pointwise":
        width = entering.shape[-1]
        starts = np.arange(0, len(first), width)[:, None]  # of the tokens
        groups = groups_of(layer, domains_of(net)[layer.value], width)
        every = tuple(replace(group, neurons=(starts + group.neurons).reshape(-1)) for group in groups)
        return Parts(*shapes, first, offset, second, shift, every)
    centre, key, score = (array(layer.tensor(name)) for name in ("centre", "key", "offset"))
    if offset.any() or not np.array_equal(first, np.eye(len(first))):
        score, centre, key = score + key @ (offset - centre), np.zeros(first.shape[1]), key @ first
    lo, hi = net.domain.lo.reshape(-1), net.domain.hi.reshape(-1)
    sizes = np.abs(key @ ((hi + lo) / 2 - centre) + score) + np.abs(key) @ ((hi - lo) / 2)  # of the scores
    return Parts(*shapes, key, score, second, shift, centre=centre, largest=float(sizes.max()))


def domains_of(net: Network) -> dict[int, list[Interval | None]]:
    """By the value of a layer of attention: the intervals of its heads."""
    return {layer.value: [head.domain for _, head in layer.groups] for layer in net.layers}


def groups_of(
    layer: Layer, domains: Sequence[Interval | None], width: int, gated: bool = False
) -> list[Group]:
    """The groups of the neurons of a layer that share keys and values."""
    groups = []
    for (neurons, numbers), domain in zip(heads_of(layer), domains, strict=True):
        if domain is None or (numbers.gated and not gated):
            reason = "an unknown interval" if domain is None else "the design 'gated'"
            raise InputError(f"value {layer.value}: a head with {reason} cannot be written as self-attention")
        groups.append(Group(numbers, np.arange(width) if neurons is None else neurons, domain.lo, domain.hi))
    return groups


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
    hidden, x = given[0]
    if layer.kind == "reshape":
        return hidden, x.reshape(len(x), *layer.settings["to"])
    if layer.kind == "scale":  # its numbers may differ from token to token
        images = x * array(layer.tensor("scale"))
    else:
        matrices = token_maps(layer, x.shape[-1])
        _check(x[..., 0].size * len(matrices[0]))
        images = np.sum([term @ matrix.T for (_, term), matrix in zip(given, matrices, strict=True)], axis=0)
    images[-1] += constant_of(layer)
    return hidden, images


def token_maps(layer: Layer, width: int) -> list[Array]:
    """W_i of a linear layer y = Σ_i W_i x_i + constant of every token; `width` is that of x."""
    if layer.kind == "affine":
        return [array(layer.tensor("weight"))]
    if layer.kind in ("batch_norm", "scale"):
        return [np.diag(array(layer.tensor("scale")))]
    if layer.kind == "combine":
        return [c * np.eye(width) for c in layer.settings["coefficients"]]
    raise InputError(f"layers of the kind {layer.kind!r} cannot be written as self-attention")


def constant_of(layer: Layer) -> Array:
    """The constant of a linear layer; 0 if it has none."""
    return array(layer.tensors.get("bias", layer.tensors.get("shift", np.zeros(()))))


def _check(size: int) -> None:
    if size > steps.LARGEST:
        raise InputError(f"a map of the sequence would have {size:,} numbers, the limit is {steps.LARGEST:,}")


def array(numbers: Numbers) -> Array:
    return numbers.astype(np.float64)
