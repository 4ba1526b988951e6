"""What a network's certificate says: written and read back unchanged, sealed, and refused where it makes no sense."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import attnc
from attnc.domain import Box
from attnc.errors import CertificateError, InputError
from attnc.records.network_certificate import (
    GroupClaim,
    LayerClaim,
    LookupClaim,
    NetworkCertificate,
    NetworkWitness,
    box_from_json,
    box_json,
)

LO = torch.tensor([[-1.0, -0.5, 0.1], [0.0, -3.0, 2.0]], dtype=torch.float64)
HI = torch.tensor([[1.0, -0.5, 0.3], [1e-3, 4.0, 2.5]], dtype=torch.float64)


@pytest.fixture(scope="module")
def head() -> attnc.Certificate:
    return attnc.head("tanh", domain=(-1, 1), anchors=2).certificate


@pytest.fixture(scope="module")
def certificate(head: attnc.Certificate) -> NetworkCertificate:
    """Of no network in particular: two layers, the second of two groups, a box with ends of its own for each coordinate."""
    return NetworkCertificate(
        domain=Box(LO, HI),
        dtype="float32",
        bound=2e-3,
        approximation=1.5e-3,
        rounding=7e-4,
        layers=(
            LayerClaim("layer 1 (first)", 2, "tanh", (GroupClaim(5, head),), 1e-7, 2e-4),
            LayerClaim("layer 2", 4, "tanh", (GroupClaim(1, head), GroupClaim(6, head)), 0.1 + 0.2, 1.0),
        ),
        witness=NetworkWitness((0.5, -0.5, 0.25, 0.0, 1.0, 2.25), 1, 5e-4),
        program="ab" * 32,
        digests={"stages.0.weight": "cd" * 32, "stages.1.0.key": "ef" * 32},
        versions={"attnc": "0.1.0"},
    )


def written(certificate: NetworkCertificate) -> Any:
    return json.loads(json.dumps(certificate.to_json()))


# Written and read.


def test_json_round_trip(certificate: NetworkCertificate) -> None:
    again = NetworkCertificate.from_json(written(certificate))
    assert again == certificate and again.seal() == certificate.seal()
    for field in fields(NetworkCertificate):
        assert getattr(again, field.name) == getattr(certificate, field.name), field.name
    assert np.array_equal(again.domain.lo, LO.numpy()) and np.array_equal(again.domain.hi, HI.numpy())
    assert (
        again.layers[1].neurons == 7
        and again.layers[1].groups[1].head == certificate.layers[0].groups[0].head
    )
    assert again.layers[1].error_in == 0.30000000000000004


def test_a_box_with_equal_ends_is_written_short(certificate: NetworkCertificate) -> None:
    box = Box(-1, 1, shape=(784,))
    assert box_json(box) == {"lo": -1.0, "hi": 1.0, "shape": [784]}
    assert box_json(Box(torch.tensor([0.0, 0.5]), 1)) == {"lo": [0.0, 0.5], "hi": 1.0, "shape": [2]}
    assert box_json(certificate.domain)["lo"] == LO.ravel().tolist()


@given(
    ends=st.sampled_from([(1,), (3,), (2, 2), (2, 1, 3)]).flatmap(
        lambda shape: st.tuples(
            *(
                arrays(np.float64, shape, elements=st.floats(allow_nan=False, allow_infinity=False))
                for _ in "ab"
            )
        )
    )
)
def test_any_box_comes_back(ends: tuple[np.ndarray, np.ndarray]) -> None:
    box = Box(np.minimum(*ends), np.maximum(*ends))
    again = box_from_json(json.loads(json.dumps(box_json(box))))
    assert again == box and again.shape == box.shape


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {"lo": -1.0, "hi": 1.0},
        {"lo": -1.0, "hi": 1.0, "shape": [2], "open": True},
        {"lo": 1.0, "hi": -1.0, "shape": [2]},
        {"lo": math.nan, "hi": 1.0, "shape": [2]},
        {"lo": -1.0, "hi": math.inf, "shape": [2]},
        {"lo": -1.0, "hi": 1.0, "shape": []},
        {"lo": -1.0, "hi": 1.0, "shape": [0]},
        {"lo": -1.0, "hi": 1.0, "shape": [-2]},
        {"lo": -1.0, "hi": 1.0, "shape": [2.0]},
        {"lo": -1.0, "hi": 1.0, "shape": [True]},
        {"lo": -1.0, "hi": 1.0, "shape": "2"},
        {"lo": -1.0, "hi": 1.0, "shape": 2},
        {"lo": [-1.0, -1.0, -1.0], "hi": 1.0, "shape": [2]},
        {"lo": [-1.0, "x"], "hi": 1.0, "shape": [2]},
        {"lo": "x", "hi": 1.0, "shape": [2]},
        {"lo": None, "hi": 1.0, "shape": [2]},
        {"lo": {}, "hi": 1.0, "shape": [2]},
        {"lo": [[-1.0], [-1.0, 2.0]], "hi": 1.0, "shape": [2]},
        {"lo": -(10**400), "hi": 1.0, "shape": [2]},
    ],
)
def test_what_is_no_box(record: Any, certificate: NetworkCertificate) -> None:
    with pytest.raises(CertificateError) as refused:
        NetworkCertificate.from_json(written(certificate) | {"domain": record})
    assert "edited" not in str(refused.value), "it is refused for what it is, not for its seal alone"


# The seal.


def leaves(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if items is None:
        yield at
    else:
        for key, value in items:
            yield from leaves(value, (*at, key))


def test_any_edit_breaks_the_seal(certificate: NetworkCertificate) -> None:
    places = list(leaves(written(certificate)))
    assert len(places) > 80
    for at in places:
        record = written(certificate)
        holder = record
        for key in at[:-1]:
            holder = holder[key]
        old = holder[at[-1]]
        holder[at[-1]] = (
            old + "0" if isinstance(old, str) else old + 1 if isinstance(old, int) else old * 1.5 + 0.125
        )
        with pytest.raises(CertificateError):
            NetworkCertificate.from_json(record)
            pytest.fail(f"read with another {at}")


def test_a_claim_taken_out_or_moved_breaks_the_seal(certificate: NetworkCertificate) -> None:
    for change in (
        lambda r: r["layers"].reverse(),
        lambda r: r["layers"].pop(),
        lambda r: r["layers"].append(r["layers"][0]),
        lambda r: r["layers"][1]["groups"].reverse(),
        lambda r: r["layers"][1]["groups"].pop(),
        lambda r: r["digests"].popitem(),
        lambda r: r["digests"].update(other="x"),
        lambda r: r["versions"].clear(),
        lambda r: r["witness"]["input"].reverse(),
    ):
        record = written(certificate)
        change(record)
        with pytest.raises(CertificateError, match="edited"):
            NetworkCertificate.from_json(record)


def test_a_seal_is_of_everything_that_is_said(
    certificate: NetworkCertificate, head: attnc.Certificate
) -> None:
    layer, other = certificate.layers[0], replace(head, bound=head.bound * 2)
    different = {
        "domain": Box(LO, HI + 1e-9),
        "dtype": "float64",
        "bound": math.nextafter(certificate.bound, 1),
        "approximation": 0.0,
        "rounding": 0.0,
        "layers": (replace(layer, groups=(GroupClaim(5, other),)), certificate.layers[1]),
        "witness": replace(certificate.witness, output=0),
        "program": "cd" * 32,
        "digests": {},
        "versions": {},
        "lookups": (LookupClaim("lookup", 1, 9, 0.5),),
    }
    assert set(different) | {"format"} == {field.name for field in fields(NetworkCertificate)}
    seals = {certificate.seal()} | {replace(certificate, **{n: v}).seal() for n, v in different.items()}
    assert len(seals) == 1 + len(different)


@pytest.mark.parametrize("record", [None, [], "certificate", {}, {"seal": 3}, {"seal": "ab" * 32}])
def test_what_is_no_certificate(record: object) -> None:
    with pytest.raises(CertificateError):
        NetworkCertificate.from_json(record)


def test_missing_and_unknown_fields_are_named(certificate: NetworkCertificate) -> None:
    for name in set(written(certificate)) - {"seal"}:
        with pytest.raises(CertificateError, match=f"missing fields .*{name}"):
            NetworkCertificate.from_json({k: v for k, v in written(certificate).items() if k != name})
    with pytest.raises(CertificateError):
        NetworkCertificate.from_json(written(certificate) | {"later": 1})


# What makes no sense.

NOT_FLOATS = (math.nan, math.inf, -math.inf, True, 1, "1", None)
NOT_INTS = (True, 1.0, "1", None, math.nan)


@pytest.mark.parametrize("name", ["bound", "approximation", "rounding"])
@pytest.mark.parametrize("value", [*NOT_FLOATS, -1e-9, -5.0])
def test_terms_are_finite_and_not_negative(certificate: NetworkCertificate, name: str, value: object) -> None:
    with pytest.raises(CertificateError):
        replace(certificate, **{name: value})


@pytest.mark.parametrize("name", ["error_in", "error_out"])
@pytest.mark.parametrize("value", [*NOT_FLOATS, -1e-9])
def test_errors_of_a_layer_are_finite_and_not_negative(
    certificate: NetworkCertificate, name: str, value: object
) -> None:
    with pytest.raises(CertificateError):
        replace(certificate.layers[0], **{name: value})


@pytest.mark.parametrize("value", [*NOT_INTS, 0, -3])
def test_a_group_has_at_least_one_neuron(head: attnc.Certificate, value: object) -> None:
    with pytest.raises(CertificateError):
        GroupClaim(value, head)


@pytest.mark.parametrize("value", NOT_INTS)
def test_a_layer_makes_a_value(certificate: NetworkCertificate, value: object) -> None:
    with pytest.raises(CertificateError):
        replace(certificate.layers[0], value=value)


@pytest.mark.parametrize(
    "changed",
    [
        {"error": -1e-9}, {"error": math.nan}, {"error": math.inf}, {"error": True}, {"error": 0},
        {"output": 1.0}, {"output": True}, {"output": None}, {"output": -1},
        {"input": (0.0, math.nan)}, {"input": (math.inf,)}, {"input": (0,)}, {"input": (True,)}, {"input": [0.0]}, {"input": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_witness_is_an_input_an_output_and_an_error(
    certificate: NetworkCertificate, changed: dict[str, Any]
) -> None:
    with pytest.raises(CertificateError):
        replace(certificate.witness, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": torch.float32}, {"dtype": None}, {"program": 3}, {"format": 2}, {"format": True}, {"format": "1"},
        {"digests": []}, {"digests": {"a": 1}}, {"digests": {1: "a"}}, {"versions": None}, {"versions": {"torch": 2.4}},
        {"witness": NetworkWitness((0.5,), 0, 0.0)}, {"witness": NetworkWitness((), 0, 0.0)},
    ],
    ids=str,
)  # fmt: skip
def test_other_fields_of_another_type(certificate: NetworkCertificate, changed: dict[str, Any]) -> None:
    with pytest.raises(CertificateError):
        replace(certificate, **changed)


def test_nothing_can_be_changed(certificate: NetworkCertificate) -> None:
    with pytest.raises(FrozenInstanceError):
        certificate.bound = 0.0
    with pytest.raises(ValueError, match="read-only"):
        certificate.domain.lo[0, 0] = -9.0


# What it tells.


def test_quality(certificate: NetworkCertificate) -> None:
    assert certificate.quality == 2e-3 / 5e-4
    perfect = replace(certificate, witness=replace(certificate.witness, error=2e-3))
    assert perfect.quality == 1.0
    assert replace(certificate, witness=replace(certificate.witness, error=0.0)).quality == math.inf


def test_covers_each_coordinate_by_its_own_ends(certificate: NetworkCertificate) -> None:
    lo, hi = LO.float(), HI.float()
    inside = torch.tensor([[0.0, -0.5, 0.25], [0.0, 0.0, 2.25]])
    assert certificate.covers(inside) and certificate.covers(inside.expand(4, 5, 2, 3))
    for i, j in np.ndindex(2, 3):
        for end, away in ((lo, -math.inf), (hi, math.inf)):
            x = inside.clone()
            x[i, j] = torch.nextafter(end[i, j], torch.tensor(away))
            x[i, j] = torch.nextafter(x[i, j], torch.tensor(away))
            assert not certificate.covers(x), (i, j, away)
            assert not certificate.covers(torch.stack([inside, x]))


def test_the_ends_are_compared_as_they_are_not_as_the_dtype_rounds_them(
    certificate: NetworkCertificate,
) -> None:
    """0.1 is not a float32: its neighbours lie on both sides of the end."""
    x = torch.tensor([[0.0, -0.5, 0.1], [0.0, 0.0, 2.25]])
    assert float(x[0, 2]) > 0.1
    assert certificate.covers(x)
    x[0, 2] = torch.nextafter(x[0, 2], torch.tensor(-1.0))
    assert float(x[0, 2]) < 0.1
    assert not certificate.covers(x)


def test_covers_needs_the_dtype_the_shape_and_a_tensor(certificate: NetworkCertificate) -> None:
    inside = torch.tensor([[0.0, -0.5, 0.25], [0.0, 0.0, 2.25]])
    assert not certificate.covers(inside.double())
    assert not certificate.covers(inside.half())
    assert certificate.covers(torch.zeros(0, 2, 3))
    for wrong in (torch.zeros(3), torch.zeros(3, 2), torch.zeros(6), torch.zeros(2, 3, 1)):
        with pytest.raises(InputError):
            certificate.covers(wrong)
    with pytest.raises(InputError):
        certificate.covers(inside.numpy())
    x = inside.clone()
    x[1, 1] = math.nan
    assert not certificate.covers(x)
