"""A feed-forward block as attention: the module that takes its place, and the bound that is proved of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnc import functions
from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array
from attnc.errors import AttncError, ConvergenceError, InputError, PrecisionError
from attnc.frontends.transformers import Site
from attnc.functions import Function
from attnc.lower.activation_head import square_head
from attnc.network.activation import AnchorActivation
from attnc.network.gate import AnchorGate
from attnc.network.head import Head
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.entering import Entering
from attnc.pretrained.heads import Group, Proved, Say, groups_for, proved, window_rounding
from attnc.pretrained.report import BlockReport
from attnc.program.block import FeedForward
from attnc.prove.block_bound import BlockBound, Heads, Squares, block_bound, proved_heads, square_reach
from attnc.prove.normed import pre_activations, reach, weighed
from attnc.prove.outward import below, times, total
from attnc.records.fields import round_up

Exponents = NDArray[np.int8]
_LEAST_SHARE = 2.0**-1000  # of eps for a neuron: far below what any head meets, and not yet 0
_ELSEWHERE = ("its roundings are proved for the arithmetic of a CPU, not for that of the device it runs on",)


@dataclass(frozen=True, eq=False)
class Planned:
    """What will stand at a site, and what is proved of it; nothing is changed yet."""

    site: Site
    module: AnchorActivation | AnchorGate
    report: BlockReport
    reach: tuple[Array, Array]  # that holds the pre-activation of each neuron


@dataclass(frozen=True, eq=False)
class _Block:
    """A block on its way: its numbers, what enters it, the interval of every neuron."""

    site: Site
    ff: FeedForward
    entering: Entering
    f: Function
    dtype: str
    lo: Array
    hi: Array


def plan_block(site: Site, entering: Entering, eps: float, config: ConvertConfig, say: Say) -> Planned:
    """Heads for the neurons of a block, such that its outputs move by at most eps in exact arithmetic."""
    ff, dtype = site.feed_forward(), str(site.dtype).removeprefix("torch.")
    try:
        lo, hi = reach(ff.W1, ff.b1, entering.inputs, dtype)
        block = _Block(site, ff, entering, functions.get(site.activation), dtype, lo, hi)
        planned = _gated(block, eps, config, say) if site.gated else _plain(block, eps, config, say)
    except AttncError as problem:
        raise _named(site, problem) from problem
    planned.module.to(site.first.device).eval()
    return planned


def _named(site: Site, problem: AttncError) -> AttncError:
    """The same error, with the name of the block."""
    text = f"{site.name}: {problem} (or leave the block out by filter_fn)"
    if isinstance(problem, (PrecisionError, ConvergenceError)):
        return problem if site.name in str(problem) else type(problem)(text, problem.reachable)
    return InputError(text) if isinstance(problem, InputError) else problem


def _plain(block: _Block, eps: float, config: ConvertConfig, say: Say) -> Planned:
    groups = _groups(block, eps, float(weighed(block.ff.W2, np.ones(len(block.lo))).max()), config, say)
    errors = proved(groups, block.f, len(block.lo))
    bounds = {
        engine: block_bound(
            block.ff, _heads(block, errors, engine), block.dtype, inputs=block.entering.inputs
        )
        for engine in errors.rounding
    }
    bounds["exact"] = block_bound(block.ff, _faultless(block), block.dtype, inputs=block.entering.inputs)
    engine = config.engine if config.engine in bounds else "softmax"
    module = AnchorActivation([(g.neurons, g.head) for g in groups], engine, config.strict)
    report = _report(block, groups, module.runs, bounds, eps, engine, len(block.lo))
    return Planned(block.site, module, report, (block.lo, block.hi))


def _gated(block: _Block, eps: float, config: ConvertConfig, say: Say) -> Planned:
    """Half of eps for the activation, the rest for the two squares of each product."""
    ff, inputs = block.ff, block.entering.inputs
    assert ff.U is not None and ff.c is not None
    low, high = pre_activations(ff.U, ff.c, inputs)
    size = np.maximum(np.abs(low), np.abs(high))
    groups = _groups(block, eps, 2 * float(weighed(ff.W2, size).max()), config, say)
    errors, head = proved(groups, block.f, len(block.lo)), square_head(block.dtype)
    assert head.certificate.proved
    farthest = Proved(errors.approximation, {"all": np.max([*errors.rounding.values()], axis=0)})
    powers = _powers(*square_reach(ff, _heads(block, farthest, "all"), block.dtype, inputs))
    scale, radius = (np.exp2(k.astype(np.float64)) for k in powers)
    bounds = {}
    for engine in errors.rounding:
        squares = _squares(scale, radius, head, engine, block.dtype)
        bounds[engine] = block_bound(ff, _heads(block, errors, engine), block.dtype, squares, inputs)
    none = np.zeros(len(scale))
    bounds["exact"] = block_bound(
        ff, _faultless(block), block.dtype, Squares(scale, radius, none, none), inputs
    )
    engine = config.engine if config.engine in bounds else "softmax"
    activation = AnchorActivation([(g.neurons, g.head) for g in groups], engine, config.strict)
    maps = block.site.maps()
    module = AnchorGate(
        {m.attribute: m.module for m in maps}, maps[0].attribute, maps[1].attribute, maps[2].attribute, activation,
        AnchorActivation([(None, head)], engine), *powers,
    )  # fmt: skip
    report = _report(block, groups, module.runs, bounds, eps, engine, 3 * len(block.lo))
    return Planned(block.site, module, report, (block.lo, block.hi))


def _powers(scale: Array, radius: Array) -> tuple[Exponents, Exponents]:
    """log2 λ, and the least k with ρ = 2^k at least the radius, as the module stores them."""
    k = np.ceil(np.log2(np.maximum(radius, 2.0**-40)))
    k += np.exp2(k) < radius
    if not (k <= 127).all():
        raise InputError("a product may exceed 2^127 before it is scaled back: scale the weights down")
    return np.log2(scale).astype(np.int8), k.astype(np.int8)


def _squares(scale: Array, radius: Array, head: Head, engine: str, dtype: str) -> Squares:
    """The head of [-1, 1] serves [-ρ, ρ], q(ζ) = ρ²·head(ζ/ρ): scaling by powers of two rounds nothing but what underflows,
    where ζ/ρ moves by τ < 1 at most, hence the head by 2A + 2τ + τ²."""
    assert head.certificate.proved
    approximation = head.certificate.approximation
    rounding = (
        head.certificate.rounding if engine == "softmax" else window_rounding(head, functions.get("square"))
    )
    square, tiny = times(radius, radius), ARITHMETIC[dtype].tiny
    off = total(rounding, 2 * approximation, 3 * tiny)
    return Squares(scale, radius, times(square, approximation), total(times(square, off), tiny))


def _groups(block: _Block, eps: float, weight: float, config: ConvertConfig, say: Say) -> list[Group]:
    """Heads whose errors, times the weight, stay within eps."""
    allowed = max(_share(eps, weight), _LEAST_SHARE)
    try:
        return groups_for(block.f, block.lo, block.hi, allowed, block.dtype, config.design, say)
    except PrecisionError as problem:
        if problem.reachable is None:
            raise
        reachable = _step_above(problem.reachable) * (weight if weight > 0 else 1.0)
        raise _too_small(block, eps, reachable) from problem


def _step_above(share: float) -> float:
    """The least share of eps that such a head meets: `activation_head` rounds what it is asked for down to few digits."""
    power = 10.0 ** math.floor(math.log10(share))
    return next(m * power for m in (1, 1.5, 2, 3, 5, 7, 10) if m * power >= share)


def _too_small(block: _Block, eps: float, reachable: float) -> PrecisionError:
    other = ", or model.double()" if block.dtype == "float32" else ""
    least = round_up(1.01 * reachable, 2)
    return PrecisionError(
        f"eps={eps:g} is below what {block.dtype} can hold at {block.site.name}, even in exact arithmetic with numbers stored "
        f"in {block.dtype}: use eps >= {least:.1e}{other}. Nothing was converted.",
        least,
    )


def _share(eps: float, weight: float) -> float:
    """What each neuron may err by, for the sum with these weights to stay within eps."""
    return float(below(below(np.float64(eps / weight * (1 - 2.0**-40))))) if weight > 0 else eps


def _heads(block: _Block, errors: Proved, engine: str) -> Heads:
    return proved_heads(block.f, block.lo, block.hi, errors.approximation, errors.rounding[engine])


def _faultless(block: _Block) -> Heads:
    """Heads that are the function itself: what is left is the rounding of the matrix products."""
    return proved_heads(block.f, block.lo, block.hi, 0.0, 0.0)


def _report(
    block: _Block,
    groups: list[Group],
    runs: str,
    bounds: dict[str, BlockBound],
    eps: float,
    engine: str,
    heads: int,
) -> BlockReport:
    exact = round_up(float(max(bound.exact.max() for bound in bounds.values())))
    if not exact <= eps:
        raise _too_small(block, eps, exact)
    roundings = {
        name: round_up((1 + 2.0**-10) * float(bound.rounding.max())) for name, bound in bounds.items()
    }
    products, site = roundings.pop("exact"), block.site
    return BlockReport(
        name=site.name, family=site.family, activation=site.activation, design=groups[0].head.design, engine=runs,
        neurons=len(block.lo), heads=heads, anchors=tuple(g.head.key.shape[1] for g in groups),
        interval=(float(block.lo.min()), float(block.hi.max())), holds_for=block.entering.source, dtype=block.dtype,
        exact=exact, rounding=roundings[engine], roundings=roundings, products=products, norm=site.norm_name, also=site.also,
        remarks=(*site.remarks, *_ELSEWHERE[: site.first.device.type != "cpu"]),
    )  # fmt: skip
