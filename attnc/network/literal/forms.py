"""The networks of the theorems: affine maps of the sequence and self-attention, without a residual stream.

    form                 steps
    one-head             Attn∘A                one head over n data tokens and p anchor tokens for each output coordinate
    many-heads           Attn∘A                H heads over the n data tokens alone
    two-layer, tokens    A∘Attn∘A∘Attn∘A       anchors, then equal weights that add up the neurons
    two-layer, heads     A∘Attn∘A∘Attn∘A       equal weights that gather vec(X), then a head over anchors for every neuron
    attention-softmax    A∘Softmax∘A∘Attn∘A    equal weights, then softmax over anchors

A lookup has no neurons: as 'two-layer' it gathers, then one head attends to its anchors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError
from attnc.network.literal.builder import (
    AnchorSet,
    Builder,
    anchor_layer,
    data_tokens,
    head_names,
    largest_score,
)
from attnc.network.literal.layout import Layout
from attnc.network.literal.network import Input, Output, Plan, SelfAttentionNetwork
from attnc.network.literal.parts import Lookup, Neurons, Parts, read
from attnc.network.literal.steps import Index, Softmax, Step
from attnc.records.numbers import Array

if TYPE_CHECKING:
    from attnc.network.network import Network

Steps = dict[str, Step]


def literal_form(net: Network) -> SelfAttentionNetwork:
    """The network as the composition that its form names, with exactly the layers of the theorem.

    >>> import attnc, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
    >>> net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3, 2)), eps=1e-3)
    >>> net.form, net.layout = "two-layer", "tokens"
    >>> literal = literal_form(net)
    >>> x = torch.rand(5, 3, 2)
    >>> literal.kinds, torch.allclose(literal(x), net(x), atol=1e-5)
    (('map', 'attention', 'map', 'attention', 'map'), True)
    >>> literal.layers[0].W_Q.shape, literal.maps[1].matrix.shape
    (torch.Size([1, 6, 3]), torch.Size([144, 14]))
    """
    forms = list(dict.fromkeys(form for form, _ in _NEURONS))
    if net.form not in forms:
        raise InputError(f"form={net.form!r}: accepted are {', '.join(map(repr, forms))}")
    parts, arrangement = read(net), net.layout if net.form == "two-layer" else ""
    build = Builder(net.form, parts.dtype)
    if isinstance(parts.body, Lookup):
        if net.form not in _LOOKUPS:
            raise InputError(
                f"form {net.form!r} needs neurons, functions of one number, and this network is a lookup of the whole input: "
                f"use {' or '.join(f'form={form!r}' for form in _LOOKUPS)}"
            )
        arrangement, found = "", _LOOKUPS[net.form](build, parts, parts.body)
    else:
        if (net.form, arrangement) not in _NEURONS:
            raise InputError(f"layout={net.layout!r}: the form 'two-layer' accepts 'tokens' and 'heads'")
        found = _NEURONS[net.form, arrangement](build, parts, parts.body)
    known = net.certificate is not None or net.measured is not None
    plan = Plan(
        net.form,
        (Input("x", parts.shape, parts.shape[-1]),),
        [],
        np.zeros((0, 0)),
        list(found.values()),
        tuple((name, i) for i, name in enumerate(found)),
        Output(None, parts.result),
        parts.dtype,
        Layout({"x": parts.given[1]}, data_tokens(parts.given[0])),
        arrangement,
        net.domain if known else None,
        strict=net.strict,
    )
    return SelfAttentionNetwork(plan).to(next(net.parameters()).device)


def one_head(build: Builder, parts: Parts, body: Neurons) -> Steps:
    """One head over n data tokens and copies of the anchors: token i becomes g(s_i) e_{k_i}.

    Each output coordinate has its own copy of the anchors, with the values v e_k; token i sees that of its coordinate."""
    if body.heads > 1:
        raise InputError(
            f"form 'one-head' has one head, and this network has {body.heads} for every neuron: use form='many-heads'"
        )
    neurons, rows = _placement(parts, body)
    group_of = {int(j): g for g, group in enumerate(body.groups) for j in group.neurons}
    sets: dict[tuple[int, bytes], AnchorSet] = {}
    of = []
    for j, row in zip(neurons, rows, strict=True):
        wanted = (group_of[j], row.tobytes())
        sets.setdefault(wanted, AnchorSet(body.groups[group_of[j]], row))
        of.append(list(sets).index(wanted))
    s = body.first[neurons], body.offset[neurons]
    lay, layer = anchor_layer(build, s, of, list(sets.values()), parts.given)
    return {"lay out": lay, "anchors": layer}


def many_heads(build: Builder, parts: Parts, body: Neurons) -> Steps:
    """H heads over the n data tokens alone. Token k carries anchor k of every head:

        token k = (s_k, 1, e_k)     q^h = (a_h s + o_h, 1)     k^h = Σ_k position_k (κ_k^h, c_k^h)     v^h = Σ_k position_k v_k^h

    so a score is κ_k^h (a_h s_i + o_h) + c_k^h and does not depend on the input that token k holds."""
    (n, _), (out_tokens, width) = parts.given, parts.made
    group, numbers, p = body.groups[0], body.groups[0].numbers, body.groups[0].numbers.anchors_per_head
    neurons, rows = _placement(parts, body)
    if len(body.groups) > 1 or (rows != rows[0]).any():
        what = "keys and values" if len(body.groups) > 1 else "an output coordinate"
        raise InputError(f"in the form 'many-heads' all tokens share {what}: use form='one-head'")
    if out_tokens != n or p > n:
        raise InputError(
            f"form 'many-heads' has only the n = {n} tokens of the input, each an anchor of every head, and this network has "
            f"{p} anchors in a head and {out_tokens} output tokens: use at most {n} of each, or form='one-head'"
        )
    layout = Layout({"s": 1, "one": 1, "position": n}, data_tokens(n))
    found = build.matrices(n, numbers.heads, numbers.heads, layout.width, 2, 1, width)
    start = build.zeros("the tokens", n, layout.width)
    start[:, 0], start[:, 1], start[:, 2:] = body.offset[neurons], 1.0, np.eye(n)
    for h in range(numbers.heads):
        found["W_Q"][h, :2, 0] = numbers.query[h]
        found["W_Q"][h, 1, 1] = 1.0
        found["W_K"][h, 2 : 2 + p] = numbers.key[h]
        # the other tokens are no anchors: their weight is exactly 0
        found["W_K"][h, 2 + p :, 1] = -build.distance(largest_score(group, group, h))
        found["W_V"][h, 2 : 2 + p, 0] = numbers.value[h, :, 1]
        found["W_O"][h, 0] = numbers.output[h] * rows[0]
    at = (np.arange(n) * layout.width, np.arange(body.first.shape[1]))
    lay = build.map(body.first[neurons], start.reshape(-1), (parts.given, start.shape), at, layout)
    names = head_names("anchors", numbers.heads)
    after = Layout({"y": width}, data_tokens(n))
    return {"lay out": lay, "anchors": build.attention(found, range(numbers.heads), names, after)}


def _placement(parts: Parts, body: Neurons) -> tuple[list[int], Array]:
    """For every output token the one neuron that it gets, and the row that the neuron is multiplied by."""
    tokens, width = parts.made
    if body.shift.any():
        raise InputError("a network of one layer of attention has no bias behind it: use form='two-layer'")
    second = body.second.reshape(tokens, width, -1)
    used: NDArray[np.bool_] = np.abs(second).max(1) > 0
    if (used.sum(1) > 1).any():
        i = int(np.argmax(used.sum(1)))
        raise InputError(
            f"in a network of one layer of attention every token gets one neuron, and output token {i} of {tokens} gets "
            f"{int(used[i].sum())}: use form='two-layer', or an output of the shape (tokens, coordinates)"
        )
    neurons = used.argmax(1)
    rows: Array = second[np.arange(tokens), :, neurons] + 0.0  # never -0: their bytes are compared
    return neurons.tolist(), rows


def neurons_as_tokens(build: Builder, parts: Parts, body: Neurons) -> Steps:
    """Layer 1 turns neuron token j into g(s_j); a map writes it into coordinate j; layer 2 adds up: Σ_j second_j g(s_j)."""
    count = len(body.first)
    group_of = np.empty(count, np.int64)
    for g, group in enumerate(body.groups):
        group_of[group.neurons] = g
    sets = [AnchorSet(group, np.ones(1)) for group in body.groups]
    lay, anchors = anchor_layer(build, (body.first, body.offset), group_of.tolist(), sets, parts.given)
    each, names = np.arange(count), [f"neuron {j}" for j in range(count)]
    shapes = ((lay.out_shape[0], 1), (count, count))
    zeros, layout = build.zeros("spread", count * count), Layout({"neuron": count}, names)
    spread = build.map(np.ones(count), zeros, shapes, (each * (count + 1), each), layout)
    add = build.uniform("sum", body.second, Layout({"y": len(body.second)}, names))
    keep = build.keep(count, body.shift, parts.made)
    return {"lay out": lay, "anchors": anchors, "spread": spread, "sum": add, "keep": keep}


def neurons_as_heads(build: Builder, parts: Parts, body: Neurons) -> Steps:
    """Layer 1 gathers vec(X) in every token; a map adds anchor tokens; layer 2 has a head for every neuron, W_O^j = second_j."""
    inputs = math.prod(parts.given)
    keys = [(group, h) for group in body.groups for h in range(group.numbers.heads)]
    p = max(group.numbers.anchors_per_head for group in body.groups)
    anchors, distances = build.zeros("the anchors", p, 3 * len(keys)), []
    for i, (group, h) in enumerate(keys):
        numbers, own = group.numbers, group.numbers.anchors_per_head
        distances.append(build.distance(largest_score(group, group, h)))
        anchors[:own, 3 * i : 3 * i + 3] = np.c_[numbers.key[h], numbers.value[h, :, 1]]
        anchors[own:, 3 * i + 1] = -distances[-1]  # anchors of other groups have a weight of exactly 0
    registers = {f"{what} {i}": 1 for i in range(len(keys)) for what in ("slope", "offset", "value")}
    gather = _gathered(build, parts, anchors, registers, None)
    layout = gather["anchors beside"].layout
    assert layout is not None
    shared = np.repeat(np.arange(len(keys)), [len(group.neurons) for group, _ in keys])
    found = build.matrices(len(layout.tokens), len(shared), len(keys), layout.width, 3, 1, len(body.second))
    one, other = layout["one"].start, layout["one 2"].start
    for i, (group, h) in enumerate(keys):
        heads, neurons, at = np.flatnonzero(shared == i), group.neurons, layout[f"slope {i}"].start
        gain, offset = group.numbers.query[h]
        found["W_Q"][heads, :inputs, 0] = gain * body.first[neurons]
        found["W_Q"][heads, one, 0] = gain * body.offset[neurons]
        found["W_Q"][heads, other, 0] = offset
        found["W_Q"][heads, one, 1:] = (1.0, -distances[i])
        found["W_K"][i, [at, at + 1, one], [0, 1, 2]] = 1.0
        found["W_V"][i, at + 2, 0] = 1.0
        found["W_O"][heads, 0] = group.numbers.output[h] * body.second[:, neurons].T
    names = [
        f"neuron {j}" + (f", head {h}" if group.numbers.heads > 1 else "")
        for group, h in keys
        for j in group.neurons
    ]
    after = Layout({"y": len(body.second)}, layout.tokens)
    layer = build.attention(found, shared.tolist(), names, after)
    return gather | {"anchors": layer, "keep": build.keep(len(layout.tokens), body.shift, parts.made)}


def lookup_as_head(build: Builder, parts: Parts, body: Lookup) -> Steps:
    """Layer 1 gathers vec(X) - centre in every token; a map adds K anchor tokens; layer 2 is one head over them.

    q = (vec(X) - centre, 1, -M)     k = (key_k, offset_k, 0) for an anchor, (0, 0, 1) for a data token."""
    inputs, outputs = body.key.shape[1], len(body.second)
    build.reserve(len(body.key) * (inputs + 1 + outputs), "the anchors")
    registers = {"slope": inputs, "offset": 1, "value": outputs}
    anchors = np.c_[body.key, body.offset, body.second.T]
    gather = _gathered(build, parts, anchors, registers, body.centre)
    layout = gather["anchors beside"].layout
    assert layout is not None
    found = build.matrices(len(layout.tokens), 1, 1, layout.width, inputs + 2, outputs, outputs)
    one, key = layout["one"].start, layout["slope"].start
    found["W_Q"][0, : inputs + 1, : inputs + 1] = np.eye(inputs + 1)
    found["W_Q"][0, one, inputs + 1] = -build.distance(body.largest)
    found["W_K"][0, key : key + inputs + 1, : inputs + 1] = np.eye(inputs + 1)
    found["W_K"][0, one, inputs + 1] = 1.0
    found["W_V"][0, layout["value"]] = found["W_O"][0] = np.eye(outputs)
    layer = build.attention(found, [0], ["lookup"], Layout({"y": outputs}, layout.tokens))
    return gather | {"anchors": layer, "keep": build.keep(len(layout.tokens), body.shift, parts.made)}


def _gathered(
    build: Builder, parts: Parts, anchors: Array, registers: dict[str, int], centre: Array | None
) -> Steps:
    """Three steps: x_i in block i of token i; equal weights; data tokens (vec(X) - centre, 1, 1, 0) and anchors (0, 0, 0, anchor)."""
    (n, d), tokens = parts.given, parts.made[0]
    inputs, p = n * d, len(anchors)
    names = [*data_tokens(tokens), *(f"anchor {k}" for k in range(p))]
    layout = Layout({"x": inputs, "one": 1, "one 2": 1} | registers, names)
    bias = build.zeros("the tokens", len(names), layout.width)
    bias[:tokens, inputs : inputs + 2] = 1.0
    bias[tokens:, inputs + 2 :] = anchors
    token, coordinate = (index.reshape(-1) for index in np.indices((tokens, inputs)))
    at: tuple[Index, Index] = token * layout.width + coordinate, token % n * inputs + coordinate
    gather = build.uniform("gather", np.eye(inputs), Layout({"x": inputs}, data_tokens(n)))
    shapes = ((n, inputs), (len(names), layout.width))
    beside = build.map(np.ones(len(token)), bias.reshape(-1), shapes, at, layout)
    return {"lay out": build.blocks(parts.given, centre), "gather": gather, "anchors beside": beside}


def neurons_as_columns(build: Builder, parts: Parts, body: Neurons) -> Steps:
    """Every token holds x_j = a s_j + o; a map turns it into the scores κ_k x_j + c_k, (p, N); softmax over k; a map reads

        vec(Y) = Σ_jk second_j v_k softmax(scores)_kj + shift.

    A neuron with several heads has a column for each; the unused rows of a group with fewer anchors score -M."""
    columns = [
        (group, h, j) for group in body.groups for h in range(group.numbers.heads) for j in group.neurons
    ]
    p, wide = max(group.numbers.anchors_per_head for group in body.groups), len(columns)
    scores = build.zeros("the scores", wide, body.first.shape[1] + 2)
    core, bias = (build.zeros("the scores", p, wide) for _ in range(2))
    readout = build.zeros("read out", len(body.second), p, wide)
    for i, (group, h, j) in enumerate(columns):
        numbers, own = group.numbers, group.numbers.anchors_per_head
        gain, offset = numbers.query[h]
        scores[i] = [*(gain * body.first[j]), gain * body.offset[j], offset]
        core[:own, i], bias[:own, i] = numbers.key[h].T
        if own < p:
            bias[own:, i] = -build.distance(largest_score(group, group, h))
        readout[:, :own, i] = np.outer(body.second[:, j], numbers.output[h] * numbers.value[h, :, 1])
    layout = Layout(
        {f"neuron {j}" + (f", head {h}" if group.numbers.heads > 1 else ""): 1 for group, h, j in columns}
    )
    last = readout.reshape(len(readout), -1), body.shift
    return _columns(build, parts, scores, (core, bias), np.tile(np.arange(wide), p), last, None, layout)


def lookup_as_column(build: Builder, parts: Parts, body: Lookup) -> Steps:
    """Every token holds z_k = key_k·(vec(X) - centre) + offset_k; a map lays them out as a column; softmax; a map reads

    vec(Y) = Σ_k values_k softmax(z)_k."""
    count = len(body.key)
    build.reserve(body.key.size + count, "the scores")
    table = np.ones((count, 1)), build.zeros("the scores", count, 1)
    last, layout = (body.second, body.shift), Layout({"lookup": 1})
    return _columns(
        build, parts, np.c_[body.key, body.offset], table, np.arange(count), last, body.centre, layout
    )


def _columns(
    build: Builder, parts: Parts, scores: Array, table: tuple[Array, Array], of: Index, last: tuple[Array, Array],
    centre: Array | None, layout: Layout,
) -> Steps:  # fmt: skip
    """Every token holds x = scores·(vec(X) - centre, 1, …); entry (k, j) of the table is core_kj x_i + bias_kj with i = of[k, j],
    read from token k mod n; softmax over k."""
    (n, _), held, (core, bias), (read_out, shift) = parts.given, len(scores), table, last
    anchors = [f"anchor {k}" for k in range(len(core))]
    laid, y = (
        Layout({name: 1 for name in layout}, anchors),
        Layout({"y": parts.made[1]}, data_tokens(parts.made[0])),
    )
    taken = np.repeat(np.arange(len(core)), core.shape[1]) % n * held + of
    at = np.arange(core.size)
    return {
        "lay out": build.blocks(parts.given, centre, ones=scores.shape[1] - math.prod(parts.given)),
        "scores": build.uniform("scores", scores, Layout({"s": held}, data_tokens(n))),
        "table": build.map(core.reshape(-1), bias.reshape(-1), ((n, held), core.shape), (at, taken), laid),
        "softmax": Softmax(-2, laid),
        "read out": build.map(read_out, shift, (core.shape, parts.made), (np.arange(len(read_out)), at), y),
    }


_NEURONS: dict[tuple[str, str], Callable[[Builder, Parts, Neurons], Steps]] = {
    ("one-head", ""): one_head,
    ("many-heads", ""): many_heads,
    ("two-layer", "tokens"): neurons_as_tokens,
    ("two-layer", "heads"): neurons_as_heads,
    ("attention-softmax", ""): neurons_as_columns,
}
_LOOKUPS: dict[str, Callable[[Builder, Parts, Lookup], Steps]] = {
    "two-layer": lookup_as_head,
    "attention-softmax": lookup_as_column,
}
