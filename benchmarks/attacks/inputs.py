"""Certificates for given inputs under attack: networks, and converted models, against the original at another precision, with
zero slack, and against torch's float64 run of the original, which shares no code with the bound."""

from __future__ import annotations

import copy
import math
import time

import numpy as np
import torch
from flint import arb
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attacks.blocks import ENGINES
from attacks.networks import compiled, random_module
from attacks.tally import Outcome
from attnc import Box, convert_
from attnc.errors import AttncError
from attnc.frontends.exact import exact_outputs
from attnc.frontends.transformers import Call
from attnc.frontends.transformers.find import record
from attnc.functions.balls import upper, working
from attnc.network.certified import Certified
from attnc.pretrained.inputs import outputs
from attnc.program.evaluate import exact
from attnc.program.step import Balls
from tests.frontends.tiny_models import tiny

BITS = 448
# families that write no activation out, and how far their float64 run is from exact arithmetic: most cast to float32
FAMILIES = {
    "bert": 1e-11, "llama": 1e-4, "t5": 1e-4, "vit": 1e-11, "opt": 1e-11, "gpt_neox": 1e-4, "distilbert": 1e-11, "gemma": 1e-4,
    "qwen3": 1e-4,
}  # fmt: skip
PARTS = ("feed-forward", "norm", "all")


def attack(seed: int) -> Outcome:
    """A compiled network for even seeds, a converted model for odd ones."""
    began, rng = time.perf_counter(), np.random.default_rng([7, seed])
    outcome = Outcome("inputs", str(seed), "refused")
    try:
        (_model if seed % 2 else _network)(seed, rng, outcome)
    except AttncError as problem:
        outcome.note = str(problem)[:200]
    outcome.seconds = time.perf_counter() - began
    return outcome


def _network(seed: int, rng: np.random.Generator, outcome: Outcome) -> None:
    model, width = random_module(rng)
    dtype = (torch.float32, torch.float64)[int(rng.integers(2))]
    outcome.name = f"{seed}: network, {dtype}"
    model = model.to(dtype)
    net = compiled(model, Box(-1, 2, shape=(width,)), dtype, float(10 ** rng.uniform(-3, -1)))
    x = torch.from_numpy(rng.uniform(-1, 2, (40, width))).to(dtype)
    found = net.certified(x)
    outcome.verdict = "converted"
    _judge(found, exact(net.program, x.double().numpy(), BITS), outcome)
    with torch.no_grad():
        _beside(
            found, copy.deepcopy(model).double()(x.double()), 1e-8, outcome
        )  # softplus turns linear beyond its threshold


def _model(seed: int, rng: np.random.Generator, outcome: Outcome) -> None:
    name, off = list(FAMILIES.items())[int(rng.integers(len(FAMILIES)))]
    dtype, engine = (torch.float32, torch.float64)[int(rng.integers(2))], ENGINES[int(rng.integers(2))]
    parts = PARTS[int(rng.integers(len(PARTS)))]
    outcome.name = f"{seed}: {name}, {dtype}, {parts}, {engine}"
    original = _drawn(tiny(name), rng).to(dtype)
    converted, wide = copy.deepcopy(original), copy.deepcopy(original).double()
    given = _given(name, rng, dtype)
    report = convert_(
        converted, float(10 ** rng.uniform(-5, -2)), config={"engine": engine}, parts=parts, samples=given
    )
    found = report.for_input(given)
    outcome.verdict = "converted"
    truth = exact_outputs(record(original, Call((), given), grad=False), tree_leaves(given), BITS)
    for one, balls in zip(found.outputs.values(), [b for b in truth if b is not None], strict=True):
        _judge(one, balls, outcome)
    floats = {key: x.double() if x.is_floating_point() else x for key, x in given.items()}
    for one, value in zip(found.outputs.values(), outputs(wide, [Call((), floats)])[0].values(), strict=True):
        _beside(one, value, off, outcome)


def _drawn(model: nn.Module, rng: np.random.Generator) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0, 0.4, tuple(parameter.shape))))
    return model


def _given(name: str, rng: np.random.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    if name == "vit":
        return {"pixel_values": torch.from_numpy(rng.normal(size=(1, 3, 8, 8))).to(dtype)}
    length = int(rng.integers(2, 9))
    ids = torch.from_numpy(rng.integers(3, 50, (2, length)))
    found = {"input_ids": ids, **({"decoder_input_ids": ids} if name == "t5" else {})}
    if rng.random() < 0.5:
        kept = torch.ones(2, length, dtype=torch.int64)
        kept[1, int(rng.integers(1, length)) :] = 0
        found["attention_mask"] = kept
    return found


def _judge(found: Certified, truth: Balls, outcome: Outcome) -> None:
    values, bounds = found.value.double().flatten().tolist(), found.bound.flatten().tolist()
    outcome.inputs += len(values)
    outcome.claimed = max([found.largest, *([] if math.isnan(outcome.claimed) else [outcome.claimed])])
    with working(BITS):
        for value, bound, ball in zip(values, bounds, truth.flat, strict=True):
            gap = abs(arb(value) - ball)
            if bound and upper(gap / bound) > outcome.ratio:
                outcome.ratio, outcome.measured = upper(gap / bound), upper(gap)
            if not gap <= arb(bound):
                outcome.verdict = "false"


def _beside(found: Certified, value: Tensor, off: float, outcome: Outcome) -> None:
    """torch's float64 run must be within the bound, up to its own rounding."""
    gap = (found.value.double() - value.double()).abs() - found.bound
    if not bool((gap <= off * (1 + value.abs().max())).all()):
        outcome.verdict, outcome.note = "false", f"the float64 run exceeds a bound by {float(gap.max()):.4g}"
