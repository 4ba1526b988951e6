"""The exact meaning of a captured graph: balls around what torch computes in float64, for operations and whole models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_leaves

from attnc.errors import AttncError, UnsupportedError
from attnc.frontends.capture import capture
from attnc.frontends.exact import exact_outputs
from attnc.frontends.exact_operations import to_balls
from attnc.frontends.transformers import Call
from attnc.frontends.transformers.find import record
from attnc.program.step import Balls
from tests.frontends.tiny_models import example, tiny


class Run(nn.Module):
    """A function as a module, with a matrix of its own."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f, self.weight = f, nn.Parameter(draw(4, 6))

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        return self.f(x, self.weight, *others)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def meaning(f: Callable[..., Any], *given: Tensor, precision: int = 128) -> Balls:
    captured = capture(Run(f).eval(), given, grad=False)
    found = exact_outputs(captured, list(given), precision)[0]
    assert found is not None
    return found


def assert_around(balls: Balls, value: Tensor, off: float, radius: float = 1e-25) -> None:
    """The balls are small, and their centres within rounding of the value."""
    assert balls.shape == tuple(value.shape)
    for ball, y in zip(balls.flat, value.flatten().tolist(), strict=True):
        assert ball.rad() <= radius and abs(ball - y) <= off, (ball, y)


def _overwritten(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y[:, 1] = 3.0
    y[..., 2:4].mul_(-1)
    return y + w


KEPT = draw(4, 6) > 0
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sums": lambda x, w: 2 - x + torch.add(x, w, alpha=3) - torch.sub(w, x, alpha=0.5) * x / (2 + w.square()),
    "powers": lambda x, w: (
        x**2 + x**3 + 1 / (1 + x.abs()) ** 2 + x.abs() ** 0.5 + 2.0**w + (1 + x * x).rsqrt() + x**0
    ),
    "functions": lambda x, w: (
        x.exp() + x.abs().log() + x.sin() * w.cos() + x.erf() + x.tanh() + x.sigmoid() + x.abs().log1p()
    ),
    "activations": lambda x, w: (
        F.gelu(x) + F.silu(w) + F.gelu(x, approximate="tanh") + F.relu(x) + F.hardswish(x) + F.elu(w)
    ),
    "reductions": lambda x, w: x.mean(-1, keepdim=True) + w.sum(0) + x.sum() + w.mean((0, 1)) + x.cumsum(1),
    "extremes": lambda x, w: torch.maximum(x, w) - torch.minimum(x, w) + x.clamp(-0.5, 0.5),
    "softmax": lambda x, w: x.softmax(-1) + w.softmax(0) + F.log_softmax(x, -1),
    "norms": lambda x, w: (
        F.layer_norm(x, (6,), w[0], w[1], 1e-5) + F.layer_norm(x, (4, 6)) + F.rms_norm(w, (6,), w[2], 1e-6)
    ),
    "linear": lambda x, w: (
        F.linear(x, w, w[:, 0]) + x @ w.T + x @ (w * w).T + torch.addmm(x[0, :4], x, w.T, beta=2, alpha=0.5)
    ),
    "products": lambda x, w: (
        x @ w[0],
        w[0] @ x.T,
        (x.view(2, 2, 6) @ w.view(2, 6, 2)).bmm(x.view(2, 2, 6)),
        x[0] @ w[0],
    ),
    "moves": lambda x, w: (
        torch.cat([x.T.reshape(4, 6), w], -1)[:, [1, 0, -1]].flip(0).roll(1, 1).unsqueeze(1).expand(-1, 2, -1)
    ),
    "pieces": lambda x, w: (
        x.split(2, -1)[1] + w.chunk(3, -1)[0] * x.unflatten(1, (3, 2)).unbind(1)[2] + x[:, ::3].repeat(1, 1)
    ),
    "choices": lambda x, w: (
        torch.where(KEPT, x, w * 2).masked_fill(KEPT.flip(0), -1.5).tril(1) + F.pad(x, (1, -1), value=0.5)
    ),
    "lookups": lambda x, w: (
        F.embedding(torch.tensor([[1, 3]]), w).squeeze(0) + x.index_select(0, torch.tensor([0, 2]))
    ),
    "constants": lambda x, w: (
        x * torch.arange(6) + torch.full((6,), 0.1) + torch.ones_like(x) * torch.tensor(0.1)
    ),
    "casts": lambda x, w: (
        x.float().half().double() * (torch.arange(4) > 1).to(x.dtype)[:, None] + w.type_as(x)
    ),
    "in place": _overwritten,
    "scatter": lambda x, w: (
        x.index_put((torch.tensor([1, 2]),), w[:2]) + x.gather(1, torch.zeros(4, 6, dtype=torch.int64))
    ),
}


