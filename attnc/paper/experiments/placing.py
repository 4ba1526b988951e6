"""Built anchors written into the very model that the protocol trains.

A token has `width` >= d + 5 coordinates. Data token i holds w_i ∘ x_i in the first d (P is the identity there, the modulation
w_i), t_i in the next, and 1 in the one after, the flag; an extra token holds only κ_k, c_k and v_k of its anchor in the three
after those. The first head has

    query  (α s_i + ω, 1)
    key    (κ_k, c_k) of an anchor, (0, -M) of a data token
    value  v_k of an anchor, 0 of a data token

so its weights over the extra tokens are those of the built head, and data tokens have none. Extra tokens without an anchor have
the key (0, -M). All other heads and coordinates keep the numbers they had, and the output map does not read them: they say
nothing, but training may make them speak."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.head import Head
from attnc.paper.experiments.models import Attention, TokenMap, TruncatedModel

ROOM = 5  # coordinates beside x: t, the flag, κ, c, v
_SILENT = 64.0  # nats below every score that counts: a share of e^-64


def place(model: TruncatedModel, W: Tensor, t: Tensor, head: Head) -> None:
    """Write Range(<w_i, x_i> + t_i) by the head's anchors into the model, whose dtype becomes the head's."""
    place_anchors(model, head)
    with torch.no_grad():
        projection, d = model.tokens.projection, W.shape[1]
        projection.weight[:d] = torch.eye(d)
        projection.weight[d], projection.bias[: d + 1] = 0.0, 0.0
        projection.bias[d] = 1.0
        model.tokens.modulation[:, :d] = W
        model.tokens.modulation[:, d] = t


def place_anchors(model: TruncatedModel, head: Head) -> None:
    """Write all but the n linear functions: those stay as they are, s_i = Σ_{j <= d} (P x_i + c)_j m_ij."""
    tokens, d = model.tokens, model.tokens.projection.in_features
    count, free, width = head.key.shape[1], len(tokens.extra), tokens.extra.shape[1]
    narrow = width // model.attention.heads < 2  # a query has two coordinates
    if head.heads != 1 or head.is_gated or count > free or width < d + ROOM or narrow:
        raise InputError(
            f"one head of anchors alone, at most {free} of them, fits into this model if its width is at least {d + ROOM}, and 2 "
            f"for each head: got {head.heads} heads of {count} anchors, and the width {width} for {model.attention.heads} heads"
        )
    model.to(head.key.dtype)
    with torch.no_grad():
        _place_tokens(tokens, head, d, _silence(head))
        _place_attention(model.attention, head, d, _silence(head))


def _place_tokens(tokens: TokenMap, head: Head, d: int, silence: float) -> None:
    """Flags of data tokens; κ, c, v of extra tokens, each divided by its gain."""
    tokens.projection.weight[d + 1 :] = 0.0
    tokens.projection.bias[d + 1 :] = 0.0
    tokens.projection.bias[d + 1] = 1.0
    tokens.modulation[:, d + 1 :] = 1.0
    tokens.extra.zero_()
    tokens.extra[:, d + 3] = -silence
    count = head.key.shape[1]
    tokens.extra[:count, d + 2 : d + 4] = head.key[0]
    tokens.extra[:count, d + 4] = head.value[0, :, 1]
    tokens.extra[:, d + 2 : d + 5] /= torch.tensor(_gains(head, silence), dtype=head.key.dtype)


def _place_attention(attention: Attention, head: Head, d: int, silence: float) -> None:
    """The first head: softmax divides scores by the root of its width, so the query is multiplied by it. Its other coordinates
    have the query 0, which adds nothing to a score, and those of the value are not read."""
    width = attention.query.out_features // attention.heads
    scale = math.sqrt(width)
    for numbers in (attention.query.weight[:width], attention.query.bias[:width], attention.output.weight):
        nn.init.zeros_(numbers)
    for numbers in (attention.key.weight[:2], attention.value.weight[:1]):
        nn.init.zeros_(numbers)
    nn.init.zeros_(attention.output.bias)
    slope, offset, value = _gains(head, silence)
    attention.query.weight[0, : d + 1] = head.query[0, 0] * scale
    attention.query.bias[0], attention.query.bias[1] = head.query[0, 1] * scale, scale
    attention.key.weight[0, d + 2], attention.key.weight[1, d + 3] = slope, offset
    attention.key.weight[1, d + 1] = -silence
    attention.value.weight[0, d + 4] = value
    attention.output.weight[0, 0] = head.output[0]


def _gains(head: Head, silence: float) -> tuple[float, float, float]:
    """Powers of two near the root of the largest κ, c and v: a number of the model is split evenly over two factors, which is
    what a step of an optimiser, the same for all, disturbs least."""
    largest = [float(numbers.abs().max()) for numbers in (head.key[..., 0], head.key[..., 1], head.value)]
    largest[1] = max(largest[1], silence)
    slope, offset, value = (2.0 ** round(math.log2(max(size, 1.0)) / 2) for size in largest)
    return slope, offset, value


def _silence(head: Head) -> float:
    """M: the least of the largest scores over all s is that of a convex function, found where two anchors are equal."""
    slope, offset = head.key[0, :, 0].double(), head.key[0, :, 1].double()
    meet = (offset.unsqueeze(1) - offset) / (slope - slope.unsqueeze(1))
    meet = meet[torch.isfinite(meet)]
    least = float((meet.unsqueeze(1) * slope + offset).amax(1).min()) if len(meet) else float(offset.max())
    return max(0.0, -least) + _SILENT
