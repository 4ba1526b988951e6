"""disagreement: a module compared with its program at inputs where a wrong program would differ: corners, ends, kinks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnc.domain import Array, Box, Tokens
from attnc.errors import Problem
from attnc.frontends.problems import like, part_name
from attnc.functions import Function
from attnc.program import Affine, Norm, Pointwise, Program, Step
from attnc.program.evaluate import values

SINGLES = 6  # points that are also run in a batch of one
LARGEST = {torch.float64: 1e100, torch.float32: 1e30}  # larger numbers are not compared
OVERFLOWS = 80.0  # smaller numbers do not overflow, not even in an exponential of float32
# relative to the largest sum of a step at a point, and to that sum carried through all steps
TOLERANCES = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-3, 1e-6)}
# of sequence models: relative to what errors of that share in every step add up to. A float32 model is compared in float64 with
# constants (angles, 1 + weight) that were rounded to float32, and its norms may run in float32
SEQUENCES = {torch.float64: 1e-10, torch.float32: 2e-5}
ROUNDED = 1e-6
SPREADS, NEAR, BOXED = (1.0, 8.0, 64.0), 4, 12
NEURONS, ROUNDS, WORK = 64, 16, 2**30  # chosen neurons, rounds of root finding, multiplications for all of it


@dataclass(frozen=True)
class _Way:
    """A way to call a module."""

    dtype: torch.dtype
    grad: bool
    strided: bool
    special: bool = False  # with gradients, of the input too; without them, in inference mode
    ids: bool = False  # on token ids

    def __str__(self) -> str:
        layout = "strided" if self.strided else "contiguous"
        mode = "with gradients" if self.grad else "without gradients"
        special = ("of the input too, " if self.grad else "in inference mode, ") if self.special else ""
        return f"in {self.dtype}, {mode}, {special}on {layout} input"


def disagreement(model: nn.Module, program: Program, box: Box | None = None) -> Problem | None:
    """Where the module differs from the program by more than rounding explains, or None.

    It runs at points that are drawn anew each time, in float64 and in its own dtype, with and without gradients, on contiguous
    and on strided input, in batches and alone. This finds what a recording cannot show (a flag, a clock); it proves nothing."""
    where = part_name("", model)
    draw = np.random.default_rng()
    ids, own = isinstance(box, Tokens), like(model).dtype
    sequence = any(step.kind in ("norm", "attend", "embed") for step in program.steps)
    x = probe_points(program, box, draw)
    failure, compared = None, False
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), np.errstate(all="ignore"):
        as_run = replace(program, steps=tuple(map(_as_run, program.steps)))
        expected = (_expected_sequence if sequence else _expected)(as_run, x)
        if not np.isfinite(expected[0]).any():
            return Problem(where, f"overflows at every input that was tried, of size {np.abs(x).max():.3g}")
        for dtype in dict.fromkeys((torch.float64, own)):
            with _in_dtype(model, dtype):
                ways = [_Way(dtype, *flags) for flags in itertools.product((False, True), repeat=3)]
                ways = [replace(way, ids=ids) for way in ways]
                first = {way: _outputs(model, way, x[:1]) for way in ways}
                plain = first[ways[0]]
                if isinstance(plain, str):
                    failure = failure or plain
                    continue
                tolerances = TOLERANCES[dtype]
                if sequence:
                    exact = dtype is torch.float64 is own and not _narrows(model, ways[0], x[:1])
                    tolerances = (SEQUENCES[dtype] if exact or dtype is torch.float32 else ROUNDED, 0.0)
                usable = [way for way in ways if not isinstance(first[way], str)]
                for way, rows in _calls(usable, len(x), draw, thorough=not compared):
                    reason = _difference(model, way, x[rows], tolerances, *(part[rows] for part in expected))
                    if reason is not None:
                        return Problem(where, _overflow(as_run, x[rows], dtype) or reason)
                compared = True
    return None if compared else Problem(where, f"fails on an input of shape {x[:1].shape}: {failure}")


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
            grown.append(torch.maximum(step.magnitude(*(grown[j] for j in step.inputs)), found[i + 1].abs()))
            here = step.magnitude(*(found[j].abs() for j in step.inputs))
            local = torch.maximum(local, torch.maximum(here, found[i + 1].abs()).flatten(1).amax(1))
    return found[-1].numpy(), local.numpy(), grown[-1].flatten(1).amax(1).numpy()


def _expected_sequence(program: Program, x: Array) -> tuple[Array, Array, Array]:
    """The output of the program at n points, and (n,) how far errors of one part in 10⁷ of every sum, of either sign, move it,
    times 10⁷: norms and softmax pass errors on by factors that depend on the point."""
    source, unit, moved = torch.Generator().manual_seed(0), 1e-7, []
    with torch.no_grad():
        found = values(program, torch.from_numpy(x))
        for _ in range(3):
            noisy = [found[0]]
            for i, step in enumerate(program.steps):
                size = step.magnitude(*(found[j].abs() for j in step.inputs)).flatten(1).amax(1)
                sign = torch.randint(0, 2, found[i + 1].shape, generator=source, dtype=torch.float64) * 2 - 1
                value = step.approximate(*(noisy[j] for j in step.inputs))
                noisy.append(value + unit * sign * size.reshape(-1, *([1] * (value.ndim - 1))))
            moved.append((noisy[-1] - found[-1]).abs().flatten(1).amax(1) / unit)
    local = torch.stack([*moved, found[-1].abs().flatten(1).amax(1)]).amax(0)
    return found[-1].numpy(), local.numpy(), np.zeros(len(x))


def _narrows(model: nn.Module, way: _Way, x: Array) -> bool:
    """Whether the module, in float64, computes anything in float32."""
    found = False

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal found
            result = func(*args, **(kwargs or {}))
            found |= any(isinstance(t, Tensor) and t.dtype is torch.float32 for t in tree_leaves(result))
            return result

    with Watch():  # type: ignore[no-untyped-call]
        _outputs(model, way, x)
    return found


def _difference(
    model: nn.Module,
    way: _Way,
    x: Array,
    tolerances: tuple[float, float],
    ours: Array,
    local: Array,
    grown: Array,
) -> str | None:
    """Why the module's outputs are not those of the program, or None if rounding explains the difference."""
    theirs = _outputs(model, way, x)
    if isinstance(theirs, str):
        return f"fails on an input of shape {x.shape}: {theirs}"
    if theirs.shape != ours.shape:
        return f"returns the shape {theirs.shape}, and its program {ours.shape}"
    here, carried = tolerances
    allowed = here * local + carried * grown
    size = np.broadcast_to(local.reshape(-1, *([1] * (ours.ndim - 1))), ours.shape)
    comparable = np.where(np.isfinite(theirs), size < LARGEST[way.dtype], size < OVERFLOWS)
    gap = np.where(comparable, np.abs(theirs - ours), 0.0)
    off = ~(gap.reshape(len(gap), -1).max(1) <= allowed)
    if not off.any():
        return None
    how = f"{float(gap[off].max()):.3g}, {way}, in a batch of {len(x)}"
    return f"differs from the recorded operations by {how}: its forward depends on something else"


