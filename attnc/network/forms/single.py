"""Attn∘A: one layer of attention, and no map behind it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError
from attnc.network.forms.builder import AnchorSet, Builder, anchor_layer, largest_score
from attnc.network.forms.parts import Neurons, Parts
from attnc.network.forms.steps import Step
from attnc.records.numbers import Array


def one_head(make: Builder, parts: Parts, body: Neurons) -> list[Step]:
    """One head over n data tokens and copies of the anchors: token i gets g(s_i) e_{k_i}.

    Each output coordinate has its own copy of the anchors, with the values v e_k; token i sees that of its coordinate."""
    if body.heads > 1:
        raise InputError(
            f"form 'one-head' has one head: this network has {body.heads} for every neuron; use form='many-heads'"
        )
    neurons, rows = _placement(parts, body)
    group_of = {int(j): g for g, group in enumerate(body.groups) for j in group.neurons}
    sets: dict[tuple[int, bytes], AnchorSet] = {}
    of = []
    for j, row in zip(neurons, rows, strict=True):
        group = body.groups[group_of[j]]
        wanted = (group_of[j], row.tobytes())
        sets.setdefault(wanted, AnchorSet(group, row))
        of.append(list(sets).index(wanted))
    s = body.first[neurons], body.offset[neurons]
    return list(anchor_layer(make, s, of, list(sets.values()), parts.given))


def many_heads(make: Builder, parts: Parts, body: Neurons) -> list[Step]:
    """H heads over the n data tokens alone. Token k carries anchor k of every head:

        token k = (s_k, 1, e_k)     q^h = (a_h s + o_h, 1)     k^h = Σ_k position_k (κ_k^h, c_k^h)     v^h = Σ_k position_k v_k^h

    so a score is κ_k^h (a_h s_i + o_h) + c_k^h, whatever token k holds of the input."""
    (n, _), (made_tokens, width) = parts.given, parts.made
    group, numbers, p = body.groups[0], body.groups[0].numbers, body.groups[0].numbers.anchors_per_head
    neurons, rows = _placement(parts, body)
    if len(body.groups) > 1 or (rows != rows[0]).any():
        what = "keys and values" if len(body.groups) > 1 else "an output coordinate"
        raise InputError(
            f"form 'many-heads': all tokens share {what}; use form='one-head', which has room for more"
        )
    if made_tokens != n or p > n:
        raise InputError(
            f"form 'many-heads' has no tokens but the n = {n} of the input, each an anchor of every head: this network has "
            f"{p} anchors in a head and {made_tokens} output tokens; use at most {n} anchors and {n} output tokens, or "
            "form='one-head'"
        )
    size = (n, 2 + n)
    matrices = make.matrices("anchors", n, numbers.heads, numbers.heads, size[1], 2, 1, width)
    start = make.zeros("the tokens", *size)
    start[:, 0], start[:, 1], start[:, 2:] = body.offset[neurons], 1.0, np.eye(n)
    for h in range(numbers.heads):
        matrices["W_Q"][h, :2, 0] = numbers.query[h]
        matrices["W_Q"][h, 1, 1] = 1.0
        matrices["W_K"][h, 2 : 2 + p] = numbers.key[h]
        # tokens that are left over are no anchors: their weight is exactly 0
        matrices["W_K"][h, 2 + p :, 1] = -make.distance(largest_score(group, group, h))
        matrices["W_V"][h, 2 : 2 + p, 0] = numbers.value[h, :, 1]
        matrices["W_O"][h, 0] = numbers.output[h] * rows[0]
    at = (np.arange(n) * size[1], np.arange(body.first.shape[1]))
    lay = make.map("lay out", body.first[neurons], start.reshape(-1), (parts.given, size), at)
    return [lay, make.attention("anchors", matrices, range(numbers.heads))]


def _placement(parts: Parts, body: Neurons) -> tuple[list[int], Array]:
    """For every output token the one neuron that it gets, and the row that the neuron is multiplied by."""
    tokens, width = parts.made
    if body.shift.any():
        raise InputError(
            "a network of one layer of attention has no map behind it that could add a bias: use form='two-layer'"
        )
    second = body.second.reshape(tokens, width, -1)
    used: NDArray[np.bool_] = np.abs(second).max(1) > 0
    if (used.sum(1) > 1).any():
        i = int(np.argmax(used.sum(1)))
        raise InputError(
            f"in a network of one layer of attention every token gets one neuron: output token {i} of {tokens} gets "
            f"{int(used[i].sum())}; use form='two-layer', or an output of the shape (tokens, coordinates)"
        )
    neurons = used.argmax(1)
    rows: Array = second[np.arange(tokens), :, neurons] + 0.0  # never -0: their bytes are compared
    return neurons.tolist(), rows
