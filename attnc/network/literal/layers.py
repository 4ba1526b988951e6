"""Networks layer by layer, and heads, as self-attention over [data tokens; anchor tokens] with a residual stream.

    register         in a data token              in an anchor token
    data             1                            0
    anchor           0                            1
    one              1                            0
    position         one-hot, its place           0          for reshapes, and for tokens that attend to themselves
    x                the input                    0
    v3, …, y         a bias, later the value      0          a register for each value of the program that is kept
    layer 1: slope, offset, value   0             κ, c, v    keys and values of a layer; `unused` is 1 in anchors of other layers

In W2 f(W1 x + b1) + b2 neuron j is one head. Its query is (a(w_j·x + b_j) + o, 1): w_j reads the register of x, b_j comes from
`data` and o from `one`. The key of an anchor is (κ, c), so a data token scores κ(as + o) + c with it; a gate closes the data
tokens. W_O^j, column j of W2, adds the value v to the register that starts at b2. Anchors attend to data tokens alone, whose v is
0. An affine map between two layers of attention is part of W_O of the first. No register is written twice.

In a head that attends to itself (design 'gated') data tokens have a key, and gates close all data tokens but the own one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attnc.arguments import checked_count
from attnc.domain import Box, Interval
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.network.literal.builder import Builder, KeySet, head_names, largest_score
from attnc.network.literal.network import SelfAttentionNetwork
from attnc.network.literal.parts import array, domains_of, groups_of
from attnc.network.literal.steps import (
    Embedding,
    Input,
    Layout,
    SelfAttention,
    SequenceMap,
    Step,
    data_tokens,
)
from attnc.records.layers import Layer, pointwise_layer
from attnc.records.numbers import Array

if TYPE_CHECKING:
    from attnc.network.head import Head
    from attnc.network.network import Network

Shape = tuple[int, ...]
_MISSING = ("attend", "embed", "norm", "product")
_ANCHOR = ("slope", "offset", "value", "unused")


def literal_layers(net: Network, n: int | None) -> SelfAttentionNetwork:
    """A network layer by layer."""
    _check_kinds(net)
    shapes, steps, numbers = _over_tokens(net.program.shapes, n), net.program.steps, net.numbers()
    attention = {layer.value: layer.name for layer in net.layers}
    names = [attention.get(layer.value) or steps[layer.value - 1].name for layer in numbers.layers]
    build = _Layers(numbers.layers, names, shapes, numbers.dtype, domains_of(net))
    output, input = (build.register[len(steps)], shapes[-1]), Input("x", shapes[0], shapes[0][-1])
    return build.network("layers", input, output, net)


def _check_kinds(net: Network) -> None:
    """Raise `UnsupportedError` with the layers that have no literal form yet."""
    missing = [
        s
        for s in net.program.steps
        if s.kind in _MISSING or (s.kind == "scale" and s.tensors()["factor"].ndim > 1)
    ]
    if missing:
        reason = "it has no form with W_Q, W_K, W_V and W_O yet"
        problems = [Problem(step.label, f"{step.kind}: {reason}") for step in missing]
        raise UnsupportedError("the network cannot be written as plain self-attention", problems)


def literal_head(head: Head, n: int) -> SelfAttentionNetwork:
    """A head over n data tokens: inputs (…, n), outputs (…, n)."""
    checked_count("n", n, why="the number of data tokens")
    numbers, domains = head.numbers(), {1: [head.domain or Interval(-1.0, 1.0)]}
    layer = pointwise_layer(0, 1, [(None, numbers)])
    build = _Layers([layer], ["head"], [(n, 1), (n, 1)], numbers.dtype, domains, gated=True)
    return build.network("head", Input("x", (n,), 1), ("y", (n,)), head)


class _Layers:
    """Registers for the values that are kept, and the affine maps that become part of the matrices of a layer."""

    def __init__(
        self, layers: Sequence[Layer], names: Sequence[str], shapes: Sequence[Shape], dtype: str,
        domains: Mapping[int, Sequence[Interval | None]], gated: bool = False,
    ) -> None:  # fmt: skip
        self.layers, self.shapes = layers, shapes
        self.names = _distinct(layers, names)
        self.build = Builder("layers", dtype)
        self.before, self.after = _folds(layers)
        self.routes = {layer.value: self._routes(layer) for layer in layers if layer.kind == "reshape"}
        attention = [layer for layer in layers if layer.kind == "pointwise"]
        self.heads = {a.value: list(groups_of(a, domains[a.value], gated)) for a in attention}
        numbers = [group.numbers for groups in self.heads.values() for group in groups]
        self.n, self.p = max(map(_tokens, shapes)), max([n.anchors_per_head for n in numbers], default=1)
        tokens = [*data_tokens(self.n), *(f"anchor {k}" for k in range(self.p))]
        self.layout = Layout({"data": 1, "anchor": 1, "one": 1}, tokens)
        mixes = any(layer.kind == "mix" for layer in layers)
        if any(n.gated for n in numbers) or any(self.routes.values()) or mixes:
            self.layout.add("position", self.n)
        self.register = self._registers()
        for value, groups in self.heads.items():
            for what in _ANCHOR:
                self.layout.add(f"{self.names[value]}: {what}", sum(g.numbers.heads for g in groups))

    def _registers(self) -> dict[int, str]:
        """The register of every value that is kept."""
        inside = {*self.after, *(layer.value for layer in self.before.values())}
        found, last = {0: "x"}, self.layers[-1].value if self.layers else 0
        self.layout.add("x", self.shapes[0][-1])
        for layer in self.layers:
            if self.routes.get(layer.value) == []:
                found[layer.value] = found[layer.input]
            elif layer.value not in inside:
                found[layer.value] = "y" if layer.value == last else f"v{layer.value}"
                self.layout.add(found[layer.value], self.shapes[layer.value][-1])
        return found

    def network(
        self, form: str, input: Input, output: tuple[str, Shape], source: Head | Network
    ) -> SelfAttentionNetwork:
        steps, tokens, used = list(self.steps()), self.start(), _tokens(self.shapes[0])
        domain = source.certificate.holds_for
        data = Embedding("data", [0], self.layout.block("x").T, tokens[:used], self.build.dtype)
        literal = SelfAttentionNetwork(
            form, [input], steps, self.layout, (*output, 0), self.build.dtype, embeddings=[data], fixed=tokens[used:],
            domain=domain if isinstance(domain, Interval | Box) else None, strict=source.strict, source=source.record(),
        )  # fmt: skip
        return literal.to(next(source.parameters()).device)

    def start(self) -> Array:
        """The tokens without an input: flags and biases in data tokens, keys and values in anchors."""
        tokens, at = np.zeros((self.n + self.p, self.layout.width)), self.layout
        data, anchors = tokens[: self.n], tokens[self.n :]
        data[:, at["data"]] = data[:, at["one"]] = anchors[:, at["anchor"]] = 1.0
        if "position" in at:
            data[:, at["position"]] = np.eye(self.n)
        for layer in self.layers:
            constant = layer.tensors.get("bias", layer.tensors.get("shift"))
            if layer.value in self.register and constant is not None:
                data[:, at[self.register[layer.value]]] = array(constant)
        for value, groups in self.heads.items():
            held = [anchors[:, at[f"{self.names[value]}: {what}"]] for what in _ANCHOR]
            (slope, offset, output, unused), i = held, 0
            for numbers in (group.numbers for group in groups):
                own, here = numbers.anchors_per_head, slice(i, i + numbers.heads)
                slope[:own, here], offset[:own, here] = numbers.key[..., 0].T, numbers.key[..., 1].T
                output[:own, here], unused[:own, here] = numbers.value[..., 1].T, numbers.value[..., 0].T != 0
                unused[own:, here] = 1.0
                i = here.stop
        return tokens

    def steps(self) -> Iterator[tuple[str, Step]]:
        within = [*self.before.values(), *self.after.values()]
        for layer in self.layers:
            name = self.names[layer.value]
            if layer.kind == "pointwise":
                yield name, self._attention(layer, name)
            elif layer.kind == "reshape":
                if self.routes[layer.value]:
                    yield name, self._routing(layer, name)
            elif layer.kind == "mix":
                yield name, self._mixture(layer, name)
            elif layer not in within:
                yield name, self._token_map(layer)

    def _attention(self, layer: Layer, name: str) -> SelfAttention:
        """A head for every neuron (and every head of its anchors)."""
        at, before, after = self.layout, self.before.get(layer.value), self.after.get(layer.value)
        read = at[self.register[before.input if before else layer.input]]
        write = at[self.register[after.value if after else layer.value]]
        rows = np.eye(read.stop - read.start) if before is None else array(before.tensor("weight"))
        none = np.zeros(len(rows))
        bias = none if before is None else array(before.tensors.get("bias", none))
        columns = np.eye(write.stop - write.start) if after is None else array(after.tensor("weight"))
        data, one, anchor, found = at.form("data"), at["one"].start, at.form("anchor"), list[KeySet]()
        for group in self.heads[layer.value]:
            numbers, neurons = group.numbers, group.neurons
            if not len(neurons):
                neurons = np.arange(self.shapes[layer.value][-1])
            for h in range(numbers.heads):
                slope, offset, value, unused = (at.form(f"{name}: {what}", len(found)) for what in _ANCHOR)
                query, out = np.zeros((len(neurons), at.width, 2)), np.zeros((len(neurons), 1, at.width))
                query[:, read, 0] = numbers.query[h, 0] * rows[neurons]
                query[:, at["data"].start, 0] = numbers.query[h, 0] * bias[neurons]
                query[:, one, 0], query[:, at["data"].start, 1] = numbers.query[h, 1], 1.0
                out[:, 0, write] = numbers.output[h] * columns[:, neurons].T
                gates = [(data, data + unused), (anchor, anchor)]
                own = np.flatnonzero(numbers.value[h, :, 0])
                if len(own) > 1:
                    raise InputError("a token can attend to itself once: this head has several keys for it")
                if len(own):
                    places = at.block("position").T
                    gates = [(place, data - place + unused) for place in places] + gates[1:]
                    value[read.start] = numbers.value[h, own[0], 0]
                    kappa, c = numbers.key[h, own[0]]
                    slope, offset = slope + kappa * data, offset + c * data
                names = [head_names(f"{name}: neuron {j}", numbers.heads)[h] for j in neurons]
                top = largest_score(numbers, h, group.lo, group.hi)
                found.append(KeySet(names, query, np.c_[slope, offset], value[:, None], out, gates, top))
        return self.build.attention(found, self.n + self.p, at)

    def _routing(self, layer: Layer, name: str) -> SelfAttention:
        """A head for every pair of tokens: the target attends to the source alone, all others to anchors, which hold 0."""
        at, found, (source, target) = self.layout, [], (layer.input, layer.value)
        data, every, places = at.form("data"), at.marks("data", "anchor"), at.block("position").T
        for i, j in self.routes[layer.value]:
            (s, read), (t, write) = (divmod(i, self.shapes[value][-1]) for value in (source, target))
            value = at.block(self.register[source])[:, read : read + j - i]
            out = at.block(self.register[target])[:, write : write + j - i].T
            gates, none = [(places[t], every - places[s]), (every - places[t], data)], np.zeros((at.width, 0))
            found.append(KeySet.single(f"{name}: data {s} to data {t}", none, none, value, out, gates, 0.0))
        return self.build.attention(found, self.n + self.p, at)

    def _mixture(self, layer: Layer, name: str) -> SelfAttention:
        """A head for every number of the matrix: the target attends to the source alone, all others to anchors, which hold 0."""
        at, found, matrix = self.layout, [], array(layer.tensor("matrix"))
        data, every, places = at.form("data"), at.marks("data", "anchor"), at.block("position").T
        read, write = at.block(self.register[layer.input]), at.block(self.register[layer.value])
        none = np.zeros((at.width, 0))
        for t, s in zip(*np.nonzero(matrix), strict=True):
            gates = [(places[t], every - places[s]), (every - places[t], data)]
            out = matrix[t, s] * write.T
            found.append(KeySet.single(f"{name}: data {s} to data {t}", none, none, read, out, gates, 0.0))
        return self.build.attention(found, self.n + self.p, at)

    def _token_map(self, layer: Layer) -> SequenceMap:
        """The registers of the inputs, carried to that of the value, which starts at the constants."""
        write, width = self.layout[self.register[layer.value]], self.layout.width
        if layer.kind == "affine":
            blocks = [array(layer.tensor("weight"))]
        elif layer.kind in ("batch_norm", "scale"):
            blocks = [np.diag(array(layer.tensor("scale")))]
        elif layer.kind == "combine":
            blocks = [c * np.eye(write.stop - write.start) for c in layer.settings["coefficients"]]
        else:
            raise InputError(f"layers of the kind {layer.kind!r} cannot be written as self-attention")
        self.build.reserve(width**2, "a map")
        matrix = np.zeros((width, width))
        for value, block in zip(layer.inputs, blocks, strict=True):
            matrix[write, self.layout[self.register[value]]] += block
        at = np.flatnonzero(matrix.any(1)), np.flatnonzero(matrix.any(0))
        return self.build.map(matrix[np.ix_(*at)], np.zeros(width), ((1, width), (1, width)), at, self.layout)

    def _routes(self, layer: Layer) -> list[tuple[int, int]]:
        """Stretches [i, j) of the numbers that lie in one token before and after a reshape; none if tokens stay."""
        end = math.prod(self.shapes[layer.value])
        a, b = (self.shapes[value][-1] for value in (layer.input, layer.value))
        return [] if a == b else list(pairwise(sorted({*range(0, end, a), *range(0, end, b), end})))


def _distinct(layers: Sequence[Layer], names: Sequence[str]) -> dict[int, str]:
    """The names of the layers by their value; a name that occurs again gets the number of the value."""
    found: dict[int, str] = {}
    for layer, name in zip(layers, names, strict=True):
        found[layer.value] = name if name and name not in found.values() else f"{name} v{layer.value}".strip()
    return found


def _folds(layers: Sequence[Layer]) -> tuple[dict[int, Layer], dict[int, Layer]]:
    """By the value of a layer of attention: the map before it that has no other reader, for W_Q, and the map after it that is
    its only reader, for W_O."""
    before: dict[int, Layer] = {}
    after: dict[int, Layer] = {}
    by_value = {layer.value: layer for layer in layers}
    for layer in (layer for layer in layers if layer.kind == "pointwise"):
        source = by_value.get(layer.input)
        alone = sum(layer.input in other.inputs for other in layers) == 1
        if source is not None and source.kind == "affine" and alone and source not in after.values():
            before[layer.value] = source
        behind = [other for other in layers if layer.value in other.inputs]
        if len(behind) == 1 and behind[0].kind == "affine":
            after[layer.value] = behind[0]
    return before, after


def _over_tokens(shapes: Sequence[Shape], n: int | None) -> list[Shape]:
    """The shapes of the values, with an axis of n data tokens if n is given and they have none."""
    if n is None or (_tokens(shapes[0]) == n and len(shapes[0]) > 1):
        return list(shapes)
    checked_count("n", n, why="the number of data tokens")
    if any(len(shape) > 1 for shape in shapes):
        raise InputError(f"inputs {shapes[0]} have {_tokens(shapes[0])} data tokens already: leave n={n} out")
    return [(n, *shape) for shape in shapes]


def _tokens(shape: Shape) -> int:
    return math.prod(shape[:-1])
