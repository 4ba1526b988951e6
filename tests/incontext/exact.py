"""Exact gradient descent, in extended precision: what a learner is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.longdouble]


def residuals(loss: str, u: Wide, y: Wide) -> Wide:
    name, _, rest = loss.partition("(")
    number = np.longdouble(float(rest[:-1])) if rest else np.longdouble(0)
    one = np.longdouble(1)
    if name == "logistic":
        return one / (one + np.exp(-u)) - y
    if name == "poisson":
        return np.exp(u) - y
    if name == "huber":
        return np.clip(u - y, -number, number)
    if name == "quantile":
        return one / (one + np.exp(-(u - y) / np.longdouble(0.1))) - number
    return u - y


def descend(loss: str, x: NDArray, y: NDArray, steps: int, eta: float) -> Wide:  # type: ignore[type-arg]
    """w after so many steps from 0."""
    wide, labels, rate = x.astype(np.longdouble), y.astype(np.longdouble), np.longdouble(eta)
    name, _, rest = loss.partition("(")
    level = np.longdouble(float(rest[:-1])) if name in ("ridge", "lasso") else np.longdouble(0)
    w = np.zeros(x.shape[1], dtype=np.longdouble)
    for _ in range(steps):
        gradient = wide.T @ residuals(loss, wide @ w, labels) / len(wide)
        w = w - rate * (gradient + (level * w if name == "ridge" else 0))
        if name == "lasso":
            w = np.sign(w) * np.maximum(np.abs(w) - rate * level, 0)
    return w
