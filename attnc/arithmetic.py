"""What is assumed of the machine: the one place. docs/arithmetic.md says it in prose, `probe` and tests try it.

For a dtype with unit roundoff u and smallest normal number τ:

1. `+ - × ÷` of numbers that are not subnormal return the exact result times (1 + δ), |δ| <= u, plus at most τ: that covers
   results that are subnormal or flushed to zero. A fused multiply-add is allowed: it errs less. Multiplying by 0 or a power of
   two, and adding 0, round nothing except what underflows.
2. softmax is exp(z - max z) divided by its sum, max z being one of the scores; its exp returns exp(d)(1 + ε) plus at most 4τ,
   |ε| <= exp_units·u for d <= 0: 20 units in the last place for float32 (the fastest exp in PyTorch's CPU kernels), 2 for
   float64. The division may be a multiplication with the reciprocal: three roundings at most.
3. A sum of p terms is formed in any order, each partial sum rounded once.
4. A matrix product of numbers of the dtype is such a sum of products, each rounded once or fused with an addition: no term passes
   more than n + 1 roundings, the bias included, n of its products being other than 0 (adding 0 rounds nothing). PyTorch must not
   be allowed to use less than the dtype (`loose_products`).
5. scaled_dot_product_attention with scale 1 over at most 512 keys forms scores as in 4 and weights as in 2; it may divide the sum
   of products instead of each weight.
6. Closed forms (`attnc.prove.window`) use torch.exp, torch.exp2, torch.reciprocal, torch.sqrt and torch.sigmoid. sqrt returns
   √x(1 + ε), |ε| <= 4u. exp returns exp(d)(1 + ε)
   plus at most τ, |ε| <= 4u, for d <= 80 in float32, d <= 640 in float64; exp2 returns 2^d likewise, for d <= 0. reciprocal is
   the division 1/x of assumption 1. sigmoid returns σ(z)(1 + ε) plus at most τ, |ε| <= (4σ(-z) + 3)u, which is
   1/(1 + exp(-z)) with that exp, and |ε| <= 3e^-z, since 1 + exp(-z) rounds to 1 where the exponential is small. A sum of two
   numbers errs by no more than the smaller of them: the other is a number of the dtype, and none farther off is returned.
7. Token networks (`attnc.tokens`) use more of softmax: exp(0) = 1, exp(d) = 0 for d <= -vanish, also for d = -∞ (128 in float32,
   1024 in float64, where the exact value is below a quarter of the smallest subnormal number), 1/1 = 1, and a maximum that is one
   of its arguments. Sums and products whose exact value is a number of the dtype return it: so sums of products of whole numbers
   are exact in any order, if Σ|terms| < 1/u.

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
    exp_limit: float = 80.0  # the largest argument of torch.exp in a window
    window_exp_units: int = 4  # relative error of torch.exp, in multiples of u
    vanish: float = 128.0  # exp(d) is 0 for d <= -vanish

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype == "float32" else torch.float64


FLOAT32 = Arithmetic("float32", 2.0**-24, 2.0**-126, 2.0**126, exp_units=40)
FLOAT64 = Arithmetic("float64", 2.0**-53, 2.0**-1022, 2.0**1022, exp_units=4, exp_limit=640.0, vanish=1024.0)
ARITHMETIC = {"float32": FLOAT32, "float64": FLOAT64}


@cache
def probe(dtype: str) -> str | None:
    """Try assumption 2 on this machine, where libraries differ most: None if it holds, else what was seen."""
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


def probe_tokens(dtype: str) -> str | None:
    """Try assumption 7 on this machine: None if it holds, else what was seen."""
    return probe_network(dtype) or _probe_ties(dtype) or _probe_whole_numbers(dtype)


@cache
def _probe_ties(dtype: str) -> str | None:
    """Keys that tie have weights of about 1/m, exactly 1 if there is one; all others, at least `vanish` below, have exactly 0."""
    a = ARITHMETIC[dtype]
    top, allowed = a.vanish * 37, 3 * a.unit
    far = torch.tensor([a.vanish, a.vanish + 1, 2 * a.vanish, 1e4, 1 / a.unit / 4, torch.inf]).to(
        a.torch_dtype
    )
    for keys in (2, 3, 9, 17, 65, 257, 513):
        for ties in {1, 2, 3, keys - 1} & set(range(1, keys)):
            z = (top - far).reshape(-1, 1).repeat(1, keys)
            z[:, keys - ties :] = top
            for weights in (torch.softmax(z, -1), torch.softmax(z[:, None].repeat(1, 3, 1), -1)[:, 1]):
                won, lost = weights[:, keys - ties :].double() * ties, weights[:, : keys - ties]
                near = bool(((won - 1).abs() <= (allowed if ties > 1 else 0)).all())
                if bool(lost.any()) or not near:
                    seen = weights[0].tolist()[-3:]
                    return (
                        f"softmax over {keys} keys, {ties} of them equal, the others far below, gave {seen}"
                    )
    return None


@cache
def _probe_whole_numbers(dtype: str) -> str | None:
    """Products of matrices of whole numbers, with Σ|terms| just below 1/u, are exact."""
    a = ARITHMETIC[dtype]
    draw = torch.Generator().manual_seed(13)
    for n in (3, 17, 64, 300):
        most = int(1 / a.unit) // n
        x = torch.randint(-3, 4, (5, n), generator=draw)
        w = torch.randint(-(most // 3), most // 3 + 1, (n, 6), generator=draw)
        wide, exact = x.to(a.torch_dtype), (x @ w)
        stacked = torch.matmul(wide.expand(4, 5, n), w.to(a.torch_dtype).expand(4, n, 6).contiguous())[3]
        for found in (wide @ w.to(a.torch_dtype), stacked):
            if not torch.equal(found.to(torch.int64), exact):
                return f"a product of matrices of whole numbers over {n} terms is not exact"
    return None


def loose_products(dtype: str) -> str | None:
    """None, or which setting allows PyTorch to form products of float32 matrices in less than float32."""
    if dtype != "float32":
        return None
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # old and new settings were mixed
        setting = "unclear"
    if setting != "highest":
        advice = "torch.set_float32_matmul_precision('highest')"
        return f"torch's float32 matmul precision is {setting!r}: {advice}"
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
        random = (torch.rand(k, n, dtype=torch.float64, generator=draw) for k in (rows, columns))
        x, w = (r.to(a.torch_dtype) + 1 for r in random)
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


@cache
def probe_window(dtype: str) -> str | None:
    """Try assumption 6 on this machine: None if it holds, else what was seen."""
    a = ARITHMETIC[dtype]
    deep = math.log(a.tiny) * 1.1
    steps = torch.logspace(-30, 0, 120, base=2.0, dtype=torch.float64)
    small = torch.tensor([0.0, a.tiny, -a.tiny, a.tiny / 4, a.unit, -a.unit], dtype=torch.float64)
    d = torch.cat([steps * a.exp_limit, steps * deep, small, torch.linspace(-4, 20, 97)]).to(a.torch_dtype)
    with working(1200):  # σ(z) differs from 1 by e^-z
        u, units = arb(a.unit), a.window_exp_units
        e = [arb(x).exp() for x in d.tolist()]
        gates = [x / (1 + x) for x in e]
        e_allowed = [x * units * u for x in e]
        gate_allowed = [g * ((units * (1 - g) + 3) * u).min(3 / x) for g, x in zip(gates, e, strict=True)]
        return (
            _probe_pointwise(a, "exp", d, e, e_allowed)
            or _probe_pointwise(a, "sigmoid", d, gates, gate_allowed)
            or _probe_tail(a, steps)
            or _probe_sums(a)
        )


def _probe_tail(a: Arithmetic, steps: torch.Tensor) -> str | None:
    """2^d for d <= 0, down to what underflows; 1/x and √x for x >= 1."""
    d, x = (steps * math.log2(a.tiny) * 1.1).to(a.torch_dtype), (1 + steps * 2.0**20).to(a.torch_dtype)
    exact = {
        "exp2": (d, [(arb(y) * arb(2).log()).exp() for y in d.tolist()], a.window_exp_units),
        "reciprocal": (x, [1 / arb(y) for y in x.tolist()], 1),
        "sqrt": (x, [arb(y).sqrt() for y in x.tolist()], a.window_exp_units),
    }
    for name, (given, values, units) in exact.items():
        seen = _probe_pointwise(a, name, given, values, [y * units * arb(a.unit) for y in values])
        if seen is not None:
            return seen
    return None


def _probe_pointwise(
    a: Arithmetic, name: str, d: torch.Tensor, exact: list[arb], allowed: list[arb]
) -> str | None:
    """torch's function of that name on tensors of several lengths: new, in place, into another, and with a stride."""
    function = getattr(torch, name)
    for length in (1, 7, 8, 33, len(d)):
        chosen = (torch.arange(length) * len(d)) // length
        x = d[chosen]
        pair, into = torch.stack([x, x], 1), torch.empty_like(x)
        ways = (function(x), getattr(x.clone(), f"{name}_")(), function(x, out=into), function(pair[:, 0]))
        for result in ways:
            for i, y in zip(chosen.tolist(), result.tolist(), strict=True):
                if not abs(arb(y) - exact[i]) <= allowed[i] + arb(a.tiny):
                    return f"torch.{name} gave {y!r} for {name}({d[i].item()!r}) on a tensor of {length}"
    return None


def _probe_sums(a: Arithmetic) -> str | None:
    """r + e where e is about as small as a rounding of r: by a sum, and by a product that is added."""
    draw = torch.Generator().manual_seed(11)
    r = (torch.rand(65, dtype=torch.float64, generator=draw) + 1).to(a.torch_dtype)
    for scale in (0.25, 0.75, 1.5, 5.0):
        e = (r.double() * a.unit * scale).to(a.torch_dtype)
        ones = torch.ones_like(e)
        for total in (r + e, r.clone().addcmul_(e, ones), torch.addcmul(r, -e, -ones)):
            for x, y, z in zip(r.tolist(), e.tolist(), total.tolist(), strict=True):
                if not abs(arb(z) - arb(x) - arb(y)) <= arb(y):
                    return f"torch gave {z!r} for {x!r} + {y!r}: farther from the sum than {x!r}"
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
