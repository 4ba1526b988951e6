"""compile_function: any continuous function as a network, by a grid (proved), a lattice or a fit (both measured)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from attnc.arguments import check_arithmetic, check_box, checked_count, checked_nonnegative
from attnc.domain import Array, Box
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.frontends.callable_source import CallableSource
from attnc.frontends.discontinuity import find_jump
from attnc.frontends.fit import FittedNetwork, fit
from attnc.heads.target import Progress
from attnc.heads.tensor import counts_for
from attnc.heads.tensor_search import LatticeFit, tensor_lattice
from attnc.lower.function_to_network import (
    MOST_ANCHORS,
    lipschitz_grid,
    measured,
    refute,
    unproved,
    with_measurement,
)
from attnc.lower.program_to_network import Request, certified, lower
from attnc.network.network import Network
from attnc.program import Lookup
from attnc.records.certificate import Certificate

METHODS = ("auto", "lattice", "grid", "fit")
MOST_AXES, MOST_LATTICE = 4, 1 << 14
POINTS, WEIGHTS = (
    1 << 16,
    1 << 28,
)  # fresh inputs for a measurement, and the softmax weights that it may compute
_SEEDS = 1000  # between the seed of the search and that of the measurement


@dataclass(frozen=True)
class FunctionRequest:
    """A function, its domain, the error allowed, and how its anchors may be found."""

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

    @property
    def name(self) -> str:
        name = str(getattr(self.f, "__name__", type(self.f).__name__))
        return "f" if name == "<lambda>" else name

    @property
    def wider(self) -> str:
        """Advice for an error that rounding may cause."""
        return ", or dtype=torch.float64." if self.dtype == "float32" else "."


def compile_function(request: FunctionRequest, form: str) -> Network:
    """The network, with a certificate if a Lipschitz constant is given, else with a measured error."""
    if form == "layers":
        raise InputError("form='layers' is for models: for a function use 'two-layer' or 'attention-softmax'")
    request = _checked(request)
    check_box(request.box, request.dtype)
    check_arithmetic(request.dtype, network=True)
    request.progress("evaluating the function")
    source = CallableSource(request.f, request.box, request.tokens)
    method, reason = _method(request, source.box.size)
    net = {"grid": _grid, "lattice": _lattice, "fit": _fit}[method](request, source)
    source.check_unchanged()
    net.form, net.notes = form, (f"method: {method}, {reason}", *net.notes)
    if not net.certificate.proved:
        net.notes = (*net.notes, _how_to_prove(request, source))
    return net


def _checked(request: FunctionRequest) -> FunctionRequest:
    constants = {name: getattr(request, name) for name in ("lipschitz", "noise")}
    constants = {
        name: None if given is None else checked_nonnegative(name, given) for name, given in constants.items()
    }
    lipschitz, noise = constants["lipschitz"], constants["noise"]
    if noise is not None and (lipschitz is None or noise >= request.eps):
        raise InputError(
            f"noise={noise:g} needs lipschitz=K, and must be smaller than eps: got lipschitz={lipschitz}, eps={request.eps:g}"
        )
    if request.method == "grid" and lipschitz is None:
        raise InputError("method='grid' proves its error from a Lipschitz constant: give lipschitz=K")
    if request.method in ("lattice", "fit") and lipschitz is not None:
        raise InputError(
            f"lipschitz={lipschitz:g} is for method='grid', and method={request.method!r} measures its error: leave one out"
        )
    return replace(
        request, lipschitz=lipschitz, noise=noise, seed=checked_count("seed", request.seed, 0, 2**32 - 1)
    )


def _method(request: FunctionRequest, size: int) -> tuple[str, str]:
    """The method, and the reason."""
    anchors = f"a lattice of {size} axes would have about 8^{size} = {8.0**size:.3g} anchors"
    if request.method == "lattice" and size > MOST_AXES:
        raise InputError(
            f"{anchors}: method='lattice' accepts functions of up to {MOST_AXES} numbers (n·d). Use method='fit'."
        )
    if request.method != "auto":
        return request.method, "as requested"
    if request.lipschitz is not None:
        return "grid", "which proves eps from the Lipschitz constant"
    if size <= MOST_AXES:
        return "lattice", f"because the input has {size} numbers: softmax over a product of {size} axes"
    return "fit", f"because {anchors}"


def _grid(request: FunctionRequest, source: CallableSource) -> Network:
    assert request.lipschitz is not None
    request.progress("building the grid")
    net, counts = lipschitz_grid(
        source, request.lipschitz, request.eps, request.dtype, request.name, request.noise
    )
    step = next(step for step in net.program.steps if isinstance(step, Lookup))
    _try_to_refute(request, source, step)
    with_measurement(net, _measure(request, source, net, "grid"))
    origin = "assumed" if request.noise is None else "as given"
    net.notes = (
        f"anchors: {' × '.join(map(str, counts))} cells, with the value of the function at the middle of each",
        f"proved for every function with the Lipschitz constant {request.lipschitz:g} (Euclidean norm), as given, that is within "
        f"{step.noise:.2g} of these values: the error of the function's own {source.dtype_name} arithmetic, {origin}",
    )
    return net


def _lattice(request: FunctionRequest, source: CallableSource) -> Network:
    try:
        found = _find_lattice(request, source, request.eps, request.progress)
    except ConvergenceError as problem:
        assert isinstance(problem.found, LatticeFit)
        reach = float((source.box.hi - source.box.lo).max()) / 4
        _refuse_jump(request, source, problem.found.worst, reach)
        size = f"{problem.found.lattice.anchors} anchors"
        reached = min(problem.found.measured, _reachable(request, source))
        raise _unreached(request, source, problem, size, problem.found.measured, reached) from problem
    net = unproved(source, found.lattice, request.dtype, request.name)
    net.certificate = _confirm(request, source, net, "lattice")
    counts = " × ".join(map(str, found.lattice.counts))
    net.notes = (
        f"anchors: {counts} = {found.lattice.anchors}, values by least squares from {source.evaluations:,} values of f",
    )
    return net


def _find_lattice(
    request: FunctionRequest, source: CallableSource, eps: float, progress: Progress = lambda _: None
) -> LatticeFit:
    return tensor_lattice(
        source, source.box.lo.ravel(), source.box.hi.ravel(), eps, dtype=request.dtype, most=MOST_LATTICE,
        seed=request.seed, progress=progress,
    )  # fmt: skip


def _fit(request: FunctionRequest, source: CallableSource) -> Network:
    try:
        found = fit(source, 0.9 * request.eps, seed=request.seed, progress=request.progress)
    except ConvergenceError as problem:
        assert isinstance(problem.found, FittedNetwork)
        reach = float((source.box.hi - source.box.lo).max()) / 2
        _refuse_jump(request, source, problem.found.worst, reach)
        size, error = f"{problem.found.neurons} neurons", problem.found.error
        raise _unreached(request, source, problem, size, error, error) from problem
    near = max(0.05 * request.eps, min(0.5 * request.eps, request.eps - found.error))
    lowering = Request(found.program, source.box, near, request.dtype, request.progress)
    try:
        lowered = lower(lowering)
    except PrecisionError as problem:
        if problem.reachable is None or problem.reachable > request.eps - found.error:
            raise PrecisionError(
                f"eps={request.eps:g} cannot be met in {request.dtype}: a network of {found.neurons} neurons fits f within "
                f"{found.error:.3g}, and rounding exceeds the rest. Use a larger eps{request.wider}",
                None if problem.reachable is None else problem.reachable + found.error,
            ) from problem
        lowered = lower(replace(lowering, eps=problem.reachable))
    net = certified(lowering, lowered)
    inner = net.certificate
    net.certificate = replace(
        _confirm(request, source, net, "fit"), children=(replace(inner, name="against the fitted network"),)
    )
    net.notes = (
        f"neurons: {found.neurons} of tanh, fitted to {source.evaluations:,} values of f (seed {request.seed}); the attention is "
        f"proved to be within {inner.bound:.3g} of the fitted network, not of f",
    )
    return net


def _measure(request: FunctionRequest, source: CallableSource, net: Network, method: str) -> Certificate:
    request.progress("measuring at fresh inputs")
    anchors = max((selection.anchors for selection in net.selections), default=1)
    return measured(net, source, method, max(4096, min(POINTS, WEIGHTS // anchors)), request.seed + _SEEDS)


def _confirm(request: FunctionRequest, source: CallableSource, net: Network, method: str) -> Certificate:
    """The error at fresh points; raises ConvergenceError if it exceeds eps."""
    found = _measure(request, source, net, method)
    worst = found.witness
    assert worst is not None
    if not worst.error <= request.eps:
        raise ConvergenceError(
            f"fresh inputs do not confirm eps={request.eps:g}: at x = {_short(worst.input)} the error is {worst.error:.3g} in "
            f"{request.dtype}. Use eps >= {1.1 * worst.error:.2g}{request.wider}",
            reachable=1.1 * worst.error,
            found=net,
        )
    return found


def _refuse_jump(request: FunctionRequest, source: CallableSource, at: Array, reach: float) -> None:
    jump = find_jump(source, at, reach, request.eps)
    if jump is not None:
        raise ConvergenceError(
            f"the function is not continuous: it {jump}. Attention with bounded weights is continuous: give a box "
            "without the jump, or a continuous function.",
            found=jump,
        )


def _try_to_refute(request: FunctionRequest, source: CallableSource, step: Lookup) -> None:
    """Compare fresh inputs with the points of the grid: raises InputError if they refute the Lipschitz constant."""
    count = max(256, min(POINTS // 4, (1 << 26) // step.points.size))
    x = source.held(source.uniform(count, request.seed + _SEEDS + 1))
    values, rows = source(x), max(1, (1 << 22) // (step.points.size + step.values.size))
    for start in range(0, count, rows):
        refute(step, x[start : start + rows], values[start : start + rows])


def _reachable(request: FunctionRequest, source: CallableSource) -> float:
    """The error of a lattice for a larger eps, if eps is near the resolution of floating point; else inf."""
    for larger in (1e2, 1e4):
        if larger * request.eps > 1e-5 * float(np.abs(source(source.uniform(64, request.seed))).max()):
            break
        try:
            return _find_lattice(request, source, larger * request.eps).measured
        except ConvergenceError:
            continue
    return float("inf")


def _unreached(
    request: FunctionRequest,
    source: CallableSource,
    problem: ConvergenceError,
    size: str,
    error: float,
    reached: float,
) -> ConvergenceError:
    """The error reached, and what else can be done."""
    found: Any = problem.found
    offers = [f"eps >= {1.1 * reached:.2g}", *(["dtype=torch.float64"] if request.dtype == "float32" else [])]
    anchors = _cells(request, _slope(source, request.seed))
    if anchors <= MOST_ANCHORS:
        offers.append(
            f"lipschitz=K for a proof (K as large as the largest slope found takes {anchors:,.0f} anchors)"
        )
    return ConvergenceError(
        f"eps={request.eps:g} was not reached: the error with {size} is {error:.3g} at x = {_short(found.worst)}, and more of "
        f"them do not help enough. Use {', '.join(offers)}, or a smaller box.",
        reachable=1.1 * reached,
        found=found,
    )


def _how_to_prove(request: FunctionRequest, source: CallableSource) -> str:
    slope = _slope(source, request.seed)
    anchors = _cells(request, slope)
    count = (
        f"{anchors:,.0f}"
        if anchors <= MOST_ANCHORS
        else f"{anchors:.3g} (more than the limit of {MOST_ANCHORS:,})"
    )
    return (
        f"to prove eps={request.eps:g}, give lipschitz=K; the largest slope found is {slope:.3g}, for which a grid takes {count} "
        "anchors"
    )


def _slope(source: CallableSource, seed: int) -> float:
    """The largest |f(x) - f(x')|/|x - x'| over pairs of near random points: at most the Lipschitz constant."""
    lo, hi = source.box.lo.ravel(), source.box.hi.ravel()
    x = source.uniform(2000, seed + 2)
    step = np.random.default_rng(seed).standard_normal(x.shape) * (hi - lo) * 1e-3
    y = np.clip(x + step, lo, hi)
    apart = np.sqrt(np.square(y - x).sum(1))
    change = np.abs(source(y) - source(x)).max(1)
    return float((change[apart > 0] / apart[apart > 0]).max(initial=0.0))


def _cells(request: FunctionRequest, lipschitz: float) -> float:
    counts = counts_for(request.box.lo.ravel(), request.box.hi.ravel(), lipschitz, 0.99 * request.eps)
    return float(np.prod([float(c) for c in counts]))


def _short(x: Any) -> str:
    numbers = [float(v) for v in np.asarray(x).ravel()]
    return f"({', '.join(f'{v:.6g}' for v in numbers[:8])}{', …' if len(numbers) > 8 else ''})"
