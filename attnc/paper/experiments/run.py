"""One run: train or build the network of a setting, and measure it on the test samples."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from attnc.arguments import check_arithmetic
from attnc.domain import Box
from attnc.errors import InputError
from attnc.heads.designs import SHARPNESS
from attnc.lower.function_to_head import head as build_head
from attnc.network.head import Head
from attnc.network.layer import AffineLayer
from attnc.network.network import Network
from attnc.paper.experiments import protocol
from attnc.paper.experiments.protocol import REACH, TRAINED, Setting, Task, TruncatedModel
from attnc.paper.truncated import Truncated, assembled, many_heads, one_head, truncated
from attnc.paper.universal import attention_softmax, two_layer

RATE = 1e-3  # of Adam
_ROWS = 256  # test samples per forward pass
_MAPS = 3  # test samples whose attention weights are stored
SMOOTH = 1.0  # c = βΔ² of "smooth": neighbouring anchors share a token
PLACED = 6  # anchors: two for each kink, two for the slope between them
GENTLE = 10  # anchors from which training starts
EPS = 1e-5  # of the networks of experiment 3
ROOM = 5  # coordinates beside x: t, the flag, κ, c, v
_SILENT = 64.0  # a masked score is this much below the largest one: a weight of e^-64


@dataclass(frozen=True)
class Record:
    """The result of one run. On one kind of processor the same versions reproduce all fields but `seconds`."""

    setting: Setting
    mse: float  # on the test samples, over all coordinates of the output
    largest: float  # the largest |error| of a test token in the coordinates of the target
    parameters: int
    spread: float  # the variance of all numbers of the test targets, per coordinate of the output
    constant: float  # the MSE of the constant output that is the mean of the training targets
    cpu: str  # the instruction set that torch used
    seconds: float  # of one core, to train or to build
    start: float | None = None  # test MSE before training
    curve: list[float] = field(default_factory=list)  # test MSE after each epoch
    bound: float | None = None  # proved for every input of the box, in the coordinates of the target
    theorem: float | None = None  # the theorem's bound for these sizes
    anchors: int | None = None  # of a built network
    weights: list[list[list[float]]] | None = None  # of heat maps: (sample, token, key)
    picked: float | None = None  # of heat maps: share of tokens with the largest weight on the nearest anchor


def run(setting: Setting) -> Record:
    """Train or build the network of the setting and measure it. Trained models are float32, as in the protocol; built networks,
    and models trained from them, are float64.

    >>> from dataclasses import replace
    >>> from attnc.paper.experiments.protocol import QUICK
    >>> placed = run(replace(QUICK.truncated, method="placed"))
    >>> placed.mse < 1e-12, placed.anchors
    (True, 6)
    """
    _warm_up()
    draw = torch.Generator().manual_seed(setting.seed)  # of data, initial weights and batches, in this order
    task = protocol.make_task(setting, draw)
    model, known = _network(setting, task, draw)
    mse, largest = test(model, task)
    outputs = setting.d if setting.experiment == "seq2seq" else setting.width
    share = task.y_test.shape[-1] / outputs  # the protocol's measure counts all coordinates of the output
    return Record(
        setting,
        mse=mse * share if isinstance(model, Network) else mse,  # a network outputs only those of the target
        largest=largest,
        spread=float(task.y_test.var(correction=0)) * share,
        constant=float((task.y_test - task.y_train.mean(0)).square().mean()) * share,
        cpu=torch.backends.cpu.get_cpu_capability(),
        **known,
        **(_heat_map(model, setting, task) if setting.experiment == "heat-map" else {}),
    )


def _network(setting: Setting, task: Task, draw: torch.Generator) -> tuple[nn.Module, dict[str, Any]]:
    """The network of the setting, and the fields of its record that do not need the test."""
    method, seq2seq, began = setting.method, setting.experiment == "seq2seq", time.process_time()
    if method == "trained":
        models = {"heat-map": protocol.HeatMapModel, "seq2seq": protocol.SequenceModel}
        return _train(models.get(setting.experiment, TruncatedModel)(setting, draw), task, setting, draw)
    if method in ("placed", *TRAINED) and not seq2seq:
        head, model = head_to_place(setting, task), TruncatedModel(setting, draw)
        known = {"seconds": time.process_time() - began, "anchors": head.key.shape[1]}
        place_anchors(model, head)
        if method != "from-anchors":
            place_functions(model, *task.target)
        if method != "placed":
            return _train(model, task, setting, draw)
        return model, {"parameters": _count(model), **known}
    net = build(setting, task)
    seconds = time.process_time() - began
    if method in TRAINED:
        use_graded_anchors(net)
        if method == "from-anchors":
            reset_affine_maps(net, draw)
        return _train(net.requires_grad_(True), task, setting, draw)
    assert net.certificate.proved
    shapes = [head.key.shape for layer in net.layers for _, head in layer.groups]
    known = {"bound": net.certificate.bound, "seconds": seconds, "parameters": _count(net)}
    known["anchors"] = sum(int(shape[0] * shape[1]) for shape in shapes)
    if seq2seq:
        return net.as_self_attention(), known
    return net, {**known, "theorem": net.theorem.bound if net.theorem else None}


def _train(
    model: nn.Module, task: Task, setting: Setting, draw: torch.Generator
) -> tuple[nn.Module, dict[str, Any]]:
    """Train in place with the protocol's optimiser. The seconds exclude the tests after each epoch."""
    seconds, start, curve = 0.0, test(model, task)[0], []
    x, y = task.x_train.to(_dtype(model)), task.y_train.to(_dtype(model))
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(setting.epochs):
        began = time.process_time()
        for rows in torch.split(torch.randperm(len(x), generator=draw), setting.batch):
            optimiser.zero_grad()
            torch.autograd.backward(square_error(model(x[rows]), y[rows]))
            optimiser.step()
        seconds += time.process_time() - began
        curve.append(test(model, task)[0])
    return model, {"parameters": _count(model), "seconds": seconds, "start": start, "curve": curve}


