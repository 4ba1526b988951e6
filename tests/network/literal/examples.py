"""Small transformers as networks: an encoder, a decoder, one with rotary angles, grouped keys and a gated block."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

import attnc
from attnc import functions
from attnc.network.network import Network
from attnc.program import Affine, Attend, Combine, Embed, Norm, Pointwise, Product, Program, Scale, Step
from tests.soundness.transformers import transformer

VOCABULARY = 3


def rotary(n: int = 3, d: int = 4) -> Program:
    """One layer as in Llama, of two heads that share keys: RMSNorm, rotary angles, a causal mask, a gated block."""
    draw, steps, half = np.random.default_rng(0), list[Step](), d // 2

    def add(step: Step) -> int:
        steps.append(step)
        return len(steps)

    def affine(x: int, rows: int, columns: int = d) -> int:
        return add(Affine(x, draw.normal(size=(rows, columns)) / np.sqrt(columns)))

    def norm(x: int) -> int:
        return add(Norm(x, 1 + 0.1 * draw.normal(size=d), np.zeros(d), 1e-2, False))

    def rotated(x: int, heads: int) -> int:
        angle = np.tile(np.arange(n)[:, None] * np.ones(half), heads)
        turn = np.kron(np.eye(heads * half // 2), [[0.0, -1.0], [1.0, 0.0]])
        none = np.zeros_like(angle)
        parts = add(Scale(x, np.cos(angle), none)), add(Scale(add(Affine(x, turn)), np.sin(angle), none))
        return add(Combine(parts, (1.0, 1.0)))

    x = add(Embed(0, draw.normal(size=(VOCABULARY, d))))
    h = norm(x)
    q, k, v = rotated(affine(h, d), 2), rotated(affine(h, half), 1), affine(h, half)
    a = add(Attend((q, k, v), 2, half**-0.5, np.tril(np.ones((n, n))), 1))
    x = add(Combine((x, affine(a, d)), (1.0, 1.0)))
    h = norm(x)
    gate = add(Pointwise(affine(h, d), functions.silu()))
    x = add(Combine((x, affine(add(Product((gate, affine(h, d)))), d)), (1.0, 1.0)))
    affine(norm(x), VOCABULARY)
    return Program((n,), tuple(steps))


PROGRAMS = {
    "encoder": lambda: transformer(1, n=3),  # LayerNorm, a bias of the scores, GELU, a mean of the tokens
    "decoder": lambda: transformer(0, n=3, causal=True, vocabulary=VOCABULARY),
    "rotary": rotary,
    "six features": lambda: transformer(0, d=6, gated=True),  # 1/6 is not a floating-point number
    "tiny": lambda: transformer(1, d=2, heads=1, causal=True, vocabulary=VOCABULARY, gated=True, epsilon=1.0),
}


@cache
def network(name: str, dtype: torch.dtype = torch.float64) -> Network:
    program = PROGRAMS[name]()
    tables = any(step.kind == "embed" for step in program.steps)
    domain = attnc.Tokens(VOCABULARY, *program.shape) if tables else attnc.Box(-1, 1, shape=program.shape)
    return attnc.compile(program, domain=domain, approximation=1e-2, dtype=dtype)


def inputs(net: Network, count: int = 16) -> Tensor:
    draw, shape = torch.Generator().manual_seed(0), (count, *net.program.shape)
    if isinstance(net.domain, attnc.Tokens):
        return torch.randint(0, VOCABULARY, shape, generator=draw)
    return (
        torch.rand(shape, generator=draw, dtype=torch.float64).to(getattr(torch, net.certificate.dtype)) * 2
        - 1
    )
