"""compile_function: any continuous function as a network, by a grid (proved), a lattice or a fit (both measured)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnc.arguments import check_arithmetic, check_box, checked_count, checked_nonnegative
from attnc.domain import Array, Box
from attnc.errors import ConvergenceError, InputError, PrecisionError, Problem
from attnc.frontends.callable_source import CallableSource, find_jump
from attnc.frontends.fit import FittedNetwork, fit
from attnc.frontends.proved_fit import MOST_AXES as MOST_PROVED
from attnc.frontends.proved_fit import ROOM, SHARE, proved_fit
from attnc.frontends.proved_lattice import LatticePlan, Unproved
from attnc.frontends.trace import TraceError, disagreement, trace
from attnc.heads.target import Progress
from attnc.heads.tensor import counts_for
from attnc.heads.tensor_search import LatticeFit, tensor_lattice
from attnc.lower import function_to_network as lowering
from attnc.lower.function_to_network import MOST_ANCHORS
from attnc.lower.program_to_network import certified, lower
from attnc.lower.request import Request
from attnc.network.network import Network
from attnc.program import Lookup, Traced
from attnc.prove.gradient import lipschitz_bound
from attnc.prove.lattice_bound import SingularError
from attnc.records.certificate import Certificate

METHODS = ("auto", "lattice", "grid", "fit")
MOST_AXES, MOST_LATTICE = 4, 1 << 14
# fresh inputs for a measurement, and the softmax weights that it may compute
POINTS, WEIGHTS = 1 << 16, 1 << 28
SECONDS = 120.0  # CPU seconds for a proof
_CHECK_SECONDS = 3.0  # CPU seconds for the check of a constant that is given
_UNPROVED = "not proved: "  # how a note begins
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
    seconds: float = SECONDS  # CPU seconds for a proof
    derived: bool = False  # whether the Lipschitz constant is proved from the operations of f

    @cached_property
    def source(self) -> CallableSource:
        return CallableSource(self.f, self.box, self.tokens)

    @cached_property
    def traced(self) -> Traced | TraceError:
        """The operations of f, or why they are not known."""
        source = self.source
        dtype = torch.float32 if source.dtype_name == "float32" else torch.float64
        try:
            found = trace(self.f, self.box, source.like.dtype, self.name)
            x = np.concatenate([source.uniform(64, 11), np.stack([source.lo, source.hi])])
            x = source.held(x)
            if len(found.returned) != source.size:
                raise TraceError([Problem("f", "returns another shape for a batch of two")])
            if (wrong := disagreement(found, x, source(x), dtype)) is not None:
                source.check_unchanged()
                raise TraceError([Problem("f", wrong)], dependent=True)
        except TraceError as problem:
            return problem
        return found

    @property
    def name(self) -> str:
        name = str(getattr(self.f, "__name__", type(self.f).__name__))
        return "f" if name == "<lambda>" else name

    @property
    def wider(self) -> str:
        """Advice for an error that rounding may cause."""
        return ", or dtype=torch.float64" if self.dtype == "float32" else ""


def compile_function(request: FunctionRequest, form: str) -> Network:
    """The network, with a certificate if a Lipschitz constant is given, else with a measured error."""
    if form == "layers":
        raise InputError("form='layers' is for models: for a function use 'two-layer' or 'attention-softmax'")
    request = _checked(request)
    check_box(request.box, request.dtype)
    check_arithmetic(request.dtype, network=True)
    request.progress("evaluating the function")
    method, reason = _method(request)
    if method == "grid":
        request = _with_constant(request)
    net = {"grid": _grid, "lattice": _lattice, "fit": _fit}[method](request)
    request.source.check_unchanged()
    net.form, net.notes = form, (f"method: {method}, {reason}", *net.notes)
    if not net.certificate.proved:
        slope, anchors = _grid_size(request)
        over = "" if anchors <= MOST_ANCHORS else f" (more than the limit of {MOST_ANCHORS:,})"
        count = f"{anchors:.3g}{over}" if over else f"{anchors:,.0f}"
        grid = f"the largest slope found is {slope:.3g}, for which a grid takes {count} anchors"
        why = next(note for note in net.notes if note.startswith(_UNPROVED)).removeprefix(_UNPROVED)
        why += "; lipschitz=K may give a proof" if anchors <= MOST_ANCHORS else ""
        net.certificate = replace(net.certificate, facts={**net.certificate.facts, "reason": why})
        net.notes = (*net.notes, f"to prove eps={request.eps:g}, give lipschitz=K; {grid}")
    return net


def _checked(request: FunctionRequest) -> FunctionRequest:
    given = {"lipschitz": request.lipschitz, "noise": request.noise}
    lipschitz, noise = (None if x is None else checked_nonnegative(name, x) for name, x in given.items())
    if noise is not None and (lipschitz is None or noise >= request.eps):
        wanted = "needs lipschitz=K, and must be smaller than eps"
        raise InputError(f"noise={noise:g} {wanted}: got lipschitz={lipschitz}, eps={request.eps:g}")
    if request.method in ("lattice", "fit") and lipschitz is not None:
        raise InputError(f"lipschitz={lipschitz:g} is for method='grid': got method={request.method!r}")
    seed = checked_count("seed", request.seed, 0, 2**32 - 1)
    return replace(request, lipschitz=lipschitz, noise=noise, seed=seed)


def _method(request: FunctionRequest) -> tuple[str, str]:
    """The method, and the reason."""
    size = request.source.box.size
    anchors = f"a lattice of {size} axes would have about 8^{size} = {8.0**size:.3g} anchors"
    if request.method == "lattice" and size > MOST_AXES:
        limit = f"method='lattice' accepts functions of up to {MOST_AXES} numbers (n·d)"
        raise InputError(f"{anchors}: {limit}. Use method='fit'.")
    if request.method != "auto":
        return request.method, "as requested"
    if request.lipschitz is not None:
        return "grid", "which proves eps from the Lipschitz constant"
    if size <= MOST_AXES:
        axes = f"a product of {size} axes" if size > 1 else "one axis"
        return "lattice", f"because the input has {_counted(size, 'number')}: softmax over {axes}"
    return "fit", f"because {anchors}"


def _with_constant(request: FunctionRequest) -> FunctionRequest:
    """With a Lipschitz constant: that of the operations of f, or the given one, if f does not refute it."""
    given, traced = request.lipschitz, request.traced
    if isinstance(traced, TraceError):
        if given is None:
            raise InputError(
                f"method='grid' needs a Lipschitz constant, and it cannot be derived: {traced}. Give lipschitz=K."
            )
        return request
    try:
        seconds = request.seconds / 4 if given is None else min(request.seconds / 4, _CHECK_SECONDS)
        box, enough = (request.source.lo, request.source.hi), given or 0.0
        found = lipschitz_bound(traced, *box, seconds=seconds, enough=enough)
    except SingularError as problem:
        if given is None:
            raise InputError(
                f"f has no Lipschitz constant, or none can be proved: {problem}. Give lipschitz=K."
            ) from problem
        return request
    if given is None and not np.isfinite(found.constant):
        raise InputError(
            f"no Lipschitz constant of f is proved within {seconds:g} s: f may jump. Give lipschitz=K."
        )
    if given is None:
        return replace(request, lipschitz=found.constant, derived=True)
    if found.attained > given * (1 + 2.0**-30):
        raise InputError(
            f"lipschitz={given:g} is refuted: |∇f| is at least {found.attained:.9g} at x = {request.source.shown(found.where)}, "
            f"and {found.constant:.9g} is proved to be enough. Give at least that, or none."
        )
    return replace(request, derived=found.constant <= given)


def _grid(request: FunctionRequest) -> Network:
    assert request.lipschitz is not None
    source = request.source
    request.progress("building the grid")
    net, counts = lowering.lipschitz_grid(
        source, request.lipschitz, request.eps, request.dtype, request.name, request.noise
    )
    step = next(step for step in net.program.steps if isinstance(step, Lookup))
    _try_to_refute(request, step)
    lowering.with_measurement(net, _measure(request, net, "grid"))
    origin = "assumed" if request.noise is None else "as given"
    given = "proved from the operations of f" if request.derived else "as given"
    net.notes = (
        f"anchors: {_product(counts)}, one for each cell, with the value of the function at its middle",
        f"proved for every function with the Lipschitz constant {request.lipschitz:g} (Euclidean norm), {given}, that is within "
        f"{step.noise:.2g} of these values: the error of the function's own {source.dtype_name} arithmetic, {origin}",
    )
    return net


def _lattice(request: FunctionRequest) -> Network:
    unproved = ""
    try:
        proved = _proved_lattice(request)
        if isinstance(proved, Network):
            return proved
        unproved = proved
        found = _find_lattice(request, request.eps, request.progress)
    except ConvergenceError as problem:
        best = problem.found
        assert isinstance(best, LatticeFit)
        reached, size = min(best.measured, _reachable(request)), f"{best.lattice.anchors} anchors"
        raise _unreached(request, best, size, best.measured, reached, 4) from problem
    net = lowering.unproved(request.source, found.lattice, request.dtype, request.name)
    net.certificate = _confirm(request, net, "lattice")
    anchors = _product(found.lattice.counts)
    values = f"values by least squares from {request.source.evaluations:,} values of f"
    net.notes = (f"anchors: {anchors}, {values}", f"{_UNPROVED}{unproved}")
    return net


def _proved_lattice(request: FunctionRequest) -> Network | str:
    """A network that is proved from the operations of f, or why there is none."""
    traced, source = request.traced, request.source
    if isinstance(traced, TraceError):
        if traced.dependent and request.method == "auto":
            advice = "Give a function of its input alone; or method='lattice', which treats f as a black box."
            raise InputError(f"{traced}. {advice}")
        return str(traced)
    constants = (request.eps, request.dtype, request.name, MOST_LATTICE, request.seed, request.seconds)
    plan = LatticePlan(source, traced, *constants, request.progress)
    net = plan.network()
    if isinstance(net, Unproved):
        return net.reason
    (claim,) = net.certificate.parts("lookup")
    (layer,) = net.selections
    counts = [len(np.unique(column)) for column in layer.key.detach().numpy().T]
    values = f"values by least squares from {source.evaluations:,} values of f"
    facts = {**net.certificate.facts, "method": "lattice", "seed": request.seed}
    net.certificate = replace(net.certificate, facts=facts)
    net.notes = (
        f"anchors: {_product(counts)}, {values}",
        f"proved from the {_counted(len(traced.operations), 'operation')} of f by Taylor models on "
        f"{_counted(claim.facts['cells'], 'cell')}",
    )
    return net


def _product(counts: Sequence[int]) -> str:
    """3 × 4 = 12, or just 3."""
    factors = " × ".join(map(str, counts))
    return f"{factors} = {math.prod(counts)}" if len(counts) > 1 else factors


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _find_lattice(request: FunctionRequest, eps: float, progress: Progress = lambda _: None) -> LatticeFit:
    f = request.source
    return tensor_lattice(f, f.lo, f.hi, eps, request.dtype, MOST_LATTICE, request.seed, progress)


def _fit(request: FunctionRequest) -> Network:
    source, traced = request.source, request.traced
    provable = not isinstance(traced, TraceError) and source.box.size <= MOST_PROVED
    try:
        found = _fitted(request, 0.9 * request.eps / (ROOM if provable else 1.0))
    except ConvergenceError as problem:
        best = problem.found
        assert isinstance(best, FittedNetwork)
        raise _unreached(request, best, f"{best.neurons} neurons", best.error, best.error, 2) from problem
    near = max(0.05 * request.eps, min(0.5 * request.eps, request.eps - found.error))
    near = min(near, SHARE * request.eps) if provable else near
    wanted = Request(found.program, source.box, near, request.dtype, request.progress)
    try:
        lowered = lower(wanted)
    except PrecisionError as problem:
        if problem.reachable is None or problem.reachable > request.eps - found.error:
            raise PrecisionError(
                f"eps={request.eps:g} cannot be met in {request.dtype}: a network of {found.neurons} neurons fits f within "
                f"{found.error:.3g}, and rounding exceeds the rest. Use a larger eps{request.wider}.",
                None if problem.reachable is None else problem.reachable + found.error,
            ) from problem
        lowered = lower(replace(wanted, eps=problem.reachable))
    net = certified(wanted, lowered)
    neurons = f"neurons: {found.neurons} of tanh, fitted to {source.evaluations:,} values of f (seed {request.seed})"
    inner, reason = net.certificate, str(traced)
    if not isinstance(traced, TraceError):
        reason = proved_fit(net, source, traced, request.eps, request.seconds, request.progress) or ""
    if not reason:
        facts = net.certificate.facts
        net.notes = (
            neurons,
            f"|fitted network - f| <= {facts['distance']:.4g} on {facts['cells']:,} cells, by Taylor models",
        )
        return net
    inner = replace(inner, name="against the fitted network")
    net.certificate = replace(_confirm(request, net, "fit"), children=(inner,))
    near_fit = f"the attention is proved to be within {inner.bound:.3g} of the fitted network, not of f"
    net.notes = (f"{neurons}; {near_fit}", f"{_UNPROVED}{reason}")
    return net


def _fitted(request: FunctionRequest, goal: float) -> FittedNetwork:
    """A fit within the goal, or one that is just good enough if the goal is not reached."""
    try:
        return fit(request.source, goal, request.seed, request.progress)
    except ConvergenceError as problem:
        best = problem.found
        if isinstance(best, FittedNetwork) and best.error <= 0.9 * request.eps:
            return best
        raise


def _measure(request: FunctionRequest, net: Network, method: str) -> Certificate:
    request.progress("measuring at fresh inputs")
    anchors = max((selection.anchors for selection in net.selections), default=1)
    points = max(4096, min(POINTS, WEIGHTS // anchors))
    return lowering.measured(net, request.source, method, points, request.seed + _SEEDS)


def _confirm(request: FunctionRequest, net: Network, method: str) -> Certificate:
    """The error at fresh points; raises ConvergenceError if it exceeds eps."""
    found = _measure(request, net, method)
    worst = found.witness
    assert worst is not None
    if not worst.error <= request.eps:
        where = f"at x = {request.source.shown(np.asarray(worst.input))} the error is {worst.error:.3g}"
        advice = f"in {request.dtype}. Use eps >= {1.1 * worst.error:.2g}{request.wider}."
        message = f"fresh inputs do not confirm eps={request.eps:g}: {where} {advice}"
        raise ConvergenceError(message, reachable=1.1 * worst.error, found=net)
    return found


def _try_to_refute(request: FunctionRequest, step: Lookup) -> None:
    """Compare fresh inputs with the points of the grid: raises InputError if they refute the Lipschitz constant."""
    source, count = request.source, max(256, min(POINTS // 4, (1 << 26) // step.points.size))
    x = source.held(source.uniform(count, request.seed + _SEEDS + 1))
    values, rows = source(x), max(1, (1 << 22) // (step.points.size + step.values.size))
    for start in range(0, count, rows):
        lowering.refute(step, x[start : start + rows], values[start : start + rows])


def _reachable(request: FunctionRequest) -> float:
    """The error of a lattice for a larger eps, if eps is near the resolution of floating point; else inf."""
    resolution = 1e-5 * float(np.abs(request.source(request.source.uniform(64, request.seed))).max())
    for larger in (1e2 * request.eps, 1e4 * request.eps):
        if larger <= resolution:
            with suppress(ConvergenceError):
                return _find_lattice(request, larger).measured
    return float("inf")


def _unreached(
    request: FunctionRequest, best: Any, size: str, error: float, reached: float, part: int
) -> Exception:
    """The error reached, and what else can be done; or that f has a jump in that part of the box."""
    reach = float((request.box.hi - request.box.lo).max()) / part
    jump = find_jump(request.source, best.worst, reach, request.eps)
    if jump is not None:
        advice = "Attention with bounded weights is continuous: give a box without the jump, or a continuous function."
        return ConvergenceError(f"the function is not continuous: it {jump}. {advice}", found=jump)
    slope, anchors = _grid_size(request, best.worst)
    grid = f", lipschitz=K for a proof (a grid of about {anchors:,.0f} anchors)"
    proof, few = (grid, "") if anchors <= MOST_ANCHORS else ("", f"; the largest slope found is {slope:.3g}")
    message = (
        f"eps={request.eps:g} was not reached: the error with {size} is {error:.3g} at x = "
        f"{request.source.shown(best.worst)}, and more of them do not help enough. "
        f"Use eps >= {1.1 * reached:.2g}{request.wider}{proof}, or a smaller box{few}."
    )
    return ConvergenceError(message, reachable=1.1 * reached, found=best)


def _grid_size(request: FunctionRequest, worst: Array | None = None) -> tuple[float, float]:
    """The largest |f(x) - f(x')|/|x - x'| over pairs of near random points, some of them beside the `worst` point, which is at
    most the Lipschitz constant; and the number of anchors of a grid for it."""
    source, lo, hi = request.source, request.source.lo, request.source.hi
    x = source.uniform(2000, request.seed + 2)
    step = np.random.default_rng(request.seed).standard_normal(x.shape) * (hi - lo) * 1e-3
    if worst is not None:  # a narrow spike is seen only from near it
        scales = np.repeat(2.0 ** -np.arange(4, 24), 100)[:, None]
        beside = worst.reshape(-1) + np.resize(step, (len(scales), x.shape[1])) * 1e3 * scales
        x, step = np.concatenate([x, np.clip(beside, lo, hi)]), np.concatenate([step, step * scales])
    y = np.clip(x + step, lo, hi)
    apart = np.sqrt(np.square(y - x).sum(1))
    change = np.abs(source(y) - source(x)).max(1)
    slope = float((change[apart > 0] / apart[apart > 0]).max(initial=0.0))
    return slope, float(np.prod([float(c) for c in counts_for(lo, hi, slope, 0.99 * request.eps)]))