def test_operations() -> None:
    x, module = draw(4, 6), Run(lambda x, w: {name: f(x, w) for name, f in OPERATIONS.items()}).eval()
    captured = capture(module, (x,), grad=False)
    with torch.no_grad():
        expected, _ = tree_flatten_with_path(module(x))
    for balls, (path, value) in zip(exact_outputs(captured, [x], 128), expected, strict=True):
        assert balls is not None
        # exact numbers are not rounded by casts
        off = {"casts": 2e-3, "constants": 2e-8}.get(path[0].key, 1e-13)  # type: ignore[attr-defined]
        assert_around(balls, value, off)


def test_a_cast_between_floats_changes_nothing() -> None:
    x = torch.tensor([1 + 2.0**-40], dtype=torch.float64)
    assert meaning(lambda x, w: x.float() * 1, x)[0] == 1 + 2.0**-40


@pytest.mark.parametrize("shape", [(1, 4, 5, 4), (5, 4)])
def test_attention(shape: tuple[int, ...]) -> None:
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    seen[2] = False  # a row without keys: torch returns 0
    float_mask = torch.where(seen, 0.5, -torch.inf).double()
    options: list[dict[str, Any]] = [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": seen},
        {"attn_mask": float_mask},
    ]
    q, k, v = draw(*shape), draw(1, *shape)[0] * 2, draw(*shape[:-1], 3)

    def run(q: Tensor, w: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = [F.scaled_dot_product_attention(q, k, v, **chosen) for chosen in options]
        if q.ndim > 2:
            found.append(F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True))
        return torch.stack(found)

    assert_around(meaning(run, q, k, v), run(q, q, k, v), 1e-14)


def test_convolutions() -> None:
    options: list[dict[str, int]] = [
        {},
        {"stride": 2},
        {"padding": 2},
        {"dilation": 2, "padding": 1, "stride": 3},
    ]
    planes, lines = draw(4, 3, 2, 3), draw(4, 3, 3)

    def run(x: Tensor, w: Tensor) -> Tensor:
        found = [F.conv2d(x, planes, w[:, 0], **chosen) for chosen in options]
        found += [F.conv1d(x[:, 0].mT[..., :3].mT, lines, w[:, 1], **chosen) for chosen in options]
        return torch.cat([part.flatten() for part in found])

    x = draw(3, 3, 7, 9)
    assert_around(meaning(run, x), Run(run)(x).detach(), 1e-13)


MODELS = ["bert", "gpt2", "t5", "llama", "gemma", "vit"]
MODELS += [pytest.param(name, marks=pytest.mark.slow) for name in ("t5 gated", "gemma2", "opt", "gpt_neox")]  # type: ignore[misc]
IN_FLOAT32 = (
    "t5",
    "t5 gated",
    "llama",
    "gemma",
    "gemma2",
    "gpt_neox",
)  # parts of these models cast to float32


def _model(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    if name == "encoder":
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu", dtype=torch.float64)
        hidden = torch.tensor([[False] * 5, [False, False, True, False, True]])
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), {
            "src": draw(2, 5, 8),
            "src_key_padding_mask": hidden,
        }
    given = example(name)
    if "input_ids" in given:
        given["attention_mask"] = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    return tiny(name), given


