"""Norms, and activations outside of feed-forward blocks, as attention: the modules that take their places, and their bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from attnc import functions
from attnc.arithmetic import ARITHMETIC
from attnc.domain import Ball, Interval
from attnc.errors import PrecisionError, Problem
from attnc.frontends.transformers import ActivationSite, NormSite, PartSite
from attnc.heads.target import Plan
from attnc.lower.function_to_head import head_approximating
from attnc.lower.pointwise import executed_error
from attnc.lower.quadratic import proved_heads
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.pretrained.blocks import stated, too_small
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.guard import MODES, SHAPES, ULPS, is_close, refuse, rows_of
from attnc.prove.quadratic import norm_errors
from attnc.records.certificate import Certificate
from attnc.records.fields import round_up

MOST = 2.0**64  # the largest mean square of a token
REACH = 2.0**10  # of an activation
_LARGEST_TARGET = 2.0**-12  # of the relative error: outputs stay normalised to 2^-10


@dataclass(frozen=True, eq=False)
class PlannedPart:
    """The module that will take the place of a norm or activation, and its certificate; the model is not changed yet."""

    site: PartSite
    module: Norm | Pointwise
    certificate: Certificate


def plan_activation(site: ActivationSite, approximation: float, config: ConvertConfig) -> PlannedPart:
    """tanh or sigmoid by one head of two keys on [-2^10, 2^10], where both have long been constant."""
    f, dtype = functions.get(site.activation), str(site.dtype).removeprefix("torch.")
    head = head_approximating(Plan(f, Interval(-REACH, REACH), dtype, config.design), approximation)
    module = Pointwise([(None, head)], config.engine, config.strict)
    roundings = {engine: round_up(executed_error(head, f, engine)) for engine in ("softmax", "closed-form")}
    facts = {"activation": site.activation, "engine": module.runs, "roundings": roundings}
    known = head.certificate
    about = {"holds_for": known.interval, "children": (known,)}
    certificate = stated(site, "activation", known.approximation, config.engine, facts, **about)
    return PlannedPart(site, module.eval(), certificate)


def plan_norm(site: NormSite, approximation: float, config: ConvertConfig) -> PlannedPart:
    """Heads such that every output of the norm moves by at most `approximation` in exact arithmetic: |γ_i| √d g."""
    norm, dtype = site.norm, str(site.dtype).removeprefix("torch.")
    domain = norm.domain()
    size = float(abs(domain.gain).max()) * math.sqrt(norm.features)
    target = min(_LARGEST_TARGET, approximation / size / 1.05 if size > 0 else 1.0)
    target = 10.0 ** math.floor(math.log10(target))  # norms share heads
    try:
        proof = proved_heads(norm.features, site.epsilon, MOST, target, dtype)
    except PrecisionError as problem:
        reachable = (problem.reachable or 0.0) * size * 1.1
        raise too_small(site, approximation, reachable) from problem
    relative = {"softmax": proof.executed, "closed-form": proof.closed_form}
    errors = {
        engine: norm_errors(domain.gain, domain.shift, proof.approximation, error, ARITHMETIC[dtype])
        for engine, error in relative.items()
    }
    facts = {
        "kind": norm.kind, "engine": config.engine, "features": norm.features, "epsilon": site.epsilon,
        "heads": len(proof.numbers), "relative": proof.approximation, "executed": relative,
        "roundings": {engine: round_up(executed) for engine, (_, executed) in errors.items()},
    }  # fmt: skip
    ball = Ball(norm.features, math.sqrt(norm.features * MOST), norm.kind == "layer")
    about = {"holds_for": ball, "digests": proof.numbers.digests()}
    exact = round_up(errors["softmax"][0])
    certificate = stated(site, "norm", exact, config.engine, facts, **about)
    module = Norm(
        proof.numbers, norm.kind == "layer", norm.weight, norm.bias, one_plus=norm.one_plus, most=MOST, engine=config.engine,
        strict=config.strict,
    )  # fmt: skip
    module.heads.to(next((t.device for _, t in norm.tensors()), torch.device("cpu")))
    return PlannedPart(site, module.eval(), certificate)


def check_norms(model: nn.Module, planned: Sequence[PlannedPart]) -> None:
    """Call each norm that will be replaced by itself, on inputs of several shapes and sizes, in every mode, and compare it with
    what was read."""
    sites = [plan.site for plan in planned if isinstance(plan.site, NormSite)]
    problems = [Problem(site.name, reason) for site in sites if (reason := _norm_problem(site))]
    refuse(model, problems)


def _norm_problem(site: NormSite) -> str | None:
    norm, domain = site.norm, site.norm.domain()
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
        size = np.abs(domain.gain) * (1 + np.abs(y)) + np.abs(domain.shift)
        expected = domain.gain * y + domain.shift, size
        same = isinstance(out, Tensor) and is_close(rows_of(out), expected, torch.float32, ULPS)
        if not same:  # up to float32, in which some norms are taken
            return f"computes something else than was read, on an input of shape {tuple(x.shape)}"
    return None
