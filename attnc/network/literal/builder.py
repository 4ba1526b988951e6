"""What the builders of literal networks share: sizes, matrices, layers of equal weights, layers over anchors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnc.errors import InputError
from attnc.network.literal import steps
from attnc.network.literal.layout import Layout
from attnc.network.literal.parts import Group
from attnc.network.literal.steps import Index, SelfAttention, SequenceMap, Size
from attnc.records.numbers import Array, HeadNumbers

_UNDERFLOW = {"float32": 128.0, "float64": 1024.0}  # exp of minus this is exactly 0


class Builder:
    """Builds steps in one dtype, and raises before it makes more than `LARGEST` numbers."""

    def __init__(self, form: str, dtype: str) -> None:
        self.form, self.dtype, self.total = form, dtype, 0

    def reserve(self, size: int, what: str) -> None:
        """Raise if `size` more numbers are too many."""
        if self.total + size > steps.LARGEST:
            raise InputError(
                f"form {self.form!r} as self-attention: with {what} the matrices have {self.total + size:,} numbers, the limit is "
                f"{steps.LARGEST:,}. Use a smaller network, a larger eps, or a head of this network: "
                "net.layers[0][0].as_self_attention(1)"
            )

    def zeros(self, what: str, *shape: int) -> Array:
        """Zeros that become part of a step."""
        self.reserve(math.prod(shape), what)
        return np.zeros(shape)

    def map(
        self, core: Array, bias: Array, shapes: tuple[Size, Size], at: tuple[Index, Index], layout: Layout
    ) -> SequenceMap:
        """A[rows, columns] = core or, if core is a vector, A[rows[i], columns[i]] = core[i]."""
        self.reserve(core.size + bias.size, "a map")
        self.total += core.size + bias.size
        return SequenceMap(core, bias, *shapes, layout, self.dtype, at)

    def matrices(self, tokens: int, heads: int, sets: int, *sizes: int) -> dict[str, Array]:
        """Zeros for W_Q, W_K, W_V, W_O; the sizes are those of a token, a key, a value and an output."""
        if heads * tokens**2 > steps.LARGEST:
            raise InputError(
                f"form {self.form!r} as self-attention: {heads:,} heads over {tokens:,} tokens have {heads * tokens**2:,} weights "
                f"for every input, the limit is {steps.LARGEST:,}. Use a smaller network, or a larger eps."
            )
        d, r, m, e = sizes
        shapes = {"W_Q": (heads, d, r), "W_K": (sets, d, r), "W_V": (sets, d, m), "W_O": (heads, m, e)}
        size = sum(map(math.prod, shapes.values()))
        self.reserve(size, f"a layer of {heads:,} heads over tokens of {d:,} coordinates")
        self.total += size
        return {letter: np.zeros(shape) for letter, shape in shapes.items()}

    def attention(
        self, matrices: Mapping[str, Array], shared: Iterable[int], heads: Sequence[str], layout: Layout
    ) -> SelfAttention:
        return SelfAttention(matrices, list(shared), heads, layout, self.dtype)

    def uniform(self, name: str, weight: Array, layout: Layout) -> SelfAttention:
        """W_Q = W_K = 0: all scores are 0 and all weights 1/tokens. W_V = tokens·I and W_O = weightᵀ, so every token becomes
        weight·Σ_i x_i."""
        (outputs, inputs), tokens = weight.shape, len(layout.tokens)
        found = self.matrices(tokens, 1, 1, inputs, 1, inputs, outputs)
        found["W_V"][0] = tokens * np.eye(inputs)
        found["W_O"][0] = weight.T
        return self.attention(found, [0], [name], layout)

    def blocks(self, given: Size, centre: Array | None, ones: int = 0) -> SequenceMap:
        """Token i holds x_i - centre_i in block i and zeros elsewhere, so the sum of all tokens is vec(X) - centre; then `ones`
        coordinates whose sum is 1."""
        (n, d), width = given, given[0] * given[1] + ones
        columns = np.arange(n * d)
        rows, bias = columns // d * width + columns, self.zeros("the blocks", n * width)
        if centre is not None:
            bias[rows] = -centre
        bias[n * d : n * d + ones] = 1.0
        layout = Layout({"x": n * d} | {f"one {i}": 1 for i in range(ones)}, data_tokens(n))
        return self.map(np.ones(n * d), bias, (given, (n, width)), (rows, columns), layout)

    def keep(self, tokens: int, shift: Array, result: Size) -> SequenceMap:
        """Every token holds vec(Y): token i keeps its block, plus its part of the shift."""
        rows = np.arange(len(shift))
        columns = rows // result[1] % tokens * len(shift) + rows
        layout = Layout({"y": result[1]}, data_tokens(result[0]))
        return self.map(np.ones(len(shift)), shift, ((tokens, len(shift)), result), (rows, columns), layout)

    def distance(self, scores: float) -> float:
        """M: a power of two beyond twice every score plus the underflow of exp."""
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
    build: Builder, s: tuple[Array, Array], of: Sequence[int], sets: Sequence[AnchorSet], given: Size
) -> tuple[SequenceMap, SelfAttention]:
    """Token i becomes g(s_i)·row, with g and row of its set of anchors of[i]; s = first·vec(X) + offset.

        register       in data token i               in an anchor of set c
        s              s_i at the head of its set    0
        set            one-hot, its set              0
        hidden         1 for every set               1 for every set but c
        slope, offset, value of each head: 0         κ, c, v·row

    q = (a s + o, 1, -M·set)   k = (κ, c, hidden): an anchor of the own set scores κ(a s + o) + c; the score of an anchor of
    another set is lower by M, that of a data token is -M, and exp of it is exactly 0. An anchor has the query 0, and its result
    is not read."""
    tokens, count, heads = len(of), len(sets), max(each.numbers.heads for each in sets)
    alike = list({id(each.numbers): each.numbers for each in sets}.values())
    kind = [next(i for i, numbers in enumerate(alike) if numbers is each.numbers) for each in sets]
    e, anchors = (
        len(sets[0].row),
        np.repeat(np.arange(count), [each.numbers.anchors_per_head for each in sets]),
    )
    registers = {"s": len(alike), "set": count, "hidden": count}
    registers |= {
        f"{what} {h}": size
        for h in range(heads)
        for what, size in (("slope", 1), ("offset", 1), ("value", e))
    }
    names = [
        *data_tokens(tokens),
        *(f"anchor {k}" + (f" of set {c}" if count > 1 else "") for k, c in enumerate(anchors)),
    ]
    layout = Layout(registers, names)
    own, hidden = layout["set"].start, layout["hidden"]
    start = build.zeros("the tokens", len(names), layout.width)
    found = build.matrices(len(names), heads, heads, layout.width, 2 + count, e, e)
    at, of_token = np.arange(tokens), np.array([kind[c] for c in of])
    start[at, of_token] = s[1]
    start[at, own + np.array(of)] = 1.0
    start[:, hidden] = 1.0
    start[tokens + np.arange(len(anchors)), hidden.start + anchors] = 0.0
    for h in range(heads):
        here = [(c, each) for c, each in enumerate(sets) if h < each.numbers.heads]
        groups = list({id(each.group): each.group for _, each in here}.values())
        distance = build.distance(max(largest_score(a, b, h) for a in groups for b in groups))
        first, value = layout[f"slope {h}"].start, layout[f"value {h}"]
        for c, each in here:
            numbers, rows = each.numbers, tokens + np.flatnonzero(anchors == c)
            start[rows, first : first + 2] = numbers.key[h]
            start[rows, value] = np.outer(numbers.output[h] * numbers.value[h, :, 1], each.row)
            found["W_Q"][h, kind[c], 0], found["W_Q"][h, own + c, 0] = numbers.query[h]
        found["W_Q"][h, layout["set"], 1] = 1.0
        found["W_Q"][h, layout["set"], 2:] = -distance * np.eye(count)
        found["W_K"][h, [first, first + 1], [0, 1]] = 1.0
        found["W_K"][h, hidden, 2:] = np.eye(count)
        found["W_V"][h, value] = found["W_O"][h] = np.eye(e)
    where = (at * layout.width + of_token, np.arange(math.prod(given)))
    lay = build.map(s[0], start.reshape(-1), (given, start.shape), where, layout)
    layer = build.attention(found, range(heads), head_names("anchors", heads), Layout({"y": e}, names))
    return lay, layer


def largest_score(asking: Group, asked: Group, h: int) -> float:
    """max |κ x + c| over the keys of one group, for the queries x = a s + o of another, in head h."""
    x = asking.numbers.query[h, 0] * np.array([asking.lo, asking.hi]) + asking.numbers.query[h, 1]
    key = asked.numbers.key[h]
    return float(np.abs(np.outer(key[:, 0], x) + key[:, 1:]).max())


def data_tokens(n: int) -> list[str]:
    return [f"data {i}" for i in range(n)]


def head_names(name: str, heads: int) -> list[str]:
    """Names of the heads of one neuron."""
    return [name] if heads == 1 else [f"{name}, head {h}" for h in range(heads)]
