"""One head, n truncated linear functions: the theorem against high precision, the network against plain sums."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from mpmath import mp, mpf

import attnc
from attnc.errors import InputError
from attnc.paper import one_head
from attnc.paper.truncated import one_head_theorem as theorem


def normal(n: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64), torch.randn(
        n, generator=g, dtype=torch.float64
    )


def uniform(shape: tuple[int, ...], reach: float, seed: int = 1) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(shape, generator=g, dtype=torch.float64) - 1) * reach


def wanted(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor, a: float, b: float) -> torch.Tensor:
    return ((x * w).sum(-1) + t).clamp(a, b)


def ideal(s: mpf, a: float, b: float, p: int, c: float) -> mpf:
    """The head of the theorem, from its definition."""
    step = (mpf(b) - a) / (p - 1)
    anchors = [a + step * k for k in range(p)]
    weights = [mp.exp(-c * ((s - x) / step) ** 2) for x in anchors]
    return sum(w * x for w, x in zip(weights, anchors, strict=True)) / sum(weights)


def worst_of_head(head: attnc.Head, a: float, b: float) -> float:
    on = head.certificate.holds_for
    s = torch.linspace(on.lo, on.hi, 400_001, dtype=torch.float64)
    return float((head(s) - s.clamp(a, b)).abs().max())


@pytest.mark.parametrize("c", [0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("p", [2, 3, 8])
def test_no_point_of_the_line_is_above_the_theorem(p: int, c: float) -> None:
    a, b, bound = -1.0, 2.5, theorem(-1.0, 2.5, p, c).bound
    step = (b - a) / (p - 1)
    with mp.workdps(40):
        for i in range(-40, 40 * p + 40):
            s = mpf(a) + mpf(step) * i / 40 + mpf(step) / 997
            assert abs(ideal(s, a, b, p, c) - min(max(s, mpf(a)), mpf(b))) <= bound


def test_the_theorem_is_sharp_for_hard_switches() -> None:
    step = 3.5 / 7
    with mp.workdps(40):
        s = mpf(-1.0) + step / 2 - mpf(step) / 10**4
        error = abs(ideal(s, -1.0, 2.5, 8, 1e5) - s)
    assert error > 0.999 * theorem(-1.0, 2.5, 8, 1e5).bound


def test_network_is_n_truncated_linear_functions() -> None:
    w, t = normal(6, 3)
    net = one_head(w, t, -4, 3, anchors=40, domain=(-2, 2))
    x = uniform((500, 6, 3), 2)
    error = float((net(x)[..., 0] - wanted(x, w, t, -4, 3)).abs().max())
    assert net(x).shape == (500, 6, 1)
    assert 0.5 * net.certificate.bound < error <= net.certificate.bound <= net.theorem.bound
    assert net.form == "one-head" and len(net.layers) == 1
    assert net.layers[0].groups[0][1].key.shape == (1, 40, 2)


def test_anchors_are_uniform_on_the_range_whatever_s_reaches() -> None:
    net = one_head([[0.01]], [0.0], -4, 3, anchors=8, domain=(-1, 1))
    assert np.allclose(net.layers[0].groups[0][1].anchors.numpy(), np.linspace(-4, 3, 8), atol=1e-12)
    s = torch.linspace(-1, 1, 101, dtype=torch.float64)[:, None, None]
    assert float((net(s) - 0.01 * s).abs().max()) <= net.certificate.bound <= net.theorem.bound


def test_each_token_writes_to_its_own_coordinate() -> None:
    w, t = normal(4, 2)
    net = one_head(w, t, -1, 1, anchors=12, domain=(-1, 1), coordinates=[2, 0, 2, 1], outputs=4)
    x = uniform((50, 4, 2), 1)
    expected = torch.zeros(50, 4, 4, dtype=torch.float64)
    expected[:, range(4), [2, 0, 2, 1]] = wanted(x, w, t, -1, 1)
    assert net(x).shape == (50, 4, 4)
    assert float((net(x) - expected).abs().max()) <= net.certificate.bound
    assert bool((net(x)[expected == 0] == 0).all())
    assert one_head(w, t, -1, 1, anchors=4, coordinates=[2, 0, 2, 1]).program.shapes[-1] == (4, 3)


def test_a_harder_switch_has_the_larger_error_and_stays_below_the_theorem() -> None:
    errors = []
    for c in (4.0, 40.0):
        net = one_head([[1.0]], [0.0], -1, 1, anchors=9, domain=(-2, 2), sharpness=c)
        errors.append(worst_of_head(net.layers[0].groups[0][1], -1, 1))
        assert errors[-1] <= net.certificate.bound <= net.theorem.bound
    assert errors[0] < 0.6 * errors[1]


def test_float32_is_proved_too() -> None:
    w, t = normal(3, 2)
    net = one_head(w, t, -1, 1, anchors=12, domain=(-1, 1), dtype=torch.float32)
    x = uniform((200, 3, 2), 1).float()
    error = (net(x)[..., 0].double() - wanted(x.double(), w, t, -1, 1)).abs().max()
    assert float(error) <= net.certificate.bound <= net.theorem.bound


def test_another_checker_proves_the_bound_and_files_keep_the_theorem(tmp_path: Path) -> None:
    w, t = normal(3, 2)
    net = one_head(w, t, -1, 1, anchors=10, domain=(-1, 1), coordinates=[0, 1, 0])
    path = tmp_path / "net.safetensors"
    net.save(path)
    assert attnc.verify(path)
    loaded = attnc.load(path)
    assert loaded.theorem == net.theorem and loaded.form == "one-head"


def test_the_slope_is_minus_one() -> None:
    sizes, errors = [8, 16, 32], []
    for p in sizes:
        net = one_head([[1.0]], [0.0], -25, 25, anchors=p, domain=(-30, 30))
        errors.append(worst_of_head(net.layers[0].groups[0][1], -25, 25))
        assert errors[-1] <= net.certificate.bound <= net.theorem.bound
    steps = np.array(sizes) - 1  # exact in Δ
    assert abs(np.polyfit(np.log(steps), np.log(errors), 1)[0] + 1) < 0.01


@pytest.mark.slow
def test_figure_of_fifty_tokens() -> None:
    w, t = normal(50, 10)
    x = uniform((2000, 50, 10), 5)
    sizes, errors = [60, 120, 240, 480, 960], []
    for p in sizes:
        net = one_head(w, t, -25, 25, anchors=p)
        seen = float((net(x)[..., 0] - wanted(x, w, t, -25, 25)).abs().max())
        errors.append(max(seen, worst_of_head(net.layers[0].groups[0][1], -25, 25)))
        assert errors[-1] <= net.certificate.bound <= net.theorem.bound
    assert abs(np.polyfit(np.log(sizes), np.log(errors), 1)[0] + 1) <= 0.05


GOOD = {"W": [[1.0, 2.0], [0.0, 1.0]], "t": [0.0, 1.0], "a": -1.0, "b": 1.0, "anchors": 4}
BAD = [
    ({"a": 1.0}, "a < b"), ({"a": math.nan}, "a is not finite"), ({"b": [1.0, 2.0]}, "a < b"), ({"b": math.inf}, "b is not"),
    ({"W": [1.0, 2.0]}, r"\(n, d\)"), ({"W": [[1.0, math.nan], [0.0, 1.0]]}, "W is not finite"),
    ({"W": "no"}, "W is a"), ({"W": [[1.0], [2.0, 3.0]]}, "W is a"),
    ({"t": [0.0]}, "shapes .n, d."), ({"t": [0.0, math.nan]}, "t is not finite"), ({"t": [[0.0, 1.0]]}, "shapes .n, d."),
    ({"domain": attnc.Box(-1, 1, shape=(3, 2))}, r"shape \(2, 2\)"), ({"domain": 5}, "domain=5"),
    ({"domain": (1, -1)}, "lo <= hi"), ({"domain": (-1e308, 1e308)}, "overflow"),
    ({"anchors": 1}, "anchors=1"), ({"anchors": 2.5}, "anchors=2.5"), ({"anchors": 10**6}, "anchors="),
    ({"coordinates": [0]}, "2 tokens"), ({"coordinates": [0, -1]}, "coordinates=-1"), ({"coordinates": [0, 0.5]}, "=0.5"),
    ({"coordinates": [0, 2], "outputs": 2}, "from 0 to 1"), ({"outputs": 0}, "outputs=0"),
    ({"sharpness": 0.1}, "sharpness=0.1"), ({"sharpness": math.nan}, "sharpness"),
    ({"sharpness": "hot"}, "sharpness"),
    ({"dtype": torch.float16}, "dtype="),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BAD, ids=lambda x: str(x)[:40])
def test_bad_input_is_named(change: dict[str, object], said: str) -> None:
    given = {**GOOD, **change}
    with pytest.raises(InputError, match=said):
        one_head(given.pop("W"), given.pop("t"), given.pop("a"), given.pop("b"), **given)  # type: ignore[arg-type]


def test_the_theorem_prints_in_short_lines() -> None:
    said = theorem(-2, 2, 33)
    lines = str(said).splitlines()
    assert max(map(len, lines)) <= 110 and " ".join(lines[1:-1]) == said.statement
    assert f"{said.bound:.4g}" in lines[-1]
    assert str(attnc.records.presentation.Theorem("a", "b", None)) == "theorem: a\nb"


def test_the_output_follows_from_the_matrices() -> None:
    W, t = normal(5, 3)
    net = one_head(W, t, -2, 2, anchors=9, domain=(-1, 1))
    (lay_out,), (layer,) = (net.as_self_attention().maps, net.as_self_attention().layers)
    assert "(5, 3) → (14, 6)" in repr(lay_out) and f"{tuple(lay_out.matrix.shape)}" in repr(lay_out)
    assert all(f"W_{letter}" in repr(layer) for letter in "QKVO")
    x = uniform((5, 3), 1.0)
    tokens = (lay_out.matrix @ x.reshape(-1) + lay_out.bias).reshape(lay_out.out_shape)
    scores = tokens @ layer.W_Q[0] @ (tokens @ layer.W_K[0]).T  # no 1/sqrt(d)
    y = torch.softmax(scores, -1) @ tokens @ layer.W_V[0] @ layer.W_O[0]
    assert torch.allclose(y[:5], net(x), atol=1e-12)
