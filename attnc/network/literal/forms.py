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

from attnc.arguments import checked_choice
from attnc.domain import Box
from attnc.errors import InputError
from attnc.network.literal.builder import Builder, KeySet, head_names, largest_score
from attnc.network.literal.network import SelfAttentionNetwork
from attnc.network.literal.parts import Group, Parts, read
from attnc.network.literal.steps import Input, Layout, Softmax, Step, data_tokens
from attnc.records.layers import Index
from attnc.records.numbers import Array

if TYPE_CHECKING:
    from attnc.network.network import Network

Steps = list[tuple[str, Step]]


def literal_form(net: Network) -> SelfAttentionNetwork:
    """The network as the composition that its form names, with exactly the layers of the theorem."""
    checked_choice("form", net.form, list(dict.fromkeys(form for form, _ in _NEURONS)))
    parts, arrangement = read(net), net.layout if net.form == "two-layer" else ""
    build, domain = Builder(net.form, parts.dtype), net.certificate.holds_for
    if parts.groups:
        checked_choice("layout", arrangement, [layout for form, layout in _NEURONS if form == net.form])
        steps = _NEURONS[net.form, arrangement](build, parts)
    elif net.form in _LOOKUPS:
        arrangement, steps = "", _LOOKUPS[net.form](build, parts)
    else:
        raise InputError(f"form {net.form!r} needs neurons: use {' or '.join(map(repr, _LOOKUPS))}")
    literal = SelfAttentionNetwork(
        net.form, [Input("x", parts.shape, parts.shape[-1])], steps,
        Layout({"x": parts.given[1]}, data_tokens(parts.given[0])), (None, parts.result, 0), parts.dtype,
        arrangement=arrangement, domain=domain if isinstance(domain, Box) else None, strict=net.strict,
        source=net.record(), encoding=_encoding(parts),
    )  # fmt: skip
    return literal.to(next(net.parameters()).device)


def _encoding(parts: Parts) -> float:
    """At least what the rounding of products in the last map or W_O, such as second·v, changes in exact arithmetic."""
    sizes = np.ones(parts.second.shape[1])
    for group in parts.groups:
        sizes[group.neurons] = np.abs(group.numbers.value).max() * group.numbers.heads
    rows = np.abs(parts.second) @ sizes + np.abs(parts.shift)
    return float(4 * np.finfo(parts.dtype).eps * rows.max())


