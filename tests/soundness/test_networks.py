"""No input makes a network err by more than its certificate says: zero slack, high precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb

import attnc
from attnc.errors import PrecisionError
from attnc.functions.balls import working
from attnc.lower.witness import ascend, candidates, within
from attnc.network.network import Network
from attnc.program.evaluate import differentiable, exact
from tests.sampled import every
from tests.soundness.networks import Case, case

PRECISION = 256


def compiled(c: Case) -> Network:
    """Within the case's eps, or, where the dtype cannot hold it, within what it can."""
    try:
        return attnc.compile(c.program, domain=c.box, eps=c.eps, dtype=c.dtype)
    except PrecisionError as problem:
        assert problem.reachable is not None, c.text
        return attnc.compile(c.program, domain=c.box, eps=1.2 * problem.reachable, dtype=c.dtype)


def attack(net: Network, c: Case, seed: int) -> torch.Tensor:
    """Corners, random inputs, ends mixed with insides, and from the worst of them uphill on the error."""
    x = candidates(c.box, 400, seed)
    mixed = torch.where(
        torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5, x, x.roll(1, 0)
    )
    x = within(torch.cat([x, mixed]), c.box, c.dtype)
    with torch.no_grad():
        error = (net(x).double() - differentiable(c.program, x.double())).abs().flatten(1).amax(1)
    worst = x[error.argsort(descending=True)[:12]]
    risen = ascend(net, c.program, worst.double(), c.box, 25)
    return within(torch.cat([worst.double(), risen]), c.box, c.dtype)


def above_bound(net: Network, c: Case, x: torch.Tensor) -> list[str]:
    """Outputs that are surely farther from the program than the bound, or not finite."""
    meant = exact(c.program, x.double().numpy(), PRECISION)
    found = []
    for engine in ("softmax", "sdpa"):
        net.engine = engine
        with torch.no_grad():
            executed = net(x).double().numpy()
        assert np.isfinite(executed).all()
        with working(PRECISION):
            for y, ball in zip(executed.ravel().tolist(), meant.ravel(), strict=True):
                if not abs(arb(y) - ball) <= arb(net.certificate.bound):
                    found.append(f"{engine}: {y!r} for {ball}, bound {net.certificate.bound}, {c.text}")
    return found


def check(seed: int) -> None:
    c = case(seed)
    net = compiled(c)
    assert above_bound(net, c, attack(net, c, seed)) == []
    verdict = attnc.verify(net)
    assert verdict.status == "proved", (verdict.reason, c.text)


@pytest.mark.parametrize("seed", every(3, (s for s in range(0, 126, 5) if s not in (20, 120))))
def test_no_input_exceeds_the_bound(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [s for s in range(126) if s % 5 or s in (20, 120)])
def test_no_input_exceeds_the_bound_in_a_hundred_more(seed: int) -> None:
    check(seed)


def test_the_attack_sees_a_network_that_exceeds_its_bound() -> None:
    c = case(11)
    net = compiled(c)
    with torch.no_grad():
        next(net.parameters()).mul_(1.5)
    assert above_bound(net, c, attack(net, c, 0))
