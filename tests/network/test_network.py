"""The network as a module: batches, strictness, what it tells, when its certificate applies, and that it is attention only."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor, nn

import attnc
from attnc.errors import CertificateWarning, InputError
from attnc.functions.balls import working
from attnc.network.describe import COLUMNS
from attnc.network.layer import AffineLayer, CombineLayer, ReshapeLayer, ScaleLayer
from attnc.network.network import Network, rebuilt
from attnc.program import Affine
from attnc.program.evaluate import exact
from attnc.records.fields import at_most
from attnc.records.record import Record
from tests.network.executed import impurities, operations


class Residual(nn.Module):
    """One activation called three times, two sums, and a normalisation that cannot be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.leave = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.act, self.norm = nn.Tanh(), nn.BatchNorm1d(5)
        self.norm.running_mean = torch.linspace(-0.25, 0.25, 5)
        self.norm.running_var = torch.linspace(0.5, 2.0, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.enter(x))
        h = h + 0.5 * self.act(self.inner(h))
        return self.leave(self.act(self.norm(h)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def tokens() -> nn.Module:
    """Two tokens of three features, joined into one of eight."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))


def wide_neuron() -> nn.Module:
    """One neuron reaches 2048, the others 1: they do not share a head."""
    model = nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.5, 0.25], [-0.25, 0.75], [1024.0, -1024.0], [0.5, -0.5]]))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[1.0, -0.5, 2.0**-10, 0.75]]))
        model[2].bias.fill_(0.125)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "mlp": (mlp, (3,), 1e-3),
    "residual": (Residual, (3,), 1e-3),
    "tokens": (tokens, (2, 3), 1e-3),
    "groups": (wide_neuron, (2,), 5e-5),
}


def source(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]().to(dtype).eval()


@cache
def compiled(name: str, dtype: torch.dtype = torch.float32) -> Network:
    _, shape, eps = MODELS[name]
    return attnc.compile(source(name, dtype), domain=attnc.Box(-1, 1, shape=shape), eps=eps, dtype=dtype)


@pytest.fixture(params=MODELS)
def net(request: pytest.FixtureRequest) -> Network:
    return compiled(request.param)


@pytest.fixture
def plain() -> Network:
    """A copy that a test may spoil."""
    return copy.deepcopy(compiled("mlp"))


@pytest.fixture
def grouped() -> Network:
    return copy.deepcopy(compiled("groups"))


def inputs(net: Network, *lead: int) -> Tensor:
    u = torch.rand(*lead, *net.program.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (2 * u - 1).to(next(net.parameters()).dtype)


def largest_error(net: Network, x: Tensor, out: Tensor) -> arb:
    """|executed - exact|, an upper bound at 192 bits."""
    with working(192):
        meant = exact(net.program, x.double().numpy()).ravel()
        return max(
            (
                abs(arb(y) - v).upper()
                for y, v in zip(out.detach().double().ravel().tolist(), meant, strict=True)
            ),
            key=float,
        )


# Batches.


@pytest.mark.parametrize("lead", [(), (1,), (5,), (2, 3), (4, 1, 2)])
def test_any_batch_is_within_the_bound(net: Network, lead: tuple[int, ...]) -> None:
    x = inputs(net, *lead)
    out = net(x)
    assert out.shape == (*lead, *net.program.shapes[-1]) and out.dtype == x.dtype
    assert largest_error(net, x, out) <= net.certificate.bound


@pytest.mark.parametrize("lead", [(0,), (2, 0), (0, 3)])
def test_an_empty_batch(net: Network, lead: tuple[int, ...]) -> None:
    assert net(inputs(net, *lead)).shape == (*lead, *net.program.shapes[-1])
    assert net(inputs(net, *lead), strict=True).shape == (*lead, *net.program.shapes[-1])


@pytest.mark.parametrize("lead", [(0,), (2, 0)])
def test_the_attention_of_an_empty_batch(net: Network, lead: tuple[int, ...]) -> None:
    one, none = net.attention(inputs(net)), net.attention(inputs(net, *lead))
    assert {name: w.shape for name, w in none.items()} == {name: (*lead, *w.shape) for name, w in one.items()}


@pytest.mark.parametrize(
    "strided",
    [
        lambda x: x[::2],
        lambda x: x.flip(0).transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: x[:1].expand(7, *x.shape[1:]),
    ],
    ids=["every other", "transposed", "expanded"],
)
def test_inputs_that_are_not_contiguous(net: Network, strided: Callable[[Tensor], Tensor]) -> None:
    x = strided(inputs(net, 14))
    before = x.clone()
    assert not x.is_contiguous()
    assert largest_error(net, x[:3], net(x)[:3]) <= net.certificate.bound
    assert torch.allclose(net(x), net(x.contiguous()), rtol=0, atol=2 * net.certificate.rounding)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("chunk", "parts"), [(1, 37), (30, 8), (36, 7), (1 << 21, 1)])
def test_chunks_change_nothing(
    chunk: int, parts: int, plain: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The widest value has 6 numbers: 30 hold five inputs, 36 six."""
    x, runs = inputs(plain, 37), []
    whole, run = plain(x), plain._run
    monkeypatch.setattr(plain, "_run", lambda part: runs.append(len(part)) or run(part))
    monkeypatch.setattr("attnc.network.network._CHUNK", chunk)
    out = plain(x)
    assert len(runs) == parts and sum(runs) == 37
    assert torch.allclose(out, whole, rtol=0, atol=2 * plain.certificate.rounding)
    assert largest_error(plain, x[-3:], out[-3:]) <= plain.certificate.bound


# Strictness, and what is covered.


def test_strict_names_the_first_input_outside(plain: Network) -> None:
    x = torch.zeros(2, 3, 3)
    x[1, 1, 2] = 1.5
    x[1, 2, 0] = -9.0
    with pytest.raises(InputError):
        plain(x, strict=True)
    x = torch.zeros(5, 3)
    x[2, 0] = math.nan
    with pytest.raises(InputError):
        plain(x, strict=True)
    with pytest.raises(InputError):
        plain(torch.full((3,), 2.0), strict=True)


def test_strict_is_said_once_or_for_a_call() -> None:
    net = attnc.compile(source("mlp"), domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3, strict=True)
    inside, outside = torch.zeros(2, 3), torch.full((2, 3), 1.25)
    with pytest.raises(InputError):
        net(outside)
    assert torch.isfinite(net(outside, strict=False)).all()
    assert torch.equal(net(inside), net(inside, strict=False))
    lax = compiled("mlp")
    assert torch.equal(lax(outside, strict=False), net(outside, strict=False))
    with pytest.raises(InputError):
        lax(outside, strict=True)
    assert torch.isnan(lax(torch.full((3,), math.nan), strict=False)).all()


def test_the_edge_belongs_to_the_box(plain: Network) -> None:
    edge = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, -1.0]])
    beyond = torch.nextafter(edge, 2 * edge)
    assert plain.certificate.covers(edge)
    assert largest_error(plain, edge, plain(edge, strict=True)) <= plain.certificate.bound
    for i in range(2):
        assert not plain.certificate.covers(beyond[i])
        with pytest.raises(InputError, match="outside"):
            plain(beyond[i], strict=True)


