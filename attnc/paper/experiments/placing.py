"""Write the anchors of a built head into the model that the protocol trains.

A token has `width` >= d + 5 coordinates. Data token i holds w_i ∘ x_i in the first d, t_i in the next, and the flag 1 in the one
after. An extra token holds κ_k, c_k and v_k of its anchor in the three coordinates after those. The first head has

    query  (α s_i + ω, 1)
    key    (κ_k, c_k) of an anchor, (0, -M) of a data token
    value  v_k of an anchor, 0 of a data token

so its weights over the extra tokens are those of the built head, and data tokens have weight e^-64 or less. Extra tokens without
an anchor have the key (0, -M). All other heads and coordinates keep their numbers. The output map ignores them at first; training
may use them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.head import Head
from attnc.paper.experiments.models import TruncatedModel

ROOM = 5  # coordinates beside x: t, the flag, κ, c, v
_SILENT = 64.0  # a masked score is this much below the largest one: a weight of e^-64


def place(model: TruncatedModel, W: Tensor, t: Tensor, head: Head) -> None:
    """Write clip(<w_i, x_i> + t_i) with the head's anchors into the model. The model takes the head's dtype."""
    place_anchors(model, head)
    with torch.no_grad():
        projection, d = model.tokens.projection, W.shape[1]
        projection.weight[:d] = torch.eye(d)
        projection.weight[d], projection.bias[: d + 1] = 0.0, 0.0
        projection.bias[d] = 1.0
        model.tokens.modulation[:, :d] = W
        model.tokens.modulation[:, d] = t


@torch.no_grad()
def place_anchors(model: TruncatedModel, head: Head) -> None:
    """Write the anchors only. The linear functions stay as they are: s_i = Σ_{j <= d} (P x_i + c)_j m_ij."""
    tokens, heads, count = model.tokens, model.attention.heads, head.key.shape[1]
    d, (free, width) = tokens.projection.in_features, tokens.extra.shape
    if head.heads != 1 or head.is_gated or count > free or width < max(d + ROOM, 2 * heads):
        raise InputError(
            f"the model has {free} extra tokens, width={width} and heads={heads}: it takes one head of at most {free} anchors, "
            f"and needs width >= {d + ROOM} and width >= 2 heads; got {head.heads} heads of {count} anchors"
        )
    model.to(head.key.dtype)
    silence = _silence(head)
    gains = _gains(head, silence)
    tokens.projection.weight[d + 1 :] = 0.0
    tokens.projection.bias[d + 1 :] = 0.0
    tokens.projection.bias[d + 1] = 1.0  # the flag
    tokens.modulation[:, d + 1 :] = 1.0
    tokens.extra.zero_()
    tokens.extra[:, d + 3] = -silence
    tokens.extra[:count, d + 2 : d + 4] = head.key[0]
    tokens.extra[:count, d + 4] = head.value[0, :, 1]
    tokens.extra[:, d + 2 : d + 5] /= torch.tensor(gains, dtype=head.key.dtype)
    _place_attention(model, head, silence, gains)


def _place_attention(model: TruncatedModel, head: Head, silence: float, gains: tuple[float, ...]) -> None:
    """Set the first head. Softmax divides scores by the root of the head's width, so the query is multiplied by it. The other
    coordinates of the head have the query 0, which adds nothing to a score."""
    attention, d = model.attention, model.tokens.projection.in_features
    query, key, value, output = attention.query, attention.key, attention.value, attention.output
    width = query.out_features // attention.heads
    scale = math.sqrt(width)
    for numbers in (query.weight[:width], query.bias[:width], key.weight[:2], value.weight[:1]):
        nn.init.zeros_(numbers)
    nn.init.zeros_(output.weight)
    nn.init.zeros_(output.bias)
    query.weight[0, : d + 1] = head.query[0, 0] * scale
    query.bias[0], query.bias[1] = head.query[0, 1] * scale, scale
    key.weight[0, d + 2], key.weight[1, d + 3], value.weight[0, d + 4] = gains
    key.weight[1, d + 1] = -silence
    output.weight[0, 0] = head.output[0]


def _gains(head: Head, silence: float) -> tuple[float, ...]:
    """Powers of two near the root of the largest κ, c and v. Each number is the product of a token's coordinate and a weight;
    an even split is the one that equal steps of an optimiser change least."""
    largest = [float(numbers.abs().max()) for numbers in (head.key[..., 0], head.key[..., 1], head.value)]
    largest[1] = max(largest[1], silence)
    return tuple(2.0 ** round(math.log2(max(size, 1.0)) / 2) for size in largest)


def _silence(head: Head) -> float:
    """M. The largest score is a convex function of s; its minimum lies where two anchors have equal scores."""
    slope, offset = head.key[0, :, 0].double(), head.key[0, :, 1].double()
    meet = (offset.unsqueeze(1) - offset) / (slope - slope.unsqueeze(1))
    meet = meet[torch.isfinite(meet)]
    least = float((meet.unsqueeze(1) * slope + offset).amax(1).min()) if len(meet) else float(offset.max())
    return max(0.0, -least) + _SILENT
