"""Tuned heads: keys and values are optimised, by variable projection over breakpoints and sharpness.

A head of p keys has p values, which enter linearly, and 2(p - 1) breakpoints and log-sharpnesses, which do not. For given keys
the best values solve least squares; Levenberg-Marquardt with Kaufman's Jacobian moves the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnc.errors import ConvergenceError
from attnc.heads import patience
from attnc.heads.chain import Chain, overhanging
from attnc.heads.draft import Draft, columns, finish, lawson_step, least_squares
from attnc.heads.target import Target
from attnc.records.numbers import Array

# (sharpness, anchors beyond each end) of the lattices from which tuning starts
STARTS = ((1.0, 0.0), (0.5, 0.0), (0.25, 0.5), (1.0, 1.0))
LAWSON_ROUNDS, LAWSON_STEPS = 6, 20
_STEPS = 4  # a step costs as much as least squares with so many times the columns


@dataclass(frozen=True)
class State:
    """A chain (log λ, t) with the values that suit it best, and the residual of the least squares."""

    log_sharpness: Array
    breakpoints: Array
    matrix: Array  # columns of the linear model at the sample
    values: Array
    orthogonal: Array  # Q of the weighted matrix: the range that values can reach
    residual: Array
    cost: float

    @property
    def chain(self) -> Chain:
        return Chain(np.exp(self.log_sharpness), self.breakpoints)


class Tuning:
    """Least squares of one target with given emphasis on its sample points."""

    def __init__(self, target: Target, own: Array, emphasis: Array) -> None:
        self.target, self.own, self.emphasis = target, own, emphasis
        self.ridge = target.ridge * np.sqrt(len(target.x))

    def state(self, log_sharpness: Array, breakpoints: Array) -> State | None:
        """None if the chain exceeds the range of floating point."""
        p = len(log_sharpness) + 1
        if not (np.abs(log_sharpness) < 200).all() or not np.isfinite(breakpoints).all():
            return None
        keys = Chain(np.exp(log_sharpness), breakpoints).keys()
        matrix = columns(keys[None], self.own[None], self.target.x, self.target.to_s(self.target.x))
        tall = np.concatenate([matrix * self.emphasis[:, None], self.ridge * np.eye(p)])
        goal = np.concatenate([self.target.y * self.emphasis, np.zeros(p)])
        if not np.isfinite(tall).all():
            return None
        orthogonal, values = least_squares(tall, goal)
        residual = tall @ values - goal
        cost = float(residual @ residual)
        return State(log_sharpness, breakpoints, matrix, values, orthogonal, residual, cost)

    def jacobian(self, now: State) -> Array:
        """d residual / d(log λ, t) with the values following along: Kaufman's projection of ∂(matrix)·values.

        ∂g/∂c_k = w_k (v_k - g) and ∂g/∂κ_k = x ∂g/∂c_k; breakpoint i moves every key beyond it."""
        s = self.target.to_s(self.target.x)[:, None]
        weights = np.where(self.own, now.matrix / np.where(s == 0, 1.0, s), now.matrix)
        contribution = np.where(self.own, now.values * s, now.values)
        by_intercept = weights * (contribution - (now.matrix @ now.values)[:, None])
        beyond = np.cumsum(by_intercept[:, ::-1], axis=1)[:, ::-1][:, 1:]
        lam = np.exp(now.log_sharpness)
        away = self.target.x[:, None] - now.breakpoints
        moved = np.concatenate([away * lam * beyond, -lam * beyond], axis=1)
        tall = np.concatenate([moved * self.emphasis[:, None], np.zeros((len(now.values), moved.shape[1]))])
        return np.asarray(tall - now.orthogonal @ (now.orthogonal.T @ tall))

    def run(self, start: Chain, steps: int) -> State | None:
        """Levenberg-Marquardt from a chain, until six steps together reduce the cost by less than a thousandth."""
        now = self.state(np.log(start.sharpness), start.breakpoints)
        damping, gains = 1e-2, [1.0]
        scale: Array | None = None
        for _ in range(steps):
            patience.check(len(self.target.x), _STEPS * (len(start.breakpoints) + 1))
            if now is None or now.cost == 0 or (len(gains) > 12 and sum(gains[-6:]) < 1e-3):
                break
            jacobian = self.jacobian(now)
            norms = np.sqrt((jacobian**2).sum(axis=0)) + 1e-300
            scale = norms if scale is None else np.maximum(0.9 * scale, norms)
            better, damping = self._step(now, jacobian, scale, damping)
            if better is None:
                break
            gains.append(1 - better.cost / now.cost)
            now = better
        return now

    def _step(self, now: State, jacobian: Array, scale: Array, damping: float) -> tuple[State | None, float]:
        left, singular, right = np.linalg.svd(jacobian / scale, full_matrices=False)
        along = left.T @ -now.residual
        half = len(now.log_sharpness)
        for _ in range(10):
            step = right.T @ (singular / (singular**2 + damping) * along) / scale
            step *= min(1.0, 1.0 / max(float(np.abs(step[:half]).max(initial=0.0)), 1e-300))
            tried = self.state(now.log_sharpness + step[:half], now.breakpoints + step[half:])
            if tried is not None and tried.cost < now.cost:
                return tried, max(damping / 6, 1e-14)
            damping *= 5
        return None, damping


def tuned(target: Target, p: int, enough: float = 0.0, extra: Sequence[Chain] = ()) -> Draft:
    """The best of several tuned starts; a start that reaches `enough` ends the search. Large heads have fewer starts."""
    lattices = [overhanging(p, sharpness, beyond) for sharpness, beyond in STARTS if 2 * beyond < p - 1]
    starts = [*extra, *lattices]
    return tune(target, starts if p <= 16 else starts[:4], np.zeros(p, dtype=bool), "tuned", enough)


def grow(chain: Chain, target: Target, p: int) -> Chain:
    """A chain of p keys from a smaller one, with new breakpoints where the error is largest, as sharp as their neighbours."""
    own = np.zeros(chain.size, dtype=bool)
    sharpness, breakpoints = chain.sharpness, chain.breakpoints
    state = Tuning(target, own, np.ones(len(target.x))).state(np.log(sharpness), breakpoints)
    if state is None:
        return chain
    error = np.abs(state.matrix @ state.values - target.y)
    for _ in range(p - chain.size):
        worst = int(np.argmax(error))
        error[max(0, worst - 6) : worst + 7] = 0.0
        at = int(np.searchsorted(breakpoints, target.x[worst]))
        nearest = int(np.argmin(np.abs(breakpoints - target.x[worst])))
        sharpness = np.insert(sharpness, at, sharpness[nearest])
        breakpoints = np.insert(breakpoints, at, target.x[worst])
    return Chain(sharpness, breakpoints)


def tune(target: Target, starts: Sequence[Chain], own: Array, design: str, enough: float) -> Draft:
    """Tune from each start, then apply Lawson's weights to the best to lower its largest error.

    Results are compared as they would be stored, rounding included. Results far above `enough` are not refined."""
    emphasis, steps = np.ones(len(target.x)), 120 if len(own) <= 10 else 60
    state, draft, estimate = None, None, np.inf
    for tried, start in enumerate(starts):
        found = Tuning(target, own, emphasis).run(start, steps)
        if found is not None:
            made, error = _stored(found, target, own, design, emphasis)
            if draft is None or error < estimate:
                state, draft, estimate = found, made, error
        if estimate <= enough or (tried > 0 and estimate > 1e3 * enough > 0):
            break
    for _ in range(LAWSON_ROUNDS):
        if state is None or estimate <= enough / 2 or estimate > 10 * enough > 0:
            break
        emphasis = lawson_step(emphasis, np.abs(state.matrix @ state.values - target.y))
        state = Tuning(target, own, emphasis).run(state.chain, LAWSON_STEPS)
        if state is not None:
            made, error = _stored(state, target, own, design, emphasis)
            if error < estimate:
                draft, estimate = made, error
    if draft is None:
        what = f"tuning a head of {len(own)} anchors for {target.f.label}"
        raise ConvergenceError(f"{what} failed: use design='smooth' or 'nearest'")
    return draft


def _stored(state: State, target: Target, own: Array, design: str, emphasis: Array) -> tuple[Draft, float]:
    """The state as a draft, and its estimated error after rounding."""
    chain = state.chain
    draft = Draft(design, chain.keys()[None], state.values[None], own[None], emphasis, True, chain)
    return draft, finish(draft, target).estimate
