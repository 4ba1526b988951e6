"""attnc.compile from outside: what it takes, and what it says of what it does not take."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc import functions
from attnc.errors import InputError, PrecisionError, UnsupportedError
from attnc.program import Affine, BatchNorm, Pointwise, Program

networks = pytest.importorskip("sklearn.neural_network")
BOX = attnc.Box(-1, 1, shape=(3,))


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype).eval()


def program(*steps: Any) -> Program:
    return Program((3,), steps or (Affine(0, np.eye(3)), Pointwise(1, functions.tanh(), name="act")))


def points(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) * 2 - 1


# What is taken.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_module(dtype: torch.dtype) -> None:
    source = model(dtype)
    net = attnc.compile(source, domain=BOX, eps=1e-3, dtype=dtype)
    assert isinstance(net, attnc.Network) and isinstance(net.certificate, attnc.Certificate)
    assert net.certificate.bound <= 1e-3 and net.certificate.holds_for == BOX
    with torch.no_grad():
        off = (net(points(2000, dtype)) - source(points(2000, dtype))).abs().max()
    assert float(off) <= 1e-3
    assert attnc.verify(net).status == "proved"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_that_of_the_model_by_default(dtype: torch.dtype) -> None:
    net = attnc.compile(model(dtype), domain=BOX, eps=1e-3)
    assert (
        net.certificate.dtype == str(dtype).removeprefix("torch.") and next(net.parameters()).dtype == dtype
    )
    assert net.engine == "softmax" and net.strict is None


def test_a_scikit_learn_network(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (60, 3))
    regressor = networks.MLPRegressor(
        hidden_layer_sizes=(5,), activation="tanh", solver="lbfgs", max_iter=500, random_state=0, tol=1e-2
    )
    regressor.fit(x, np.sin(x).sum(1))
    net = attnc.compile(regressor, domain=BOX, eps=1e-4, dtype=torch.float64)
    off = np.abs(net(torch.from_numpy(x)).numpy().ravel() - regressor.predict(x)).max()
    assert off <= 1e-4 and net.certificate.bound <= 1e-4
    net.save(tmp_path / "net.safetensors")
    assert attnc.verify(tmp_path / "net.safetensors").status == "proved"


def test_a_program() -> None:
    net = attnc.compile(program(), domain=BOX, eps=1e-3)
    assert net.program is not None and net.certificate.facts["program"] == program().digest()
    off = (net(points(500)).double() - torch.tanh(points(500).double())).abs().max()
    assert float(off) <= net.certificate.bound <= 1e-3


def test_progress_is_told_in_words() -> None:
    said: list[str] = []
    with_progress = attnc.compile(fresh(), domain=BOX, eps=1e-3, progress=said.append)
    assert all(isinstance(text, str) and text for text in said)
    assert any(text.startswith("layer 1") and "anchors" in text for text in said)
    assert any("largest error" in text for text in said)
    assert with_progress.certificate.bound == attnc.compile(fresh(), domain=BOX, eps=1e-3).certificate.bound


def fresh() -> Program:
    """With a function of its own, so that no head is at hand."""
    f = attnc.function(torch.sin, name="told", enclosure=lambda x: x.sin())
    return program(Affine(0, np.eye(3)), Pointwise(1, f))


def test_whole_numbers_and_numpy_numbers_are_numbers() -> None:
    for eps in (1, 1.0, np.float64(1.0)):
        assert attnc.compile(model(), domain=BOX, eps=eps).certificate.bound <= 1


# What is not taken.


@pytest.mark.parametrize(
    "domain", [None, (-1, "1"), [-1, 0, 1], attnc.Interval(-1, 1), torch.zeros(3), 3, "box"]
)
def test_the_domain_is_a_box(domain: object) -> None:
    with pytest.raises(InputError, match=r"attnc\.Box"):
        attnc.compile(model(), domain=domain, eps=1e-3)


def test_a_pair_is_the_box_of_the_first_layer() -> None:
    assert attnc.compile(model(), domain=(-1, 1), eps=1e-2).domain == attnc.Box(-1, 1, shape=(3,))
    with pytest.raises(InputError, match=r"attnc\.Box\(-1, 1, shape="):
        attnc.compile(torch.sin, domain=(-1, 1), eps=1e-2)


@pytest.mark.parametrize(
    "eps",
    [0, 0.0, -1e-3, math.nan, math.inf, -math.inf, "1e-3", True, None, 1e-3j, torch.tensor(1e-3), [1e-3]],
    ids=str,
)
def test_eps_is_a_positive_number(eps: object) -> None:
    with pytest.raises(InputError):
        attnc.compile(model(), domain=BOX, eps=eps)


def test_an_eps_beyond_floating_point_is_refused() -> None:
    with pytest.raises(InputError):
        attnc.compile(model(), domain=BOX, eps=10**400)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.complex64, torch.float16, torch.bfloat16, torch.bool, "float16", np.float32, float]
)  # fmt: skip
def test_the_dtype_is_float32_or_float64(dtype: object) -> None:
    with pytest.raises(InputError, match=r"torch\.float32"):
        attnc.compile(model(), domain=BOX, eps=1e-3, dtype=dtype)


@pytest.mark.parametrize("engine", ["", "Columns", "flash", None, 1])
def test_the_engine_is_known(engine: object) -> None:
    with pytest.raises(InputError, match="'softmax'"):
        attnc.compile(model(), domain=BOX, eps=1e-3, engine=engine)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "got NoneType"),
        (3, "got int"),
        (nn.Linear, "class Linear"),
        (model().state_dict(), "attnc.frontends.mlp"),
        ("model.pt", "a file of weights is read by"),
        (torch.zeros(3), "got Tensor"),
        (networks.MLPRegressor(), "fit"),
    ],
    ids=["none", "number", "class", "dict", "path", "tensor", "not fitted"],
)
def test_a_model_of_another_type(given: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        attnc.compile(given, domain=BOX, eps=1e-3)


@pytest.mark.parametrize("shape", [(4,), (3, 2), (1,)])
def test_a_box_of_another_shape_names_the_layer_and_both_numbers(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError) as refused:
        attnc.compile(model(), domain=attnc.Box(-1, 1, shape=shape), eps=1e-3)
    (problem,) = refused.value.problems
    assert problem.where == "0 (Linear)"
    assert "takes 3 features" in problem.reason and str(shape) in problem.reason
    with pytest.raises(InputError, match=rf"of shape \(3,\): got shape=\({shape[0]}"):
        attnc.compile(program(), domain=attnc.Box(-1, 1, shape=shape), eps=1e-3)


def test_a_box_that_holds_no_number_of_the_dtype() -> None:
    lo = torch.tensor([-1.0, 0.1, -1.0], dtype=torch.float64)
    hi = torch.tensor([1.0, 0.1, 1.0], dtype=torch.float64)
    with pytest.raises(InputError, match=r"lo=.*0\.1.*"):
        attnc.compile(model(), domain=attnc.Box(lo, hi), eps=1e-3)
    with pytest.raises(InputError, match="32"):
        attnc.compile(model(), domain=attnc.Box(0.1, 0.1, shape=(3,)), eps=1e-3)
    for far in (1e39, -1e39):
        with pytest.raises(InputError, match="32"):
            attnc.compile(model(), domain=attnc.Box(far, far, shape=(3,)), eps=1e-3)
    wide = attnc.compile(model(torch.float64), domain=attnc.Box(lo, hi), eps=1e-3, dtype=torch.float64)
    assert wide.certificate.covers(torch.tensor([0.0, 0.1, 0.0], dtype=torch.float64))
    single = float(np.float32(0.1))
    net = attnc.compile(model(), domain=attnc.Box(single, single, shape=(3,)), eps=1e-3)
    assert net.certificate.covers(torch.full((3,), 0.1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite(bad: float) -> None:
    spoilt = model()
    with torch.no_grad():
        spoilt[0].weight[0, 0] = bad
        spoilt[2].bias[1] = bad
    with pytest.raises(UnsupportedError) as refused:
        attnc.compile(spoilt, domain=BOX, eps=1e-3)
    assert [p.where for p in refused.value.problems] == ["0.weight", "2.bias"]
    weight = np.eye(3)
    weight[1, 1] = bad
    with pytest.raises((UnsupportedError, InputError), match="fc"):
        attnc.compile(program(Affine(0, weight, None, name="fc")), domain=BOX, eps=1e-3)


def test_everything_that_cannot_be_compiled_is_listed() -> None:
    bare, other = attnc.function(torch.erf, name="my_erf"), attnc.function(torch.sinc, name="my_sinc")
    steps = (
        Affine(0, np.eye(3)),
        Pointwise(1, bare, name="first"),
        Pointwise(2, functions.tanh()),
        Pointwise(3, other),
        Pointwise(4, bare),
    )
    with pytest.raises(UnsupportedError) as refused:
        attnc.compile(program(*steps), domain=BOX, eps=1e-3)
    assert [p.where for p in refused.value.problems] == ["first", "step 3 (pointwise)", "step 4 (pointwise)"]
    assert "'my_sinc' has no enclosure" in str(refused.value)
    assert "attnc.function(..., enclosure=...)" in str(refused.value)


@pytest.mark.parametrize(
    "steps",
    [
        (Pointwise(0, functions.tanh()),),
        (BatchNorm(0, np.zeros(3), np.ones(3), np.ones(3), np.zeros(3), 1e-5),),
    ],
)
def test_a_program_without_an_affine_map(steps: tuple) -> None:
    with pytest.raises(UnsupportedError, match=r"attnc\.head"):
        attnc.compile(program(*steps), domain=BOX, eps=1e-3)


def test_an_empty_program_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        attnc.compile(Program((3,), ()), domain=BOX, eps=1e-3)


def test_a_model_in_training_is_refused_before_any_work() -> None:
    said: list[str] = []
    with pytest.raises(UnsupportedError, match=r"model\.eval"):
        attnc.compile(model().train(), domain=BOX, eps=1e-3, progress=said.append)
    assert said == []


def test_arguments_are_named() -> None:
    with pytest.raises(TypeError):
        attnc.compile(model(), BOX, 1e-3)


@pytest.mark.parametrize("targets", [{}, {"eps": 1e-3, "approximation": 1e-3}, {"approximation": 0.0}])
def test_one_target_is_given(targets: dict[str, float]) -> None:
    with pytest.raises(InputError):
        attnc.compile(model(), domain=BOX, **targets)
    with pytest.raises(InputError):
        attnc.compile(lambda x: x, domain=attnc.Box(0, 1, shape=(1, 1)), approximation=1e-3)


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_a_setting_that_loosens_products_is_refused(setting: str) -> None:
    torch.set_float32_matmul_precision(setting)
    try:
        with pytest.raises(PrecisionError, match=rf"'{setting}'.*set_float32_matmul_precision\('highest'\)"):
            attnc.compile(model(), domain=BOX, eps=1e-3)
        assert (
            attnc.compile(model(torch.float64), domain=BOX, eps=1e-3, dtype=torch.float64).certificate.bound
            <= 1e-3
        )
    finally:
        torch.set_float32_matmul_precision("highest")
    assert attnc.compile(model(), domain=BOX, eps=1e-3).certificate.bound <= 1e-3


def interrupt(text: str) -> None:
    raise KeyboardInterrupt


def test_an_interruption_leaves_nothing_behind() -> None:
    """A search that was stopped is not taken for a head."""
    source, before = model(), copy.deepcopy(model()).state_dict()
    with pytest.raises(KeyboardInterrupt):
        attnc.compile(fresh(), domain=BOX, eps=2e-3, progress=interrupt)
    assert attnc.compile(fresh(), domain=BOX, eps=2e-3).certificate.bound <= 2e-3
    with pytest.raises(KeyboardInterrupt):
        attnc.compile(source, domain=BOX, eps=3e-3, progress=interrupt)
    assert all(torch.equal(t, before[name]) for name, t in source.state_dict().items())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_grad_mode_around_it_does_not_matter(mode: Any) -> None:
    source = model()
    with mode():
        net = attnc.compile(source, domain=BOX, eps=1e-2)
        inside = copy.deepcopy(source)
        assert attnc.compile(inside, domain=BOX, eps=1e-2).certificate.bound <= 1e-2
    x = torch.rand(64, 3) * 2 - 1
    with torch.no_grad():
        assert float((net(x) - source(x)).abs().max()) <= net.certificate.bound
    assert attnc.verify(net).status == "proved"


def test_an_activation_whose_limits_were_changed() -> None:
    """nn.ReLU6 reads min_val and max_val when it runs, so what they are is what is compiled."""
    source = nn.Sequential(nn.Linear(3, 6), nn.ReLU6(), nn.Linear(6, 2)).eval()
    source[1].max_val = 8.0
    with torch.no_grad():
        source[0].weight.mul_(20)
    net = attnc.compile(source, domain=BOX, eps=1e-3)
    x = torch.rand(4096, 3) * 2 - 1
    with torch.no_grad():
        assert float(source[0](x).max()) > 7
        assert float((net(x) - source(x)).abs().max()) <= net.certificate.bound


class Altered(nn.Module):
    """A model whose forward is more than its layers."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.body, self.inner = model(), forward

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(self.body, x)
        return result


def _in_place(body: nn.Module, x: Tensor) -> Tensor:
    x.contiguous().mul_(2)
    result: Tensor = body(x)
    return result


@pytest.mark.parametrize(
    "forward",
    [
        lambda body, x: body(x) if torch.is_grad_enabled() else body(x) + 1,
        lambda body, x: body(x) + 1 if torch.is_grad_enabled() else body(x),
        lambda body, x: body(x) if x.is_contiguous() else body(x) + 1,
        _in_place,
        lambda body, x: body(x).bfloat16().float(),
        lambda body, x: torch.autocast("cpu", torch.bfloat16)(body)(x),
    ],
)
def test_forwards_that_compute_more_than_one_function_are_refused(forward: Any) -> None:
    with pytest.raises(UnsupportedError):
        attnc.compile(Altered(forward).eval(), domain=BOX, eps=1e-2)
