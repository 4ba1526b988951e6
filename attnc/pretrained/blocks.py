"""A feed-forward block as attention: the module that takes its place, and its proved bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attnc import functions
from attnc.domain import Array, Interval
from attnc.errors import AttncError, ConvergenceError, InputError, PrecisionError
from attnc.frontends.transformers import PartSite, Site
from attnc.functions import Function
from attnc.heads.target import Plan
from attnc.lower.function_to_head import head_approximating
from attnc.lower.layers import lower_steps
from attnc.lower.pointwise import HeadGroup, by_reach, head_errors
from attnc.lower.product import scaled_product, square_errors, square_head
from attnc.lower.program_to_network import amplification
from attnc.network.head import Head
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock, Product
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.inputs import Entering
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import compose
from attnc.prove.outward import below
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up
from attnc.records.layers import Index, Layer

_ENGINES = ("softmax", "closed-form")
_GROUPS = 3  # of neurons in a block
_LEAST_SHARE = 2.0**-1000  # of the target for a neuron: far below what any head meets, and not yet 0
_ELSEWHERE = ("its roundings are proved for the arithmetic of a CPU, not for that of the device it runs on",)


@dataclass(frozen=True, eq=False)
class PlannedBlock:
    """The module that will take the place of a block, and its certificate; the model is not changed yet."""

    site: Site
    module: Pointwise | GatedBlock
    certificate: Certificate
    reach: tuple[Array, Array]  # contains the pre-activation of each neuron


@dataclass(frozen=True, eq=False)
class _Block:
    """The program of a block, and the bounds of its values up to the product, if heads had no error."""

    site: Site
    entering: Entering
    program: Program
    layers: tuple[Layer, ...]
    known: Mapping[int, ValueBounds]
    f: Function
    dtype: str

    @property
    def reach(self) -> tuple[Array, Array]:
        return self.known[1].reach

    def bounds(self, layers: tuple[Layer, ...], heads: Mapping[int, HeadErrors]) -> dict[int, ValueBounds]:
        return compose(self.program, layers, self.entering.domain, heads, self.dtype)


def plan_block(
    site: Site,
    entering: Entering,
    approximation: float,
    config: ConvertConfig,
    progress: Callable[[str], None],
) -> PlannedBlock:
    """Heads for the neurons of a block, such that its outputs move by at most `approximation` in exact arithmetic."""
    try:
        planned = _plan(_read(site, entering), approximation, config, progress)
    except AttncError as problem:
        raise _named(site, problem) from problem
    planned.module.to(site.first.device).eval()
    return planned


def _read(site: Site, entering: Entering) -> _Block:
    dtype = str(site.dtype).removeprefix("torch.")
    program = site.program()
    problems = program.problems()
    if problems:
        raise InputError("; ".join(f"{p.where}: {p.reason}" for p in problems))
    layers = lower_steps(program, dtype)
    before = [layer for layer in layers if layer.value < (4 if site.gated else 3)]
    known = compose(program, before, entering.domain, {}, dtype)
    _check_finite(dtype, *(known[layer.value] for layer in before))
    return _Block(site, entering, program, layers, known, functions.get(site.activation), dtype)


def _plan(
    block: _Block, approximation: float, config: ConvertConfig, progress: Callable[[str], None]
) -> PlannedBlock:
    """A gated block spends half of the target on the activation, the rest on the two squares of each product."""
    site, layers = block.site, block.layers
    weight = (2 if site.gated else 1) * amplification(layers, block.known, 2)
    groups = _groups(block, approximation, weight, config, progress)
    heads = {name: {2: head_errors(groups, block.f, block.known[1], name)} for name in _ENGINES}
    if not np.isfinite(heads["closed-form"][2].error).all():
        del heads["closed-form"]
    engine = config.engine if config.engine in heads else "softmax"
    activation = Pointwise([*groups], engine, config.strict)
    module: Pointwise | GatedBlock = activation
    if site.gated:
        layers = _scaled(block, [errors[2] for errors in heads.values()])
        (product,) = (layer for layer in layers if layer.kind == "product")
        square = square_head(block.dtype)
        for name, errors in heads.items():
            errors[4] = square_errors(product, square, name, block.dtype)
        maps = {m.attribute: m.module for m in site.maps()}
        powers = product.tensor("scale"), product.tensor("radius")
        module = GatedBlock(maps, activation, Product(square, *powers, engine))
    outputs = {
        name: block.bounds(layers, errors)[len(block.program.steps)]
        for name, errors in {**heads, "exact": {}}.items()
    }
    certificate = _certificate(block, groups, module, outputs, approximation, engine)
    return PlannedBlock(site, module, certificate, block.reach)


def _scaled(block: _Block, errors: list[HeadErrors]) -> tuple[Layer, ...]:
    """The layers, the product with scales that serve every engine."""
    worst = HeadErrors(errors[0].approximation, np.max([np.asarray(e.error) for e in errors], axis=0))
    known = block.bounds(block.layers[:3], {2: worst})
    return tuple(
        scaled_product(layer, known, block.dtype) if layer.kind == "product" else layer
        for layer in block.layers
    )


def _groups(
    block: _Block,
    approximation: float,
    weight: float,
    config: ConvertConfig,
    progress: Callable[[str], None],
) -> list[HeadGroup]:
    """Heads whose errors, times the weight, stay within the target; powers of two for radii, so that blocks share heads."""
    share = max(_share(approximation, weight), _LEAST_SHARE)

    def group(radius: float, neurons: Index | None) -> HeadGroup:
        domain = Interval(-radius, radius)
        plan = Plan(block.f, domain, block.dtype, config.design, progress=progress)
        return HeadGroup(neurons, head_approximating(plan, share))

    try:
        return [group(radius, neurons) for radius, neurons in by_reach(*block.reach, _GROUPS)]
    except PrecisionError as problem:
        if problem.reachable is None:
            raise
        reachable = _step_above(problem.reachable) * (weight if weight > 0 else 1.0)
        raise too_small(block.site, approximation, reachable) from problem


def _share(approximation: float, weight: float) -> float:
    """What each neuron may err by, for the sum with these weights to stay within the target."""
    if not weight > 0:
        return approximation
    return float(below(below(np.float64(approximation / weight * (1 - 2.0**-40)))))


def _step_above(share: float) -> float:
    """The least share that such a head meets: requests round their target down to few digits."""
    power = 10.0 ** math.floor(math.log10(share))
    return next(m * power for m in (1, 1.5, 2, 3, 5, 7, 10) if m * power >= share)


def _certificate(
    block: _Block,
    groups: list[HeadGroup],
    module: Pointwise | GatedBlock,
    outputs: Mapping[str, ValueBounds],
    approximation: float,
    engine: str,
) -> Certificate:
    _check_finite(block.dtype, *outputs.values())
    exact = round_up(max(float(bounds.approximation.max()) for bounds in outputs.values()))
    if not exact <= approximation:
        raise too_small(block.site, approximation, exact)
    roundings = {
        name: round_up((1 + 2.0**-10) * float(bounds.rounding.max())) for name, bounds in outputs.items()
    }
    products, site, (lo, hi) = roundings.pop("exact"), block.site, block.reach
    heads = [g.head for g in groups]
    square = [head for _, head in module.product.square.groups] if isinstance(module, GatedBlock) else []
    facts = {
        **site_facts(site, heads), "activation": site.activation, "engine": module.runs,
        "interval": [float(lo.min()), float(hi.max())], "roundings": roundings, "products": products, "also": list(site.also),
        "remarks": [*site.remarks, *_ELSEWHERE[: site.first.device.type != "cpu"]],
    }  # fmt: skip
    return stated(
        site, "block", exact, engine, facts, status=block.entering.status, holds_for=block.entering.domain,
        children=tuple(head.certificate for head in (*heads, *square)),
    )  # fmt: skip


def stated(
    site: Site | PartSite, subject: str, exact: float, engine: str, facts: dict[str, Any], **rest: Any
) -> Certificate:
    """The certificate of a part: its approximation, and the rounding of its engine, from `facts["roundings"]`."""
    rounding, dtype = facts["roundings"][engine], str(site.dtype).removeprefix("torch.")
    terms = {"approximation": exact, "rounding": rounding, "bound": round_up(exact + rounding)}
    rest = {"status": Status.PROVED, "dtype": dtype, **terms, **rest}
    return Certificate(subject=subject, name=site.name, facts=facts, **rest)


def site_facts(site: Site, heads: Sequence[Head]) -> dict[str, Any]:
    """What a certificate states of a block and the heads of its activation."""
    neurons = site.first.sizes[0]
    return {
        "family": site.family, "design": heads[0].design, "neurons": neurons,
        "heads": (3 if site.gated else 1) * neurons, "anchors": [h.key.shape[1] for h in heads], "norm": site.norm_name,
    }  # fmt: skip


def _check_finite(dtype: str, *values: ValueBounds) -> None:
    if not all(np.isfinite(bounds.error).all() and np.isfinite(bounds.size).all() for bounds in values):
        raise InputError(f"a value of the block may overflow {dtype}: scale the weights down")


def too_small(site: Site | PartSite, approximation: float, reachable: float) -> PrecisionError:
    other, least = ", or model.double()" if site.dtype == torch.float32 else "", round_up(1.01 * reachable, 2)
    dtype = str(site.dtype).removeprefix("torch.")
    return PrecisionError(
        f"approximation={approximation:g} cannot be met at {site.name} with numbers stored in {dtype}: use "
        f"approximation >= {least:.1e}{other}. Nothing was converted.",
        least,
    )


def _named(site: Site, problem: AttncError) -> AttncError:
    """The same error, with the name of the block."""
    text = f"{site.name}: {problem} (or exclude the block with filter_fn)"
    if isinstance(problem, (PrecisionError, ConvergenceError)):
        return problem if site.name in str(problem) else type(problem)(text, problem.reachable)
    return InputError(text) if isinstance(problem, InputError) else problem