def square_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean over all coordinates of the output; the target is 0 in the coordinates that it lacks."""
    inside, outside = output[..., : target.shape[-1]] - target, output[..., target.shape[-1] :]
    return (inside.square().sum() + outside.square().sum()) / output.numel()


def test(model: nn.Module, task: Task) -> tuple[float, float]:
    """The MSE on the test samples, and the largest |error| in the coordinates of the target, both computed in float64."""
    dtype = _dtype(model)
    with torch.no_grad():
        output = torch.cat([model(x.to(dtype)).double() for x in torch.split(task.x_test, _ROWS)])
    inside = output[..., : task.y_test.shape[-1]] - task.y_test
    return float(square_error(output, task.y_test)), float(inside.abs().max())


def _heat_map(model: nn.Module, setting: Setting, task: Task) -> dict[str, Any]:
    """Attention weights of the first test samples, with six digits, and how often the largest is on the nearest anchor."""
    with torch.no_grad():
        if isinstance(model, Network):
            (weights,) = model.attention(task.x_test).values()
        else:
            assert isinstance(model, protocol.HeatMapModel)
            weights = model.weights(model.tokens(task.x_test.float())).double()
    anchors = torch.linspace(setting.a, setting.b, setting.p, dtype=torch.float64)
    nearest = (task.y_test - anchors).abs().argmin(-1)
    maps = [[[round(w, 6) for w in row] for row in one] for one in weights[:_MAPS].tolist()]
    return {"weights": maps, "picked": float((weights.argmax(-1) == nearest).double().mean())}


def _dtype(model: nn.Module) -> torch.dtype:
    return next((one.dtype for one in model.parameters()), torch.float64)


def _count(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


@cache
def _warm_up() -> None:
    """Do what a process does once, so that no run's time includes it: torch's imports and the check of the arithmetic."""
    torch.optim.Adam([nn.Parameter(torch.zeros(1))]).step()
    check_arithmetic("float64", network=True)


def build(setting: Setting, task: Task) -> Network:
    """Experiment 1: clip(<w_i, x_i> + t_i, a, b) with p anchors, or with H heads of n keys. Experiment 3: the network as
    attention, with a proved error of at most 1e-5."""
    a, b, method = setting.a, setting.b, setting.method
    if setting.experiment == "seq2seq":
        model, box = target_network(task), Box(0, 1, shape=(setting.n, setting.d))
        if method == "softmax":
            return attention_softmax(model, box, eps=EPS)
        return two_layer(model, box, eps=EPS, layout="tokens" if method == "tokens" else "heads")
    (W, t), domain = task.target, (-REACH, REACH)
    if method == "many-heads":
        return many_heads(W, t, a, b, heads=setting.heads, domain=domain)
    if method == "graded":
        return assembled(*_clip_head(setting, task, "graded", setting.p))
    sharpness = SMOOTH if method == "smooth" else SHARPNESS
    return one_head(W, t, a, b, anchors=setting.p, domain=domain, sharpness=sharpness)


def head_to_place(setting: Setting, task: Task) -> Head:
    """A head whose anchors fit into the p - n extra tokens of the model that is trained.

    Six tuned anchors are as accurate as many, but their numbers are large, and Adam's steps of 1e-3 destroy them. Training
    starts from ten graded anchors instead."""
    design, most = ("tuned", PLACED) if setting.method == "placed" else ("graded", GENTLE)
    return _clip_head(setting, task, design, min(most, setting.p - setting.n))[1]


def _clip_head(setting: Setting, task: Task, design: str, p: int) -> tuple[Truncated, Head]:
    W, t = task.target
    given = truncated(W, t, setting.a, setting.b, (-REACH, REACH), torch.float64)
    on = (given.interval.lo, given.interval.hi)
    return given, build_head(given.function, domain=on, anchors=p, design=design, dtype=torch.float64)


def target_network(task: Task) -> nn.Sequential:
    """W2 relu(W1 vec X + b1) + b2 as a torch module."""
    inner, outer = (nn.Linear(*weight.T.shape) for weight in task.target[::2])
    parts = (nn.Flatten(), inner, nn.ReLU(), outer, nn.Unflatten(1, tuple(task.x_test.shape[1:])))
    model = nn.Sequential(*parts).double().eval().requires_grad_(False)
    for own, given in zip(model.parameters(), task.target, strict=True):
        own.copy_(given)
    return model


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
            for one in stage.parameters():
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
    """Write the anchors of a head into the model, which takes the head's dtype. The linear functions stay as they are.

    Data token i holds w_i ∘ x_i in the first d coordinates, t_i in the next and the flag 1 in the one after; an extra token holds
    κ_k, c_k and v_k of its anchor in the three coordinates after those. The first head has

        query (α s_i + ω, 1),    key (κ_k, c_k) of an anchor, (0, -M) of any other token,    value v_k of an anchor, else 0,

    so its weights over the extra tokens are those of the head, and other tokens have weight e^-64 or less. The other heads and
    coordinates keep their numbers. The output map ignores them at first; training may use them."""
    tokens, heads, count = model.tokens, model.attention.heads, head.key.shape[1]
    d, (free, width) = tokens.projection.in_features, tokens.extra.shape
    if head.heads != 1 or head.is_gated or count > free or width < max(d + ROOM, 2 * heads):
        needs = f"one head of at most {free} anchors, width >= {d + ROOM} and width >= 2 heads"
        given = f"{head.heads} heads of {count} anchors for a model with width={width} and heads={heads}"
        raise InputError(f"the model needs {needs}: got {given}")
    model.to(head.key.dtype)
    silence = _silence(head)
    gains = _gains(head, silence)
    tokens.projection.weight[d + 1 :], tokens.projection.bias[d + 1 :] = 0.0, 0.0
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
