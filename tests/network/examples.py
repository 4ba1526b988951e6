"""Certified modules of every kind for tests of what runs: small, made once."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import attnc
from attnc import functions
from attnc.domain import Interval
from attnc.lower.product import square_head
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock, Product
from tests.lower.exact_heads import activation_head

BOX = attnc.Box(-1, 1, shape=(3,))


@cache
def _head(name: str, reach: float, **options: Any) -> attnc.Head:
    return attnc.head(name, domain=(-reach, reach), **options)


def head(name: str = "gelu", reach: float = 8.0, **options: Any) -> attnc.Head:
    """A copy that may be changed."""
    return copy.deepcopy(_head(name, reach, **(options or {"eps": 1e-4})))


def source() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).eval()


@cache
def _network() -> attnc.Network:
    return attnc.compile(source(), domain=BOX, eps=1e-3)


def network() -> attnc.Network:
    return copy.deepcopy(_network())


def activation(engine: str = "softmax") -> Pointwise:
    """Two functions on two intervals: silu of the neurons 3, 1, 0, which is gated, and tanh of 2, 4."""
    silu, tanh = (
        activation_head(functions.get("silu"), Interval(-16, 16), 1e-5, "float32"),
        head("tanh", 4.0, eps=1e-5),
    )
    return Pointwise([(np.array([3, 1, 0]), silu), (np.array([2, 4]), tanh)], engine)


def gate() -> GatedBlock:
    torch.manual_seed(2)
    maps = {
        "gate_proj": nn.Linear(4, 7, bias=False),
        "up_proj": nn.Linear(4, 7),
        "down_proj": nn.Linear(7, 3),
    }
    for module in maps.values():
        module.requires_grad_(False)
    silu = Pointwise([(None, activation_head(functions.get("silu"), Interval(-8, 8), 1e-5, "float32"))])
    zeros = np.zeros(7, np.int8)
    return GatedBlock(maps, silu, Product(square_head("float32"), zeros, zeros + 4))


def learner(loss: str = "logistic") -> attnc.incontext.Learner:
    return attnc.incontext.gradient_descent(
        loss, features=2, steps=3, step_size=0.1, radius=4.0, dtype=torch.float32
    )


def context() -> tuple[Tensor, Tensor]:
    x = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [1.0, 1.0], [-1.0, 0.25]])
    return x, torch.tensor([1.0, 0.0, 1.0, 0.0])


def head_error(head: attnc.Head, s: Tensor, out: Tensor) -> float:
    """The largest |out - f(s)|, f in float64."""
    f = attnc.functions.get(head.certificate.facts["function"])
    return float((out.double() - f(s.double())).abs().max())