@pytest.mark.parametrize("name", [*MODELS, "encoder"])
def test_models(name: str) -> None:
    """The balls are around what torch computes in float64, and those of two precisions overlap."""
    model, given = _model(name)
    captured = record(model, Call((), given), grad=False)
    first, second = (exact_outputs(captured, tree_leaves(given), precision) for precision in (128, 320))
    with torch.no_grad():
        expected = [out for out in tree_leaves(tuple(_plain(model(**given)))) if out.is_floating_point()]
    real = [balls for balls in first if balls is not None]
    for balls, value in zip(real, expected, strict=True):
        scale = float(value.abs().max())
        assert_around(balls, value, scale * (1e-4 if name in IN_FLOAT32 else 1e-11), scale * 1e-20)
    for a, b in zip(first, second, strict=True):
        assert (a is None and b is None) or all(map(_overlap, a.flat, b.flat))  # type: ignore[union-attr]


def _plain(output: Any) -> list[Any]:
    values = output.values() if isinstance(output, dict) else [output]
    return [value for value in values if isinstance(value, (Tensor, tuple, list))]


def _overlap(a: Any, b: Any) -> bool:
    return bool(a.overlaps(b) and b.rad() <= a.rad())


class Narrow(nn.Module):
    """A forward inside an autocast region."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.T


@pytest.mark.parametrize(
    ("f", "named"),
    [
        (lambda x, w: torch.special.bessel_j0(x), "bessel_j0"),
        (lambda x, w: x.sort(-1).values, "sort"),
        (lambda x, w: torch.where(x > 0, x, w), "gt"),
        (lambda x, w: w[(x[0, :2] * 0).long()], "to"),
        (lambda x, w: x[(w[0, :2] * 0).long()], "to"),
        (lambda x, w: x * torch.arange(3).double().sin()[1].item(), "item"),
        (lambda x, w: x + torch.full((1,), torch.arange(3).double().sin()[1].item()), "item"),
        (lambda x, w: x + torch.polar(torch.ones(6), torch.ones(6)).abs(), "polar"),
        (lambda x, w: x + torch.ones(6).to(torch.complex64).real, "to"),
        (lambda x, w: x + torch.rand_like(x), "rand"),
        (lambda x, w: w[torch.randint(0, 2, (3,))], "randint"),
        (lambda x, w: x.index_put((torch.tensor([1, 1]),), w[:2], accumulate=True), "index_put"),
        (lambda x, w: F.dropout(x, 0.5, True), "dropout"),
        (lambda x, w: torch.div(x, w, rounding_mode="floor"), "div"),
        (lambda x, w: F.conv1d(x[None], w[:, None, :1], groups=4), "conv1d"),
        (lambda x, w: torch.arange(0, 1, 0.1, dtype=x.dtype)[:6] + x, "arange"),
    ],
)
def test_unknown_operations_are_refused_by_name(f: Callable[..., Any], named: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        meaning(f, draw(4, 6))
    assert any(named in problem.reason for problem in caught.value.problems)


def test_regions_and_changed_tensors_are_refused() -> None:
    x = torch.randn(3, 3)
    with pytest.raises(UnsupportedError):
        exact_outputs(capture(Narrow().eval(), (x,), grad=False), [x], 128)
    with pytest.raises(UnsupportedError):
        meaning(lambda x, w: x.mul_(2), draw(4, 6))
    with pytest.raises(UnsupportedError):
        meaning(lambda x, w: x, torch.zeros(2, dtype=torch.complex64))


def test_integers_from_constants_are_those_that_torch_computes() -> None:
    """The buckets of relative positions: a logarithm that is cast to an integer."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        bucket = (torch.arange(1, 9).float().log() / math.log(2)).long()
        return w[0][bucket]

    x = draw(4, 6)
    assert_around(meaning(run, x), Run(run)(x).detach(), 0.0, 0.0)


class Frozen(nn.Module):
    """A function as a module, with buffers."""

    def __init__(self, f: Callable[..., Any], **held: Tensor) -> None:
        super().__init__()
        self.f = f
        for name, value in held.items():
            self.register_buffer(name, value)

    def forward(self, *given: Tensor) -> Any:
        return self.f(self, *given)


