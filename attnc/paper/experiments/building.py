"""The networks that are built where the protocol trains one, and anchors written into the model that it trains.

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
from typing import Any

import torch
from torch import Tensor, nn

from attnc.domain import Box
from attnc.errors import InputError
from attnc.heads.designs import SHARPNESS
from attnc.lower.function_to_head import head as build_head
from attnc.network.head import Head
from attnc.network.layer import AffineLayer
from attnc.network.network import Network
from attnc.paper.experiments.models import REACH, Task, TruncatedModel
from attnc.paper.experiments.settings import Setting
from attnc.paper.truncated import Truncated, assembled, many_heads, one_head, truncated
from attnc.paper.universal import attention_softmax, two_layer
from attnc.program import Program

SMOOTH = 1.0  # c = βΔ² of "smooth": neighbouring anchors share a token
PLACED = 6  # anchors: two for each kink, two for the slope between them
GENTLE = 10  # anchors from which training starts
EPS = 1e-5  # of the networks of experiment 3
ROOM = 5  # coordinates beside x: t, the flag, κ, c, v
_SILENT = 64.0  # a masked score is this much below the largest one: a weight of e^-64


def build(setting: Setting, task: Task) -> Network:
    """clip(<w_i, x_i> + t_i, a, b) with p anchors, or with H heads of n keys."""
    (W, t), a, b, domain = task.target, setting.a, setting.b, (-REACH, REACH)
    if setting.method == "many-heads":
        return many_heads(W, t, a, b, heads=setting.heads, domain=domain)
    if setting.method == "graded":
        return assembled(*_clip_head(setting, task, "graded", setting.p), None)
    sharpness = SMOOTH if setting.method == "smooth" else SHARPNESS
    return one_head(W, t, a, b, anchors=setting.p, domain=domain, sharpness=sharpness)


def head_to_place(setting: Setting, task: Task) -> Head:
    """A head whose anchors fit into the p - n extra tokens of the model that is trained.

    Six tuned anchors are as accurate as many, but their numbers are large, and Adam's steps of 1e-3 destroy them. Training
    starts from ten graded anchors instead."""
    design, most = ("tuned", PLACED) if setting.method == "placed" else ("graded", GENTLE)
    return _clip_head(setting, task, design, min(most, setting.p - setting.n))[2]


def _clip_head(setting: Setting, task: Task, design: str, p: int) -> tuple[Truncated, Program, Head]:
    W, t = task.target
    functions = truncated(W, t, setting.a, setting.b, (-REACH, REACH), torch.float64)
    program = functions.program([0] * len(W), 1)
    clip, reach = f"clip({setting.a!r},{setting.b!r})", functions.interval(program)
    on = (reach.lo, reach.hi)
    return functions, program, build_head(clip, domain=on, anchors=p, design=design, dtype=torch.float64)


def build_sequence(setting: Setting, task: Task) -> Network:
    """The network of experiment 3 as attention, with a proved error of at most 1e-5."""
    model, box = target_network(task), Box(0, 1, shape=(setting.n, setting.d))
    if setting.method == "softmax":
        return attention_softmax(model, box, eps=EPS)
    return two_layer(model, box, eps=EPS, layout="tokens" if setting.method == "tokens" else "heads")


def target_network(task: Task) -> nn.Sequential:
    """W2 relu(W1 vec X + b1) + b2 as a torch module."""
    W1, b1, W2, b2 = task.target
    inner, outer = nn.Linear(*W1.T.shape), nn.Linear(*W2.T.shape)
    parts = (nn.Flatten(), inner, nn.ReLU(), outer, nn.Unflatten(1, tuple(task.x_test.shape[1:])))
    model = nn.Sequential(*parts).double().eval()
    with torch.no_grad():
        for one, weight, bias in ((inner, W1, b1), (outer, W2, b2)):
            one.weight.copy_(weight)
            one.bias.copy_(bias)
    return model.requires_grad_(False)


def use_graded_anchors(net: Network) -> None:
    """Replace the few tuned anchors of every neuron by ten graded ones, from which training can start."""
    for layer in net.layers:
        for g, (_, head) in enumerate(layer.groups):
            on = head.certificate.interval
            options: dict[str, Any] = {"anchors": GENTLE, "design": "graded", "dtype": torch.float64}
            layer[g] = build_head("relu", domain=(on.lo, on.hi), **options)


def reset_affine_maps(net: Network, draw: torch.Generator) -> None:
    """Initialise the affine maps like `nn.Linear`. Anchors keep their keys and values."""
    for stage in net.stages:
        if isinstance(stage, AffineLayer):
            bound = 1 / math.sqrt(stage.weight.shape[1])
            for one in (stage.weight, stage.bias):
                if one is not None:
                    nn.init.uniform_(one, -bound, bound, generator=draw)


@torch.no_grad()
def place_functions(model: TruncatedModel, W: Tensor, t: Tensor) -> None:
    """Write the linear functions <w_i, x_i> + t_i into a model that has the anchors."""
    projection, d = model.tokens.projection, W.shape[1]
    projection.weight[:d] = torch.eye(d)
    projection.weight[d], projection.bias[: d + 1] = 0.0, 0.0
    projection.bias[d] = 1.0
    model.tokens.modulation[:, :d] = W
    model.tokens.modulation[:, d] = t


@torch.no_grad()
def place_anchors(model: TruncatedModel, head: Head) -> None:
    """Write the anchors of a head into the model, which takes the head's dtype. The linear functions stay as they are:
    s_i = Σ_{j <= d} (P x_i + c)_j m_ij."""
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
