"""The checker of literal networks: in exact arithmetic, the matrices compute what the certified source computes.

Both are evaluated symbolically, over rational numbers (`check/symbolic.py`): every number is an affine form in the inputs and in
the weights of softmaxes. The source is evaluated layer by layer from its stored numbers. The literal network is evaluated from
its matrices, without regard to names; three rules cover attention:

    equal scores      the weights are 1/m
    known scores      the weights are those of a softmax of the source
    anything else     the result is an unknown number, which must not reach the output

Where two values of the data are multiplied, as in norms and in attention between data tokens, forms have names
(`check/interned.py`): a value that both compute in the same way has the same name.

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

from attnc.check.head import check_alone
from attnc.check.interned import Interned
from attnc.check.literal_source import needs_names, outputs, sparse
from attnc.check.network import check_network, magnitudes
from attnc.check.symbolic import ONE, Exact, Form
from attnc.check.values import CheckError, require
from attnc.domain import Box, Interval, Tokens
from attnc.functions import Function
from attnc.records.certificate import Status, Verdict
from attnc.records.domains import domain_to_json
from attnc.records.fields import DAMAGE
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
            verdict = check_alone(source.numbers, source.certificate, function)
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
    reason = f"the matrices encode the certified source: at most {claimed:.4g}; rounding is not bounded"
    return Verdict(Status.PROVED, reason, claimed, cells=verdict.cells, exact=True, children=proved)


def encoding_error(record: LiteralRecord, source: Record) -> float:
    """δ: at least the distance of the outputs of the literal network and of its source, on the domain of the source."""
    given = source.certificate.holds_for
    size = 1 if isinstance(given, Interval) else math.prod(source.network[0].shape)
    structure, (input, *_) = record.structure, record.structure["inputs"]
    shape, ids = input["shape"], input.get("ids")
    counts = len(structure["inputs"]), len(structure["embeddings"]), structure["output"][2]
    single = counts in ((1, 0, 0), (1, 1, 0))
    if not isinstance(given, Interval | Box) or not single or None in shape or math.prod(shape) % size:
        raise CheckError(f"inputs of the shape {shape} are not those of the source")
    _check_border(structure, source, shape)
    copies = math.prod(shape) // size
    if isinstance(given, Tokens) or ids is not None:
        _check_ids(source, given, input)
        size *= ids  # one-hot vectors
        low, high = [Fraction(0)] * size, [Fraction(1)] * size
    else:
        lo, hi = (
            ([given.lo], [given.hi]) if isinstance(given, Interval) else (given.lo.ravel(), given.hi.ravel())
        )
        low, high = ([Fraction(float(x)) for x in end] * copies for end in (lo, hi))
    names, limits = needs_names(source), dict[int, list[float]]()
    if names:
        found_limits = magnitudes(*source.network, source.certificate)
        limits = {value: limit.ravel().tolist() for value, limit in found_limits.items()}
    exact = Interned(low, high, record.dtype) if names else Exact(low, high, record.dtype)
    wanted = [form for c in range(copies) for form in outputs(exact, source, c * size, size, limits)]
    found = _Literal(exact, record).outputs()
    if len(found) != len(wanted):
        raise CheckError(f"there are {len(found)} outputs, the source has {len(wanted)}")
    pairs = zip(found, wanted, strict=True)
    worst = max(exact.size(exact.sum([(Fraction(1), a), (Fraction(-1), b)])) for a, b in pairs)
    return math.nextafter(float(worst), math.inf) if worst else 0.0


def _check_border(structure: Mapping[str, Any], source: Record, shape: Sequence[int]) -> None:
    """Raise unless the shapes are those of the source, with at most one axis in front, and the domain is that of its claim."""
    head = isinstance(source.numbers, HeadNumbers)
    given, made = ((), ()) if head else (source.network[0].shape, source.network[0].shapes[-1])
    lead = list(shape[: len(shape) - len(given)])
    if len(lead) > 1 or list(shape) != [*lead, *given] or list(structure["output"][1]) != [*lead, *made]:
        raise CheckError(
            f"inputs and outputs of the shapes {shape}, {structure['output'][1]} are not those of the source"
        )
    if structure["domain"] != domain_to_json(source.certificate.holds_for):
        raise CheckError("its domain is not that of the certificate of its source")


def _check_ids(source: Record, given: Interval | Box, input: Mapping[str, Any]) -> None:
    """Raise `CheckError` unless the literal network takes the token ids of the source, each as a one-hot vector of `ids`."""
    ids = input.get("ids")
    if isinstance(given, Tokens) and type(ids) is int and tuple(input["shape"]) == given.shape:
        tables = [layer.tensor("table") for layer in source.network[1].layers if layer.kind == "embed"]
        most = min([len(table) for table in tables], default=0)
        if given.vocabulary <= ids <= most and input["width"] == ids:
            return
    raise CheckError("the inputs are not the token ids of the source, as one-hot vectors")


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
            tokens = [{d: self.exact.recognised(form) for d, form in token.items()} for token in tokens]
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
        size *= 1 if structure["inputs"][0].get("ids") is None else width  # one-hot vectors
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
        starts, matrix = np.broadcast_to(start, (len(rows), self.width)), sparse(weight)
        pairs = zip(rows, map(_constant, starts), strict=True)
        found = [*(self._add(self._project(row, matrix), x) for row, x in pairs), *map(_constant, fixed)]
        return [{d: self.exact.recognised(form) for d, form in token.items()} for token in found]

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
        found: list[dict[int, list[tuple[Fraction, Form]]]] = [{} for _ in tokens]
        shapes = [t[letter].shape for letter in ("W_Q", "W_K", "W_V", "W_O")]
        heads, sets, d = len(step["shared"]), len(t["W_V"]), self.width
        _, r, m, e = (shape[2] for shape in shapes)
        fits = shapes == [(heads, d, r), (sets, d, r), (sets, d, m), (heads, m, e)]
        self._require(fits and step["axis"] == -1, "matrices of attention")
        self.width = e
        shared: dict[int, list[list[Token]]] = {}  # keys and values
        for h, g in enumerate(step["shared"]):
            w_q, w_o = sparse(t["W_Q"][h]), sparse(t["W_O"][h])
            if g not in shared:
                matrices = sparse(t["W_K"][g]), sparse(t["W_V"][g])
                shared[g] = [[self._project(token, w) for token in tokens] for w in matrices]
            keys, values = shared[g]
            done: dict[Hashable, Token] = {}
            for i, token in enumerate(tokens):
                query = self._project(token, w_q)
                seen = frozenset((r, frozenset(form.items())) for r, form in query.items())
                if seen not in done:
                    done[seen] = self._project(self._attend(query, keys, values, w_o), w_o)
                for d, form in done[seen].items():
                    found[i].setdefault(d, []).append((Fraction(1), form))
        sums = [{d: self.exact.sum(parts) for d, parts in token.items()} for token in found]
        return [{d: form for d, form in token.items() if form} for token in sums]

    def _attend(self, query: Token, keys: list[Token], values: list[Token], w_o: Any) -> Token:
        """The result of one head for one query, before W_O."""
        one, times = Fraction(1), self.exact.product
        pairs = ([(form, key[r]) for r, form in query.items() if r in key] for key in keys)
        scores = [self.exact.sum((one, times(*pair)) for pair in products) for products in pairs]
        weights = self.exact.weights(scores)
        if weights is None:
            return {d: self._unknown() for d in w_o}
        found: dict[int, list[tuple[Fraction, Form]]] = {}
        for j, weight in weights.items():
            for d, value in values[j].items():
                found.setdefault(d, []).append((one, times(weight, value)))
        mixed = {d: self.exact.sum(parts) for d, parts in found.items()}
        equal = all(set(weight) == {ONE} for weight in weights.values())
        return mixed if equal else {d: self.exact.named(form) for d, form in mixed.items()}

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


def _constant(row: NDArray[Any]) -> Token:
    return {d: {ONE: Fraction(x)} for d, x in enumerate(row.tolist()) if x}
