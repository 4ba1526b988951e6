"""What runs is what was proved: autocast, casts and everything that copies, moves or loads numbers change nothing."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import attnc
from attnc.errors import InputError
from attnc.incontext import ridge_regression
from attnc.network.running import PreciseModule
from tests.network.examples import activation, context, gate, head, head_error, learner, network, source

LESS = [torch.float16, torch.bfloat16]


def points(lo: float = -8, hi: float = 8, n: int = 2001) -> Tensor:
    return torch.linspace(lo, hi, n)


def batch() -> Tensor:
    return 2 * torch.rand(50, 3, generator=torch.Generator().manual_seed(0)) - 1


def neurons() -> Tensor:
    return 8 * torch.rand(40, 5, generator=torch.Generator().manual_seed(1)) - 4


def mlp() -> attnc.Network:
    net = network()
    net.form, net.layout = "two-layer", "tokens"
    return net


RUNS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "head": (head, lambda m: m(points())),
    "head, columns": (head, lambda m: m.run(points(), "softmax")),
    "head, dense": (head, lambda m: m.run(points(), "sdpa")),
    "head, weights": (head, lambda m: m.weights(points())),
    "network": (network, lambda m: m(batch())),
    "network, attention": (network, lambda m: next(iter(m.attention(batch()).values()))),
    "layer": (network, lambda m: m.stages[1](m.stages[0](batch()), "sdpa")),
    "map": (network, lambda m: m.stages[0](batch())),
    "activation, window": (lambda: activation("closed-form"), lambda m: m(neurons())),
    "activation, dense": (activation, lambda m: m(neurons())),
    "activation, weights": (activation, lambda m: m.weights(neurons(), group=1)),
    "gate": (gate, lambda m: m(neurons()[:, :4] / 4)),
    "self-attention of a head": (lambda: head().as_self_attention(4), lambda m: m(points(n=4))),
    "its weights": (lambda: head().as_self_attention(4), lambda m: m.attention(points(n=4))["head"]),
    "literal": (lambda: network().as_self_attention(), lambda m: m(batch())),
    "literal, stream": (lambda: network().as_self_attention(), lambda m: m.stream(batch())),
    "literal, a layer": (lambda: network().as_self_attention(), lambda m: m.layers[0](m.embed(batch()))),
    "theorem": (lambda: mlp().as_self_attention(), lambda m: m(batch())),
    "theorem, sequences": (lambda: mlp().as_self_attention(), lambda m: m.sequences(batch())["sum"]),
    "learner": (learner, lambda m: m(*context(), context()[0])),
    "learner, trajectory": (learner, lambda m: m.trajectory(*context())),
    "literal learner": (lambda: learner().as_self_attention(), lambda m: m(*context(), context()[0])),
    "literal learner, tokens": (lambda: learner().as_self_attention(), lambda m: m.embed(*context())),
    "solver": (
        lambda: ridge_regression(0.5, features=2, iterations=4, radius=4.0, start=0.1, dtype=torch.float32),
        lambda m: m(*context(), context()[0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("less", LESS)
@pytest.mark.parametrize("case", RUNS)
def test_autocast_changes_no_bit(case: str, less: torch.dtype) -> None:
    make, run = RUNS[case]
    module = make()
    wanted = run(module)
    with torch.autocast("cpu", dtype=less):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == less, "autocast is on"
        found = run(module)
    assert found.dtype == torch.float32 and torch.equal(found, wanted)


def test_the_dense_engine_keeps_its_certificate_under_autocast() -> None:
    """It erred by 1592 times the bound."""
    made, s = head(), points()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head_error(made, s, made.run(s, "sdpa")) <= made.certificate.bound


def test_a_gated_block_takes_what_autocast_makes_of_its_input() -> None:
    made, x = gate(), neurons()[:, :4] / 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = made(x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, made(x.bfloat16().float()).bfloat16())


# Half precision: numbers stay, inputs are converted, and nothing is certified.

CAST: dict[str, tuple[Callable[[], PreciseModule], Callable[[Any, torch.dtype], Tensor]]] = {
    "head": (head, lambda m, d: m(points().to(d))),
    "head, dense": (head, lambda m, d: m.run(points().to(d), "sdpa")),
    "network": (network, lambda m, d: m(batch().to(d))),
    "activation": (activation, lambda m, d: m(neurons().to(d))),
    "self-attention of a head": (lambda: head().as_self_attention(4), lambda m, d: m(points(n=4).to(d))),
    "literal": (lambda: network().as_self_attention(), lambda m, d: m(batch().to(d))),
    "theorem": (lambda: mlp().as_self_attention(), lambda m, d: m(batch().to(d))),
    "learner": (
        learner,
        lambda m, d: m(*(t.to(d) for t in context()), context()[0].to(d), strict=False),
    ),
    "literal learner": (
        lambda: learner().as_self_attention(),
        lambda m, d: m(*(t.to(d) for t in context()), context()[0].to(d)),
    ),
}


@pytest.mark.parametrize("less", LESS)
@pytest.mark.parametrize("case", CAST)
def test_a_cast_to_less_keeps_the_numbers(case: str, less: torch.dtype) -> None:
    make, run = CAST[case]
    module = make()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    cast = nn.Sequential(module).to(less)[0]
    after = cast.state_dict()
    assert all(torch.equal(after[name], t) and after[name].dtype == t.dtype for name, t in before.items())
    found = run(cast, less)
    assert found.dtype == less and bool(found.isfinite().all())
    assert torch.equal(found, run(make_like(make, less), torch.float32).to(less))


def make_like(make: Callable[[], Any], less: torch.dtype) -> Any:
    """The same module, whose inputs are rounded to `less` before it runs in full."""

    class Rounded:
        def __init__(self, module: Any) -> None:
            self.module = module

        def __call__(self, *given: Any, **options: Any) -> Any:
            return self.module(*(t.to(less).float() for t in given), **options)

        def run(self, s: Tensor, engine: str) -> Any:
            return self.module.run(s.to(less).float(), engine)

    return Rounded(make())


@pytest.mark.parametrize("less", LESS)
@pytest.mark.parametrize("make", [head, network, activation, gate, learner], ids=lambda m: m.__name__)
def test_a_cast_to_less_is_never_certified(make: Callable[[], Any], less: torch.dtype) -> None:
    module = make()
    assert module.why_not_certified() is None
    assert str(less) in module.to(less).why_not_certified()
    assert str(less) in module.cpu().why_not_certified()
    if make is not gate:  # its maps were rounded
        assert module.float().why_not_certified() is None


@pytest.mark.parametrize("make", [head, network], ids=lambda m: m.__name__)
def test_verify_says_unknown_of_a_cast(make: Callable[[], Any]) -> None:
    assert attnc.verify(make()).status == "proved"
    verdict = attnc.verify(make().half())
    assert verdict.status == "unknown" and "float16" in verdict.reason


@pytest.mark.parametrize("less", LESS)
def test_a_network_that_was_cast_errs_by_its_bound_and_one_rounding(less: torch.dtype) -> None:
    """It returned NaN in float16, and erred by 2.9 in bfloat16 where the original erred by 0.05."""
    x, net = batch().to(less), network()
    with torch.no_grad():
        exact = source().double()(x.double())
    error = (net.to(less)(x).double() - exact).abs()
    bound = net.certificate.bound
    assert bool((error <= bound + (exact.abs() + bound) * torch.finfo(less).eps / 2).all())


def test_inputs_are_converted_only_where_a_cast_was_asked_for() -> None:
    for module, x in ((head(), points()), (network(), batch())):
        with pytest.raises(InputError, match="float16"):
            module(x.half())
        assert module.half()(x).dtype == torch.float32
        with pytest.raises(InputError, match="bfloat16"):
            module(x.bfloat16())


def test_numbers_of_less_are_refused() -> None:
    made, net = head(), network()
    for parameter in (*made.parameters(), *net.parameters()):
        parameter.data = parameter.data.half()
    with pytest.raises(InputError, match="32"):
        made(points().half())
    with pytest.raises(InputError, match="32"):
        net(batch().half())
    assert "float16" in made.why_not_certified() and "float16" in net.why_not_certified()


# Derived state: everything follows from the numbers that are stored.


def saved_and_loaded(module: Any) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def emptied(module: Any) -> Any:
    state = module.state_dict()
    made = copy.deepcopy(module).to("meta").to_empty(device="cpu")
    made.load_state_dict(state)
    return made


def zeroed(module: Any) -> Any:
    """Every tensor that the module holds, in whatever dictionary, and then the state that was saved."""
    made = copy.deepcopy(module)
    state = {name: t.clone() for name, t in made.state_dict().items()}
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            tensor.zero_()
    made.load_state_dict(state)
    return made


def assigned(module: Any) -> Any:
    made = copy.deepcopy(module)
    state = {name: t.clone() for name, t in module.state_dict().items()}
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            tensor.zero_()
    made.load_state_dict(state, assign=True)
    return made


def cast_and_back(module: Any) -> Any:
    return copy.deepcopy(module).double().float()


SAME = [copy.deepcopy, saved_and_loaded, emptied, zeroed, assigned, cast_and_back]


@pytest.mark.parametrize("way", SAME, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", [c for c in RUNS if "literal learner" not in c and "solver" not in c])
def test_the_same_numbers_compute_the_same(case: str, way: Callable[[Any], Any]) -> None:
    make, run = RUNS[case]
    module = make()
    assert torch.equal(run(way(module)), run(module))


def test_an_emptied_activation_is_within_its_bounds() -> None:
    """Zeroing what was derived, and loading the state: the error was 110 against a bound of 4.6e-6."""
    for way in (emptied, zeroed):
        layer, x = way(activation()), neurons()
        out = layer(x)
        assert layer.why_not_certified() is None
        for where, one in layer.groups:
            assert head_error(one, x[..., where], out[..., where]) <= one.certificate.bound


def by_state(module: Any, other: Any) -> None:
    module.load_state_dict(other.state_dict())


def by_copy(module: Any, other: Any) -> None:
    with torch.no_grad():
        for mine, its in zip(module.parameters(), other.parameters(), strict=True):
            mine.copy_(its)


def by_data(module: Any, other: Any) -> None:
    for mine, its in zip(module.parameters(), other.parameters(), strict=True):
        mine.data = its.data.clone()


def by_attribute(module: Any, other: Any) -> None:
    for name in ("query", "key", "value", "output"):
        setattr(module, name, getattr(other, name))


@pytest.mark.parametrize("way", [by_state, by_copy, by_data, by_attribute], ids=lambda way: way.__name__)
def test_a_head_with_the_numbers_of_another_computes_what_the_other_does(way: Any) -> None:
    """silu(3) was 2.9e-17: that a token attends to itself was remembered from other numbers."""
    silu, tanh = head("silu", 8.0, anchors=2, design="gated"), head("tanh", 8.0, eps=1e-5)
    assert silu.key.shape == tanh.key.shape and silu.is_gated and not tanh.is_gated
    s = points()
    for made, other in ((copy.deepcopy(tanh), silu), (copy.deepcopy(silu), tanh)):
        way(made, other)
        assert made.is_gated == other.is_gated
        for engine in ["softmax"] if other.is_gated else ["softmax", "sdpa"]:
            assert head_error(other, s, made.run(s, engine)) <= other.certificate.bound
        if other.is_gated:
            with pytest.raises(InputError, match="softmax"):
                made.run(s, "sdpa")
        assert "changed since it was certified" in made.why_not_certified()


def test_traced_graphs_hold_for_gated_numbers_too() -> None:
    """A graph that was made of an ungated head gets the numbers of a gated one."""
    silu, tanh = head("silu", 8.0, anchors=2, design="gated"), head("tanh", 8.0, eps=1e-5)
    s = points(n=101)
    for engine in ("softmax", "sdpa"):
        program = torch.export.export(Engine(tanh, engine), (s,), strict=False)
        state = {f"head.{name}": t for name, t in silu.state_dict().items()}
        ran = program.module()
        ran.load_state_dict(state)
        torch.testing.assert_close(ran(s), silu(s), rtol=1e-5, atol=1e-5)
    torch.compiler.reset()
    made = copy.deepcopy(tanh)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(s), tanh(s))
    by_copy(made, silu)
    torch.testing.assert_close(compiled(s), silu(s), rtol=1e-5, atol=1e-5)


class Engine(nn.Module):
    def __init__(self, head: attnc.Head, engine: str) -> None:
        super().__init__()
        self.head, self.engine = head, engine

    def forward(self, s: Tensor) -> Tensor:
        return self.head.run(s, self.engine)


def test_neurons_that_change_places_change_places() -> None:
    layer, x = activation(), neurons()
    before = layer(x)
    with torch.no_grad():
        layer.get_buffer("neurons_1").copy_(torch.tensor([4, 2]))
    assert torch.equal(layer(x), before), "which of a group comes first does not matter"
    with torch.no_grad():
        layer.get_buffer("neurons_0").copy_(torch.tensor([2, 1, 0]))
        layer.get_buffer("neurons_1").copy_(torch.tensor([3, 4]))
    after = layer(x)
    assert torch.equal(after[:, [0, 1, 4]], before[:, [0, 1, 4]])
    assert head_error(layer[1], x[:, 3], after[:, 3]) <= layer[1].certificate.bound
    with torch.no_grad():
        layer.get_buffer("neurons_1").copy_(torch.tensor([2, 4]))
    assert "5 neurons" in layer.why_not_certified()


def test_factors_follow_exponents_that_are_written_in_place() -> None:
    made = gate()
    for _ in range(2):
        made.product.scale.add_(1)
        made.product.radius.data = made.product.radius.data + 1
    lam, inverse, shrink, height = made.product.factors().double()
    assert set(lam.tolist()) == {4.0} and set(inverse.tolist()) == {0.25}
    assert set(shrink.tolist()) == {2.0**-6} and set(height.tolist()) == {2.0**12}
    made.engine = "softmax"
    made.product.radius.fill_(70)
    with pytest.raises(InputError, match="-70"):
        made(neurons()[:, :4])


def test_a_network_holds_nothing_that_its_numbers_do_not_say() -> None:
    net, x = network(), batch()
    wanted = net(x)
    known = {
        "training",
        "program",
        "form",
        "layout",
        "theorem",
        "notes",
        "engine",
        "strict",
        "task",
        "classes",
    }
    assert {name for name in vars(net) if not name.startswith("_")} == known
    plain = set(vars(nn.Module()))
    assert {name for name in vars(net) if name.startswith("_")} - {"_certificate"} <= plain
    net._last = net._widest_ = 0
    assert torch.equal(net(x), wanted)


@pytest.mark.parametrize("make", [head, network, activation, gate, learner], ids=lambda m: m.__name__)
def test_no_tensor_is_kept_outside_the_state(make: Callable[[], Any]) -> None:
    module = make()
    held = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    assert held == set(module.state_dict())


def test_graphs_of_make_fx_are_attention_only() -> None:
    layer = activation()
    graph = make_fx(layer)(neurons())
    assert torch.allclose(graph(neurons()), layer(neurons()), atol=1e-6)
    names = [str(node.target) for node in graph.graph.nodes]
    assert sum("_softmax" in name for name in names) == 2 and not any("amin" in name for name in names)
