"""The networks that are measured, clocks, and what is measured of a network: its certificate, and the largest error found."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import attnc
from attnc.lower import function_to_head, program_to_network
from attnc.lower.witness import ascend, candidates, proved, within
from attnc.program import Program
from attnc.program.evaluate import differentiable, exact
from attnc.prove import slopes
from attnc.prove.bounds import HeadErrors
from attnc.prove.compose import compose

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
THREADS = 2
Record = dict[str, Any]


def mlp(widths: tuple[int, ...], activation: str) -> nn.Sequential:
    """torch's default initialisation of seed 0, in float32."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for n, m in pairwise(widths):
        parts += [nn.Linear(n, m), ACTIVATIONS[activation]()]
    return nn.Sequential(*parts[:-1]).eval()


def box_of(model: nn.Sequential, far: float = 1.0) -> attnc.Box:
    return attnc.Box(-far, far, shape=(model[0].in_features,))


def forget() -> None:
    """What was made for other networks must not hide work."""
    function_to_head._cache.clear()
    slopes._kept.cache_clear()


@contextmanager
def clocked(times: Record, name: str) -> Iterator[None]:
    """Wall seconds and CPU seconds, added to `times`."""
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        times[f"{name}_seconds"] = times.get(f"{name}_seconds", 0.0) + time.perf_counter() - wall
        times[f"{name}_cpu"] = times.get(f"{name}_cpu", 0.0) + time.process_time() - cpu


def compiled(model: nn.Module, box: attnc.Box, eps: float, dtype: str) -> tuple[attnc.Network, Record]:
    """The network, and the seconds that it took: in all, for its heads, for the search of a witness."""
    times: Record = {"heads_seconds": 0.0, "heads_cpu": 0.0}
    forget()

    def timed(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any) -> Any:
            with clocked(times, name):
                return run(*args)

        return inner

    search = patch.object(program_to_network, "head_within", timed("heads", program_to_network.head_within))
    witness = patch.object(program_to_network, "worst", timed("witness", program_to_network.worst))
    with search, witness, clocked(times, "compile"):
        net = attnc.compile(model, domain=box, eps=eps, dtype=DTYPES[dtype])
    return net, times


def about(net: attnc.Network) -> Record:
    """What the certificate says, and the sizes."""
    c = net.certificate
    return {
        "dtype": c.dtype,
        "bound": c.bound,
        "approximation": c.approximation,
        "rounding": c.rounding,
        "witness": c.witness.error,
        "anchors": [sum(len(head.anchors) for head in layer) for layer in net.layers],
        "groups": [len(layer) for layer in net.layers],
        "designs": [head.facts["design"] for layer in c.parts("layer") for head in layer.children],
        "intervals": [[h.interval.lo, h.interval.hi] for layer in c.parts("layer") for h in layer.children],
        "parameters": sum(p.numel() for p in net.parameters()),
        "anchor_parameters": sum(p.numel() for layer in net.layers for p in layer.parameters()),
        "source_parameters": net.program.parameters,
    }


def largest_error(net: attnc.Network, points: int, climbers: int, steps: int) -> tuple[Record, Tensor, int]:
    """The largest |network - program| found: corners, random points, gradient ascent from the worst of them.

    The error of the worst is evaluated from below in 128 bits; with it come its input and output."""
    box, program = net.certificate.box, net.program
    dtype = next(net.parameters()).dtype
    x = within(candidates(box, points, seed=1), box, dtype)
    best = _errors(net, x).argsort(descending=True)[:climbers]
    risen = within(ascend(net, program, x[best].double(), box, steps), box, dtype)
    witness = (
        torch.tensor(net.certificate.witness.input, dtype=torch.float64).reshape(1, *box.shape).to(dtype)
    )
    pool = torch.cat([x[best], risen, witness])
    chosen = pool[_errors(net, pool).argsort(descending=True)[:climbers]]
    with torch.no_grad():
        executed = net(chosen)
    found = proved(program, net.numbers(), chosen.double().numpy(), executed.double().numpy())
    seen = {"largest": found.error, "points": len(x) + len(risen)}
    if math.isfinite(net.certificate.bound / max(found.error, 5e-324)):
        seen["quality"] = net.certificate.bound / found.error
    return seen, torch.tensor(found.input, dtype=torch.float64).to(dtype), found.output


def _errors(net: attnc.Network, x: Tensor) -> Tensor:
    with torch.no_grad():
        parts = [
            (net(part).double() - differentiable(net.program, part.double())).abs().flatten(1).amax(1)
            for part in x.split(4096)
        ]
    return torch.cat(parts)


def steps_up(net: attnc.Network, x: Tensor, output: int) -> Record:
    """From the error at x to the bound. The errors e of the last layer's neurons there reach the output through its weights
    w: what they make of it if no two of them cancel, Σ |w||e|, and if each is as large as what is proved of it."""
    layer, program = net.layers[-1], net.program
    before = Program(program.shape, program.steps[: layer.value])
    left: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, made: left.append(made))
    with torch.no_grad():
        net(x[None])
    hook.remove()
    meant = exact(before, x.double().numpy(), 128)
    executed = left[0][0].double().tolist()
    e = np.array([float((y - ball).mid()) for y, ball in zip(executed, meant, strict=True)])
    w = np.abs(program.steps[-1].tensors()["weight"][output].astype(np.float64))
    layers, values = net.numbers().layers, [claim.facts["value"] for claim in net.certificate.parts("layer")]
    bounds = {value: _neuron_bounds(net, value) for value in values}
    known = compose(program, layers, net.certificate.box, bounds, net.certificate.dtype)
    return {"one_sign": float(w @ np.abs(e)), "all_at_bound": float(w @ known[layer.value].error)}


def _neuron_bounds(net: attnc.Network, value: int) -> HeadErrors:
    """What is proved of every neuron's head."""
    (layer,) = (layer for layer in net.layers if layer.value == value)
    found = np.zeros(net.program.shapes[value])
    for neurons, head in layer.groups:
        found[slice(None) if neurons is None else neurons.numpy()] = head.certificate.bound
    return HeadErrors(found, found)


def beside(net: attnc.Network, model: nn.Module, x: Tensor, repeats: int) -> Record:
    """A forward pass of the network and of the original on one thread and on two: seconds and ratios."""
    found: Record = {}
    before = torch.get_num_threads()
    for name, threads in (("one", 1), ("two", THREADS)):
        torch.set_num_threads(threads)
        pairs = _in_turn(lambda: net(x), lambda: model(x), repeats)
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        found[f"ratio_{name}"] = [ratios[0], statistics.median(ratios), ratios[-1]]
        found[f"seconds_{name}"] = statistics.median(ours for ours, _ in pairs)
        found[f"original_{name}"] = statistics.median(theirs for _, theirs in pairs)
    torch.set_num_threads(before)
    return found


def _in_turn(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int
) -> list[tuple[float, float]]:
    """Wall seconds of both, in turn so that both meet the same machine; the first pair warms up."""
    with torch.no_grad():
        return [(_wall(ours), _wall(theirs)) for _ in range(repeats + 1)][1:]


def _wall(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
