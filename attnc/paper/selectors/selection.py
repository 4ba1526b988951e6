"""One function by p uniform anchors and a selector: the same anchors and the same least squares for all of them.

    g(s) = Σ_k weights_k(z(s)) v_k,     scores z_k(s) that are affine in s, as <query (s, 1), key_k>

With the distance Δ of two anchors and c = `sharpness`, the keys are those for which the anchor L_k matters most:

    hard, softmax, sparsemax, entmax15     z_k = -c (s - L_k)²/Δ²       affine up to a term that all keys share and that cancels
    sigmoid                                z_k = 2c (s - L_k)/Δ         a switch at L_k, as sharp as two anchors of softmax
    relu                                   z_k = (s - L_k)/Δ + 1        so that p keys span the linear splines on p anchors
    linear                                 z_k = (2 s L_k - L_k²)/Δ²"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attnc.arguments import (
    checked_choice,
    checked_count,
    checked_dtype,
    checked_interval,
    checked_positive,
    torch_dtype,
)
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.functions import Function, function, get
from attnc.heads.chain import lattice
from attnc.heads.draft import finish, lawson, one_head
from attnc.heads.plan import conclude
from attnc.heads.target import Plan, evaluate, target_of
from attnc.lower.function_to_head import finished_head
from attnc.network.head import Head
from attnc.paper.selectors import weights
from attnc.paper.selectors.theorems import selector_theorem
from attnc.progress import checked_call
from attnc.records.numbers import Array
from attnc.records.presentation import Theorem

SHARPNESSES = tuple(2.0 ** (k / 2) for k in range(6, -33, -1))  # 8 … 2^-16, tried where none is given
MOST_ANCHORS = 1024
_PER_CELL, _FINER = 32, 4  # samples between two anchors; so many times more for the error
_ROUNDS = 20  # of reweighting
_KEPT, _NEARER = (
    4,
    tuple(2.0 ** (k / 16) for k in range(-4, 5)),
)  # sharpnesses that are refined, and by which factors
_CUT = 512  # units of rounding: singular values below this part of the largest count as 0


@dataclass(frozen=True)
class Selector:
    """How scores become weights; whether a common term of the scores cancels, and whether a sharpness changes the span."""

    weights: Callable[[Tensor], Tensor]
    cancels: bool
    sharpened: bool


SELECTORS = {
    "hard": Selector(weights.hard, True, False),
    "sparsemax": Selector(weights.sparsemax, True, True),
    "entmax15": Selector(weights.entmax15, True, True),
    "sigmoid": Selector(weights.sigmoid, False, True),
    "relu": Selector(weights.relu, False, False),
    "linear": Selector(weights.linear, False, False),
    "softmax": Selector(weights.softmax, True, True),
}


@dataclass(frozen=True, eq=False)
class Selection:
    """g(s) = Σ_k weights_k(s) v_k; `error` is the largest |g - f| found on the domain by running it, not a bound."""

    selector: str
    function: Function
    domain: Interval
    sharpness: float
    anchors: Tensor  # (p,)
    values: Tensor  # (p,)
    error: float
    theorem: Theorem

    def __call__(self, s: Tensor) -> Tensor:
        return self.weights(s) @ self.values

    def weights(self, s: Tensor) -> Tensor:
        """(…, p)"""
        return SELECTORS[self.selector].weights(self.scores(s))

    def scores(self, s: Tensor) -> Tensor:
        """(…, p): z_k(s)."""
        return _scores(self.selector, self.anchors, self.sharpness, s)

    @property
    def step(self) -> float:
        """Δ"""
        return self.domain.width / (len(self.anchors) - 1)

    def head(self) -> Head:
        """The same anchors, sharpness and values as an `attnc.Head`, with a proof of its error, rounding included.

        >>> import attnc
        >>> chosen = select("sin", "softmax", anchors=12, domain=(-3, 3))
        >>> head = chosen.head()
        >>> chosen.error <= head.certificate.bound <= 1.3 * chosen.error, attnc.verify(head).status == "proved"
        (True, True)
        """
        if self.selector != "softmax":
            raise InputError(f"an attnc.Head runs softmax: a head cannot have the selector {self.selector!r}")
        plan = Plan(self.function, self.domain, str(self.values.dtype).removeprefix("torch."), "smooth")
        target = target_of(plan, 0.0).denser(6 * len(self.anchors))
        chain = lattice(-1.0, 1.0, len(self.anchors), self.sharpness)
        draft = one_head("smooth", chain, self.values.double().numpy(), np.ones_like(target.x), refit=False)
        return finished_head(plan, conclude(plan, finish(draft, target), math.inf))

    def through_landmarks(self, m: int) -> Selection:
        """Nyström attention: softmax over m uniform landmarks, with the values that reproduce this softmax at m uniform queries.

        The landmark keys are anchors with the same β = c/Δ², so their c is larger by the square of the distance.

        >>> full = select("sin", "softmax", anchors=64, domain=(-3, 3))
        >>> full.through_landmarks(32).error < 1e-5
        True
        """
        if self.selector != "softmax":
            raise InputError(
                f"landmarks approximate softmax: this selection has the selector {self.selector!r}"
            )
        m = checked_count("m", m, 2, len(self.anchors))
        points = _uniform(self.domain, m).to(self.anchors.dtype)
        c = self.sharpness * ((len(self.anchors) - 1) / (m - 1)) ** 2
        query, key = self._tokens(points, self.anchors)
        landmarks = query, self._tokens(points, points)[1]
        at = weights.pseudo_inverse(weights.softmax(landmarks[0] @ landmarks[1].T))
        values = at @ (weights.softmax(query @ key.T) @ self.values)
        theorem = selector_theorem("softmax", self.function, self.domain, m, c, own=False)
        return _measured(replace(self, sharpness=c, anchors=points, values=values, theorem=theorem))

    def _tokens(self, s: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (s, 1) and keys (2β L, -β L²), centred."""
        beta, middle = self.sharpness / self.step**2, self.domain.middle
        x, at = s - middle, anchors - middle
        return torch.stack([x, torch.ones_like(x)], -1), torch.stack([2 * beta * at, -beta * at**2], -1)


