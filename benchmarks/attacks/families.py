"""Families of transformers under attack: every converted block, expert and norm of a tiny model against the original, which runs
its own code in float64 on forced inputs. In float32 there is no slack, except 2^-22 for gains of 1 + weight; in other dtypes the
rounding of the float64 reference is allowed for (`_OWN`, and 1e-9 for norms). Nothing is evaluated in balls."""

from __future__ import annotations

import copy
import math
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from family_models import FAMILIES, example, tiny
from torch import Tensor, nn

import attnc
from attacks.drive import forcing, seeing
from attacks.tally import Outcome
from attnc.domain import Normed
from attnc.errors import AttncError, PrecisionError
from attnc.frontends.transformers import Call, Site, find_blocks

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ENGINES = ("closed-form", "softmax")
_OWN = 1e-12  # of the size of a result: what a reference that is executed in float64 may lose


def cases() -> dict[str, tuple[str, torch.dtype]]:
    """Every family in every dtype, by name."""
    return {f"{name}, {str(d).removeprefix('torch.')}": (name, d) for d in DTYPES for name in FAMILIES}


def attack(seed: int) -> Outcome:
    """The seed chooses the family and the dtype; families come first."""
    every = list(cases().values())
    return attack_family(*every[seed % len(every)], seed)


def attack_family(name: str, dtype: torch.dtype, seed: int, count: int = 192, **options: Any) -> Outcome:
    """Convert the model of a family, all of its parts if that is possible, and attack every claim of the report."""
    began, rng = time.perf_counter(), np.random.default_rng([7, seed])
    engine = options.get("engine", ENGINES[int(rng.integers(2))] if dtype in DTYPES[:2] else "softmax")
    outcome = Outcome("families", f"{name}, {dtype}, {engine}", "refused")
    try:
        inputs, converted = example(name, dtype), tiny(name, dtype, seed + 1)
        sites = {s.name: s for s in find_blocks(tiny(name, dtype, seed + 1), call=Call((), inputs)).blocks}
        try:
            report = _converted(converted, inputs, engine, "all")
        except AttncError:
            report = _converted(converted, inputs, engine, "feed-forward")
    except AttncError as problem:
        outcome.note = str(problem)[:300]
    else:
        outcome.verdict, outcome.ratio = "converted", 0.0
        wide = tiny(name, dtype, seed + 1).double()
        if hasattr(wide, "set_experts_implementation") and any(site.experts for site in sites.values()):
            wide.set_experts_implementation("eager")  # grouped products do not run in float64
        models = tiny(name, dtype, seed + 1), wide, converted
        if not _runs(wide, inputs):
            outcome.verdict, outcome.note = (
                "measured",
                "the original does not run in float64: nothing is compared",
            )
            return outcome
        for block in report.blocks:
            _judge(models, sites[block.name], block, (inputs, rng, count), outcome)
        for norm in report.norms:
            _judge_norm(models, norm, (rng, count), outcome)
    outcome.seconds = time.perf_counter() - began
    return outcome


def _converted(model: nn.Module, inputs: dict[str, Tensor], engine: str, parts: str) -> Any:
    eps = 1e-2
    for _ in range(4):
        try:
            return attnc.convert_(model, eps, {"engine": engine}, parts=parts, samples=inputs)
        except PrecisionError as problem:
            if problem.reachable is None:
                raise
            eps = 1.1 * problem.reachable
    return attnc.convert_(model, eps, {"engine": engine}, parts=parts, samples=inputs)


