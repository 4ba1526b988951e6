"""The checker's own account of how errors pass through a network: ball matrices, so that no rounding is analysed by hand.

Of every value are kept, entry by entry, as balls: the exact value; the exact value as Aξ + c, ξ the input's distance from the
middle of its box; and what is not negative: `error` >= |executed - exact|, and `approximation`, what of it exact arithmetic would
leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_mat

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.check import lookup as check_lookup
from attnc.check.slopes import CellTable
from attnc.domain import Array, Box
from attnc.functions.balls import lower, upper
from attnc.program import Affine, BatchNorm, Combine, Lookup, Pointwise
from attnc.program.program import MOST_FORM_SIZE, MOST_FORM_WORK, Program
from attnc.program.step import Shape
from attnc.records.certificate import Certificate
from attnc.records.layers import Layer, NetworkNumbers, heads_of

Balls = list[arb]


@dataclass(frozen=True)
class Form:
    """A, row by row over the entries of a value, and c."""

    rows: list[Balls]
    centre: Balls


@dataclass(frozen=True)
class Carried:
    """What is known of a value; every list runs over its entries, row by row of its shape."""

    exact: Balls
    error: Balls
    approximation: Balls
    form: Form | None

    @property
    def executed(self) -> Balls:
        return [(abs(x) + e).upper() for x, e in zip(self.exact, self.error, strict=True)]


class CheckError(Exception):
    """Why a claim could not be confirmed."""


Claims = dict[int, Certificate]


def final(program: Program, numbers: NetworkNumbers, box: Box, claims: Claims) -> Carried:
    """What is known of the output; raises `CheckError` where a layer's claim cannot be confirmed. Within `working`."""
    a = ARITHMETIC[numbers.dtype]
    xi = [arb(0, _half(lo, hi)) for lo, hi in zip(box.lo.ravel(), box.hi.ravel(), strict=True)]
    known = {0: _start(program, box)}
    for stage in numbers.layers:
        match stage.kind:
            case "affine":
                made = _linear(program, stage, known[stage.input], a)
            case "batch_norm":
                made = _scale(program, stage, known[stage.input], a)
            case "pointwise":
                claim = claims[stage.value]
                assert claim is not None
                made = _attention(program, stage, known[stage.input], claim)
            case "lookup":
                made = _selection(program, stage, known[stage.input], claims[stage.value], a)
            case "combine":
                made = _sum(program, stage, [known[i] for i in stage.inputs], a)
            case _:
                made = known[stage.input]
        known[stage.value] = _narrowed(made, xi)
        if stage.kind == "pointwise" and claim is not None:
            _confirm(claim, known[stage.input], known[stage.value])
    return known[len(program.steps)]


def _selection(program: Program, stage: Layer, x: Carried, claim: Certificate, a: Arithmetic) -> Carried:
    step = program.steps[stage.value - 1]
    if not isinstance(step, Lookup) or not all(e == 0 for e in x.error):
        raise CheckError(f"{claim.name}: nothing is known of the function, or its inputs have an error")
    made = check_lookup.found(step, stage, x.exact, a)
    if isinstance(made, str):
        raise CheckError(f"{claim.name}: {made}")
    worst = max(map(upper, made.error))
    if not worst <= claim.bound:
        raise CheckError(
            f"{claim.name}: its error is at most {worst:.6g}, the certificate says {claim.bound:.6g}"
        )
    return Carried(made.exact, made.error, [made.approximation] * len(made.error), None)


def _start(program: Program, box: Box) -> Carried:
    middle = [arb(m) for m in (box.lo / 2 + box.hi / 2).ravel().tolist()]
    exact = [
        m + arb(0, _half(lo, hi)) for m, lo, hi in zip(middle, box.lo.ravel(), box.hi.ravel(), strict=True)
    ]
    n = box.size
    form = None
    if program.form_work <= MOST_FORM_WORK and n * max(map(np.prod, program.shapes)) <= MOST_FORM_SIZE:
        form = Form([[arb(int(i == j)) for j in range(n)] for i in range(n)], middle)
    return Carried(exact, [arb(0)] * n, [arb(0)] * n, form)


def _half(lo: float, hi: float) -> float:
    middle = arb(float(lo / 2 + hi / 2))
    return max(upper(arb(float(hi)) - middle), upper(middle - arb(float(lo))))


