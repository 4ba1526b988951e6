"""Records with plausible numbers, without a run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from attnc.paper.experiments import Record, Setting, settings
from attnc.paper.experiments.protocol import TRAINED

_START = {"trained": 9.0, "fine-tuned": 2e-12, "from-anchors": 8.0}
_ONE_HEAD = {
    "nearest": (1.9e-3, 2.0),
    "smooth": (1.8e-6, 3.1),
    "graded": (1.7e-10, 13.8),
    "placed": (2e-12, 0.0),  # the same at all numbers of keys and heads
}


def synthetic(runs: Iterable[Setting]) -> list[Record]:
    """A record for every setting, the same whenever it is asked for."""
    return [_record(one, random.Random(one.key)) for one in runs]


def all_records(seeds: int = 3, quick: bool = False) -> list[Record]:
    return synthetic(settings("all", seeds=seeds, quick=quick))


def _record(one: Setting, draw: random.Random) -> Record:
    trained = one.method in TRAINED
    mse = _mse(one, draw)
    start = _START[one.method] if trained else None
    curve = _curve(one, start, mse, draw) if start is not None else []
    built = None if trained else 6 * math.sqrt(mse * one.width)
    picked = weights = None
    if one.experiment == "heat-map":
        picked, weights = (0.6 + 0.1 * draw.random() if trained else 1.0), _weights(one, trained, draw)
    return Record(
        setting=one,
        mse=mse,
        largest=4 * math.sqrt(mse * one.width),
        start=start,
        curve=curve,
        bound=None if one.method == "placed" else built,
        theorem=2 * built if built is not None and one.method in ("nearest", "many-heads") else None,
        parameters=5000 + 32 * one.p,
        anchors=None if trained else one.p,
        spread=6.0 if one.experiment == "truncated" else 100.0,
        constant=5.0 if one.experiment == "truncated" else 90.0,
        weights=weights,
        picked=picked,
        cpu="AVX2",
        seconds=(20.0 if trained else 0.4) * (0.8 + 0.4 * draw.random()),
    )


def _mse(one: Setting, draw: random.Random) -> float:
    if one.method == "placed":
        draw = random.Random(one.seed)
    noise = math.exp(draw.gauss(0, 0.15 if one.method in TRAINED else 0.03))
    if one.experiment == "seq2seq":
        level = {
            "trained": 300.0 / one.heads**0.5 / (30 / one.n) ** 2,
            "fine-tuned": 2e-6,
            "from-anchors": 4.0,
        }
        return level.get(one.method, 3e-11) * noise
    width = (one.b - one.a) / 50
    if one.method == "trained":
        return 0.144 * (60 / one.p) ** 5 * one.heads**-0.8 * width**1.7 * noise
    if one.method in TRAINED:
        return {"fine-tuned": 4e-5, "from-anchors": 6e-3}[one.method] * width * noise
    if one.method == "many-heads":
        return 5.7 * ((one.n - 2) * one.heads - 1) ** -2.0 * width**2 * noise
    level, rate = _ONE_HEAD[one.method]
    return level * (59 / (one.p - 1)) ** rate * width**2 * noise


def _curve(one: Setting, start: float, end: float, draw: random.Random) -> list[float]:
    past = (math.exp(-8 * (k + 1) / one.epochs) for k in range(one.epochs))
    shown = [math.exp(math.log(end) + p * math.log(start / end) + draw.gauss(0, 0.08)) for p in past]
    return [*shown[:-1], end]


def _weights(one: Setting, trained: bool, draw: random.Random) -> list[list[list[float]]]:
    samples = []
    for _ in range(3):
        rows = []
        for _ in range(one.n):
            target, sharp = draw.uniform(-0.3, 1.3) * (one.p - 1), 0.3 if trained else 4.0
            scores = [-sharp * (min(max(target, 0), one.p - 1) - k) ** 2 for k in range(one.p)]
            total = sum(math.exp(s - max(scores)) for s in scores)
            rows.append([round(math.exp(s - max(scores)) / total, 6) for s in scores])
        samples.append(rows)
    return samples
