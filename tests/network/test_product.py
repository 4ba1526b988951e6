"""Products through squares and gated blocks: executed as `prove.block_bound` says, in bounded memory."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flint import arb
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.heads.lattice import square_numbers
from attnc.network import product
from attnc.network.head import Head
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock, Product
from attnc.records.numbers import HeadNumbers

M, D = 7, 4
SCALE, RADIUS = np.array([0, 1, -1, 2, 0, -3, 0]), np.array([3, 4, 3, 4, 3, 6, 3])


def silu(dtype: str) -> Pointwise:
    pair = np.array([[[0.0, 0], [1, 0]]])
    return Pointwise([(None, Head(HeadNumbers(np.array([[1.0, 0]]), pair, pair, np.ones(1), dtype), "gate"))])


def products(dtype: str, scale: Any = SCALE, radius: Any = RADIUS, engine: str = "softmax") -> Product:
    return Product(Head(square_numbers(dtype), "lattice"), scale, radius, engine)


def maps(dtype: str) -> dict[str, nn.Module]:
    torch.manual_seed(2)
    made = {
        "gate_proj": nn.Linear(D, M, bias=False),
        "up_proj": nn.Linear(D, M),
        "down_proj": nn.Linear(M, 3),
    }
    return {name: m.to(getattr(torch, dtype)).requires_grad_(False) for name, m in made.items()}


def block(dtype: str = "float64", scale: Any = SCALE, radius: Any = RADIUS, **changes: Any) -> GatedBlock:
    given = {"maps": maps(dtype), "activation": silu(dtype), "product": products(dtype, scale, radius)}
    return GatedBlock(**{**given, **changes})


def tokens(*shape: int, dtype: str = "float64") -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))


def original(made: GatedBlock, x: Tensor) -> Tensor:
    found: Tensor = made.down_proj(F.silu(made.gate_proj(x)) * made.up_proj(x))
    return found


@pytest.mark.parametrize(("dtype", "near"), [("float64", 1e-11), ("float32", 2e-3)])
@pytest.mark.parametrize("shape", [(D,), (1, D), (2, 5, D), (0, D), (2, 0, D)])
def test_the_block_is_the_original(dtype: str, near: float, shape: tuple[int, ...]) -> None:
    made, x = block(dtype), tokens(*shape, dtype=dtype)
    out = made(x)
    assert out.shape == (*shape[:-1], 3) and out.dtype == x.dtype
    torch.testing.assert_close(out, original(made, x), rtol=0, atol=near)


def test_the_steps_are_those_of_the_proof() -> None:
    """Bit by bit what `block_bound` says, each operation rounded by numpy, with the square head's own results."""
    made, x = block("float32"), tokens(3, D, dtype="float32")
    h, t = made.activation(made.gate_proj(x)), made.up_proj(x)
    lam, rho = (np.exp2(k).astype(np.float32) for k in (SCALE, RADIUS))
    left, right = h.numpy() / lam, lam * t.numpy()
    q = [
        rho * rho * made.product.square(torch.from_numpy(z / rho)).numpy()
        for z in (left + right, left - right)
    ]
    p = torch.from_numpy((q[0] - q[1]) / np.float32(4))
    assert torch.equal(made.product(h, t), p)
    assert torch.equal(made(x), made.down_proj(p))


def test_products_are_exact_up_to_the_square_head() -> None:
    """|p - h t| <= ρ²A/2 and what the dtype rounds; A is below 1e-15 in float64."""
    h, t = tokens(50, M), tokens(100, M)[50:]
    found = products("float64")(h, t)
    for row in range(0, 50, 7):
        for j in range(M):
            exact = arb(float(h[row, j])) * arb(float(t[row, j]))
            assert abs(arb(float(found[row, j])) - exact) <= arb(2) ** (2 * int(RADIUS[j]) - 44)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_closed_form_multiplies(dtype: str) -> None:
    multiply, x, y = (
        products(dtype, engine="closed-form"),
        tokens(9, M, dtype=dtype),
        tokens(3, 9, M, dtype=dtype)[1],
    )
    assert torch.equal(multiply(x, y), x * y)
    learning = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(multiply(learning, y).sum(), learning)
    assert torch.equal(slope, y)
    half = multiply(x.half(), y.half())
    assert half.dtype == torch.float16 and torch.equal(half, (x.half().to(x) * y.half().to(x)).half())


def test_both_paths_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = block(), tokens(3, 11, D)
    plain = made(x.clone().requires_grad_()).detach()
    for held, chunk in ((1 << 22, 1 << 17), (1 << 22, 3 * M), (5 * M, 2 * M), (1, 1)):
        monkeypatch.setattr(product, "_HELD", held)
        monkeypatch.setattr(product, "_CHUNK", chunk)
        torch.testing.assert_close(made(x), plain, rtol=1e-12, atol=1e-11)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = block(), tokens(23, D)
    monkeypatch.setattr(product, "_HELD", 5 * M)
    monkeypatch.setattr(product, "_CHUNK", 2 * M)
    rows: dict[str, list[int]] = {}
    for name in ("gate_proj", "up_proj", "down_proj", "activation", "product.square"):
        made.get_submodule(name).register_forward_hook(
            lambda _, given, out, name=name: rows.setdefault(name, []).append(given[0].numel())
        )
    made(x)
    assert rows["gate_proj"] == rows["up_proj"] == [5 * D] * 4 + [3 * D]
    assert rows["activation"] == rows["down_proj"] == [5 * M] * 4 + [3 * M]
    assert max(rows["product.square"]) == 2 * M and sum(rows["product.square"]) == 2 * 23 * M


