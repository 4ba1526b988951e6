"""fit: a function of many inputs as a network, f(X) ≈ W2 tanh(W1 vec X + b1) + b2.

A tanh neuron is exactly one head with two anchors, so that the error is that of the fit: measured, not proved. Least squares
gives the output weights; Levenberg and Marquardt's method refines the hidden ones on the residual (variable projection). If f
depends on few projections of its input, its slopes show them, and neurons use these alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attnc import functions
from attnc.domain import Array
from attnc.errors import ConvergenceError
from attnc.frontends.callable_source import CallableSource
from attnc.heads.target import Progress
from attnc.program import Affine, Pointwise, Program, Reshape, Step

FRESH = 40_000  # random points that the error is measured at
MOST_NEURONS, STEPS = 256, 120  # neurons, which double from 16; steps of the refinement over all sizes
_FIRST, _MARGIN = 16, 1.02
_RIDGE = 0.003  # of eps: what a unit of |W2| costs, f and W2 in units of f's size
_MOST_LINEAR = 64
_EMPHASIS = 8  # steps of refining, after which points with large errors get heavier
_LAWSON = 8  # rounds of it for the output weights at the end


@dataclass(frozen=True)
class FittedNetwork:
    """The fitted network as a program, and its largest error at fresh random points."""

    program: Program
    error: float
    neurons: int
    worst: Array  # (box.size,): where it is largest


def fit(
    source: CallableSource, eps: float, seed: int = 0, progress: Progress = lambda _: None
) -> FittedNetwork:
    """A one-hidden-layer tanh network whose error at fresh points of the box is at most eps. Equal seeds give equal networks."""
    data = _Data.draw(source, eps / _MARGIN, seed)
    hidden = _linear_neurons(data)
    best, left = _finished(source, data, hidden, 0), STEPS
    size, linear = _FIRST, len(hidden[1])
    while best.error > eps / _MARGIN and size + linear <= MOST_NEURONS and left > 0:
        progress(f"fitting {size + linear} neurons")
        data = data.with_points(source, best.worst, 8 * size * data.basis.shape[1], size)
        more = _new_neurons(data, size + linear - len(hidden[1]), size)
        hidden = torch.cat([hidden[0], more[0]]), torch.cat([hidden[1], more[1]])
        part = min(left, max(24, STEPS // 4))
        hidden, left = _refined(data, hidden, linear, part), left - part
        found = _finished(source, data, hidden, size)
        best = found if found.error < best.error else best
        size *= 2
    if best.error <= eps:
        return best
    message = f"a network of {best.neurons} neurons, fitted on {source.box}, has the error {best.error:.3g}"
    raise ConvergenceError(f"{message} > eps={eps:g}", reachable=best.error, found=best)


Hidden = tuple[Tensor, Tensor]  # weights (neurons, inputs) and biases (neurons,), of u in [-1, 1]


@dataclass(frozen=True)
class _Data:
    """Points u of [-1, 1]^N and values y of f, in units of the box and of f; f's slopes, and an orthonormal basis of the
    directions in which f changes."""

    u: Tensor  # (points, inputs)
    y: Tensor  # (points, outputs)
    at: Tensor  # (some, inputs): where slopes were taken
    slopes: Tensor  # (some, outputs, inputs)
    basis: Tensor  # (inputs, directions)
    middle: Array
    half: Array
    level: Array  # (outputs,)
    size: float
    eps: float  # in units of size
    seed: int

    @staticmethod
    def draw(source: CallableSource, eps: float, seed: int) -> _Data:
        middle, half = source.lo / 2 + source.hi / 2, source.hi / 2 - source.lo / 2
        inputs = len(middle)
        u = scattered(min(6000, max(2000, 50 * inputs)), inputs, [seed, 0])
        y = source(middle + half * u)
        level = (y.max(0) + y.min(0)) / 2
        size = max(float(np.abs(y - level).max()), eps)
        some = max(8, min(256, 4096 // inputs))
        at, step = u[:some] * 0.98, 1e-4
        shift = step * np.eye(inputs)
        near = (at[:, None, :] + np.stack([shift, -shift])[:, None]).reshape(-1, inputs)
        sides = source(middle + half * near).reshape(2, some, inputs, -1)
        slopes = np.swapaxes(sides[0] - sides[1], 1, 2) / (2 * step * size)
        values, vectors = np.linalg.eigh(np.einsum("soi,soj->ij", slopes, slopes) / some)
        kept = np.sqrt(np.maximum(values, 0)) * np.abs(vectors).sum(0) > 0.02 * eps / size
        basis = vectors[:, kept] if kept.any() else vectors[:, -1:]
        extreme = noise_along(basis, len(u) // 4, [seed, 4])
        u, y = np.concatenate([u, extreme]), np.concatenate([y, source(middle + half * extreme)])
        arrays = (u, (y - level) / size, at, slopes, basis)
        points, outputs, places, steep, directions = map(torch.from_numpy, map(np.ascontiguousarray, arrays))
        return _Data(points, outputs, places, steep, directions, middle, half, level, size, eps / size, seed)

    def with_points(self, source: CallableSource, worst: Array, wanted: int, size: int) -> _Data:
        """With fresh points added, some of them around the input at which the last network was worst."""
        fresh = scattered(max(1000, wanted - len(self.u)), len(self.half), [self.seed, 1, size])
        fresh[::3] = noise_along(self.basis.numpy(), len(fresh[::3]), [self.seed, 5, size])
        centre = (worst - self.middle) / np.where(self.half > 0, self.half, 1.0)
        fresh[:100] = np.clip(centre + 0.2 * fresh[:100], -1, 1)
        y = (source(self.middle + self.half * fresh) - self.level) / self.size
        more, values = torch.from_numpy(fresh), torch.from_numpy(y)
        return replace(self, u=torch.cat([self.u, more]), y=torch.cat([self.y, values]))


def noise_along(basis: Array, count: int, seed: list[int]) -> Array:
    """Points of [-1, 1]^inputs between the middle and the corners that are farthest out in random directions of a subspace."""
    noise = np.random.default_rng(seed)
    corners = np.sign(noise.normal(size=(count, basis.shape[1])) @ basis.T)
    spread = noise.uniform(-0.3, 0.3, corners.shape) * noise.random((count, 1))
    return np.asarray(np.clip(corners * noise.random((count, 1)) ** 0.5 + spread, -1, 1))


def scattered(count: int, inputs: int, seed: list[int]) -> Array:
    """Random points of [-1, 1]^inputs; a quarter of them have some coordinates at an end."""
    noise = np.random.default_rng(seed)
    u = noise.uniform(-1, 1, (count, inputs))
    ends = noise.random(u.shape) < np.maximum(noise.random((count, 1)), 1 / inputs)
    u[::4] = np.where(ends[::4], np.where(u[::4] < 0, -1.0, 1.0), u[::4])
    return u


def _features(hidden: Hidden, u: Tensor) -> Tensor:
    """tanh of every neuron, and a one for the bias."""
    return torch.cat([torch.tanh(u @ hidden[0].T + hidden[1]), torch.ones_like(u[:, :1])], 1)


def _linear_neurons(data: _Data) -> Hidden:
    """Two neurons for each direction of f's affine part: (8 tanh(κs) - tanh(2κs))/(6κ) = s - (8/15) κ⁴ s⁵ + …"""
    ones = torch.cat([data.u, torch.ones_like(data.u[:, :1])], 1)
    affine = torch.linalg.lstsq(ones, data.y, driver="gelsd").solution[:-1]  # (inputs, outputs)
    left, values, _ = torch.linalg.svd(affine, full_matrices=False)
    kept = values * math.sqrt(len(affine)) > 0.05 * data.eps
    directions = left.T[kept][:_MOST_LINEAR]
    if not len(directions):  # f is constant: one neuron that does nothing
        return torch.zeros(1, len(affine), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    directions = directions / directions.abs().sum(1, keepdim=True)
    bend = min(0.5, (0.3 * data.eps) ** 0.25)
    weights = torch.cat([bend * directions, 2 * bend * directions])
    return weights, torch.zeros(len(weights), dtype=torch.float64)


def _new_neurons(data: _Data, count: int, size: int) -> Hidden:
    """Neurons in the direction of the difference of f's slopes at two points, bent between these points.

    This difference is the normal of a kink of f; if f is a function of few projections, it is a combination of these."""
    noise = np.random.default_rng([data.seed, 2, size])
    slopes, at = data.slopes.numpy(), data.at.numpy()
    first, second = (noise.integers(0, len(at), count) for _ in range(2))
    mix = noise.normal(size=(count, slopes.shape[1])) * (noise.random((count, slopes.shape[1])) < 0.5)
    normal = np.einsum("co,coi->ci", mix, slopes[first] - slopes[second])
    blank = np.abs(normal).sum(1, keepdims=True) <= 1e-9
    basis = data.basis.numpy()
    normal = np.where(blank, noise.normal(size=normal.shape), normal) @ basis @ basis.T
    normal /= np.sqrt(((data.u.numpy() @ normal.T) ** 2).mean(0))[:, None] + 1e-300
    share = noise.random((count, 1))
    across = ((share * at[first] + (1 - share) * at[second]) * normal).sum(1)
    steep = np.exp(noise.uniform(np.log(0.4), np.log(2.5), count))
    return torch.from_numpy(normal * steep[:, None]), torch.from_numpy(-steep * across)


def _least_squares(features: Tensor, y: Tensor, heavy: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """w = argmin mean heavy·|features·w - y|² + ridge²·|w|², and Q with features·√heavy = Q R."""
    root, (n, p) = heavy.sqrt(), features.shape
    tall = torch.cat([root * features, ridge * math.sqrt(n) * torch.eye(p, dtype=torch.float64)])
    orthogonal, triangle = torch.linalg.qr(tall)
    q = orthogonal[:n]
    return torch.linalg.solve_triangular(triangle, q.T @ (root * y), upper=True), q


def _refined(data: _Data, hidden: Hidden, linear: int, steps: int) -> Hidden:
    """Hidden weights after so many steps of Levenberg and Marquardt, without change to the nearly linear neurons; every few steps
    points with large errors get larger weights."""
    heavy = torch.ones(len(data.u), 1, dtype=torch.float64)
    damping, best, least = 1e-2, hidden, math.inf
    for step in range(steps):
        state = _State.of(data, hidden, linear, heavy)
        if step % _EMPHASIS == 0 or step == steps - 1:
            if state.largest < least:
                best, least = hidden, state.largest
            if least < 0.6 * data.eps:
                break
            if step:
                heavy = heavy * (state.errors / state.largest + 1e-2)
                heavy = heavy / heavy.mean()
                state = _State.of(data, hidden, linear, heavy)
        for _ in range(6):
            moved = state.moved(data, damping)
            trial = hidden[0].clone(), hidden[1].clone()
            trial[0][linear:] += moved[:, :-1] @ data.basis.T
            trial[1][linear:] += moved[:, -1]
            if _State.loss_of(data, trial, heavy) < state.loss:
                hidden, damping = trial, max(1e-9, damping / 4)
                break
            damping *= 5
        else:
            break
    return best if least <= _State.of(data, hidden, linear, heavy).largest else hidden


@dataclass(frozen=True)
class _State:
    """One point of the refinement: the residual of least squares, and its derivatives in the hidden weights.

    The residual r = F w - y changes by w_k tanh'(a_k·u + c_k)(da_k·u + dc_k), minus its projection Q Qᵀ on the features, which
    new output weights remove. With Z_k = tanh'·(u, 1), the normal matrix of all outputs is (wwᵀ)_{kl} · Z_kᵀ(1 - QQᵀ)Z_l."""

    loss: float
    errors: Tensor  # (points, 1): the largest over the outputs
    largest: float
    normal: Tensor  # (p, p), p = neurons·(directions + 1)
    slope: Tensor  # (p,)

    @staticmethod
    def of(data: _Data, hidden: Hidden, linear: int, heavy: Tensor) -> _State:
        features, root = _features(hidden, data.u), heavy.sqrt()
        w, q = _least_squares(features, data.y, heavy, _RIDGE * data.eps)
        left = features @ w - data.y
        seen = torch.cat([data.u @ data.basis, torch.ones_like(root)], 1)
        bend = root * (1 - features[:, linear:-1] ** 2)
        z = (bend[:, :, None] * seen[:, None, :]).reshape(len(seen), -1)
        inner, width = q.T @ z, seen.shape[1]
        free = w[linear:-1]
        pairs = (free @ free.T).repeat_interleave(width, 0).repeat_interleave(width, 1)
        pull = ((root * left) @ free.T).repeat_interleave(width, 1)
        errors = left.abs().amax(1, keepdim=True)
        loss = float((heavy * left**2).sum(1).mean())
        normal = pairs * (z.T @ z - inner.T @ inner)
        return _State(loss, errors, float(errors.max()), normal, (z * pull).sum(0))

    @staticmethod
    def loss_of(data: _Data, hidden: Hidden, heavy: Tensor) -> float:
        _, q = _least_squares(_features(hidden, data.u), data.y, heavy, _RIDGE * data.eps)
        y = heavy.sqrt() * data.y
        return float(((y - q @ (q.T @ y)) ** 2).sum(1).mean())

    def moved(self, data: _Data, damping: float) -> Tensor:
        """The step (neurons, directions + 1) of the damped normal equations."""
        diagonal = self.normal.diagonal()
        damped = self.normal + torch.diag(damping * diagonal + 1e-12 * diagonal.max() + 1e-300)
        factor, failed = torch.linalg.cholesky_ex(damped)
        step = -torch.cholesky_solve(self.slope[:, None], factor)
        return (torch.zeros_like(step) if int(failed) else step).reshape(-1, data.basis.shape[1] + 1)


def _finished(source: CallableSource, data: _Data, hidden: Hidden, size: int) -> FittedNetwork:
    """The program with output weights for the largest error (Lawson's), measured at fresh points."""
    features = _features(hidden, data.u)
    heavy = torch.ones(len(data.u), 1, dtype=torch.float64)
    best, least = torch.zeros(features.shape[1], data.y.shape[1], dtype=torch.float64), math.inf
    for _ in range(_LAWSON):
        w, _ = _least_squares(features, data.y, heavy, _RIDGE * data.eps)
        errors = (features @ w - data.y).abs().amax(1, keepdim=True)
        if float(errors.max()) < least:
            best, least = w, float(errors.max())
        heavy = heavy * (errors / (errors.max() + 1e-300) + 1e-3)
        heavy = heavy / heavy.mean()
    fresh = scattered(FRESH, len(data.half), [data.seed, 3, size])
    x = np.clip(data.middle + data.half * fresh, source.lo, source.hi)
    blocks = [_features(hidden, part) @ best for part in torch.split(torch.from_numpy(fresh), 4096)]
    off = np.abs(torch.cat(blocks).numpy() * data.size + data.level - source(x)).max(1)
    worst = int(off.argmax())
    program = _program(source, data, hidden, best)
    return FittedNetwork(program, float(off[worst]), len(hidden[1]), x[worst])


def _program(source: CallableSource, data: _Data, hidden: Hidden, output: Tensor) -> Program:
    """W2 tanh(W1 vec X + b1) + b2 in the coordinates of the box and of f."""
    scale = np.divide(1.0, data.half, out=np.zeros_like(data.half), where=data.half > 0)
    w1 = hidden[0].numpy() * scale
    b1 = hidden[1].numpy() - w1 @ data.middle
    w2, b2 = data.size * output[:-1].numpy().T, data.size * output[-1].numpy() + data.level
    steps: list[Step] = [Reshape(0, (source.box.size,))] if len(source.box.shape) > 1 else []
    steps.append(Affine(len(steps), w1, b1, name="hidden"))
    steps.append(Pointwise(len(steps), functions.tanh(), name="tanh"))
    steps.append(Affine(len(steps), w2, b2, name="output"))
    steps += [Reshape(len(steps), source.shape)] if len(source.shape) > 1 else []
    return Program(source.box.shape, tuple(steps))