def _narrowed(x: Carried, xi: Balls) -> Carried:
    """The exact value also lies in Aξ + c: their intersection is kept."""
    if x.form is None or not x.form.rows:
        return x
    swing = arb_mat(x.form.rows) * arb_mat([[b] for b in xi])
    exact = []
    for i, (ball, centre) in enumerate(zip(x.exact, x.form.centre, strict=True)):
        other = swing[i, 0] + centre
        exact.append(
            ball.intersection(other)
            if other.is_finite() and ball.is_finite()
            else other
            if other.is_finite()
            else ball
        )
    return Carried(exact, x.error, x.approximation, x.form)


def _linear(program: Program, stage: Layer, x: Carried, a: Arithmetic) -> Carried:
    weight, bias, same = _exact_affine(program, stage)
    stored = np.abs(stage.tensors["weight"].astype(np.float64))
    n, tokens = stored.shape[1], _tokens(program.shapes[stage.input])
    constant = [abs(arb(b)) for b in _bias(stage)]
    given = [_columns(v, tokens) for v in (x.error, x.executed, x.approximation)]
    ones = [[arb(1)] * n]
    carried = arb_mat(stored.tolist()) * _matrix(given[0] + given[1] + given[2] + ones)
    exact = _rows(weight * _matrix(_columns(x.exact, tokens)), bias)
    off = _gap(stage, weight, bias, same, x, tokens)
    gammas = [_gamma(int(np.count_nonzero(row)) + 1, a) for row in stored]  # a product with 0 rounds nothing
    tau = arb(a.tiny)
    error, passed = [], []
    for t in range(tokens):
        entering = sum(given[1][t], arb(0))
        for i in range(stored.shape[0]):
            through = carried[i, tokens + t] + constant[i]
            flushed = 2 * tau * (entering + carried[i, 3 * tokens] + 3 * (n + 2))
            total = carried[i, t] + off[t * stored.shape[0] + i] + gammas[i] * through + flushed
            error.append(total.upper() if through + total < a.largest else arb("inf"))
            passed.append(carried[i, 2 * tokens + t].upper())
    return Carried(exact, error, passed, _linear_form(x.form, weight, bias, tokens))


def _gap(stage: Layer, weight: arb_mat, bias: Balls, same: bool, x: Carried, tokens: int) -> Balls:
    """|Ŵ - W||x| + |b̂ - b|: what rounding or folding the numbers changed."""
    off = [abs(arb(s) - b) for s, b in zip(_bias(stage), bias, strict=True)]
    if same:
        return off * tokens
    moved = arb_mat(stage.tensors["weight"].astype(np.float64).tolist()) - weight
    size = arb_mat([[abs(moved[i, j]).upper() for j in range(moved.ncols())] for i in range(moved.nrows())])
    columns = _columns([abs(v).upper() for v in x.exact], tokens)
    return _rows(size * _matrix(columns), off)


def _linear_form(form: Form | None, weight: arb_mat, bias: Balls, tokens: int) -> Form | None:
    if form is None:
        return None
    features = len(form.centre) // tokens
    rows, centre = [], []
    for t in range(tokens):
        part = slice(t * features, (t + 1) * features)
        product = weight * arb_mat(
            [[*row, c] for row, c in zip(form.rows[part], form.centre[part], strict=True)]
        )
        for row, b in zip(product.tolist(), bias, strict=True):
            rows.append(row[:-1])
            centre.append(row[-1] + b)
    return Form(rows, centre)


def _exact_affine(program: Program, stage: Layer) -> tuple[arb_mat, Balls, bool]:
    """The exact weight and bias of what the stage stands for, and whether the stage has just those numbers."""
    step = program.steps[stage.value - 1]
    affine = step if isinstance(step, Affine) else program.steps[step.inputs[0] - 1]
    assert isinstance(affine, Affine)
    wide = affine.weight.astype(np.float64)
    bias = (
        [arb(0)] * len(wide)
        if affine.bias is None
        else [arb(b) for b in affine.bias.astype(np.float64).tolist()]
    )
    if isinstance(step, Affine):
        return arb_mat(wide.tolist()), bias, np.array_equal(wide, stage.tensors["weight"].astype(np.float64))
    assert isinstance(step, BatchNorm)
    scale, shift = _normalisation(step)
    weight = arb_mat([[s * arb(w) for w in row] for s, row in zip(scale, wide.tolist(), strict=True)])
    return weight, [s * b + t for s, b, t in zip(scale, bias, shift, strict=True)], False


