"""What is assumed of the machine: the one place. docs/arithmetic.md says it in prose, `probe` and tests try it.

For a dtype with unit roundoff u and smallest normal number τ:

1. `+ - × ÷` of numbers that are not subnormal return the exact result times (1 + δ), |δ| <= u, plus at most τ: that covers
   results that are subnormal or flushed to zero. A fused multiply-add is allowed: it errs less.
2. softmax is exp(z - max z) divided by its sum; its exp returns exp(d)(1 + ε) plus at most τ, |ε| <= exp_units·u for d <= 0:
   20 units in the last place for float32 (the fastest exp in PyTorch's CPU kernels), 2 for float64. The division may be
   a multiplication with the reciprocal: three roundings at most.
3. A sum of p terms is formed in any order, each partial sum rounded once.
4. A matrix product of numbers of the dtype is such a sum of products, each rounded once or fused with an addition: no term passes
   more than n + 1 roundings, the bias included, n of its products being other than 0 (adding 0 rounds nothing). PyTorch must not
   be allowed to use less than the dtype (`loose_products`).
5. scaled_dot_product_attention with scale 1 over at most 512 keys forms scores as in 4 and weights as in 2; it may divide the sum
   of products instead of each weight.

An operand that is subnormal may be taken for zero: an input s (then its error, at most τ, is carried through), or an
intermediate result. Stored numbers that are subnormal are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from flint import arb

from attnc.functions.balls import working


@dataclass(frozen=True)
class Arithmetic:
    """The constants of one dtype, each a power of two or a small integer, hence exact."""

    dtype: str
    unit: float  # u
    tiny: float  # τ, the smallest normal number
    largest: float  # scores and sums beyond this may overflow
    exp_units: int  # relative error of exp in softmax, in multiples of u
    division_units: int = 3

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype == "float32" else torch.float64


FLOAT32 = Arithmetic("float32", 2.0**-24, 2.0**-126, 2.0**126, exp_units=40)
FLOAT64 = Arithmetic("float64", 2.0**-53, 2.0**-1022, 2.0**1022, exp_units=4)
ARITHMETIC = {"float32": FLOAT32, "float64": FLOAT64}


@cache
def probe(dtype: str) -> str | None:
    """Try assumption 2 on this machine, where libraries differ most: None if it holds, else what was seen.

    >>> probe("float64") is None
    True
    """
    a = ARITHMETIC[dtype]
    d = _distances(a)
    for anchors in (2, 8, 33):
        z = torch.full((anchors, len(d)), -torch.inf, dtype=a.torch_dtype)
        z[0], z[-1] = 0, d
        for weights in (torch.softmax(z, 0), torch.softmax(z.T.contiguous(), 1).T):
            seen = _not_exp(a, d, weights, f"softmax over {anchors} keys")
            if seen is not None:
                return seen
    return None


def probe_network(dtype: str) -> str | None:
    """Try what networks assume besides: assumptions 4 and 5, and that no setting loosens them."""
    return loose_products(dtype) or _probe_products(dtype)


def loose_products(dtype: str) -> str | None:
    """None, or which setting allows PyTorch to form products of float32 matrices in less than float32."""
    if dtype != "float32":
        return None
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # old and new settings were mixed
        setting = "unclear"
    if setting != "highest":
        return (
            f"torch's float32 matmul precision is {setting!r}: torch.set_float32_matmul_precision('highest')"
        )
    onednn = getattr(torch.backends, "mkldnn", None)
    for where in (torch.backends, onednn, getattr(onednn, "matmul", None)):
        chosen = getattr(where, "fp32_precision", "ieee")
        if chosen not in ("none", "ieee"):
            return f"torch.backends allows {chosen!r} in products of float32 matrices: set fp32_precision = 'ieee'"
    return None


@cache
def _probe_products(dtype: str) -> str | None:
    """Sums of products that need every bit of the dtype, against γ_n; and softmax by scaled_dot_product_attention."""
    a = ARITHMETIC[dtype]
    draw = torch.Generator().manual_seed(7)
    for rows, n, columns in ((3, 17, 5), (64, 300, 70), (1, 1025, 2)):
        x, w = (
            torch.rand(k, n, dtype=torch.float64, generator=draw).to(a.torch_dtype) + 1
            for k in (rows, columns)
        )
        y = float(torch.nn.functional.linear(x, w)[rows // 2, columns // 2])
        with working(128):
            pairs = zip(x[rows // 2].tolist(), w[columns // 2].tolist(), strict=True)
            total, k = sum((arb(p) * arb(q) for p, q in pairs), arb(0)), arb(n + 1) * arb(a.unit)
            if not abs(arb(y) - total) <= total * k / (1 - k):
                return f"a product of matrices over {n} terms gave {y!r} for {total.str(17)}"
    d = _distances(a)
    for anchors in (2, 9, 33):
        seen = _not_exp(a, d, _dense_weights(d, anchors), f"scaled_dot_product_attention over {anchors} keys")
        if seen is not None:
            return seen
    return None


def _distances(a: Arithmetic) -> torch.Tensor:
    return -torch.logspace(-6, math.log2(80.0), 700, base=2.0, dtype=torch.float64).to(a.torch_dtype)


def _not_exp(a: Arithmetic, d: torch.Tensor, weights: torch.Tensor, what: str) -> str | None:
    """Scores 0 and d have the weights 1/(1 + e) and e/(1 + e): their quotient shows exp(d) up to two divisions."""
    allowed = a.unit * (a.exp_units + 2 * a.division_units + 1)
    with working(128):
        for score, first, last in zip(d.tolist(), weights[0].tolist(), weights[-1].tolist(), strict=True):
            quotient = arb(last) / arb(first)
            if not abs(quotient - arb(score).exp()) <= arb(allowed) * arb(score).exp() + arb(a.tiny):
                return f"{what} gave a weight ratio of {quotient.str(17)} for exp({score})"
    return None


def _dense_weights(d: torch.Tensor, anchors: int) -> torch.Tensor:
    """The weights of the first and the last key, whose scores are 0 and d; those between have -1e30."""
    query = torch.stack([d, torch.ones_like(d)], -1)[None, None]
    keys, values = (torch.zeros(1, 1, anchors, 2, dtype=d.dtype) for _ in range(2))
    keys[..., 1:-1, 1] = -1e30
    keys[..., -1, 0] = 1
    values[..., 0, 0], values[..., -1, 1] = 1, 1
    return torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=1.0)[0, 0].T
