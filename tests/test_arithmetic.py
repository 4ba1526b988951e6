"""The assumptions about the machine, tried: exp in softmax, elementary operations, sums in any order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb

from attnc import arithmetic
from attnc.arithmetic import ARITHMETIC, Arithmetic, probe
from attnc.functions.balls import working

ROWS = 6000
each_dtype = pytest.mark.parametrize("a", ARITHMETIC.values(), ids=ARITHMETIC)


@each_dtype
def test_constants_are_those_of_the_dtype(a: Arithmetic) -> None:
    info = torch.finfo(a.torch_dtype)
    assert a.unit == info.eps / 2
    assert a.tiny == info.tiny
    assert a.largest <= info.max


@each_dtype
def test_probe_accepts_this_machine(a: Arithmetic) -> None:
    assert probe(a.dtype) is None


@each_dtype
def test_probe_notices_a_coarser_exp(a: Arithmetic, monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(z: torch.Tensor, dim: int) -> torch.Tensor:
        e = torch.exp(z - z.amax(dim, keepdim=True))
        e = torch.where(z < -1, e * (1 + 4 * a.exp_units * a.unit), e)
        return e / e.sum(dim, keepdim=True)

    monkeypatch.setattr(torch, "softmax", coarse)
    assert probe.__wrapped__(a.dtype) is not None


@each_dtype
@pytest.mark.parametrize("keys", [2, 3, 7, 16, 65])
def test_exp_in_softmax_is_within_its_units(a: Arithmetic, keys: int) -> None:
    """All weights of random scores, saturated ones included, against 128 bits; sums and division allowed for as assumed."""
    rng = np.random.default_rng(keys)
    lowest = math.log(a.tiny) * 1.1
    z = torch.from_numpy(
        rng.uniform(lowest, 0, size=(ROWS // keys, keys)) ** rng.choice([1, 3], size=(ROWS // keys, 1))
    ).to(a.torch_dtype)
    z = torch.clamp(z, min=2 * lowest)
    z[:, rng.integers(keys)] = 0
    weights = torch.softmax(z, -1)
    with working(128):
        u = arb(a.unit)
        allowed = (1 + a.exp_units * u) / (1 - a.exp_units * u) * (1 + u) ** (keys + a.division_units + 1) / (
            1 - keys * u
        ) - 1
        for row, got in zip(z.tolist(), weights.tolist(), strict=True):
            top = max(row)
            exact = [(arb(x) - arb(top)).exp() for x in row]
            total = sum(exact, arb(0))
            for e, x, w in zip(exact, row, got, strict=True):
                slack = (1 + allowed) * (1 + u * abs(arb(x) - arb(top))) - 1
                assert abs(arb(w) - e / total) <= slack * e / total + 3 * arb(a.tiny)


@each_dtype
def test_elementary_operations_round_once(a: Arithmetic) -> None:
    rng = np.random.default_rng(3)
    x, y = (
        torch.from_numpy(rng.normal(size=4000) * 10.0 ** rng.uniform(-30, 30, 4000)).to(a.torch_dtype)
        for _ in range(2)
    )
    for got, operate in (
        (x + y, Fraction.__add__),
        (x - y, Fraction.__sub__),
        (x * y, Fraction.__mul__),
        (x / y, Fraction.__truediv__),
    ):
        for p, q, r in zip(x.tolist(), y.tolist(), got.tolist(), strict=True):
            if math.isfinite(r):
                exact = operate(Fraction(p), Fraction(q))
                assert abs(Fraction(r) - exact) <= Fraction(a.unit) * abs(exact) + Fraction(a.tiny)


@each_dtype
@pytest.mark.parametrize("terms", [2, 9, 64, 1000])
def test_sums_err_no_more_than_in_the_worst_order(a: Arithmetic, terms: int) -> None:
    rng = np.random.default_rng(terms)
    x = torch.from_numpy(rng.normal(size=(200, terms)) * 10.0 ** rng.uniform(-6, 6, (200, terms))).to(
        a.torch_dtype
    )
    for row, got in zip(x, x.sum(-1).tolist(), strict=True):
        exact = sum(map(Fraction, row.tolist()), Fraction(0))
        size = sum(map(abs, map(Fraction, row.tolist())), Fraction(0))
        growth = (
            (1 + Fraction(a.unit)) ** (terms - 1) - 1
            if terms < 100
            else terms * Fraction(a.unit) * Fraction(101, 100)
        )
        assert abs(Fraction(got) - exact) <= growth * size


def test_softmax_survives_flushing_of_subnormals() -> None:
    """exp underflows to 0 or to a subnormal: both are within τ."""
    for a in ARITHMETIC.values():
        z = torch.tensor([0.0, math.log(a.tiny) - 3, -2000.0], dtype=a.torch_dtype)
        weights = torch.softmax(z, -1)
        assert 0 <= float(weights[1]) <= 2 * a.tiny
        assert float(weights[2]) == 0


def test_there_is_one_table() -> None:
    assert set(ARITHMETIC) == {"float32", "float64"} == {arithmetic.FLOAT32.dtype, arithmetic.FLOAT64.dtype}


@each_dtype
def test_probe_notices_coarser_products(a: Arithmetic, monkeypatch: pytest.MonkeyPatch) -> None:
    assert arithmetic._probe_products.__wrapped__(a.dtype) is None
    exact = torch.nn.functional.linear

    def coarse(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return exact(x, w) * (1 + 2.0**-6)

    monkeypatch.setattr(torch.nn.functional, "linear", coarse)
    assert "product of matrices" in (arithmetic._probe_products.__wrapped__(a.dtype) or "")


@each_dtype
def test_probe_notices_a_coarser_attention(a: Arithmetic, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.nn.functional.scaled_dot_product_attention

    def coarse(query: torch.Tensor, *rest: torch.Tensor, scale: float) -> torch.Tensor:
        return exact(query * (1 + 64 * a.exp_units * a.unit), *rest, scale=scale)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", coarse)
    assert "scaled_dot_product_attention" in (arithmetic._probe_products.__wrapped__(a.dtype) or "")


@each_dtype
def test_probe_notices_sums_that_err_by_more_than_a_summand(
    a: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert arithmetic._probe_sums(a) is None
    monkeypatch.setattr(torch, "addcmul", lambda x, y, z: x - y * z)
    assert arithmetic._probe_sums(a) is not None


def test_settings_that_loosen_products_are_named() -> None:
    assert arithmetic.loose_products("float32") is None
    for setting in ("high", "medium"):
        torch.set_float32_matmul_precision(setting)
        try:
            assert setting in (arithmetic.loose_products("float32") or "")
            assert arithmetic.loose_products("float64") is None
        finally:
            torch.set_float32_matmul_precision("highest")


@each_dtype
def test_probe_of_tokens_notices_weights_that_do_not_vanish(
    a: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert arithmetic.probe_tokens(a.dtype) is None
    exact = torch.softmax

    def leaking(z: torch.Tensor, dim: int) -> torch.Tensor:
        return exact(z.clamp(min=z.amax(dim, keepdim=True) - 80), dim)

    def uneven(z: torch.Tensor, dim: int) -> torch.Tensor:
        return exact(z, dim) * (1 - 8 * a.unit)

    for softmax in (leaking, uneven):
        monkeypatch.setattr(torch, "softmax", softmax)
        assert arithmetic._probe_ties.__wrapped__(a.dtype) is not None


@each_dtype
def test_probe_of_tokens_notices_products_that_are_not_exact(
    a: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = torch.matmul

    def coarse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return exact(x, y) * (1 + 2 * a.unit)

    monkeypatch.setattr(torch, "matmul", coarse)
    assert arithmetic._probe_whole_numbers.__wrapped__(a.dtype) is not None


@each_dtype
def test_exp_vanishes_at_every_distance_from_there_on(a: Arithmetic) -> None:
    """More distances than the probe tries, in rows of several lengths."""
    d = torch.cat([torch.linspace(a.vanish, 8 * a.vanish, 4001), torch.logspace(3.1, 30, 200)]).to(
        a.torch_dtype
    )
    for keys in (2, 7, 16, 33):
        z = torch.zeros(len(d), keys, dtype=a.torch_dtype)
        z[:, 1:] = -d[:, None]
        weights = torch.softmax(z, -1)
        assert not weights[:, 1:].any() and bool((weights[:, 0] == 1).all())
