"""One run: train or build, and measure on the test samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

from attnc.lower.function_to_head import check_arithmetic
from attnc.network.network import Network
from attnc.paper.experiments import building
from attnc.paper.experiments.data import Data, Hidden, Truncated, hidden, stream, truncated
from attnc.paper.experiments.models import HeatMapModel, SequenceModel, TruncatedModel
from attnc.paper.experiments.placing import place, place_anchors
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.settings import Setting
from attnc.paper.experiments.training import test, train

Built = TypeVar("Built")
_MAPS = 3  # test samples whose attention is kept


@dataclass(frozen=True)
class _Made:
    """What is run on the test samples, and what is known of it beside its error there."""

    model: nn.Module
    dtype: torch.dtype
    parameters: int
    seconds: float
    start: float | None = None
    curve: tuple[float, ...] = ()
    bound: float | None = None
    theorem: float | None = None
    anchors: int | None = None


def run(setting: Setting) -> Record:
    """Train or build as the setting says; the same setting gives the same record, but for the seconds.

    Trained models are float32, as the protocol's; what is built, and what starts from it, float64. Seconds are those of one core.

    >>> from dataclasses import replace
    >>> from attnc.paper.experiments.settings import QUICK
    >>> placed = run(replace(QUICK.truncated, method="placed"))
    >>> placed.mse < 1e-12, placed.anchors
    (True, 6)
    """
    _warm()
    draw = stream(setting)
    if setting.experiment == "seq2seq":
        few = hidden(setting, draw)
        return _record(setting, few.data, _sequence(setting, few, draw))
    task = truncated(setting, draw)
    return _record(setting, task.data, _truncated(setting, task, draw))


def _truncated(setting: Setting, task: Truncated, draw: torch.Generator) -> _Made:
    """Experiments 1 and 2."""
    if setting.experiment == "heat-map" and setting.method == "trained":
        return _trained(HeatMapModel(setting, draw), task.data, setting, draw)
    model = TruncatedModel(setting, draw)
    if setting.method == "trained":
        return _trained(model, task.data, setting, draw)
    if setting.method not in ("placed", "fine-tuned", "from-anchors"):
        return _of_network(*_timed(lambda: building.build(setting, task)))
    head, seconds = _timed(lambda: building.to_place(setting, task))
    if setting.method == "from-anchors":
        place_anchors(model, head)
        return _trained(model, task.data, setting, draw)
    place(model, task.W, task.t, head)
    if setting.method == "fine-tuned":
        return _trained(model, task.data, setting, draw)
    return _Made(model, torch.float64, _count(model), seconds, anchors=head.key.shape[1])


def _sequence(setting: Setting, task: Hidden, draw: torch.Generator) -> _Made:
    """Experiment 3."""
    if setting.method == "trained":
        return _trained(SequenceModel(setting, draw), task.data, setting, draw)
    net, seconds = _timed(lambda: building.build_sequence(setting, task))
    if setting.method in ("tokens", "heads", "softmax"):
        return replace(_of_network(net, seconds), model=net.as_self_attention(), theorem=None)
    building.calm(net)
    if setting.method == "from-anchors":
        building.forget_maps(net, draw)
    return _trained(net.requires_grad_(True), task.data, setting, draw)


def _trained(model: nn.Module, data: Data, setting: Setting, draw: torch.Generator) -> _Made:
    dtype = next(model.parameters()).dtype
    start = test(model, data, dtype)[0]
    curve, seconds = train(model, data, setting, draw)
    return _Made(model, dtype, _count(model), seconds, start, curve)


def _count(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def _timed(build: Callable[[], Built]) -> tuple[Built, float]:
    began = time.process_time()
    built = build()
    return built, time.process_time() - began


@cache
def _warm() -> None:
    """What a process does but once is on no clock: imports of torch and the trial of the machine's arithmetic."""
    model = nn.Linear(1, 1, device="meta").to_empty(device="cpu")
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 1, dtype=model.weight.dtype)).sum().backward()
    optimiser.step()
    check_arithmetic("float64", network=True)


def _of_network(net: Network, seconds: float) -> _Made:
    assert net.certificate.proved
    keys = [head.key.shape for layer in net.layers for _, head in layer.groups]
    anchors = sum(int(shape[0] * shape[1]) for shape in keys)
    theorem = None if net.theorem is None else net.theorem.bound
    bound = net.certificate.bound
    return _Made(net, torch.float64, _count(net), seconds, bound=bound, theorem=theorem, anchors=anchors)


def _record(setting: Setting, data: Data, made: _Made) -> Record:
    """Networks that are built write the target's coordinates alone: the others, which the protocol's measure counts, are 0."""
    mse, largest = test(made.model, data, made.dtype)
    target = data.y_test.shape[-1]
    outputs = setting.d if setting.experiment == "seq2seq" else setting.width
    share = target / outputs
    weights = _weights(made.model, data) if setting.experiment == "heat-map" else None
    return Record(
        setting,
        mse=mse * share if isinstance(made.model, Network) else mse,
        largest=largest,
        start=made.start,
        curve=made.curve,
        bound=made.bound,
        theorem=made.theorem,
        parameters=made.parameters,
        anchors=made.anchors,
        spread=float(data.y_test.var(correction=0)) * share,
        constant=float((data.y_test - data.y_train.mean(0)).square().mean()) * share,
        weights=None if weights is None else _nested(weights[:_MAPS]),
        picked=None if weights is None else _picked(weights, setting, data),
        cpu=torch.backends.cpu.get_cpu_capability(),
        seconds=made.seconds,
    )


def _weights(model: nn.Module, data: Data) -> Tensor:
    """Attention of the test tokens over the keys: (samples, n, p)."""
    with torch.no_grad():
        if isinstance(model, Network):
            (weights,) = model.attention(data.x_test).values()
            return weights
        assert isinstance(model, HeatMapModel)
        return model.weights(data.x_test.float()).double()


def _picked(weights: Tensor, setting: Setting, data: Data) -> float:
    """How often the heaviest key is the anchor nearest to the target."""
    anchors = torch.linspace(setting.a, setting.b, setting.p, dtype=torch.float64)
    nearest = (data.y_test - anchors).abs().argmin(-1)
    return float((weights.argmax(-1) == nearest).double().mean())


def _nested(weights: Tensor) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Six digits are enough for a picture."""
    return tuple(tuple(tuple(round(w, 6) for w in row) for row in one) for one in weights.tolist())