def _normalisation(step: BatchNorm) -> tuple[Balls, Balls]:
    gain, variance, mean, shift = (
        [arb(float(v)) for v in part] for part in (step.gain, step.variance, step.mean, step.shift)
    )
    scale = [g / (v + arb(step.epsilon)).sqrt() for g, v in zip(gain, variance, strict=True)]
    return scale, [t - s * m for t, s, m in zip(shift, scale, mean, strict=True)]


def _scale(program: Program, stage: Layer, x: Carried, a: Arithmetic) -> Carried:
    step = program.steps[stage.value - 1]
    assert isinstance(step, BatchNorm)
    tokens = _tokens(program.shapes[stage.input])
    scale, shift = (part * tokens for part in _normalisation(step))
    stored, constant = (
        [arb(float(v)) for v in part] * tokens for part in (stage.tensors["scale"], stage.tensors["shift"])
    )
    gamma, tau = _gamma(2, a), arb(a.tiny)
    error = []
    for v, e, y, s, t, r, c in zip(x.exact, x.error, x.executed, scale, shift, stored, constant, strict=True):
        through = abs(r) * y + abs(c)
        total = abs(r) * e + abs(r - s) * abs(v) + abs(c - t) + gamma * through + 4 * tau * (1 + abs(r) + y)
        error.append(total.upper() if through + total < a.largest else arb("inf"))
    passed = [abs(r) * p for r, p in zip(stored, x.approximation, strict=True)]
    exact = [v * s + t for v, s, t in zip(x.exact, scale, shift, strict=True)]
    form = None if x.form is None else _mapped(x.form, scale, shift)
    return Carried(exact, error, passed, form)


