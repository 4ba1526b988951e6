"""The checker of literal networks: in exact arithmetic, the matrices compute what the certified source computes.

Both are evaluated symbolically, over rational numbers (`check/symbolic.py`): every number is an affine form in the inputs and in
the weights of softmaxes. The source is evaluated layer by layer from its stored numbers. The literal network is evaluated from
its matrices, without regard to names; three rules cover attention:

    equal scores      the weights are 1/m
    known scores      the weights are those of a softmax of the source
    anything else     the result is an unknown number, which must not reach the output

In the first two, all other tokens must score lower by so much that exp of the difference rounds to 0 in the dtype, on the whole
domain that the source is certified for. These weights count as 0, as they do when the network runs.

If the outputs differ by forms of size at most δ, then the literal network approximates within the approximation term of the
source plus δ. Nothing is claimed about the rounding errors of the literal network."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.check.head import check_head
from attnc.check.network import check_network
from attnc.check.symbolic import ONE, Argument, Exact, Form
from attnc.check.values import CheckError, require
from attnc.domain import Box, Interval
from attnc.functions import Function
from attnc.records.certificate import Status, Verdict
from attnc.records.fields import DAMAGE
from attnc.records.layers import Layer, heads_of, pointwise_layer
from attnc.records.numbers import HeadNumbers
from attnc.records.record import LiteralRecord, Record, under

Token = dict[int, Form]  # coordinate → form; missing coordinates are 0
Tensors = Mapping[str, NDArray[Any]]


def check_literal(record: LiteralRecord, function: Function | None = None) -> Verdict:
    """Prove the certificate of the source, and that the matrices encode the source: the approximation term holds for them."""
    source = record.source
    proved: tuple[Verdict, ...] = ()
    try:
        if source is None:
            raise CheckError(
                "its matrices can only be compared with a certified head or network, and it has none as its source. If it was "
                "built from a learner or from a part of a converted model, verify the learner or the model"
            )
        if not source.certificate.proved:
            known = source.certificate
            raise CheckError(f"the error of the source ({known.title}) is {known.status}, not proved")
        if isinstance(source.numbers, HeadNumbers):
            verdict = check_head(source.numbers, source.certificate, function)
        else:
            verdict = check_network(*source.network, source.certificate)
        proved = (require(verdict, "the source"),)
        claimed, error = record.certificate.approximation, encoding_error(record, source)
        if not error <= record.encoding:
            raise CheckError(f"it differs from its source by {error:.3g}, more than {record.encoding:.3g}")
    except CheckError as problem:
        return replace(problem.verdict(None), children=proved)
    except DAMAGE as problem:
        reason = f"the structure does not fit the matrices: {type(problem).__name__}: {problem}"
        return Verdict(Status.UNKNOWN, reason, children=proved)
    reason = f"the matrices encode the certified source: at most {claimed:.4g} in exact arithmetic"
    return Verdict(Status.PROVED, reason, claimed, cells=verdict.cells, children=proved)


def encoding_error(record: LiteralRecord, source: Record) -> float:
    """δ: at least the distance of the outputs of the literal network and of its source, on the domain of the source."""
    given = source.certificate.holds_for
    size = 1 if isinstance(given, Interval) else math.prod(source.network[0].shape)
    structure, shape = record.structure, record.structure["inputs"][0]["shape"]
    counts = len(structure["inputs"]), len(structure["embeddings"]), structure["output"][2]
    single = counts in ((1, 0, 0), (1, 1, 0))
    if not isinstance(given, Interval | Box) or not single or None in shape or math.prod(shape) % size:
        raise CheckError(f"inputs of the shape {shape} are not those of the source")
    lo, hi = ([given.lo], [given.hi]) if isinstance(given, Interval) else (given.lo.ravel(), given.hi.ravel())
    copies = math.prod(shape) // size
    low, high = ([Fraction(float(x)) for x in end] * copies for end in (lo, hi))
    exact = Exact(low, high, record.dtype)
    wanted = [form for c in range(copies) for form in _source(exact, source, c * size, size)]
    found = _Literal(exact, record).outputs()
    if len(found) != len(wanted):
        raise CheckError(f"there are {len(found)} outputs, the source has {len(wanted)}")
    pairs = zip(found, wanted, strict=True)
    worst = max(exact.size(exact.sum([(Fraction(1), a), (Fraction(-1), b)])) for a, b in pairs)
    return math.nextafter(float(worst), math.inf) if worst else 0.0


def _source(exact: Exact, source: Record, first: int, size: int) -> list[Form]:
    """The outputs of the source for the inputs first, …, first + size - 1."""
    claims: dict[int, list[Interval]] = {}
    if isinstance(source.numbers, HeadNumbers):
        layers: Sequence[Layer] = [pointwise_layer(0, 1, [(None, source.numbers)])]
        claims, widths = {1: [source.certificate.interval]}, [1, 1]
    else:
        program, numbers = source.network
        layers, widths = numbers.layers, [shape[-1] for shape in program.shapes]
        for claim in source.certificate.parts("layer"):
            claims[claim.facts["value"]] = [child.interval for child in claim.children]
    values: dict[int, list[Form]] = {0: [{("input", first + i): Fraction(1)} for i in range(size)]}
    for layer in layers:
        given, t = [values[i] for i in layer.inputs], layer.tensors
        x, width = given[0], widths[layer.input]
        if layer.kind == "affine":
            found = _affine(exact, x, t["weight"], t.get("bias"))
        elif layer.kind in ("batch_norm", "scale"):
            found = _affine(exact, x, np.diag(t["scale"].ravel()), t["shift"].ravel())
        elif layer.kind == "combine":
            factors = [Fraction(c) for c in layer.settings["coefficients"]]
            found = [exact.sum(zip(factors, terms, strict=True)) for terms in zip(*given, strict=True)]
        elif layer.kind == "lookup":
            moved = _affine(exact, x, np.eye(len(x)), -t["centre"])
            weights = exact.softmax(_affine(exact, moved, t["key"], t["offset"]), None)
            found = _affine(exact, weights, t["values"].T, None)
        elif layer.kind == "pointwise":
            found = _pointwise(exact, x, layer, claims[layer.value], width)
        elif layer.kind == "reshape":
            found = x
        elif layer.kind == "mix":
            turned = [x[i * width + c] for c in range(width) for i in range(len(x) // width)]
            mixed, rows = _affine(exact, turned, t["matrix"], None), len(t["matrix"])
            found = [mixed[c * rows + i] for i in range(rows) for c in range(width)]
        else:
            raise CheckError(f"layers of the kind {layer.kind!r} are not supported")
        values[layer.value] = found
    return values[layers[-1].value]


def _affine(exact: Exact, x: Sequence[Form], weight: NDArray[Any], bias: NDArray[Any] | None) -> list[Form]:
    """W x + b for every token."""
    rows, width, found = _sparse(weight), weight.shape[1], []
    constants = [0.0] * len(weight) if bias is None else bias.tolist()
    for first in range(0, len(x), width):
        for o, constant in enumerate(constants):
            terms = [(c, x[first + i]) for i, c in rows.get(o, ())]
            found.append(exact.sum([*terms, (Fraction(constant), {ONE: Fraction(1)})]))
    return found


def _pointwise(
    exact: Exact, x: Sequence[Form], layer: Layer, domains: Sequence[Interval], width: int
) -> list[Form]:
    found: list[Form] = [{} for _ in x]
    for (neurons, head), domain in zip(heads_of(layer), domains, strict=True):
        own = set(range(width)) if neurons is None else set(neurons.tolist())
        for i, s in enumerate(x):
            if i % width in own:
                found[i] = _head(exact, s, head, (s, Fraction(domain.lo), Fraction(domain.hi)))
    return found


def _head(exact: Exact, s: Form, n: HeadNumbers, argument: Argument) -> Form:
    one, terms = {ONE: Fraction(1)}, []
    for h in range(n.heads):
        a, o = map(Fraction, n.query[h].tolist())
        keys = [map(Fraction, key) for key in n.key[h].tolist()]
        scores = [exact.sum([(k * a, s), (k * o + c, one)]) for k, c in keys]
        for weight, value in zip(exact.softmax(scores, argument), n.value[h].tolist(), strict=True):
            averaged = exact.sum(zip(map(Fraction, value), (s, one), strict=True))
            terms.append((Fraction(float(n.output[h])), exact.product(weight, averaged)))
    return exact.sum(terms)


class _Literal:
    """The symbolic run of a literal network."""

    def __init__(self, exact: Exact, record: LiteralRecord) -> None:
        self.exact, self.record, self.unknown, self.width = exact, record, 0, 0  # the coordinates of a token

    def outputs(self) -> list[Form]:
        structure = self.record.structure
        residual, tokens = bool(structure["embeddings"]), self._tokens()
        for name, index in structure["order"]:
            step, before = structure["steps"][index], (len(tokens), self.width)
            run = {"attention": self._attention, "map": self._map, "softmax": self._softmax}[step["kind"]]
            added = run(tokens, step, under(f"steps.{index}.", self.record.tensors))
            if residual and (len(added), self.width) != before:
                raise CheckError(f"step {name!r} changes the shape of the sequence")
            tokens = [self._add(x, y) for x, y in zip(tokens, added, strict=True)] if residual else added
        register, shape, _ = structure["output"]
        at = range(self.width) if register is None else self._register(register, residual)
        return [tokens[t].get(d, {}) for t in range(math.prod(shape) // len(at)) for d in at]

    def _register(self, register: str, residual: bool) -> range:
        """The coordinates of a register of the residual stream."""
        names, widths = zip(*self.record.structure["layout"]["registers"], strict=True)
        fits = residual and sum(widths) == self.width and min(widths) >= 0
        self._require(fits and len(set(names)) == len(names), "registers")
        first = sum(widths[: names.index(register)])
        return range(first, first + widths[names.index(register)])

    def _require(self, fits: bool, what: str) -> None:
        if not fits:
            raise CheckError(f"the {what} do not fit a sequence of {self.width} coordinates")

    def _tokens(self) -> list[Token]:
        """The sequence before the first step."""
        structure, tensors = self.record.structure, self.record.tensors
        width = self.width = structure["inputs"][0]["width"]
        size = math.prod(structure["inputs"][0]["shape"])
        self._require(size % width == 0, "inputs")
        inputs: list[Form] = [{("input", i): Fraction(1)} for i in range(size)]
        rows = [dict(enumerate(inputs[first : first + width])) for first in range(0, size, width)]
        if not structure["embeddings"]:
            return rows
        weight, start, fixed = (tensors[name] for name in ("embeddings.0.W", "embeddings.0.start", "fixed"))
        self.width = weight.shape[1]
        fits = {start.shape[1:], fixed.shape[1:]} == {(self.width,)} and len(weight) == width
        fits = fits and len(start) in (1, len(rows)) and structure["embeddings"][0]["reads"] == [0]
        self._require(fits, "embedding and fixed tokens")
        starts, matrix = np.broadcast_to(start, (len(rows), self.width)), _sparse(weight)
        pairs = zip(rows, map(_constant, starts), strict=True)
        return [*(self._add(self._project(row, matrix), x) for row, x in pairs), *map(_constant, fixed)]

    def _map(self, tokens: list[Token], step: Mapping[str, Any], t: Tensors) -> list[Token]:
        (n, d), (m, e) = step["in_shape"], step["out_shape"]
        core, rows, columns = t["core"], t["rows"].tolist(), t["columns"].tolist()
        fits = len(tokens) % n == 0 and d == self.width and t["bias"].shape == (m * e,)
        self._require(fits and len({*rows} & {*range(m * e)}) == len(rows), f"numbers of a map of {n} tokens")
        self.width = e
        matrix: dict[int, list[tuple[int, Fraction]]] = {}
        for i, row in enumerate(rows):
            listed = [(columns[i], core[i])] if core.ndim == 1 else zip(columns, core[i], strict=True)
            for c, x in listed:
                if x:
                    matrix.setdefault(c, []).append((row, Fraction(float(x))))
        found = []
        for first in range(0, len(tokens), n):
            flat = {i * d + c: f for i, x in enumerate(tokens[first : first + n]) for c, f in x.items()}
            made = self._add(self._project(flat, matrix), _constant(t["bias"]))
            found += [{c: made[k + c] for c in range(e) if k + c in made} for k in range(0, m * e, e)]
        return found

    def _attention(self, tokens: list[Token], step: Mapping[str, Any], t: Tensors) -> list[Token]:
        found: list[Token] = [{} for _ in tokens]
        shapes = [t[letter].shape for letter in ("W_Q", "W_K", "W_V", "W_O")]
        heads, sets, d = len(step["shared"]), len(t["W_V"]), self.width
        _, r, m, e = (shape[2] for shape in shapes)
        fits = shapes == [(heads, d, r), (sets, d, r), (sets, d, m), (heads, m, e)]
        self._require(fits and step["axis"] == -1, "matrices of attention")
        self.width = e
        for h, g in enumerate(step["shared"]):
            w_q, w_k, w_v, w_o = (_sparse(w) for w in (t["W_Q"][h], t["W_K"][g], t["W_V"][g], t["W_O"][h]))
            keys = [self._project(token, w_k) for token in tokens]
            values = [self._project(self._project(token, w_v), w_o) for token in tokens]
            done: dict[Hashable, Token] = {}
            for i, token in enumerate(tokens):
                query = self._project(token, w_q)
                seen = frozenset((r, frozenset(form.items())) for r, form in query.items())
                if seen not in done:
                    done[seen] = self._attend(query, keys, values, w_o)
                found[i] = self._add(found[i], done[seen])
        return found

    def _attend(self, query: Token, keys: list[Token], values: list[Token], w_o: Any) -> Token:
        """The result of one head for one query."""
        one, times = Fraction(1), self.exact.product
        pairs = ([(form, key[r]) for r, form in query.items() if r in key] for key in keys)
        scores = [self.exact.sum((one, times(*pair)) for pair in products) for products in pairs]
        weights = self.exact.weights(scores)
        if weights is None:
            return {d: self._unknown() for d in {d for row in w_o.values() for d, _ in row}}
        found: dict[int, list[tuple[Fraction, Form]]] = {}
        for j, weight in weights.items():
            for d, value in values[j].items():
                found.setdefault(d, []).append((one, times(weight, value)))
        return {d: self.exact.sum(parts) for d, parts in found.items()}

    def _softmax(self, tokens: list[Token], step: Mapping[str, Any], t: Tensors) -> list[Token]:
        """Softmax over the tokens, coordinate by coordinate."""
        if step["axis"] != -2:
            raise CheckError(f"softmax over axis {step['axis']} is not softmax over the tokens")
        found: list[Token] = [{} for _ in tokens]
        for c in range(self.width):
            weights = self.exact.weights([token.get(c, {}) for token in tokens])
            for i in range(len(tokens)):
                found[i][c] = self._unknown() if weights is None else weights.get(i, {})
        return found

    def _project(self, token: Token, matrix: Mapping[int, Sequence[tuple[int, Fraction]]]) -> Token:
        parts: dict[int, list[tuple[Fraction, Form]]] = {}
        for d in token.keys() & matrix.keys():
            for r, x in matrix[d]:
                parts.setdefault(r, []).append((x, token[d]))
        found = {r: self.exact.sum(terms) for r, terms in parts.items()}
        return {r: form for r, form in found.items() if form}

    def _add(self, x: Token, y: Token) -> Token:
        one = Fraction(1)
        both = {d: self.exact.sum([(one, x[d]), (one, y[d])]) for d in x.keys() & y.keys()}
        return {d: form for d, form in {**x, **y, **both}.items() if form}

    def _unknown(self) -> Form:
        self.unknown += 1
        return {("unknown", self.unknown): Fraction(1)}


def _sparse(matrix: NDArray[Any]) -> dict[int, list[tuple[int, Fraction]]]:
    """The numbers of a matrix that are not 0, by row."""
    rows = ([(r, Fraction(x)) for r, x in enumerate(row) if x] for row in matrix.tolist())
    return {d: row for d, row in enumerate(rows) if row}


def _constant(row: NDArray[Any]) -> Token:
    return {d: {ONE: Fraction(x)} for d, x in enumerate(row.tolist()) if x}
