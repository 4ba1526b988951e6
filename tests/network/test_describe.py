"""What networks tell of themselves that are measured, fitted, or lookups: nothing is called proved that is not."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import numpy as np
import pytest

from attnc.network.describe import COLUMNS, lattice
from attnc.network.layer import LookupLayer
from attnc.network.network import Network
from attnc.records.certificate import Certificate, Status
from attnc.records.presentation import Theorem
from tests import parts
from tests.plot.unproved_networks import (
    POINTS,
    SEED,
    fitted_network,
    grid_network,
    lattice_network,
    random_inputs,
    slow,
    wave,
)


def row(net: Network) -> dict[str, str]:
    (only,) = net.describe().rows
    return dict(zip(COLUMNS, only, strict=True))


def claims_about_f(text: str) -> list[str]:
    """Lines that call something proved, and speak of f and not of a network that was fitted to it."""
    lines = [line for line in text.splitlines() if re.search(r"\bproved\b", line)]
    denied = ("not proved", "neither proved", "not against f")
    return [line for line in lines if not any(words in line for words in denied)]


def test_a_lookup_that_was_measured() -> None:
    net = lattice_network()
    assert net.certificate.status is Status.MEASURED
    assert row(net) == {
        "layer": "lookup", "function": "wave (callable)", "heads": "1", "anchors": "99 lattice 11 × 9",
        "interval": "the box", "error in": "—", "error out": "measured",
    }  # fmt: skip
    text = str(net.describe())
    x = random_inputs(POINTS, SEED)
    worst = float((net(x) - wave(x)).abs().max())
    assert f"measured, not proved: |network - f| <= {worst:.3g} at 5,000 random inputs (seed {SEED})" in text
    assert f"{1 - 0.001 ** (1 / POINTS):.2g} of the box" in text
    assert claims_about_f(text) == []
    assert net.describe().summary[-3:] == ("form: two-layer", *net.notes)
    assert "parameters: 497, of which anchors 497 (100 %)" in text


def test_a_lookup_that_is_proved() -> None:
    net = grid_network()
    assert net.certificate.proved
    told = row(net)
    assert (told["anchors"], told["error out"]) == ("441 grid 21 × 21", "1.42e-01")
    text = str(net.describe())
    assert f"proved for Lipschitz constant 1: |network - f| <= 0.142 on {net.domain}, in float64" in text
    assert (
        "for every f with the stored values at 441 points, up to noise of 0, and Lipschitz constant 1 "
        in text
    )
    assert "theorem attention_softmax: bound 0.2" in text
    assert "measured" not in text
    assert float((net(random_inputs(500)) - slow(random_inputs(500))).abs().max()) <= net.certificate.bound


def test_a_fitted_network_is_proved_only_against_what_was_fitted() -> None:
    net = fitted_network()
    assert net.certificate.claims is not None
    (claim,) = net.certificate.claims.parts("layer")
    told = row(net)
    assert (told["function"], told["heads"]) == ("tanh", "6")
    assert claim.bound <= float(told["error out"]) <= 1.01 * claim.bound
    text = str(net.describe())
    assert claims_about_f(text) == []
    assert "proved against a network that was fitted to f, not against f: |network - fitted|" in text
    assert "form: two-layer, neurons as heads" in text


def test_a_certificate_and_a_measurement_stand_side_by_side() -> None:
    net = copy.deepcopy(grid_network())
    x = random_inputs(POINTS, SEED)
    error = float((net(x) - slow(x)).abs().max())
    facts = lattice_network().certificate.facts | net.certificate.facts | {"error": error}
    net.certificate = replace(net.certificate, facts=facts)
    text = str(net.describe())
    assert "proved for Lipschitz constant 1: |network - f|" in text
    assert f"measured: at most {error:.3g} at 5,000 random inputs" in text
    net.theorem = Theorem("two_layer", "weights exist", None)
    assert "theorem two_layer: no number" in str(net.describe())


@pytest.mark.parametrize("make", [lattice_network, fitted_network])
def test_a_changed_network_is_neither_proved_nor_measured(make: object) -> None:
    net = copy.deepcopy(make())  # type: ignore[operator]
    name, parameter = next(iter(net.named_parameters()))
    parameter.data.view(-1)[0] += 1
    assert net.why_changed() == f"changed since it was certified: {name}"
    first = net.describe().summary[0]
    assert first.endswith(f": {name}") and "unknown" in first
    other = copy.deepcopy(make()).half()  # type: ignore[operator]
    assert "float16" in other.describe().summary[0]
    assert claims_about_f(str(other.describe())) == []
    assert "measured" not in "".join(net.describe().rows[0])


def test_another_dtype_was_not_measured() -> None:
    net = copy.deepcopy(lattice_network()).float()
    reason = net.why_changed()
    assert reason is not None and "float64" in reason and "float32" in reason


def test_a_lookup_whose_certificate_does_not_fit() -> None:
    net = copy.deepcopy(grid_network())
    net.selections[0].values.data[0, 0] += 1
    text = str(net.describe())
    assert text.count("not certified: changed since it was certified: stages.1.values") == 1
    assert claims_about_f(text) == []


def test_a_network_of_which_nothing_is_known() -> None:
    net = copy.deepcopy(fitted_network())
    net.certificate = Certificate.unknown("network", "float32")
    assert row(net)["error in"] == row(net)["error out"] == "—"
    assert net.describe().summary[0].startswith("the error of this network is unknown")


def selection(key: object) -> LookupLayer:
    rows = np.asarray(key, dtype=np.float64)
    k, m = rows.shape
    return LookupLayer(parts.lookup(0, 1, np.zeros(m), rows, np.zeros(k), np.zeros((k, 1))))


def test_what_is_no_lattice_is_not_called_one() -> None:
    corners = [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert lattice(selection(corners)) == (2, 2)
    assert lattice(selection(corners[:3])) is None
    assert lattice(selection([*corners[:3], [0, 0]])) is None, "as many as a lattice, one of them twice"
    assert lattice(selection([[5, 0], [5, 1], [5, 2]])) == (1, 3)
