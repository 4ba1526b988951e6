"""Fitted networks: the bound against f holds at inputs in 256-bit balls, is checked from the file, and not if it was altered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flint import arb

import attnc
from attnc.check.network import check_network
from attnc.functions.balls import working
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


@pytest.mark.parametrize("change", ["distance", "function", "bound", "missing"])
def test_an_altered_certificate_is_not_proved(net: attnc.Network, change: str) -> None:
    c = net.certificate
    facts = {**c.facts}
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
