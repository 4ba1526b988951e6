"""Certificates: what they say, how they are written, and that edits show."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnc
from attnc.errors import CertificateError, InputError
from attnc.records.head_certificate import Certificate, Measured, round_up


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    found = attnc.head("tanh", domain=(-8, 8), eps=1e-5).certificate
    assert found is not None
    return found


def test_it_names_what_it_is_about(certificate: Certificate) -> None:
    assert certificate.function == "tanh"
    assert (certificate.domain.lo, certificate.domain.hi, certificate.dtype) == (-8.0, 8.0, "float32")
    assert set(certificate.digests) == {"query", "key", "value", "output"}
    assert set(certificate.versions) == {"attnc", "torch", "numpy", "python-flint"}
    assert 0 < certificate.witness.error <= certificate.bound <= 1e-5
    assert certificate.quality == certificate.bound / certificate.witness.error
    assert certificate.bound <= 1.001 * (certificate.approximation + certificate.rounding)


def test_json_round_trip(certificate: Certificate) -> None:
    text = json.dumps(certificate.to_json())
    assert Certificate.from_json(json.loads(text)) == certificate


EDITS = {
    "a lower bound": lambda r: r | {"bound": r["bound"] / 2},
    "a wider domain": lambda r: r | {"domain": {"lo": -9.0, "hi": 8.0}},
    "another function": lambda r: r | {"function": "sigmoid"},
    "another dtype": lambda r: r | {"dtype": "float64"},
    "another digest": lambda r: r | {"digests": r["digests"] | {"key": "0" * 64}},
    "another witness": lambda r: r | {"witness": r["witness"] | {"error": 0.0}},
    "another seal": lambda r: r | {"seal": "0" * 64},
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_shows(certificate: Certificate, edit) -> None:
    with pytest.raises(CertificateError, match="edited"):
        Certificate.from_json(edit(certificate.to_json()))


BROKEN = {
    "no object": lambda r: [1],
    "no seal": lambda r: {k: v for k, v in r.items() if k != "seal"},
    "a missing field": lambda r: {k: v for k, v in r.items() if k != "bound"},
    "an unknown field": lambda r: r | {"colour": "red"},
    "a bound of NaN": lambda r: r | {"bound": math.nan},
    "a bound of infinity": lambda r: r | {"bound": math.inf},
    "a negative bound": lambda r: r | {"bound": -1.0},
    "a bound in words": lambda r: r | {"bound": "small"},
    "a whole number for a bound": lambda r: r | {"bound": 1},
    "a reversed domain": lambda r: r | {"domain": {"lo": 8.0, "hi": -8.0}},
    "a domain that is no object": lambda r: r | {"domain": 3},
    "a domain without an end": lambda r: r | {"domain": {"lo": 1.0}},
    "a witness of another shape": lambda r: r | {"witness": {"input": 0.0}},
    "digests of other tensors": lambda r: r | {"digests": {"key": "0"}},
    "digests that are no object": lambda r: r | {"digests": 5},
    "another format": lambda r: r | {"format": 99},
}


@pytest.mark.parametrize("breaking", BROKEN.values(), ids=BROKEN)
def test_what_is_not_a_certificate_is_refused(certificate: Certificate, breaking) -> None:
    with pytest.raises(CertificateError):
        Certificate.from_json(breaking(certificate.to_json()))


def test_covers(certificate: Certificate) -> None:
    assert certificate.covers(torch.tensor([-8.0, 0.0, 8.0]))
    assert certificate.covers(torch.zeros(0))
    assert not certificate.covers(torch.tensor([0.0, 8.000001]))
    assert not certificate.covers(torch.tensor([math.nan]))
    assert not certificate.covers(torch.tensor([math.inf]))
    assert not certificate.covers(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(InputError, match="tensor"):
        certificate.covers(0.5)  # type: ignore[arg-type]


def test_quality_without_a_witnessed_error_is_infinite(certificate: Certificate) -> None:
    assert replace(certificate, witness=attnc.Witness(0.0, 0.0)).quality == math.inf


@given(st.floats(1e-300, 1e300), st.integers(1, 8))
def test_round_up_never_falls_below(x: float, digits: int) -> None:
    assert x <= round_up(x, digits) <= x * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


def test_measured_is_written_and_read() -> None:
    head = attnc.head(torch.sin, domain=(-1, 1), eps=1e-3)
    assert head.certificate is None
    assert isinstance(head.measured, Measured)
    assert Measured.from_json(json.loads(json.dumps(head.measured.to_json()))) == head.measured
    with pytest.raises(CertificateError):
        Measured.from_json({"error": 1})
