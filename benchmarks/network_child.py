"""One measurement in a process of its own: `compile` or `forward` of one layer. Prints one JSON object.

    python network_child.py compile DTYPE EPS FEATURES HIDDEN FILE
    python network_child.py forward DTYPE ENGINE FEATURES HIDDEN TOKENS FILE

ENGINE is columns, dense, or original: the module that FILE was compiled from.
"""

from __future__ import annotations

import gc
import json
import resource
import sys

import torch
from network_cases import DTYPES, THREADS, Record, about, beside, box_of, compiled, mlp

import attnc

REPEATS = 3


def main() -> None:
    verb, dtype, how, features, hidden, *rest = sys.argv[1:]
    sizes = int(features), int(hidden)
    done = {"compile": compile_, "forward": forward}[verb](dtype, how, sizes, *rest)
    print(json.dumps(done))


def compile_(dtype: str, eps: str, sizes: tuple[int, int], path: str) -> Record:
    model = mlp((sizes[0], sizes[1], sizes[0]), "gelu")
    net, times = compiled(model, box_of(model), float(eps), dtype)
    net.save(path)
    return {**about(net), **times, "eps": float(eps), "peak_mib": peak()}


def forward(dtype: str, engine: str, sizes: tuple[int, int], tokens: str, path: str) -> Record:
    """What the first forward takes in memory above what was there; then the time, beside the original's."""
    model = mlp((sizes[0], sizes[1], sizes[0]), "gelu").to(DTYPES[dtype])
    net = attnc.load(path)
    assert isinstance(net, attnc.Network)
    if engine != "original":
        net.engine = engine
    x = (
        torch.rand(int(tokens), sizes[0], generator=torch.Generator().manual_seed(0), dtype=DTYPES[dtype]) * 2
        - 1
    )
    first = model if engine == "original" else net
    torch.set_num_threads(THREADS)
    gc.collect()
    forget_peak()
    before = resident()
    with torch.no_grad():
        first(x)
    added = peak() - before
    record = {"dtype": dtype, "engine": engine, "tokens": int(tokens), "added_mib": added}
    if engine != "original":
        record |= beside(net, model, x, REPEATS)
    return record


def forget_peak() -> None:
    """Let the peak start anew from what is held now. Where Linux does not allow it, the peak of loading stays in it, and
    the figure is too large rather than too small."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def peak() -> float:
    """MiB: the most that was held since `forget_peak`."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident() -> float:
    """MiB held now."""
    return _status("VmRSS") or 0.0


def _status(name: str) -> float | None:
    try:
        with open("/proc/self/status") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return None
    return int(lines[name].split()[0]) / 1024


if __name__ == "__main__":
    main()