def _overflow(program: Program, x: Array, dtype: torch.dtype) -> str | None:
    """The first value of the program, or the first sum of squares of a norm, that is too large for a dtype at these points."""
    most, names = torch.finfo(dtype).max, ["its input", *(f"its part {step.label}" for step in program.steps)]
    with torch.no_grad():
        found = values(program, torch.from_numpy(x))
        sizes = [float(value.abs().max()) for value in found]
        for i, step in enumerate(program.steps):
            if isinstance(step, Norm):
                sizes[i + 1] = max(sizes[i + 1], float(found[step.inputs[0]].square().sum(-1).max()))
    large = [name for name, size in zip(names, sizes, strict=True) if not size <= most]
    if not large:
        return None
    wider = "" if dtype is torch.float64 else ", or convert the model to float64 (model.double())"
    largest = f"on inputs of size {np.abs(x).max():.3g}"
    return f"overflows {dtype} in {large[0]}, {largest}: use a smaller domain{wider}"


def _as_run(step: Step) -> Step:
    """The step with torch's own function: the identity where softplus exceeds its threshold."""
    if not isinstance(step, Pointwise) or not step.deviation:
        return step
    smooth, beyond = step.function.torch_form, step.beyond
    own = Function(f"{step.function.name}_as_run", lambda s: torch.where(s > beyond, s, smooth(s)))
    return replace(step, function=own)