def _covered(block: Any, site: Site, rng: np.random.Generator, count: int) -> Tensor:
    """Vectors of the domain: random ones, and those that take a neuron to the end of its interval."""
    domain = block.holds_for
    assert isinstance(domain, Normed)
    d = len(domain.gain)
    W = np.concatenate([site.first.numbers(e)[0] for e in range(max(1, site.experts))])
    v = np.concatenate(
        [W[rng.integers(0, len(W), count // 2)] * domain.gain, rng.standard_normal((count // 2, d))]
    )
    v *= rng.choice([-1.0, 1.0], (len(v), 1))
    v -= v.mean(1, keepdims=True) if domain.centred else 0.0
    y = v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-30) * math.sqrt(d)
    y *= rng.choice([1.0, 1.0, 0.7, 0.1, 0.0], (len(v), 1))
    found: Tensor = torch.from_numpy(domain.gain * y + domain.shift)
    return found


def _judge(models: tuple[Any, ...], site: Site, block: Any, given: Any, outcome: Outcome) -> None:
    """One block. In half precision the approximation alone is claimed: the converted model runs in float64 then."""
    (original, wide, converted), (inputs, rng, count) = models, given
    half = original.dtype in DTYPES[2:]
    x = _covered(block, site, rng, count).to(original.dtype)
    if half:
        _same_nan(original, converted, site, x, inputs, outcome)
        limit, exact = block.approximation, _copy_in_double(converted)
        found = _outputs(exact, site, x.double(), inputs)
    else:
        limit = block.approximation + block.rounding
        found = _outputs(converted, site, x, inputs).double()
    meant = _outputs(wide, site, x.double(), inputs)
    own = _OWN if half or original.dtype == torch.float64 else 0.0
    _see(found, meant, limit, own, len(x), f"{block.name}", outcome)
    if original.dtype == torch.float64:
        _see(found, meant, block.approximation + 2 * block.rounding, own, 0, f"{block.name} exactly", outcome)


def _see(
    found: Tensor, meant: Tensor, limit: float, own: float, count: int, name: str, outcome: Outcome
) -> None:
    gap = (found - meant).abs()
    gap = (
        (gap - own * (1 + meant.abs()))
        .clamp(min=0)
        .nan_to_num(math.inf)
        .masked_fill(meant.isnan() & found.isnan(), 0)
    )
    worst = float(gap.max()) if gap.numel() else 0.0
    outcome.inputs += count
    if worst / limit > outcome.ratio or math.isnan(outcome.claimed):
        outcome.ratio, outcome.measured, outcome.claimed = worst / limit, worst, limit
    if worst > limit:
        outcome.verdict, outcome.note = "false", f"{name}: {worst:.4g} > {limit:.4g}"


def _runs(model: Any, inputs: dict[str, Tensor]) -> bool:
    try:
        with torch.no_grad():
            model(**{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})
    except RuntimeError:
        return False
    return True


def _copy_in_double(model: Any) -> Any:
    found = copy.deepcopy(model).double()
    if hasattr(found, "set_experts_implementation") and hasattr(found.config, "num_experts_per_tok"):
        found.set_experts_implementation("eager")
    return found


def _outputs(model: Any, site: Site, x: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """What leaves the block of a model, by its own code, for the tokens x that are forced into it."""
    floats = next(p.dtype for p in model.parameters())
    inputs = {k: v.to(floats) if v.is_floating_point() else v for k, v in inputs.items()}
    if site.experts:
        return _experts(model, site, x, inputs)
    first, second = model.get_submodule(site.first.name), model.get_submodule(site.second.name)
    entering = dict.fromkeys([site.first.name, *([site.up.name] if site.up is not None else [])])
    with torch.no_grad(), seeing(first, True) as seen:
        model(**inputs)
    tokens, calls = seen[0].numel() // seen[0].shape[-1], len(seen)
    parts = []
    for rows in torch.split(x, tokens):
        padded = torch.cat([rows, rows[:1].expand(tokens - len(rows), -1)])
        with torch.no_grad(), ExitStack() as stack:
            for name in entering:
                stack.enter_context(forcing(model.get_submodule(name), padded.reshape(seen[0].shape)))
            left = stack.enter_context(seeing(second, False))
            model(**inputs)
        assert len(left) == calls
        parts.append(left[0].reshape(tokens, -1)[: len(rows)])
    return torch.cat(parts)


def _experts(model: Any, site: Site, x: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Every expert on every token: the experts are called with one choice of weight 1."""
    part, calls = model.get_submodule(site.first.name), list[Any]()
    handle = part.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    with torch.no_grad():
        model(**inputs)
    handle.remove()
    args, kwargs = calls[0]
    parts = []
    for expert in range(site.experts):
        index = torch.full((len(x), 1), expert)
        one = torch.ones(len(x), 1, dtype=x.dtype)
        put = [x, *(one if t.is_floating_point() else index for t in args[1:])]
        named = {k: one if t.is_floating_point() else index for k, t in kwargs.items()}
        with torch.no_grad():
            parts.append(part(*put, **named))
    return torch.cat(parts)


def _same_nan(
    original: Any, converted: Any, site: Site, x: Tensor, inputs: dict[str, Tensor], outcome: Outcome
) -> None:
    """Half precision: no NaN where the original has none, also for numbers far outside of what a norm returns."""
    far = torch.cat([x, *(x[:16] * c for c in (50.0, 1e3, 3e4))])
    far = torch.where(far.isfinite(), far, torch.zeros_like(far))
    before, after = (_outputs(model, site, far, inputs) for model in (original, converted))
    if bool((after.isnan() & ~before.isnan()).any()):
        outcome.verdict, outcome.note = "false", f"{site.name}: NaN where the original has none"


def _judge_norm(models: tuple[Any, ...], norm: Any, given: Any, outcome: Outcome) -> None:
    """A norm against its formula in float64, of the token as it is centred in the dtype."""
    original, _, converted = models
    rng, count = given
    part, new, facts = original.get_submodule(norm.name), converted.get_submodule(norm.name), norm.facts
    d, half = facts["features"], original.dtype in DTYPES[2:]
    x = torch.from_numpy(rng.standard_normal((count, d)) * 10.0 ** rng.uniform(-6, 3, (count, 1)))
    x = x.to(original.dtype).double().to(torch.float64 if half else original.dtype)
    weight, bias = getattr(part, "weight", None), getattr(part, "bias", None)
    centred = x - x.mean(-1, keepdim=True) if facts["kind"] == "layer" else x
    z = centred.double()
    y = z / (z.square().mean(-1, keepdim=True) + facts["epsilon"]).sqrt()
    with torch.no_grad():
        rough = part(x.to(original.dtype)).double()
        gain = torch.ones(d, dtype=torch.float64) if weight is None else weight.double()
        shift = 0.0 if bias is None else bias.double()
        plain, more = gain * y + shift, (1 + gain) * y + shift
        meant = plain if float((plain - rough).abs().mean()) < float((more - rough).abs().mean()) else more
        found = (_copy_in_double(new) if half else new)(x).double()
    limit = norm.approximation if half else norm.approximation + norm.rounding
    own = 1e-9 if half or original.dtype == torch.float64 else 0.0
    if meant is more:  # 1 + weight is rounded to the dtype in which it is taken
        own += 2.0**-22
    _see(found, meant, limit, own, count, norm.name, outcome)
