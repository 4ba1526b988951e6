"""Any continuous function → network: which method finds its values, what is known of the result, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from attnc.domain import Array, Box
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.frontends.asked import Asked
from attnc.frontends.fit import Fitted, fitted
from attnc.frontends.jumps import find_jump
from attnc.heads.candidates import Progress
from attnc.heads.grid import counts_for
from attnc.heads.tensor import LatticeFit, tensor_lattice
from attnc.lower.certified import certified
from attnc.lower.function_to_network import MOST_ANCHORS, lipschitz_grid, refute, unproved, with_measurement
from attnc.lower.measure import measured
from attnc.lower.program_to_network import Request, lower
from attnc.network.network import Network
from attnc.program import Lookup
from attnc.records.certificate import Certificate

METHODS = ("auto", "lattice", "grid", "fit")
MOST_AXES, MOST_LATTICE = 4, 1 << 14
POINTS, WEIGHTS = (
    1 << 16,
    1 << 28,
)  # fresh inputs at which the result is measured, and weights that this may take
_SEEDS = 1000  # between the seed of the search and that of the measurement


@dataclass(frozen=True)
class Question:
    """A function, where and how closely it is to be imitated, and how its values may be found."""

    f: Callable[[Tensor], Tensor]
    box: Box
    eps: float
    dtype: str
    method: str
    lipschitz: float | None
    noise: float | None
    tokens: int | None
    seed: int
    progress: Progress


def compiled(q: Question, form: str) -> Network:
    """The network, with a certificate where a Lipschitz constant allows one, else with what was measured."""
    if form == "layers":
        raise InputError("form='layers' is for models: a function becomes 'two-layer' or 'attention-softmax'")
    lipschitz, noise = _constant("lipschitz", q.lipschitz), _constant("noise", q.noise)
    if noise is not None and (lipschitz is None or noise >= q.eps):
        raise InputError(
            f"noise={noise:g} goes with lipschitz=K and is smaller than eps: got lipschitz={lipschitz}, eps={q.eps:g}"
        )
    q = replace(q, lipschitz=lipschitz, noise=noise, seed=_seed(q.seed))
    q.progress("asking the function")
    asked = Asked(q.f, q.box, q.tokens)
    method, why = _chosen(q, asked)
    net = {"grid": _grid, "lattice": _lattice, "fit": _fit}[method](q, asked)
    asked.ask_again()
    net.form, net.notes = form, (why, *net.notes, *_more(q, asked, net))
    return net


def _chosen(q: Question, asked: Asked) -> tuple[str, str]:
    """The method, and why it is that one."""
    size = asked.box.size
    if q.method == "grid" and q.lipschitz is None:
        raise InputError("method='grid' proves its error from a Lipschitz constant: give lipschitz=K")
    if q.method in ("lattice", "fit") and q.lipschitz is not None:
        raise InputError(
            f"lipschitz={q.lipschitz:g} proves by a grid, and method={q.method!r} measures: leave one of them out"
        )
    if q.method == "lattice" and size > MOST_AXES:
        raise InputError(
            f"a lattice for {size} numbers (n·d) would have about 8^{size} = {8.0**size:.3g} anchors: up to {MOST_AXES} numbers "
            "are accepted. Use method='fit', or a function of fewer numbers."
        )
    if q.method != "auto":
        return q.method, f"method: {q.method}, as asked"
    if q.lipschitz is not None:
        return (
            "grid",
            "method: grid, for a Lipschitz constant was given and a grid of anchors proves eps with it",
        )
    if size <= MOST_AXES:
        return (
            "lattice",
            f"method: lattice, for the input has {size} numbers: softmax over a product of {size} axes",
        )
    return (
        "fit",
        f"method: fit, for a lattice of {size} axes would have about 8^{size} = {8.0**size:.3g} anchors",
    )


def _grid(q: Question, asked: Asked) -> Network:
    assert q.lipschitz is not None
    q.progress("building the grid")
    made = lipschitz_grid(asked, q.lipschitz, q.eps, q.dtype, _name(q.f), q.noise)
    net = made.network
    _try_constant(q, asked, net)
    with_measurement(net, _measured(q, asked, net, "grid"))
    net.notes = (
        f"anchors: {' × '.join(map(str, made.counts))} cells, the function asked once in the middle of each",
        f"proved for every function with the Lipschitz constant {q.lipschitz:g} (Euclidean norm), as given, that is within "
        f"{_noise(net):.2g} of these values: what the function's own {asked.dtype_name} arithmetic may err, "
        + ("assumed" if q.noise is None else "as given"),
    )
    return net


def _lattice(q: Question, asked: Asked) -> Network:
    lo, hi = asked.box.lo.ravel(), asked.box.hi.ravel()
    try:
        found = tensor_lattice(
            asked, lo, hi, q.eps, dtype=q.dtype, most=MOST_LATTICE, seed=q.seed, progress=q.progress
        )
    except ConvergenceError as problem:
        assert isinstance(problem.found, LatticeFit)
        _refuse_jump(q, asked, problem.found.worst, float(max(hi - lo)) / 4)
        raise _out_of_reach(q, asked, problem, _reached_by_lattice(q, asked)) from problem
    net = unproved(asked, found.lattice, q.dtype, _name(q.f))
    net.certificate = _confirmed(q, asked, net, "lattice")
    counts = " × ".join(map(str, found.lattice.counts))
    net.notes = (
        f"anchors: {counts} = {found.lattice.anchors}, values by least squares; {asked.asked:,} values of f",
    )
    return net


def _fit(q: Question, asked: Asked) -> Network:
    try:
        found = fitted(asked, 0.9 * q.eps, seed=q.seed, progress=q.progress)
    except ConvergenceError as problem:
        assert isinstance(problem.found, Fitted)
        _refuse_jump(q, asked, problem.found.worst, float((asked.box.hi - asked.box.lo).max()) / 2)
        raise _out_of_reach(q, asked, problem, None) from problem
    near = max(0.05 * q.eps, min(0.5 * q.eps, q.eps - found.error))
    request = Request(found.program, asked.box, near, q.dtype, q.progress)
    try:
        made = lower(request)
    except PrecisionError as problem:
        if problem.reachable is None or problem.reachable > q.eps - found.error:
            raise PrecisionError(
                f"eps={q.eps:g} cannot be met in {q.dtype}: a network of {found.neurons} neurons was fitted to within "
                f"{found.error:.3g}, and attention cannot run it closely enough. Use a larger eps"
                + (", or dtype=torch.float64." if q.dtype == "float32" else "."),
                None if problem.reachable is None else problem.reachable + found.error,
            ) from problem
        made = lower(replace(request, eps=problem.reachable))
    net = certified(request, made, "softmax", False)
    inner = net.certificate
    net.certificate = replace(
        _confirmed(q, asked, net, "fit"), children=(replace(inner, name="against the fitted network"),)
    )
    net.notes = (
        f"neurons: {found.neurons} of tanh, fitted to {asked.asked:,} values of f (seed {q.seed}); attention is within "
        f"{inner.bound:.3g} of the fitted network, and that alone is proved",
    )
    return net


def _measured(q: Question, asked: Asked, net: Network, method: str) -> Certificate:
    q.progress("measuring at fresh inputs")
    anchors = max((selection.anchors for selection in net.selections), default=1)
    return measured(net, asked, method, max(4096, min(POINTS, WEIGHTS // anchors)), q.seed + _SEEDS)


def _confirmed(q: Question, asked: Asked, net: Network, method: str) -> Certificate:
    """What fresh points say of the network as it runs; convergence that they do not confirm is not claimed."""
    found = _measured(q, asked, net, method)
    worst = found.witness
    assert worst is not None
    if not worst.error <= q.eps:
        raise ConvergenceError(
            f"fresh inputs do not confirm eps={q.eps:g}: at x = {_short(worst.input)} the network is off by {worst.error:.3g} "
            f"in {q.dtype}. Give eps >= {1.1 * worst.error:.2g}"
            + (", or dtype=torch.float64." if q.dtype == "float32" else "."),
            reachable=1.1 * worst.error,
            found=net,
        )
    return found


def _refuse_jump(q: Question, asked: Asked, at: Array, reach: float) -> None:
    """A function that does not converge may not be continuous: say where."""
    jump = find_jump(asked, at, reach, q.eps)
    if jump is not None:
        raise ConvergenceError(
            f"the function is not continuous: it {jump}. Attention with bounded weights is continuous: give a box "
            "without the jump, or a continuous function.",
            found=jump,
        )


def _try_constant(q: Question, asked: Asked, net: Network) -> None:
    """Fresh inputs beside the points of the grid: do they refute the Lipschitz constant?"""
    step = next(step for step in net.program.steps if isinstance(step, Lookup))
    count = max(256, min(POINTS // 4, (1 << 26) // step.points.size))
    x = asked.held(asked.uniform(count, q.seed + _SEEDS + 1))
    values, rows = asked(x), max(1, (1 << 22) // (step.points.size + step.values.size))
    for start in range(0, count, rows):
        refute(step, x[start : start + rows], values[start : start + rows])


def _reached_by_lattice(q: Question, asked: Asked) -> float | None:
    """What a lattice does reach, where eps is near what floating point can hold."""
    lo, hi = asked.box.lo.ravel(), asked.box.hi.ravel()
    for larger in (1e2, 1e4):
        if larger * q.eps > 1e-5 * float(np.abs(asked(asked.uniform(64, q.seed))).max()):
            return None
        try:
            return tensor_lattice(
                asked, lo, hi, larger * q.eps, dtype=q.dtype, most=MOST_LATTICE, seed=q.seed
            ).measured
        except ConvergenceError:
            continue
    return None


def _out_of_reach(
    q: Question, asked: Asked, problem: ConvergenceError, other: float | None
) -> ConvergenceError:
    """What was reached, in the words of the question, and what else there is."""
    found = problem.found
    assert isinstance(found, LatticeFit | Fitted)
    error, size = (
        (found.error, f"{found.neurons} neurons")
        if isinstance(found, Fitted)
        else (found.measured, f"{found.lattice.anchors} anchors")
    )
    reached = 1.1 * min(error, other or error)
    offers = [f"eps >= {reached:.2g}"]
    offers += ["dtype=torch.float64"] if q.dtype == "float32" else []
    anchors = _cells(q, _slope(asked, q.seed))
    if anchors <= MOST_ANCHORS:
        offers.append(f"lipschitz=K, which proves (the largest slope seen would take {anchors:,.0f} anchors)")
    return ConvergenceError(
        f"eps={q.eps:g} was not reached: the best of {size} is off by {error:.3g} at x = {_short(found.worst)}, and more of "
        f"them do not help enough. Use {', '.join(offers)}, or a smaller box.",
        reachable=reached,
        found=found,
    )


def _more(q: Question, asked: Asked, net: Network) -> tuple[str, ...]:
    """What it would take to prove more."""
    if net.certificate.proved:
        return ()
    slope = _slope(asked, q.seed)
    anchors = _cells(q, slope)
    what = f"to prove eps={q.eps:g}: give lipschitz=K; the largest slope seen is {slope:.3g}, and with K of that size a grid has "
    if anchors <= MOST_ANCHORS:
        return (what + f"{anchors:,.0f} anchors",)
    return (what + f"{anchors:.3g} anchors (up to {MOST_ANCHORS:,} are built)",)


def _slope(asked: Asked, seed: int) -> float:
    """The largest |f(x) - f(x')|/|x - x'| over pairs of near random points: at most the Lipschitz constant."""
    lo, hi = asked.box.lo.ravel(), asked.box.hi.ravel()
    x = asked.uniform(2000, seed + 2)
    step = np.random.default_rng(seed).standard_normal(x.shape) * (hi - lo) * 1e-3
    y = np.clip(x + step, lo, hi)
    apart = np.sqrt(np.square(y - x).sum(1))
    change = np.abs(asked(y) - asked(x)).max(1)
    return float((change[apart > 0] / apart[apart > 0]).max(initial=0.0))


def _cells(q: Question, lipschitz: float) -> float:
    counts = counts_for(q.box.lo.ravel(), q.box.hi.ravel(), lipschitz, 0.99 * q.eps)
    return float(np.prod([float(c) for c in counts]))


def _noise(net: Network) -> float:
    return next(step.noise for step in net.program.steps if isinstance(step, Lookup))


def _constant(name: str, given: Any) -> float | None:
    if given is None:
        return None
    try:
        found = float(given)
    except (TypeError, ValueError):
        found = float("nan")
    if not (np.isfinite(found) and found >= 0) or isinstance(given, bool):
        raise InputError(f"{name}={given!r}: a finite number that is not negative, or None, is accepted")
    return found


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise InputError(f"seed={seed!r}: a whole number from 0 to 2^32 - 1 is accepted")
    return int(seed)


def _name(f: Any) -> str:
    name = getattr(f, "__name__", type(f).__name__)
    return "f" if name == "<lambda>" else str(name)


def _short(x: Any) -> str:
    numbers = [float(v) for v in np.asarray(x).ravel()]
    return f"({', '.join(f'{v:.6g}' for v in numbers[:8])}{', …' if len(numbers) > 8 else ''})"