def test_what_is_covered(plain: Network) -> None:
    covers = plain.certificate.covers
    assert covers(torch.zeros(4, 3)) and covers(torch.zeros(3)) and covers(torch.zeros(0, 3))
    for spoilt in (1.0001, -7.0, math.nan, math.inf):
        x = torch.zeros(4, 3)
        x[3, 1] = spoilt
        assert not covers(x), spoilt
    assert not covers(torch.zeros(4, 3, dtype=torch.float64))
    assert not covers(torch.zeros(4, 3, dtype=torch.float16))
    for shape in ((4,), (3, 4), ()):
        with pytest.raises(InputError):
            covers(torch.zeros(shape))
    with pytest.raises(InputError):
        covers([0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("x", "told"),
    [
        ([0.0, 0.0, 0.0], "Tensor of torch.float32: got list"),
        (np.zeros(3, dtype=np.float32), "Tensor of torch.float32: got ndarray"),
        (None, "Tensor of torch.float32: got NoneType"),
        (torch.zeros(2, 3, dtype=torch.float64), "Tensor of torch.float32: got torch.float64"),
        (torch.zeros(2, 3, dtype=torch.int64), "got torch.int64"),
        (torch.zeros(2, 4), r"shape \(…, 3\): got \(2, 4\)"),
        (torch.zeros(3, 2), r"shape \(…, 3\): got \(3, 2\)"),
        (torch.tensor(0.0), r"shape \(…, 3\): got \(\)"),
    ],
)  # fmt: skip
def test_inputs_are_never_cast_or_guessed(x: object, told: str, plain: Network) -> None:
    for call in (plain, plain.attention):
        with pytest.raises(InputError, match=told):
            call(x)


def test_tokens_need_both_axes() -> None:
    net = compiled("tokens")
    for shape in ((3,), (6,), (3, 2), (5, 6)):
        with pytest.raises(InputError):
            net(torch.zeros(shape))


# Attention, and nothing else.


def test_autocast_does_not_reach_inside(net: Network) -> None:
    x = inputs(net, 9)
    out = net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.mT).dtype == torch.bfloat16, "autocast is on"
        assert torch.equal(net(x), out)