def fails(model: nn.Module, x: Tensor, grad: bool) -> bool:
    """Whether calling the module on x, as it is, raises an error."""
    ids = not x.is_floating_point()
    dtype = like(model).dtype if ids else x.dtype
    way = _Way(dtype, grad, not x.is_contiguous(), grad and x.requires_grad, ids)
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), _in_dtype(model, dtype):
        return isinstance(_outputs(model, way, x.detach().cpu().to(torch.float64).numpy()), str)


def _outputs(model: nn.Module, way: _Way, x: Array) -> Array | str:
    """What the module returns, or why calling it fails."""
    dtype = torch.int64 if way.ids else way.dtype
    given = torch.from_numpy(x.copy()).to(like(model).device, dtype)
    given = strided(given) if way.strided else given
    mode = torch.inference_mode(not way.grad) if way.special else torch.set_grad_enabled(way.grad)
    try:
        with mode, torch.random.fork_rng(devices=[]):
            torch.default_generator.seed()
            result: Tensor = model(given.requires_grad_() if way.special and way.grad else given)
        return result.detach().to("cpu", torch.float64).numpy()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


def _in_dtype(model: nn.Module, dtype: torch.dtype) -> AbstractContextManager[None]:
    """Every tensor of the module replaced by a copy of a dtype, shared ones by a shared copy."""
    copies: dict[int, Tensor] = {}
    changes: list[tuple[dict[str, Any], str, Any]] = []
    for part in model.modules():
        stores: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
        own = [(store, name, t) for store in stores for name, t in store.items() if isinstance(t, Tensor)]
        for store, name, t in own:
            copy = t.detach().to(dtype, copy=True) if t.is_floating_point() else t.clone()
            copy = nn.Parameter(copy, t.requires_grad) if isinstance(t, nn.Parameter) else copy
            changes.append((store, name, copies.setdefault(id(t), copy)))
    return swapped(changes)


