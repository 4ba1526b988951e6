"""Networks of random traced functions against the functions in 256 bits, at corners, on faces and inside: no slack."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb

import attnc
from attnc.frontends.callable_source import CallableSource
from attnc.frontends.proved_lattice import LatticePlan
from attnc.functions.balls import working
from attnc.network.network import Network
from tests.prove.traced_functions import BITS, corner_or_inside, exact_values, random_function
from tests.sampled import every

INPUTS = 150


@pytest.mark.parametrize("seed", every(7, range(40)))
def test_no_output_is_farther_than_the_bound(seed: int) -> None:
    draw = np.random.default_rng(seed)
    d = int(draw.integers(1, 3))
    f = random_function(draw, d)
    box = attnc.Box(-1, 1, shape=(d,))
    source = CallableSource(f.approximate, box)
    scale = max(1e-3, float(np.abs(source(source.uniform(64, 0))).max()))
    dtype = "float32" if draw.random() < 0.3 else "float64"
    eps = scale * float(
        10 ** draw.uniform(-2, -1.2) if dtype == "float32" or f.has_kinks else 10 ** draw.uniform(-5, -2)
    )
    try:
        net = LatticePlan(source, f, eps, dtype, "f", 1 << 12, seed, 10.0, lambda _: None).network()
    except attnc.errors.ConvergenceError:
        pytest.skip("no lattice of this size is close enough")
    if not isinstance(net, Network):
        pytest.skip("not proved in this time, or in this dtype")
    assert net.certificate.bound <= eps
    x = torch.from_numpy(np.stack([corner_or_inside(draw, d) for _ in range(INPUTS)])).to(
        getattr(torch, dtype)
    )
    with torch.no_grad():
        made = net(x).double()
    with working(BITS):
        bound = arb(net.certificate.bound)
        for row, outputs in zip(x.double().tolist(), made.tolist(), strict=True):
            for y, meant in zip(outputs, exact_values(f, [arb(s) for s in row]), strict=True):
                assert abs(arb(y) - meant) <= bound
