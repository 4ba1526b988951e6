"""Many heads and no extra tokens: the theorem against high precision, the proof by stretches against the general one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from mpmath import mp, mpf

import attnc
from attnc.errors import InputError
from attnc.heads.target import Plan
from attnc.paper import many_heads
from attnc.paper.truncated import leaking
from attnc.paper.truncated import many_heads_theorem as theorem
from attnc.prove.supnorm import by_stretches, supnorm


def ideal(s: mpf, a: float, b: float, n: int, heads: int, c: float) -> mpf:
    """The sum of the heads of the theorem, from its definition."""
    m = n - 2
    step, total = (mpf(b) - a) / (m * heads - 1), mpf(0)
    for h in range(heads):
        keys = [mpf(a) + step * k for k in range(h * m - 1, h * m + m + 1)]
        values = [mpf(0), *keys[1:-1], mpf(0)]
        if h == 0:
            values[0] = mpf(a)
        if h == heads - 1:
            values[-1] = mpf(b)
        weights = [mp.exp(-c * ((s - x) / step) ** 2) for x in keys]
        total += sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    return total


def normal(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    return torch.randn(n, d, generator=g, dtype=torch.float64), torch.randn(
        n, generator=g, dtype=torch.float64
    )


def head_of(net: attnc.Network) -> attnc.Head:
    return net.layers[0].groups[0][1]


def worst_of_head(head: attnc.Head, a: float, b: float, points: int = 200_001) -> float:
    on = head.certificate.holds_for
    s = torch.linspace(on.lo, on.hi, points, dtype=torch.float64)
    return float((head(s) - s.clamp(a, b)).abs().max())


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0, 6.0])
@pytest.mark.parametrize(("n", "heads"), [(3, 2), (3, 7), (4, 1), (5, 4)])
@pytest.mark.parametrize(("a", "b"), [(-1.0, 1.0), (50.0, 51.0)])
def test_no_point_of_the_line_is_above_the_theorem(a: float, b: float, n: int, heads: int, c: float) -> None:
    bound, count = theorem(a, b, n, heads, c).bound, (n - 2) * heads
    step = (b - a) / (count - 1)
    with mp.workdps(30):
        for i in range(-30, 10 * count + 30):
            s = mpf(a) + mpf(step) * i / 10 + mpf(step) / 997
            assert abs(ideal(s, a, b, n, heads, c) - min(max(s, mpf(a)), mpf(b))) <= bound


def test_the_leak_is_of_the_order_that_is_claimed() -> None:
    """Far from zero the leak is all there is; it is of the order e^{-2c}, of which the theorem has five."""
    a, b, n, heads, c = 1e6, 1e6 + 1, 5, 4, 4.0
    step = 1 / (3 * heads - 1)
    with mp.workdps(40):
        points = [mpf(a) + mpf(step) * i / 20 for i in range(20 * 11)]
        seen = max(abs(ideal(s, a, b, n, heads, c) - s) for s in points)
    assert b * math.exp(-2 * c) / 2 < seen < theorem(a, b, n, heads, c).bound
    assert leaking(c) < 5.01 * math.exp(-2 * c)


def test_network_is_n_truncated_linear_functions() -> None:
    w, t = normal(6, 3)
    net = many_heads(w, t, -4, 3, heads=5, domain=(-2, 2))
    x = 4 * torch.rand(500, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 2
    error = float((net(x)[..., 0] - ((x * w).sum(-1) + t).clamp(-4, 3)).abs().max())
    assert net(x).shape == (500, 6, 1)
    assert 0.5 * net.certificate.bound < error <= net.certificate.bound <= net.theorem.bound
    assert net.form == "many-heads" and head_of(net).key.shape == (5, 6, 2)


def test_heads_own_all_but_two_keys() -> None:
    net = many_heads(*normal(5, 2), -1, 1, heads=4)
    values = head_of(net).value[..., 1].numpy()
    assert np.allclose(values[:, 1:-1].ravel(), np.linspace(-1, 1, 12), atol=1e-15)
    assert (values[1:, 0] == 0).all() and (values[:-1, -1] == 0).all()
    assert values[0, 0] == -1 and values[-1, -1] == 1


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_proof_by_stretches_agrees_with_the_general_proof(dtype: str) -> None:
    net = many_heads(*normal(4, 2), -2, 1, heads=4, domain=(-2, 2), dtype=getattr(torch, dtype))
    head = head_of(net)
    certificate = head.certificate
    f = attnc.functions.clip(-2, 1)
    seen = certificate.witness.error
    general = supnorm(head.numbers(), f, certificate.holds_for, seen=seen)
    ends = [-2 + 3 * ((2 * h - 0.5) / 7) for h in range(1, 4)]
    plan = Plan(f, certificate.holds_for, dtype, "nearest", 4)
    ours = by_stretches(head.numbers(), plan.f, plan.domain, ends, seen=seen)
    assert general.attained <= ours.bound and ours.attained <= general.bound
    assert ours.bound <= 1.3 * general.attained + 4 * general.rounding
    assert general.rounding / 4 <= ours.rounding <= 8 * general.rounding


def test_where_rounding_is_all_the_bound_holds_all_of_it() -> None:
    """Eight heads in float32 with values near 10^5: the sum of the heads rounds more than any of them."""
    net = many_heads(
        torch.eye(4, 2), torch.full((4,), 1e5), 1e5, 1e5 + 1, heads=8, domain=(0, 1), dtype=torch.float32
    )
    known = head_of(net).certificate
    assert known.rounding > 4 * known.approximation
    assert known.rounding <= known.bound <= known.rounding + known.approximation
    largest = 7 * 2.0**-24 * 1e5  # seven additions
    assert known.rounding > largest


def test_a_broken_head_is_not_proved_by_stretches() -> None:
    """One anchor of one head moved by 1: the proof must see it, wherever it is."""
    net = many_heads(*normal(4, 2), -2, 1, heads=4, domain=(-2, 2))
    head, f = head_of(net), attnc.functions.clip(-2, 1)
    ends = [-2 + 3 * ((2 * h - 0.5) / 7) for h in range(1, 4)]
    plan = Plan(f, head.certificate.holds_for, "float64", "nearest", 4)
    for h, k in ((0, 0), (1, 3), (2, 1)):
        value = head.value.clone()
        with torch.no_grad():
            head.value[h, k, 1] += 1
        assert by_stretches(head.numbers(), plan.f, plan.domain, ends, seen=0.4).bound > 0.5
        with torch.no_grad():
            head.value.copy_(value)


def test_another_checker_proves_the_bound_and_files_keep_the_theorem(tmp_path: Path) -> None:
    net = many_heads(*normal(4, 2), -1, 1, heads=4, domain=(-1, 1))
    path = tmp_path / "net.safetensors"
    net.save(path)
    assert attnc.verify(path)
    loaded = attnc.load(path)
    assert loaded.theorem == net.theorem and loaded.form == "many-heads"


def test_a_range_far_from_zero_gets_a_harder_switch() -> None:
    w, t = normal(5, 2)
    net = many_heads(w, t, 100, 101, heads=4, domain=(60, 70))
    step = 1 / 11
    assert worst_of_head(head_of(net), 100, 101) <= net.certificate.bound <= net.theorem.bound <= 0.53 * step


def slope_of(heads: list[int], n: int, w: torch.Tensor, t: torch.Tensor, reach: float) -> float:
    errors = []
    x = 2 * reach * torch.rand(500, *w.shape, generator=torch.Generator().manual_seed(0)).double() - reach
    for h in heads:
        net = many_heads(w, t, -25, 25, heads=h, domain=(-reach, reach))
        seen = float((net(x)[..., 0] - ((x * w).sum(-1) + t).clamp(-25, 25)).abs().max())
        errors.append(max(seen, worst_of_head(head_of(net), -25, 25)))
        assert errors[-1] <= net.certificate.bound <= net.theorem.bound
    return float(np.polyfit(np.log([n * h for h in heads]), np.log(errors), 1)[0])


def test_the_slope_is_minus_one() -> None:
    assert abs(slope_of([1, 2, 4], 10, *normal(10, 2), 15) + 1) <= 0.1


@pytest.mark.slow
def test_figure_of_ten_tokens() -> None:
    assert abs(slope_of([1, 2, 4, 8, 16, 32, 64], 10, *normal(10, 10), 5) + 1) <= 0.1


GOOD = {"W": [[1.0], [0.0], [2.0]], "t": [0.0, 1.0, 0.0], "a": -1.0, "b": 1.0, "heads": 2}
BAD = [
    ({"a": 1.0}, "a < b"), ({"b": math.nan}, "b is not finite"), ({"W": [1.0, 2.0, 3.0]}, r"\(n, d\)"),
    ({"W": [[1.0], [0.0]], "t": [0.0, 1.0]}, "at least 3 tokens"), ({"heads": 1}, "1 anchors"),
    ({"t": [0.0]}, "shapes .n, d."), ({"t": [0.0, 0.0, math.nan]}, "t is not finite"),
    ({"domain": attnc.Box(-1, 1, shape=(3,))}, r"shape \(3, 1\)"), ({"heads": 0}, "heads=0"),
    ({"heads": True}, "heads=True"), ({"heads": 1.5}, "heads=1.5"), ({"sharpness": 0.0}, "sharpness=0.0"),
    ({"dtype": torch.int64}, "dtype="),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BAD, ids=lambda x: str(x)[:40])
def test_bad_input_is_named(change: dict[str, object], said: str) -> None:
    given = {**GOOD, **change}
    with pytest.raises(InputError, match=said):
        many_heads(given.pop("W"), given.pop("t"), given.pop("a"), given.pop("b"), **given)  # type: ignore[arg-type]


def test_the_certificate_counts_heads_that_share_anchors() -> None:
    net = many_heads(*normal(4, 2), -1, 1, heads=3, domain=(-1, 1))
    assert "1 set of anchors, 3 heads, 1 layer" in str(net.certificate)
    assert attnc.verify(net)
