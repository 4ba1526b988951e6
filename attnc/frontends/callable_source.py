"""CallableSource: a user's function, evaluated on batches with every result checked; find_jump: its discontinuities."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from attnc.arguments import checked_count
from attnc.domain import Array, Box
from attnc.errors import InputError

MOST_ROWS, MOST_NUMBERS = 65536, 2**24  # of one call of f
_SEED, _RANDOM, _CORNERS = 20250415, 4, 3  # the points at which f is tested
_NEIGHBOURS, _SEGMENTS, _HALVINGS = 384, 24, 80
_SCALES = (1.0, 0.3, 0.1, 0.03)  # of the reach: distances of neighbours
_LOOK_BACK, _KEPT = 6, 0.8  # over so many halvings of a segment, a jump keeps so much of its size
_NEAR = {"float64": 2.0**-50, "float32": 2.0**-21}  # of |x|: the least distance between inputs
_NOISE = {"float64": 2.0**-40, "float32": 2.0**-14}  # of |f|: differences that rounding may cause
_SLACK = {"float64": 1e-8, "float32": 1e-3}  # how far rounding may move a result, relative to the largest one
_SCALAR = ("Python scalar", "converted to Scalar")  # in torch's message if f turns a tensor into one number
_TORCH = ". f takes and returns tensors: use torch operations, torch.sin(x) instead of math.sin(x)"
_ONE_TENSOR = ". f is called with one tensor: read its numbers from it, e.g. x[..., :1] and x[..., 1:]"


def _takes_one(f: Callable[..., object]) -> bool:
    """False if f certainly cannot be called with one argument."""
    try:
        inspect.signature(f).bind(None)
    except ValueError:  # a built-in function without a signature
        return True
    except TypeError:
        return False
    return True


class CallableSource:
    """f : box → R^shape as numbers: `source(x)` is f at the rows of x, in float64.

    f takes (batch, n, d) in float64, or in the dtype of its own parameters, and returns (batch, n, d'), or (batch, tokens, d') if
    `tokens` is given; for a box of shape (d,) it maps (batch, d) to (batch, d'). f must be deterministic, treat every input of a
    batch independently, and not change its input: a few points test this."""

    def __init__(self, f: Callable[[Tensor], Tensor], box: Box, tokens: int | None = None) -> None:
        if not callable(f) or isinstance(f, type):
            raise InputError(f"f is a function of a tensor (batch, n, d): got {f!r:.80}")
        if not isinstance(box, Box) or len(box.shape) > 2:
            raise InputError(f"the domain is a Box of shape (tokens, features) or (features,): got {box}")
        if tokens is not None and len(box.shape) != 2:
            raise InputError(f"tokens={tokens} needs a Box of shape (tokens, features): got {box}")
        if isinstance(f, nn.Module) and (training := [part for part in f.modules() if part.training]):
            raise InputError(f"{type(training[0]).__name__} is in training mode: call model.eval()")
        self._f, self.box = f, box
        self.lo, self.hi = box.lo.reshape(-1), box.hi.reshape(-1)
        self._tokens = box.shape[:-1] if tokens is None else (checked_count("tokens", tokens),)
        tensors = (*f.parameters(), *f.buffers()) if isinstance(f, nn.Module) else ()
        like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.zeros(0).double())
        self._like = like.detach().new_empty(0)
        self.shape: tuple[int, ...] = ()
        self.evaluations = 0
        self.dtype_name = "float32" if self._like.dtype == torch.float32 else "float64"
        ends = self._tensor(np.stack([self.lo, self.hi])).double().cpu()
        if not bool(box.contains(ends).all()):
            reason = f"{self._like.dtype}, the dtype of f, has no number in every side of {box}"
            raise InputError(f"{reason}: widen the box, or give f as model.double()")
        self._test()

    @property
    def like(self) -> Tensor:
        """An empty tensor of the dtype and device that f takes."""
        return self._like

    @property
    def size(self) -> int:
        """How many numbers one result has."""
        return math.prod(self.shape)

    def uniform(self, count: int, seed: int) -> Array:
        """Points of the box, (count, box.size), independent and uniform."""
        share = np.random.default_rng(seed).random((count, self.box.size))
        return np.clip(self.lo + share * (self.hi - self.lo), self.lo, self.hi)

    def __call__(self, x: Array) -> Array:
        """f at N inputs, (N, *box.shape) or (N, box.size), as (N, size) numbers, all of them finite."""
        given = np.asarray(x, dtype=np.float64)
        if given.ndim < 1 or given.shape[1:] not in (self.box.shape, (self.box.size,)):
            raise InputError(f"inputs have the shape (N, {self.box.size}): got {given.shape}")
        rows = given.reshape(len(given), self.box.size)
        most = max(1, min(MOST_ROWS, MOST_NUMBERS // max(self.box.size, self.size)))
        parts = [self._evaluate(rows[i : i + most]) for i in range(0, len(rows), most)]
        return np.concatenate([np.zeros((0, self.size)), *parts])

    def held(self, x: Array) -> Array:
        """The inputs that f receives: rounded to the dtype of its own parameters, still in the box."""
        rows = np.asarray(x, dtype=np.float64).reshape(-1, self.box.size)
        return np.asarray(self._tensor(rows).cpu().double().numpy()).reshape(rows.shape)

    def check_unchanged(self) -> None:
        """Raise InputError if f returns other results than at first."""
        points, first = self._tested
        second = self._evaluate(points)
        for row, column in np.argwhere(first != second)[:1]:
            found = f"was {first[row, column]:.9g}, then {second[row, column]:.9g}"
            advice = "call model.eval(), or use a generator with a fixed seed in every call"
            raise InputError(f"f is not deterministic: {self._at(points[row], column)} {found}; {advice}")

    def _test(self) -> None:
        """Check f at the middle, at corners and at random points of the box."""
        noise, lo, hi = np.random.default_rng(_SEED), self.lo, self.hi
        corners = np.where(noise.random((_CORNERS, self.box.size)) < 0.5, lo, hi)
        points = np.concatenate([[lo / 2 + hi / 2, lo, hi], corners, self.uniform(_RANDOM, _SEED)])
        first = self._evaluate(points)
        self._tested = points, first
        self.check_unchanged()
        alone = np.concatenate([self._evaluate(point[None]) for point in points])
        gap = np.abs(alone - first)
        if float(gap.max()) > _SLACK[self.dtype_name] * max(1e-300, float(np.abs(first).max())):
            row, column = np.unravel_index(int(gap.argmax()), gap.shape)
            found = f"{first[row, column]:.9g} in a batch of {len(points)} and {alone[row, column]:.9g} alone"
            where = self._at(points[row], int(column))
            raise InputError(f"f mixes the inputs of a batch, which is axis 0: {where} is {found}")

    def _evaluate(self, rows: Array) -> Array:
        """One call of f."""
        given = self._tensor(rows)
        kept = given.clone()
        self.evaluations += len(rows)
        try:
            result = self._f(given)
        except Exception as problem:
            what = f"a tensor of shape {tuple(given.shape)} and {given.dtype}"
            scalar = any(words in str(problem) for words in _SCALAR)
            advice = _TORCH if scalar else "" if _takes_one(self._f) else _ONE_TENSOR
            raise InputError(f"f fails on {what}: {type(problem).__name__}: {problem}{advice}") from problem
        if given.shape != kept.shape or not torch.equal(given, kept):
            raise InputError("f changes its input in place: use x.clone()")
        numbers = self._numbers(result, len(rows))
        for row, column in np.argwhere(~np.isfinite(numbers))[:1]:
            advice = "values must be finite on the whole box: give a smaller box, or another f"
            raise InputError(f"f is {numbers[row, column]}: {self._at(rows[row], column)}; {advice}")
        return numbers

    def _tensor(self, rows: Array) -> Tensor:
        """The inputs in f's dtype and on its device; rounded numbers stay in the box, if it has any of that dtype."""
        given = torch.from_numpy(rows.reshape(len(rows), *self.box.shape).copy()).to(self._like)
        if given.dtype == torch.float64:
            return given
        lo, hi = (torch.from_numpy(end.copy()).to(given.device) for end in (self.box.lo, self.box.hi))
        given = torch.where(given.double() < lo, torch.nextafter(given, given.new_tensor(math.inf)), given)
        return torch.where(given.double() > hi, torch.nextafter(given, given.new_tensor(-math.inf)), given)

    def _numbers(self, result: object, rows: int) -> Array:
        """The result as (rows, size) numbers; raises InputError if it has another shape or type."""
        sizes: tuple[object, ...] = self.shape or (*self._tokens, "any")
        wanted = f"(batch, {', '.join(map(str, sizes))})"
        if not isinstance(result, Tensor):
            advice = "; convert it by torch.from_numpy" if isinstance(result, np.ndarray) else ""
            raise InputError(f"f returns a {type(result).__name__}: {wanted} is expected{advice}")
        dense = result.layout is torch.strided and not (result.is_quantized or result.is_meta)
        if not dense or result.is_complex() or result.dtype in (torch.float16, torch.bfloat16):
            kind = result.dtype if dense else "a sparse, quantized or meta tensor"
            raise InputError(f"f returns {kind}: return a dense tensor of float32 or float64")
        shape = tuple(result.shape)
        if len(shape) == 3 and self._tokens and shape[0] == rows and shape[1] != self._tokens[0]:
            raise InputError(f"f returns {shape[1]} tokens, not {self._tokens[0]}: pass tokens={shape[1]}")
        fits = len(shape) == 1 + len(self.box.shape) and shape[0] == rows and shape[-1] > 0
        if not fits or shape[1:] != (self.shape or shape[1:]):
            batch = "; axis 0 is the batch, so the first number is x[:, :1]" if shape[:1] != (rows,) else ""
            advice = batch or (
                "; keep the last axis, y.unsqueeze(-1)" if len(shape) == len(self.box.shape) else ""
            )
            raise InputError(
                f"f maps shape {(rows, *self.box.shape)} to {shape}: {wanted} is expected{advice}"
            )
        self.shape = shape[1:]
        if result.dtype == torch.float32:
            self.dtype_name = "float32"
        numbers: Array = result.detach().to("cpu", torch.float64).numpy().reshape(rows, -1).copy()
        if not result.is_floating_point() and (np.abs(numbers) >= 2.0**53).any():
            raise InputError(f"f returns {result.dtype} numbers beyond 2^53: return floats")
        return numbers

    def shown(self, row: Array) -> str:
        """An input as f takes it, [[0.5, 1]]."""
        x = row.reshape(self.box.shape)
        return np.array2string(x, precision=6, separator=", ", threshold=20).replace("\n", "")

    def _at(self, row: Array, column: int) -> str:
        index = tuple(int(i) for i in np.unravel_index(column, self.shape))
        return f"output {index} at x = {self.shown(row)}"


@dataclass(frozen=True, eq=False)
class Jump:
    """Two neighbouring inputs in floating point, and the difference of f between them."""

    left: Array  # (box.size,)
    right: Array
    size: float

    def __str__(self) -> str:
        at = [float(f"{v:.6g}") for v in self.left]
        apart = float(np.abs(self.right - self.left).max())
        return f"jumps by {self.size:.3g} at x = {at} (over a distance of {apart:.1g})"


def find_jump(source: CallableSource, at: Array, reach: float, eps: float) -> Jump | None:
    """A discontinuity of size eps/2 or more between `at` and a point within `reach` of it, or None.

    Segments from `at` to its neighbours are halved, and the half over which f changes more is kept. For a continuous f the
    change tends to zero with the length; at a jump it does not."""
    left, right = _segments(source, np.clip(at.reshape(-1), source.lo, source.hi), reach)
    f_left, f_right = source(left), source(right)
    history = [np.abs(f_right - f_left).max(1)]
    for _ in range(_HALVINGS):
        size = np.maximum(np.abs(left), np.abs(right)).max(1) + 1e-3 * reach
        if (np.abs(right - left).max(1) <= 2 * _NEAR[source.dtype_name] * size).all():
            break
        middle = left / 2 + right / 2
        f_middle = source(middle)
        first = (np.abs(f_middle - f_left).max(1) >= np.abs(f_right - f_middle).max(1))[:, None]
        left, right = np.where(first, left, middle), np.where(first, middle, right)
        f_left, f_right = np.where(first, f_left, f_middle), np.where(first, f_middle, f_right)
        history.append(np.abs(f_right - f_left).max(1))
    before, gap = history[max(0, len(history) - 1 - _LOOK_BACK)], history[-1]
    noise = _NOISE[source.dtype_name] * max(float(np.abs(f_left).max()), float(np.abs(f_right).max()))
    sound = (gap >= max(eps / 2, noise)) & (gap > 0) & (gap >= _KEPT * before)
    if not sound.any():
        return None
    best = int(np.where(sound, gap, -np.inf).argmax())
    return Jump(left[best], right[best], float(gap[best]))


def _segments(source: CallableSource, start: Array, reach: float) -> tuple[Array, Array]:
    """Segments from the start to the neighbours at which f differs most from its value there."""
    noise = np.random.default_rng(0)
    scale = np.resize(_SCALES, _NEIGHBOURS)[:, None]
    shifts = scale * noise.uniform(-1, 1, (_NEIGHBOURS, len(start)))
    axes = np.eye(len(start))[: _NEIGHBOURS // 2]
    shifts = np.concatenate([shifts, axes, -axes])
    near = np.clip(start + shifts * reach, source.lo, source.hi)
    change = np.abs(source(near) - source(start[None])).max(1)
    top = np.argsort(change, kind="stable")[::-1]
    chosen = np.concatenate([top[: _SEGMENTS // 2], top[_SEGMENTS // 2 :: max(1, 2 * len(top) // _SEGMENTS)]])
    return np.repeat(start[None], len(chosen), 0), near[chosen]
