"""The torch forms against mpmath, in float64 and float32."""

from __future__ import annotations

import pytest
import torch
from mpmath import mp, mpf

from .reference import CASES, LABELS, Case, random_points

each_case = pytest.mark.parametrize("case", CASES, ids=LABELS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
FACTOR = 4  # units of rounding, of the value and of what the input's own rounding does to it


def inputs(case: Case, dtype: torch.dtype) -> torch.Tensor:
    edges = [0.0, 1e-30, -1e-30, *case.kinks] + ([] if case.label == "exp" else [1e3, -1e3])
    near, far, tiny = (random_points(case, n, -r, r) for n, r in ((30, 8.0), (20, 30.0), (6, 1e-3)))
    return torch.tensor([*near, *far, *tiny, *edges], dtype=dtype)


def slope_and_bend(case: Case, s: float) -> tuple[mpf, mpf, mpf]:
    value, slope, half_bend = mp.taylor(case.stretch_at(s), mpf(s), 2, chop=False)
    return value, slope, 2 * half_bend


def spoilt_by_cancellation(case: Case, s: float) -> mpf:
    """torch computes s·(1 + erf) and s·(1 + tanh): what is left for s << 0 has an error of the size of s."""
    if case.function.name == "pinball":  # sigmoid - τ
        return mpf(1)
    return abs(mpf(s)) if case.function.name in ("gelu", "gelu_10", "gelu_tanh") else mpf(0)


def spoilt_in_the_slope(case: Case, s: float) -> float:
    """torch's backward has terms s·σ·(1 - σ), for gelu_tanh s·(1 - tanh²)·(1 + c·s²), in which 1 cancels."""
    if case.function.name == "pinball":  # σ(1 - σ)/width
        return 10.0
    cancels = {"silu": 1, "mish": 1, "gelu": 1, "gelu_10": 1, "quick_gelu": 2}
    cubic = {"gelu_tanh": 1 + s * s, "gelu_fast": 2 + s * s, "gelu_bloom": 2 + s * s}
    return (cancels | cubic).get(case.function.name, 0) * abs(s)


@each_case
@each_dtype
def test_torch_form_agrees_with_the_reference(case: Case, dtype: torch.dtype) -> None:
    s, unit = inputs(case, dtype), mpf(torch.finfo(dtype).eps) / 2
    with mp.workdps(50):
        for at, got in zip(s.tolist(), case.function(s).tolist(), strict=True):
            value, slope, _ = slope_and_bend(case, at)
            size = abs(value) + abs(at * slope) + spoilt_by_cancellation(case, at)
            assert abs(mpf(got) - value) <= FACTOR * unit * size + torch.finfo(dtype).smallest_normal, at


@each_case
@each_dtype
def test_torch_form_keeps_shape_and_dtype_and_leaves_its_input_alone(case: Case, dtype: torch.dtype) -> None:
    s = torch.linspace(-3, 3, 24, dtype=dtype).reshape(2, 3, 4)
    before, out = s.clone(), case.function(s)
    assert out.shape == s.shape and out.dtype == dtype
    assert out.data_ptr() != s.data_ptr() and torch.equal(s, before)
    assert case.function(s[:0]).shape == (0, 3, 4)


@each_case
@each_dtype
def test_torch_form_acts_on_each_element_alone(case: Case, dtype: torch.dtype) -> None:
    s = inputs(case, dtype)
    close = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 40 * torch.finfo(dtype).eps}
    torch.testing.assert_close(case.function(s.flip(0)).flip(0), case.function(s), **close)


@each_case
@each_dtype
def test_gradient_is_finite_everywhere_and_the_slope_off_the_kinks(case: Case, dtype: torch.dtype) -> None:
    s = inputs(case, dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(case.function(s).sum(), s)
    assert gradient.dtype == dtype and bool(torch.isfinite(gradient).all())
    unit = mpf(torch.finfo(dtype).eps) / 2
    with mp.workdps(50):
        for at, got in zip(s.tolist(), gradient.tolist(), strict=True):
            if min((abs(at - k) for k in case.kinks), default=1.0) > 1e-6:
                _, slope, bend = slope_and_bend(case, at)
                size = 1 + abs(slope) + abs(at * bend) + spoilt_in_the_slope(case, at)
                assert abs(mpf(got) - slope) <= FACTOR * unit * size, at
