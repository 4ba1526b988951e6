"""Layers of a transformer as self-attention: norms, attention between data tokens, products, numbers for each token.

    layer      who attends to whom                           scores
    norm       a data token to itself and to anchor 0        intercept_j - slope_j z·z, and 0
    attend     a data token to the data tokens it may see    scale·q·k + bias
    product    a data token to anchors, as a neuron          those of the square of x/λ ± λy

Anchor 0 has the score 0 and the value 0 in a norm: all registers of values are 0 in anchors. Gates close all other tokens.
Anchors attend to anchors alone in a norm and in attention between data tokens, so their registers do not change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnc.network.literal.builder import Builder, KeySet
from attnc.network.literal.parts import array
from attnc.network.literal.steps import Layout, SelfAttention, SequenceMap, Step
from attnc.records.layers import NORM_HEADS, Layer
from attnc.records.numbers import Array

_FAR = 2.0**98  # more than any score of certified values: the checker proves it


def is_exact(features: int) -> bool:
    """Whether 1/features is a floating-point number."""
    return features & (features - 1) == 0


def centring(build: Builder, at: Layout, name: str, read: str) -> list[tuple[str, Step]]:
    """z = x - mean x in the register `name`. If 1/d is not a floating-point number, a head computes the mean: a data token
    attends with equal weights to itself and to d - 1 anchors, whose x is 0."""
    width, features = at.width, at[read].stop - at[read].start
    places = np.arange(width)[at[name]], np.arange(width)[at[read]]
    matrix = np.eye(features) - 1.0 / features if is_exact(features) else np.eye(features)
    copy = build.map(matrix, np.zeros(width), ((1, width), (1, width)), places, at)
    if is_exact(features):
        return [(name, copy)]
    data, anchor, none = at.form("data"), at.form("anchor"), np.zeros((width, 0))
    total, out = at.block(read).sum(1, keepdims=True), -at.block(name).sum(1)[None]
    others = data + anchor - at.form(f"mean of {features}")
    gates = [(place, others - place) for place in at.block("position").T] + [(anchor, data)]
    head = KeySet.single(f"{name}: mean", none, none, total, out, gates, 0.0)
    mean = build.attention([head], len(at.tokens), at)
    return [(f"{name}: copy", copy), (name, mean)]


def norm_attention(
    build: Builder, at: Layout, layer: Layer, name: str, registers: tuple[str, str]
) -> SelfAttention:
    """gain∘(Σ_j output_j w_j z), w_j = softmax(intercept_j - slope_j z·z, 0)₀: head j has the query (-slope_j z, intercept_j),
    the keys (z, 1) of the token itself and 0 of anchor 0, the value gain∘z, and W_O = output_j."""
    (read, write), tokens = registers, len(at.tokens)
    slope, intercept, output, gain = (array(layer.tensor(part)) for part in (*NORM_HEADS, "gain"))
    z, data, anchor = at.block(read), at.form("data"), at.form("anchor")
    build.reserve(len(slope) * at.width * (z.shape[1] + 1), f"{len(slope):,} heads of a norm")
    query = np.zeros((len(slope), at.width, z.shape[1] + 1))
    query[..., :-1], query[..., -1] = -slope[:, None, None] * z, intercept[:, None] * data
    out = output[:, None, None] * at.block(write).T
    others = data + anchor - at.form("second key")
    gates = [(place, others - place) for place in at.block("position").T] + [(anchor, data)]
    names = [f"{name}: head {j}" for j in range(len(slope))]
    return build.attention([KeySet(names, query, np.c_[z, data], z * gain, out, gates, _FAR)], tokens, at)


def token_attention(
    build: Builder, at: Layout, layer: Layer, name: str, reads: Sequence[str], counts: tuple[int, int], out: Array
) -> SelfAttention:  # fmt: skip
    """softmax(scale·q kᵀ + bias) v in each head; heads of one slice of keys share W_K and W_V. `counts` are the tokens with
    queries and with keys, `out` (features, D) is W_O of all heads. The one-hot positions of query and key select the bias."""
    (heads, slices, scale), (rows, columns) = layer.settings["split"], counts
    places, data, anchor = at.block("position"), at.form("data"), at.form("anchor")
    n, group = places.shape[1], heads // slices
    seen = np.zeros((n, n), dtype=bool)
    seen[:, :columns] = True
    if "mask" in layer.tensors:
        seen[:rows, :columns] = layer.tensor("mask") != 0
    gates = [(anchor, data)]
    for row in np.unique(seen, axis=0):
        gates.append((places[:, (seen == row).all(1)].sum(1), anchor + places[:, ~row].sum(1)))
    bias = None
    if "bias" in layer.tensors:
        bias = np.zeros((heads, n, n))
        bias[:, :rows, :columns] = array(layer.tensor("bias"))
    queries, outs = np.split(at.block(reads[0]), heads, 1), np.split(out, heads)
    keys, values = (np.split(at.block(register), slices, 1) for register in reads[1:])
    found = []
    for g, (key, value) in enumerate(zip(keys, values, strict=True)):
        own = range(g * group, (g + 1) * group)
        query = np.stack([scale * queries[h] for h in own])
        if bias is not None:
            query = np.concatenate([query, np.stack([places @ bias[h] for h in own])], 2)
            key = np.c_[key, places]
        w_o, names = np.stack([outs[h] for h in own]), [f"{name}: head {h}" for h in own]
        found.append(KeySet(names, query, key, value, w_o, gates, _FAR))
    return build.attention(found, len(at.tokens), at)


def product_forms(at: Layout, layer: Layer, reads: Sequence[str], columns: Array) -> tuple[Array, Array]:
    """xy = ρ²/4 (square((x/λ + λy)/ρ) - square((x/λ - λy)/ρ)), λ = 2^scale, ρ = 2^radius: the forms (2 neurons, D) of the
    arguments of the square, and what its values add to the stream for the given columns (neurons, D)."""
    scale, radius = (layer.tensor(part).astype(np.int64) for part in ("scale", "radius"))
    x = np.exp2(-scale - radius)[:, None] * at.block(reads[0]).T
    y = np.exp2(scale - radius)[:, None] * at.block(reads[1]).T
    factors = np.exp2(2 * radius - 2)[:, None] * columns
    return np.concatenate([x + y, x - y]), np.concatenate([factors, -factors])


def scaling(build: Builder, at: Layout, factors: Array, registers: tuple[str, str]) -> SequenceMap:
    """factor∘x with a row of factors for each token: a map of the whole sequence."""
    read, write = (at[register] for register in registers)
    tokens, width = len(at.tokens), at.width
    first, every = np.arange(len(factors))[:, None] * width, np.arange(factors.shape[1])
    places = (first + write.start + every).reshape(-1), (first + read.start + every).reshape(-1)
    bias = build.zeros("a map of the sequence", tokens * width)
    return build.map(factors.reshape(-1), bias, ((tokens, width), (tokens, width)), places, at)
