"""disagreement: a module compared with its program at chosen inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnc.domain import Array, Box
from attnc.errors import Problem
from attnc.frontends.probe_points import probe_points
from attnc.frontends.problems import model_dtype
from attnc.functions import Function
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program, Step
from attnc.program.evaluate import values

SINGLES = 6  # points that are also run in a batch of one
LARGEST = {torch.float64: 1e100, torch.float32: 1e30}  # larger numbers are not compared
OVERFLOWS = 80.0  # smaller numbers do not overflow, not even in an exponential of float32
# relative to the largest sum of a step at a point, and to that sum carried through all steps
TOLERANCES = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-3, 1e-6)}


@dataclass(frozen=True)
class _Way:
    """A way to call a module."""

    dtype: torch.dtype
    grad: bool
    strided: bool
    special: bool = False  # with gradients, of the input too; without them, in inference mode

    def __str__(self) -> str:
        layout = "strided" if self.strided else "contiguous"
        mode = "with gradients" if self.grad else "without gradients"
        special = ("of the input too, " if self.grad else "in inference mode, ") if self.special else ""
        return f"in {self.dtype}, {mode}, {special}on {layout} input"


def disagreement(model: nn.Module, program: Program, box: Box | None = None) -> Problem | None:
    """Where the module differs from the program by more than rounding explains, or None.

    It runs at points that are drawn anew each time (see `probe_points`), in float64 and in its own dtype, with and
    without gradients, on contiguous and on strided input, in batches and alone. This finds what the recording of the
    module cannot show (a flag, a clock); it proves nothing.

    >>> layer = nn.Linear(1, 1, bias=False).eval()
    >>> wrong = Program((1,), (Affine(0, 1 + layer.weight.detach().numpy()),))
    >>> disagreement(layer, wrong).where
    'the model (Linear)'
    """
    where = f"the model ({type(model).__name__})"
    draw = np.random.default_rng()
    x = probe_points(program, box, draw)
    failure, compared = None, False
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), np.errstate(all="ignore"):
        expected = _expected(as_run(program), x)
        if not np.isfinite(expected[0]).any():
            return Problem(where, f"overflows at every input that was tried, of size {np.abs(x).max():.3g}")
        for dtype in dict.fromkeys((torch.float64, model_dtype(model))):
            with _in_dtype(model, dtype):
                failure = failure or _failure(model, _Way(dtype, False, False), x[:1])
                usable = [way for way in _ways(dtype) if _failure(model, way, x[:1]) is None]
                if _Way(dtype, False, False) not in usable:
                    continue
                for way, rows in _calls(usable, len(x), draw, thorough=not compared):
                    reason = _difference(model, way, x[rows], *(part[rows] for part in expected))
                    if reason is not None:
                        return Problem(where, reason)
                compared = True
    return None if compared else Problem(where, f"fails on an input of shape {x[:1].shape}: {failure}")


def _ways(dtype: torch.dtype) -> list[_Way]:
    return [
        _Way(dtype, grad, strides, special)
        for grad in (False, True)
        for strides in (False, True)
        for special in (False, True)
    ]


def _calls(
    usable: list[_Way], points: int, draw: np.random.Generator, *, thorough: bool
) -> Iterator[tuple[_Way, NDArray[np.intp]]]:
    """Ways to call the module, each with the points of a batch: all points, single ones, and some by twos and threes."""
    every = np.arange(points)
    if not thorough:
        yield usable[draw.integers(len(usable))], every
        return
    for way in usable:
        if way.grad == way.strided:
            yield way, every
    for size in [1] * SINGLES + [2, 3]:
        yield usable[draw.integers(len(usable))], draw.choice(every, size, replace=False)


def _expected(program: Program, x: Array) -> tuple[Array, Array, Array]:
    """The output of the program at n points, and what its rounding is relative to: (n,) the largest sum of absolute values in
    any step, and (n,) that sum carried through all steps."""
    with torch.no_grad():
        found = values(program, torch.from_numpy(x))
        grown = [found[0].abs()]
        local = found[0].abs().flatten(1).amax(1)
        for i, step in enumerate(program.steps):
            grown.append(torch.maximum(_magnitude(step, [grown[j] for j in step.inputs]), found[i + 1].abs()))
            here = _magnitude(step, [found[j].abs() for j in step.inputs])
            local = torch.maximum(local, torch.maximum(here, found[i + 1].abs()).flatten(1).amax(1))
    return found[-1].numpy(), local.numpy(), grown[-1].flatten(1).amax(1).numpy()


def _magnitude(step: Step, x: list[Tensor]) -> Tensor:
    """The step on absolute values, without cancellation."""
    if isinstance(step, Affine):
        y = x[0] @ _size(step.weight).T
        return y if step.bias is None else y + _size(step.bias)
    if isinstance(step, BatchNorm):
        scale = _size(step.gain) / torch.sqrt(_size(step.variance) + step.epsilon)
        return (x[0] + _size(step.mean)) * scale + _size(step.shift)
    if isinstance(step, Combine):
        return torch.stack([abs(c) * v for c, v in zip(step.coefficients, x, strict=True)]).sum(0)
    return x[0].reshape(len(x[0]), *step.shape(tuple(x[0].shape[1:])))


def _size(numbers: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.abs(numbers.astype(np.float64)))


def _difference(model: nn.Module, way: _Way, x: Array, ours: Array, local: Array, grown: Array) -> str | None:
    """Why the module's outputs are not those of the program, or None if rounding explains the difference."""
    try:
        theirs = _run(model, way, x)
    except Exception as problem:
        return f"fails on an input of shape {x.shape}: {type(problem).__name__}: {problem}"
    if theirs.shape != ours.shape:
        return f"returns the shape {theirs.shape}, and its program {ours.shape}"
    here, carried = TOLERANCES[way.dtype]
    allowed = here * local + carried * grown
    size = np.broadcast_to(local.reshape(-1, *([1] * (ours.ndim - 1))), ours.shape)
    comparable = np.where(np.isfinite(theirs), size < LARGEST[way.dtype], size < OVERFLOWS)
    gap = np.where(comparable, np.abs(theirs - ours), 0.0)
    off = ~(gap.reshape(len(gap), -1).max(1) <= allowed)
    if not off.any():
        return None
    return (
        f"differs from the recorded operations by {float(gap[off].max()):.3g}, {way}, in a batch of {len(x)}: its forward "
        "depends on something else"
    )


