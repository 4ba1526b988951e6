"""Transformers that are compiled: every value of the network, as executed, is within what is proved of it, with zero slack."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flint import arb

import attnc
from attnc.domain import Box
from attnc.errors import InputError, PrecisionError
from attnc.functions.balls import lower as at_least
from attnc.functions.balls import upper as at_most
from attnc.functions.balls import working
from attnc.lower.program_to_network import certified, lower
from attnc.lower.request import Request
from attnc.program import Program
from attnc.program.step import balls
from tests.sampled import every
from tests.soundness.transformers import transformer

CASES = {
    "layer norm, gelu, float64": (transformer(0), "float64", 1e-6),
    "rms norm, gated, causal, shared keys, float32": (
        transformer(1, gated=True, centred=False, causal=True, slices=1), "float32", 1e-3
    ),
    "errors as large as the outputs, gated, float32": (transformer(3, epsilon=1e-8, gated=True), "float32", 1e-3),
    "token ids, layer norm, float32": (transformer(2, vocabulary=7, n=3), "float32", 1e-3),
}  # fmt: skip


def inputs(program: Program, box: Box, dtype: str) -> torch.Tensor:
    """Random inputs, corners, and tokens of equal numbers, which a norm amplifies most."""
    draw = np.random.default_rng(3)
    if isinstance(box, attnc.Tokens):
        return torch.from_numpy(draw.integers(0, box.vocabulary, (12, *box.shape)))
    x = draw.uniform(-1, 1, (24, *box.shape))
    x[:8] = np.sign(x[:8])
    x[8:16] = x[8:16, :, :1]
    x[8:16] -= program.steps[0].tensors()["shift"]
    return torch.from_numpy(np.clip(x, -1, 1)).to(getattr(torch, dtype))


@pytest.mark.parametrize("name", every(2, CASES))
def test_every_value_is_within_its_bounds(name: str) -> None:
    program, dtype, approximation = CASES[name]
    ids = program.steps[0].kind == "embed"
    box = attnc.Tokens(7, 3) if ids else Box(-1, 1, shape=program.shape)
    lowered = lower(Request(program, box, math.inf, dtype, approximation=approximation))
    net = certified(Request(program, box, math.inf, dtype, approximation=approximation), lowered)
    x = inputs(program, box, dtype)
    with torch.no_grad():
        executed = net._run(x, keep=True)
    with working(192):
        exact = [balls(x.double().numpy())]
        for i, step in enumerate(program.steps, 1):
            exact.append(step.exact(*(exact[j] for j in step.inputs)))
            bounds = lowered.known[i]
            for place in np.ndindex(*exact[-1].shape):
                meant, now, at = exact[-1][place], arb(float(executed[i][place])), place[1:]
                assert abs(now - meant) <= arb(float(bounds.error[at])), (step.label, place)
                assert at_most(meant) >= bounds.lo[at] and at_least(meant) <= bounds.hi[at], (
                    step.label,
                    place,
                )
    assert net.certificate.facts["requested"] == approximation
    assert attnc.verify(net).status == "proved"


def test_a_transformer_within_eps_end_to_end(tmp_path: Path) -> None:
    program = transformer(4, size=0.5)
    net = attnc.compile(program, domain=Box(-1, 1, shape=(2, 4)), eps=1e-3, dtype=torch.float64)
    assert net.certificate.bound <= 1e-3 and attnc.verify(net).status == "proved"
    net.save(tmp_path / "net.safetensors")
    loaded = attnc.load(tmp_path / "net.safetensors")
    x = 2 * torch.rand(16, 2, 4, dtype=torch.float64) - 1
    assert torch.equal(loaded(x), net(x)) and attnc.verify(loaded).status == "proved"
    with pytest.raises(PrecisionError) as problem:
        attnc.compile(
            transformer(4, epsilon=1e-9), domain=Box(-1, 1, shape=(2, 4)), eps=1e-6, dtype=torch.float64
        )
    assert problem.value.reachable is not None


def test_ids_are_whole_numbers_of_the_vocabulary() -> None:
    program = transformer(2, vocabulary=7, n=3)
    for domain in (Box(0, 6, shape=(3,)), attnc.Tokens(8, 3)):
        with pytest.raises(InputError):
            attnc.compile(program, domain=domain, approximation=1e-3)
    with pytest.raises(InputError):
        attnc.compile(transformer(2), domain=attnc.Tokens(7, 3), approximation=1e-3)
    net = attnc.compile(program, domain=attnc.Tokens(7, 3), approximation=1e-2)
    ids = torch.tensor([[0, 6, 3], [1, 1, 1]])
    assert net(ids).shape == (2, 1, 2) and torch.equal(net(ids), net(ids.float()))
    assert net.certificate.covers(ids) and not net.certificate.covers(ids + 1)
    with pytest.raises(InputError):
        net(ids + 1, strict=True)
    with pytest.raises(InputError):
        net(ids + 0.5, strict=True)
