"""The last guard: program and module, run side by side."""

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
from attnc.functions import Function
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program, Step
from attnc.program.evaluate import values

SINGLES = 6  # points that are also run alone, in a batch of one
# relative to the largest sum at a point, and to what rounding may grow to on its way to the output
LARGEST = {torch.float64: 1e100, torch.float32: 1e30}  # beyond it rounding is not followed
OVERFLOWS = 80.0  # numbers below it do not overflow, not even in an exponential of float32
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
    """Where the module, as it runs, is off the program by more than rounding explains.

    It runs at points that are drawn anew each time (see `probe_points`), in float64 and in its own dtype, with and
    without gradients, on contiguous and on strided input, in batches and alone. This catches what the recording of the
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
        if not np.isfinite(expected.output).any():
            return Problem(where, f"overflows at every input that was tried, of size {np.abs(x).max():.3g}")
        for dtype in dict.fromkeys((torch.float64, _own(model))):
            with _holding(model, dtype):
                failure = failure or _failure(model, _Way(dtype, False, False), x[:1])
                usable = [way for way in _ways(dtype) if _failure(model, way, x[:1]) is None]
                if _Way(dtype, False, False) not in usable:
                    continue
                for way, rows in _calls(usable, len(x), draw, thorough=not compared):
                    found = _compared(model, way, x[rows], expected.at(rows), where)
                    if found is not None:
                        return found
                compared = True
    return None if compared else Problem(where, f"fails on an input of shape {x[:1].shape}: {failure}")


def _own(model: nn.Module) -> torch.dtype:
    tensors = (*model.parameters(), *model.buffers())
    return next((t.dtype for t in tensors if t.dtype in TOLERANCES), torch.float32)


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
    """Ways to call the module, each with the points of a batch: all of them, and some one by one and by twos and threes."""
    every = np.arange(points)
    if not thorough:
        yield usable[draw.integers(len(usable))], every
        return
    for way in usable:
        if way.grad == way.strided:
            yield way, every
    for size in [1] * SINGLES + [2, 3]:
        yield usable[draw.integers(len(usable))], draw.choice(every, size, replace=False)


@dataclass(frozen=True)
class _Expected:
    """The program at points: its output, and how large the numbers are that its rounding is relative to."""

    output: Array
    local: Array  # (n,): the largest sum of absolute values that any step adds up
    grown: Array  # (n,): sums of absolute values, taken through all steps

    def at(self, rows: NDArray[np.intp]) -> _Expected:
        return _Expected(self.output[rows], self.local[rows], self.grown[rows])


def _expected(program: Program, x: Array) -> _Expected:
    with torch.no_grad():
        found = values(program, torch.from_numpy(x))
        grown = [found[0].abs()]
        local = found[0].abs().flatten(1).amax(1)
        for i, step in enumerate(program.steps):
            grown.append(torch.maximum(_magnitude(step, [grown[j] for j in step.inputs]), found[i + 1].abs()))
            here = _magnitude(step, [found[j].abs() for j in step.inputs])
            local = torch.maximum(local, torch.maximum(here, found[i + 1].abs()).flatten(1).amax(1))
    return _Expected(found[-1].numpy(), local.numpy(), grown[-1].flatten(1).amax(1).numpy())


def _magnitude(step: Step, x: list[Tensor]) -> Tensor:
    """The step on absolute values, every sum taken without cancellation."""
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


def _compared(model: nn.Module, way: _Way, x: Array, expected: _Expected, where: str) -> Problem | None:
    try:
        theirs = _run(model, way, x)
    except Exception as problem:
        return Problem(where, f"fails on an input of shape {x.shape}: {type(problem).__name__}: {problem}")
    if theirs.shape != expected.output.shape:
        return Problem(
            where, f"returns the shape {theirs.shape} where the program has {expected.output.shape}"
        )
    return _difference(theirs, way, expected, f"in a batch of {len(x)}", where)


def _difference(theirs: Array, way: _Way, expected: _Expected, how: str, where: str) -> Problem | None:
    """What the module returned against the program: None where rounding explains the difference."""
    ours = expected.output
    here, carried = TOLERANCES[way.dtype]
    allowed = here * expected.local + carried * expected.grown
    size = np.broadcast_to(expected.local.reshape(-1, *([1] * (ours.ndim - 1))), ours.shape)
    comparable = np.where(np.isfinite(theirs), size < LARGEST[way.dtype], size < OVERFLOWS)
    gap = np.where(comparable, np.abs(theirs - ours), 0.0)
    off = ~(gap.reshape(len(gap), -1).max(1) <= allowed)
    if not off.any():
        return None
    worst = float(gap[off].max())
    return Problem(
        where,
        f"differs from the operations that were recorded by {worst:.3g}, {way}, {how}: its forward depends on something that "
        "is not in them",
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


def fails(model: nn.Module, x: Tensor, grad: bool) -> bool:
    """Whether calling the module on x, as it is, raises an error."""
    way = _Way(x.dtype, grad, not x.is_contiguous(), grad and x.requires_grad)
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), _holding(model, x.dtype):
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
def _holding(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Every tensor of the module replaced by a copy of a dtype, shared ones by a shared copy; put back on leaving.

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