@checked_call
def select(
    f: str | Function | Callable[[Tensor], Tensor],
    selector: str = "softmax",
    *,
    anchors: int,
    domain: tuple[float, float] | Interval,
    sharpness: float | None = None,
    values: str = "least squares",
    dtype: torch.dtype | str = torch.float64,
) -> Selection:
    """f by p = `anchors` uniform anchors and one of `SELECTORS`.

    With sharpness=None the best of `SHARPNESSES` is taken, and refined. `values` are those of least squares, reweighted to
    reduce the largest error; with values="anchors" they are f(L_k), the values of the theorems for selectors whose weights add
    up to 1. `dtype` is that of the result: in float32 the values are chosen smaller, and the error is that of float32 arithmetic.

    >>> import torch
    >>> exact = select("clip(-1,1)", "sparsemax", anchors=2, domain=(-1, 1), sharpness=1, values="anchors")
    >>> exact(torch.tensor([-3.0, 0.25, 7.0], dtype=torch.float64))
    tensor([-1.0000,  0.2500,  1.0000], dtype=torch.float64)
    >>> [select("sin", name, anchors=16, domain=(-3, 3)).error < 1e-5 for name in ("softmax", "sigmoid", "sparsemax")]
    [True, True, False]
    """
    checked_choice("selector", selector, tuple(SELECTORS))
    checked_choice("values", values, ("least squares", "anchors"))
    if values == "anchors" and not SELECTORS[selector].cancels:
        raise InputError(f"values='anchors' needs weights that add up to 1, and those of {selector!r} do not")
    name, dtype, p = (
        checked_dtype(dtype),
        torch_dtype(dtype),
        checked_count("anchors", anchors, 2, MOST_ANCHORS),
    )
    on, unit = checked_interval(domain, name), torch.finfo(dtype).eps
    g = f if isinstance(f, Function) else get(f) if isinstance(f, str) else function(f)
    grid = _uniform(on, p)
    if not bool((grid.to(dtype).diff() > 0).all()):
        raise InputError(
            f"{p} anchors on [{on.lo!r}, {on.hi!r}] are not distinct in {name}: use fewer, or a wider domain"
        )
    given = SHARPNESSES if sharpness is None else (checked_positive("sharpness", sharpness),)
    task = _Task(selector, grid, *_sample(g, on, p, _PER_CELL), unit)
    exact = evaluate(g, grid.numpy()) if values == "anchors" else None
    _, c, v = min((task.tried(c, exact) for c in task.promising(given, exact)), key=lambda found: found[0])
    theorem = selector_theorem(selector, g, on, p, c, own=exact is not None)
    held = torch.from_numpy(v).to(dtype)
    return _measured(Selection(selector, g, on, c, grid.to(dtype), held, 0.0, theorem))


