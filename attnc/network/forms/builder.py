"""Steps that several theorems' networks share, and the count of their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnc.errors import InputError
from attnc.network import literal
from attnc.network.forms.parts import Group
from attnc.network.forms.steps import SequenceMap, Size
from attnc.network.literal import LiteralAttention
from attnc.records.layers import Index
from attnc.records.numbers import Array, HeadNumbers

_UNDERFLOW = {"float32": 128.0, "float64": 1024.0}  # exp of minus this is exactly 0


class Builder:
    """Makes steps in one dtype, and refuses what would be too large before it is made."""

    def __init__(self, form: str, dtype: str) -> None:
        self.form, self.dtype, self.total = form, dtype, 0

    def room(self, size: int, what: str) -> None:
        """Is there room for numbers that are about to be made?"""
        if self.total + size > literal.LARGEST:
            raise InputError(
                f"form {self.form!r} as plain self-attention: with {what} its matrices have {self.total + size:,} numbers, up to "
                f"{literal.LARGEST:,} are made. Take a smaller network, or a larger eps."
            )

    def zeros(self, what: str, *shape: int) -> Array:
        """Zeros that will be part of a step."""
        self.room(math.prod(shape), what)
        return np.zeros(shape)

    def map(
        self, name: str, core: Array, bias: Array, shapes: tuple[Size, Size], at: tuple[Index, Index]
    ) -> SequenceMap:
        """A[rows, columns] = core, or where core is a list, A[rows[i], columns[i]] = core[i]."""
        self.room(core.size + bias.size, name)
        self.total += core.size + bias.size
        return SequenceMap(name, core, bias, *shapes, self.dtype, at)

    def matrices(self, name: str, tokens: int, heads: int, sets: int, *sizes: int) -> dict[str, Array]:
        """Zeros for W_Q, W_K, W_V, W_O; the sizes are those of a token, of keys, of values, of what leaves."""
        if heads * tokens**2 > literal.LARGEST:
            raise InputError(
                f"form {self.form!r} as plain self-attention: {heads:,} heads over {tokens:,} tokens have "
                f"{heads * tokens**2:,} weights for every input, up to {literal.LARGEST:,} are made. Take a smaller network, "
                "or a larger eps."
            )
        d, r, m, e = sizes
        shapes = {"W_Q": (heads, d, r), "W_K": (sets, d, r), "W_V": (sets, d, m), "W_O": (heads, m, e)}
        size = sum(map(math.prod, shapes.values()))
        self.room(size, f"the attention {name!r}")
        self.total += size
        return {letter: np.zeros(shape) for letter, shape in shapes.items()}

    def attention(
        self, name: str, matrices: Mapping[str, Array], shared: Iterable[int] = (0,)
    ) -> LiteralAttention:
        return LiteralAttention(name, matrices, list(shared), self.dtype)

    def uniform(self, name: str, tokens: int, weight: Array) -> LiteralAttention:
        """Scores 0: every token attends to all alike. W_O = tokens·weightᵀ, so that each then holds weight·Σ_i x_i.

        W_V is the identity, W_Q and W_K are zero."""
        outputs, inputs = weight.shape
        made = self.matrices(name, tokens, 1, 1, inputs, 1, inputs, outputs)
        made["W_V"][0] = np.eye(inputs)
        made["W_O"][0] = tokens * weight.T
        return self.attention(name, made)

    def blocks(self, name: str, given: Size, centre: Array | None, one: bool = False) -> SequenceMap:
        """Token i holds x_i - centre_i in block i, zeros elsewhere: the sum of all tokens is vec(X) - centre.

        With `one` there is one coordinate more, and the sum is (vec(X) - centre, 1)."""
        (n, d), width = given, given[0] * given[1] + one
        columns = np.arange(n * d)
        rows, bias = columns // d * width + columns, self.zeros(name, n * width)
        if centre is not None:
            bias[rows] = -centre
        if one:
            bias[width - 1] = 1.0
        return self.map(name, np.ones(n * d), bias, (given, (n, width)), (rows, columns))

    def keep(self, name: str, tokens: int, shift: Array, made: Size) -> SequenceMap:
        """Every token holds vec(Y): token i keeps its block, and gets its part of the shift."""
        rows = np.arange(len(shift))
        columns = rows // made[1] % tokens * len(shift) + rows
        return self.map(name, np.ones(len(shift)), shift, ((tokens, len(shift)), made), (rows, columns))

    def distance(self, scores: float) -> float:
        """M: a power of two beyond every score plus the underflow of exp."""
        return 2.0 ** math.ceil(math.log2(2 * scores + _UNDERFLOW[self.dtype]))


@dataclass(frozen=True, eq=False)
class AnchorSet:
    """Anchors for the tokens that see this set: the keys of a group of neurons, and their values times a row."""

    group: Group
    row: Array  # (e,)

    @property
    def numbers(self) -> HeadNumbers:
        return self.group.numbers


def anchor_layer(
    make: Builder, s: tuple[Array, Array], of: Sequence[int], sets: Sequence[AnchorSet], given: Size
) -> tuple[SequenceMap, LiteralAttention]:
    """Token i gets g(s_i)·row, where g and row are those of its set of anchors, of[i]; s = first·vec(X) + offset.

        coordinate     in data token i               in an anchor of set c
        s              s_i at the head of its set    0
        set            one-hot, its set              0
        hidden         1 for every set               1 for every set but c
        for a head     0                             κ, c, v·row

    q = (a s + o, 1, -M·set)   k = (κ, c, hidden): an anchor of the own set scores κ(a s + o) + c, one of another set and a
    data token -M less or -M, of which exp is exactly 0. An anchor has the query 0: what it becomes is not read."""
    tokens, count, heads = len(of), len(sets), max(each.numbers.heads for each in sets)
    alike = list({id(each.numbers): each.numbers for each in sets}.values())
    kind = [next(i for i, numbers in enumerate(alike) if numbers is each.numbers) for each in sets]
    own, hidden, keys, e = len(alike), len(alike) + count, len(alike) + 2 * count, len(sets[0].row)
    anchors = np.repeat(np.arange(count), [each.numbers.anchors_per_head for each in sets])
    size = (tokens + len(anchors), keys + heads * (2 + e))
    start = make.zeros("the tokens", *size)
    made = make.matrices("anchors", size[0], heads, heads, size[1], 2 + count, e, e)
    at, of_token = np.arange(tokens), np.array([kind[c] for c in of])
    start[at, of_token] = s[1]
    start[at, own + np.array(of)] = 1.0
    start[:, hidden:keys] = 1.0
    start[tokens + np.arange(len(anchors)), hidden + anchors] = 0.0
    for h in range(heads):
        here = [(c, each) for c, each in enumerate(sets) if h < each.numbers.heads]
        groups = list({id(each.group): each.group for _, each in here}.values())
        distance = make.distance(max(largest_score(a, b, h) for a in groups for b in groups))
        first = keys + h * (2 + e)
        for c, each in here:
            numbers, rows = each.numbers, tokens + np.flatnonzero(anchors == c)
            start[rows, first : first + 2] = numbers.key[h]
            start[rows, first + 2 : first + 2 + e] = np.outer(
                numbers.output[h] * numbers.value[h, :, 1], each.row
            )
            made["W_Q"][h, kind[c], 0], made["W_Q"][h, own + c, 0] = numbers.query[h]
        made["W_Q"][h, own:hidden, 1] = 1.0
        made["W_Q"][h, own:hidden, 2:] = -distance * np.eye(count)
        made["W_K"][h, [first, first + 1], [0, 1]] = 1.0
        made["W_K"][h, hidden:keys, 2:] = np.eye(count)
        made["W_V"][h, first + 2 : first + 2 + e] = made["W_O"][h] = np.eye(e)
    where = (at * size[1] + of_token, np.arange(math.prod(given)))
    lay = make.map("lay out", s[0], start.reshape(-1), (given, size), where)
    return lay, make.attention("anchors", made, range(heads))


def largest_score(asking: Group, asked: Group, h: int) -> float:
    """max |κ x + c| over the keys of one group, for the queries x = a s + o of another, in head h."""
    x = asking.numbers.query[h, 0] * np.array([asking.lo, asking.hi]) + asking.numbers.query[h, 1]
    key = asked.numbers.key[h]
    return float(np.abs(np.outer(key[:, 0], x) + key[:, 1:]).max())
