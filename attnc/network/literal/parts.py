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
        """How many heads a neuron has, at most."""
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
    shape: tuple[int, ...]
    result: tuple[int, ...]
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
class _Form:
    """A value as an affine function of the input, or of the neurons (`hidden`)."""

    hidden: bool
    shape: tuple[int, ...]
    matrix: Array  # (numbers of the value, numbers of its source)
    shift: Array


def read(net: Network) -> Parts:
    """Fold the affine stages of a network with one layer of attention, or one lookup."""
    size = math.prod(net.program.shape)
    _check(size * size)
    forms = {0: _Form(False, net.program.shape, np.eye(size), np.zeros(size))}
    found: list[tuple[AttentionLayer | Selection, _Form]] = []
    for stage in net.stages:
        assert isinstance(stage, AffineMap | Scaling | Combination | Reordering | AttentionLayer | Selection)
        given = [forms[value] for value in stage.inputs]
        if isinstance(stage, AttentionLayer | Selection):
            found.append((stage, given[0]))
            forms[stage.value] = _hidden(stage, given[0].shape)
        else:
            forms[stage.value] = _affine(stage, given)
        last = stage.value
    if len(found) != 1 or found[0][1].hidden or not forms[last].hidden:
        raise InputError(
            f"form {net.form!r} is for affine maps around one layer of neurons or one lookup, and this network has "
            f"{len(found)} of them: use form='layers'"
        )
    (stage, entering), leaving = found[0], forms[last]
    body: Neurons | Lookup
    if isinstance(stage, AttentionLayer):
        groups = tuple(_groups(stage, entering.shape))
        body = Neurons(entering.matrix, entering.shift, groups, leaving.matrix, leaving.shift)
    else:
        centre, key, offset = (array(t) for t in (stage.centre, stage.key, stage.offset))
        if entering.shift.any() or not np.array_equal(entering.matrix, np.eye(size)):
            offset = offset + key @ (entering.shift - centre)
            centre, key = np.zeros(size), key @ entering.matrix
        largest = _largest(centre, key, offset, net.domain)
        body = Lookup(centre, key, offset, leaving.matrix, leaving.shift, largest)
    return Parts(net.program.shape, leaving.shape, net.numbers().dtype, body)


def _hidden(stage: AttentionLayer | Selection, shape: tuple[int, ...]) -> _Form:
    """The output of attention: the neurons themselves, or the values times the weights of their anchors."""
    if isinstance(stage, Selection):
        values = array(stage.values).T
        return _Form(True, values.shape[:1], values, np.zeros(len(values)))
    size = math.prod(shape)
    _check(size * size)
    return _Form(True, shape, np.eye(size), np.zeros(size))


def _affine(stage: AffineMap | Scaling | Combination | Reordering, given: list[_Form]) -> _Form:
    x, shape = given[0], given[0].shape
    match stage:
        case Reordering():
            return _Form(x.hidden, stage.shape, x.matrix, x.shift)
        case AffineMap():
            weight, tokens = array(stage.weight), math.prod(shape[:-1])
            _check(tokens * len(weight) * x.matrix.shape[1])
            matrix = (weight @ x.matrix.reshape(tokens, shape[-1], -1)).reshape(tokens * len(weight), -1)
            shift = x.shift.reshape(tokens, -1) @ weight.T
            if stage.bias is not None:
                shift = shift + array(stage.bias)
            return _Form(x.hidden, (*shape[:-1], len(weight)), matrix, shift.reshape(-1))
        case Scaling():
            scale, shift = (np.broadcast_to(array(t), shape).reshape(-1) for t in (stage.scale, stage.shift))
            return _Form(x.hidden, shape, scale[:, None] * x.matrix, scale * x.shift + shift)
        case Combination():
            if len({form.hidden for form in given}) > 1:
                raise InputError(
                    "the networks of theorems have no residual stream, and this network adds the input to neurons: use form='layers'"
                )
            terms = list(zip(stage.coefficients, given, strict=True))
            matrix = sum((c * form.matrix for c, form in terms), np.zeros_like(x.matrix))
            return _Form(
                x.hidden, shape, matrix, sum((c * f.shift for c, f in terms), np.zeros_like(x.shift))
            )


def _groups(layer: AttentionLayer, shape: tuple[int, ...]) -> list[Group]:
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
        raise InputError(
            f"a map of the whole sequence would have {size:,} numbers, the limit is {steps.LARGEST:,}: use a smaller network"
        )


def array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().to("cpu", torch.float64).numpy()
    return found
