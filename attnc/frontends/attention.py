"""Softmax attention between tokens in a recorded graph, as one operation or written out: softmax(scale·QKᵀ + bias) V."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attnc.frontends.activations import RefusedError
from attnc.frontends.operations import Value
from attnc.frontends.views import SequenceBuilder, View
from attnc.program import Attend

MASKED = -1e30  # an entry of a mask at or below it is read as -inf: exp of it is 0 in float32 and float64
_BATCH = "attends over another axis than the tokens of one input: the axes are (batch, tokens, features), batch_first=True"
_USED = "uses attention scores for something else than softmax(scale·QKᵀ + constant) V"


@dataclass(frozen=True, eq=False)
class Scores:
    """scale·QKᵀ + bias, a tensor (…, n, m), or its softmax."""

    q: View  # (…, n, d)
    k: View  # (…, m, d)
    shape: torch.Size
    scale: float = 1.0
    bias: Tensor | None = None  # of the shape, float64; -inf where the mask forbids
    weights: bool = False  # the softmax was taken

    def times(self, c: float) -> Scores:
        """The scale is rounded to float64, as numbers of python are."""
        self.check()
        return replace(self, scale=self.scale * c, bias=None if self.bias is None else self.bias * c)

    def plus(self, constant: Tensor) -> Scores:
        self.check()
        extra = constant.to(torch.float64)
        if bool(torch.isnan(extra).any()) or bool((extra == math.inf).any()):
            raise RefusedError("adds NaN or infinity to attention scores")
        extra = torch.where(extra <= MASKED, -math.inf, extra).expand(self.shape)
        return replace(self, bias=extra if self.bias is None else self.bias + extra)

    def masked(self, forbidden: Tensor, fill: float) -> Scores:
        if not fill <= MASKED:
            raise RefusedError(
                f"fills masked attention scores with {fill}: a number of at most {MASKED:.0e} is accepted"
            )
        return self.plus(torch.where(forbidden, -math.inf, 0.0))

    def softmax(self, dim: int) -> Scores:
        self.check()
        if dim % len(self.shape) != len(self.shape) - 1:
            raise RefusedError("takes the softmax over another axis than the keys")
        return replace(self, weights=True)

    def reshaped(self, shape: torch.Size) -> Scores:
        """Other axes in front of the last two."""
        if shape[-2:] != self.shape[-2:] or shape.numel() != self.shape.numel():
            raise RefusedError(_USED)
        return replace(self, shape=shape, bias=None if self.bias is None else self.bias.reshape(shape))

    def check(self) -> None:
        if self.weights:
            raise RefusedError(_USED)


def scores(q: View, k: View) -> Scores:
    """QKᵀ for Kᵀ (…, d, m)."""
    lead = np.broadcast_shapes(q.index.shape[:-2], k.index.shape[:-2])
    return Scores(q, _transposed(k), torch.Size((*lead, q.index.shape[-2], k.index.shape[-1])))


def _transposed(view: View) -> View:
    return View(view.value, view.index.mT, None if view.sign is None else view.sign.mT)


def fused(
    b: SequenceBuilder, query: View, key: View, value: View, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> View:  # fmt: skip
    """torch's scaled_dot_product_attention."""
    if dropout_p:
        raise RefusedError("has dropout: give dropout_p=0 in eval mode")
    if not all(isinstance(x, View) for x in (query, key, value)) or isinstance(attn_mask, View | Scores):
        raise RefusedError("is accepted with queries, keys and values of the input, and a constant mask")
    if enable_gqa:
        key, value = (_repeated(x, query.index.shape[-3] // x.index.shape[-3]) for x in (key, value))
    found = scores(query, _transposed(key)).times(
        1 / math.sqrt(query.index.shape[-1]) if scale is None else scale
    )
    if is_causal:
        allowed = torch.ones(found.shape[-2:], dtype=torch.bool).tril()
        found = found.masked(~allowed, -math.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        found = found.masked(~attn_mask, -math.inf) if boolean else found.plus(attn_mask)
    return attend(b, found.softmax(-1), value)


def _repeated(view: View, times: int) -> View:
    sign = None if view.sign is None else view.sign.repeat_interleave(times, -3)
    return View(view.value, view.index.repeat_interleave(times, -3), sign)


def attend(b: SequenceBuilder, weights: Scores, value: View) -> View:
    """softmax(…) V as a step."""
    if not weights.weights:
        raise RefusedError(_USED)
    lead = torch.Size(np.broadcast_shapes(weights.shape[:-2], value.index.shape[:-2]))
    if lead.numel() % b.batch or lead != weights.shape[:-2]:
        raise RefusedError(_BATCH)
    heads = lead.numel() // b.batch
    q, k, v = (_by_head(x, lead, b.batch) for x in (weights.q, weights.k, value))
    group = next(g for g in range(heads, 0, -1) if heads % g == 0 and all(_repeats(x, g) for x in (k, v)))
    tokens = [_tokens(b, x, g) for x, g in ((q, 1), (k, group), (v, group))]
    mask, bias = _mask(weights, b.batch, heads)
    result = b.add(
        Attend, *tokens, heads=heads, scale=weights.scale, mask=mask, bias=bias,
        kv_heads=None if group == 1 else heads // group,
    )  # fmt: skip
    index = _places(b.batch, heads, result.shape[0], result.shape[1] // heads)
    return View(result, index.reshape(*lead, *index.shape[-2:]))


def _by_head(view: View, lead: torch.Size, batch: int) -> View:
    """(batch, heads, tokens, features)."""
    parts = [
        None if part is None else part.expand(*lead, *part.shape[-2:]) for part in (view.index, view.sign)
    ]
    index, sign = (None if p is None else p.reshape(batch, -1, *p.shape[-2:]) for p in parts)
    assert index is not None
    return View(view.value, index, sign)


def _repeats(view: View, group: int) -> bool:
    """Whether each `group` heads in a row are the same."""
    for part in (view.index, view.sign):
        if part is not None:
            split = part.reshape(len(part), -1, group, *part.shape[2:])
            if bool((split != split[:, :, :1]).any()):
                return False
    return True


def _tokens(b: SequenceBuilder, view: View, group: int) -> Value:
    """The value (tokens, heads·features) of queries, keys or values (batch, heads, tokens, features)."""
    sign = None if view.sign is None else view.sign[:, ::group]
    found = b.ordered(View(view.value, view.index[:, ::group], sign))
    batch, heads, n, d = found.index.shape
    if found.value.shape != (n, heads * d) or not torch.equal(found.index, _places(batch, heads, n, d)):
        raise RefusedError(_BATCH)
    return found.value


def _places(batch: int, heads: int, n: int, d: int) -> Tensor:
    """Where the numbers (batch, heads, tokens, features) are in a value (tokens, heads·features)."""
    return torch.arange(batch * n * heads * d).reshape(batch, n, heads, d).transpose(1, 2)


def _mask(weights: Scores, batch: int, heads: int) -> tuple[object, object]:
    """The mask (n, m) of 0 and 1 and the bias (heads or 1, n, m) of a sum of constants; None if there is none."""
    if weights.bias is None:
        return None, None
    bias = weights.bias.reshape(batch, heads, *weights.shape[-2:])
    if bool((bias != bias[:1]).any()):
        raise RefusedError("has a mask that differs between the inputs of the batch")
    forbidden = bias[0] == -math.inf
    if bool((forbidden != forbidden[:1]).any()):
        raise RefusedError("has a mask that differs between heads")
    rest = torch.where(forbidden, 0.0, bias[0])
    rest = rest[:1] if bool((rest == rest[:1]).all()) else rest
    mask = (~forbidden[0]).to(torch.float32).numpy() if bool(forbidden.any()) else None
    return mask, rest.numpy().copy() if bool(rest.any()) else None
