"""Networks layer by layer, and heads, as self-attention over [data tokens; anchor tokens] with a residual stream.

    register         in a data token              in an anchor token
    data             1                            0
    anchor           0                            1
    one              1                            0
    position         one-hot, its place           0          for reshapes, and for tokens that attend to themselves
    second key       0                            1 in anchor 0, for norms; `mean of d` is 1 in d - 1 anchors
    x                the input                    0          of token ids: no register, the embedding adds to those of the tables
    v3, …, y         a bias, later the value      0          a register for each value of the program that is kept
    layer 1: slope, offset, value   0             κ, c, v    keys and values of a layer; `unused` is 1 in anchors of other layers

In W2 f(W1 x + b1) + b2 neuron j is one head. Its query is (a(w_j·x + b_j) + o, 1): w_j reads the register of x, b_j comes from
`data` and o from `one`. The key of an anchor is (κ, c), so a data token scores κ(as + o) + c with it; a gate closes the data
tokens. W_O^j, column j of W2, adds the value v to the register that starts at b2. Anchors attend to data tokens alone, whose v is
0. An affine map between two layers of attention is part of W_O of the first. No register is written twice.

In a head that attends to itself (design 'gated') data tokens have a key, and the arguments of all neurons as values: W_O^j reads
that of neuron j. Gates close all data tokens but the own one; anchors attend to unused anchors, whose v is 0.
`sequence.py` has the layers of transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attnc.arguments import checked_count
from attnc.domain import Box, Interval
from attnc.errors import InputError
from attnc.network.literal import sequence
from attnc.network.literal.builder import Builder, KeySet, head_names, largest_score
from attnc.network.literal.network import SelfAttentionNetwork
from attnc.network.literal.parts import Group, array, constant_of, domains_of, groups_of, token_maps
from attnc.network.literal.steps import (
    Embedding,
    Input,
    Layout,
    SelfAttention,
    SequenceMap,
    Step,
    data_tokens,
)
from attnc.records.layers import Layer, pointwise_layer, square_of
from attnc.records.numbers import Array
from attnc.records.record import Record

if TYPE_CHECKING:
    from attnc.network.head import Head
    from attnc.network.network import Network

Shape = tuple[int, ...]
_ANCHOR = ("slope", "offset", "value", "unused")
_NEURONS = ("pointwise", "product")  # anchors, a head or more for every neuron
_ROLES = ("queries", "keys", "values")
_HOLDS = {"embed": ": embedding", "norm": ": normalised", "attend": ": attended"}


def literal_layers(net: Network, n: int | None) -> SelfAttentionNetwork:
    """A network layer by layer."""
    steps, numbers, given = net.program.steps, net.numbers(), list(net.program.shapes)
    tables = [len(layer.tensor("table")) for layer in numbers.layers if layer.kind == "embed"]
    input = Input("x", given[0], given[0][-1])
    if tables:
        input = Input("ids", given[0], min(tables), ids=min(tables))
        given[0] = (*given[0], min(tables))
    shapes = _over_tokens(given, n)
    if not tables:
        input = Input("x", shapes[0], shapes[0][-1])
    attention = {layer.value: layer.name for layer in net.layers}
    names = [attention.get(layer.value) or steps[layer.value - 1].name for layer in numbers.layers]
    build = Layers(numbers.layers, names, shapes, numbers.dtype, domains_of(net))
    domain = net.certificate.holds_for
    literal = build.network(
        "layers", input, (build.register[len(steps)], shapes[-1]), domain=domain if isinstance(domain, Box) else None,
        strict=net.strict, source=net.record(),
    )  # fmt: skip
    return literal.to(next(net.parameters()).device)


def literal_head(head: Head, n: int, top: float = 0.0) -> SelfAttentionNetwork:
    """A head over n data tokens: inputs (…, n), outputs (…, n). The gates are made for scores up to `top` at least:
    heads with the same `top`, all scores below it, have the same matrices, and differ in their anchor tokens alone."""
    checked_count("n", n, why="the number of data tokens")
    numbers, domains = head.numbers(), {1: [head.domain or Interval(-1.0, 1.0)]}
    layer = pointwise_layer(0, 1, [(None, numbers)])
    build = Layers([layer], ["head"], [(n, 1), (n, 1)], numbers.dtype, domains, top)
    domain = head.certificate.holds_for
    literal = build.network(
        "head", Input("x", (n,), 1), ("y", (n,)), domain=domain if isinstance(domain, Interval) else None,
        strict=head.strict, source=head.record(),
    )  # fmt: skip
    return literal.to(next(head.parameters()).device)


class Layers:
    """Registers for the values that are kept, and the affine maps that become part of the matrices of a layer."""

    def __init__(
        self, layers: Sequence[Layer], names: Sequence[str], shapes: Sequence[Shape], dtype: str,
        domains: Mapping[int, Sequence[Interval | None]], top: float = 0.0,
    ) -> None:  # fmt: skip
        self.layers, self.shapes, self.build, self.top = layers, shapes, Builder("layers", dtype), top
        self.names: dict[int, str] = {}  # a name that occurs again gets the number of the value
        for layer, name in zip(layers, names, strict=True):
            new = bool(name) and name not in self.names.values()
            kind = layer.kind if layer.kind in ("norm", "attend", "product") else ""
            self.names[layer.value] = name if new else f"{name or kind} v{layer.value}".strip()
        self.before, self.after = _folds(layers)
        self.routes = {layer.value: self._routes(layer) for layer in layers if layer.kind == "reshape"}
        self.heads = {a.value: self._groups(a, domains) for a in layers if a.kind in _NEURONS}
        numbers = [group.numbers for groups in self.heads.values() for group in groups]
        widths = {shapes[a.value][-1] for a in layers if a.kind == "norm" and a.settings["centred"]}
        self.means = sorted(d for d in widths if not sequence.is_exact(d))
        self.n = max(map(_tokens, shapes))
        self.p = max([1, *(n.anchors_per_head for n in numbers), *(d - 1 for d in self.means)])
        tokens, kinds = (
            [*data_tokens(self.n), *(f"anchor {k}" for k in range(self.p))],
            {a.kind for a in layers},
        )
        self.layout = Layout({"data": 1, "anchor": 1, "one": 1}, tokens)
        if any(n.gated for n in numbers) or any(self.routes.values()) or kinds & {"mix", "norm", "attend"}:
            self.layout.add("position", self.n)
        if "norm" in kinds:
            self.layout.add("second key", 1)
        for d in self.means:
            self.layout.add(f"mean of {d}", 1)
        self.register = self._registers()
        for value, groups in self.heads.items():
            for what in _ANCHOR:
                self.layout.add(f"{self.names[value]}: {what}", sum(g.numbers.heads for g in groups))

    def _groups(self, layer: Layer, domains: Mapping[int, Sequence[Interval | None]]) -> list[Group]:
        """The neurons of a layer that share keys and values; a product has two for each of its numbers."""
        width = self.shapes[layer.value][-1]
        if layer.kind == "pointwise":
            return groups_of(layer, domains[layer.value], width, gated=True)
        return [Group(square_of(layer), np.arange(2 * width), -1.0, 1.0)]

    def _registers(self) -> dict[int, str]:
        """The register of every value that is kept."""
        inside = {*self.after, *(layer.value for layer in self.before.values())}
        found, last = dict[int, str](), self.layers[-1].value if self.layers else 0
        roles: dict[int, str] = {}
        for layer in self.layers:
            if layer.kind == "attend":
                for value, role in zip(layer.inputs, _ROLES, strict=True):
                    roles.setdefault(value, f"{self.names[layer.value]}: {role}")
        if not any(layer.kind == "embed" for layer in self.layers):
            found[0] = "x"
            self.layout.add("x", self.shapes[0][-1])
        for layer in self.layers:
            if self.routes.get(layer.value) == []:
                found[layer.value] = found[layer.input]
            elif layer.value not in inside:
                name = f"v{layer.value}" + _HOLDS.get(layer.kind, "")
                name = "y" if layer.value == last else roles.get(layer.value, name)
                if layer.kind == "norm" and layer.settings["centred"]:
                    self.layout.add(f"{self.names[layer.value]}: centred", self.shapes[layer.value][-1])
                found[layer.value] = name
                self.layout.add(name, self.shapes[layer.value][-1])
        return found

    def network(
        self, form: str, input: Input, output: tuple[str, Shape], *, domain: Interval | Box | None = None,
        strict: bool | None = None, source: Record | None = None,
    ) -> SelfAttentionNetwork:  # fmt: skip
        """The network; `source` is what its matrices encode."""
        steps, tokens, used = list(self.steps()), self.start(), _tokens(self.shapes[0])
        data = Embedding("data", [0], self._entering(), tokens[:used], self.build.dtype)
        return SelfAttentionNetwork(
            form, [input], steps, self.layout, (*output, 0), self.build.dtype, embeddings=[data], fixed=tokens[used:],
            domain=domain, strict=strict, source=source,
        )  # fmt: skip

    def _entering(self) -> Array:
        """(numbers of a row, D): where a row of the input goes; of a one-hot row, the tables."""
        if 0 in self.register:
            return np.ascontiguousarray(self.layout.block(self.register[0]).T)
        found: Array = self.build.zeros("the embedding", self.shapes[0][-1], self.layout.width)
        for layer in self.layers:
            if layer.kind == "embed":
                found[:, self.layout[self.register[layer.value]]] = array(layer.tensor("table"))[: len(found)]
        return found

    def start(self) -> Array:
        """The tokens without an input: flags and biases in data tokens, keys and values in anchors."""
        tokens, at = np.zeros((self.n + self.p, self.layout.width)), self.layout
        data, anchors = tokens[: self.n], tokens[self.n :]
        data[:, at["data"]] = data[:, at["one"]] = anchors[:, at["anchor"]] = 1.0
        if "position" in at:
            data[:, at["position"]] = np.eye(self.n)
        if "second key" in at:
            anchors[0, at["second key"]] = 1.0
        for d in self.means:
            anchors[: d - 1, at[f"mean of {d}"]] = 1.0
        for layer in self.layers:
            if layer.value in self.register and layer.kind not in ("reshape", "attend"):
                constant = constant_of(layer)  # (n, d): a row for each token
                rows = len(constant) if constant.ndim > 1 else self.n
                data[:rows, at[self.register[layer.value]]] = constant
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
            if layer.kind in _NEURONS:
                yield name, self._attention(layer, name)
            elif layer.kind == "norm":
                yield from self._norm(layer, name)
            elif layer.kind == "attend":
                yield name, self._attend(layer, name)
            elif self.routes.get(layer.value):
                yield name, self._routing(layer, name)
            elif layer.kind == "mix":
                yield name, self._mixture(layer, name)
            elif layer.kind == "scale" and layer.tensor("scale").ndim > 1:
                registers = self.register[layer.input], self.register[layer.value]
                yield name, sequence.scaling(self.build, self.layout, array(layer.tensor("scale")), registers)
            elif layer.kind not in ("reshape", "embed") and layer not in within:
                yield name, self._token_map(layer)

    def _forms(self, layer: Layer) -> tuple[Array, Array]:
        """(neurons, D) each: the argument of every neuron as a form of the stream, and what its value 1 adds to the stream."""
        at, before, columns = self.layout, self.before.get(layer.value), self._columns(layer)
        if layer.kind == "product":
            return sequence.product_forms(at, layer, [self.register[v] for v in layer.inputs], columns)
        read = at.block(self.register[before.input if before else layer.input]).T
        rows = read if before is None else array(before.tensor("weight")) @ read
        rows[:, at["data"].start] = 0.0 if before is None else constant_of(before)
        return rows, columns

    def _columns(self, layer: Layer) -> Array:
        """(features, D): the registers that a layer of attention writes; the map after it is part of W_O."""
        after = self.after.get(layer.value)
        write: Array = self.layout.block(self.register[after.value if after else layer.value]).T
        if after is not None:
            write = array(after.tensor("weight")).T @ write
        return write

    def _attention(self, layer: Layer, name: str) -> SelfAttention:
        """A head for every neuron (and every head of its anchors)."""
        at, found, (rows, columns) = self.layout, list[KeySet](), self._forms(layer)
        data, one, anchor, width = at.form("data"), at["one"].start, at.form("anchor"), len(rows) // 2
        squares = [f"{name}: square of {what} {c}" for what in ("sum", "difference") for c in range(width)]
        titles = squares if layer.kind == "product" else [f"{name}: neuron {j}" for j in range(len(rows))]
        for group in self.heads[layer.value]:
            numbers, neurons = group.numbers, group.neurons
            for h in range(numbers.heads):
                slope, offset, value, unused = (at.form(f"{name}: {what}", len(found)) for what in _ANCHOR)
                query = np.zeros((len(neurons), at.width, 2))
                query[:, :, 0] = numbers.query[h, 0] * rows[neurons]
                query[:, one, 0], query[:, at["data"].start, 1] = numbers.query[h, 1], 1.0
                values, out = value[:, None], numbers.output[h] * columns[neurons, None]
                gates = [(data, data + unused), (anchor, anchor)]
                own = np.flatnonzero(numbers.value[h, :, 0])
                if len(own) > 1:
                    raise InputError("a token can attend to itself once: this head has several keys for it")
                if len(own):
                    places = at.block("position").T
                    gates = [(place, data - place + unused) for place in places]
                    gates.append((anchor, data + anchor - unused))
                    values = np.c_[values, numbers.value[h, own[0], 0] * rows[neurons].T]
                    out = out * np.c_[np.ones(len(neurons)), np.eye(len(neurons))][:, :, None]
                    kappa, c = numbers.key[h, own[0]]
                    slope, offset = slope + kappa * data, offset + c * data
                names = [head_names(titles[j], numbers.heads)[h] for j in neurons]
                top = max(self.top, largest_score(numbers, h, group.lo, group.hi))
                found.append(KeySet(names, query, np.c_[slope, offset], values, out, gates, top))
        return self.build.attention(found, self.n + self.p, at)

    def _norm(self, layer: Layer, name: str) -> Iterator[tuple[str, Step]]:
        """Of a LayerNorm, first the map to the centred token."""
        read, write = (self.register[value] for value in (layer.input, layer.value))
        if layer.settings["centred"]:
            centred = f"{name}: centred"
            yield from sequence.centring(self.build, self.layout, centred, read)
            read = centred
        yield name, sequence.norm_attention(self.build, self.layout, layer, name, (read, write))

    def _attend(self, layer: Layer, name: str) -> SelfAttention:
        reads = [self.register[value] for value in layer.inputs]
        counts = self.shapes[layer.inputs[0]][0], self.shapes[layer.inputs[1]][0]
        columns = self._columns(layer)
        return sequence.token_attention(self.build, self.layout, layer, name, reads, counts, columns)

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
        matrix = self.build.zeros("a map", width, width)
        for value, block in zip(layer.inputs, token_maps(layer, write.stop - write.start), strict=True):
            matrix[write, self.layout[self.register[value]]] += block
        at = np.flatnonzero(matrix.any(1)), np.flatnonzero(matrix.any(0))
        return self.build.map(matrix[np.ix_(*at)], np.zeros(width), ((1, width), (1, width)), at, self.layout)

    def _routes(self, layer: Layer) -> list[tuple[int, int]]:
        """Stretches [i, j) of the numbers that lie in one token before and after a reshape; none if tokens stay."""
        end = math.prod(self.shapes[layer.value])
        a, b = (self.shapes[value][-1] for value in (layer.input, layer.value))
        return [] if a == b else list(pairwise(sorted({*range(0, end, a), *range(0, end, b), end})))


def _folds(layers: Sequence[Layer]) -> tuple[dict[int, Layer], dict[int, Layer]]:
    """By the value of a layer of attention: the map before it that has no other reader, for W_Q, and the map after it that is
    its only reader, for W_O."""
    before: dict[int, Layer] = {}
    after: dict[int, Layer] = {}
    by_value = {layer.value: layer for layer in layers}
    for layer in (layer for layer in layers if layer.kind in (*_NEURONS, "attend")):
        source = by_value.get(layer.input) if layer.kind == "pointwise" else None
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
