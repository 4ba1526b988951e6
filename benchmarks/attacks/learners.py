"""Learners under attack: random contexts within the radius, against gradient descent in ball arithmetic."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from flint import arb

from attacks.tally import Outcome
from attnc.errors import AttncError
from attnc.functions.balls import upper, working
from attnc.incontext import Radius, gradient_descent
from tests.incontext.exact import descend

LOSSES = (
    "squared",
    "ridge(0.1)",
    "logistic",
    "poisson",
    "huber(1.35)",
    "lasso(0.05)",
    "quantile(0.3)",
    "ridge(2)",
)
SUSPECT = 0.5
BITS = 256
Array = Any


def context(rng: np.random.Generator, loss: str, n: int, d: int) -> tuple[Array, Array]:
    """Examples within the radius: normal, or at its corners, or of tiny and large columns."""
    kind = int(rng.integers(3))
    x = rng.standard_normal((n, d)).clip(-3, 3)
    if kind == 1:
        x = rng.choice([-3.0, 3.0], size=(n, d))
    if kind == 2:
        x = x * 10.0 ** rng.uniform(-4, 0, d)
    u = x @ rng.standard_normal(d) / (3 * math.sqrt(d))
    if loss == "logistic":
        return x, (rng.random(n) < 1 / (1 + np.exp(-u))).astype(float)
    if loss == "poisson":
        return x, rng.poisson(np.exp(u.clip(-3, 2))).clip(0, 20).astype(float)
    return x, (u + 0.3 * rng.standard_normal(n)).clip(-20, 20)


def attack(seed: int, contexts: int = 24) -> Outcome:
    """The learner of a seed, on many contexts."""
    began, rng = time.perf_counter(), np.random.default_rng([4, seed])
    loss, d = LOSSES[seed % len(LOSSES)], int(rng.integers(1, 7))
    dtype = (torch.float64, torch.float32)[int(rng.integers(2))]
    steps = int(rng.integers(1, 40))
    outcome = Outcome("learners", f"{seed}: {loss}, d={d}, {steps} steps, {dtype}", "refused")
    steep = {"poisson": 410.0, "quantile(0.3)": 2.5}.get(loss, 1.0)
    eta = float(rng.uniform(0.2, 1.9)) / (9 * d * steep + 2)
    try:
        made = gradient_descent(
            loss,
            features=d,
            steps=steps,
            step_size=eta,
            radius=Radius(3, 20, 5, 6.0 if loss == "poisson" else 20.0),
            dtype=dtype,
        )
        for _ in range(contexts):
            _context(made, rng, loss, d, dtype, outcome)
    except AttncError as problem:
        outcome.note = f"{type(problem).__name__}: {str(problem)[:160]}"
    outcome.seconds = time.perf_counter() - began
    return outcome


def _context(
    made: Any, rng: np.random.Generator, loss: str, d: int, dtype: torch.dtype, outcome: Outcome
) -> None:
    n = int(rng.choice([1, 2, 5, 30, 200]))
    wide, labels = context(rng, loss, n, d)
    x, y = torch.from_numpy(wide).to(dtype), torch.from_numpy(labels).to(dtype)
    try:
        found = made.coefficients(x, y).double().numpy()
    except AttncError as problem:  # outside the radius on its way: nothing is claimed
        outcome.note = outcome.note or str(problem)[:160]
        return
    bound = min(made.error_bound(n), made.error_bound(n, made.curvature(x)))
    outcome.inputs += n
    if not math.isfinite(bound):
        return
    x64, y64 = x.double().numpy(), y.double().numpy()
    meant = descend(loss, x64, y64, made.steps, made.step_size)
    error = float(np.sqrt(np.square(found - meant).sum()))
    if error / bound > SUSPECT:
        error = exactly(loss, x64, y64, made.steps, made.step_size, found)
    outcome.verdict = "converted" if outcome.verdict == "refused" else outcome.verdict
    if error / bound >= outcome.ratio:
        outcome.ratio, outcome.claimed, outcome.measured = error / bound, bound, error
    if error > bound:
        outcome.verdict = "false"


def exactly(loss: str, x: Array, y: Array, steps: int, eta: float, found: Array) -> float:
    """At least |found - w_T|₂, exact gradient descent in balls."""
    name, _, rest = loss.partition("(")
    with working(BITS):
        number = arb(float(rest[:-1])) if rest else arb(0)
        rows = [[arb(float(t)) for t in row] for row in x]
        labels, rate = [arb(float(t)) for t in y], arb(eta)
        w = [arb(0)] * x.shape[1]
        for _ in range(steps):
            r = [_residual(name, number, sum((a * b for a, b in zip(row, w, strict=True)), arb(0)), t)
                 for row, t in zip(rows, labels, strict=True)]  # fmt: skip
            step = [
                sum((ri * row[j] for ri, row in zip(r, rows, strict=True)), arb(0)) / len(rows)
                for j in range(len(w))
            ]
            w = [
                a - rate * (g + (number * a if name == "ridge" else 0)) for a, g in zip(w, step, strict=True)
            ]
            if name == "lasso":
                level = rate * number
                w = [(a - level).max(arb(0)) - (-a - level).max(arb(0)) for a in w]
        gaps = [arb(float(v)) - a for v, a in zip(found, w, strict=True)]
        return float(upper(sum((g * g for g in gaps), arb(0)).sqrt()))


def _residual(name: str, number: arb, u: arb, y: arb) -> arb:
    if name == "logistic":
        return 1 / (1 + (-u).exp()) - y
    if name == "poisson":
        return u.exp() - y
    if name == "huber":
        return (u - y).max(-number).min(number)
    if name == "quantile":
        return 1 / (1 + (-(u - y) / arb(0.1)).exp()) - number
    return u - y