def frozen(f: Callable[..., Any], *given: Tensor, precision: int = 192, **held: Tensor) -> Balls:
    captured = capture(Frozen(f, **held).eval(), given, grad=False)
    found = exact_outputs(captured, list(given), precision)[0]
    assert found is not None
    return found


CODES = {
    "table": torch.tensor([[1e8, 1.0, -1e8]]),
    "map": torch.tensor(
        [[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    ),  # scores 0 and 1, of which float32 returns 0 and 0
    "code": torch.tensor([[5.0], [7.0]]),
}


@pytest.mark.parametrize(
    "f",
    [
        lambda m, n: m.code[(m.table[n] @ m.map).argmax(-1)],
        lambda m, n: m.code[(n.float() + 1).sin().mul(10).long().clamp(0, 1)],
        lambda m, n: m.code * (n.float() + 1).sin().sum().item(),
    ],
)
def test_integers_from_activations_are_refused_also_without_parameters(f: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError):
        frozen(f, torch.tensor([0]), **CODES)


def test_scores_that_are_unknown_have_unknown_weights() -> None:
    """sqrt((1 + 2^-200) - 1) is NaN at 192 bits: its weight, 1 beside a hidden key, is not 0."""

    def run(m: Any, n: Tensor) -> Tensor:
        score = torch.sqrt((m.one + m.small * m.small) - m.one)
        return torch.stack(
            [torch.stack([m.hidden, score]).softmax(0), torch.stack([m.one, score]).softmax(0)]
        )

    held = {"one": torch.tensor(1.0), "small": torch.tensor(2.0**-100), "hidden": torch.tensor(-torch.inf)}
    assert all(ball.is_nan() for ball in frozen(run, torch.tensor([0]), **held).flat)
    found = frozen(run, torch.tensor([0]), precision=448, **held)
    assert found[0, 0] == 0 and found[0, 1] == 1 and all(ball.is_finite() for ball in found.flat)


def test_scores_below_every_float64_are_not_hidden() -> None:
    tiny_score = torch.full((2,), -1e308, dtype=torch.float64)
    found = frozen(lambda m, n: (m.score * 1e308).softmax(0), torch.tensor([0]), score=tiny_score)
    assert all(2 * ball == 1 for ball in found)


def test_copies_into_another_dtype_are_not_rounded() -> None:
    w, short = torch.tensor([0.1, 0.7]), torch.zeros(2, dtype=torch.float16)

    def run(m: Any, n: Tensor) -> Tensor:
        copied, assigned = m.short.clone().copy_(m.w), m.short.clone()
        assigned[:1] = m.w[1:]
        return torch.cat([copied, assigned])

    found = frozen(run, torch.tensor([0]), w=w, short=short)
    assert list(found) == [float(w[0]), float(w[1]), float(w[1]), 0.0]


def test_true_is_the_number_1() -> None:
    kept = torch.tensor([True, False])

    def run(m: Any, n: Tensor) -> Tensor:
        w = m.w * 1
        return torch.cat(
            [w.masked_fill(m.kept, True), torch.where(m.kept, w, False), m.w + True, w[:1] * w[1] + 0]
        )

    found = frozen(run, torch.tensor([0]), w=torch.tensor([3.5, 2.5]), kept=kept)
    assert list(found) == [1.0, 2.5, 3.5, 0.0, 4.5, 3.5, 8.75]


def test_numbers_that_have_no_ball() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates quantized tensors
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    for x in (torch.zeros(1, dtype=torch.complex64), quantized, torch.zeros(1, dtype=torch.uint64), 1j):
        with pytest.raises(AttncError):
            to_balls(x)  # type: ignore[arg-type]


def test_another_number_of_inputs_is_refused() -> None:
    x = draw(4, 6)
    with pytest.raises(UnsupportedError):
        exact_outputs(capture(nn.Softmax(-1), (x,), grad=False), [x, x], 64)