def test_autocast_does_not_reach_the_weights(net: Network) -> None:
    x = inputs(net, 4)
    weights = net.attention(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = net.attention(x)
    assert all(torch.equal(found[name], w) for name, w in weights.items())


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_attention_weights(net: Network, lead: tuple[int, ...]) -> None:
    """Rows of softmax, each summing to 1 up to p + 3 roundings; with the values, they give what the layer gives."""
    entering: dict[int, Tensor] = {}
    handles = [
        layer.register_forward_hook(lambda _, given, out, v=layer.value: entering.update({v: given[0]}))
        for layer in net.layers
    ]
    x = inputs(net, *lead)
    weights = net.attention(x)
    for handle in handles:
        handle.remove()
    names = []
    for claim, layer in zip(net.certificate.parts("layer"), net.layers, strict=True):
        for g, (neurons, head) in enumerate(layer.groups):
            name = claim.name if len(layer.groups) == 1 else f"{claim.name}, group {g + 1}"
            names.append(name)
            s = entering[layer.value]
            s = s if neurons is None else s[..., neurons]
            p = head.key.shape[1]
            assert weights[name].shape == (*lead, *s.shape[1:], p)
            assert torch.equal(weights[name].reshape(*s.shape, p), head.weights(s))
            assert (weights[name] >= 0).all()
            assert float((weights[name].double().sum(-1) - 1).abs().max()) <= (p + 3) * 2.0**-24
    assert list(weights) == names and len(set(names)) == len(names)


def test_layers_are_named_one_by_one_where_a_module_is_called_again() -> None:
    """Residual calls one Tanh three times; groups have a name each."""
    names = list(compiled("residual").attention(torch.zeros(3)))
    assert len(names) == 3
    assert all(f"layer {i}" in name for i, name in enumerate(names, 1))
    (wide, narrow), shapes = zip(*compiled("groups").attention(torch.zeros(7, 2)).items(), strict=True)
    assert (wide.rpartition(", ")[2], narrow.rpartition(", ")[2]) == ("group 1", "group 2")
    assert [w.shape[:-1] for w in shapes] == [(7, 1), (7, 3)]


@pytest.mark.parametrize("engine", ["softmax", "sdpa"])
def test_nothing_but_affine_maps_and_softmax(net: Network, engine: str) -> None:
    made = rebuilt(Record(net.numbers(), net.certificate, net.program), engine)
    assert impurities(made, inputs(net, 2)) == []


@pytest.mark.parametrize(
    ("engine", "softmax"), [("softmax", "softmax"), ("sdpa", "scaled_dot_product_attention")]
)
def test_one_softmax_for_each_group(engine: str, softmax: str, grouped: Network) -> None:
    grouped.engine = engine
    assert operations(grouped, inputs(grouped, 2)).count(softmax) == 2


def test_the_cases_have_every_kind_of_stage() -> None:
    """What the purity test walks through."""
    kinds = {type(stage) for name in MODELS for stage in compiled(name).stages}
    assert {AffineLayer, CombineLayer, ReshapeLayer, ScaleLayer} < kinds
    assert [len(layer.groups) for layer in compiled("groups").layers] == [2]


# Numbers, and when the certificate applies to them.


def test_numbers_round_trip(net: Network) -> None:
    numbers = net.numbers()
    again = rebuilt(Record(numbers, net.certificate, net.program))
    assert again.numbers().digests() == numbers.digests() == net.certificate.digests
    assert torch.equal(again(inputs(net, 11)), net(inputs(net, 11)))
    assert again.why_not_certified() is None
    tensors = numbers.tensors()
    assert set(tensors) == set(net.state_dict())
    for name, tensor in net.state_dict().items():
        assert np.array_equal(tensors[name], tensor.numpy()) and tensors[name].dtype == tensor.numpy().dtype


def test_numbers_are_a_copy(plain: Network) -> None:
    numbers = plain.numbers()
    numbers.layers[0].tensors["weight"][:] = 0
    assert plain.why_not_certified() is None


def nudge(tensor: Tensor) -> None:
    """The last number, by its last bit."""
    flat = tensor.data.view(-1)
    flat[-1] = torch.nextafter(flat[-1], flat.new_tensor(math.inf))


def test_the_last_bit_of_any_tensor_counts(plain: Network) -> None:
    assert len(plain.state_dict()) == 14
    for name, tensor in plain.state_dict().items():
        before = tensor.clone()
        nudge(tensor)
        assert plain.why_not_certified() == f"changed since it was certified: {name}"
        assert f"not certified: changed since it was certified: {name}" in repr(plain)
        assert "not certified" in str(plain.describe())
        tensor.copy_(before)
        assert plain.why_not_certified() is None


def test_which_neurons_share_a_head_counts(grouped: Network) -> None:
    index = grouped.state_dict()["stages.1.neurons_1"]
    index[:2] = index[:2].flip(0).clone()
    assert grouped.why_not_certified() == "changed since it was certified: stages.1.neurons_1"


def test_a_coefficient_counts() -> None:
    net = copy.deepcopy(compiled("residual"))
    (combination,) = (
        s for s in net.stages if isinstance(s, CombineLayer) and 0.5 in s.settings["coefficients"]
    )
    known = combination.settings["coefficients"]
    combination.settings["coefficients"] = tuple(0.75 if c == 0.5 else c for c in known)
    assert largest_error(net, inputs(net, 3), net(inputs(net, 3))) > net.certificate.bound
    assert net.why_not_certified() is not None
    assert "not certified" in repr(net)


def test_loading_other_values_is_noticed(plain: Network) -> None:
    state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    plain.load_state_dict(state)
    assert plain.why_not_certified() is None
    nudge(state["stages.2.bias"])
    nudge(state["stages.3.0.key"])
    plain.load_state_dict(state)
    assert plain.why_not_certified() == "changed since it was certified: stages.2.bias, stages.3.0.key"


def test_another_dtype_is_noticed(plain: Network) -> None:
    assert plain.double().why_not_certified() == "the certificate is for float32, the numbers are float64"
    assert plain.float().why_not_certified() is None, "widening and back is exact"
    assert "float16" in plain.half().why_not_certified()
    mixed = copy.deepcopy(compiled("mlp"))
    mixed.stages[0].double()
    reason = mixed.why_not_certified()
    assert "float32" in reason and "float64" in reason
    with pytest.raises(InputError, match="float64"):
        mixed.numbers()


def test_a_nan_is_a_reason_not_a_crash(plain: Network) -> None:
    plain.stages[0].weight.data[0, 0] = math.nan
    reason = plain.why_not_certified()
    assert reason is not None and "stages.0.weight" in reason
    assert "not certified" in repr(plain)
    assert "not certified" in str(plain.describe())


@pytest.fixture
def loose_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("loose_products")
def test_looser_products_void_a_float32_certificate_only() -> None:
    assert "'medium'" in compiled("mlp").why_not_certified()
    assert "not certified" in repr(compiled("mlp"))
    assert compiled("mlp", torch.float64).why_not_certified() is None


def test_products_are_as_they_were() -> None:
    """Runs after the one above."""
    assert torch.get_float32_matmul_precision() == "highest"
    assert compiled("mlp").why_not_certified() is None


def test_a_copy_is_certified_and_its_own(net: Network) -> None:
    twin = copy.deepcopy(net)
    x = inputs(net, 6)
    assert torch.equal(twin(x), net(x))
    assert twin.why_not_certified() is None and twin.certificate == net.certificate
    for parameter in twin.parameters():
        parameter.data.zero_()
    assert net.why_not_certified() is None
    assert twin.why_not_certified() is not None


# What it tells.


def test_the_table_has_every_layer(net: Network) -> None:
    table = net.describe()
    lines = str(table).splitlines()
    assert all(column in lines[0] for column in COLUMNS)
    rows = [
        (claim, neurons, head)
        for claim in net.certificate.parts("layer")
        for neurons, head in zip(claim.facts["neurons"], claim.children, strict=True)
    ]
    assert len(table.rows) == len(rows)
    heads = [head for layer in net.layers for head in layer]
    for row, line, (claim, neurons, said), head in zip(table.rows, lines[2:], rows, heads, strict=False):
        named = dict(zip(COLUMNS, row, strict=True))
        assert named["layer"].startswith(claim.name) and named["function"] == claim.facts["function"]
        assert named["heads"] == str(neurons)
        assert named["anchors"] == f"{head.key.shape[1]} {said.facts['design']}"
        assert named["interval"] == f"[{said.interval.lo:g}, {said.interval.hi:g}]"
        assert float(named["error in"]) == pytest.approx(claim.facts["error_in"], rel=1e-2)
        assert float(named["error out"]) == pytest.approx(claim.bound, rel=1e-2)
        assert all(cell in line for cell in row)
    assert f"<= {at_most(net.certificate.bound)}" in str(table) and "proved" in str(table)
    total, added = (
        sum(p.numel() for p in net.parameters()),
        sum(p.numel() for layer in net.layers for p in layer.parameters()),
    )
    assert f"parameters: {total:,}, of which anchors {added:,}" in str(table)
    assert repr(table) == str(table)


def test_repr(net: Network) -> None:
    text = repr(net)
    for part in (str(net.certificate.holds_for), "dtype=float32", f"{net.certificate.bound:.4g}, proved"):
        assert part in text
    assert text.count("Pointwise(") == len(net.layers)


# Gradients, and the source.


def test_gradients_reach_the_input_alone() -> None:
    net = compiled("residual", torch.float64)
    assert not any(p.requires_grad for p in net.parameters())
    x = inputs(net, 3).requires_grad_()
    assert torch.autograd.gradcheck(net, (x,))
    net(x).sum().backward()
    assert (x.grad != 0).all()
    assert all(p.grad is None for p in net.parameters())


def test_parameters_can_be_trained_on_request(plain: Network) -> None:
    plain.requires_grad_(True)
    plain(inputs(plain, 5)).square().sum().backward()
    assert all(p.grad is not None for p in plain.parameters())


def test_the_source_is_left_alone() -> None:
    for name in MODELS:
        model, (_, shape, eps) = source(name), MODELS[name]
        before = {key: t.clone() for key, t in model.state_dict().items()}
        net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=shape), eps=eps)
        assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())
        assert all(p.requires_grad and p.grad is None for p in model.parameters())
        assert not any(m.training or m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        x, digest = inputs(net, 4), net.program.digest()
        out = net(x)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.zero_()
        assert torch.equal(net(x), out)
        assert net.why_not_certified() is None and net.program.digest() == digest


def test_float64_weights_run_in_float32_and_are_certified_against_themselves() -> None:
    model = source("residual", torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(2.0**-30 * torch.rand_like(p))  # numbers that float32 does not hold
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3, dtype=torch.float32)
    weights = [stage.weight for stage in net.stages if isinstance(stage, AffineLayer)]
    for given, (stored, step) in zip(
        (model.enter, model.inner, model.leave),
        zip(weights, (s for s in net.program.steps if isinstance(s, Affine)), strict=True),
        strict=True,
    ):
        assert stored.dtype == torch.float32 and torch.equal(stored, given.weight.float())
        assert not torch.equal(stored.double(), given.weight)
        assert step.weight.dtype == np.float64 and np.array_equal(step.weight, given.weight.detach().numpy())
    x = inputs(net, 40)
    assert largest_error(net, x, net(x)) <= net.certificate.bound
    assert attnc.verify(net).status == "proved"


def test_saving_changed_weights_warns_and_their_bound_is_only_claimed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-2)
    net.save(tmp_path / "net.safetensors")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)
    with pytest.warns(CertificateWarning):
        net.save(tmp_path / "net.safetensors")
    verdict = attnc.verify(tmp_path / "net.safetensors")
    assert verdict.status == "unknown"


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.bin", "net.onnx"])
def test_a_suffix_of_another_format_is_refused(name: str, tmp_path: Path) -> None:
    head = attnc.head("tanh", domain=(-2, 2), eps=1e-3)
    with pytest.raises(InputError):
        head.save(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_certified_takes_arrays_as_predict_does() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-2)
    x = np.full((2, 3), 0.3, np.float32)
    y, bound = net.certified(x)
    again, same = net.certified(torch.from_numpy(x))
    assert torch.equal(y, again) and torch.equal(bound, same)
