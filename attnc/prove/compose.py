"""How errors pass through a network: each stage's own error, and what it makes of the errors before it.

For every value v of the program three things are known, entry by entry: an interval of the exact v; v as an affine function of
the input, Aξ + c ± r with |ξ| <= ρ, which keeps what cancels between neurons; and e >= |executed - exact|. Then

    linear      e' = |Ŵ|e + |Ŵ - W||x| + |b̂ - b| + γ_{n+1}(|Ŵ|(|x| + e) + |b̂|)    n: the weights of a row that are not 0
    attention   e' = min(Lip·e, spread of f) + δ    if the head's interval holds [lo - e, hi + e]; δ its proved bound
    selection   e' as `lookup` proves it            if e = 0
    sum         e' = Σ|ĉ|e + |ĉ - c||x| + γ|ĉ|(|x| + e)

"Exact" is the source's own value: where its function deviates from f (torch's softplus beyond its threshold), intervals and forms
are widened by the deviation, and e grows by it. All in outward-rounded arithmetic; a sum of n products passes at most n + 1
roundings, in whatever order it is formed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Array, Box
from attnc.program import Affine, BatchNorm, Lookup, Pointwise
from attnc.program.program import Program
from attnc.prove.exact_affine import Enclosed, folded, plain, scaling
from attnc.prove.forms import Form, along, combined, input_form, mapped, reshaped
from attnc.prove.lookup import reached
from attnc.prove.outward import above, below, gamma, product, times, total
from attnc.prove.slopes import Slopes, slopes
from attnc.records.layers import Layer


@dataclass(frozen=True)
class Known:
    """What is proved of one value: lo <= exact <= hi, |executed - exact| <= error, and its affine form."""

    lo: Array
    hi: Array
    error: Array
    form: Form | None
    lipschitz: Array | None = None  # of the function that made it, on what it was given

    @property
    def size(self) -> Array:
        """At least the magnitude of the exact value."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    @property
    def reach(self) -> tuple[Array, Array]:
        """Between these lies what is executed."""
        return below(self.lo - self.error), above(self.hi + self.error)


def exact_numbers(program: Program, stage: Layer) -> tuple[Enclosed, Enclosed]:
    """The exact weight and bias of what the stage stands for."""
    last = program.steps[stage.value - 1]
    if isinstance(last, Affine):
        return plain(last)
    assert isinstance(last, BatchNorm)
    if stage.kind == "batch_norm":
        return scaling(last)
    first = program.steps[last.input - 1]
    assert isinstance(first, Affine)
    return folded(first, last)


def start(program: Program, box: Box) -> Known:
    """The input: anywhere in the box, without an error."""
    return Known(box.lo, box.hi, np.zeros(box.shape), input_form(box, program))


