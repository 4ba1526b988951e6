"""The networks that are built where the protocol trains one."""

from __future__ import annotations

import math

import torch
from torch import nn

from attnc.domain import Box
from attnc.heads.designs import SHARPNESS
from attnc.lower.function_to_head import head as build_head
from attnc.network.head import Head
from attnc.network.layer import AffineLayer
from attnc.network.network import Network
from attnc.paper.assemble import Truncated, assembled, truncated
from attnc.paper.experiments.data import REACH, Task
from attnc.paper.experiments.settings import Setting
from attnc.paper.many_heads import many_heads
from attnc.paper.one_head import one_head
from attnc.paper.universal import attention_softmax, two_layer

SMOOTH = 1.0  # c = βΔ² of "smooth": neighbouring anchors share a token
PLACED = 6  # anchors: two for each kink, two for the slope between them
GENTLE = 10  # anchors from which training starts
EPS = 1e-5  # of the networks of experiment 3


def build(setting: Setting, task: Task) -> Network:
    """clip(<w_i, x_i> + t_i, a, b) with p anchors, or with H heads of n keys."""
    (W, t), a, b, domain = task.target, setting.a, setting.b, (-REACH, REACH)
    if setting.method == "many-heads":
        return many_heads(W, t, a, b, heads=setting.heads, domain=domain)
    if setting.method == "graded":
        functions = _functions(setting, task)
        program = functions.program([0] * functions.tokens, 1)
        return assembled(functions, program, _clip_head(functions, "graded", setting.p), None)
    sharpness = SMOOTH if setting.method == "smooth" else SHARPNESS
    return one_head(W, t, a, b, anchors=setting.p, domain=domain, sharpness=sharpness)


def head_to_place(setting: Setting, task: Task) -> Head:
    """A head whose anchors fit into the p - n extra tokens of the model that is trained.

    Six tuned anchors are as accurate as many, but their numbers are large, and Adam's steps of 1e-3 destroy them. Training
    starts from ten graded anchors instead."""
    design, most = ("tuned", PLACED) if setting.method == "placed" else ("graded", GENTLE)
    return _clip_head(_functions(setting, task), design, min(most, setting.p - setting.n))


def _functions(setting: Setting, task: Task) -> Truncated:
    W, t = task.target
    return truncated(W, t, setting.a, setting.b, (-REACH, REACH), torch.float64)


def _clip_head(functions: Truncated, design: str, p: int) -> Head:
    reach = functions.interval(functions.program([0] * functions.tokens, 1))
    clip, on = f"clip({functions.a!r},{functions.b!r})", (reach.lo, reach.hi)
    return build_head(clip, domain=on, anchors=p, design=design, dtype=torch.float64)


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
            layer[g] = build_head(
                "relu", domain=(on.lo, on.hi), anchors=GENTLE, design="graded", dtype=torch.float64
            )


def reset_affine_maps(net: Network, draw: torch.Generator) -> None:
    """Initialise the affine maps like `nn.Linear`. Anchors keep their keys and values."""
    for stage in net.stages:
        if isinstance(stage, AffineLayer):
            bound = 1 / math.sqrt(stage.weight.shape[1])
            for one in (stage.weight, stage.bias):
                if one is not None:
                    nn.init.uniform_(one, -bound, bound, generator=draw)
