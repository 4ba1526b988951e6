"""A∘Softmax∘A∘Attn∘A: one layer of attention with scores 0, which is linear, and one softmax over anchors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnc.network.forms.builder import Builder, largest_score
from attnc.network.forms.parts import Lookup, Neurons, Parts
from attnc.network.forms.steps import ColumnSoftmax, Step
from attnc.records.layers import Index
from attnc.records.numbers import Array


def neurons(make: Builder, parts: Parts, body: Neurons) -> list[Step]:
    """Every token holds x_j = a s_j + o; a map makes of it the scores κ_k x_j + c_k, (p, N); softmax over k; a map reads

        vec(Y) = Σ_jk second_j v_k softmax(scores)_kj + shift.

    A neuron with several heads has a column for each; the rows that a group of fewer anchors leaves score -M."""
    columns = [
        (group, h, j) for group in body.groups for h in range(group.numbers.heads) for j in group.neurons
    ]
    p, wide = max(group.numbers.anchors_per_head for group in body.groups), len(columns)
    scores = make.zeros("the scores", wide, body.first.shape[1] + 1)
    core, bias = (make.zeros("the scores", p, wide) for _ in range(2))
    read = make.zeros("read out", len(body.second), p, wide)
    for i, (group, h, j) in enumerate(columns):
        numbers, own = group.numbers, group.numbers.anchors_per_head
        gain, offset = numbers.query[h]
        scores[i] = [*(gain * body.first[j]), gain * body.offset[j] + offset]
        core[:own, i], bias[:own, i] = numbers.key[h].T
        if own < p:
            bias[own:, i] = -make.distance(largest_score(group, group, h))
        read[:, :own, i] = np.outer(body.second[:, j], numbers.output[h] * numbers.value[h, :, 1])
    table = _Table(core, bias, of=np.tile(np.arange(wide), p))
    return _steps(make, parts, scores, table, (read.reshape(len(read), -1), body.shift), None)


def lookup(make: Builder, parts: Parts, body: Lookup) -> list[Step]:
    """Every token holds z_k = key_k·(vec(X) - centre) + offset_k; a map lays them out as a column; softmax; a map reads

    vec(Y) = Σ_k values_k softmax(z)_k."""
    count = len(body.key)
    make.room(body.key.size + count, "the scores")
    table = _Table(np.ones((count, 1)), make.zeros("the scores", count, 1), np.arange(count))
    return _steps(make, parts, np.c_[body.key, body.offset], table, (body.second, body.shift), body.centre)


@dataclass(frozen=True, eq=False)
class _Table:
    """The matrix whose columns get a softmax: entry (k, j) is core_kj x_i + bias_kj with i = of[k, j]; a token holds x."""

    core: Array  # (anchors, columns)
    bias: Array
    of: Index  # row by row


def _steps(
    make: Builder, parts: Parts, scores: Array, table: _Table, last: tuple[Array, Array], centre: Array | None
) -> list[Step]:
    """Every token holds x = scores·(vec(X) - centre, 1); row k of the table takes it from token k mod n."""
    n, held, shape = parts.given[0], len(scores), table.core.shape
    taken = np.repeat(np.arange(shape[0]), shape[1]) % n * held + table.of
    at, (read, shift) = np.arange(table.core.size), last
    lay = make.blocks("lay out", parts.given, centre, one=True)
    attention = make.uniform("scores", n, scores)
    laid = make.map("table", table.core.reshape(-1), table.bias.reshape(-1), ((n, held), shape), (at, taken))
    out = make.map("read out", read, shift, (shape, parts.made), (np.arange(len(read)), at))
    return [lay, attention, laid, ColumnSoftmax("softmax"), out]
