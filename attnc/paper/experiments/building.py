"""The networks that are built where the protocol trains one."""

from __future__ import annotations

import math

import torch
from torch import nn

from attnc.domain import Box
from attnc.heads.nearest import SHARPNESS
from attnc.lower.function_to_head import head as make_head
from attnc.network.affine import AffineLayer
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.paper.assemble import Truncated as Given
from attnc.paper.assemble import assembled, truncated
from attnc.paper.experiments.data import REACH, Hidden, Truncated
from attnc.paper.experiments.settings import Setting
from attnc.paper.many_heads import many_heads
from attnc.paper.one_head import one_head
from attnc.paper.universal import attention_softmax, two_layer

SMOOTH = 1.0  # c = βΔ² at which neighbours share a token: half of Δ by the nearest becomes a hundredth
PLACED = 6  # anchors: two for each kink, two for the slope between them
GENTLE = 10
EPS = 1e-5  # of the networks of experiment 3


def build(setting: Setting, task: Truncated) -> Network:
    """Range_[a,b](<w_i, x_i> + t_i) by p anchors, or by H heads of n keys."""
    given, ends = (task.W, task.t), (setting.a, setting.b)
    if setting.method == "many-heads":
        return many_heads(*given, *ends, heads=setting.heads, domain=(-REACH, REACH))
    if setting.method == "graded":
        return graded(truncated(*given, *ends, (-REACH, REACH), torch.float64), setting.p)
    sharpness = SMOOTH if setting.method == "smooth" else SHARPNESS
    return one_head(*given, *ends, anchors=setting.p, domain=(-REACH, REACH), sharpness=sharpness)


def graded(given: Given, p: int) -> Network:
    """p anchors in geometric steps around both kinks."""
    program = given.program([0] * given.tokens, 1)
    return assembled(given, program, _head(given, "graded", p), None)


def to_place(setting: Setting, task: Truncated) -> Head:
    """Anchors that fit into the p - n extra tokens of the model that is trained.

    Six tuned ones do as well as many, but their numbers are large, and no optimiser that moves each by 1e-3 can hold them: where
    training goes on from the anchors, they are ten graded ones."""
    given = truncated(task.W, task.t, setting.a, setting.b, (-REACH, REACH), torch.float64)
    design, most = ("tuned", PLACED) if setting.method == "placed" else ("graded", GENTLE)
    return _head(given, design, min(most, setting.p - setting.n))


def _head(given: Given, design: str, p: int) -> Head:
    reach = given.interval(given.program([0] * given.tokens, 1))
    return make_head(
        f"clip({given.a!r},{given.b!r})",
        domain=(reach.lo, reach.hi),
        anchors=p,
        design=design,
        dtype=torch.float64,
    )


def build_sequence(setting: Setting, task: Hidden) -> Network:
    """The network of experiment 3 by attention alone, proved within 1e-5."""
    box = Box(0, 1, shape=(setting.n, setting.d))
    if setting.method == "softmax":
        return attention_softmax(hidden_model(task), box, eps=EPS)
    return two_layer(
        hidden_model(task), box, eps=EPS, layout="tokens" if setting.method == "tokens" else "heads"
    )


def hidden_model(task: Hidden) -> nn.Sequential:
    """W2 relu(W1 vec X + b1) + b2 as a torch module."""
    inner, outer = nn.Linear(*task.W1.T.shape), nn.Linear(*task.W2.T.shape)
    shape = task.data.x_test.shape[1:]
    model = (
        nn.Sequential(nn.Flatten(), inner, nn.ReLU(), outer, nn.Unflatten(1, tuple(shape))).double().eval()
    )
    with torch.no_grad():
        for one, weight, bias in ((inner, task.W1, task.b1), (outer, task.W2, task.b2)):
            one.weight.copy_(weight)
            one.bias.copy_(bias)
    return model.requires_grad_(False)


def calm(net: Network) -> None:
    """Give every neuron ten graded anchors instead of a few tuned ones: training goes on from them."""
    for layer in net.layers:
        for g, (_, head) in enumerate(layer.groups):
            assert head.certificate.proved
            on = head.certificate.interval
            layer[g] = make_head(
                "relu", domain=(on.lo, on.hi), anchors=GENTLE, design="graded", dtype=torch.float64
            )


def forget_maps(net: Network, draw: torch.Generator) -> None:
    """Affine maps start anew, as torch starts a linear map; anchors, their keys and values stay."""
    for stage in net.stages:
        if isinstance(stage, AffineLayer):
            bound = 1 / math.sqrt(stage.weight.shape[1])
            for one in (stage.weight, stage.bias):
                if one is not None:
                    nn.init.uniform_(one, -bound, bound, generator=draw)
