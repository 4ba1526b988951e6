"""ridge_regression: digits that double, the bound, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attnc
from attnc.incontext import Solver, SolverRadius, ridge_regression

WIDE = torch.float64


def context(n: int, d: int, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draw, dtype=WIDE).clamp(-4, 4) * torch.logspace(0, -scale, d, dtype=WIDE)
    return x, (
        x @ torch.randn(d, generator=draw, dtype=WIDE) / 2 + 0.1 * torch.randn(n, generator=draw, dtype=WIDE)
    ).clamp(-6, 6)


def solved(x: Tensor, y: Tensor, ridge: float) -> Any:
    """The normal equations by numpy, refined once in extended precision."""
    wide, labels = x.double().numpy().astype(np.longdouble), y.double().numpy().astype(np.longdouble)
    a = wide.T @ wide / len(wide) + np.longdouble(ridge) * np.eye(x.shape[1], dtype=np.longdouble)
    b = wide.T @ labels / len(wide)
    inverse = np.linalg.inv(a.astype(np.float64))
    w = inverse @ b.astype(np.float64)
    for _ in range(4):
        w = w + (inverse @ (b - a @ w).astype(np.float64)).astype(np.longdouble)
    return w


def solver(x: Tensor, ridge: float, iterations: int, dtype: torch.dtype = WIDE) -> Solver:
    largest = float(torch.linalg.eigvalsh(x.T @ x / len(x)).max()) + ridge
    return ridge_regression(
        ridge,
        features=x.shape[1],
        iterations=iterations,
        radius=SolverRadius(4, 6, 12, 40),
        start=0.99 / largest,
        dtype=dtype,
    )


@pytest.mark.parametrize(
    ("dtype", "allowed"), [(WIDE, 1e-6), (torch.float32, 5e-3)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("ridge", [0.1, 1.0])
def test_a_dozen_iterations(ridge: float, dtype: torch.dtype, allowed: float) -> None:
    x, y = context(200, 10)
    made = solver(x, ridge, 12, dtype)
    path = made.trajectory(x.to(dtype), y.to(dtype)).double().numpy()
    errors = np.sqrt(np.square(path - solved(x.to(dtype), y.to(dtype), ridge)).sum(1)).astype(float)
    assert errors[-1] < allowed
    if dtype == WIDE:
        assert errors[-1] < 1e-9
        near = int(np.argmax(errors < 1e-2))
        assert errors[near + 2] < 1e-6  # digits double
        assert errors[-1] <= made.error_bound(200, *made.eigenvalues(x)) < 1e-2


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 60))]
)
def test_no_context_exceeds_the_bound(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, d = int(draw.integers(1, 80)), int(draw.integers(1, 6))
    dtype = WIDE if seed % 4 else torch.float32
    x, y = context(n, d, seed, float(draw.uniform(0, 2)))
    x, y = x.to(dtype), y.to(dtype)
    made = solver(x.double(), float(10.0 ** draw.uniform(-1, 0.5)), int(draw.integers(1, 14)), dtype)
    try:
        found = made.coefficients(x, y).double().numpy()
    except attnc.errors.InputError as left:
        assert "reached" in str(left)
        return
    error = float(np.sqrt(np.square(found - solved(x, y, made.settings.ridge)).sum()))
    assert error <= made.error_bound(n, *made.eigenvalues(x)) <= made.error_bound(n)


def test_an_intercept_and_predictions() -> None:
    x, y = context(80, 3)
    made = ridge_regression(
        0.05, features=3, iterations=16, radius=SolverRadius(4, 8, 30, 60), start=0.2, intercept=True
    )
    w = made.coefficients(x, y + 1)
    ones = torch.cat([x, torch.ones(80, 1, dtype=WIDE)], 1)
    assert np.abs(w.numpy() - solved(ones, y + 1, 0.05).astype(float)).max() < 1e-8
    assert torch.allclose(made(x, y + 1, x[:5]), ones[:5] @ w, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ridge": 0}, "ridge"),
        ({"ridge": float("nan")}, "ridge"),
        ({"features": 0}, "features"),
        ({"iterations": 0}, "iterations"),
        ({"radius": -1}, "radius"),
        ({"start": 0}, "start"),
        ({"start": 100.0}, "start=100"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_bad_input(options: dict[str, Any], said: str) -> None:
    x, y = context(20, 2)
    with pytest.raises(attnc.errors.InputError, match=said):
        settings = {"ridge": 0.5, "features": 2, "radius": SolverRadius(4, 6, 5, 20), **options}
        ridge_regression(settings.pop("ridge"), **settings).coefficients(x, y)


def test_a_radius_that_is_left() -> None:
    x, y = context(30, 2)
    made = ridge_regression(1e-3, features=2, iterations=14, radius=SolverRadius(4, 6, 0.5, 20), start=0.3)
    with pytest.raises(attnc.errors.InputError):
        made.coefficients(x * 0.1, y)
    assert made.coefficients(x * 0.1, y, strict=False).isfinite().all()


def test_a_query_beyond_what_the_reading_head_serves() -> None:
    made = ridge_regression(1e-3, features=1, iterations=16, radius=SolverRadius(1, 1e6, 100, 60), start=5.0)
    x, y = torch.tensor([[0.1]], dtype=WIDE), torch.tensor([1e5], dtype=WIDE)
    with pytest.raises(attnc.errors.InputError):
        made(x, y, torch.ones(1, 1, dtype=WIDE))
    for arguments in ((0,), (5, 1.0, 0.2), (5, float("nan"), 1.0)):
        with pytest.raises(attnc.errors.InputError):
            made.error_bound(*arguments)
    with pytest.raises(attnc.errors.InputError):
        made.float().coefficients(x.float(), y.float())
