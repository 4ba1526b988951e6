"""Networks layer by layer, and heads, as self-attention over [data tokens; anchor tokens] with a residual stream.

    register         in a data token              in an anchor token
    data             1                            0
    anchor           0                            1
    one              1                            0
    position         one-hot, its place           0          if a reshape moves numbers between tokens, or a token attends to itself
    x                the input                    0
    v3, …, y         a bias, later the value      0          a register for each value of the program that is kept
    layer 1: slope, offset, value   0             κ, c, v    keys and values of a layer

In W2 f(W1 x + b1) + b2 neuron j is one head. Its query is (a(w_j·x + b_j) + o, 1, -M): w_j reads the register of x, b_j comes
from `data` and o from `one`. The key of an anchor is (κ, c, 0), of a data token (0, 0, 1); so a data token scores κs + c with
anchors and -M with data tokens. The value is v, and W_O^j, column j of W2, adds to the register that starts at b2. The query of an
anchor is (0, 0, M): it attends to data tokens alone, whose v is 0, and never changes. M exceeds every score on the certified
interval by so much that exp underflows to exactly 0. The heads of a group share W_K and W_V.

An affine map between two layers of attention is part of W_O of the first; the queries of the second then read single
coordinates. No register is written twice: at the end the stream holds every value.

A head that attends to itself (design 'gated') has n more columns: q = M·position, k = position. A data token then scores
-M + M = 0 with itself, and the keys of the other anchors are shifted by the key of the own token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attnc.domain import Box, Interval
from attnc.errors import InputError
from attnc.network.literal.builder import Builder, data_tokens, head_names, largest_score
from attnc.network.literal.layout import Layout
from attnc.network.literal.network import Input, Output, Plan, SelfAttentionNetwork
from attnc.network.literal.parts import Group, array
from attnc.network.literal.steps import Embedding, SelfAttention, SequenceMap, Step
from attnc.network.stages import AffineMap, AttentionLayer, Combination, Reordering, Scaling, StageModule
from attnc.records.numbers import Array, HeadNumbers

if TYPE_CHECKING:
    from attnc.network.head import Head
    from attnc.network.network import Network

Shape = tuple[int, ...]


def literal_layers(net: Network, n: int | None) -> SelfAttentionNetwork:
    """A network layer by layer."""
    shapes = _over_tokens(net.program.shapes, n)
    stages = [stage for stage in net.stages if isinstance(stage, StageModule)]
    steps = net.program.steps
    names = [getattr(stage, "name", steps[stage.value - 1].name) or "" for stage in stages]
    build = _Layers(stages, names, shapes, net.numbers().dtype)
    known = net.certificate is not None or net.measured is not None
    input, output = Input("x", shapes[0], shapes[0][-1]), Output(build.register[len(steps)], shapes[-1])
    return build.network("layers", input, output, net.domain if known else None, net.strict, net)


def literal_head(head: Head, n: int) -> SelfAttentionNetwork:
    """A head over n data tokens: inputs (…, n), outputs (…, n)."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(
            f"as_self_attention(n): n must be an integer >= 1, the number of data tokens: got {n!r}"
        )
    domain = head.domain or Interval(-1.0, 1.0)
    layer = AttentionLayer(0, 1, [(None, head)], "head")
    build = _Layers([layer], ["head"], [(n, 1), (n, 1)], head.numbers().dtype, domain)
    return build.network("head", Input("x", (n,), 1), Output("y", (n,)), head.domain, head.strict, head)


@dataclass(frozen=True)
class _Keys:
    """One set of keys and values: those of head h of a group of neurons, and M."""

    numbers: HeadNumbers
    h: int
    neurons: Sequence[int]
    distance: float
    own: Sequence[int]  # the key of the token itself, if it is gated


