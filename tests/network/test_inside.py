"""Outside the domain: a warning once, an error with strict=True, silence with strict=False, and nothing in a traced graph."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import attnc
from attnc import functions
from attnc.errors import DomainWarning, InputError
from attnc.network import engines
from attnc.network.pointwise import Pointwise
from attnc.program import Affine, Embed, Program
from attnc.records.window_numbers import window_of
from tests.lower.exact_heads import activation_head
from tests.network.examples import BOX, activation, gate, head, learner, network, source

NAN, INF = math.nan, math.inf


def gelu(reach: float) -> attnc.Head:
    return activation_head(functions.get("gelu"), attnc.Interval(-reach, reach), 1e-4, "float32")


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


CASES: dict[str, tuple[Callable[[], Any], Tensor, list[Tensor]]] = {
    "head": (head, row(-8, 8), [row(0, 100), row(-8.000001, 0), row(NAN, 0), row(0, INF), row(-INF, 0)]),
    "network": (network, row(-1, 0, 1), [row(0, 0, 1.0000001), row(-2, 0, 0), row(0, NAN, 0)]),
    "a window": (
        lambda: Pointwise([(np.array([0, 2]), gelu(8)), (np.array([1]), gelu(4))]),
        row(-8, 4, 8),
        [row(9, 0, 0), row(0, 5, 0), row(0, 0, -8.000001), row(NAN, 0, 0), row(0, -INF, 0)],
    ),
    "a gate's window": (
        lambda: Pointwise([(None, activation()[0])]),
        row(-16, 16),
        [row(17, 0), row(0, -17), row(0, NAN)],
    ),
    "activation": (  # silu of 3, 1, 0 on [-16, 16], tanh of 2, 4 on [-4, 4]
        activation,
        row(16, -16, 4, 10, -4),
        [row(17, 0, 0, 0, 0), row(0, 0, 4.000001, 0, 0), row(0, 0, 0, 0, -5), row(NAN, 0, 0, 0, 0)],
    ),
}


def told(run: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    assert all(issubclass(warning.category, DomainWarning) for warning in seen)
    return [str(warning.message) for warning in seen]


@pytest.mark.parametrize("case", CASES)
def test_the_domain_itself_is_inside(case: str) -> None:
    make, inside, _ = CASES[case]
    module = make()
    assert told(lambda: module(inside)) == []
    assert told(lambda: module(inside[:0])) == []
    assert module(inside, strict=True).shape[0] == 1


@pytest.mark.parametrize("case", CASES)
def test_one_warning_for_each_module(case: str) -> None:
    make, inside, outside = CASES[case]
    for x in outside:
        module = make()
        assert module.strict is None
        assert len(told(lambda module=module, x=x: (module(inside), module(x), module(x)))) == 1
        assert len(told(lambda module=module, x=x: copy.deepcopy(module)(x))) == 1, "a copy is another module"


@pytest.mark.parametrize("case", CASES)
def test_strict_raises_and_lax_is_silent(case: str) -> None:
    make, _, outside = CASES[case]
    for x in outside:
        module = make()
        with pytest.raises(InputError, match="outside"):
            module(x, strict=True)
        assert told(lambda module=module, x=x: module(x, strict=False)) == []
        module.strict = False
        assert told(lambda module=module, x=x: module(x)) == []
        with pytest.raises(InputError, match="outside"):
            module(x, strict=True)
        module.strict = True
        with pytest.raises(InputError, match="outside"):
            module(x)
        assert told(lambda module=module, x=x: module(x, strict=False)) == []


def test_strict_raises_after_a_warning_too() -> None:
    made = head()
    assert len(told(lambda: made(row(0, 100)))) == 1
    with pytest.raises(InputError, match="outside"):
        made(row(0, 100), strict=True)


def test_gelu_at_a_hundred() -> None:
    """It answered 67.2 and said nothing."""
    made = head()
    with pytest.warns(DomainWarning, match=r"100 lies outside \[-8, 8\]") as seen:
        made(torch.tensor([1.0, 100.0]))
    assert seen[0].filename == __file__
    for engine in ("softmax", "sdpa"):
        with pytest.raises(InputError, match="100"):
            made.run(torch.tensor([100.0]), engine, strict=True)
        assert len(told(lambda engine=engine: head().run(torch.tensor([100.0]), engine))) == 1


def test_one_wide_interval_among_narrow_ones() -> None:
    """-16 is beyond the interval of tanh, and inside that of the neurons that it reaches."""
    layer = activation()
    assert told(lambda: layer(row(-16, 0, 0, 0, 0))) == []
    assert len(told(lambda: layer(row(0, 0, -16, 0, 0)))) == 1


def test_a_head_without_a_certificate_has_no_domain() -> None:
    made = head()
    bare = attnc.Head(made.numbers(), "tuned")
    assert bare.domain is None and told(lambda: bare(torch.tensor([100.0]))) == []
    layer = Pointwise([(np.array([1]), bare), (np.array([0]), made)])
    assert told(lambda: layer(row(0, 100))) == []
    assert len(told(lambda: layer(row(100, 0)))) == 1


def test_a_measured_head_has_the_interval_it_was_measured_on() -> None:
    made = attnc.head(lambda s: torch.lgamma(s + 4), domain=(-2, 2), anchors=6)
    assert not made.certificate.proved and made.domain == attnc.Interval(-2, 2)
    assert len(told(lambda: made(torch.tensor([2.5])))) == 1


def test_a_gate_checks_its_activation_and_not_its_squares() -> None:
    made, x = gate(), torch.full((2, 4), 0.1)
    assert made.strict is None and told(lambda: made(x)) == []
    assert len(told(lambda: (made(1000 * x), made(1000 * x)))) == 1
    made.strict = True
    assert made.activation.strict is True and made.product.square.strict is None
    with pytest.raises(InputError, match="outside"):
        made(1000 * x)
    made.strict = False
    assert told(lambda: made(1000 * x)) == []
    with pytest.raises(InputError, match="strict='no'"):
        made.strict = "no"


def test_heads_inside_are_not_checked() -> None:
    """What enters them is inside by the proof of the whole."""
    net = network()
    for part in net.modules():
        if isinstance(part, attnc.Head):
            part.strict = True
    assert net(row(9, 9, 9), strict=False).isfinite().all()
    made = learner()
    made.reading.strict = made.activation.strict = True
    x = torch.full((4, 2), 3.9)
    made(x, torch.tensor([1.0, 0.0, 1.0, 0.0]), 100 * x, strict=False)


def test_a_box_that_is_not_the_same_everywhere() -> None:
    lo, hi = torch.tensor([-1.0, 0.0, -0.5]), torch.tensor([1.0, 2.0, 0.5])
    net = attnc.compile(source(), domain=attnc.Box(lo, hi), eps=1e-2, strict=True)
    net(torch.stack([lo, hi]))
    with pytest.raises(InputError):
        net(torch.stack([lo, hi[[1, 0, 2]]]))


def test_token_ids_are_whole_numbers() -> None:
    program = Program((2,), (Embed(0, np.eye(3)), Affine(1, np.eye(3))))
    net = attnc.compile(program, domain=attnc.Tokens(3, 2), eps=1e-3, dtype=torch.float32, strict=True)
    assert torch.equal(net(row(2, 0)), net(torch.tensor([[2, 0]]))) and attnc.purity(net) == ()
    for ids in (row(0, 0.5), row(0, 3), torch.tensor([[0, -1]])):
        with pytest.raises(InputError):
            net(ids)


@pytest.mark.parametrize("strict", [1, 0, "yes"])
def test_what_strict_may_be(strict: Any) -> None:
    for make in (
        lambda: attnc.head("tanh", domain=(-8, 8), eps=1e-5, strict=strict),
        lambda: attnc.compile(source(), domain=BOX, eps=1e-3, strict=strict),
        lambda: attnc.ConvertConfig(strict=strict),
        lambda: Pointwise([(None, head())], strict=strict),
    ):
        with pytest.raises(InputError, match="strict="):
            make()


@pytest.mark.parametrize("strict", [None, True, False])
def test_strict_reaches_what_is_made(strict: bool | None) -> None:
    assert attnc.head("tanh", domain=(-8, 8), eps=1e-5, strict=strict).strict is strict
    assert attnc.compile(source(), domain=BOX, eps=1e-3, strict=strict).strict is strict
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    attnc.convert_(model, approximation=1e-3, config=attnc.ConvertConfig(strict=strict))
    assert model[2].strict is strict


WAYS = ("compile", "export", "make_fx", "make_fx, pre-dispatch", "vmap", "jacobian", "functional", "meta")


def graphs(module: Any, x: Tensor) -> dict[str, Callable[[], object]]:
    torch.compiler.reset()
    return {
        "compile": lambda: torch.compile(module, fullgraph=True, backend="aot_eager")(x),
        "export": lambda: torch.export.export(module, (x,), strict=False).module()(x),
        "make_fx": lambda: make_fx(module)(x),
        "make_fx, pre-dispatch": lambda: make_fx(module, pre_dispatch=True)(x),
        "vmap": lambda: torch.func.vmap(module)(x),
        "jacobian": lambda: torch.func.jacrev(module)(x),
        "functional": lambda: torch.func.functionalize(module)(x),
        "meta": lambda: copy.deepcopy(module).to("meta")(x.to("meta")),
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_checked_in_a_graph(case: str, way: str) -> None:
    make, _, outside = CASES[case]
    module = make()
    module.strict = True
    graphs(module, outside[0])[way]()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_checked_in_a_trace(case: str) -> None:
    make, inside, outside = CASES[case]
    module = make()
    module.strict = True
    traced = torch.jit.trace(module, outside[0], check_trace=False)
    torch.testing.assert_close(traced(inside), module(inside), rtol=1e-5, atol=1e-5)
    assert "amin" not in str(traced.inlined_graph)


def test_gradients_pass_the_check() -> None:
    x = row(0.5, -0.5, 0.25).requires_grad_()
    assert torch.autograd.grad(network()(x).sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spacing", [2.0**-30, 2.0**-9, 0.5, 1.0, 64.0, 2.0**30])
def test_every_bit_of_the_result_of_a_window(
    spacing: float, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spacing is part of constants where that changes no bit."""
    made = window_of(activation_head(functions.get("gelu"), attnc.Interval(-8, 8), 1e-4, dtype).numbers())
    assert made is not None
    made = replace(made, spacing=spacing)
    draw = torch.Generator().manual_seed(0)
    s = 20 * spacing * torch.randn(5000, generator=draw, dtype=getattr(torch, dtype))
    monkeypatch.setattr(engines, "CHUNK", 999)
    found = engines.run_window(made, s)
    monkeypatch.setattr(engines, "_scales_exactly", lambda _: False)
    assert torch.equal(engines.run_window(made, s), found)
