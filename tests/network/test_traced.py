"""Every kind of module in a graph: torch.export with a batch of any size, torch.compile without breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import attnc
from attnc import incontext
from attnc.domain import Interval
from attnc.functions import get
from attnc.network.running import constant, is_traced
from tests.lower.exact_heads import activation_head

D = torch.float64


class Run(nn.Module):
    """One tensor to one tensor; the other arguments are fixed."""

    def __init__(self, module: nn.Module, engine: str = "softmax") -> None:
        super().__init__()
        self.module, self.engine = module, engine

    def forward(self, x: Tensor) -> Any:
        if isinstance(self.module, incontext.Learner):
            return self.module(x, (x[:, 0] > 0).to(x.dtype), x)
        return self.module.run(x, self.engine) if isinstance(self.module, attnc.Head) else self.module(x)


@cache
def mlp() -> attnc.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).to(D).eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-4)


@cache
def converted(engine: str, gated: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    if gated:
        model = nn.Sequential(nn.LayerNorm(4), Gated())
    return attnc.convert(model.eval(), approximation=1e-2, config={"engine": engine}, parts="all")


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return out


def rows(n: int, *shape: int, dtype: torch.dtype = D) -> Tensor:
    return torch.rand(n, *shape, dtype=dtype, generator=torch.Generator().manual_seed(n)) * 2 - 1


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "head": (lambda: Run(attnc.head("tanh", domain=(-2, 2), eps=1e-4, dtype=D)), ()),
    "head, sdpa": (lambda: Run(attnc.head("tanh", domain=(-2, 2), eps=1e-4, dtype=D), "sdpa"), ()),
    "head, closed form": (lambda: Run(lattice(), "closed-form"), ()),
    "network": (mlp, (4,)),
    "literal form": (lambda: Run(mlp().as_self_attention(3)), (3, 4)),
    "learner": (lambda: Run(incontext.gradient_descent("logistic", features=2, steps=2, dtype=D)), (2,)),
    "converted, softmax": (lambda: converted("softmax"), (4,)),
    "converted, closed form": (lambda: converted("closed-form"), (4,)),
    "gated block": (lambda: converted("softmax", gated=True), (4,)),
}


@cache
def lattice() -> attnc.Head:
    head = activation_head(get("gelu"), Interval(-16, 16), 1e-5, "float64")
    head.refresh()
    return head


@pytest.mark.parametrize("kind", KINDS)
def test_export_takes_every_batch(kind: str) -> None:
    make, shape = KINDS[kind]
    module = make()
    dtype = next(t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()).dtype
    given = (rows(5, *shape, dtype=dtype),)
    run = torch.export.export(module, given, dynamic_shapes=({0: Dim("n")},), strict=False).module()
    for n in (2, 7, 300):
        x = rows(n, *shape, dtype=dtype)
        torch.testing.assert_close(run(x), module(x), rtol=0, atol=1e-11 if dtype == D else 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_compile_needs_no_break(kind: str) -> None:
    make, shape = KINDS[kind]
    module = make()
    dtype = next(t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()).dtype
    x = rows(3, *shape, dtype=dtype)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), module(x), rtol=0, atol=1e-11 if dtype == D else 1e-5)


def test_a_graph_has_no_chunks() -> None:
    """A head splits 2^19 weights into chunks; a graph that was traced with few inputs must not drop those beyond."""
    head = attnc.head("tanh", domain=(-2, 2), eps=1e-4)
    many = 2 * (1 << 19) // head.key[..., 0].numel() + 3
    s = torch.linspace(-2, 2, many)
    program = torch.export.export(head, (s[:5],), dynamic_shapes=({0: Dim("n")},), strict=False)
    assert torch.equal(program.module()(s), head(s))


def test_constants_of_a_graph_are_tensors_with_an_axis() -> None:
    x = torch.zeros(2, 3, dtype=D)
    assert constant(0.1, x) == 0.1 and not is_traced()
    found: list[Any] = []

    class Keeps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found.extend([constant(0.1, x), constant(0.1, x.float()), constant(0.1, x[0, 0])])
            return x * found[0]

    program = torch.export.export(Keeps(), (x,), strict=False)
    assert [tuple(c.shape) for c in found] == [(1, 3), (1, 1), (1,)]
    assert program.module()(x + 1)[0, 0].item() == 0.1


def test_a_learner_checks_nothing_in_a_graph() -> None:
    learner = incontext.gradient_descent("squared", features=2, steps=2, dtype=D)
    x = rows(4, 2)
    with pytest.raises(attnc.AttncError):
        learner(100 * x, x[:, 0], x)
    program = torch.export.export(learner, (x, x[:, 0], x), strict=False)
    assert program.module()(100 * x, x[:, 0], x).shape == (4,)
    assert torch.equal(program.module()(x, x[:, 0], x), learner(x, x[:, 0], x))
