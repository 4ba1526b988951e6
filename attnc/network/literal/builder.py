"""Steps of literal networks from forms over named coordinates: heads with gates, layers of equal weights, affine maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnc.errors import InputError
from attnc.network.literal import steps
from attnc.network.literal.steps import Layout, Places, SelfAttention, SequenceMap, Size, data_tokens
from attnc.records.numbers import Array, HeadNumbers

_UNDERFLOW = {"float32": 128.0, "float64": 1024.0}  # exp of minus this is exactly 0


Gates = Sequence[tuple[Array, Array]]


@dataclass
class KeySet:
    """Heads that share keys and values.

    `gates` are pairs of linear forms (who, closed): tokens with who = 1 do not attend to tokens with closed = 1. Each adds a
    column to W_Q, -M who, and one to W_K, closed. M is a power of two beyond twice `top`, which is at least every score, plus
    the underflow of exp, 1024 in float64: the weights of closed tokens are at most e^-1024 in exact arithmetic, and 0 as
    executed; all other scores are unchanged."""

    names: Sequence[str]
    query: Array  # (heads, D, r)
    key: Array  # (D, r)
    value: Array  # (D, m)
    out: Array  # (heads, m, E)
    gates: Gates
    top: float

    @classmethod
    def single(
        cls, name: str, query: Array, key: Array, value: Array, out: Array, gates: Gates, top: float
    ) -> KeySet:
        """One head: query (D, r), out (m, E)."""
        return cls([name], query[None], key, value, out[None], gates, top)


class Builder:
    """Builds steps in one dtype, and raises before it makes more than `LARGEST` numbers."""

    def __init__(self, form: str, dtype: str) -> None:
        self.form, self.dtype, self.total = form, dtype, 0

    def reserve(self, size: int, what: str) -> None:
        """Raise if `size` more numbers are too many."""
        if self.total + size > steps.LARGEST:
            excess = f"with {what} the matrices have {self.total + size:,} numbers, over {steps.LARGEST:,}"
            raise InputError(f"form {self.form!r}: {excess}; use a smaller network, or a larger eps")

    def zeros(self, what: str, *shape: int) -> Array:
        """Zeros that become part of a step."""
        self.reserve(math.prod(shape), what)
        return np.zeros(shape)

    def map(
        self, core: Array, bias: Array, shapes: tuple[Size, Size], at: Places, layout: Layout
    ) -> SequenceMap:
        """A[rows, columns] = core or, if core is a vector, A[rows[i], columns[i]] = core[i]."""
        self.reserve(core.size + bias.size, "a map")
        self.total += core.size + bias.size
        return SequenceMap(core + 0.0, bias + 0.0, shapes, at, layout, self.dtype)

    def attention(
        self, sets: Sequence[KeySet], tokens: int, layout: Layout, r: int = 0, m: int = 0
    ) -> SelfAttention:
        """W_Q, W_K, W_V, W_O of all heads, filled up with zeros to keys of at least r numbers and values of at least m."""
        heads, (d, e) = sum(len(s.names) for s in sets), (sets[0].key.shape[0], sets[0].out.shape[2])
        r = max([r, *(s.key.shape[1] + len(s.gates) for s in sets)])
        m = max([m, *(s.value.shape[1] for s in sets)])
        if heads * tokens**2 > steps.LARGEST:
            excess = (
                f"{heads:,} heads over {tokens:,} tokens have {heads * tokens**2:,} weights for every input"
            )
            raise InputError(f"form {self.form!r}: {excess}, over {steps.LARGEST:,}; use a larger eps")
        size = heads * (d * r + m * e) + len(sets) * d * (r + m)
        self.reserve(size, f"a layer of {heads:,} heads over tokens of {d:,} coordinates")
        self.total += size
        w_q, w_o = np.zeros((heads, d, r)), np.zeros((heads, m, e))
        w_k, w_v = np.zeros((len(sets), d, r)), np.zeros((len(sets), d, m))
        shared = np.repeat(np.arange(len(sets)), [len(s.names) for s in sets])
        for g, s in enumerate(sets):
            own, columns, distance = shared == g, s.key.shape[1], self.distance(s.top)
            w_q[own, :, :columns], w_k[g, :, :columns] = s.query, s.key
            w_v[g, :, : s.value.shape[1]], w_o[own, : s.out.shape[1]] = s.value, s.out
            for i, (who, closed) in enumerate(s.gates, columns):
                w_q[own, :, i], w_k[g, :, i] = -distance * who, closed
        for matrix in (w_q, w_k, w_v, w_o):
            matrix += 0.0  # -0.0 becomes 0.0
        names = [name for s in sets for name in s.names]
        matrices = {"W_Q": w_q, "W_K": w_k, "W_V": w_v, "W_O": w_o}
        return SelfAttention(matrices, shared.tolist(), names, layout, self.dtype)

    def uniform(self, name: str, weight: Array, layout: Layout) -> SelfAttention:
        """W_Q = W_K = 0: all scores are 0 and all weights 1/tokens. W_V = tokens·I and W_O = weightᵀ, so every token becomes
        weight·Σ_i x_i."""
        inputs, tokens = weight.shape[1], len(layout.tokens)
        none, value = np.zeros((inputs, 1)), tokens * np.eye(inputs)
        return self.attention([KeySet.single(name, none, none, value, weight.T, [], 0.0)], tokens, layout)

    def distance(self, top: float) -> float:
        """M."""
        return 2.0 ** math.ceil(math.log2(2 * top + _UNDERFLOW[self.dtype]))

    def blocks(self, given: Size, centre: Array | None, ones: int = 0) -> SequenceMap:
        """Token i holds x_i - centre_i in block i and zeros elsewhere, so the sum of all tokens is vec(X) - centre; then `ones`
        coordinates whose sum is 1."""
        (n, d), width = given, given[0] * given[1] + ones
        columns = np.arange(n * d)
        rows, bias = columns // d * width + columns, self.zeros("the blocks", n * width)
        if centre is not None:
            bias[rows] = -centre
        bias[n * d : width] = 1.0
        layout = Layout({"x": n * d, "one": ones} if ones else {"x": n * d}, data_tokens(n))
        return self.map(np.ones(n * d), bias, (given, (n, width)), (rows, columns), layout)

    def keep(self, tokens: int, shift: Array, result: Size) -> SequenceMap:
        """Every token holds vec(Y): token i keeps its block, plus its part of the shift."""
        rows = np.arange(len(shift))
        columns = rows // result[1] % tokens * len(shift) + rows
        layout = Layout({"y": result[1]}, data_tokens(result[0]))
        return self.map(np.ones(len(shift)), shift, ((tokens, len(shift)), result), (rows, columns), layout)


def largest_score(numbers: HeadNumbers, h: int, lo: float, hi: float, key: Array | None = None) -> float:
    """max |κ x + c| for the queries x = a s + o of head h, s in [lo, hi], and its keys, or those given."""
    x = numbers.query[h, 0] * np.array([lo, hi]) + numbers.query[h, 1]
    key = numbers.key[h] if key is None else key
    return float(np.abs(np.outer(key[:, 0], x) + key[:, 1:]).max())


def head_names(name: str, heads: int) -> list[str]:
    """Names of the heads of one neuron."""
    return [name] if heads == 1 else [f"{name}, head {h}" for h in range(heads)]
