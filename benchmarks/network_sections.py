"""The sections of the benchmark of networks, each a list of plain records."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from network_cases import (
    ACTIVATIONS,
    DTYPES,
    Record,
    about,
    beside,
    box_of,
    clocked,
    compiled,
    largest_error,
    mlp,
    steps_up,
)
from pages import ROOT

import attnc

Step = Callable[[str], None]
Records = list[Record]

MLP = (16, 64, 64, 4)
MLP_EPS = {"float64": 1e-4, "float32": 1e-3}
POINTS, CLIMBERS, ASCENT = 20_000, 128, 40
# GPT-2's feed-forward block
FEATURES, HIDDEN, TOKENS = 768, 3072, 1024
LAYER_EPS = {"float64": 1e-3, "float32": 1e-1}
WIDTHS = (64, 512, 4096)
DEPTHS = (1, 2, 3, 4, 5, 6)
GROWTH_EPS = 1e-4
BATCH, REPEATS = 4096, 5


def mlps(quick: bool, step: Step) -> Records:
    """Bound, its terms, the largest error found, and how the one comes to be so much larger than the other."""
    records = []
    for dtype, eps in MLP_EPS.items():
        for activation in ("tanh",) if quick else ACTIVATIONS:
            step(f"{activation} {dtype}")
            model = mlp(MLP, activation)
            net, times = compiled(model, box_of(model), eps, dtype)
            with clocked(times, "verify"):
                verdict = attnc.verify(net)
            if not verdict:
                raise SystemExit(f"verify does not confirm a network it should: {verdict}")
            step(f"{activation} {dtype}: largest error")
            seen, x, output = largest_error(net, POINTS // (10 if quick else 1), CLIMBERS, ASCENT)
            chain = steps_up(net, x, output)
            records.append({"activation": activation, "eps": eps, **about(net), **times, **seen, **chain})
    return records


def digits(quick: bool, step: Step) -> Records:
    """examples/digits.py, with its measured logit error."""
    sys.path.insert(0, str(ROOT / "examples"))
    from digits import EPS, run

    step("training")
    records = []
    for result in run():
        step(f"{result.name} {result.dtype}")
        seen, _, _ = largest_error(result.net, POINTS // 10, CLIMBERS // 4, ASCENT // (4 if quick else 1))
        records.append(
            {
                "model": result.name,
                "eps": EPS[result.dtype],
                **about(result.net),
                **asdict(result.agreement),
                **seen,
                "compile_seconds": result.seconds,
            }
        )
    return records


def layer(quick: bool, step: Step) -> Records:
    """One layer, everything in fresh processes: compile; then memory and time of a forward pass by each engine."""
    features, hidden = (FEATURES // 8, HIDDEN // 8) if quick else (FEATURES, HIDDEN)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype, eps in LAYER_EPS.items():
            path = str(Path(folder) / f"{dtype}.safetensors")
            step(f"compile {dtype}")
            made = _child("compile", dtype, eps, features, hidden, path)
            runs = {}
            for engine in ("original", "softmax", "sdpa"):
                step(f"forward {dtype} {engine}")
                runs[engine] = _child("forward", dtype, engine, features, hidden, TOKENS, path)
            records.append({"features": features, "hidden": hidden, **made, "runs": runs})
    return records


def _child(*arguments: object) -> Record:
    script = Path(__file__).with_name("network_child.py")
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))} failed:\n{done.stderr}")
    found: Record = json.loads(done.stdout)
    return found


def growth(quick: bool, step: Step) -> Records:
    """Compile time against width, and against depth at width 64."""
    most = 2 if quick else None
    axes = {
        "width": [(16, w, w, 4) for w in WIDTHS[:most]],
        "depth": [(16, *(64,) * depth, 4) for depth in DEPTHS[:most]],
    }
    records = []
    for activation in ("gelu", "tanh"):
        done: dict[tuple[int, ...], Record] = {}
        for axis, shapes in axes.items():
            for widths in shapes:
                step(f"{activation} {'-'.join(map(str, widths))}")
                if widths not in done:
                    model = mlp(widths, activation)
                    net, times = compiled(model, box_of(model), GROWTH_EPS, "float64")
                    done[widths] = {**about(net), **times, "eps": GROWTH_EPS, "widths": list(widths)}
                records.append({"axis": axis, "activation": activation, **done[widths]})
    return records


def engines(quick: bool, step: Step) -> Records:
    """Columns and dense beside the original, in both dtypes."""
    records = []
    for activation in ("tanh",) if quick else ACTIVATIONS:
        for dtype, eps in MLP_EPS.items():
            step(f"{activation} {dtype}")
            model = mlp(MLP, activation)
            net, _ = compiled(model, box_of(model), eps, dtype)
            model = model.to(DTYPES[dtype])
            x = (
                torch.rand(BATCH, MLP[0], generator=torch.Generator().manual_seed(0), dtype=DTYPES[dtype]) * 2
                - 1
            )
            runs = {}
            for engine in ("softmax", "sdpa"):
                net.engine = engine
                runs[engine] = beside(net, model, x, REPEATS)
            record = {"activation": activation, "eps": eps, "batch": BATCH, **about(net), "runs": runs}
            records.append(record)
    return records


def warm_up() -> None:
    """What is loaded and probed once must not be charged to the first call."""
    model = mlp((2, 3, 1), "tanh")
    for dtype in DTYPES:
        attnc.verify(compiled(model, box_of(model), 1e-2, dtype)[0])
