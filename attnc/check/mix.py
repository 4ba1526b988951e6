"""The bound of a mixture of tokens: ŷ_i = Σ_j M̂_ij x̂_j against Σ_j M_ij x_j, k numbers of a row not 0.

|ŷ - y| <= |M̂|e + |M̂ - M||x| + γ_{k+1}|M̂||x̂| + underflow"""

from __future__ import annotations

import numpy as np

from attnc.check.upward import EPS, gamma, long, product, up, weighed
from attnc.check.values import Form, Passing, Value, value
from attnc.program import Mix


def bound(at: Passing) -> Value:
    (x,), step, a = at.inputs, at.step, at.arithmetic
    assert isinstance(step, Mix)
    M, stored, n = step.matrix, at.layer.tensors["matrix"], step.matrix.shape[1]
    middle, half = x.middle
    terms = long(np.count_nonzero(stored, axis=1))[:, None]
    through = weighed(stored, x.size)
    small = (np.abs(stored) < a.tiny) & (stored != 0)
    flushed = np.abs(long(stored)).sum(1, keepdims=True) + 4 * terms + 2 + product(small, x.size)
    error = weighed(stored, x.error) + weighed(long(stored) - long(M), x.magnitude)
    error = up(error + gamma(terms + 1, a) * through + 2 * np.longdouble(a.tiny) * flushed, n)
    error = np.where(through + error < a.largest, error, np.longdouble(np.inf))
    centre = product(M, middle)
    lost = (2 * n + 16) * EPS * weighed(M, np.abs(middle))
    radius = up(weighed(M, half) + lost + 8 * EPS * np.abs(centre))
    form = x.form
    if form is not None:
        flat = form.matrix.reshape(n, -1)
        matrix = product(M, flat).reshape(len(M), *form.matrix.shape[1:])
        lost = (2 * n + 16) * EPS * weighed(M, up(form.swing + np.abs(form.centre)))
        form = Form(matrix, product(M, form.centre), up(weighed(M, form.off) + lost), form.half)
    return value(centre - radius, centre + radius, error, weighed(stored, x.approximation), form)
