"""The last guard: program and module, run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnc.domain import Array, Box
from attnc.errors import Problem
from attnc.frontends.trace import SEED
from attnc.functions import Function
from attnc.program import Pointwise, Program, Step
from attnc.program.interpreter import approximate

SPREADS, POINTS, BOXED = (1.0, 8.0), 4, 12


def disagreement(model: nn.Module, program: Program, box: Box | None = None) -> Problem | None:
    """Where the module, run in float64, is off the program by more than rounding explains: near zero, and in the box.

    This catches what tracing cannot see (a flag, a clock, a patched class); it proves nothing.

    >>> from attnc.program import Affine
    >>> layer = nn.Linear(1, 1, bias=False).eval()
    >>> wrong = Program((1,), (Affine(0, 1 + layer.weight.detach().numpy()),))
    >>> disagreement(layer, wrong).where
    'the model (Linear)'
    """
    where = f"the model ({type(model).__name__})"
    noise = np.random.default_rng(0)
    parts = [noise.uniform(-s, s, (POINTS, *program.shape)) for s in SPREADS]
    if box is not None:
        corners = np.where(noise.random((BOXED, *box.shape)) < 0.5, box.lo, box.hi)
        inside = box.lo + noise.random((BOXED, *box.shape)) * (box.hi - box.lo)
        parts += [
            corners,
            inside,
            np.where(noise.random((BOXED, *box.shape)) < 0.5, corners, inside),
            box.lo[None],
            box.hi[None],
        ]
    for x in parts:
        found = _disagreement(model, program, x, where)
        if found is not None:
            return found
    return None


def _disagreement(model: nn.Module, program: Program, x: Array, where: str) -> Problem | None:
    try:
        theirs, tolerance = _run(model, x)
    except Exception as problem:
        return Problem(where, f"fails on an input of shape {x.shape}: {type(problem).__name__}: {problem}")
    with np.errstate(all="ignore"):
        ours = approximate(as_run(program), x)
    if theirs.shape != ours.shape:
        return Problem(where, f"returns the shape {theirs.shape} where the traced program has {ours.shape}")
    finite = np.isfinite(theirs) & np.isfinite(ours)
    if not finite.any():
        return Problem(where, f"overflows at every input that was tried, of size {np.abs(x).max():.3g}")
    gap = float(np.abs(theirs - ours, where=finite, out=np.zeros_like(ours)).max())
    if gap <= tolerance * (1e-3 + float(np.abs(theirs[finite]).max())):
        return None
    return Problem(
        where,
        f"disagrees with the traced program by {gap:.3g} at a random input: its forward does what tracing cannot see",
    )


def as_run(program: Program) -> Program:
    """The program with the source's own functions: the identity where a step deviates (torch's softplus)."""
    return replace(program, steps=tuple(map(_as_run, program.steps)))


def _as_run(step: Step) -> Step:
    if not isinstance(step, Pointwise) or not step.deviation:
        return step
    smooth, beyond = step.function.torch_form, step.beyond

    def form(s: Tensor) -> Tensor:
        return torch.where(s > beyond, s, smooth(s))

    return replace(step, function=Function(f"{step.function.name}_as_run", form))


def _run(model: nn.Module, x: Array) -> tuple[Array, float]:
    """The module's result and a tolerance: in float64, or, where the module insists on its own dtype, in that."""
    own = next((t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), torch.empty(0))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + 1)
        try:
            with _holding(model, lambda t: t.detach().to("cpu", torch.float64, copy=True)):
                return _numbers(model(torch.from_numpy(x.copy()))), 1e-6
        except Exception:
            with _holding(model, lambda t: t.detach().clone()):
                return _numbers(model(torch.from_numpy(x.copy()).to(own))), 1e-3


@contextmanager
def _holding(model: nn.Module, copied: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Every tensor of the module replaced by a copy, shared ones by a shared copy; put back on leaving.

    (torch.func.functional_call does so too, but leaves a copy behind where one layer stands in two places.)
    """
    copies: dict[int, Tensor] = {}
    stores: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in model.modules():
        own: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
        for store in own:
            tensors = {name: t for name, t in store.items() if isinstance(t, Tensor)}
            stores.append((store, tensors))
            for t in tensors.values():
                copies.setdefault(id(t), copied(t) if t.is_floating_point() else t.clone())
    try:
        for store, tensors in stores:
            store.update({name: copies[id(t)] for name, t in tensors.items()})
        yield
    finally:
        for store, tensors in stores:
            store.update(tensors)


def _numbers(result: object) -> NDArray[np.float64]:
    if not isinstance(result, Tensor):
        raise TypeError(f"it returns a {type(result).__name__}")
    return result.detach().to("cpu", torch.float64).numpy()