def _anchor_layer(
    build: Builder, parts: Parts, s: tuple[Array, Array], of: list[int], sets: list[tuple[Group, Array]]
) -> Steps:
    """Token i becomes g(s_i)·row; (g, row) is number of[i] of `sets`; s = first·vec(X) + offset.

        register       in data token i               in an anchor of set c
        s              s_i at the head of its set    0
        set            one-hot, its set              0
        hidden         1 for every set               1 for every set but c
        slope, offset, value of each head: 0         κ, c, v·row

    q = (a s + o, 1)   k = (κ, c): an anchor of the own set scores κ(a s + o) + c; gates close the data tokens and the anchors of
    the other sets. An anchor has the query 0, and its result is not read."""
    tokens, count, heads = len(of), len(sets), max(group.numbers.heads for group, _ in sets)
    alike = list(dict.fromkeys(id(group.numbers) for group, _ in sets))
    kind = [alike.index(id(group.numbers)) for group, _ in sets]
    e, anchors = len(sets[0][1]), np.repeat(np.arange(count), [g.numbers.anchors_per_head for g, _ in sets])
    names = [f"anchor {k}" + f" of set {c}" * (count > 1) for k, c in enumerate(anchors)]
    layout = Layout({"s": len(alike), "set": count, "hidden": count}, [*data_tokens(tokens), *names])
    for h in range(heads):
        for what, size in (("slope", 1), ("offset", 1), ("value", e)):
            layout.add(f"{what} {h}", size)
    start = build.zeros("the tokens", len(layout.tokens), layout.width)
    at, of_token = np.arange(tokens), np.array([kind[c] for c in of])
    start[at, of_token], start[at, layout["set"].start + np.array(of)] = s[1], 1.0
    start[:, layout["hidden"]] = 1.0
    start[tokens + np.arange(len(anchors)), layout["hidden"].start + anchors] = 0.0
    found = []
    for h in range(heads):
        here = [(c, group, row) for c, (group, row) in enumerate(sets) if h < group.numbers.heads]
        query = np.zeros((layout.width, 2))
        query[layout["set"], 1] = 1.0
        for c, group, row in here:
            numbers, rows = group.numbers, tokens + np.flatnonzero(anchors == c)
            start[rows, layout[f"slope {h}"].start : layout[f"offset {h}"].stop] = numbers.key[h]
            start[rows, layout[f"value {h}"]] = np.outer(numbers.output[h] * numbers.value[h, :, 1], row)
            query[kind[c], 0], query[layout["set"].start + c, 0] = numbers.query[h]
        pairs = [(a, b.numbers.key[h]) for _, a, _ in here for _, b, _ in here]
        top = max(largest_score(a.numbers, h, a.lo, a.hi, key) for a, key in pairs)
        gates = [(layout.form("set", c), layout.form("hidden", c)) for c in range(count)]
        key = np.c_[layout.block(f"slope {h}"), layout.block(f"offset {h}")]
        name, value = head_names("anchors", heads)[h], layout.block(f"value {h}")
        found.append(KeySet.single(name, query, key, value, np.eye(e), gates, top))
    where = (at * layout.width + of_token, np.arange(math.prod(parts.given)))
    lay = build.map(s[0], start.reshape(-1), (parts.given, start.shape), where, layout)
    attend = build.attention(found, len(start), Layout({"y": e}, layout.tokens))
    return [("lay out", lay), ("anchors", attend)]


def one_head(build: Builder, parts: Parts) -> Steps:
    """One head over n data tokens and copies of the anchors: token i becomes g(s_i) e_{k_i}.

    Each output coordinate has its own copy of the anchors, with the values v e_k; token i sees that of its coordinate."""
    heads = max(group.numbers.heads for group in parts.groups)
    if heads > 1:
        raise InputError(f"form 'one-head' has one head, this network {heads}: use form='many-heads'")
    neurons, rows = _placement(parts)
    group_of, sets = parts.group_of, dict[tuple[int, bytes], tuple[Group, Array]]()
    of = []
    for j, row in zip(neurons, rows, strict=True):
        wanted = (group_of[j], row.tobytes())
        sets.setdefault(wanted, (parts.groups[group_of[j]], row))
        of.append(list(sets).index(wanted))
    s = parts.first[neurons], parts.offset[neurons]
    return _anchor_layer(build, parts, s, of, list(sets.values()))


