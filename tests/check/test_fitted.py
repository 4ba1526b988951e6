"""Fitted networks: the bound against f holds at inputs in 256-bit balls, is checked from the file, and not if it was altered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flint import arb

import attnc
from attnc.check.fitted import FitProof
from attnc.check.lattice import chebyshev
from attnc.check.network import check_network
from attnc.functions.balls import working
from attnc.program import Affine, Pointwise, Program, Traced
from attnc.program.evaluate import exact
from attnc.records.fitted import meaning


@pytest.fixture(scope="module")
def net() -> attnc.Network:
    box = attnc.Box(-1, 1, shape=(1, 2))
    return attnc.compile(
        lambda x: torch.sin(x[..., :1] + x[..., 1:]), domain=box, eps=1e-2, method="fit", dtype=torch.float64
    )


def test_the_bound_holds_at_corners_faces_and_inside(net: attnc.Network) -> None:
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (200, 1, 2))
    x[::2] = np.where(draw.random((100, 1, 2)) < 0.6, np.sign(x[::2]), x[::2])
    made = net(torch.from_numpy(x)).detach().numpy().ravel()
    meant = exact(meaning(net.program, net.certificate), x, 256).ravel()
    with working(256):
        assert all(
            abs(arb(float(y)) - z) <= arb(net.certificate.bound) for y, z in zip(made, meant, strict=True)
        )


def test_it_is_proved_again_from_the_file(net: attnc.Network, tmp_path) -> None:
    assert net.certificate.proved and net.certificate.bound <= 1e-2
    net.save(tmp_path / "fit.attnc")
    assert attnc.verify(tmp_path / "fit.attnc").status == "proved"


@pytest.mark.parametrize("steep", [0.01, 1.0, 25.0])
def test_bounds_of_cells_hold_at_points(steep: float) -> None:
    """|g - f| in balls is at most the bound of its cell, also where g is steep or saturated and f is small."""
    draw = np.random.default_rng(round(100 * steep))
    f = Traced(0, 2, (("multiply", 0, 1), ("sin", 2)), (3,))
    first = Affine(0, steep * draw.normal(size=(4, 2)), draw.normal(size=4))
    last = Affine(2, draw.normal(size=(1, 4)), draw.normal(size=1))
    program = Program((2,), (first, Pointwise(1, attnc.functions.get("tanh")), last))
    proof = FitProof(f, program, np.full(2, -1.0), np.full(2, 1.0), 1e6)
    centre, half = draw.uniform(-0.9, 0.9, (40, 2)), 10.0 ** draw.uniform(-4, -1, (40, 2))
    low, high = centre - half, centre + half
    worst, _, _ = proof.bounds(low, high, 6)
    assert np.isfinite(worst).sum() >= 20
    for cell in np.flatnonzero(np.isfinite(worst)):
        x = low[cell] + draw.choice([0.0, 0.5, 1.0, draw.random()], (8, 2)) * (high[cell] - low[cell])
        x = np.clip(x, low[cell], high[cell])
        meant = exact(program, x, 256).ravel()
        with working(256):
            for point, g in zip(x.tolist(), meant, strict=True):
                assert abs(g - (arb(point[0]) * arb(point[1])).sin()) <= arb(float(worst[cell]))


def test_what_interpolation_does_not_see_is_bounded() -> None:
    """f agrees with one neuron at the nodes of the cell, so that only the remainder is left."""
    node = float(np.abs(chebyshev(2)[0]).max())
    steep, half = 1.5, 0.25
    slope = np.tanh(steep * half * node) / (half * node)
    f = Traced(0, 1, (("constant", float(slope)), ("multiply", 0, 1)), (2,))
    tanh = Pointwise(1, attnc.functions.get("tanh"))
    program = Program((1,), (Affine(0, np.full((1, 1), steep)), tanh, Affine(2, np.ones((1, 1)))))
    proof = FitProof(f, program, np.array([-half]), np.array([half]), 1.0)
    (worst,), _, _ = proof.bounds(np.array([[-half]]), np.array([[half]]), 2)
    x = np.linspace(-half, half, 401)
    seen = np.abs(np.tanh(steep * x) - slope * x).max()
    assert 1e-4 < seen <= worst < np.inf


@pytest.mark.parametrize("change", ["distance", "function", "bound", "missing", "domain", "part"])
def test_an_altered_certificate_is_not_proved(net: attnc.Network, change: str) -> None:
    c = net.certificate
    facts = {**c.facts}
    if change == "domain":
        wide = attnc.Box(-2, 2, shape=(1, 2))
        assert not check_network(net.program, net.numbers(), replace(c, holds_for=wide))
        return
    if change == "part":
        small = replace(c.children[0], bound=1e-300, approximation=1e-300, rounding=0.0)
        assert not check_network(net.program, net.numbers(), replace(c, children=(small,)))
        return
    if change == "distance":
        facts["distance"] = c.facts["distance"] / 8
    elif change == "function":
        operations = [["cos" if o[0] == "sin" else o[0], *o[1:]] for o in c.facts["function"]["operations"]]
        facts["function"] = {**c.facts["function"], "operations": operations}
    elif change == "missing":
        del facts["function"]
    terms = {"bound": c.bound / 2} if change == "bound" else {}
    assert not check_network(net.program, net.numbers(), replace(c, facts=facts, **terms))


def test_a_function_without_a_part_about_the_fitted_network_is_not_proved(net: attnc.Network) -> None:
    c, (inner,) = net.certificate, net.certificate.children
    damaged = {**c.facts["function"], "operations": [5]}
    assert not check_network(net.program, net.numbers(), replace(c, facts={**c.facts, "function": damaged}))
    other = {"width": 2, "operations": [["constant", 100.0]], "returned": [2]}
    for facts in ({"function": other, "distance": 1e-9}, {"function": other}, {"distance": 1e-9}):
        assert not check_network(net.program, net.numbers(), replace(inner, facts={**inner.facts, **facts}))
    assert check_network(net.program, net.numbers(), inner) and check_network(net.program, net.numbers(), c)
