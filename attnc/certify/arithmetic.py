"""What is assumed of the machine: the one place. docs/arithmetic.md says it in prose, `probe` and tests try it.

For a dtype with unit roundoff u and smallest normal number τ:

1. `+ - × ÷` of numbers that are not subnormal return the exact result times (1 + δ), |δ| <= u, plus at most τ: that covers
   results that are subnormal or flushed to zero. A fused multiply-add is allowed: it errs less.
2. softmax is exp(z - max z) divided by its sum; its exp returns exp(d)(1 + ε) plus at most τ, |ε| <= exp_units·u for d <= 0:
   20 units in the last place for float32 (the fastest exp in PyTorch's CPU kernels), 2 for float64. The division may be
   a multiplication with the reciprocal: three roundings at most.
3. A sum of p terms is formed in any order, each partial sum rounded once.

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

    softmax over (0, d) has the weights 1/(1 + e) and e/(1 + e), so their quotient shows exp(d) up to two
    divisions.

    >>> probe("float64") is None
    True
    """
    a = ARITHMETIC[dtype]
    d = -torch.logspace(-6, math.log2(80.0), 700, base=2.0, dtype=torch.float64).to(a.torch_dtype)
    allowed = a.unit * (a.exp_units + 2 * a.division_units + 1)
    for anchors, dim in ((2, 0), (8, 0), (33, 0), (2, 1), (8, 1), (33, 1)):
        z = torch.full((anchors, len(d)), -torch.inf, dtype=a.torch_dtype)
        z[0], z[-1] = 0, d
        weights = torch.softmax(z, 0) if dim == 0 else torch.softmax(z.T.contiguous(), 1).T
        with working(128):
            for score, first, last in zip(d.tolist(), weights[0].tolist(), weights[-1].tolist(), strict=True):
                quotient = arb(last) / arb(first)
                if not abs(quotient - arb(score).exp()) <= arb(allowed) * arb(score).exp() + arb(a.tiny):
                    return f"softmax over {anchors} keys gave a weight ratio of {quotient.str(17)} for exp({score})"
    return None
