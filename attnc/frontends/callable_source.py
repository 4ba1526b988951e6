"""CallableSource: a user's function, evaluated on batches of inputs, with every result checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.arguments import checked_count
from attnc.domain import Array, Box
from attnc.errors import InputError

MOST_ROWS, MOST_NUMBERS = 65536, 2**24  # of one call of f
_SEED, _RANDOM, _CORNERS = 20250415, 4, 3  # the points at which f is tested
_SLACK = {"float64": 1e-8, "float32": 1e-3}  # how far rounding may move a result, relative to the largest one


class CallableSource:
    """f : box → R^shape as numbers: `source(x)` is f at the rows of x, in float64.

    f takes a tensor (batch, n, d) of float64 (or of the dtype of its own parameters) and returns (batch, n, d'), or
    (batch, tokens, d') if `tokens` is given; for a box of shape (d,) it takes (batch, d) and returns (batch, d'). A few points
    test that f is deterministic, treats every input of a batch independently, and does not change its input.

    >>> source = CallableSource(lambda x: x.sort(dim=1).values, Box(0, 1, shape=(3, 1)))
    >>> source.shape, source(np.array([[0.5, 0.25, 1.0]]))
    ((3, 1), array([[0.25, 0.5 , 1.  ]]))
    """

    box: Box
    shape: tuple[int, ...]
    dtype_name: str
    calls: int
    evaluations: int

    def __init__(self, f: Callable[[Tensor], Tensor], box: Box, tokens: int | None = None) -> None:
        if not callable(f) or isinstance(f, type):
            raise InputError(f"f is a function of a tensor (batch, n, d): got {_shown(f)}")
        if not isinstance(box, Box) or len(box.shape) > 2:
            given = box if isinstance(box, Box) else type(box).__name__
            raise InputError(
                f"the domain of f is a Box of shape (tokens, features) or (features,): got {given}"
            )
        if tokens is not None and len(box.shape) != 2:
            raise InputError(f"tokens={tokens} needs a Box of shape (tokens, features): got {box}")
        if isinstance(f, nn.Module) and (training := [part for part in f.modules() if part.training]):
            raise InputError(f"{type(training[0]).__name__} is in training mode: call model.eval()")
        self._f, self.box = f, box
        self._tokens = box.shape[0] if tokens is None else checked_count("tokens", tokens)
        self._like = _like(f)
        self.shape, self.calls, self.evaluations = (), 0, 0
        self.dtype_name = "float32" if self._like.dtype == torch.float32 else "float64"
        outside = ~box.contains(self._tensor(np.stack([box.lo.ravel(), box.hi.ravel()])).double().cpu())
        if bool(outside.any()):
            raise InputError(
                f"f computes in {self._like.dtype}, which has no number in every side of {box}: widen the box, or give "
                "f as model.double()"
            )
        self._test()

    @property
    def size(self) -> int:
        """How many numbers one result has."""
        return math.prod(self.shape)

    def uniform(self, count: int, seed: int) -> Array:
        """Points of the box, (count, box.size), independent and uniform."""
        share = np.random.default_rng(seed).random((count, self.box.size))
        lo, hi = self.box.lo.reshape(-1), self.box.hi.reshape(-1)
        return np.clip(lo + share * (hi - lo), lo, hi)

    def __call__(self, x: Array) -> Array:
        """f at N inputs, (N, *box.shape) or (N, box.size), as (N, size) numbers, all of them finite."""
        given = np.asarray(x, dtype=np.float64)
        if given.ndim < 1 or given.shape[1:] not in (self.box.shape, (self.box.size,)):
            raise InputError(f"inputs have the shape (N, {self.box.size}): got {given.shape}")
        rows = given.reshape(len(given), self.box.size)
        most = max(1, min(MOST_ROWS, MOST_NUMBERS // max(self.box.size, self.size)))
        parts = [self._evaluate(rows[i : i + most]) for i in range(0, len(rows), most)]
        return np.concatenate(parts) if parts else np.zeros((0, self.size))

    def held(self, x: Array) -> Array:
        """The inputs that f receives: rounded to the dtype of its own parameters, still in the box."""
        rows = np.asarray(x, dtype=np.float64).reshape(-1, self.box.size)
        found: Array = self._tensor(rows).cpu().double().numpy().reshape(rows.shape)
        return found

    def check_unchanged(self) -> None:
        """Raise InputError if f returns other results than at first."""
        points, first = self._tested
        self._check_repeatable(points, first, self._evaluate(points))

    def _test(self) -> None:
        """Check f at the middle, at corners and at random points of the box."""
        noise = np.random.default_rng(_SEED)
        lo, hi = self.box.lo.reshape(-1), self.box.hi.reshape(-1)
        corners = np.where(noise.random((_CORNERS, self.box.size)) < 0.5, lo, hi)
        points = np.concatenate([[lo / 2 + hi / 2, lo, hi], corners, self.uniform(_RANDOM, _SEED)])
        first = self._evaluate(points)
        self._tested = points, first
        self.check_unchanged()
        alone = np.concatenate([self._evaluate(point[None]) for point in points])
        gap = np.abs(alone - first)
        if float(gap.max()) > _SLACK[self.dtype_name] * max(1e-300, float(np.abs(first).max())):
            row, column = np.unravel_index(int(gap.argmax()), gap.shape)
            raise InputError(
                f"f mixes the inputs of a batch: {self._at(points[row], int(column))} is {first[row, column]:.9g} in a batch of "
                f"{len(points)} and {alone[row, column]:.9g} alone; axis 0 is the batch, and results must not depend on it"
            )

    def _check_repeatable(self, points: Array, first: Array, second: Array) -> None:
        for row, column in np.argwhere(first != second)[:1]:
            raise InputError(
                f"f is not deterministic: {self._at(points[row], column)} was {first[row, column]:.9g}, then "
                f"{second[row, column]:.9g}; call model.eval(), or use a generator with a fixed seed in every call"
            )

    def _evaluate(self, rows: Array) -> Array:
        """One call of f."""
        given = self._tensor(rows)
        kept = given.clone()
        self.calls, self.evaluations = self.calls + 1, self.evaluations + len(rows)
        try:
            result = self._f(given)
        except Exception as problem:
            raise InputError(
                f"f fails on a tensor of shape {tuple(given.shape)} and {given.dtype}: "
                f"{type(problem).__name__}: {problem}; it must accept (batch, {', '.join(map(str, self.box.shape))})"
            ) from problem
        if given.shape != kept.shape or not torch.equal(given, kept):
            raise InputError("f changes its input in place: use x.clone()")
        numbers = self._numbers(result, len(rows))
        for row, column in np.argwhere(~np.isfinite(numbers))[:1]:
            raise InputError(
                f"f is {numbers[row, column]}: {self._at(rows[row], column)}; values must be finite on the whole box: give a "
                "smaller box, or a function that is defined on it"
            )
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
        if not isinstance(result, Tensor):
            raise InputError(f"f returns {_shown(result)}: a tensor of shape {self._wanted()} is expected")
        if result.layout is not torch.strided or result.is_quantized or result.is_meta:
            raise InputError("f returns a sparse, quantized or meta tensor: return a dense one")
        if result.is_complex() or result.dtype in (torch.float16, torch.bfloat16):
            advice = "return its real part" if result.is_complex() else "return x.float()"
            raise InputError(f"f returns {result.dtype}: float32 and float64 are accepted ({advice})")
        self._check_shape(tuple(result.shape), rows)
        if result.dtype == torch.float32:
            self.dtype_name = "float32"
        numbers: Array = result.detach().to("cpu", torch.float64).numpy().reshape(rows, -1).copy()
        if not result.is_floating_point() and (np.abs(numbers) >= 2.0**53).any():
            raise InputError(
                f"f returns {result.dtype} numbers beyond 2^53, which no float equals: return floats"
            )
        return numbers

    def _check_shape(self, shape: tuple[int, ...], rows: int) -> None:
        sound = len(shape) == 1 + len(self.box.shape) and shape[0] == rows and shape[-1] > 0
        if sound and len(shape) == 3 and shape[1] != self._tokens:
            advice = f"write tokens={shape[1]}" if shape[1] else "return at least one"
            raise InputError(f"f returns {shape[1]} tokens, and {self._tokens} are expected: {advice}")
        if not sound or (self.shape and shape[1:] != self.shape):
            raise InputError(
                f"f maps a tensor of shape {(rows, *self.box.shape)} to shape {shape}: {self._wanted()} is expected"
            )
        self.shape = shape[1:]

    def _wanted(self) -> str:
        if self.shape:
            return f"(batch, {', '.join(map(str, self.shape))})"
        return f"(batch, {self._tokens}, any)" if len(self.box.shape) == 2 else "(batch, any)"

    def _at(self, row: Array, column: int) -> str:
        """'output (0, 1) at x = [[0.5, 1]]', with few digits, nested as f takes it."""
        x = str(_digits(row.reshape(self.box.shape).tolist())).replace("'", "")
        return f"output {tuple(int(i) for i in np.unravel_index(column, self.shape))} at x = {x}"


def _digits(numbers: Any) -> Any:
    return [_digits(n) for n in numbers] if isinstance(numbers, list) else f"{numbers:.6g}"


def _like(f: object) -> Tensor:
    """A tensor with the dtype and device of f's first floating-point parameter; of float64 if it has none."""
    tensors = (*f.parameters(), *f.buffers()) if isinstance(f, nn.Module) else ()
    found = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    return torch.empty(0, dtype=torch.float64) if found is None else found.detach().new_empty(0)


def _shown(thing: object) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__}; create an object of it"
    if isinstance(thing, np.ndarray):
        return "a numpy array; convert it by torch.from_numpy"
    return "None" if thing is None else f"a {type(thing).__name__}"
