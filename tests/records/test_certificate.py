"""Certificates: what they state, how they are written, and that edits are found."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attnc.domain import Box, Interval, Normed, Sequences
from attnc.errors import CertificateError, InputError
from attnc.records.certificate import Certificate, Status, Verdict, Witness
from attnc.records.domains import domain_from_json, domain_to_json
from attnc.records.facts import FACTS
from attnc.records.fields import round_up, seal, versions
from attnc.records.numbers import TENSORS


def head(**changes) -> Certificate:
    given = {
        "subject": "head",
        "name": "tanh",
        "status": Status.PROVED,
        "approximation": 1e-7,
        "rounding": 2e-7,
        "bound": 3e-7,
        "holds_for": Interval(-8, 8),
        "dtype": "float32",
        "witness": Witness((0.5,), 0, 2e-7),
        "digests": dict.fromkeys(TENSORS, "0" * 64),
        "facts": {"function": "tanh", "design": "gated", "precision": 128, "cells": 40},
        "versions": versions(),
    }
    return Certificate(**{**given, **changes})


def layer(*heads: Certificate) -> Certificate:
    return Certificate(
        subject="layer", name="layer 1", status=Status.PROVED, approximation=2e-7, rounding=3e-7, bound=4e-7, dtype="float32",
        facts={"function": "tanh", "value": 2, "neurons": [3] * len(heads), "error_in": 0.0}, children=heads,
    )  # fmt: skip


@pytest.fixture
def network() -> Certificate:
    return Certificate(
        subject="network", status=Status.PROVED, approximation=2e-7, rounding=3e-7, bound=4e-7, holds_for=Box(-1, 1, (2,)),
        dtype="float32", witness=Witness((0.5, -1.0), 0, 1e-7), digests={"structure": "1" * 64}, facts={"program": "2" * 64},
        children=(layer(head(), head()),), versions=versions(),
    )  # fmt: skip


def test_status_is_an_enum_and_a_string() -> None:
    assert Status.MEASURED == "measured"
    assert f"{Status.MEASURED}" == str(Status.MEASURED) == "measured"
    assert json.dumps({"status": Status.PROVED}) == '{"status": "proved"}'


def test_the_tree_round_trips(network: Certificate) -> None:
    read = Certificate.from_json(json.loads(json.dumps(network.to_json())))
    assert read == network
    assert read.seal() == network.seal()
    assert [part.subject for part in read.walk()] == ["network", "layer", "head", "head"]
    assert len(read.parts("layer")) == 1
    assert not read.parts("lookup")


EDITS = {
    "bound": lambda r: r | {"bound": r["bound"] / 2},
    "domain": lambda r: r | {"holds_for": r["holds_for"] | {"hi": 2.0}},
    "dtype": lambda r: r | {"dtype": "float64"},
    "status": lambda r: r | {"status": "measured"},
    "digest": lambda r: r | {"digests": {"structure": "0" * 64}},
    "fact": lambda r: r | {"facts": {"program": "0" * 64}},
    "witness": lambda r: r | {"witness": r["witness"] | {"error": 0.0}},
    "child": lambda r: r | {"children": [r["children"][0] | {"bound": 0.0}]},
    "children": lambda r: r | {"children": []},
    "seal": lambda r: r | {"seal": "0" * 64},
    "format": lambda r: r | {"format": 1},
    "missing": lambda r: {k: v for k, v in r.items() if k != "bound"},
    "unknown": lambda r: r | {"more": 1},
    "no seal": lambda r: {k: v for k, v in r.items() if k != "seal"},
    "no object": lambda r: [r],
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_is_found(network: Certificate, edit) -> None:
    with pytest.raises(CertificateError):
        Certificate.from_json(edit(network.to_json()))


def leaves(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if items is None:
        yield at
    else:
        for key, value in items:
            yield from leaves(value, (*at, key))


def test_any_edit_breaks_the_seal(network: Certificate) -> None:
    places = list(leaves(network.to_json()))
    assert len(places) > 60
    for at in places:
        record = holder = network.to_json()
        for key in at[:-1]:
            holder = holder[key]
        old = holder[at[-1]]
        holder[at[-1]] = 1.0 if old is None else old + "0" if isinstance(old, str) else old + 1
        with pytest.raises(CertificateError):
            Certificate.from_json(record)
            pytest.fail(f"read with another {at}")


RESEALED = {
    "NaN as null": {"bound": None},
    "text": {"bound": "1e-3"},
    "negative": {"rounding": -1.0},
    "status": {"status": "certain"},
    "subject": {"subject": "theorem"},
    "dtype": {"dtype": "bfloat16"},
    "digest": {"digests": {"key": 1}},
    "domain kind": {"holds_for": {"kind": "ball", "lo": 0.0, "hi": 1.0}},
    "domain order": {"holds_for": {"kind": "box", "lo": 1.0, "hi": -1.0, "shape": [2]}},
    "domain text": {"holds_for": {"kind": "box", "lo": "a", "hi": 1.0, "shape": [2]}},
    "domain shape": {"holds_for": {"kind": "box", "lo": [0.0], "hi": 1.0, "shape": [2]}},
    "short witness": {"witness": {"input": [0.5], "output": 0, "error": 0.0}},
    "endless witness": {"witness": {"input": [1, 2], "output": 0, "error": 0.0}},
    "facts": {"facts": {}},
    "children": {"children": [1]},
    "missing": None,
}


@pytest.mark.parametrize("change", RESEALED.values(), ids=RESEALED)
def test_a_malformed_certificate_with_a_valid_seal_is_refused(network: Certificate, change) -> None:
    body = {k: v for k, v in network.to_json().items() if k != "seal"}
    body = body | change if change is not None else {"format": body["format"]}
    with pytest.raises(CertificateError):
        Certificate.from_json({**body, "seal": seal(body)})


BAD = {
    "bound": math.nan,
    "approximation": math.inf,
    "rounding": -1e-9,
    "status": "proved",
    "subject": "thing",
    "dtype": "float16",
    "digests": {"key": "0"},
    "facts": {"function": "tanh", "design": "gated", "precision": 128},
    "children": [],
    "witness": Witness((0.5, 0.5), 0, 0.0),
}


@pytest.mark.parametrize("field", BAD)
def test_constructor_checks(field: str) -> None:
    with pytest.raises(CertificateError):
        head(**{field: BAD[field]})


def test_facts_depend_on_the_status() -> None:
    measured = head(status=Status.MEASURED, facts={"function": "f", "design": "smooth", "points": 100})
    assert not measured.proved
    with pytest.raises(CertificateError, match="points"):
        head(status=Status.MEASURED)
    with pytest.raises(CertificateError, match="neurons"):
        replace(layer(head()), children=())


def test_a_measured_network_states_its_confidence(network: Certificate) -> None:
    facts = {
        "points": 10_000,
        "seed": 1,
        "method": "fit",
        "mean_square": 1e-9,
        "confidence": 0.999,
        **network.facts,
    }
    measured = replace(network, status=Status.MEASURED, facts=facts)
    assert measured.fraction == pytest.approx(6.9e-4, rel=1e-2)
    assert (1 - measured.fraction) ** 10_000 == pytest.approx(1e-3)


def test_covers(network: Certificate) -> None:
    assert network.covers(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    assert not network.covers(torch.tensor([[1.0, math.nan]]))
    assert not network.covers(torch.tensor([[1.0, 1.5]]))
    assert not network.covers(torch.zeros(1, 2, dtype=torch.float64))
    assert head().covers(torch.tensor([-8.0, 8.0]))
    assert not head().covers(torch.tensor([8.0001]))
    assert not head().covers(torch.tensor([math.nan]))
    with pytest.raises(InputError):
        head().covers(1.0)  # type: ignore[arg-type]
    with pytest.raises(CertificateError):
        layer().covers(torch.zeros(1))


def test_the_ends_are_compared_as_they_are_not_as_the_dtype_rounds_them(network: Certificate) -> None:
    """0.1 is not a float32: its neighbours lie on both sides of the end."""
    uneven = replace(network, holds_for=Box(np.array([0.1, -3.0]), np.array([0.3, 4.0])))
    x = torch.tensor([0.1, 0.0])
    assert float(x[0]) > 0.1
    assert uneven.covers(x)
    assert not uneven.covers(torch.stack([x, torch.tensor([0.2, 4.5])]))
    x[0] = torch.nextafter(x[0], torch.tensor(-1.0))
    assert not uneven.covers(x)
    with pytest.raises(InputError):
        uneven.covers(torch.zeros(3))


def test_a_proved_certificate_has_proved_parts(network: Certificate) -> None:
    seen = head(status=Status.MEASURED, facts={"function": "f", "design": "smooth", "points": 100})
    with pytest.raises(CertificateError):
        layer(seen)
    assert not Certificate.unknown("head", "float32").proved
    with pytest.raises(CertificateError):
        layer(Certificate.unknown("head", "float32"))


def test_nothing_can_be_changed(network: Certificate) -> None:
    with pytest.raises(FrozenInstanceError):
        network.bound = 0.0  # type: ignore[misc]


def test_accessors(network: Certificate) -> None:
    assert head().interval == Interval(-8, 8)
    assert network.box == Box(-1, 1, (2,))
    assert network.quality == pytest.approx(4.0)
    assert layer().quality == math.inf
    with pytest.raises(CertificateError):
        _ = network.interval
    with pytest.raises(CertificateError):
        _ = head().box


def test_it_prints_at_most_five_lines_and_no_digest(network: Certificate) -> None:
    for certificate in network.walk():
        text = str(certificate)
        assert len(text.splitlines()) <= 5
        assert str(certificate.status) in text
        assert "000000" not in text + repr(certificate) + certificate._repr_html_()
        assert certificate.dtype in text
    assert "4e-07" in str(network)
    assert "2 heads" in str(network)
    assert "Box(-1, 1, shape=(2,))" in network._repr_html_()


def test_printed_bounds_are_bounds() -> None:
    assert "3.01e-07" in str(head(bound=3.0001e-7))


DOMAINS = {
    "interval": Interval(-1, 0.1),
    "box": Box(-1, 1, (2, 3)),
    "uneven box": Box(np.array([-1.0, 0.1]), 1),
    "large box": Box(-np.arange(1.0, 101), 0.1 * np.arange(100)),
    "normed": Normed(True, np.linspace(0.5, 1.5, 300).astype(np.float32), np.zeros(300)),
    "wide normed": Normed(False, np.linspace(0.1, 1.7, 70), np.full(70, -0.0)),
    "sequences": Sequences(4, 9),
    "none": None,
}


NO_DOMAIN = [
    [], {}, {"kind": "sequences", "vocabulary": 0, "length": 9},
    {"kind": "box", "lo": -1.0, "hi": 1.0}, {"kind": "interval", "lo": 1.0, "hi": -1.0},
    {"kind": "interval", "lo": -1, "hi": 1},
    *({"kind": "box", "lo": -1.0, "hi": 1.0, "shape": shape} for shape in ([], [0], [-2], [2.0], [True], "2", 2)),
    *({"kind": "box", "lo": lo, "hi": 1.0, "shape": [2]}
      for lo in (math.nan, -math.inf, 2.0, [-1.0] * 3, [-1.0, "x"], "x", None, {}, {"<f4": "?"}, {"<f2": ""}, -(10**400))),
]  # fmt: skip


@pytest.mark.parametrize("record", NO_DOMAIN, ids=str)
def test_what_is_no_domain(record: Any) -> None:
    with pytest.raises(CertificateError):
        domain_from_json(record)


@given(
    st.sampled_from([(1,), (3,), (2, 2), (70,)]).flatmap(
        lambda shape: st.tuples(
            *[arrays(np.float64, shape, elements=st.floats(allow_nan=False, allow_infinity=False))] * 2
        )
    )
)
def test_any_box_comes_back(ends: tuple[np.ndarray, np.ndarray]) -> None:
    box = Box(np.minimum(*ends), np.maximum(*ends))
    assert domain_from_json(json.loads(json.dumps(domain_to_json(box)))) == box


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_domains_round_trip(domain) -> None:
    read = domain_from_json(json.loads(json.dumps(domain_to_json(domain))))
    if isinstance(domain, Normed):
        assert isinstance(read, Normed)
        assert read.centred is domain.centred
        assert read.gain.tobytes() == domain.gain.tobytes()
        assert read.shift.tobytes() == domain.shift.tobytes()
    else:
        assert read == domain


def test_every_subject_has_required_facts() -> None:
    assert set(FACTS) == {
        "head",
        "network",
        "layer",
        "lookup",
        "block",
        "norm",
        "quadratic",
        "activation",
        "model",
        "learner",
        "literal",
        "tokens",
    }


def test_verdicts() -> None:
    parts = (Verdict(Status.PROVED, "", name="a"), Verdict(Status.REFUTED, "", 1.0, (0.5,), 2.0, name="b"))
    verdict = Verdict("unknown", "not every part", children=parts)  # type: ignore[arg-type]
    assert verdict.status is Status.UNKNOWN
    assert [bool(v) for v in (verdict, *parts)] == [False, True, False]
    with pytest.raises(ValueError):
        Verdict("maybe", "")  # type: ignore[arg-type]


@given(st.floats(min_value=0, max_value=1e300), st.integers(1, 8))
def test_round_up_never_rounds_down(x: float, digits: int) -> None:
    assert x <= round_up(x, digits) <= x * (1 + 1.1 * 10.0 ** (1 - digits)) + 5e-324


def test_the_terms_of_a_proved_bound_add_up_to_it() -> None:
    assert head(bound=3e-7).bound == 3e-7
    for terms in ({"bound": 3.01e-7}, {"rounding": 0.0}):
        with pytest.raises(CertificateError):
            head(**terms)
    assert head(rounding=0.0, status=Status.MEASURED, facts={**head().facts, "points": 3}).bound == 3e-7


def test_a_witness_stands_only_where_it_is_checked(network: Certificate) -> None:
    with pytest.raises(CertificateError):
        replace(layer(head()), witness=Witness((0.0,), 0, 1e9))
    assert network.witness is not None and head().witness is not None


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "change", [{"bound": math.nan}, {"facts": {"a": object()}}, {5: 1}, {"facts": {"a": nested(100_000)}}]
)
def test_what_is_no_json_is_refused(change: dict[Any, Any]) -> None:
    with pytest.raises(CertificateError):
        Certificate.from_json({**head().to_json(), **change})


def test_other_formats_are_refused() -> None:
    body = {k: v for k, v in head().to_json().items() if k != "seal"}
    for version in (3.0, True, None, 2):
        other = {**body, "format": version}
        with pytest.raises(CertificateError):
            Certificate.from_json({**other, "seal": seal(other)})


@pytest.mark.parametrize("term", ["approximation", "rounding", "bound"])
def test_only_what_is_unknown_has_no_bound(term: str) -> None:
    unknown = Certificate.unknown("head", "float32")
    assert Certificate.from_json(unknown.to_json()) == unknown
    body = {k: v for k, v in head().to_json().items() if k != "seal"} | {term: None}
    with pytest.raises(CertificateError):
        Certificate.from_json({**body, "seal": seal(body)})
