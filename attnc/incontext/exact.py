"""The exact algorithm in float64: what a learner imitates, for pictures and comparisons; nothing is proved by it."""

from __future__ import annotations

import numpy as np
import torch

from attnc.domain import Array
from attnc.errors import FunctionError
from attnc.incontext.losses import Loss


def exact_trajectory(
    loss: Loss, x: Array, y: Array, steps: int, step_size: float, intercept: bool = False
) -> Array:
    """Exact gradient descent in float64, (steps + 1, d): w ← w - η((1/n) Σ r_i x_i + λw), of lasso with the soft threshold.

    An `intercept` is the last coefficient, its column of x is of ones, and no penalty counts it. A step size that diverges
    ends in inf or NaN.

    >>> from attnc.incontext.losses import loss_named
    >>> exact_trajectory(loss_named("squared"), np.array([[1.0], [1.0]]), np.array([1.0, 3.0]), 2, 0.5).tolist()
    [[0.0], [1.0], [1.5]]
    """
    w = np.zeros(x.shape[1])
    found, free = [w], np.arange(x.shape[1]) == (x.shape[1] - 1 if intercept else -1)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            try:
                r = residuals(loss, x @ w, y)
            except FunctionError:  # ψ is not finite there
                r = np.full(len(x), np.nan)
            w = w - step_size * (x.T @ r / len(x) + loss.ridge * np.where(free, 0, w))
            level = step_size * loss.lasso
            w = np.where(free, w, np.sign(w) * np.maximum(np.abs(w) - level, 0)) if loss.lasso > 0 else w
            found.append(w)
    return np.stack(found)


def residuals(loss: Loss, u: Array, y: Array) -> Array:
    """r = ψ(u) - y, or ψ(u - y) for a loss of the residual.

    >>> from attnc.incontext.losses import loss_named
    >>> residuals(loss_named("huber(1)"), np.array([5.0]), np.array([2.0]))
    array([1.])
    """
    if loss.function is None:
        return u - y
    s = torch.from_numpy(np.asarray(u - y if loss.of_residual else u, dtype=np.float64))
    psi: Array = loss.function(s).numpy()
    return psi if loss.of_residual else psi - y
