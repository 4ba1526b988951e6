"""The source of a literal network, evaluated symbolically: every output as a form in the inputs (`check/symbolic.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.check.interned import Interned
from attnc.check.symbolic import ONE, Argument, Exact, Form
from attnc.check.values import CheckError
from attnc.domain import Interval
from attnc.records.layers import NORM_HEADS, Layer, heads_of, pointwise_layer, square_of
from attnc.records.numbers import HeadNumbers
from attnc.records.record import Record

PRODUCTS = ("norm", "attend", "product", "embed")  # layers whose networks are checked by names
_HELD = ("affine", "norm", "embed", "combine", "mix", "scale", "batch_norm")  # their values are named
_ONE: Form = {ONE: Fraction(1)}


def needs_names(source: Record) -> bool:
    """Whether the source has layers that multiply values of the data, or read token ids."""
    if isinstance(source.numbers, HeadNumbers):
        return False
    return any(layer.kind in PRODUCTS for layer in source.network[1].layers)


def outputs(
    exact: Exact, source: Record, first: int, size: int, limits: Mapping[int, Sequence[float]]
) -> list[Form]:
    """The outputs of the source for the inputs first, …, first + size - 1. `limits` bound the values of the source."""
    claims: dict[int, list[Interval]] = {}
    if isinstance(source.numbers, HeadNumbers):
        layers: Sequence[Layer] = [pointwise_layer(0, 1, [(None, source.numbers)])]
        claims, widths = {1: [source.certificate.interval]}, [1, 1]
    else:
        program, numbers = source.network
        layers, widths = numbers.layers, [shape[-1] for shape in program.shapes]
        known = source.certificate.claims
        for claim in () if known is None else known.parts("layer"):
            claims[claim.facts["value"]] = [child.interval for child in claim.children]
    values: dict[int, list[Form]] = {0: [{("input", first + i): Fraction(1)} for i in range(size)]}
    for layer in layers:
        given, width = [values[i] for i in layer.inputs], widths[layer.input]
        if layer.kind == "embed":
            width = size // width  # of a one-hot vector
        found = _layer(exact, layer, given, width, claims.get(layer.value, []))
        if isinstance(exact, Interned):
            for form, limit in zip(found, limits[layer.value], strict=True):
                exact.bound(form, limit)
            readers = [other.kind for other in layers if layer.value in other.inputs]
            if layer.kind in _HELD and readers != ["pointwise"]:  # else it may be part of queries
                found = [exact.keep(form) for form in found]
        values[layer.value] = found
    return values[layers[-1].value]


def _layer(
    exact: Exact, layer: Layer, given: list[list[Form]], width: int, claims: Sequence[Interval]
) -> list[Form]:
    x, t = given[0], layer.tensors
    if layer.kind == "affine":
        return _affine(exact, x, t["weight"], t.get("bias"))
    if layer.kind in ("batch_norm", "scale"):
        return _affine(exact, x, np.diag(t["scale"].ravel()), t["shift"].ravel())
    if layer.kind == "combine":
        factors = [Fraction(c) for c in layer.settings["coefficients"]]
        return [exact.sum(zip(factors, terms, strict=True)) for terms in zip(*given, strict=True)]
    if layer.kind == "lookup":
        moved = _affine(exact, x, np.eye(len(x)), -t["centre"])
        weights = exact.softmax(_affine(exact, moved, t["key"], t["offset"]), None)
        return _affine(exact, weights, t["values"].T, None)
    if layer.kind == "pointwise":
        return _pointwise(exact, x, layer, claims, width)
    if layer.kind == "reshape":
        return x
    if layer.kind == "mix":
        turned = [x[i * width + c] for c in range(width) for i in range(len(x) // width)]
        mixed, rows = _affine(exact, turned, t["matrix"], None), len(t["matrix"])
        return [mixed[c * rows + i] for i in range(rows) for c in range(width)]
    if layer.kind == "embed":
        return _affine(exact, x, t["table"][:width].T, None)
    if layer.kind == "norm":
        return [form for i in range(0, len(x), width) for form in _norm(exact, x[i : i + width], layer)]
    if layer.kind == "product":
        return [_product(exact, i % width, layer, *pair) for i, pair in enumerate(zip(*given, strict=True))]
    if layer.kind == "attend":
        return _attend(exact, given, width, layer)
    raise CheckError(f"layers of the kind {layer.kind!r} are not supported")


def _affine(exact: Exact, x: Sequence[Form], weight: NDArray[Any], bias: NDArray[Any] | None) -> list[Form]:
    """W x + b for every token."""
    rows, width, found = sparse(weight), weight.shape[1], []
    constants = [0.0] * len(weight) if bias is None else bias.tolist()
    for first in range(0, len(x), width):
        for o, constant in enumerate(constants):
            terms = [(c, x[first + i]) for i, c in rows.get(o, ())]
            found.append(exact.sum([*terms, (Fraction(constant), _ONE)]))
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
    terms = []
    for h in range(n.heads):
        a, o = map(Fraction, n.query[h].tolist())
        keys = [map(Fraction, key) for key in n.key[h].tolist()]
        scores = [exact.sum([(k * a, s), (k * o + c, _ONE)]) for k, c in keys]
        weights, output = exact.softmax(scores, argument), Fraction(float(n.output[h]))
        slopes, constants = (map(Fraction, column) for column in n.value[h].T.tolist())
        terms.append((output, exact.named(exact.sum(zip(constants, weights, strict=True)))))
        own = [(c, exact.product(w, s)) for c, w in zip(slopes, weights, strict=True) if c]
        terms.append((output, exact.named(exact.sum(own))))
    return exact.sum(terms)


def _norm(exact: Exact, x: Sequence[Form], layer: Layer) -> list[Form]:
    """gain∘(Σ_j output_j w_j z) + shift for one token."""
    one, z = Fraction(1), list(x)
    if layer.settings["centred"]:
        mean = exact.sum((Fraction(1, len(x)), form) for form in x)
        z = [exact.keep(exact.sum([(one, form), (-one, mean)])) for form in x]
    square = exact.sum((one, exact.product(form, form)) for form in z)
    found: list[list[tuple[Fraction, Form]]] = [[] for _ in z]
    heads = zip(*(layer.tensor(name).tolist() for name in NORM_HEADS), strict=True)
    for slope, intercept, output in (map(Fraction, head) for head in heads):
        weight, _ = exact.softmax([exact.sum([(intercept, _ONE), (-slope, square)]), {}], None)
        for terms, form in zip(found, z, strict=True):
            terms.append((output, exact.named(exact.product(weight, form))))
    scales = zip(layer.tensor("gain").tolist(), layer.tensor("shift").tolist(), strict=True)
    pairs = zip(found, (map(Fraction, scale) for scale in scales), strict=True)
    return [exact.sum([*((gain * c, f) for c, f in terms), (shift, _ONE)]) for terms, (gain, shift) in pairs]


def _product(exact: Exact, i: int, layer: Layer, x: Form, y: Form) -> Form:
    """ρ²/4 (square((x/λ + λy)/ρ) - square((x/λ - λy)/ρ))."""
    square, ends = square_of(layer), (Fraction(-1), Fraction(1))
    scale, radius = (Fraction(2) ** int(layer.tensor(name)[i]) for name in ("scale", "radius"))
    terms = []
    for sign in (1, -1):
        s = exact.sum([(1 / (scale * radius), x), (sign * scale / radius, y)])
        terms.append((sign * radius**2 / 4, _head(exact, s, square, (s, *ends))))
    return exact.sum(terms)


def _attend(exact: Exact, given: Sequence[Sequence[Form]], width: int, layer: Layer) -> list[Form]:
    """softmax(scale·q kᵀ + bias) v where the mask is 1, in each head."""
    heads, slices, scale = layer.settings["split"]
    d, n = width // heads, len(given[0]) // width
    key_width = d * slices
    m = len(given[1]) // key_width
    value_width = len(given[2]) // m
    e, mask, bias = value_width // slices, layer.tensors.get("mask"), layer.tensors.get("bias")
    found: list[Form] = []
    for i in range(n):
        seen = [j for j in range(m) if mask is None or mask[i, j]]
        for h in range(heads):
            g = h // (heads // slices)
            scores = []
            for j in seen:
                pairs = [
                    (given[0][i * width + h * d + c], given[1][j * key_width + g * d + c]) for c in range(d)
                ]
                offset = Fraction(0) if bias is None else Fraction(float(bias[h % len(bias), i, j]))
                terms = [(Fraction(scale), exact.product(*pair)) for pair in pairs]
                scores.append(exact.sum([*terms, (offset, _ONE)]))
            weights = exact.softmax(scores, None)
            for c in range(e):
                parts = zip(weights, (given[2][j * value_width + g * e + c] for j in seen), strict=True)
                mixed = exact.sum((Fraction(1), exact.product(w, v)) for w, v in parts)
                found.append(mixed if set(weights[0]) == {ONE} else exact.named(mixed))
    return found


def sparse(matrix: NDArray[Any]) -> dict[int, list[tuple[int, Fraction]]]:
    """The numbers of a matrix that are not 0, by row."""
    rows = ([(r, Fraction(x)) for r, x in enumerate(row) if x] for row in matrix.tolist())
    return {d: row for d, row in enumerate(rows) if row}
