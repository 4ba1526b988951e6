"""Small transformers as programs: norms, attention between tokens, plain and gated blocks, embeddings."""

from __future__ import annotations

import numpy as np

from attnc import functions
from attnc.program import (
    Affine,
    Attend,
    Combine,
    Embed,
    Mix,
    Norm,
    Pointwise,
    Product,
    Program,
    Scale,
    Step,
)  # fmt: skip


def transformer(
    seed: int = 0, *, n: int = 2, d: int = 4, heads: int = 2, slices: int | None = None, vocabulary: int = 0,
    gated: bool = False, centred: bool = True, causal: bool = False, epsilon: float = 1e-2, size: float = 1.0,
) -> Program:  # fmt: skip
    """One layer with pre-norms, a last norm, the mean of the tokens and a linear map."""
    draw, steps = np.random.default_rng(seed), list[Step]()
    width = d // heads * (slices or heads)

    def add(step: Step) -> int:
        steps.append(step)
        return len(steps)

    def affine(x: int, rows: int, columns: int) -> int:
        weight = size * draw.normal(size=(rows, columns)) / np.sqrt(columns)
        return add(Affine(x, weight, 0.1 * draw.normal(size=rows)))

    def norm(x: int) -> int:
        return add(Norm(x, 1 + 0.1 * draw.normal(size=d), 0.1 * draw.normal(size=d), epsilon, centred))

    x = add(Embed(0, draw.normal(size=(vocabulary, d)))) if vocabulary else 0
    x = add(Scale(x, np.ones((n, d)), 0.3 * draw.normal(size=(n, d))))
    h = norm(x)
    q, k, v = affine(h, d, d), affine(h, width, d), affine(h, width, d)
    mask = np.tril(np.ones((n, n))) if causal else None
    bias = draw.normal(size=(heads, n, n)) if seed % 2 else None
    a = add(Attend((q, k, v), heads, (d // heads) ** -0.5, mask, slices, bias))
    x = add(Combine((x, affine(a, d, d)), (1.0, 1.0)))
    h = norm(x)
    if gated:
        gate = add(Pointwise(affine(h, d, d), functions.silu()))
        f = add(Product((gate, affine(h, d, d))))
    else:
        f = add(Pointwise(affine(h, d, d), functions.gelu()))
    x = add(Combine((x, affine(f, d, d)), (1.0, 1.0)))
    affine(add(Mix(norm(x), np.full((1, n), 1 / n))), 2, d)
    return Program((n,) if vocabulary else (n, d), tuple(steps))