def test_hooks_see_what_the_parts_returned() -> None:
    made, x, seen = block(), tokens(6, D), {}
    for name in ("gate_proj", "up_proj", "activation"):
        made.get_submodule(name).register_forward_hook(
            lambda _, given, out, name=name: seen.update({name: out})
        )
    made(x)
    assert torch.equal(seen["up_proj"], made.up_proj(x))
    torch.testing.assert_close(seen["activation"], F.silu(made.gate_proj(x)))


def test_gradients() -> None:
    made, x = block(), tokens(2, D).requires_grad_()
    assert torch.autograd.gradcheck(made, x)
    found, wanted = (torch.autograd.grad(f(x).sum(), x)[0] for f in (made, lambda x: original(made, x)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)
    made.requires_grad_()
    made(x.detach()).sum().backward()
    assert all(p.grad is not None for p in made.up_proj.parameters())


def test_one_graph() -> None:
    made, x = block(), tokens(2, 3, D)
    torch.compiler.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), made(x), rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled() -> None:
    made, x = block("float32"), tokens(2, 3, D, dtype="float32")
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(made, fullgraph=True)(x), made(x), rtol=0, atol=2e-3)


def test_names_stay_and_exponents_are_small() -> None:
    made = block()
    names = set(made.state_dict())
    assert {
        "gate_proj.weight",
        "up_proj.weight",
        "up_proj.bias",
        "down_proj.weight",
        "down_proj.bias",
    } < names
    assert {"product.scale", "product.radius", "activation.0.key", "product.square.0.value"} < names
    assert not any("factors" in name for name in names)
    assert made.product.scale.dtype == made.product.radius.dtype == torch.int8
    assert (
        made.parameters_added
        == sum(p.numel() for p in made.activation.buffers())
        + sum(p.numel() for p in made.product.square.buffers())
        + 2 * M
    )
    assert "down_proj(activation(gate_proj(x)) ∘ up_proj(x))" in repr(made) and "7 neurons" in repr(made)


def test_maps_may_have_any_names() -> None:
    named = dict(zip(("first", "up", "wo"), maps("float64").values(), strict=True))
    made = block(maps=named)
    assert torch.equal(made(tokens(3, D)), block()(tokens(3, D)))


def test_factors_follow_the_exponents() -> None:
    made, x = block(), tokens(5, D)
    other = block(scale=SCALE + 1, radius=RADIUS + 1)
    twin = copy.deepcopy(made)
    twin.load_state_dict(other.state_dict())
    assert torch.equal(twin.product.factors(), other.product.factors()) and torch.equal(twin(x), other(x))
    assert not torch.equal(made.product.factors(), other.product.factors())
    lam, inverse, shrink, height = made.product.factors().numpy()
    assert np.array_equal(lam, 2.0**SCALE) and np.array_equal(inverse, 2.0**-SCALE)
    assert np.array_equal(shrink, 2.0**-RADIUS) and np.array_equal(height, 4.0**RADIUS)


def test_dtypes_and_devices() -> None:
    made = block().float()
    assert made.product.factors().dtype == torch.float32 and made.product.scale.dtype == torch.int8
    torch.testing.assert_close(made(tokens(5, D).float()), block()(tokens(5, D)).float(), rtol=0, atol=2e-3)
    state = made.state_dict()
    empty = copy.deepcopy(made).to("meta")
    assert empty(torch.empty(2, D, device="meta")).shape == (2, 3)
    empty.to_empty(device="cpu").load_state_dict(state)
    x = tokens(5, D).float()
    assert torch.equal(empty(x), made(x))


def test_engines() -> None:
    made = block()
    assert made.engine == "closed-form" and made.runs == "closed-form, products softmax"
    made.engine = "closed-form"
    assert made.product.square.engine == made.product.runs == made.runs == "closed-form"
    made.engine = "softmax"
    assert made.activation.engine == made.product.square.engine == made.runs == "softmax"
    with pytest.raises(InputError, match="'closed-form'"):
        made.engine = "columns"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"maps": {**dict.fromkeys("ab", nn.Identity()), "product": nn.Identity()}}, "'product'"),
        ({"maps": {**dict.fromkeys("ab", nn.Identity()), "forward": nn.Identity()}}, "'forward'"),
        ({"scale": SCALE[:-1]}, r"scale .*\(6,\), radius \(7,\)"),
        ({"scale": SCALE * 1.0}, "scale .*float64"),
        ({"radius": RADIUS[None]}, r"radius .*\(1, 7\)"),
        ({"radius": RADIUS + 125}, "radius .*127"),
    ],
)
def test_refusals(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        block(**changes)


def test_a_dtype_that_cannot_scale_so_far_is_refused() -> None:
    with pytest.raises(InputError, match=r"torch\.float32"):
        block("float32", radius=RADIUS + 64)
    made = block("float64", radius=RADIUS + 64)
    made(tokens(2, D))
    made.float()
    with pytest.raises(InputError):
        made(tokens(2, D).float())
