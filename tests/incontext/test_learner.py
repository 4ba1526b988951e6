"""gradient_descent: agreement with exact gradient descent, its bound, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attnc
from attnc.arithmetic import ARITHMETIC
from attnc.incontext import Learner, Loss, Radius, gradient_descent
from attnc.incontext.layers import gather_error, gathered
from tests.incontext.exact import descend
from tests.network.executed import impurities

WIDE = torch.float64
LOSSES = ["squared", "ridge(0.1)", "logistic", "poisson", "huber(1.35)", "lasso(0.05)", "quantile(0.3)"]


def context(loss: str, n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standardised examples, and labels that fit the loss."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draw, dtype=WIDE)
    x = ((x - x.mean(0)) / x.std(0)).clamp(-5, 5)
    u = x @ (torch.randn(d, generator=draw, dtype=WIDE) / 3)
    if loss == "logistic":
        return x, (torch.rand(n, generator=draw, dtype=WIDE) < torch.sigmoid(3 * u)).double()
    if loss == "poisson":
        return x, torch.poisson(torch.exp(u), generator=draw).clamp(max=30)
    return x, u + 0.3 * torch.randn(n, generator=draw, dtype=WIDE)


def learner(loss: str, x: Tensor, steps: int, dtype: torch.dtype) -> Learner:
    wide = 6.0 if loss == "poisson" else 20.0
    curvature = float(torch.linalg.eigvalsh(x.T @ x / len(x)).max()) * {
        "poisson": 410.0,
        "quantile(0.3)": 2.5,
    }.get(loss, 1.0)
    return gradient_descent(
        loss,
        features=x.shape[1],
        steps=steps,
        step_size=1 / (curvature + 0.1),
        radius=Radius(5, 30, 5, wide),
        dtype=dtype,
    )


@pytest.mark.parametrize(
    "loss", [*LOSSES[:3], *(pytest.param(loss, marks=pytest.mark.slow) for loss in LOSSES[3:])]
)
@pytest.mark.parametrize(
    ("dtype", "allowed"), [(WIDE, 1e-6), (torch.float32, 1e-3)], ids=["float64", "float32"]
)
def test_a_hundred_steps_agree_with_exact_gradient_descent(
    loss: str, dtype: torch.dtype, allowed: float
) -> None:
    """n = 200, d = 10: the figures asked (for lasso 1e-5 in float64; this is 1e-6), and the bound."""
    x, y = context(loss, 200, 10)
    made = learner(loss, x, 100, dtype)
    x, y = x.to(dtype), y.to(dtype)
    found = made.coefficients(x, y).double().numpy()
    meant = descend(loss, x.double().numpy(), y.double().numpy(), 100, made.step_size)
    error = float(np.sqrt(np.square(found - meant).sum()))
    assert error < allowed
    assert error <= made.error_bound(200, made.curvature(x)) <= made.error_bound(200)
    if dtype == WIDE:
        assert made.error_bound(200) < 1e-4


def test_the_same_weights_for_every_length() -> None:
    x, y = context("ridge(0.1)", 3000, 4)
    made = learner("ridge(0.1)", x, 20, WIDE)
    for n in (1, 10, 100, 3000):
        meant = descend("ridge(0.1)", x[:n].numpy(), y[:n].numpy(), 20, made.step_size / 4)
        slow = gradient_descent(
            "ridge(0.1)", features=4, steps=20, step_size=made.step_size / 4, radius=Radius(5, 30, 5, 20)
        )
        assert np.abs(slow.coefficients(x[:n], y[:n]).numpy() - meant).max() < 1e-9


def test_trajectory_and_predictions() -> None:
    x, y = context("logistic", 50, 3)
    made = learner("logistic", x, 15, WIDE)
    path = made.trajectory(x, y)
    assert path.shape == (16, 3) and not path[0].any()
    assert torch.equal(path[-1], made.coefficients(x, y))
    for t in (1, 7, 15):
        meant = descend("logistic", x.numpy(), y.numpy(), t, made.step_size)
        assert np.abs(path[t].numpy() - meant).max() < 1e-9
    query = x[:5]
    assert torch.allclose(made(x, y, query), torch.sigmoid(query @ path[-1]), atol=1e-9)


def test_what_it_says_of_itself() -> None:
    made = gradient_descent("ridge(0.5)", features=3, steps=4, radius=2.0)
    assert "loss=ridge, features=3, steps=4" in repr(made)
    assert made.certificate.bound >= made.error_bound(1000) >= made.error_bound(10)
    assert len(str(made.certificate).splitlines()) <= 5


def test_an_intercept() -> None:
    x, y = context("squared", 60, 2)
    made = gradient_descent(
        "squared", features=2, steps=300, step_size=0.5, radius=Radius(5, 30, 5, 20), intercept=True
    )
    w = made.coefficients(x, y + 3)
    assert w.shape == (3,) and abs(float(w[-1]) - 3 - float(y.mean())) < 1e-3
    assert made(x, y + 3, x[:4]).shape == (4,)


@pytest.mark.parametrize("loss", ["ridge(0.5)", "lasso(0.2)"])
def test_no_penalty_counts_the_intercept(loss: str) -> None:
    x, y = context("squared", 60, 2)
    made = gradient_descent(
        loss, features=2, steps=40, step_size=0.5, radius=Radius(5, 30, 5, 20), intercept=True
    )
    ones, w = np.concatenate([x.numpy(), np.ones((60, 1))], 1), np.zeros(3)
    level = 0.5 if loss.startswith("ridge") else 0.2
    for _ in range(40):
        pull = np.array([*w[:2], 0.0]) * (level if loss.startswith("ridge") else 0.0)
        w = w - 0.5 * (ones.T @ (ones @ w - y.numpy() - 2) / 60 + pull)
        if loss.startswith("lasso"):
            w[:2] = np.sign(w[:2]) * np.maximum(np.abs(w[:2]) - 0.5 * level, 0)
    assert np.abs(made.coefficients(x, y + 2).numpy() - w).max() < 1e-7
    literal = made.as_self_attention()
    found = literal.read(literal.stream(x, y + 2), "w", of="weight")[0]
    assert torch.allclose(found, made.coefficients(x, y + 2), atol=1e-8)
    curvature = made.curvature(torch.from_numpy(ones))
    assert made.error_bound(60, curvature) == made.error_bound(60)


def test_a_loss_of_your_own() -> None:
    """log cosh, by its derivative."""
    made = gradient_descent(attnc.functions.tanh(), features=2, steps=10, step_size=0.3, radius=3.0)
    x, y = context("squared", 40, 2)
    x, y = x.clamp(-3, 3), y.clamp(-3, 3)
    w = np.zeros(2)
    for _ in range(10):
        w = w - 0.3 * x.numpy().T @ np.tanh(x.numpy() @ w - y.numpy()) / 40
    assert np.abs(made.coefficients(x, y).numpy() - w).max() < 1e-9


def test_nothing_but_affine_maps_and_softmax() -> None:
    x, y = context("logistic", 6, 2)
    made = learner("logistic", x, 2, WIDE)

    class OneStep(torch.nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            s = x @ w
            u = made.reading(s)
            assert made.activation is not None
            one, two = gathered(made.activation(u) - y, x, made.settings.e)
            return w - one - two

    assert impurities(OneStep(), torch.zeros(2, dtype=WIDE)) == []


def test_the_step_size_that_cannot_diverge() -> None:
    made = gradient_descent("ridge(0.5)", features=3, steps=4, radius=2.0)
    assert made.step_size == pytest.approx(1 / (3 * 4 + 0.5))
    corner = torch.full((5, 3), 2.0, dtype=WIDE)
    assert made.coefficients(corner, torch.ones(5, dtype=WIDE)).isfinite().all()


def test_the_literal_form_repeated_and_unrolled() -> None:
    x, y = context("logistic", 9, 3)
    made = learner("logistic", x, 4, WIDE)
    repeated, unrolled = made.as_self_attention(), made.as_self_attention(unrolled=True)
    assert torch.allclose(repeated(x, y, x[:3]), made(x, y, x[:3]), atol=1e-9)
    assert torch.equal(unrolled.stream(x, y), repeated.stream(x, y))
    assert torch.allclose(unrolled(x, y, x[:3]), made(x, y, x[:3]), atol=1e-9)
    assert len(repeated.steps) == 3 and len(unrolled.steps) == len(repeated.order) == 4 * 3 + 2


# Bad input.


def bad(
    said: str, x: Any = None, y: Any = None, query: Any = None, loss: str = "squared", **options: Any
) -> None:
    good_x, good_y = torch.ones(4, 2, dtype=WIDE), torch.ones(4, dtype=WIDE)
    with pytest.raises(attnc.errors.InputError, match=said):
        made = gradient_descent(
            loss, **{"features": 2, "steps": 3, "step_size": 0.1, "radius": 4.0, **options}
        )
        made(*(g if v is None else v for v, g in ((x, good_x), (y, good_y), (query, good_x))))


def test_data_that_are_refused() -> None:
    nan = torch.tensor([[1.0, float("nan")]], dtype=WIDE)
    bad(r"nan at \(0, 1\)", x=nan, y=torch.ones(1, dtype=WIDE))
    bad("context_y.*inf", y=torch.full((4,), torch.inf, dtype=WIDE))
    bad(r"9 at \(0, 0\).* 4", x=torch.full((4, 2), 9.0, dtype=WIDE))
    bad(r"\(n, 2\).*\(4, 3\)", x=torch.ones(4, 3, dtype=WIDE))
    bad("query_x", query=torch.ones(0, 2, dtype=WIDE))
    bad(r"context_y.*\(4,\)", y=torch.ones(3, dtype=WIDE))
    bad(r"torch\.float64: got torch\.float32", x=torch.ones(4, 2, dtype=torch.float32))
    bad("got 2$", y=torch.full((4,), 2.0, dtype=WIDE), loss="logistic")
    bad("-1", y=torch.full((4,), -1.0, dtype=WIDE), loss="poisson", step_size=1e-4)
    bad("0.5", y=torch.full((4,), 0.5, dtype=WIDE), loss="poisson", step_size=1e-4)


def test_a_step_size_that_diverges_is_refused_with_the_largest_that_does_not() -> None:
    x, y = context("squared", 30, 2)
    made = gradient_descent("squared", features=2, steps=5, step_size=5.0, radius=Radius(5, 30, 5, 20))
    with pytest.raises(attnc.errors.InputError) as caught:
        made.coefficients(x, y)
    largest = float(str(caught.value).split()[-1])
    assert largest == pytest.approx(2 / float(torch.linalg.eigvalsh(x.T @ x / 30).max()), rel=1e-4)
    fine = gradient_descent(
        "squared", features=2, steps=5, step_size=0.999 * largest, radius=Radius(5, 30, 5, 20)
    )
    assert fine.coefficients(x, y).isfinite().all()


def test_words_that_are_refused() -> None:
    for loss in ("hinge", "ridge()", "ridge(-1)", "huber(0)", "quantile(1)", "ridge(x)", "squared(2)", 3):
        bad("loss=", loss=loss)  # type: ignore[arg-type]
    bad("features", features=0)
    bad("steps", steps=1.5)
    bad("step_size", step_size=-1.0)
    bad("radius", radius=0)
    bad("radius", radius="wide")
    with pytest.raises(attnc.errors.InputError):
        gradient_descent(attnc.functions.sin(), features=1, steps=1, radius=3.0)


def test_a_query_beyond_what_the_reading_head_serves() -> None:
    x = torch.eye(2, dtype=WIDE)
    made = gradient_descent("squared", features=2, steps=30, step_size=1.0, radius=Radius(3, 4, 4, 4))
    y = torch.tensor([2.0, 2.0], dtype=WIDE)
    with pytest.raises(attnc.errors.InputError):
        made(x, y, torch.tensor([[3.0, 3.0]], dtype=WIDE))
    assert made(x, y, torch.tensor([[3.0, 3.0]], dtype=WIDE), strict=False).isfinite().all()
    assert made.uncertified == "a query lies outside the radius"
    made(x, y, x, strict=False)
    assert made.uncertified is None


def test_a_certificate_is_about_the_numbers_that_run() -> None:
    """Another dtype, other numbers, another arithmetic: refused, or run without a promise."""
    x, y = context("logistic", 20, 2)
    made = learner("logistic", x, 5, WIDE)
    assert made.why_not_certified() is None
    with torch.no_grad():
        made.reading.value.mul_(1.01)
    assert "value" in str(made.why_not_certified())
    with pytest.raises(attnc.errors.InputError):
        made.coefficients(x, y)
    assert made.coefficients(x, y, strict=False).isfinite().all()
    assert "value" in str(made.uncertified)
    narrow = learner("logistic", x, 5, WIDE).float()
    with pytest.raises(attnc.errors.InputError):
        narrow.coefficients(x.float(), y.float())
    with pytest.raises(AttributeError):
        narrow.steps = 50  # type: ignore[misc]
    single = learner("squared", x, 5, torch.float32)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(attnc.errors.InputError):
            single.coefficients(x.float(), y.float())
    finally:
        torch.set_float32_matmul_precision("highest")


def test_losses_that_are_none() -> None:
    for parts in ({"ridge": -1.0}, {"lasso": -0.1}, {"ridge": float("nan")}, {"function": torch.tanh}):
        with pytest.raises(attnc.errors.InputError):
            Loss("mine", **parts)  # type: ignore[arg-type]
    assert Loss("mine", attnc.functions.exp()).local and not Loss("mine", attnc.functions.sigmoid()).local
    made = gradient_descent("ridge", features=2, steps=3, radius=2.0)
    for arguments in ((0,), (-9,), (2.5,), (9, float("nan")), (9, -1.0)):
        with pytest.raises(attnc.errors.InputError):
            made.error_bound(*arguments)  # type: ignore[arg-type]


def test_what_leaves_the_radius_is_refused_or_runs_without_a_promise() -> None:
    x = torch.tensor([[0.1], [0.2]], dtype=WIDE)
    y = torch.tensor([3.0, 4.0], dtype=WIDE)
    made = gradient_descent("squared", features=1, steps=400, step_size=20.0, radius=4.0)
    with pytest.raises(attnc.errors.InputError):
        made.coefficients(x, y)
    assert made.coefficients(x, y, strict=False).isfinite().all()
    assert "|w| reached" in str(made.uncertified)
    made.coefficients(x, y / 100, strict=False)
    assert made.uncertified is None  # within the radius after all
    made.coefficients(x, y + 9, strict=False)
    assert "|context_y| reached" in str(made.uncertified)


@pytest.mark.parametrize("loss", ["ridge(0.3)", "lasso(0.1)", "logistic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_term_of_the_bound_counts(loss: str, dtype: torch.dtype) -> None:
    """Each term of a step is at least what its part can do alone, and an adversary who shifts every coordinate by their sum in
    every step of an algorithm that does not contract is within the bound."""
    made = gradient_descent(loss, features=3, steps=7, radius=2.0, dtype=dtype)
    known, bounds, n = made.settings, made._bounds("bound"), 50
    terms, (size, off) = bounds.step_error(50), bounds.residual()
    found = gather_error(known.e, n, size, known.radius.x, ARITHMETIC[known.dtype])
    assert known.e > 0 and off > 0 and found.approximation > 0 and found.one > 0
    assert terms["reading and activation"] >= known.step_size * off * known.radius.x
    assert terms["gathering"] >= known.step_size * found.approximation
    assert terms["rounding"] >= known.step_size / known.e * (4 / 3 * found.one + found.two / 6)
    assert (made.threshold is not None) == loss.startswith("lasso")
    if made.threshold is not None:
        assert terms["threshold"] >= made.threshold.certificate.bound > 0
    w = np.zeros(3)
    for _ in range(known.steps):
        w += sum(terms.values())
    assert bounds.bound(n) >= np.linalg.norm(w)