def many_heads(build: Builder, parts: Parts) -> Steps:
    """H heads over the n data tokens alone. Token k carries anchor k of every head:

        token k = (s_k, 1, e_k)     q^h = (a_h s + o_h, 1)     k^h = Σ_k position_k (κ_k^h, c_k^h)     v^h = Σ_k position_k v_k^h

    so a score is κ_k^h (a_h s_i + o_h) + c_k^h and does not depend on the input that token k holds."""
    (n, _), (out_tokens, width) = parts.given, parts.made
    group, numbers, p = parts.groups[0], parts.groups[0].numbers, parts.groups[0].numbers.anchors_per_head
    neurons, rows = _placement(parts)
    if len(parts.groups) > 1 or (rows != rows[0]).any():
        what = "keys and values" if len(parts.groups) > 1 else "an output coordinate"
        raise InputError(f"in the form 'many-heads' all tokens share {what}: use form='one-head'")
    if out_tokens != n or p > n:
        raise InputError(
            f"form 'many-heads': {p} anchors, {out_tokens} outputs, {n} tokens: use form='one-head'"
        )
    layout = Layout({"s": 1, "one": 1, "position": n}, data_tokens(n))
    start = build.zeros("the tokens", n, layout.width)
    start[:, 0], start[:, 1], start[:, 2:] = parts.offset[neurons], 1.0, np.eye(n)
    found, one = [], layout.form("one")
    unused = layout.block("position")[:, p:].sum(1)  # these tokens are no anchors: their weight is exactly 0
    for h, name in enumerate(head_names("anchors", numbers.heads)):
        query = np.stack([numbers.query[h, 0] * layout.form("s") + numbers.query[h, 1] * one, one], 1)
        key, value = np.zeros((layout.width, 2)), np.zeros((layout.width, 1))
        key[2 : 2 + p], value[2 : 2 + p, 0] = numbers.key[h], numbers.value[h, :, 1]
        out, top = numbers.output[h] * rows[:1], largest_score(numbers, h, group.lo, group.hi)
        found.append(KeySet.single(name, query, key, value, out, [(one, unused)] * (p < n), top))
    at = (np.arange(n) * layout.width, np.arange(parts.first.shape[1]))
    lay = build.map(parts.first[neurons], start.reshape(-1), (parts.given, start.shape), at, layout)
    return [("lay out", lay), ("anchors", build.attention(found, n, Layout({"y": width}, data_tokens(n))))]


def _placement(parts: Parts) -> tuple[list[int], Array]:
    """For every output token the one neuron that it gets, and the row that the neuron is multiplied by."""
    tokens, width = parts.made
    if parts.shift.any():
        raise InputError("a network of one layer of attention has no bias behind it: use form='two-layer'")
    second = parts.second.reshape(tokens, width, -1)
    used: NDArray[np.bool_] = np.abs(second).max(1) > 0
    if (used.sum(1) > 1).any():
        i = int(np.argmax(used.sum(1)))
        raise InputError(f"output token {i} gets {int(used[i].sum())} neurons: use form='two-layer'")
    neurons = used.argmax(1)
    rows: Array = second[np.arange(tokens), :, neurons] + 0.0  # never -0: their bytes are compared
    return neurons.tolist(), rows


def neurons_as_tokens(build: Builder, parts: Parts) -> Steps:
    """Layer 1 turns neuron token j into g(s_j); a map writes it into coordinate j; layer 2 adds up: Σ_j second_j g(s_j)."""
    count = len(parts.first)
    sets = [(group, np.ones(1)) for group in parts.groups]
    layers = _anchor_layer(build, parts, (parts.first, parts.offset), parts.group_of, sets)
    each, names = np.arange(count), [f"neuron {j}" for j in range(count)]
    shapes, at = ((len(layers[0][1].layout.tokens), 1), (count, count)), (each * (count + 1), each)
    zeros, layout = build.zeros("spread", count * count), Layout({"neuron": count}, names)
    spread = build.map(np.ones(count), zeros, shapes, at, layout)
    add = build.uniform("sum", parts.second, Layout({"y": len(parts.second)}, names))
    return [*layers, ("spread", spread), ("sum", add), ("keep", build.keep(count, parts.shift, parts.made))]


