"""A network with its affine maps multiplied out: neurons, or a lookup, between two maps of the whole sequence.

neurons    s = first·vec(X) + offset        h_j = g_j(s_j)                          vec(Y) = second·h + shift
lookup     z = key·(vec(X) - centre) + offset          h = softmax(z)               vec(Y) = second·h + shift
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnc.domain import Box
from attnc.errors import InputError
from attnc.network.literal import steps
from attnc.network.stages import AffineMap, AttentionLayer, Combination, Reordering, Scaling, Selection
from attnc.records.network_numbers import Index
from attnc.records.numbers import Array, HeadNumbers

if TYPE_CHECKING:
    from attnc.network.network import Network

Shape = tuple[int, ...]


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


@dataclass(frozen=True, eq=False)
class _Affine:
    """A value as an affine function of the input or, if `hidden`, of the neurons: its images of the unit vectors, then of 0."""

    hidden: bool
    images: Array  # (numbers of the source + 1, *shape of the value)

    def matrix(self) -> tuple[Array, Array]:
        flat = self.images.reshape(len(self.images), -1)
        return np.ascontiguousarray(flat[:-1].T), flat[-1]


def read(net: Network) -> Parts:
    """Multiply out the affine maps of a network with one layer of attention, or one lookup."""
    values = {0: _units(False, net.program.shape)}
    found: list[tuple[AttentionLayer | Selection, _Affine]] = []
    last = 0
    for stage in net.stages:
        assert isinstance(stage, AffineMap | Scaling | Combination | Reordering | AttentionLayer | Selection)
        given, last = [values[value] for value in stage.inputs], stage.value
        if isinstance(stage, AttentionLayer | Selection):
            found.append((stage, given[0]))
            if isinstance(stage, Selection):  # of the weights of its anchors
                table = array(stage.values)
                values[last] = _Affine(True, np.r_[table, np.zeros_like(table[:1])])
            else:
                values[last] = _units(True, given[0].images.shape[1:])
        else:
            values[last] = _applied(stage, given)
    if len(found) != 1 or found[0][1].hidden or not values[last].hidden:
        raise InputError(
            f"form {net.form!r} is for affine maps around one layer of neurons or one lookup, and this network has "
            f"{len(found)} of them: use form='layers'"
        )
    (stage, entering), (second, shift) = found[0], values[last].matrix()
    first, offset = entering.matrix()
    body: Neurons | Lookup
    if isinstance(stage, AttentionLayer):
        body = Neurons(first, offset, tuple(_groups(stage, entering.images.shape[1:])), second, shift)
    else:
        centre, key, score = (array(t) for t in (stage.centre, stage.key, stage.offset))
        if offset.any() or not np.array_equal(first, np.eye(len(first))):
            score, centre, key = score + key @ (offset - centre), np.zeros(first.shape[1]), key @ first
        body = Lookup(centre, key, score, second, shift, _largest(centre, key, score, net.domain))
    return Parts(net.program.shape, values[last].images.shape[1:], net.numbers().dtype, body)


def _units(hidden: bool, shape: Shape) -> _Affine:
    """A source: its unit vectors, and 0."""
    size = math.prod(shape)
    _check(size * size)
    return _Affine(hidden, np.r_[np.eye(size), np.zeros((1, size))].reshape(size + 1, *shape))


def _applied(stage: AffineMap | Scaling | Combination | Reordering, given: list[_Affine]) -> _Affine:
    if len({x.hidden for x in given}) > 1:
        raise InputError(
            "the networks of theorems have no residual stream, and this network adds its input to neurons: use form='layers'"
        )
    x, constant = given[0].images, None
    match stage:
        case Reordering():
            images = x.reshape(len(x), *stage.shape)
        case AffineMap():
            _check(x[..., 0].size * len(stage.weight))
            images, constant = x @ array(stage.weight).T, stage.bias
        case Scaling():
            images, constant = x * array(stage.scale), stage.shift
        case Combination():
            images = np.sum(
                [c * term.images for c, term in zip(stage.coefficients, given, strict=True)], axis=0
            )
    if constant is not None:
        images[-1] += array(constant)
    return _Affine(given[0].hidden, images)


def _groups(layer: AttentionLayer, shape: Shape) -> list[Group]:
    """The neurons of a group in every token."""
    found, tokens = [], np.arange(math.prod(shape[:-1]))
    for neurons, head in layer.groups:
        numbers, domain = head.numbers(), head.domain
        if domain is None or numbers.gated:
            reason = "an unknown interval" if domain is None else "the design 'gated'"
            raise InputError(f"{layer.name}: a head with {reason} cannot be written as self-attention")
        own = np.arange(shape[-1]) if neurons is None else neurons.cpu().numpy()
        flat = (tokens[:, None] * shape[-1] + own).reshape(-1)
        found.append(Group(numbers, flat, domain.lo, domain.hi))
    return found


def _largest(centre: Array, key: Array, offset: Array, box: Box) -> float:
    """max over k and x in the box of |key_k·(x - centre) + offset_k|."""
    middle, radius = ((box.hi + box.lo) / 2).reshape(-1), ((box.hi - box.lo) / 2).reshape(-1)
    return float((np.abs(key @ (middle - centre) + offset) + np.abs(key) @ radius).max())


def _check(size: int) -> None:
    if size > steps.LARGEST:
        raise InputError(f"a map of the sequence would have {size:,} numbers, the limit is {steps.LARGEST:,}")


def array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().to("cpu", torch.float64).numpy()
    return found
