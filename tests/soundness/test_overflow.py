"""Attacks on networks of norms and attention that once broke a bound: overflow, subnormal factors, forged parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import attnc
from attnc.domain import Ball
from attnc.errors import AttncError, PrecisionError
from attnc.program import Affine, Attend, Norm, Program
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up


def test_a_product_of_queries_and_keys_that_overflows_before_it_is_scaled() -> None:
    """The scores are of the size 1; q·k is summed first, and may exceed the range of float32."""
    d, size, n = 128, 2.3e18, 2
    first, second, last = (np.zeros((rows, 2 * d + 1)) for rows in (d, d, 1))
    first[:, :d], second[:, d : 2 * d], last[0, -1] = np.diag((-1.0) ** np.arange(d)), np.eye(d), 1.0
    maps = (Affine(0, first), Affine(0, second), Affine(0, last))
    program = Program((n, 2 * d + 1), (*maps, Attend((1, 2, 3), 1, 1.5e-38)))
    hi = np.full((n, 2 * d + 1), size)
    hi[:, -1] = 1
    with pytest.raises(PrecisionError):
        attnc.compile(program, domain=attnc.Box(-hi, hi), eps=1.0, dtype=torch.float32)


def test_a_norm_whose_gain_overflows() -> None:
    steps = (Affine(0, np.eye(64)), Norm(1, np.full(64, 1e38), np.zeros(64), 1e-2, False))
    with pytest.raises(PrecisionError):
        attnc.compile(
            Program((64,), steps),
            domain=attnc.Box(-1, 1, shape=(64,)),
            approximation=1e36,
            dtype=torch.float32,
        )


def test_a_subnormal_scale_may_be_taken_for_zero() -> None:
    """q·k is about 2.5e37 and the scale 1.1e-38: without the factor the weights are even."""
    maps = (Affine(0, np.array([[1.0, 0]])), Affine(0, np.array([[1.0, 0]])), Affine(0, np.array([[0, 1.0]])))
    program = Program((2, 2), (*maps, Attend((1, 2, 3), 1, 1.1e-38)))
    hi = np.array([[5e18, 1.0]] * 2)
    net = attnc.compile(program, domain=attnc.Box(-hi, hi), eps=3.0, dtype=torch.float32)
    assert net.certificate.bound > 0.1


@pytest.fixture(scope="module")
def normed() -> attnc.Network:
    steps = (Norm(0, np.ones(4), np.zeros(4), 0.1, False), Affine(1, np.eye(4)))
    box = attnc.Box(-1, 1, shape=(4,))
    return attnc.compile(Program((4,), steps), domain=box, approximation=1e-3, dtype=torch.float64)


def _status(net: attnc.Network, certificate: Certificate, path: Path) -> Status:
    known = net.certificate
    try:
        net.certificate = certificate
        net.save(path)
        return attnc.verify(path).status
    except AttncError:
        return Status.UNKNOWN
    finally:
        net.certificate = known


def test_claims_about_an_empty_range_and_foreign_parts(normed: attnc.Network, tmp_path: Path) -> None:
    known = normed.certificate
    (norm,) = known.parts("norm")
    assert attnc.verify(normed).status is Status.PROVED
    facts = {**norm.facts, "roundings": {"softmax": 1e-11}}
    small = replace(
        norm, approximation=0.0, rounding=1e-11, bound=round_up(1e-11), holds_for=Ball(4, 1e-3, False), facts=facts
    )  # fmt: skip
    other = Certificate(
        subject="activation", name="x", status=Status.PROVED, approximation=0.0, rounding=0.0, bound=0.0, dtype="float64",
        facts={"activation": "gelu", "engine": "softmax", "roundings": {}},
    )  # fmt: skip
    for children in ((small,), (norm, other), (replace(norm, children=(other,)),)):
        assert _status(normed, replace(known, children=children), tmp_path / "forged") is not Status.PROVED