def neurons_as_heads(build: Builder, parts: Parts) -> Steps:
    """Layer 1 gathers vec(X) in every token; a map adds anchor tokens; layer 2 has a head for every neuron, W_O^j = second_j."""
    p = max(group.numbers.anchors_per_head for group in parts.groups)
    kinds = ("slope", "offset", "value", "unused")
    registers = {f"{what} {i}": 1 for i in range(len(parts.keys)) for what in kinds}
    anchors = build.zeros("the anchors", p, len(registers))
    for i, (group, h) in enumerate(parts.keys):
        own = group.numbers.anchors_per_head
        anchors[:own, 4 * i : 4 * i + 3] = np.c_[group.numbers.key[h], group.numbers.value[h, :, 1]]
        anchors[own:, 4 * i + 3] = 1.0
    gather, layout = _gathered(build, parts, anchors, registers)
    found, data = [], layout.form("one")
    for i, (group, h) in enumerate(parts.keys):
        numbers, neurons = group.numbers, group.neurons
        query = np.zeros((len(neurons), layout.width, 2))
        (gain, offset), one = numbers.query[h], layout["one"].start
        query[:, layout["x"], 0], query[:, one, 0] = gain * parts.first[neurons], gain * parts.offset[neurons]
        query[:, one + 1, 0], query[:, one, 1] = offset, 1.0
        key = np.c_[layout.form(f"slope {i}"), layout.form(f"offset {i}")]
        gates = [(data, data + layout.form(f"unused {i}"))]
        out = numbers.output[h] * parts.second[:, neurons].T[:, None]
        top = largest_score(numbers, h, group.lo, group.hi)
        names = [head_names(f"neuron {j}", numbers.heads)[h] for j in neurons]
        found.append(KeySet(names, query, key, layout.block(f"value {i}"), out, gates, top))
    return [*gather, *_attended(build, parts, found, layout)]


def lookup_as_head(build: Builder, parts: Parts) -> Steps:
    """Layer 1 gathers vec(X) - centre in every token; a map adds K anchor tokens; layer 2 is one head over them.

    q = (vec(X) - centre, 1)     k = (key_k, offset_k) for an anchor; a gate closes the data tokens."""
    inputs, outputs = parts.first.shape[1], len(parts.second)
    build.reserve(len(parts.first) * (inputs + 1 + outputs), "the anchors")
    registers = {"slope": inputs, "offset": 1, "value": outputs}
    anchors = np.c_[parts.first, parts.offset, parts.second.T]
    gather, layout = _gathered(build, parts, anchors, registers)
    data, value = layout.form("one"), layout.block("value")
    query, key = np.c_[layout.block("x"), data], np.c_[layout.block("slope"), layout.block("offset")]
    lookup = KeySet.single("lookup", query, key, value, np.eye(outputs), [(data, data)], parts.largest)
    return [*gather, *_attended(build, parts, [lookup], layout)]


def _attended(build: Builder, parts: Parts, heads: list[KeySet], layout: Layout) -> Steps:
    """Attention, after which every token holds vec(Y) without the shift; each keeps its part."""
    layer = build.attention(heads, len(layout.tokens), Layout({"y": len(parts.second)}, layout.tokens))
    return [("anchors", layer), ("keep", build.keep(len(layout.tokens), parts.shift, parts.made))]


def _gathered(
    build: Builder, parts: Parts, anchors: Array, registers: dict[str, int]
) -> tuple[Steps, Layout]:
    """x_i in block i of token i; equal weights; data tokens (vec(X) - centre, 1, 1, 0) and anchors (0, 0, 0, anchor)."""
    (n, d), tokens = parts.given, parts.made[0]
    inputs = n * d
    names = [*data_tokens(tokens), *(f"anchor {k}" for k in range(len(anchors)))]
    layout = Layout({"x": inputs, "one": 2} | registers, names)
    bias = build.zeros("the tokens", len(names), layout.width)
    bias[:tokens, layout["one"]], bias[tokens:, inputs + 2 :] = 1.0, anchors
    token, coordinate = (index.reshape(-1) for index in np.indices((tokens, inputs)))
    at: tuple[Index, Index] = token * layout.width + coordinate, token % n * inputs + coordinate
    gather = build.uniform("gather", np.eye(inputs), Layout({"x": inputs}, data_tokens(n)))
    beside = build.map(np.ones(len(token)), bias.reshape(-1), ((n, inputs), bias.shape), at, layout)
    lay = build.blocks(parts.given, parts.centre)
    return [("lay out", lay), ("gather", gather), ("anchors beside", beside)], layout


