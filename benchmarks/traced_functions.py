"""The functions of the benchmark of traced functions: the cases of the tables, and random ones to attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Torch = Callable[[Tensor], Tensor]


def henon(x: Tensor) -> Tensor:
    a, b = x[..., 0], x[..., 1]
    for _ in range(2):
        a, b = 1 - 1.4 * a * a + b, 0.3 * a
    return torch.stack([a, b], -1)


@dataclass(frozen=True)
class Case:
    title: str
    f: Torch
    shape: tuple[int, int]
    eps: tuple[float, ...]


CASES = (
    Case("sin 3xy", lambda x: torch.sin(3 * x[..., :1] * x[..., 1:]), (1, 2), (1e-6, 1e-8)),
    Case("exp(-x²) y", lambda x: torch.exp(-(x[..., :1] ** 2)) * x[..., 1:], (1, 2), (1e-6, 1e-8)),
    Case("Hénon map, two steps", henon, (1, 2), (1e-6,)),
    Case(
        "exp(sin 2x cos y)",
        lambda x: torch.exp(torch.sin(2 * x[..., :1]) * torch.cos(x[..., 1:])),
        (1, 2),
        (1e-6,),
    ),
    Case("softmax(3x), three tokens", lambda x: torch.softmax(3 * x, 1), (3, 1), (1e-4, 1e-5)),
    Case("sin(x + yz)", lambda x: torch.sin(x[..., :1] + x[..., 1:2] * x[..., 2:]), (1, 3), (1e-6,)),
    Case(
        "inverse of X + 3I, 2×2",
        lambda x: torch.linalg.inv(x + 3 * torch.eye(2, dtype=x.dtype)),
        (2, 2),
        (1e-4,),
    ),
    Case("attention of four tokens", lambda x: torch.softmax(x @ x.mT, -1) @ x, (4, 1), (3e-3,)),
    Case("max(x, y)", lambda x: torch.maximum(x[..., :1], x[..., 1:]), (1, 2), (2e-3,)),
    Case("sort of three", lambda x: x.sort(1).values, (3, 1), (3e-2,)),
)

FITS = (
    Case("sin(x + y)", lambda x: torch.sin(x[..., :1] + x[..., 1:]), (1, 2), (1e-3,)),
    Case("sin xy", lambda x: torch.sin(x[..., :1] * x[..., 1:]), (1, 2), (1e-3,)),
    Case("relu(x), relu(x + y)", lambda x: torch.relu(x.cumsum(1)), (2, 1), (2e-2,)),
    Case("softmax of three tokens", lambda x: torch.softmax(x, 1), (3, 1), (1e-3,)),
    Case("sin of sums of four tokens", lambda x: torch.sin(x.cumsum(1)), (4, 1), (1e-3,)),
    Case("sin of half sums of five tokens", lambda x: torch.sin(x.cumsum(1) / 2), (5, 1), (1e-2,)),
    Case("mean of tanh of six numbers", lambda x: torch.tanh(x.mean(-1, keepdim=True)), (1, 6), (1e-2,)),
)

_ONE: dict[str, Torch] = {
    "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf, "abs": torch.abs, "sigmoid": torch.sigmoid,
    "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu, "relu": torch.relu, "square": torch.square,
    "cube": lambda x: x**3, "negate": torch.neg, "softplus": torch.nn.functional.softplus,
    "clamp": lambda x: x.clamp(-0.6, 0.7), "exp": lambda x: torch.exp(torch.sin(x)), "log": lambda x: torch.log(x * x + 1.5),
    "sqrt": lambda x: torch.sqrt(x * x + 0.7), "root": lambda x: (x * x + 1) ** -0.75,
    "reciprocal": lambda x: 1 / (2 + torch.cos(x)), "atan": torch.atan, "asinh": torch.asinh,
    "asin": lambda x: torch.asin(0.8 * torch.sin(x)), "acos": lambda x: torch.acos(0.8 * torch.cos(x)),
    "atanh": lambda x: torch.atanh(0.8 * torch.sin(x)), "acosh": lambda x: torch.acosh(x * x + 1.3),
    "where": lambda x: torch.where(x > 0.2, x, 0.5 * x + 0.1), "mask": lambda x: (x > 0) * x, "sign": lambda x: x * torch.sign(x),
}  # fmt: skip
_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
    "divide": lambda x, y: x / (y * y + 1), "hypot": lambda x, y: torch.sqrt(x * x + y * y + 0.3),
    "logaddexp": torch.logaddexp, "mean": lambda x, y: (0.3 * x + 0.7 * y), "lerp": lambda x, y: torch.lerp(x, y, torch.sin(x)),
    "atan2": lambda x, y: torch.atan2(x, y * y + 0.5), "choice": lambda x, y: torch.where(x >= y, 2 * x - y, x),
}  # fmt: skip
_MANY: dict[str, Torch] = {  # of the features, (…, k)
    "softmax": lambda x: torch.softmax(2 * x, -1), "sort": lambda x: x.sort(-1).values, "cumsum": lambda x: x.cumsum(-1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], eps=0.5),
    "sum": lambda x: x.sum(-1, keepdim=True) + 0 * x,
    "matmul": lambda x: x @ torch.tensor([[0.8, -0.5], [0.3, 1.1]], dtype=x.dtype) if x.shape[-1] == 2 else x.roll(1, -1),
    "outer": lambda x: torch.einsum("bni,bnj->bni", x, x) / x.shape[-1],
    "inverse": lambda x: torch.linalg.inv(torch.diag_embed(x * x + 1) + 0.2)[..., 0],
    "norm": lambda x: x / (torch.linalg.norm(x, dim=-1, keepdim=True) ** 2 + 1),
}  # fmt: skip


def random_function(draw: np.random.Generator) -> tuple[Torch, int, str]:
    """A composition of torch operations on d = 1, 2 or 3 features, d, and its description."""
    d = int(draw.choice([1, 2, 2, 2, 3]))
    plan: list[tuple[Any, ...]] = []
    for _ in range(int(draw.integers(2, 6))):
        kind = int(draw.choice([0, 0, 1, 1, 2]))
        table: Any = (_ONE, _TWO, _MANY)[kind]
        plan.append(
            (
                kind,
                str(draw.choice([*table])),
                float(draw.uniform(0.4, 1.6)),
                *(int(i) for i in draw.integers(0, 8, 2)),
            )
        )

    def f(x: Tensor) -> Tensor:
        values = [x]
        for kind, name, scale, i, j in plan:
            a, b = values[i % len(values)], values[j % len(values)]
            if kind == 0:
                values.append(_ONE[name](scale * a))
            elif kind == 1:
                values.append(_TWO[name](scale * a, b.roll(1, -1)))
            else:
                values.append(_MANY[name](scale * a))
        return values[-1]

    return f, d, ", ".join(name for _, name, *_ in plan)
