"""Feed-forward blocks, norms and other activations as attention: the modules that take their places, and their proved bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc import functions
from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array, Ball, Interval
from attnc.errors import AttncError, ConvergenceError, InputError, PrecisionError, Problem
from attnc.frontends.transformers import ActivationSite, NormSite, PartSite, Site
from attnc.functions import Function
from attnc.heads.target import Plan
from attnc.lower.function_to_head import head_approximating
from attnc.lower.layers import lower_steps
from attnc.lower.pointwise import HeadGroup, by_reach, executed_error, head_errors
from attnc.lower.product import scaled_product, square_errors, square_head
from attnc.lower.program_to_network import amplification
from attnc.lower.quadratic import proved_heads
from attnc.network.head import Head
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock, Product
from attnc.network.running import is_less
from attnc.pretrained.closeness import is_close
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.guard import MODES, SHAPES, ULPS, refuse, rows_of
from attnc.pretrained.inputs import Entering
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import compose
from attnc.prove.outward import below
from attnc.prove.quadratic import norm_errors
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up
from attnc.records.layers import Index, Layer

_ENGINES = ("softmax", "closed-form")
_GROUPS = 3  # of neurons in a block
_LEAST_SHARE = 2.0**-1000  # of the target for a neuron: far below what any head meets, and not yet 0
_ELSEWHERE = ("its roundings are proved for the arithmetic of a CPU, not for that of the device it runs on",)
MOST = 2.0**64  # the largest mean square of a token that enters a norm
REACH = 2.0**10  # of an activation outside of blocks
_LARGEST_TARGET = 2.0**-12  # of the relative error of a norm: outputs stay normalised to 2^-10


@dataclass(frozen=True, eq=False)
class PlannedPart:
    """The module that will take the place of a part of the model, and its certificate; the model is not changed yet."""

    site: Site | PartSite
    module: Pointwise | GatedBlock | Norm
    certificate: Certificate


@dataclass(frozen=True, eq=False)
class PlannedBlock(PlannedPart):
    site: Site
    module: Pointwise | GatedBlock
    reach: tuple[Array, Array]  # contains the pre-activation of each neuron


@dataclass(frozen=True, eq=False)
class _Program:
    """The program of a block, or of one expert, and the bounds of its values up to the product, if heads had no error."""

    program: Program
    layers: tuple[Layer, ...]
    known: Mapping[int, ValueBounds]


@dataclass(frozen=True, eq=False)
class _Block:
    """A block, or experts that share their heads."""

    site: Site
    entering: Entering
    approximation: float
    config: ConvertConfig
    programs: tuple[_Program, ...]
    f: Function
    dtype: str

    @property
    def reach(self) -> tuple[Array, Array]:
        """Contains every pre-activation; in half precision with room for its rounding."""
        ends = [one.known[1].reach for one in self.programs]
        lo, hi = np.min([lo for lo, _ in ends], axis=0), np.max([hi for _, hi in ends], axis=0)
        room = 2.0**-6 * np.maximum(np.abs(lo), np.abs(hi)) if is_less(self.site.dtype) else 0.0
        return lo - room, hi + room

    def bounds(
        self, one: _Program, layers: tuple[Layer, ...], heads: Mapping[int, HeadErrors]
    ) -> dict[int, ValueBounds]:
        return compose(one.program, layers, self.entering.domain, heads, self.dtype)


def plan_block(
    site: Site,
    entering: Entering,
    approximation: float,
    config: ConvertConfig,
    progress: Callable[[str], None],
) -> PlannedBlock:
    """Heads for the neurons of a block, such that its outputs move by at most `approximation` in exact arithmetic."""
    try:
        planned = _plan(_read(site, entering, approximation, config), progress)
    except AttncError as problem:
        raise _named(site, problem) from problem
    planned.module.to(site.first.device).eval()
    return planned


def _read(site: Site, entering: Entering, approximation: float, config: ConvertConfig) -> _Block:
    dtype, programs = _dtype(site), []
    for program in site.programs():
        problems = program.problems()
        if problems:
            raise InputError("; ".join(f"{p.where}: {p.reason}" for p in problems))
        layers = lower_steps(program, dtype)
        before = [layer for layer in layers if layer.value < (3 if site.up is None else 4)]
        known = compose(program, before, entering.domain, {}, dtype)
        _check_finite(dtype, *(known[layer.value] for layer in before))
        programs.append(_Program(program, layers, known))
    f = functions.get(site.activation)
    return _Block(site, entering, approximation, config, tuple(programs), f, dtype)


def _plan(block: _Block, progress: Callable[[str], None]) -> PlannedBlock:
    """A gated block spends half of the target on the activation, the rest on the two squares of each product."""
    site, config, (one, *_) = block.site, block.config, block.programs
    weight = max(amplification(each.layers, each.known, 2) for each in block.programs)
    groups = _groups(block, (2 if site.gated else 1) * weight, progress)
    if site.experts:
        return _plan_experts(block, groups)
    heads, layers = _errors(block, groups, one), one.layers
    engine = config.engine if config.engine in heads else "softmax"
    activation = Pointwise([*groups], engine, config.strict)
    module: Pointwise | GatedBlock = activation
    if site.gated:
        layers = _scaled(block, one, [errors[2] for errors in heads.values()])
        (product,) = (layer for layer in layers if layer.kind == "product")
        square = square_head(block.dtype)
        for name, errors in heads.items():
            errors[4] = square_errors(product, square, name, block.dtype)
        maps = {m.attribute: m.module for m in site.maps()}
        powers = product.tensor("scale"), product.tensor("radius")
        module = GatedBlock(maps, activation, Product(square, *powers, engine), site.rows)
    every, last = {**heads, "exact": {}}, len(one.program.steps)
    outputs = {name: [block.bounds(one, layers, errors)[last]] for name, errors in every.items()}
    certificate = _certificate(block, [group.head for group in groups], module, outputs, engine)
    return PlannedBlock(site, module, certificate, block.reach)


def _plan_experts(block: _Block, groups: list[HeadGroup]) -> PlannedBlock:
    """The activation of all experts; their products, if they have any, are multiplications. The bounds are the largest."""
    site, config = block.site, block.config
    every = [_errors(block, groups, one) for one in block.programs]
    engines = [name for name in _ENGINES if all(name in errors for errors in every)]
    outputs: dict[str, list[ValueBounds]] = {name: [] for name in (*engines, "exact")}
    product = HeadErrors(0.0, multiplied=True)
    for one, heads in zip(block.programs, every, strict=True):
        last = len(one.program.steps)
        for name, found in outputs.items():
            errors = {**heads.get(name, {}), **({4: product} if last == 5 else {})}
            found.append(block.bounds(one, one.layers, errors)[last])
    engine = config.engine if config.engine in engines else "softmax"
    module = Pointwise([*groups], engine, config.strict)
    certificate = _certificate(block, [group.head for group in groups], module, outputs, engine)
    return PlannedBlock(site, module, certificate, block.reach)


def _errors(block: _Block, groups: list[HeadGroup], one: _Program) -> dict[str, dict[int, HeadErrors]]:
    """The errors of the heads of an activation, for the engines that have finite ones."""
    heads = {name: {2: head_errors(groups, block.f, one.known[1], name)} for name in _ENGINES}
    if not np.isfinite(heads["closed-form"][2].error).all():
        del heads["closed-form"]
    return heads


def _scaled(block: _Block, one: _Program, errors: list[HeadErrors]) -> tuple[Layer, ...]:
    """The layers, the product with scales that serve every engine."""
    worst = HeadErrors(errors[0].approximation, np.max([np.asarray(e.error) for e in errors], axis=0))
    known, dtype = block.bounds(one, one.layers[:3], {2: worst}), block.dtype
    return tuple(
        scaled_product(each, known, dtype) if each.kind == "product" else each for each in one.layers
    )


def _groups(block: _Block, weight: float, progress: Callable[[str], None]) -> list[HeadGroup]:
    """Heads whose errors, times the weight, stay within the target; powers of two for radii, so that blocks share heads."""
    share = max(_share(block.approximation, weight), _LEAST_SHARE)

    def group(radius: float, neurons: Index | None) -> HeadGroup:
        domain = Interval(-radius, radius)
        plan = Plan(block.f, domain, block.dtype, block.config.design, progress=progress)
        return HeadGroup(neurons, head_approximating(plan, share))

    try:
        return [group(radius, neurons) for radius, neurons in by_reach(*block.reach, _GROUPS)]
    except PrecisionError as problem:
        if problem.reachable is None:
            raise
        power = 10.0 ** math.floor(math.log10(problem.reachable))  # requests round their target to few digits
        least = next(m * power for m in (1, 1.5, 2, 3, 5, 7, 10) if m * power >= problem.reachable)
        reachable = least * (weight if weight > 0 else 1.0)
        raise _too_small(block.site, block.approximation, reachable) from problem


def _share(approximation: float, weight: float) -> float:
    """What each neuron may err by, for the sum with these weights to stay within the target."""
    if not weight > 0:
        return approximation
    return float(below(below(np.float64(approximation / weight * (1 - 2.0**-40)))))


def _certificate(
    block: _Block,
    heads: list[Head],
    module: Pointwise | GatedBlock,
    outputs: Mapping[str, Sequence[ValueBounds]],
    engine: str,
) -> Certificate:
    _check_finite(block.dtype, *(bounds for every in outputs.values() for bounds in every))
    exact = round_up(max(float(bounds.approximation.max()) for every in outputs.values() for bounds in every))
    if not exact <= block.approximation:
        raise _too_small(block.site, block.approximation, exact)
    errors = {name: max(float(one.rounding.max()) for one in every) for name, every in outputs.items()}
    roundings: dict[str, float] = {name: round_up((1 + 2.0**-10) * error) for name, error in errors.items()}
    products: float | None
    products, site, (lo, hi) = roundings.pop("exact"), block.site, block.reach
    if is_less(site.dtype):
        roundings, products = {}, None
    square = [head for _, head in module.product.square.groups] if isinstance(module, GatedBlock) else []
    facts = {
        **site_facts(site, heads), "activation": site.activation, "engine": module.runs,
        "interval": [float(lo.min()), float(hi.max())], "roundings": roundings, "products": products, "also": list(site.also),
        "remarks": [*site.remarks, *_ELSEWHERE[: site.first.device.type != "cpu"]],
    }  # fmt: skip
    children = tuple(head.certificate for head in (*heads, *square))
    about = {"status": block.entering.status, "holds_for": block.entering.domain, "children": children}
    return _stated(site, "block", exact, engine, facts, **about)


def _stated(
    site: Site | PartSite, subject: str, exact: float, engine: str, facts: dict[str, Any], **about: Any
) -> Certificate:
    """The certificate of a part: its approximation, and the rounding of its engine, from `facts["roundings"]`. Nothing is
    claimed of the rounding of half precision: the error is then unknown, apart from the approximation."""
    rounding = math.inf if is_less(site.dtype) else facts["roundings"][engine]
    bound = rounding if is_less(site.dtype) else round_up(exact + rounding)
    terms = {"approximation": exact, "rounding": rounding, "bound": bound}
    about = {"status": Status.PROVED, **terms, **about, "dtype": str(site.dtype).removeprefix("torch.")}
    if is_less(site.dtype) and about["status"] is Status.PROVED:
        about["status"] = Status.UNKNOWN
    return Certificate(subject=subject, name=site.name, facts=facts, **about)


def site_facts(site: Site, heads: Sequence[Head]) -> dict[str, Any]:
    """What a certificate states of a block and the heads of its activation."""
    neurons = site.first.sizes[0]
    return {
        "family": site.family, "design": heads[0].design, "neurons": neurons,
        "heads": (3 if site.gated else 1) * neurons, "anchors": [h.key.shape[1] for h in heads], "norm": site.norm_name,
    }  # fmt: skip


def plan_activation(site: ActivationSite, approximation: float, config: ConvertConfig) -> PlannedPart:
    """tanh or sigmoid by one head of two keys on [-2^10, 2^10], where both have long been constant."""
    f, on = functions.get(site.activation), Interval(-REACH, REACH)
    head = head_approximating(Plan(f, on, _dtype(site), config.design), approximation)
    module = Pointwise([(None, head)], config.engine, config.strict)
    roundings = {engine: round_up(executed_error(head, f, engine)) for engine in _ENGINES}
    roundings = {} if is_less(site.dtype) else roundings
    facts, known = (
        {"activation": site.activation, "engine": module.runs, "roundings": roundings},
        head.certificate,
    )
    about = {"holds_for": known.interval, "children": (known,)}
    certificate = _stated(site, "activation", known.approximation, config.engine, facts, **about)
    return PlannedPart(site, module.eval(), certificate)


def plan_norm(site: NormSite, approximation: float, config: ConvertConfig) -> PlannedPart:
    """Heads such that every output of the norm moves by at most `approximation` in exact arithmetic: |γ_i| √d g."""
    norm, domain, dtype = site.norm, site.norm.gain_and_shift(), _dtype(site)
    centred, half = site.norm.kind == "layer", is_less(site.dtype)
    size = float(abs(domain.gain).max()) * math.sqrt(norm.features)
    target = min(_LARGEST_TARGET, approximation / size / 1.05 if size > 0 else 1.0)
    target = 10.0 ** math.floor(math.log10(target))  # norms share heads
    try:
        proof = proved_heads(norm.features, site.epsilon, MOST, target, dtype)
    except PrecisionError as problem:
        raise _too_small(site, approximation, (problem.reachable or 0.0) * size * 1.1) from problem
    relative = {"softmax": proof.executed, "closed-form": proof.closed_form}
    errors = {
        engine: norm_errors(domain.gain, domain.shift, proof.approximation, error, ARITHMETIC[dtype])
        for engine, error in relative.items()
    }
    if not all(math.isfinite(executed) for _, executed in errors.values()):
        raise PrecisionError(
            f"{site.name}: gain and shift are so large that its outputs may overflow in {dtype}", None
        )
    facts = {
        "kind": norm.kind, "engine": config.engine, "features": norm.features, "epsilon": site.epsilon,
        "heads": len(proof.numbers), "relative": proof.approximation, "executed": relative,
        "roundings": {} if half else {engine: round_up(executed) for engine, (_, executed) in errors.items()},
    }  # fmt: skip
    ball = Ball(norm.features, math.sqrt(norm.features * MOST), centred)
    about = {"holds_for": ball, "digests": proof.numbers.digests()}
    certificate = _stated(site, "norm", round_up(errors["softmax"][0]), config.engine, facts, **about)
    module = Norm(
        proof.numbers, centred, norm.weight, norm.bias, one_plus=norm.one_plus, most=MOST, engine=config.engine,
        strict=config.strict,
    )  # fmt: skip
    module.heads.to(next((t.device for _, t in norm.tensors()), torch.device("cpu")))
    return PlannedPart(site, module.eval(), certificate)


def check_norms(model: nn.Module, sites: Sequence[NormSite]) -> None:
    """Call each norm that will be replaced by itself, on inputs of several shapes and sizes, in every mode, and compare it with
    what was read."""
    refuse(model, [Problem(site.name, reason) for site in sites if (reason := _norm_problem(site))])


def _norm_problem(site: NormSite) -> str | None:
    norm, domain = site.norm, site.norm.gain_and_shift()
    noise, part = np.random.default_rng(), site.replaced
    device = next((t.device for _, t in norm.tensors()), torch.device("cpu"))
    for shape, mode in itertools.product(SHAPES[1:], MODES):
        rows = noise.standard_normal((*shape, norm.features)) * 10.0 ** noise.uniform(-4, 2, (*shape, 1))
        x = torch.from_numpy(rows).to(device, site.dtype)
        with mode(), torch.random.fork_rng(devices=[]):
            try:
                out = part(x.clone())
            except Exception as problem:
                return f"fails on an input of shape {tuple(x.shape)}: {type(problem).__name__}: {problem}"
        z = rows_of(x)
        z = z - z.mean(-1, keepdims=True) if domain.centred else z
        y = z / np.sqrt((z * z).mean(-1, keepdims=True) + site.epsilon)
        expected = (
            domain.gain * y + domain.shift,
            np.abs(domain.gain) * (1 + np.abs(y)) + np.abs(domain.shift),
        )
        least = site.dtype if is_less(site.dtype) else torch.float32  # in which some norms are taken
        same = isinstance(out, Tensor) and is_close(rows_of(out), expected, least, ULPS)
        if not same:
            return f"computes something else than was read, on an input of shape {tuple(x.shape)}"
    return None


def _dtype(site: Site | PartSite) -> str:
    """The dtype of heads: that of the model, or float32 in half precision."""
    return "float32" if is_less(site.dtype) else str(site.dtype).removeprefix("torch.")


def _check_finite(dtype: str, *values: ValueBounds) -> None:
    if not all(np.isfinite(bounds.error).all() and np.isfinite(bounds.size).all() for bounds in values):
        raise InputError(f"a value of the block may overflow {dtype}: scale the weights down")


def _too_small(site: Site | PartSite, approximation: float, reachable: float) -> PrecisionError:
    other, least = ", or model.double()" if site.dtype == torch.float32 else "", round_up(1.01 * reachable, 2)
    what = (
        f"approximation={approximation:g} cannot be met at {site.name} with numbers stored in {_dtype(site)}"
    )
    return PrecisionError(f"{what}: use approximation >= {least:.1e}{other}. Nothing was converted.", least)


def _named(site: Site, problem: AttncError) -> AttncError:
    """The same error, with the name of the block."""
    text = f"{site.name}: {problem} (or exclude the block with filter_fn)"
    if isinstance(problem, (PrecisionError, ConvergenceError)):
        return problem if site.name in str(problem) else type(problem)(text, problem.reachable)
    return InputError(text) if isinstance(problem, InputError) else problem
