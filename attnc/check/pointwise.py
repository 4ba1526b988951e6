"""The bound of a pointwise layer: every neuron has a head that was proved within T of f on an interval.

    |ĥ - f(s)| <= min(L·e, spread of f) + T,    |ĥ| <= F + T

with |ŝ - s| <= e, the slope L and the size F of f wherever ŝ may be, which the interval of the head must contain. Where the
source deviates from f (`Pointwise.deviation`), that is added."""

from __future__ import annotations

import numpy as np

from attnc.check.slopes import CellTable
from attnc.check.values import CheckError, HeadErrors, Long, Passing, Value, floats, largest, long, up
from attnc.domain import Array
from attnc.program import Pointwise


def bound(at: Passing) -> Value:
    (x,), step, heads = at.inputs, at.step, at.errors
    assert isinstance(step, Pointwise) and isinstance(heads, HeadErrors)
    _check_cover(*x.reach, heads)
    shape, (lo, hi), (low, high) = x.lo.shape, floats(x.lo, x.hi), floats(*x.reach)
    table = CellTable(step.function, float(low.min()), float(high.max()), np.stack([low, high]))
    slope = long(table.steepest(low.ravel(), high.ravel())).reshape(shape)
    bottom, top = _line(table, low, high, np.zeros(shape))
    off = np.where(x.hi <= step.beyond, 0.0, step.deviation)
    spread, size = up(top - bottom), largest(bottom, top)
    moved = [np.fmin(up(slope * part), spread) for part in (x.error, x.approximation)]
    executed, approximation = long(heads.executed), long(heads.approximation)
    bottom, top = _line(table, lo, hi, np.zeros(shape))
    form = None
    if x.form is not None:
        chord = table.chord(lo.ravel(), hi.ravel()).reshape(shape)
        below, above = _line(table, lo, hi, chord)
        middle = below / 2 + above / 2
        beside = up(np.maximum(above - middle, middle - below) + off)
        form = x.form.mapped(long(chord), middle, beside)
    return Value(
        lo=bottom - off,
        hi=top + off,
        error=up(moved[0] + executed + off),
        approximation=up(moved[1] + approximation + off),
        size=up(size + executed),
        form=form,
    )


def _line(table: CellTable, lo: Array, hi: Array, slope: Array) -> tuple[Long, Long]:
    """f(s) - slope·s on [lo, hi] lies between these."""
    below, above = table.line(lo.ravel(), hi.ravel(), slope.ravel())
    return long(below).reshape(lo.shape), long(above).reshape(lo.shape)


def _check_cover(low: Long, high: Long, heads: HeadErrors) -> None:
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise CheckError("nothing is known of the input")
    low, high = low.min(0), high.max(0)
    outside = ~((long(heads.lo) <= low) & (high <= long(heads.hi)))
    if outside.any():
        j = int(np.argmax(outside))
        raise CheckError(
            f"the input of neuron {j} ranges over [{float(low[j]):.6g}, {float(high[j]):.6g}], but its head is proved on "
            f"[{heads.lo[j]:g}, {heads.hi[j]:g}]"
        )