def advance(
    program: Program, stage: Layer, known: Mapping[int, Known], dtype: str, delta: Array | float = 0.0
) -> Known:
    """What is known of the value that a stage makes. `delta` bounds |head - f| of a layer of attention, neuron by
    neuron, on `reach` of its input: the interval that its heads must cover."""
    a = ARITHMETIC[dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        match stage.kind:
            case "affine":
                return _linear(stage, known[stage.input], *exact_numbers(program, stage), a)
            case "batch_norm":
                return _scale(stage, known[stage.input], *exact_numbers(program, stage), a)
            case "pointwise":
                return _attention(program, stage, known[stage.input], delta)
            case "lookup":
                return _selection(program, stage, known[stage.input], a)
            case "combine":
                return _sum(program, stage, [known[i] for i in stage.inputs], a)
            case _:
                return _reorder(stage, known[stage.input])


def compose(
    program: Program, stages: Sequence[Layer], box: Box, deltas: Mapping[int, Array | float], dtype: str
) -> dict[int, Known]:
    """What is known of every value that is computed, with the heads of value v within `deltas[v]`."""
    known = {0: start(program, box)}
    for stage in stages:
        known[stage.value] = advance(program, stage, known, dtype, deltas.get(stage.value, 0.0))
    return known


def _linear(stage: Layer, x: Known, weight: Enclosed, bias: Enclosed, a: Arithmetic) -> Known:
    size = np.abs(weight.number)
    gap = weight.gap(stage.tensors["weight"])
    stored = size if gap is None else np.abs(stage.tensors["weight"].astype(np.float64))
    constant = (
        np.zeros(len(stored)) if "bias" not in stage.tensors else stage.tensors["bias"].astype(np.float64)
    )
    executed = total(x.size, x.error)
    passing = total(product(stored, executed), np.abs(constant))
    n = stored.shape[1]
    error = total(
        product(stored, x.error),
        0.0 if gap is None else product(gap, x.size),
        total(above(np.abs(constant - bias.number)), bias.radius),
        times(_gammas(stored, a), passing),
        _flushed(a, n, stored, executed),
    )
    form = None if x.form is None else along(x.form, weight, size, bias)
    lo, hi = _interval(x, weight, size, bias)
    return _known(lo, hi, _finite(error, passing, a), form)


def _gammas(stored: Array, a: Arithmetic) -> Array:
    """γ_{n+1} by row: a product with 0 is 0, and adding it rounds nothing."""
    counts, row = np.unique(np.count_nonzero(stored, axis=1), return_inverse=True)
    return np.array([gamma(int(n) + 1, a.unit) for n in counts])[row]


def _interval(x: Known, weight: Enclosed, size: Array, bias: Enclosed) -> tuple[Array, Array]:
    """W m + b ± (|W| ρ + what rounding loses), m and ρ the middle and the half width of the interval."""
    middle = x.lo / 2 + x.hi / 2
    half = above(np.maximum(above(x.hi - middle), above(middle - x.lo)))
    centre = middle @ weight.number.T + bias.number
    lost = times(
        gamma(size.shape[1] + 1, 2.0**-53), total(product(size, np.abs(middle)), np.abs(bias.number))
    )
    radius = total(product(size, half), lost, bias.radius, size.shape[1] * 2.0**-1020)
    if weight.folded:
        radius = total(radius, product(np.asarray(weight.radius), total(np.abs(middle), half)))
    return below(centre - radius), above(centre + radius)


def _flushed(a: Arithmetic, n: int, stored: Array, executed: Array) -> Array:
    """Operands and results that are subnormal may be taken for zero."""
    entering = total(np.sum(executed, axis=-1, keepdims=True), np.sum(stored, axis=1), 3.0 * (n + 2))
    return times(2 * a.tiny, entering, 1 + n * 2.0**-50)


def _scale(stage: Layer, x: Known, scale: Enclosed, shift: Enclosed, a: Arithmetic) -> Known:
    stored, constant = (t.astype(np.float64) for t in (stage.tensors["scale"], stage.tensors["shift"]))
    executed = total(x.size, x.error)
    passing = total(times(np.abs(stored), executed), np.abs(constant))
    error = total(
        times(np.abs(stored), x.error),
        times(total(above(np.abs(stored - scale.number)), scale.radius), x.size),
        total(above(np.abs(constant - shift.number)), shift.radius),
        times(gamma(2, a.unit), passing),
        times(4 * a.tiny, total(1.0, np.abs(stored), executed)),
    )
    ends = np.stack([x.lo * scale.number, x.hi * scale.number])
    lost = total(
        times(scale.radius, x.size),
        shift.radius,
        times(2.0**-50, total(times(scale.size, x.size), shift.size)),
    )
    lo, hi = below(ends.min(0) + shift.number - lost), above(ends.max(0) + shift.number + lost)
    form = None if x.form is None else mapped(x.form, scale.number, shift.number, lost)
    return _known(lo, hi, _finite(error, passing, a), form)


def _attention(program: Program, stage: Layer, x: Known, delta: Array | float) -> Known:
    step = program.steps[stage.value - 1]
    assert isinstance(step, Pointwise)
    reach = x.reach
    if not all(np.isfinite(end).all() for end in reach):
        return _unknown(x.lo.shape)
    table = slopes(step.function, float(reach[0].min()), float(reach[1].max()), x.lo.size)
    steepest = table.lipschitz(*reach)
    low, high = table.band(*reach, np.zeros_like(x.lo))
    moved = np.where(x.error > 0, np.fmin(times(steepest, x.error), above(high - low)), 0.0)
    moved = total(moved, np.broadcast_to(delta, x.lo.shape))
    off = np.where(x.hi > step.beyond, step.deviation, 0.0)
    lo, hi = table.band(x.lo, x.hi, np.zeros_like(x.lo))
    form = None if x.form is None else _beside(table, x, x.form, off)
    known = _known(below(lo - off), above(hi + off), total(moved, off), form)
    return Known(known.lo, known.hi, known.error, known.form, steepest)


def _beside(table: Slopes, x: Known, form: Form, off: Array) -> Form:
    """f(v) = λv + μ ± ρ with λ the slope of the chord; the source's own function is `off` f by as much."""
    chord = table.chord(x.lo, x.hi)
    low, high = table.band(x.lo, x.hi, chord)
    middle = low / 2 + high / 2
    distance = above(np.maximum(above(high - middle), above(middle - low)))
    return mapped(form, chord, middle, total(distance, off))


def _selection(program: Program, stage: Layer, x: Known, a: Arithmetic) -> Known:
    """`lookup` has the proof; it is about inputs without an error."""
    step = program.steps[stage.value - 1]
    found = None
    if isinstance(step, Lookup) and not x.error.any():
        found = reached(step, stage, x.lo, x.hi, a)
    return (
        _unknown((stage.tensors["values"].shape[1],))
        if found is None
        else Known(found.lo, found.hi, found.error, None)
    )


def _sum(program: Program, stage: Layer, xs: Sequence[Known], a: Arithmetic) -> Known:
    step = program.steps[stage.value - 1]
    exact = getattr(step, "coefficients", stage.settings["coefficients"])
    executed = [total(x.size, x.error) for x in xs]
    passing = total(
        *(times(abs(c), y) for c, y in zip(stage.settings["coefficients"], executed, strict=True))
    )
    error = total(
        *(times(abs(c), x.error) for c, x in zip(stage.settings["coefficients"], xs, strict=True)),
        *(
            times(float(above(np.float64(abs(c - d)))), x.size)
            for c, d, x in zip(stage.settings["coefficients"], exact, xs, strict=True)
        ),
        times(gamma(len(xs) + 1, a.unit), passing),
        times(4 * len(xs) * a.tiny, total(1.0, *map(abs, stage.settings["coefficients"]), *executed)),
    )
    ends = [np.stack([c * x.lo, c * x.hi]) for c, x in zip(exact, xs, strict=True)]
    lost = times(2.0**-50, total(*(times(abs(c), x.size) for c, x in zip(exact, xs, strict=True))), len(xs))
    lo, hi = below(sum(e.min(0) for e in ends) - lost), above(sum(e.max(0) for e in ends) + lost)
    forms = [x.form for x in xs if x.form is not None]
    form = combined(forms, exact) if len(forms) == len(xs) else None
    return _known(lo, hi, _finite(error, passing, a), form)


def _reorder(stage: Layer, x: Known) -> Known:
    lo, hi, error = (v.reshape(stage.settings["to"]) for v in (x.lo, x.hi, x.error))
    return Known(lo, hi, error, None if x.form is None else reshaped(x.form, stage.settings["to"]))


def _known(lo: Array, hi: Array, error: Array, form: Form | None) -> Known:
    """The narrower of the two intervals, entry by entry."""
    if form is not None:
        low, high = form.interval()
        lo, hi = np.fmax(lo, low), np.fmin(hi, high)
    return Known(lo, hi, np.where(np.isnan(error), np.inf, error), form)


def _unknown(shape: tuple[int, ...]) -> Known:
    endless = np.full(shape, np.inf)
    return Known(-endless, endless, endless, None)


def _finite(error: Array, passing: Array, a: Arithmetic) -> Array:
    """No promise where a partial sum may overflow."""
    return np.where(total(passing, error) < a.largest, error, np.inf)