@contextmanager
def swapped(changes: Iterable[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    """Other values in dictionaries, such as the attributes of a part; the former ones are put back on exit."""
    listed = list(changes)
    before = [(store, key, store[key]) for store, key, _ in listed]
    try:
        for store, key, value in listed:
            store[key] = value
        yield
    finally:
        for store, key, value in before:
            store[key] = value


def strided(x: Tensor) -> Tensor:
    """The same numbers with other strides: the axes lie in the opposite order, with gaps."""
    back = tuple(reversed(range(x.ndim)))
    wide = x.permute(back).repeat_interleave(2, dim=-1).contiguous()
    return wide[..., ::2].permute(back)


def probe_points(program: Program, box: Box | None, draw: np.random.Generator) -> Array:
    """Points (n, *shape): near zero, of the box, and those at which chosen pre-activations are at their kinks and ends."""
    if isinstance(box, Tokens):
        ids = draw.integers(0, box.vocabulary, (2 * BOXED, box.length)).astype(np.float64)
        return np.concatenate([ids, box.lo[None], box.hi[None], ids[:1, :1].repeat(box.length, 1)])
    parts = [draw.uniform(-s, s, (NEAR, *program.shape)) for s in SPREADS]
    lo, hi = (np.full(program.shape, -8.0), np.full(program.shape, 8.0)) if box is None else (box.lo, box.hi)
    if box is not None:
        corners = np.where(draw.random((BOXED, *box.shape)) < 0.5, lo, hi)
        inside = lo + draw.random((BOXED, *box.shape)) * (hi - lo)
        mixed = np.where(draw.random((BOXED, *box.shape)) < 0.5, corners, inside)
        parts += [corners, inside, mixed, lo[None], hi[None]]
    driven = _driven(program, lo, hi, draw)
    return np.concatenate([*parts, np.clip(driven, lo, hi)])


@dataclass(frozen=True)
class _Chosen:
    """A neuron: an entry of the value that a pointwise step reads, flattened."""

    value: int
    entry: int
    targets: tuple[float, ...]  # where its function changes
    apart: float  # how near to a target a point may come, as a share of the way


def _driven(program: Program, lo: Array, hi: Array, draw: np.random.Generator) -> Array:
    """For each chosen neuron two ends of a segment of the box along which it grows; on the segment random points, and
    points at and beside each kink that it crosses."""
    chosen = _choose(program, draw)
    if not chosen:
        return np.empty((0, *program.shape))
    start, end = _ends(program, chosen, lo, hi, draw)
    at_start, at_end = (_read(program, chosen, x) for x in (start, end))
    found = [start, end, *(_between(start, end, draw.random(len(chosen))) for _ in range(3))]
    rows, targets = [], []
    for i, neuron in enumerate(chosen):
        for target in neuron.targets:
            if min(at_start[i], at_end[i]) < target < max(at_start[i], at_end[i]):
                rows.append(i)
                targets.append(target)
    if rows:
        crossing, start, end = [chosen[i] for i in rows], start[rows], end[rows]
        t = _root(program, crossing, start, end, np.array(targets))
        apart = np.array([neuron.apart for neuron in crossing])
        if not apart.any():
            found.append(_between(start, end, t))
        for sign in (-1.0, 1.0):
            beside = sign * np.maximum(apart, 10.0 ** draw.uniform(-7, -2, len(rows)))
            found.append(_between(start, end, np.clip(t + beside, 0, 1)))
    return np.concatenate(found)


def _choose(program: Program, draw: np.random.Generator) -> list[_Chosen]:
    """Neurons of every pointwise step, more of them the cheaper the program is."""
    steps = [step for step in program.steps if isinstance(step, Pointwise)]
    size = sum(step.weight.size for step in program.steps if isinstance(step, Affine))
    cost = ROUNDS * 8 * max(1, size * math.prod(program.shape[:-1]))
    most = int(np.clip(WORK // cost, len(steps), NEURONS))
    chosen = []
    for step in steps:
        size = math.prod(program.shapes[step.input])
        for entry in draw.choice(size, min(size, max(1, most // len(steps))), replace=False):
            bends = step.deviation > 0
            targets = (*step.function.kinks, *((step.beyond,) if bends else ()))
            chosen.append(_Chosen(step.input, int(entry), targets, 1e-4 if bends else 0.0))
    return chosen


def _ends(
    program: Program, chosen: list[_Chosen], lo: Array, hi: Array, draw: np.random.Generator
) -> tuple[Array, Array]:
    """The corners of the box to which each neuron's gradient at a random point leads: its interval's ends, if it is affine."""
    x = torch.from_numpy(lo + draw.random((len(chosen), *lo.shape)) * (hi - lo)).requires_grad_()
    with torch.enable_grad():
        total = _neurons(program, chosen, x).nan_to_num().sum()
        slopes = torch.autograd.grad(total, x, allow_unused=True)[0] if total.requires_grad else None
    slope = np.zeros(x.shape) if slopes is None else slopes.nan_to_num().numpy()
    up = np.where(slope == 0, draw.random(slope.shape) < 0.5, slope > 0)
    return np.where(up, lo, hi), np.where(up, hi, lo)


def _neurons(program: Program, chosen: list[_Chosen], x: Tensor) -> Tensor:
    """The i-th neuron at the i-th point."""
    found = values(program, x)
    return torch.stack([found[c.value][i].reshape(-1)[c.entry] for i, c in enumerate(chosen)])


def _read(program: Program, chosen: list[_Chosen], x: Array) -> Array:
    with torch.no_grad():
        return _neurons(program, chosen, torch.from_numpy(x)).numpy()


def _between(start: Array, end: Array, t: Array) -> Array:
    share = t.reshape(-1, *([1] * (start.ndim - 1)))
    return start * (1 - share) + end * share


def _root(program: Program, chosen: list[_Chosen], start: Array, end: Array, targets: Array) -> Array:
    """Where on its segment each neuron equals its target, by bisection and false position in turn."""
    a, b = np.zeros(len(chosen)), np.ones(len(chosen))
    below = _read(program, chosen, start) - targets
    above = _read(program, chosen, end) - targets
    for k in range(ROUNDS):
        t = _false_position(a, b, below, above) if k % 2 == 0 else (a + b) / 2
        gap = _read(program, chosen, _between(start, end, t)) - targets
        left = np.sign(gap) == np.sign(below)
        a, below = np.where(left, t, a), np.where(left, gap, below)
        b, above = np.where(left, b, t), np.where(left, above, gap)
    return _false_position(a, b, below, above)


def _false_position(a: Array, b: Array, below: Array, above: Array) -> Array:
    with np.errstate(all="ignore"):
        t = a - below * (b - a) / (above - below)
    return np.where((a <= t) & (t <= b), t, (a + b) / 2)
