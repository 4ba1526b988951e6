"""No context leads a learner further from exact gradient descent than its bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attnc
from attnc.incontext import Radius, gradient_descent
from tests.incontext.exact import descend

LOSSES = ["squared", "ridge(0.3)", "lasso(0.1)", "logistic", "poisson", "huber(0.7)", "quantile(0.4)"]
SEEDS = [
    *range(7),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(7, 210)),
]  # 7: every loss; 14: in both dtypes


@pytest.mark.parametrize("seed", SEEDS)
def test_no_context_exceeds_the_bound(seed: int) -> None:
    """All losses, both dtypes; badly scaled, collinear and constant columns, corners of the radius, one example."""
    draw = np.random.default_rng(seed)
    loss, dtype = LOSSES[seed % 7], torch.float64 if seed % 2 else torch.float32
    n, d, steps = int(draw.integers(1, 60)), int(draw.integers(1, 6)), int(draw.integers(1, 30))
    x = draw.normal(size=(n, d)) * 10.0 ** draw.uniform(-4, 0.3, d)
    if draw.random() < 0.3:
        x[:, -1] = x[:, 0] * (1 + 1e-9)
    if draw.random() < 0.2:
        x = np.sign(x) * 2.0
    x = torch.from_numpy(np.clip(x, -2, 2)).to(dtype)
    w = draw.normal(size=d)
    u = np.clip(x.double().numpy() @ w, -3, 3)
    y = {
        "logistic": (draw.random(n) < 0.5).astype(float),
        "poisson": draw.poisson(np.exp(np.clip(u, -3, 1))).clip(0, 6),
    }.get(loss, u + draw.normal(size=n).clip(-2, 2))
    y = torch.from_numpy(np.asarray(y, dtype=np.float64).clip(-6, 6)).to(dtype)
    made = gradient_descent(
        loss, features=d, steps=steps, radius=Radius(2, 6, 50, 4 if loss == "poisson" else 60), dtype=dtype
    )
    curvature = made.curvature(x) + made.loss.ridge
    if curvature * made.step_size < 0.5:  # a step as large as the context allows is the harder case
        made = gradient_descent(
            loss, features=d, steps=steps, step_size=1.9 / curvature if draw.random() < 0.5 else 1 / curvature,
            radius=made.radius, dtype=dtype,
        )  # fmt: skip
    try:
        found = made.coefficients(x, y).double().numpy()
    except attnc.errors.InputError as left:
        assert "reached" in str(left)
        return
    meant = descend(loss, x.double().numpy(), y.double().numpy(), steps, made.step_size)
    error = float(np.sqrt(np.square(found - meant).sum()))
    assert error <= made.error_bound(n) and error <= made.error_bound(n, made.curvature(x))
