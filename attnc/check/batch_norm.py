"""The bound of a normalisation with stored statistics: ŷ = r∘x̂ + c against y = s∘x + t.

|ŷ - y| <= |r|e + |r - s||x| + |c - t| + γ₂(|r x̂| + |c|) + underflow,    s = gain/√(variance + ε),  t = shift - s·mean"""

from __future__ import annotations

import numpy as np

from attnc.check.values import EPS, Long, Passing, Value, gamma, long, up
from attnc.program import BatchNorm, Scale


def bound(at: Passing) -> Value:
    (x,), a, step = at.inputs, at.arithmetic, at.step
    assert isinstance(step, BatchNorm | Scale)
    s, t, off = scale_and_shift(step)
    r, c = (long(at.layer.tensors[name]) for name in ("scale", "shift"))
    through = up(np.abs(r) * x.size + np.abs(c))
    moved = np.abs(r) * x.error + (np.abs(r - s) + 8 * EPS * np.abs(s)) * x.magnitude + np.abs(c - t) + off
    flushed = 4 * np.longdouble(a.tiny) * (1 + np.abs(r) + x.size)
    error = up(moved + gamma(2, a) * through + flushed)
    error = np.where(through + error < a.largest, error, np.longdouble(np.inf))
    ends = np.stack([x.lo * s + t, x.hi * s + t])
    pad = up(16 * EPS * (x.magnitude * np.abs(s) + np.abs(t)) + off)
    form = None if x.form is None else x.form.mapped(*np.broadcast_arrays(s, t, pad))
    approximation = np.where(x.approximation == 0, np.longdouble(0), up(np.abs(r) * x.approximation))
    return Value.of(ends.min(0) - pad, ends.max(0) + pad, error, approximation, form)


def scale_and_shift(step: BatchNorm | Scale) -> tuple[Long, Long, Long]:
    """s, within 8 units of its exact value, t, and how far t may be off."""
    if isinstance(step, Scale):
        return long(step.factor), long(step.shift), long(np.zeros(step.shift.shape))
    gain, variance, mean, shift = map(long, (step.gain, step.variance, step.mean, step.shift))
    scale = gain / np.sqrt(variance + np.longdouble(step.epsilon))
    return scale, shift - scale * mean, up(16 * EPS * (np.abs(scale * mean) + np.abs(shift)))