class _Layers:
    """Registers for the values that are kept, and the affine maps that become part of the matrices of a layer."""

    def __init__(
        self, stages: Sequence[StageModule], names: Sequence[str], shapes: Sequence[Shape], dtype: str,
        domain: Interval | None = None,
    ) -> None:  # fmt: skip
        self.stages, self.shapes, self.domain = stages, shapes, domain
        self.names = _distinct(stages, names)
        self.build = Builder("layers", dtype)
        self.before, self.after = _folds(stages)
        within = [*self.before.values(), *self.after.values()]
        maps = [s for s in stages if not isinstance(s, AttentionLayer | Reordering)]
        self.alone = [stage for stage in maps if stage not in within]
        self.routes = {s.value: self._routes(s) for s in stages if isinstance(s, Reordering)}
        self.keys = {s.value: list(self._keys(s)) for s in stages if isinstance(s, AttentionLayer)}
        every = [k for keys in self.keys.values() for k in keys]
        self.n = max(_tokens(shape) for shape in shapes)
        self.p = max([k.numbers.anchors_per_head for k in every], default=1)
        self.layout = Layout(
            {"data": 1, "anchor": 1, "one": 1},
            [*data_tokens(self.n), *(f"anchor {k}" for k in range(self.p))],
        )
        self.gated = any(k.own for k in every)
        if self.gated or any(self.routes.values()):
            self.layout.add("position", self.n)
        self.register = self._registers()
        for value, keys in self.keys.items():
            for what in ("slope", "offset", "value"):
                self.layout.add(f"{self.names[value]}: {what}", len(keys))

    def _registers(self) -> dict[int, str]:
        """The register of every value that is kept."""
        inside = {*self.after, *(stage.value for stage in self.before.values())}
        found, last = {0: "x"}, self.stages[-1].value if self.stages else 0
        self.layout.add("x", self.shapes[0][-1])
        for stage in self.stages:
            if self.routes.get(stage.value) == []:
                found[stage.value] = found[stage.inputs[0]]
            elif stage.value not in inside:
                found[stage.value] = "y" if stage.value == last else f"v{stage.value}"
                self.layout.add(found[stage.value], self.shapes[stage.value][-1])
        return found

    def network(
        self, form: str, input: Input, output: Output, domain: Interval | Box | None, strict: bool | None,
        source: Head | Network,
    ) -> SelfAttentionNetwork:  # fmt: skip
        steps, tokens, used = dict(self.steps()), self.start(), math.prod(input.shape) // input.width  # type: ignore[arg-type]
        weight = np.zeros((input.width, self.layout.width))
        weight[:, self.layout["x"]] = np.eye(input.width)
        embedding = Embedding("data", [0], weight, tokens[:used], self.build.dtype)
        order = tuple((name, i) for i, name in enumerate(steps))
        plan = Plan(
            form, (input,), [embedding], tokens[used:], list(steps.values()), order, output, self.build.dtype, self.layout,
            domain=domain, strict=strict,
        )  # fmt: skip
        return SelfAttentionNetwork(plan).to(next(source.parameters()).device)

    def start(self) -> Array:
        """The tokens without an input: flags and biases in data tokens, keys and values in anchors."""
        tokens = np.zeros((self.n + self.p, self.layout.width))
        data, anchors, at = tokens[: self.n], tokens[self.n :], self.layout
        data[:, at["data"]] = data[:, at["one"]] = anchors[:, at["anchor"]] = 1.0
        if "position" in at:
            data[:, at["position"]] = np.eye(self.n)
        for stage in self.stages:
            constant = getattr(stage, "bias" if isinstance(stage, AffineMap) else "shift", None)
            if stage.value in self.register and constant is not None:
                data[:, at[self.register[stage.value]]] = array(constant)
        for value, keys in self.keys.items():
            slope, offset, output = (
                at[f"{self.names[value]}: {what}"].start for what in ("slope", "offset", "value")
            )
            for i, k in enumerate(keys):
                own = k.numbers.anchors_per_head
                anchors[:own, [slope + i, offset + i]] = k.numbers.key[k.h]
                anchors[:own, output + i] = k.numbers.value[k.h, :, 1]
                anchors[own:, offset + i] = -k.distance  # anchors of other layers have a weight of exactly 0
                anchors[k.own, offset + i] = -2 * k.distance
        return tokens

    def steps(self) -> Iterator[tuple[str, Step]]:
        for stage in self.stages:
            name = self.names[stage.value]
            if isinstance(stage, AttentionLayer):
                yield name, self._attention(stage, name)
            elif isinstance(stage, Reordering) and self.routes[stage.value]:
                yield name, self._routing(stage, name)
            elif isinstance(stage, AffineMap | Scaling | Combination) and stage in self.alone:
                yield name, self._token_map(stage)

    def _attention(self, layer: AttentionLayer, name: str) -> SelfAttention:
        """A head for every neuron (and every head of its anchors); heads that share keys are neighbours."""
        keys, at = self.keys[layer.value], self.layout
        before, after = self.before.get(layer.value), self.after.get(layer.value)
        read = at[self.register[before.inputs[0] if before else layer.inputs[0]]]
        write = at[self.register[after.value if after else layer.value]]
        shared = np.repeat(np.arange(len(keys)), [len(k.neurons) for k in keys])
        found = self.build.matrices(
            self.n + self.p, len(shared), len(keys), at.width, 3 + self.gated * self.n, 1, at.width
        )
        rows = np.eye(read.stop - read.start) if before is None else array(before.weight)
        bias = np.zeros(len(rows)) if before is None or before.bias is None else array(before.bias)
        columns = np.eye(write.stop - write.start) if after is None else array(after.weight)
        data, anchor, one = (at[flag].start for flag in ("data", "anchor", "one"))
        slope, offset, value = (at[f"{name}: {what}"].start for what in ("slope", "offset", "value"))
        for i, k in enumerate(keys):
            heads, neurons, (gain, shift) = (
                np.flatnonzero(shared == i),
                np.array(k.neurons),
                k.numbers.query[k.h],
            )
            w_q, w_k, w_v = found["W_Q"], found["W_K"][i], found["W_V"][i]
            w_q[heads, read, 0] = gain * rows[neurons]
            w_q[heads, data, 0] = gain * bias[neurons]
            w_q[heads, one, 0] = shift
            w_q[heads, data, 1:3] = (1.0, -k.distance)
            w_q[heads, anchor, 2] = k.distance
            w_k[[slope + i, offset + i, data], [0, 1, 2]] = 1.0
            w_v[value + i, 0] = 1.0
            found["W_O"][heads, 0, write] = k.numbers.output[k.h] * columns[:, neurons].T
            if k.own:
                w_q[heads, at["position"], 3:] = k.distance * np.eye(self.n)
                w_k[at["position"], 3:] = np.eye(self.n)
                w_v[read.start, 0] = k.numbers.value[k.h, k.own[0], 0]
        many = {id(k.numbers): k.numbers.heads for k in keys}
        names = [head_names(f"{name}: neuron {j}", many[id(k.numbers)])[k.h] for k in keys for j in k.neurons]
        return self.build.attention(found, shared.tolist(), names, at)

    def _routing(self, stage: Reordering, name: str) -> SelfAttention:
        """A head for every pair of tokens: the target attends to the source alone, all others to anchors, which hold 0.

        q = M(position_t, data + anchor - position_t)      k = (position_s, anchor)"""
        routes, (source, target) = self.routes[stage.value], (stage.inputs[0], stage.value)
        count, widest, at = len(routes), max(j - i for i, j in routes), self.layout
        found = self.build.matrices(self.n + self.p, count, count, at.width, 2, widest, at.width)
        data, anchor, place = (at[flag].start for flag in ("data", "anchor", "position"))
        names = []
        for h, (i, j) in enumerate(routes):
            (s, read), (t, write) = (divmod(i, self.shapes[value][-1]) for value in (source, target))
            found["W_Q"][h, [data, anchor], 1] = 1.0
            found["W_Q"][h, place + t] = (1.0, -1.0)
            found["W_K"][h, [place + s, anchor], [0, 1]] = 1.0
            across = np.arange(j - i)
            found["W_V"][h, at[self.register[source]].start + read + across, across] = 1.0
            found["W_O"][h, across, at[self.register[target]].start + write + across] = 1.0
            names.append(f"{name}: data {s} to data {t}")
        found["W_Q"] *= self.build.distance(0.0)
        return self.build.attention(found, range(count), names, at)

    def _token_map(self, stage: AffineMap | Scaling | Combination) -> SequenceMap:
        """The registers of the inputs, carried to that of the value, which starts at the constants."""
        write = self.layout[self.register[stage.value]]
        match stage:
            case AffineMap():
                blocks = [array(stage.weight)]
            case Scaling():
                blocks = [np.diag(array(stage.scale))]
            case Combination():
                blocks = [c * np.eye(write.stop - write.start) for c in stage.coefficients]
        width = self.layout.width
        self.build.reserve(width**2, "a map")
        matrix = np.zeros((width, width))
        for value, block in zip(stage.inputs, blocks, strict=True):
            matrix[write, self.layout[self.register[value]]] += block
        at = np.flatnonzero(matrix.any(1)), np.flatnonzero(matrix.any(0))
        return self.build.map(matrix[np.ix_(*at)], np.zeros(width), ((1, width), (1, width)), at, self.layout)

    def _keys(self, layer: AttentionLayer) -> Iterator[_Keys]:
        for neurons, head in layer.groups:
            numbers, domain = head.numbers(), head.domain or self.domain
            if domain is None or (numbers.gated and self.domain is None):
                reason = "an unknown interval" if domain is None else "the design 'gated'"
                raise InputError(f"{layer.name}: a head with {reason} cannot be written as self-attention")
            numbers = _own_score_zero(numbers)
            group = Group(numbers, np.zeros(0, np.int64), domain.lo, domain.hi)
            listed = range(self.shapes[layer.value][-1]) if neurons is None else neurons.tolist()
            for h in range(numbers.heads):
                own = np.flatnonzero(numbers.value[h, :, 0]).tolist()
                if len(own) > 1:
                    raise InputError("a token can attend to itself once: this head has several keys for it")
                yield _Keys(numbers, h, listed, self.build.distance(largest_score(group, group, h)), own)

    def _routes(self, stage: Reordering) -> list[tuple[int, int]]:
        """Stretches [i, j) of the numbers that lie in one token before and after a reshape; none if tokens stay."""
        end = math.prod(self.shapes[stage.value])
        a, b = (self.shapes[value][-1] for value in (stage.inputs[0], stage.value))
        return [] if a == b else list(pairwise(sorted({*range(0, end, a), *range(0, end, b), end})))


