"""A∘Attn∘A∘Attn∘A: two layers of attention; one of them has scores 0."""

from __future__ import annotations

import math

import numpy as np

from attnc.network.forms.builder import AnchorSet, Builder, anchor_layer, largest_score
from attnc.network.forms.parts import Lookup, Neurons, Parts
from attnc.network.forms.steps import Step
from attnc.records.layers import Index
from attnc.records.numbers import Array


def neurons_as_tokens(make: Builder, parts: Parts, body: Neurons) -> list[Step]:
    """Layer 1 makes neuron token j g(s_j); a map writes it into coordinate j; layer 2 adds all up: Σ_j second_j g(s_j)."""
    count = len(body.first)
    group_of = np.empty(count, np.int64)
    for g, group in enumerate(body.groups):
        group_of[group.neurons] = g
    sets = [AnchorSet(group, np.ones(1)) for group in body.groups]
    lay, anchors = anchor_layer(make, (body.first, body.offset), group_of.tolist(), sets, parts.given)
    each = np.arange(count)
    spread = make.map(
        "spread",
        np.ones(count),
        make.zeros("spread", count * count),
        ((lay.out_shape[0], 1), (count, count)),
        (each * (count + 1), each),
    )
    add = make.uniform("sum", count, body.second)
    return [lay, anchors, spread, add, make.keep("keep", count, body.shift, parts.made)]


def neurons_as_heads(make: Builder, parts: Parts, body: Neurons) -> list[Step]:
    """Layer 1 gathers vec(X) in every token; a map adds anchor tokens; layer 2 has a head for every neuron, W_O^j = second_j."""
    inputs = math.prod(parts.given)
    keys = [(group, h) for group in body.groups for h in range(group.numbers.heads)]
    p = max(group.numbers.anchors_per_head for group in body.groups)
    anchors = make.zeros("the anchors", p, 3 * len(keys))
    distances = []
    for i, (group, h) in enumerate(keys):
        numbers, own = group.numbers, group.numbers.anchors_per_head
        distances.append(make.distance(largest_score(group, group, h)))
        anchors[:own, 3 * i : 3 * i + 3] = np.c_[numbers.key[h], numbers.value[h, :, 1]]
        anchors[own:, 3 * i + 1] = -distances[-1]  # anchors of other groups have a weight of exactly 0
    gather, size = _gathered(make, parts, anchors, None)
    shared = np.repeat(np.arange(len(keys)), [len(group.neurons) for group, _ in keys])
    made = make.matrices("anchors", size[0], len(shared), len(keys), size[1], 3, 1, len(body.second))
    for i, (group, h) in enumerate(keys):
        heads, neurons, at = np.flatnonzero(shared == i), group.neurons, inputs + 1 + 3 * i
        gain, offset = group.numbers.query[h]
        made["W_Q"][heads, :inputs, 0] = gain * body.first[neurons]
        made["W_Q"][heads, inputs, 0] = gain * body.offset[neurons] + offset
        made["W_Q"][heads, inputs, 1:] = (1.0, -distances[i])
        made["W_K"][i, [at, at + 1, inputs], [0, 1, 2]] = 1.0
        made["W_V"][i, at + 2, 0] = 1.0
        made["W_O"][heads, 0] = group.numbers.output[h] * body.second[:, neurons].T
    layer = make.attention("anchors", made, shared.tolist())
    return [*gather, layer, make.keep("keep", size[0], body.shift, parts.made)]


def lookup(make: Builder, parts: Parts, body: Lookup) -> list[Step]:
    """Layer 1 gathers vec(X) - centre in every token; a map adds K anchor tokens; layer 2 is one head over them.

    q = (vec(X) - centre, 1, -M)     k = (key_k, offset_k, 0) for an anchor, (0, 0, 1) for a data token."""
    inputs, outputs = body.key.shape[1], len(body.second)
    make.room(len(body.key) * (inputs + 1 + outputs), "the anchors")
    gather, size = _gathered(make, parts, np.c_[body.key, body.offset, body.second.T], body.centre)
    made = make.matrices("anchors", size[0], 1, 1, size[1], inputs + 2, outputs, outputs)
    key, value = inputs + 1, 2 * inputs + 2
    made["W_Q"][0, : inputs + 1, : inputs + 1] = np.eye(inputs + 1)
    made["W_Q"][0, inputs, inputs + 1] = -make.distance(body.largest)
    made["W_K"][0, key:value, : inputs + 1] = np.eye(inputs + 1)
    made["W_K"][0, inputs, inputs + 1] = 1.0
    made["W_V"][0, value:] = made["W_O"][0] = np.eye(outputs)
    layer = make.attention("anchors", made)
    return [*gather, layer, make.keep("keep", size[0], body.shift, parts.made)]


def _gathered(
    make: Builder, parts: Parts, anchors: Array, centre: Array | None
) -> tuple[list[Step], tuple[int, int]]:
    """[x_i in block i of token i; scores 0; data tokens (vec(X), 1, 0) and anchor tokens (0, 0, anchor)], and their size.

    Where there is a centre, it is taken from vec(X)."""
    (n, d), tokens = parts.given, parts.made[0]
    inputs, (p, wide) = n * d, anchors.shape
    size = (tokens + p, inputs + 1 + wide)
    bias = make.zeros("the tokens", *size)
    bias[:tokens, inputs] = 1.0
    bias[tokens:, inputs + 1 :] = anchors
    token, coordinate = (index.reshape(-1) for index in np.indices((tokens, inputs)))
    at: tuple[Index, Index] = token * size[1] + coordinate, token % n * inputs + coordinate
    lay = make.blocks("lay out", parts.given, centre)
    gather = make.uniform("gather", n, np.eye(inputs))
    beside = make.map("anchors beside", np.ones(len(token)), bias.reshape(-1), ((n, inputs), size), at)
    return [lay, gather, beside], size