def _attention(program: Program, stage: Layer, x: Carried, claim: Certificate) -> Carried:
    step = program.steps[stage.value - 1]
    assert isinstance(step, Pointwise)
    width = program.shapes[stage.value][-1]
    lo, hi = _ends(x.exact)
    reach = [v + arb(0, e) for v, e in zip(x.exact, x.error, strict=True)]
    if not all(r.is_finite() for r in reach):
        raise CheckError(f"{claim.name}: nothing is known of what enters it")
    low, high = _ends(reach)
    bounds = _head_bounds(stage, claim, low.reshape(-1, width), high.reshape(-1, width))
    table = CellTable(step.function, float(low.min()), float(high.max()))
    steep = [arb(s) for s in table.steepest(low, high).tolist()]
    off = [arb(0) if v <= arb(step.beyond) else arb(step.deviation) for v in x.exact]
    delta, own = ([arb(v) for v in b] * (len(x.exact) // width) for b in bounds)
    bottom, top = table.line(low, high, np.zeros_like(low))
    spread = [(arb(b) - arb(a)).upper() for a, b in zip(bottom.tolist(), top.tolist(), strict=True)]
    moved, meant = (
        [_less(k * e, w) for k, e, w in zip(steep, part, spread, strict=True)]
        for part in (x.error, x.approximation)
    )
    error = [(m + d + o).upper() for m, d, o in zip(moved, delta, off, strict=True)]
    passed = [(m + d + o).upper() for m, d, o in zip(meant, own, off, strict=True)]
    exact = [
        v + arb(0, o) for v, o in zip(_between(*table.line(lo, hi, np.zeros_like(lo))), off, strict=True)
    ]
    form = None
    if x.form is not None:
        slope = table.chord(lo, hi)
        beside = [v + arb(0, o) for v, o in zip(_between(*table.line(lo, hi, slope)), off, strict=True)]
        form = _mapped(x.form, [arb(k) for k in slope.tolist()], beside)
    return Carried(exact, error, passed, form)


def _less(x: arb, y: arb) -> arb:
    """The smaller of two upper bounds; one that is not finite is none."""
    return y if not x.is_finite() or y < x else x


def _head_bounds(
    stage: Layer, claim: Certificate, low: Array, high: Array
) -> tuple[list[float], list[float]]:
    """Neuron by neuron, what the head's claim bounds, if its domain holds everything that may reach it."""
    bound, own = [np.inf] * low.shape[1], [np.inf] * low.shape[1]
    for (named, _), said in zip(heads_of(stage), claim.children, strict=True):
        neurons = range(low.shape[1]) if named is None else named.tolist()
        domain = said.interval
        for j in neurons:
            if not (domain.lo <= low[:, j].min() and high[:, j].max() <= domain.hi):
                raise CheckError(
                    f"{claim.name}: neuron {j} may be given {low[:, j].min():.6g} to {high[:, j].max():.6g}, "
                    f"its head is proved on [{domain.lo:g}, {domain.hi:g}]"
                )
            bound[j], own[j] = said.bound, said.approximation
    return bound, own


def _sum(program: Program, stage: Layer, xs: Sequence[Carried], a: Arithmetic) -> Carried:
    step = program.steps[stage.value - 1]
    assert isinstance(step, Combine)
    gamma, tau = _gamma(len(xs) + 1, a), arb(a.tiny)
    exact, error, passed = [], [], []
    pairs = list(zip(map(arb, stage.settings["coefficients"]), map(arb, step.coefficients), xs, strict=True))
    sizes = [x.executed for x in xs]
    for i in range(len(xs[0].exact)):
        through = sum((abs(c) * y[i] for (c, _, _), y in zip(pairs, sizes, strict=True)), arb(0))
        flushed = (
            4
            * len(xs)
            * tau
            * (1 + sum((abs(c) + y[i] for (c, _, _), y in zip(pairs, sizes, strict=True)), arb(0)))
        )
        moved = sum((abs(c) * x.error[i] + abs(c - d) * abs(x.exact[i]) for c, d, x in pairs), arb(0))
        total = moved + gamma * through + flushed
        error.append(total.upper() if through + total < a.largest else arb("inf"))
        passed.append(sum((abs(c) * x.approximation[i] for c, _, x in pairs), arb(0)).upper())
        exact.append(sum((d * x.exact[i] for _, d, x in pairs), arb(0)))
    return Carried(exact, error, passed, _summed([(d, x.form) for _, d, x in pairs]))


def _summed(parts: list[tuple[arb, Form | None]]) -> Form | None:
    known = [(d, form) for d, form in parts if form is not None]
    if len(known) < len(parts):
        return None
    rows = [
        [
            sum((d * v for (d, _), v in zip(known, column, strict=True)), arb(0))
            for column in zip(*lines, strict=True)
        ]
        for lines in zip(*(form.rows for _, form in known), strict=True)
    ]
    centres = zip(*(form.centre for _, form in known), strict=True)
    return Form(rows, [sum((d * v for (d, _), v in zip(known, c, strict=True)), arb(0)) for c in centres])


def _mapped(form: Form, slope: Balls, constant: Balls) -> Form:
    rows = [[k * v for v in row] for k, row in zip(slope, form.rows, strict=True)]
    return Form(rows, [k * c + m for k, c, m in zip(slope, form.centre, constant, strict=True)])


def _confirm(claim: Certificate, entering: Carried, leaving: Carried) -> None:
    for what, found, said in (("in", entering, claim.facts["error_in"]), ("out", leaving, claim.bound)):
        worst = max(map(upper, found.error))
        if not worst <= said:
            raise CheckError(
                f"{claim.name}: its error {what} is found to be {worst:.6g}, the certificate says {said:.6g}"
            )


def _ends(balls: Balls) -> tuple[Array, Array]:
    return np.array([lower(b) for b in balls]), np.array([upper(b) for b in balls])


def _between(lo: Array, hi: Array) -> Balls:
    return [
        arb(x) / 2 + arb(y) / 2 + arb(0, upper(arb(y) / 2 - arb(x) / 2))
        if np.isfinite([x, y]).all()
        else arb(0, "inf")
        for x, y in zip(lo.tolist(), hi.tolist(), strict=True)
    ]


def _gamma(k: int, a: Arithmetic) -> arb:
    ku = arb(k) * arb(a.unit)
    return ku / (1 - ku) if ku < 0.5 else arb("inf")


def _tokens(shape: Shape) -> int:
    return int(np.prod(shape[:-1], dtype=int))


def _bias(stage: Layer) -> list[float]:
    found: list[float] = (
        np.zeros(len(stage.tensors["weight"])).tolist()
        if "bias" not in stage.tensors
        else stage.tensors["bias"].astype(np.float64).tolist()
    )
    return found


def _columns(balls: Balls, tokens: int) -> list[Balls]:
    """One column for each token."""
    features = len(balls) // tokens
    return [balls[t * features : (t + 1) * features] for t in range(tokens)]


def _matrix(columns: list[Balls]) -> arb_mat:
    return arb_mat([list(row) for row in zip(*columns, strict=True)])


def _rows(product: arb_mat, added: Balls) -> Balls:
    """The columns of a product below one another, with a vector added to each."""
    return [product[i, t] + added[i] for t in range(product.ncols()) for i in range(product.nrows())]
