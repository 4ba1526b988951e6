"""One run: train or build a network, and measure it on the test samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from attnc.arguments import check_arithmetic
from attnc.network.network import Network
from attnc.paper.experiments import building
from attnc.paper.experiments.models import (
    HeatMapModel,
    SequenceModel,
    Task,
    TruncatedModel,
    generator,
    make_task,
)  # fmt: skip
from attnc.paper.experiments.settings import TRAINED, Setting

RATE = 1e-3  # of Adam
_ROWS = 256  # test samples per forward pass
_MAPS = 3  # test samples whose attention weights are stored
_MODELS = {"truncated": TruncatedModel, "heat-map": HeatMapModel, "seq2seq": SequenceModel}


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
    curve: tuple[float, ...] = ()  # test MSE after each epoch
    bound: float | None = None  # proved for every input of the box, in the coordinates of the target
    theorem: float | None = None  # the theorem's bound for these sizes
    anchors: int | None = None  # of a built network
    weights: tuple[tuple[tuple[float, ...], ...], ...] | None = None  # of heat maps: (sample, token, key)
    picked: float | None = None  # of heat maps: share of tokens with the largest weight on the nearest anchor


def run(setting: Setting) -> Record:
    """Train or build the network of the setting and measure it. Trained models are float32, as in the protocol; built networks,
    and models trained from them, are float64.

    >>> from dataclasses import replace
    >>> from attnc.paper.experiments.settings import QUICK
    >>> placed = run(replace(QUICK.truncated, method="placed"))
    >>> placed.mse < 1e-12, placed.anchors
    (True, 6)
    """
    _warm_up()
    draw = generator(setting)
    task = make_task(setting, draw)
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
    if setting.method == "trained":
        return _train(_MODELS[setting.experiment](setting, draw), task, setting, draw)
    began, seq2seq = time.process_time(), setting.experiment == "seq2seq"
    if setting.method in ("placed", *TRAINED) and not seq2seq:
        head, model = building.head_to_place(setting, task), TruncatedModel(setting, draw)
        seconds = time.process_time() - began
        building.place_anchors(model, head)
        if setting.method != "from-anchors":
            building.place_functions(model, *task.target)
        if setting.method != "placed":
            return _train(model, task, setting, draw)
        return model, {"parameters": _count(model), "anchors": head.key.shape[1], "seconds": seconds}
    net = building.build_sequence(setting, task) if seq2seq else building.build(setting, task)
    seconds = time.process_time() - began
    if setting.method in TRAINED:
        building.use_graded_anchors(net)
        if setting.method == "from-anchors":
            building.reset_affine_maps(net, draw)
        return _train(net.requires_grad_(True), task, setting, draw)
    assert net.certificate.proved
    shapes = [head.key.shape for layer in net.layers for _, head in layer.groups]
    known: dict[str, Any] = {"bound": net.certificate.bound, "seconds": seconds, "parameters": _count(net)}
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
    return model, {"parameters": _count(model), "seconds": seconds, "start": start, "curve": tuple(curve)}


def square_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean over all coordinates of the output; the target is 0 in the coordinates that it lacks.

    >>> square_error(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0]])).item()
    2.0
    """
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
            assert isinstance(model, HeatMapModel)
            weights = model.weights(model.tokens(task.x_test.float())).double()
    anchors = torch.linspace(setting.a, setting.b, setting.p, dtype=torch.float64)
    nearest = (task.y_test - anchors).abs().argmin(-1)
    maps = tuple(tuple(tuple(round(w, 6) for w in row) for row in one) for one in weights[:_MAPS].tolist())
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