@dataclass(frozen=True, eq=False)
class _Task:
    """The search for a sharpness and values: f is y at the points, and a unit of |value| costs `unit` of rounding."""

    selector: str
    anchors: Tensor
    points: Tensor
    y: Array
    unit: float

    def promising(self, given: Sequence[float], values: Array | None) -> list[float]:
        """Of several sharpnesses the best few, by least squares without reweighting, refined."""
        if len(given) == 1 or not SELECTORS[self.selector].sharpened:
            return [given[0] if len(given) == 1 else 1.0]

        def cost(c: float) -> float:
            return self.tried(c, values, rounds=1)[0]

        near = {c * factor for c in sorted(given, key=cost)[:_KEPT] for factor in _NEARER}
        return sorted(near, key=cost)[:_KEPT]

    def tried(self, c: float, values: Array | None, rounds: int = _ROUNDS) -> tuple[float, float, Array]:
        """The error at the points with about that of rounding; the sharpness; the values, solved for if they are not given."""
        at = SELECTORS[self.selector].weights(_scores(self.selector, self.anchors, c, self.points)).numpy()
        if values is None:
            values, _ = lawson(at, self.y, lambda e: solve_values(at, self.y, _CUT * self.unit, e), rounds)
        return float(np.abs(at @ values - self.y).max() + 4 * self.unit * np.abs(values).max()), c, values


def solve_values(matrix: Array, y: Array, cut: float, e: Array) -> Array:
    """argmin Σ_i e_i² (matrix v - y)_i² with the smallest |v|: the same for every selector."""
    return np.asarray(np.linalg.lstsq(matrix * e[:, None], y * e, rcond=cut)[0], dtype=np.float64)


def _scores(selector: str, anchors: Tensor, c: float, s: Tensor) -> Tensor:
    delta = float(anchors[1] - anchors[0])
    x = (s[..., None] - anchors) / delta
    if SELECTORS[selector].cancels:
        return -c * x**2
    if selector == "linear":
        return (2 * s[..., None] - anchors) * anchors / delta**2
    return x + 1 if selector == "relu" else 2 * c * x


def _uniform(on: Interval, p: int) -> Tensor:
    """lo + k (hi - lo)/(p - 1)."""
    return on.lo + on.width * torch.arange(p, dtype=torch.float64) / (p - 1)


def _sample(f: Function, on: Interval, p: int, per_cell: int) -> tuple[Tensor, Array]:
    """Uniform points, points beside each kink, and f there."""
    near = [k + sign * on.width * 2.0**-j for k in f.kinks for j in range(3, 40, 2) for sign in (-1.0, 1.0)]
    s = np.concatenate([_uniform(on, per_cell * (p - 1) + 1).numpy(), near, f.kinks])
    s = np.unique(s[(s >= on.lo) & (s <= on.hi)])
    return torch.from_numpy(s), evaluate(f, s)


def _measured(made: Selection) -> Selection:
    """With the largest error at points that least squares has not used, and on both sides of the middles of cells."""
    s, _ = _sample(made.function, made.domain, len(made.anchors), _FINER * _PER_CELL - 1)
    s = s.to(made.anchors.dtype)
    middles = (made.anchors[1:] + made.anchors[:-1]) / 2
    s = torch.cat([s, middles, *(torch.nextafter(middles, middles + side) for side in (-1.0, 1.0))])
    s = s.clamp(made.domain.lo, made.domain.hi)
    exact = torch.from_numpy(evaluate(made.function, s.double().numpy()))
    return replace(made, error=float((made(s).double() - exact).abs().max()))
