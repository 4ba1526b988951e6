"""The bound of a sum: Σ ĉ_i x̂_i against Σ c_i x_i.

|ŷ - y| <= Σ(|ĉ_i|e_i + |ĉ_i - c_i||x_i|) + γ_{n+1} Σ|ĉ_i x̂_i| + underflow"""

from __future__ import annotations

import numpy as np

from attnc.check.values import EPS, Form, Passing, Value, gamma, long, up
from attnc.program import Combine


def bound(at: Passing) -> Value:
    step, a = at.step, at.arithmetic
    assert isinstance(step, Combine)
    stored, exact = long(at.layer.settings["coefficients"]), long(step.coefficients)
    n, size, off = len(stored), np.abs(stored), np.abs(stored - exact)
    xs = [np.stack([getattr(x, name) for x in at.inputs]) for name in ("error", "size", "approximation")]
    magnitudes = np.stack([x.magnitude for x in at.inputs])
    through = up(np.tensordot(size, xs[1], 1), n)
    flushed = 4 * n * np.longdouble(a.tiny) * (1 + size.sum() + xs[1].sum(0))
    moved = np.tensordot(size, xs[0], 1) + np.tensordot(off, magnitudes, 1)
    error = up(moved + gamma(n + 1, a) * through + flushed, n)
    error = np.where(through + error < a.largest, error, np.longdouble(np.inf))
    ends = [np.stack([c * x.lo, c * x.hi]) for c, x in zip(exact, at.inputs, strict=True)]
    pad = up((2 * n + 8) * EPS * np.tensordot(np.abs(exact), magnitudes, 1), n)
    lo, hi = sum(e.min(0) for e in ends) - pad, sum(e.max(0) for e in ends) + pad
    forms = [x.form for x in at.inputs if x.form is not None]
    form = _form(forms, exact) if len(forms) == n else None
    approximation = np.where(xs[2].any(0), up(np.tensordot(size, xs[2], 1), n), np.longdouble(0))
    return Value.of(long(lo), long(hi), error, approximation, form)


def _form(forms: list[Form], c: np.ndarray) -> Form:
    n, pairs = len(forms), list(zip(c, forms, strict=True))
    sizes = sum(abs(d) * (form.swing + np.abs(form.centre)) for d, form in pairs)
    off = up(sum(abs(d) * form.off for d, form in pairs) + (2 * n + 8) * EPS * sizes, n)
    matrix, centre = (long(sum(d * getattr(f, name) for d, f in pairs)) for name in ("matrix", "centre"))
    return Form(matrix, centre, off, forms[0].half)