def _own_score_zero(numbers: HeadNumbers) -> HeadNumbers:
    """The scores of a gated head minus the score of the own key: softmax is the same, and the own score is 0."""
    if not numbers.gated:
        return numbers
    key = numbers.key.copy()
    for h in range(numbers.heads):
        own = np.flatnonzero(numbers.value[h, :, 0])
        if len(own) == 1:
            key[h] -= key[h, own[0]]
    rounded = key.astype(numbers.dtype).astype(np.float64)
    return HeadNumbers(numbers.query, rounded, numbers.value, numbers.output, numbers.dtype)


def _distinct(stages: Sequence[StageModule], names: Sequence[str]) -> dict[int, str]:
    """The names of the stages by their value; a name that occurs again gets the number of the value."""
    found: dict[int, str] = {}
    for stage, name in zip(stages, names, strict=True):
        found[stage.value] = name if name and name not in found.values() else f"{name} v{stage.value}".strip()
    return found


def _folds(stages: Sequence[StageModule]) -> tuple[dict[int, AffineMap], dict[int, AffineMap]]:
    """By the value of a layer of attention: the map before it that has no other reader, for W_Q, and the map after it that is
    its only reader, for W_O."""
    before: dict[int, AffineMap] = {}
    after: dict[int, AffineMap] = {}
    by_value = {stage.value: stage for stage in stages}
    for layer in (stage for stage in stages if isinstance(stage, AttentionLayer)):
        source = by_value.get(layer.inputs[0])
        alone = sum(layer.inputs[0] in stage.inputs for stage in stages) == 1
        if isinstance(source, AffineMap) and alone and source not in after.values():
            before[layer.value] = source
        behind = [stage for stage in stages if layer.value in stage.inputs]
        if len(behind) == 1 and isinstance(behind[0], AffineMap):
            after[layer.value] = behind[0]
    return before, after


def _over_tokens(shapes: Sequence[Shape], n: int | None) -> list[Shape]:
    """The shapes of the values, with an axis of n data tokens if n is given and they have none."""
    if n is None or (_tokens(shapes[0]) == n and len(shapes[0]) > 1):
        return list(shapes)
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(
            f"as_self_attention(n): n must be an integer >= 1, the number of data tokens: got {n!r}"
        )
    if any(len(shape) > 1 for shape in shapes):
        raise InputError(
            f"inputs of the shape {shapes[0]} have {_tokens(shapes[0])} data tokens already: got n={n}; leave n out"
        )
    return [(n, *shape) for shape in shapes]


def _tokens(shape: Shape) -> int:
    return math.prod(shape[:-1])
