"""attnc.compile of functions: the methods, what is known of the result, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.frontends import mlp
from attnc.network.network import Network
from tests.network.executed import impurities

WIDE = torch.float64
PAIR = attnc.Box(-1, 1, shape=(2, 1))


def wave(x: Tensor) -> Tensor:
    """exp(sin 2x cos y) of two tokens, one token out."""
    return torch.exp(torch.sin(2 * x[:, :1]) * torch.cos(x[:, 1:]))


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def order(x: Tensor) -> Tensor:
    return x.sort(1).values


def fresh(box: attnc.Box, count: int, dtype: torch.dtype = WIDE, seed: int = 99) -> Tensor:
    draw = torch.rand(count, *box.shape, generator=torch.Generator().manual_seed(seed), dtype=WIDE)
    lo, hi = torch.from_numpy(box.lo.copy()), torch.from_numpy(box.hi.copy())
    return (lo + draw * (hi - lo)).to(dtype)


def largest(net: Network, f: Any, x: Tensor) -> float:
    with torch.no_grad():
        return float((net(x).double() - f(x.double())).abs().max())


# The figures.


@pytest.mark.parametrize("form", ["two-layer", "attention-softmax"])
def test_a_smooth_function_of_two_numbers(form: str) -> None:
    net = attnc.compile(wave, domain=PAIR, eps=1e-6, form=form, tokens=1, dtype=WIDE)
    assert net.selections[0].anchors <= 400 and net.certificate.proved and net.certificate.bound <= 1e-6
    assert largest(net, wave, fresh(PAIR, 20_000)) < 1e-6
    assert impurities(net, fresh(PAIR, 2)) == []
    literal = net.as_self_attention()
    x = fresh(PAIR, 8)
    assert torch.allclose(literal(x), net(x), atol=1e-11)


def test_a_smooth_function_of_three_tokens() -> None:
    box = attnc.Box(-1, 1, shape=(3, 1))
    net = attnc.compile(softmax, domain=box, eps=1e-6, dtype=WIDE)
    assert net.selections[0].anchors <= 4096
    assert largest(net, softmax, fresh(box, 20_000)) < 1e-6


@pytest.mark.parametrize(
    ("eps", "points"), [(5e-2, 20_000), pytest.param(1e-2, 1_000_000, marks=pytest.mark.slow)]
)
def test_sorting_three_numbers(eps: float, points: int) -> None:
    box = attnc.Box(0, 1, shape=(3, 1))
    net = attnc.compile(order, domain=box, eps=eps, dtype=WIDE)
    assert net.certificate.facts["method"] == "lattice"
    assert largest(net, order, fresh(box, points)) < eps


@pytest.mark.parametrize("dtype", [WIDE, torch.float32], ids=["float64", "float32"])
def test_a_lipschitz_grid_is_proved(dtype: torch.dtype) -> None:
    f = lambda x: torch.sin(x.sum(1, keepdim=True)) / math.sqrt(2)  # noqa: E731
    net = attnc.compile(f, domain=PAIR, eps=0.05, lipschitz=1, tokens=1, dtype=dtype)
    assert net.certificate.proved and net.certificate.bound <= 0.05
    assert attnc.verify(net).status == "proved"
    assert largest(net, f, fresh(PAIR, 5000, dtype)) <= net.certificate.bound
    assert "Lipschitz" in str(net.describe())


@pytest.mark.parametrize("dtype", [WIDE, torch.float32], ids=["float64", "float32"])
def test_the_papers_data_set(dtype: torch.dtype) -> None:
    """Y = W2 relu(W1 vec X + b1) + b2, n = 20, d = 5, 10 neurons: executed and literal, in every form."""
    draw = torch.Generator().manual_seed(5)
    sizes = [nn.Linear(100, 10), nn.Linear(10, 100)]
    model = (
        nn.Sequential(nn.Flatten(), sizes[0], nn.ReLU(), sizes[1], nn.Unflatten(1, (20, 5))).double().eval()
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=draw)
    box = attnc.Box(0, 1, shape=(20, 5))
    eps, allowed = (1e-5, 1e-8) if dtype == WIDE else (3e-2, 1e-6)
    net = attnc.compile(model, domain=box, eps=eps, form="two-layer", dtype=dtype)
    x = fresh(box, 200, dtype)
    with torch.no_grad():
        meant = model(x.double())
        made = [net(x)]
        for form, layout in (("two-layer", "heads"), ("two-layer", "tokens"), ("attention-softmax", "")):
            net.form, net.layout = form, layout
            made.append(net.as_self_attention()(x))
    for y in made:
        assert float((y.double() - meant).square().mean()) < allowed


# Methods.


def test_larger_inputs_are_fitted_and_never_called_proved() -> None:
    box = attnc.Box(-1, 1, shape=(8, 1))
    kernel = torch.tensor([0.25, 0.5, 0.25], dtype=WIDE)

    def smooth(x: Tensor) -> Tensor:
        return torch.nn.functional.conv1d(x.transpose(1, 2), kernel[None, None], padding=1).transpose(1, 2)

    net = attnc.compile(smooth, domain=box, eps=1e-3, dtype=WIDE)
    assert not net.certificate.proved and net.certificate.facts["method"] == "fit"
    assert net.certificate.claims is not None and net.certificate.error <= 1e-3
    assert largest(net, smooth, fresh(box, 5000)) <= 1e-3
    assert attnc.verify(net).status == "unknown"
    text = str(net.describe())
    assert "not proved" in text and "fitted network" in text
    again = attnc.compile(smooth, domain=box, eps=1e-3, dtype=WIDE)
    x = fresh(box, 10)
    assert torch.equal(net(x), again(x))  # deterministic by seed


def test_a_grid_that_is_too_large_is_refused_with_its_size() -> None:
    """What was to be proved is never silently measured instead."""
    box = attnc.Box(0, 1, shape=(3, 1))
    for method in ("auto", "grid"):
        with pytest.raises(attnc.errors.InputError, match="method='lattice'"):
            attnc.compile(lambda x: x**2 / 2, domain=box, eps=1e-3, lipschitz=1, method=method)
    with pytest.raises(attnc.errors.InputError):
        attnc.compile(lambda x: x**2 / 2, domain=box, eps=1e-3, lipschitz=1, method="lattice")


def test_describe_says_what_and_why_and_what_it_takes_to_prove_more() -> None:
    net = attnc.compile(lambda x: torch.i0(wave(x)), domain=PAIR, eps=1e-3, tokens=1)
    text = str(net.describe())
    for words in (
        "method: lattice",
        "measured, not proved",
        "lipschitz=K",
        "% confidence",
        "operation i0 is not traced",
    ):
        assert words in text
    found = re.search(r"a grid takes ([\d.e+,]+)", text)
    assert found is not None and float(found[1].replace(",", "")) > 1e6


def test_other_shapes() -> None:
    mean = attnc.compile(lambda x: x.mean(1, keepdim=True), domain=PAIR, eps=1e-3, tokens=1)
    assert mean(torch.zeros(4, 2, 1)).shape == (4, 1, 1)
    flat = attnc.compile(lambda x: torch.cat([x, x**2], -1), domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-3)
    assert flat(torch.zeros(4, 2)).shape == (4, 4)
    x = torch.rand(3, 5, 2)
    assert torch.allclose(flat(x), torch.cat([x, x**2], -1), atol=2e-3)


def test_a_box_with_a_side_that_is_a_point() -> None:
    box = attnc.Box(torch.tensor([[0.0], [0.5]]), torch.tensor([[1.0], [0.5]]))
    for options in ({}, {"lipschitz": 2.0}):
        net = attnc.compile(
            lambda x: x.sum(1, keepdim=True), domain=box, eps=0.05, tokens=1, dtype=WIDE, **options
        )
        assert net.selections[0].anchors < 50
        assert largest(net, lambda x: x.sum(1, keepdim=True), fresh(box, 1000)) <= 0.05


def test_a_constant_has_one_anchor() -> None:
    for options in ({}, {"lipschitz": 0}):
        net = attnc.compile(lambda x: 0 * x + 3, domain=PAIR, eps=1e-3, dtype=WIDE, **options)
        assert net.selections[0].anchors == 1
        assert torch.equal(net(torch.zeros(1, 2, 1, dtype=WIDE)), torch.full((1, 2, 1), 3.0, dtype=WIDE))
    many = attnc.compile(lambda x: 0 * x + 3, domain=attnc.Box(0, 1, shape=(6, 1)), eps=1e-3, dtype=WIDE)
    assert torch.allclose(many(torch.ones(1, 6, 1, dtype=WIDE)), torch.full((1, 6, 1), 3.0, dtype=WIDE))


def test_a_module_may_be_asked_instead_of_read() -> None:
    model = nn.Sequential(nn.Linear(1, 8), nn.Softsign(), nn.Linear(8, 1)).eval()
    net = attnc.compile(model, domain=PAIR, eps=1e-2, method="lattice")
    x = fresh(PAIR, 500, torch.float32)
    with torch.no_grad():
        assert float((net(x) - model(x)).abs().max()) < 1e-2


def test_a_lookup_has_a_theorem_s_form_or_none() -> None:
    net = attnc.compile(wave, domain=PAIR, eps=1e-2, tokens=1)
    net.form = "layers"
    with pytest.raises(attnc.errors.InputError):
        net.as_self_attention()


def test_strict_refuses_what_lies_outside() -> None:
    net = attnc.compile(wave, domain=PAIR, eps=1e-2, tokens=1, strict=True)
    with pytest.raises(attnc.errors.InputError, match="outside"):
        net(torch.full((1, 2, 1), 1.5))


# Bad input.


def bad(f: Any, said: str, error: type[Exception] = attnc.errors.InputError, **options: Any) -> None:
    settings = {"domain": PAIR, "eps": 1e-3, **options}
    with pytest.raises(error, match=said):
        attnc.compile(f, **settings)


def test_tokens_that_change_untold() -> None:
    bad(lambda x: x[:, :1], "tokens=1")
    bad(lambda x: torch.cat([x, x], 1), "tokens=4")


def test_nan_says_where() -> None:
    bad(lambda x: x.sqrt(), r"nan.* at x = ")
    bad(lambda x: 1 / (x - x), r"at x = ")


def test_not_deterministic() -> None:
    bad(lambda x: x + torch.rand(1), "not deterministic")


@pytest.mark.parametrize(
    ("f", "place"),
    [
        (lambda x: torch.sign(x[:, :1] - 0.3), 0.3),
        (lambda x: torch.floor(2 * x[:, :1] + 0.25), None),
        (lambda x: (x[:, :1] + x[:, 1:] > 0.2).double(), None),
    ],
    ids=["sign", "floor", "diagonal"],
)
def test_a_jump_says_where(f: Any, place: float | None) -> None:
    with pytest.raises(attnc.errors.ConvergenceError) as caught:
        attnc.compile(f, domain=PAIR, eps=1e-2, tokens=1)
    found = re.search(r"at x = \[([-\d.e]+), ", str(caught.value))
    assert found is not None
    if place is not None:
        assert abs(float(found[1]) - place) < 1e-5


@pytest.mark.slow
def test_a_jump_of_many_numbers_says_where() -> None:
    with pytest.raises(attnc.errors.ConvergenceError):
        attnc.compile(lambda x: torch.sign(x - 0.1), domain=attnc.Box(-1, 1, shape=(6, 1)), eps=1e-2)


def test_a_constant_that_samples_refute() -> None:
    with pytest.raises(attnc.errors.InputError) as caught:
        attnc.compile(lambda x: 3 * x + 0 * torch.i0(x), domain=PAIR, eps=0.1, lipschitz=1)
    assert len(re.findall(r"x = \(", str(caught.value))) == 2
    assert "at least 3" in str(caught.value)


def test_a_constant_that_the_operations_refute() -> None:
    """A narrow peak that no sample need meet."""
    box = attnc.Box(-1, 1, shape=(1, 1))
    with pytest.raises(attnc.errors.InputError) as caught:
        attnc.compile(lambda x: torch.exp(-(((x - 0.0123) / 1e-5) ** 2)), domain=box, eps=0.1, lipschitz=1)
    found = re.search(r"at least ([\d.e+]+) at x = \[\[([\d.e-]+)\]\]", str(caught.value))
    assert found is not None and float(found[1]) > 8e4 and abs(float(found[2]) - 0.0123) < 1e-4


def test_a_constant_that_only_fresh_points_refute() -> None:
    """Slow at the points of the grid, fast between them: an error below the bound, and a spike above it."""
    box = attnc.Box(-1, 1, shape=(1, 1))
    for f in (
        lambda x: torch.sin(x) / 2 + 0.03 * torch.sin(2000 * x) + 0 * torch.i0(x),
        lambda x: torch.exp(-(((x - 0.01234) / 1e-3) ** 2)) + 0 * torch.i0(x),
    ):
        with pytest.raises(attnc.errors.InputError) as caught:
            attnc.compile(f, domain=box, eps=0.1, lipschitz=1, dtype=WIDE)
        assert len(re.findall(r"x = \(", str(caught.value))) == 2


def test_too_large_for_a_lattice() -> None:
    bad(
        lambda x: x,
        r"8\^8 = 1.68e\+07 anchors.*method='fit'",
        domain=attnc.Box(0, 1, shape=(4, 2)),
        method="lattice",
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lipschitz": -1}, "lipschitz=-1"),
        ({"lipschitz": float("nan")}, "lipschitz=nan"),
        ({"lipschitz": "one"}, "lipschitz='one'"),
        ({"time_limit": 0}, "time_limit=0"),
        ({"time_limit": float("nan")}, "time_limit=nan"),
        ({"method": "magic"}, "accepted are"),
        ({"form": "three-layer"}, "accepted are"),
        ({"form": "layers"}, "two-layer"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"tokens": 0}, "tokens"),
        ({"eps": 0}, "eps"),
        ({"domain": (0, 1)}, "Box"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_words_that_are_not_accepted(options: dict[str, Any], said: str) -> None:
    bad(lambda x: x, said, **options)


def test_a_grid_needs_a_constant_or_operations() -> None:
    bad(torch.i0, "lipschitz=K", method="grid")
    net = attnc.compile(lambda x: 2 * torch.sin(x), domain=PAIR, eps=0.2, method="grid", dtype=WIDE)
    (step,) = (step for step in net.program.steps if step.kind == "lookup")
    assert net.certificate.proved and 2 <= step.lipschitz <= 2.04 and attnc.verify(net).status == "proved"
    assert "proved from the operations" in str(net.describe())


def test_noise_is_an_assumption_that_is_said_and_can_be_given() -> None:
    f = lambda x: (x + 1e6) - 1e6  # noqa: E731  # subtracts large numbers
    net = attnc.compile(f, domain=PAIR, eps=0.2, lipschitz=1, noise=1e-9, dtype=WIDE)
    assert "noise of 1e-09" in str(net.describe()) and "as given" in str(net.describe())
    assert net.certificate.proved and attnc.verify(net).status == "proved"
    assert "assumed" in str(attnc.compile(torch.sin, domain=PAIR, eps=0.2, lipschitz=1).describe())
    bad(f, "lipschitz=K", noise=1e-9)
    bad(f, "noise=-1.0", noise=-1.0, lipschitz=1)


def test_a_function_is_asked_where_it_is_said_to_be_known() -> None:
    """A module of float32 parameters holds other numbers than the grid: those that it was given are stored."""
    line = nn.Linear(1, 1, bias=True).eval()
    with torch.no_grad():
        line.weight.fill_(1.0), line.bias.fill_(-0.1)
    box = attnc.Box(0.1, 0.7, shape=(1,))
    net = attnc.compile(line, domain=box, eps=0.05, lipschitz=1, method="grid", dtype=WIDE)
    (step,) = net.program.steps
    assert (step.points == step.points.astype(np.float32)).all()
    assert ((box.lo <= step.points) & (step.points <= box.hi)).all()
    with torch.no_grad():
        assert torch.equal(
            torch.from_numpy(step.values.copy()), line(torch.from_numpy(step.points.copy()).float()).double()
        )
    tiny = attnc.Box(0.1, 0.1 + 1e-12, shape=(1,))
    bad(line, "torch.float32", domain=tiny, lipschitz=1, method="grid", dtype=WIDE)


def test_a_module_that_is_read_takes_no_constant() -> None:
    bad(nn.Linear(1, 1).eval(), "lipschitz=1", lipschitz=1, domain=attnc.Box(0, 1, shape=(1,)))
    bad(
        mlp({"weight": torch.ones(1, 1)}, "relu"),
        "method='fit'",
        method="fit",
        domain=attnc.Box(0, 1, shape=(1,)),
    )


def test_a_function_that_drifts() -> None:
    calls = [0]

    def f(x: Tensor) -> Tensor:
        calls[0] += 1
        return x + (calls[0] > 13) * 1e-3

    bad(f, "not deterministic", eps=0.1)


def test_what_is_said_of_changed_numbers() -> None:
    """Nothing: neither of a grid, nor of a lattice, nor of a fit."""
    box = attnc.Box(-1, 1, shape=(2, 1))
    wide = attnc.Box(-1, 1, shape=(5, 1))
    for net in (
        attnc.compile(torch.sin, domain=box, eps=0.2, lipschitz=1, dtype=WIDE),
        attnc.compile(torch.sin, domain=box, eps=1e-2, dtype=WIDE),
        attnc.compile(lambda x: x.cumsum(1), domain=wide, eps=1e-2, dtype=WIDE),
    ):
        text = str(net.float().describe())
        assert "changed" in text and "approximation" not in text
        assert "proved for" not in text and "alone is proved" not in text and "e-0" not in text


def test_numbers_of_numpy_are_numbers() -> None:
    net = attnc.compile(lambda x: x[:, :1], domain=PAIR, eps=1e-2, tokens=np.int64(1), seed=np.int64(3))
    assert net.certificate.facts["seed"] == 3


def test_a_function_may_differentiate_inside() -> None:
    def slope(x: Tensor) -> Tensor:
        y = x.clone().requires_grad_(True)
        return torch.autograd.grad((y**3).sum(), y)[0]

    net = attnc.compile(slope, domain=PAIR, eps=1e-2, dtype=WIDE)
    assert largest(net, slope_of_cube, fresh(PAIR, 500)) < 1e-2


def slope_of_cube(x: Tensor) -> Tensor:
    return 3 * x**2


def test_sizes_beyond_floating_point_are_refused_in_words() -> None:
    with pytest.raises(attnc.AttncError):
        attnc.compile(torch.sin, domain=attnc.Box(-1e200, 1e200, shape=(2, 1)), eps=1e-3, lipschitz=1e-200)
    net = attnc.compile(lambda x: 1e300 * x, domain=PAIR, eps=1e297, lipschitz=None, dtype=WIDE)
    assert net.certificate.error <= 1e297


def test_forms_need_one_hidden_layer() -> None:
    deep = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)).eval()
    with pytest.raises(attnc.errors.InputError, match="'layers'"):
        attnc.compile(deep, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2, form="two-layer")
    with pytest.raises(attnc.errors.InputError, match="tokens=3"):
        attnc.compile(deep, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2, tokens=3)


def test_out_of_reach_says_what_can_be_reached() -> None:
    with pytest.raises(attnc.errors.ConvergenceError) as caught:
        attnc.compile(lambda x: x.abs(), domain=attnc.Box(-1, 1, shape=(1, 1)), eps=1e-6)
    assert caught.value.reachable is not None and caught.value.reachable > 1e-5


# Functions that are proved from their operations.


@pytest.mark.parametrize("dtype", [WIDE, torch.float32], ids=["float64", "float32"])
def test_a_lattice_is_proved_from_the_operations(dtype: torch.dtype, tmp_path: Path) -> None:
    eps = 1e-5 if dtype == WIDE else 1e-2
    net = attnc.compile(wave, domain=PAIR, eps=eps, tokens=1, dtype=dtype)
    c = net.certificate
    assert c.status == "proved" and c.bound <= eps and c.error is not None and c.bound <= 2.5 * c.error
    assert largest(net, wave, fresh(PAIR, 20_000, dtype)) <= c.bound
    net.save(tmp_path / "wave.safetensors")
    again = attnc.load(tmp_path / "wave.safetensors")
    assert again.certificate == c and again.program.digest() == net.program.digest()
    x = fresh(PAIR, 7, dtype)
    assert torch.equal(again(x), net(x))
    assert "proved from the" in str(net.describe())


@pytest.mark.parametrize(
    ("f", "eps"),
    [(lambda x: torch.maximum(x, x.flip(1)), 5e-2), (lambda x: x.abs().clamp(0.1, 0.7), 5e-2)],
    ids=["maximum", "clamp"],
)
def test_kinks_are_proved_without_a_constant(f: Any, eps: float) -> None:
    net = attnc.compile(f, domain=PAIR, eps=eps, dtype=WIDE)
    assert net.certificate.proved and net.certificate.bound <= eps
    assert largest(net, f, fresh(PAIR, 20_000)) <= net.certificate.bound


def test_a_proof_that_takes_too_long_is_not_claimed() -> None:
    f = lambda x: torch.softmax(6 * x, 1)  # noqa: E731
    net = attnc.compile(f, domain=attnc.Box(-1, 1, shape=(3, 1)), eps=1e-3, dtype=WIDE, time_limit=1e-3)
    assert net.certificate.status == "measured" and "not within 0.001 s" in str(net.describe())


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sqrt() + 1,
        lambda x: 1 / (x - 0.37).abs().clamp(min=0),
        lambda x: torch.log((x - 0.371234567) ** 2),
        lambda x: torch.linalg.norm(x - 0.37, dim=1, keepdim=True) + 0 * x,
    ],
    ids=["sqrt", "reciprocal", "log", "norm"],
)
def test_a_singularity_in_the_box_is_refused_with_its_cell(f: Any) -> None:
    with pytest.raises(attnc.errors.InputError, match=r"singularity|f is inf"):
        attnc.compile(f, domain=attnc.Box(0, 1, shape=(2, 1)), eps=1e-2, dtype=WIDE)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + torch.rand_like(x),
        lambda x: x if float(x[0, 0, 0]) > -9 else -x,
        lambda x: x - x.mean(0),
    ],
    ids=["random", "branch", "batch"],
)
def test_what_is_no_function_of_its_input_is_refused(f: Any) -> None:
    with pytest.raises(attnc.errors.InputError):
        attnc.compile(f, domain=PAIR, eps=1e-2)


def test_casts_are_named() -> None:
    net = attnc.compile(lambda x: x.float().sin().double(), domain=PAIR, eps=1e-2)
    assert net.certificate.status == "measured" and "float64 to float32" in str(net.describe())


def test_the_certificate_of_a_measured_network_says_why(tmp_path: Path) -> None:
    f = lambda x: torch.from_numpy(np.sin(x.numpy()))  # noqa: E731
    net = attnc.compile(f, domain=attnc.Box(-1, 1, shape=(1, 1)), eps=1e-2)
    assert net.certificate.status == "measured"
    assert "not proved: f cannot be recorded: numpy()" in str(net.certificate)
    net.save(tmp_path / "net.safetensors")
    assert "lipschitz=K" in str(attnc.load(tmp_path / "net.safetensors").certificate)