def as_run(program: Program) -> Program:
    """The program with torch's own functions: the identity where softplus exceeds its threshold."""

    def replaced(step: Step) -> Step:
        if not isinstance(step, Pointwise) or not step.deviation:
            return step
        smooth, beyond = step.function.torch_form, step.beyond
        own = Function(f"{step.function.name}_as_run", lambda s: torch.where(s > beyond, s, smooth(s)))
        return replace(step, function=own)

    return replace(program, steps=tuple(map(replaced, program.steps)))


def fails(model: nn.Module, x: Tensor, grad: bool) -> bool:
    """Whether calling the module on x, as it is, raises an error."""
    way = _Way(x.dtype, grad, not x.is_contiguous(), grad and x.requires_grad)
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), _in_dtype(model, x.dtype):
        return _failure(model, way, x.detach().cpu().to(torch.float64).numpy()) is not None


def _failure(model: nn.Module, way: _Way, x: Array) -> str | None:
    """Why calling the module fails, or None."""
    try:
        _run(model, way, x)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None


def _run(model: nn.Module, way: _Way, x: Array) -> Array:
    device = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    given = torch.from_numpy(x.copy()).to(device, way.dtype)
    given = strided(given) if way.strided else given
    mode = torch.inference_mode(not way.grad) if way.special else torch.set_grad_enabled(way.grad)
    with mode, torch.random.fork_rng(devices=[]):
        torch.default_generator.seed()
        return _numbers(model(given.requires_grad_() if way.special and way.grad else given))


@contextmanager
def _in_dtype(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Replace every tensor of the module by a copy of a dtype, shared ones by a shared copy; restore them on exit.

    (torch.func.functional_call leaves a copy behind if one layer is in two places.)
    """
    copies: dict[int, Tensor] = {}
    stores: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in model.modules():
        own: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
        for store in own:
            tensors = {name: t for name, t in store.items() if isinstance(t, Tensor)}
            stores.append((store, tensors))
            for t in tensors.values():
                if id(t) not in copies:
                    copies[id(t)] = _copy(t, dtype)
    try:
        for store, tensors in stores:
            store.update({name: copies[id(t)] for name, t in tensors.items()})
        yield
    finally:
        for store, tensors in stores:
            store.update(tensors)


def _copy(t: Tensor, dtype: torch.dtype) -> Tensor:
    copy = t.detach().to(dtype, copy=True) if t.is_floating_point() else t.clone()
    return nn.Parameter(copy, t.requires_grad) if isinstance(t, nn.Parameter) else copy


def strided(x: Tensor) -> Tensor:
    """The same numbers with other strides: the axes lie in the opposite order, with gaps.

    >>> strided(torch.zeros(2, 3)).stride()
    (2, 4)
    """
    back = tuple(reversed(range(x.ndim)))
    wide = x.permute(back).repeat_interleave(2, dim=-1).contiguous()
    return wide[..., ::2].permute(back)


def _numbers(result: object) -> NDArray[np.float64]:
    if not isinstance(result, Tensor):
        raise TypeError(f"it returns a {type(result).__name__}")
    return result.detach().to("cpu", torch.float64).numpy()
