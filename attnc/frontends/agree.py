"""The last guard: program and module, run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnc.domain import Array, Box
from attnc.errors import Problem
from attnc.frontends.points import telling_points
from attnc.functions import Function
from attnc.program import Affine, Combine, Normalise, Pointwise, Program, Step
from attnc.program.interpreter import values

SINGLES = 6  # points that are also run alone, in a batch of one
# relative to the largest sum at a point, and to what rounding may grow to on its way to the output
TOLERANCES = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-3, 1e-6)}


@dataclass(frozen=True)
class _Way:
    """A way to call a module."""

    dtype: torch.dtype
    grad: bool
    strided: bool

    def __str__(self) -> str:
        layout = "strided" if self.strided else "contiguous"
        return f"in {self.dtype}, {'with' if self.grad else 'without'} gradients, on {layout} input"


def disagreement(model: nn.Module, program: Program, box: Box | None = None) -> Problem | None:
    """Where the module, as it runs, is off the program by more than rounding explains.

    It runs at points that are drawn anew each time (see `telling_points`), in float64 and in its own dtype, with and
    without gradients, on contiguous and on strided input, in batches and alone. This catches what the recording of the
    module cannot show (a flag, a clock); it proves nothing.

    >>> layer = nn.Linear(1, 1, bias=False).eval()
    >>> wrong = Program((1,), (Affine(0, 1 + layer.weight.detach().numpy()),))
    >>> disagreement(layer, wrong).where
    'the model (Linear)'
    """
    where = f"the model ({type(model).__name__})"
    draw = np.random.default_rng()
    x = telling_points(program, box, draw)
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), np.errstate(all="ignore"):
        expected = _expected(as_run(program), x)
        if not np.isfinite(expected.output).any():
            return Problem(where, f"overflows at every input that was tried, of size {np.abs(x).max():.3g}")
        for way, rows in _calls(model, x, draw):
            if isinstance(way, Problem):
                return replace(way, where=where)
            found = _compared(model, way, x[rows], expected.at(rows), where)
            if found is not None:
                return found
    return None


def _calls(model: nn.Module, x: Array, draw: np.random.Generator) -> Iterator[tuple[Any, NDArray[np.intp]]]:
    """The ways to call the module that do not fail, each with rows of x: all of them, and some one by one and by twos."""
    own = next(
        (t.dtype for t in (*model.parameters(), *model.buffers()) if t.dtype in TOLERANCES), torch.float32
    )
    every, one = np.arange(len(x)), np.arange(1)
    wide = torch.float64 if runs(model, _Way(torch.float64, False, False), x[:1]) is None else own
    failure = runs(model, _Way(wide, False, False), x[:1])
    if failure is not None:
        yield Problem("", f"fails on an input of shape {x[:1].shape}: {failure}"), one
        return
    pairs = [(grad, strides) for grad in (False, True) for strides in (False, True)]
    usable = [pair for pair in pairs if runs(model, _Way(wide, *pair), x[:1]) is None]
    for grad, strides in usable:
        if grad == strides:
            yield _Way(wide, grad, strides), every
    if own is not wide:
        yield _Way(own, *usable[draw.integers(len(usable))]), every
    for size in [1] * SINGLES + [2, 3]:
        pair = usable[draw.integers(len(usable))]
        yield _Way(wide, *pair), draw.choice(every, size, replace=False)


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
    if isinstance(step, Normalise):
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
    ours = expected.output
    if theirs.shape != ours.shape:
        return Problem(where, f"returns the shape {theirs.shape} where the program has {ours.shape}")
    here, carried = TOLERANCES[way.dtype]
    allowed = here * expected.local + carried * expected.grown
    limit = 1e100 if way.dtype is torch.float64 else 1e30
    comparable = (np.abs(ours) < limit) & (expected.local < limit).reshape(-1, *([1] * (ours.ndim - 1)))
    gap = np.where(comparable, np.abs(theirs - ours), 0.0)
    off = ~(gap.reshape(len(gap), -1).max(1) <= allowed)
    if not off.any():
        return None
    worst = float(gap[off].max())
    return Problem(
        where,
        f"differs from the operations that were recorded by {worst:.3g}, {way}, in a batch of {len(x)}: its forward "
        "depends on something that is not in them",
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

    return replace(step, function=Function(step.function.name, form))


def runs(model: nn.Module, way: _Way, x: Array) -> str | None:
    """Why calling the module fails, or None."""
    try:
        _run(model, way, x)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None


def fails(model: nn.Module, x: Tensor, grad: bool) -> bool:
    """Whether calling the module on x, as it is, raises an error."""
    way = _Way(x.dtype, grad, not x.is_contiguous())
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        return runs(model, way, x.cpu().to(torch.float64).numpy()) is not None


def _run(model: nn.Module, way: _Way, x: Array) -> Array:
    device = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    given = torch.from_numpy(x.copy()).to(device, way.dtype)
    with torch.set_grad_enabled(way.grad), torch.random.fork_rng(devices=[]):
        torch.default_generator.seed()
        with _holding(model, lambda t: t.detach().to(device, way.dtype, copy=True)):
            return _numbers(model(strided(given) if way.strided else given))


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
                if id(t) not in copies:
                    copies[id(t)] = _copy(t, copied)
    try:
        for store, tensors in stores:
            store.update({name: copies[id(t)] for name, t in tensors.items()})
        yield
    finally:
        for store, tensors in stores:
            store.update(tensors)


def _copy(t: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    copy = copied(t) if t.is_floating_point() else t.clone()
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