def neurons_as_columns(build: Builder, parts: Parts) -> Steps:
    """Every token holds x_j = a s_j + o; a map turns it into the scores κ_k x_j + c_k, (p, N); softmax over k; a map reads

        vec(Y) = Σ_jk second_j v_k softmax(scores)_kj + shift.

    A neuron with several heads has a column for each; the unused rows of a group with fewer anchors score -M."""
    columns = [(group, h, j) for group, h in parts.keys for j in group.neurons]
    p, wide = max(group.numbers.anchors_per_head for group in parts.groups), len(columns)
    scores = build.zeros("the scores", wide, parts.first.shape[1] + 2)
    core, bias = (build.zeros("the scores", p, wide) for _ in range(2))
    readout = build.zeros("read out", len(parts.second), p, wide)
    for i, (group, h, j) in enumerate(columns):
        numbers, own = group.numbers, group.numbers.anchors_per_head
        gain, offset = numbers.query[h]
        scores[i] = [*(gain * parts.first[j]), gain * parts.offset[j], offset]
        core[:own, i], bias[:own, i] = numbers.key[h].T
        if own < p:
            bias[own:, i] = -build.distance(largest_score(numbers, h, group.lo, group.hi))
        readout[:, :own, i] = np.outer(parts.second[:, j], numbers.output[h] * numbers.value[h, :, 1])
    names = [head_names(f"neuron {j}", group.numbers.heads)[h] for group, h, j in columns]
    last = readout.reshape(len(readout), -1), parts.shift
    return _columns(build, parts, scores, (core, bias), np.tile(np.arange(wide), p), last, names)


def lookup_as_column(build: Builder, parts: Parts) -> Steps:
    """Every token holds z_k = key_k·(vec(X) - centre) + offset_k; a map lays them out as a column; softmax; a map reads

    vec(Y) = Σ_k values_k softmax(z)_k."""
    count = len(parts.first)
    build.reserve(parts.first.size + count, "the scores")
    table = np.ones((count, 1)), build.zeros("the scores", count, 1)
    scores, last = np.c_[parts.first, parts.offset], (parts.second, parts.shift)
    return _columns(build, parts, scores, table, np.arange(count), last, ["lookup"])


def _columns(
    build: Builder, parts: Parts, scores: Array, table: tuple[Array, Array], of: Index, last: tuple[Array, Array],
    names: list[str],
) -> Steps:  # fmt: skip
    """Every token holds x = scores·(vec(X) - centre, 1, …); entry (k, j) of the table is core_kj x_i + bias_kj with i = of[k, j],
    read from token k mod n; softmax over k."""
    (n, _), held, (core, bias), (read_out, shift) = parts.given, len(scores), table, last
    laid = Layout(dict.fromkeys(names, 1), [f"anchor {k}" for k in range(len(core))])
    y = Layout({"y": parts.made[1]}, data_tokens(parts.made[0]))
    taken = np.repeat(np.arange(len(core)), core.shape[1]) % n * held + of
    at, ones = np.arange(core.size), scores.shape[1] - math.prod(parts.given)
    return [
        ("lay out", build.blocks(parts.given, parts.centre, ones)),
        ("scores", build.uniform("scores", scores, Layout({"s": held}, data_tokens(n)))),
        ("table", build.map(core.reshape(-1), bias.reshape(-1), ((n, held), core.shape), (at, taken), laid)),
        ("softmax", Softmax(-2, laid)),
        ("read out", build.map(read_out, shift, (core.shape, parts.made), (np.arange(len(read_out)), at), y)),
    ]


_NEURONS: dict[tuple[str, str], Callable[[Builder, Parts], Steps]] = {
    ("one-head", ""): one_head,
    ("many-heads", ""): many_heads,
    ("two-layer", "tokens"): neurons_as_tokens,
    ("two-layer", "heads"): neurons_as_heads,
    ("attention-softmax", ""): neurons_as_columns,
}
_LOOKUPS: dict[str, Callable[[Builder, Parts], Steps]] = {
    "two-layer": lookup_as_head,
    "attention-softmax": lookup_as_column,
}
