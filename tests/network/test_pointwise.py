"""A head for every neuron: attention in place within certificates, groups, and windows that follow the numbers."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

import attnc
from attnc.errors import InputError
from attnc.heads.lattice import square_numbers
from attnc.network import pointwise
from attnc.network.head import Head
from attnc.network.pointwise import Pointwise
from attnc.network.running import in_place
from attnc.records.numbers import HeadNumbers

DUAL = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of PyTorch's forward mode
CERTIFIED = [
    ("tanh", (-8, 8), {"eps": 1e-5}),
    ("tanh", (-8, 8), {"eps": 1e-12, "dtype": torch.float64}),
    ("silu", (-8, 8), {"design": "gated", "eps": 1e-4}),
    ("relu", (-1, 2), {"anchors": 12, "design": "graded"}),
]


@cache
def fitted(c: float = 0.375, bump: int = 8) -> np.ndarray:
    """β of gelu on anchors half a unit apart, by least squares."""
    k, t = np.arange(-40, 41), np.linspace(-9, 9, 1001)
    q = np.exp(-c * (2 * t[:, None] - k) ** 2)
    W = q / q.sum(1, keepdims=True)
    basis = np.stack([W[:, 40 + j] + (W[:, 40 - j] if j else 0) for j in range(bump + 1)], 1)
    rest = F.gelu(torch.from_numpy(t)).numpy() - W @ np.maximum(k / 2, 0)
    return np.linalg.lstsq(basis, rest, rcond=None)[0]


def lattice(radius: float, dtype: str = "float32", c: float = 0.375) -> Head:
    """gelu to some 1e-6: values max(a, 0) + β."""
    K = round(2 * radius) + 9
    k = np.arange(-K, K + 1.0)
    value = np.maximum(k / 2, 0)
    for j, beta in enumerate(fitted()):
        value[[K + j, K - j] if j else [K]] += beta
    keys, values = np.stack([2 * c * k, -c * k * k], 1), np.stack([0 * k, value], 1)
    tensors = np.array([[2.0, 0]]), keys[None], values[None].astype(dtype).astype(np.float64), np.ones(1)
    return Head(HeadNumbers(*tensors, dtype), "lattice")


def silu(dtype: str = "float32") -> Head:
    pair = np.array([[[0.0, 0], [1, 0]]])
    return Head(HeadNumbers(np.array([[1.0, 0]]), pair, pair, np.ones(1), dtype), "gate")


def tokens(*shape: int, scale: float = 2.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=dtype)


def two_groups(engine: str = "closed-form", dtype: str = "float32") -> Pointwise:
    return Pointwise(
        [(np.array([4, 1, 0]), lattice(16, dtype)), (np.array([2, 3]), lattice(8, dtype))], engine
    )


def mixed(dtype: str = "float32") -> Pointwise:
    """Three functions: gelu (a window), squares (none) and silu (a gate)."""
    heads = lattice(8, dtype), Head(square_numbers(dtype), "lattice"), silu(dtype)
    return Pointwise(list(zip(np.array([[5, 1], [0, 2], [4, 3]]), heads, strict=True)))


@DUAL
def test_results_are_written_over_only_where_nothing_else_is_wanted() -> None:
    s = torch.zeros(3, requires_grad=True)
    assert in_place(s.detach()) and not in_place(torch.zeros(3), s)
    with torch.no_grad():
        assert in_place(s)
    assert not in_place(torch.zeros(3, device="meta"))
    seen = []
    torch.func.vmap(lambda t: seen.append(in_place(t)) or t)(torch.zeros(3))
    with forward_ad.dual_level():
        seen.append(in_place(forward_ad.make_dual(torch.zeros(3), torch.ones(3))))
        seen.append(not in_place(torch.zeros(3)))
    assert seen == [False, False, False]


@pytest.mark.parametrize("engine", ["closed-form", "softmax"])
def test_every_neuron_has_its_own_head(engine: str) -> None:
    layer, x = mixed(), tokens(7, 3, 6).clamp(-1, 1)
    layer.engine = engine
    f = [torch.square, F.gelu, torch.square, F.silu, F.silu, F.gelu]
    wanted = torch.stack([g(x[..., j].double()) for j, g in enumerate(f)], -1)
    assert float((layer(x).double() - wanted).abs().max()) < 1e-5
    assert layer.runs == {"closed-form": "closed-form and softmax", "softmax": "softmax"}[engine]


def test_one_window_runs_once_for_all_neurons(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, calls = two_groups(), tokens(4, 5), []
    monkeypatch.setattr(pointwise, "run_window", lambda window, s, *_: calls.append(s) or s)
    layer(x)
    assert len(calls) == 1 and calls[0] is x
    changed(layer)
    assert layer.runs == "closed-form"
    layer(x)
    assert [call.shape for call in calls[1:]] == [(4, 3), (4, 2)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_engines_are_one_function(dtype: str) -> None:
    layer, x = two_groups(dtype=dtype), tokens(64, 5, scale=3, dtype=getattr(torch, dtype)).clamp(-8, 8)
    window, dense = layer(x), layer(x, "softmax")
    assert layer.runs == "closed-form" and not torch.equal(window, dense)
    exact = F.gelu(x.double())
    for out in (window, dense):
        assert out.dtype == x.dtype and float((out.double() - exact).abs().max()) < 5e-6
    if (
        dtype == "float64"
    ):  # beyond rounding they differ by the ripple 2 e^{-π²/c} and by what the lattice cuts off
        assert float((window - dense).abs().max()) < 1e-9


@pytest.mark.parametrize("shape", [(5,), (0, 5), (2, 3, 5), (2, 0, 3, 5)])
@pytest.mark.parametrize("make", [two_groups, lambda: two_groups("softmax")], ids=["closed-form", "softmax"])
def test_any_leading_axes(make: Any, shape: tuple[int, ...]) -> None:
    assert make()(tokens(*shape)).shape == shape
    wide = tokens(5, 4).T
    torch.testing.assert_close(make()(wide), make()(wide.contiguous()), rtol=1e-6, atol=1e-7)


def test_one_group_takes_any_width() -> None:
    layer = Pointwise([(None, lattice(8))])
    assert layer.neurons is None and two_groups().neurons == 5
    for shape in ((), (3,), (2, 7)):
        assert layer(tokens(*shape)).shape == shape


def changed(layer: Pointwise) -> None:
    with torch.no_grad():
        layer[0].value[0, layer[0].key.shape[1] // 2, 1] += 1


def changed_data(layer: Pointwise) -> None:
    layer[0].value.data[0, layer[0].key.shape[1] // 2, 1] += 1  # leaves the version as it is


def loaded(layer: Pointwise) -> None:
    other = copy.deepcopy(layer)
    changed(other)
    layer.load_state_dict(other.state_dict())


def assigned(layer: Pointwise) -> None:
    other = copy.deepcopy(layer)
    changed(other)
    layer.load_state_dict(other.state_dict(), assign=True)


def replaced(layer: Pointwise) -> None:
    other = copy.deepcopy(layer)
    changed(other)
    layer[0] = other[0]


@pytest.mark.parametrize("change", [changed, changed_data, loaded, assigned, replaced])
def test_the_window_follows_the_numbers(change: Any) -> None:
    layer, x = two_groups(), tokens(9, 5, scale=0.2)
    before = layer(x)
    assert layer.runs == "closed-form"
    change(layer)
    after = layer(x)
    torch.testing.assert_close(after, layer(x, "softmax"), rtol=1e-5, atol=1e-5)
    moved = (after - before).abs().amax(0)
    assert (moved[[4, 1, 0]] > 0.1).all() and (moved[[2, 3]] < 1e-5).all()


def test_a_changed_key_has_no_window_and_gets_it_back() -> None:
    layer, x = two_groups(), tokens(9, 5)
    kept = layer[0].key.clone()
    with torch.no_grad():
        layer[0].key.mul_(1.01)
    assert layer.runs == "closed-form and softmax"
    torch.testing.assert_close(layer(x), layer(x, "softmax"), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        layer[0].key.copy_(kept)
    assert layer.runs == "closed-form"


def test_what_optimisers_see_stays_as_it_was() -> None:
    layer = two_groups()
    assert not [*layer.parameters()]
    assert layer.requires_grad_().runs == "closed-form"


def test_heads_that_learn_run_dense_and_get_gradients() -> None:
    layer, x = two_groups(), tokens(9, 5)
    for tensor in layer[1].buffers():
        tensor.requires_grad_()
    assert layer.runs == "closed-form and softmax"
    layer(x).sum().backward()
    assert layer[1].value.grad is not None and float(layer[1].value.grad.abs().sum()) > 0
    assert layer[0].value.grad is None
    for tensor in layer.buffers():
        tensor.requires_grad_(False)
    assert layer.runs == "closed-form"


def test_another_dtype_has_windows_of_its_own() -> None:
    layer, x = two_groups(dtype="float64").float(), tokens(50, 5)
    assert layer.runs == "closed-form" and layer._windows("closed-form")[0].dtype == "float32"
    assert float((layer(x) - F.gelu(x)).abs().max()) < 5e-6
    layer.to("meta")
    assert layer.runs == "softmax" and layer(torch.zeros(3, 5, device="meta")).is_meta


@pytest.mark.parametrize("less", [torch.bfloat16, torch.float16])
def test_heads_of_a_model_that_is_cast_to_less_stay_as_they_are(less: torch.dtype) -> None:
    layer, x = two_groups().to(less), tokens(50, 5).to(less)
    assert layer.runs == "closed-form" and layer[0].key.dtype == torch.float32
    assert torch.equal(layer(x), layer(x.float()).to(less))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), layer(x.float()).to(less))


def test_under_inference_mode() -> None:
    with torch.inference_mode():
        layer, x = two_groups(), tokens(9, 5, scale=0.2)
        before = layer(x)
        layer[0].value[0, layer[0].key.shape[1] // 2, 1] += 1
        assert float((layer(x) - before).abs().max()) > 0.1


@DUAL
@pytest.mark.parametrize("engine", ["closed-form", "softmax"])
def test_gradients(engine: str) -> None:
    layer = mixed("float64")
    layer.engine = engine
    x = tokens(2, 6, dtype=torch.float64).clamp(-0.9, 0.9).requires_grad_()
    assert torch.autograd.gradcheck(layer, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(layer, x)
    wanted = torch.func.jacrev(F.gelu)(x[0, 1].detach())
    assert abs(float(torch.func.jacfwd(layer)(x[0].detach())[1, 1] - wanted)) < 1e-4


def test_torch_func() -> None:
    layer, x = two_groups(), tokens(3, 4, 5)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x))
    stacked = {name: torch.stack([p, p]) for name, p in layer.named_buffers() if p.is_floating_point()}
    both = torch.func.vmap(lambda p: torch.func.functional_call(layer, p, (x,)))(stacked)
    torch.testing.assert_close(both[1], layer(x, "softmax"), rtol=1e-5, atol=1e-5)
    assert layer.runs == "closed-form"


@pytest.mark.parametrize("engine", ["closed-form", "softmax"])
def test_one_graph(engine: str) -> None:
    layer, x = two_groups(engine), tokens(4, 5)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-6, atol=1e-6)
    changed(layer)
    if engine == "closed-form":
        with pytest.raises(RuntimeError, match=r"torch\.compile"):
            compiled(x)
        layer.refresh()
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["closed-form", "softmax"])
def test_compiled(engine: str) -> None:
    layer, x = two_groups(engine), tokens(4, 5).requires_grad_()
    torch.compiler.reset()
    out = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(out, layer(x), rtol=1e-5, atol=1e-6)
    wanted, found = (torch.autograd.grad(y.sum(), x)[0] for y in (F.gelu(x), out))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_state_dict_and_copies() -> None:
    given = lattice(8)
    layer = Pointwise([(None, given)])
    names = {f"0.{t}" for t in ("query", "key", "value", "output")}
    assert set(layer.state_dict()) == names and layer[0] is not given
    more = {name.replace("0", "1", 1) for name in names}
    assert set(two_groups().state_dict()) == names | more | {"neurons_0", "neurons_1"}
    twin, x = copy.deepcopy(layer), tokens(3, 5)
    assert torch.equal(twin(x), layer(x))
    changed(layer)
    assert not torch.equal(twin(x), layer(x))
    assert torch.equal(twin[0].value, given.value)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x), layer(x))


def test_weights_by_group() -> None:
    layer, x = mixed(), tokens(2, 3, 6)
    for g, (neurons, head) in enumerate(layer.groups):
        weights = layer.weights(x, group=g)
        assert weights.shape == (2, 3, 2, head.key.shape[1])
        values = head.value[0, :, :1] * x[..., neurons].unsqueeze(-2) + head.value[0, :, 1:]
        found = (weights.transpose(-1, -2) * values).sum(-2)
        torch.testing.assert_close(found, layer(x, "softmax")[..., neurons], rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="group=3"):
        layer.weights(x, group=3)


def test_what_it_tells() -> None:
    layer = Pointwise([(None, attnc.head("tanh", domain=(-8, 8), eps=1e-5))], "softmax")
    p = layer[0].key.shape[1]
    assert repr(layer) == f"Pointwise(tanh, 1 group, {p} anchors, engine='softmax')"
    assert layer.parameters_added == 2 + 2 * p + 2 * p + 1
    assert repr(two_groups()) == "Pointwise(unknown, 2 groups, 83 + 51 anchors, engine='closed-form')"
    assert two_groups().parameters_added == 5 + 4 * (83 + 51) + 6


def two(first: list[Any], second: list[Any], *heads: Head) -> Pointwise:
    one, other = heads or (silu(), silu())
    return Pointwise([(np.array(first), one), (np.array(second), other)])


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda layer: layer(tokens(2, 5).double()), "float32.*float64"),
        (lambda layer: layer([1.0]), "list"),
        (lambda layer: layer(tokens(2, 4)), r"\(2, 4\).* 5 neurons"),
        (lambda layer: layer(torch.tensor(1.0)), r"\(\)"),
        (lambda layer: layer(tokens(2, 5), "columns"), "'columns'.*'softmax', 'sdpa', 'closed-form'"),
        (lambda layer: setattr(layer, "engine", "sparse"), "'sparse'"),
        (lambda _: Pointwise([(None, silu())], "fast"), "engine='fast'"),
        (lambda _: Pointwise([]), "groups"),
        (lambda _: Pointwise([(None, nn.GELU())]), "GELU"),
        (lambda _: Pointwise([(None, silu()), (None, silu())]), "neurons_0"),
        (lambda _: Pointwise([(np.arange(2), silu())]), "neurons_0"),
        (lambda _: two([0, 1], [1, 2]), "name 4 neurons"),
        (lambda _: two([0, 1], [3]), "name 3 neurons"),
        (lambda _: two([0.0], [1.0]), "name 2 neurons"),
        (lambda _: two([0], [1], silu(), silu("float64")), "float32, torch.float64"),
    ],
)
def test_refusals(act: Any, named: str) -> None:
    layer = two_groups()
    with pytest.raises(InputError, match=named):
        act(layer)
    assert layer.engine == "closed-form"


@pytest.mark.parametrize("row", [0, 3, 6])
@pytest.mark.parametrize(("neuron", "value"), [(0, 7.0), (1, -7.0), (0, float("nan")), (1, 5.0)])
def test_every_row_of_every_chunk_is_compared_with_the_neuron_s_own_interval(
    row: int, neuron: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = [attnc.head("tanh", domain=(-end, end), eps=1e-3) for end in (4, 6)]
    layer, x = Pointwise([([0], heads[0]), ([1], heads[1])], strict=True), torch.zeros(7, 2)
    monkeypatch.setattr(pointwise, "CHUNK", 4)  # two rows
    layer(x)
    x[row, neuron] = value
    if value == 5:  # inside the second neuron's interval only
        layer(x)
        x[row] = x[row].flip(0)
    with pytest.raises(InputError, match="outside"):
        layer(x)
