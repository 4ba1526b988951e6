"""A user's function, asked at batches of inputs, every answer checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.domain import Array, Box
from attnc.errors import InputError

MOST_ROWS, MOST_NUMBERS = 65536, 2**24  # of one call of f
_SEED, _RANDOM, _CORNERS = 20250415, 4, 3  # the points that f is tried at
_SLACK = {"float64": 1e-8, "float32": 1e-3}  # how far rounding alone may move an answer, of the largest one


class Asked:
    """f : box → R^shape as numbers: `asked(x)` is f at the rows of x, in float64.

    f takes a tensor (batch, n, d) of float64 (or of the dtype of its own parameters) and returns (batch, n, d'), or
    (batch, tokens, d') where `tokens` is given; for a box of shape (d,) it takes (batch, d) and returns (batch, d'). It is
    tried on a few points at once: it has to give the same answer twice, treat every input by itself, and leave its input alone.

    >>> asked = Asked(lambda x: x.sort(dim=1).values, Box(0, 1, shape=(3, 1)))
    >>> asked.shape, asked(np.array([[0.5, 0.25, 1.0]]))
    ((3, 1), array([[0.25, 0.5 , 1.  ]]))
    """

    box: Box
    shape: tuple[int, ...]
    dtype_name: str
    calls: int
    asked: int

    def __init__(self, f: Callable[[Tensor], Tensor], box: Box, tokens: int | None = None) -> None:
        if not callable(f) or isinstance(f, type):
            raise InputError(f"f is a function of a tensor (batch, n, d): got {_given(f)}")
        if not isinstance(box, Box) or len(box.shape) > 2:
            got = box if isinstance(box, Box) else type(box).__name__
            raise InputError(
                f"the domain of f is a Box of shape (n, d), n tokens of d features, or (d,): got {got}"
            )
        _check_tokens(tokens, box)
        _check_mode(f)
        self._f, self.box, self._tokens = f, box, tokens
        self._like = _own_numbers(f)
        self.shape, self.dtype_name, self.calls, self.asked = (), "float64", 0, 0
        if self._like.dtype == torch.float32:
            self.dtype_name = "float32"
        outside = ~box.contains(self._tensor(np.stack([box.lo.ravel(), box.hi.ravel()])).double().cpu())
        if bool(outside.any()):
            raise InputError(
                f"f computes in {self._like.dtype}, of which no number lies in {box} in every coordinate: widen the box, or give "
                "f as model.double()"
            )
        self._try_out()

    @property
    def size(self) -> int:
        """How many numbers one answer has."""
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
            raise InputError(f"inputs of shape (N, {self.box.size}) are expected: got {given.shape}")
        rows = given.reshape(len(given), self.box.size)
        most = max(1, min(MOST_ROWS, MOST_NUMBERS // max(self.box.size, self.size)))
        parts = [self._answers(rows[i : i + most]) for i in range(0, len(rows), most)]
        return np.concatenate(parts) if parts else np.zeros((0, self.size))

    def held(self, x: Array) -> Array:
        """The inputs as f is given them: rounded to the dtype of its own parameters, still in the box."""
        rows = np.asarray(x, dtype=np.float64).reshape(-1, self.box.size)
        found: Array = self._tensor(rows).cpu().double().numpy().reshape(rows.shape)
        return found

    def ask_again(self) -> None:
        """Raise where f answers otherwise than it did at first: it may have changed since."""
        points, first = self._tried
        self._check_repeatable(points, first, self._answers(points))

    def _try_out(self) -> None:
        """The promises of the class, checked at the middle, at corners and at random points of the box."""
        noise = np.random.default_rng(_SEED)
        lo, hi = self.box.lo.reshape(-1), self.box.hi.reshape(-1)
        corners = np.where(noise.random((_CORNERS, self.box.size)) < 0.5, lo, hi)
        points = np.concatenate([[lo / 2 + hi / 2, lo, hi], corners, self.uniform(_RANDOM, _SEED)])
        first, second = self._answers(points), self._answers(points)
        self._check_repeatable(points, first, second)
        self._tried = points, first
        alone = np.concatenate([self._answers(point[None]) for point in points])
        gap = np.abs(alone - first)
        if float(gap.max()) > _SLACK[self.dtype_name] * max(1e-300, float(np.abs(first).max())):
            row, column = np.unravel_index(int(gap.argmax()), gap.shape)
            raise InputError(
                f"f mixes the inputs of a batch: at x = {self._input(points[row])} output {self._output(int(column))} is "
                f"{first[row, column]:.9g} in a batch of {len(points)} and {alone[row, column]:.9g} alone; "
                "dimension 0 counts inputs, and each has to be answered by itself"
            )

    def _check_repeatable(self, points: Array, first: Array, second: Array) -> None:
        differ = np.argwhere(first != second)
        if len(differ):
            row, column = (int(i) for i in differ[0])
            raise InputError(
                f"f is not deterministic: at x = {self._input(points[row])} output {self._output(column)} was "
                f"{first[row, column]:.9g}, then {second[row, column]:.9g}; call model.eval(), or give f a generator with a "
                "fixed seed at every call"
            )

    def _answers(self, rows: Array) -> Array:
        """One call of f."""
        given = self._tensor(rows)
        kept = given.clone()
        self.calls, self.asked = self.calls + 1, self.asked + len(rows)
        try:
            answer = self._f(given)
        except Exception as problem:
            raise InputError(
                f"f fails on a tensor of shape {tuple(given.shape)} and {given.dtype}: "
                f"{type(problem).__name__}: {problem}; it has to take (batch, {', '.join(map(str, self.box.shape))})"
            ) from problem
        if given.shape != kept.shape or not torch.equal(given, kept):
            raise InputError("f changes its input in place: let it work on x.clone()")
        numbers = self._checked(answer, len(rows))
        bad = np.argwhere(~np.isfinite(numbers))
        if len(bad):
            row, column = (int(i) for i in bad[0])
            raise InputError(
                f"f is {numbers[row, column]} at x = {self._input(rows[row])}, output {self._output(column)}: finite "
                "values are needed on the whole box; give a smaller box, or a function that is defined on it"
            )
        return numbers

    def _tensor(self, rows: Array) -> Tensor:
        """The inputs as f takes them; numbers rounded to a coarser dtype stay in the box where it has any."""
        wide = torch.from_numpy(rows.reshape(len(rows), *self.box.shape).copy())
        given = wide.to(self._like)
        if given.dtype == torch.float64:
            return given
        lo, hi = (torch.from_numpy(end.copy()).to(given.device) for end in (self.box.lo, self.box.hi))
        up, down = (
            torch.tensor(end, dtype=given.dtype, device=given.device) for end in (math.inf, -math.inf)
        )
        given = torch.where(given.double() < lo, torch.nextafter(given, up), given)
        return torch.where(given.double() > hi, torch.nextafter(given, down), given)

    def _checked(self, answer: object, rows: int) -> Array:
        """The answer as (rows, size) numbers, or why it is none."""
        if not isinstance(answer, Tensor):
            raise InputError(f"f returns {_given(answer)}: a tensor of shape {self._wanted()} is expected")
        if answer.layout is not torch.strided or answer.is_quantized or answer.is_meta:
            raise InputError(
                "f returns a tensor that is sparse, quantized or without numbers: return a dense one"
            )
        if answer.is_complex() or answer.dtype in (torch.float16, torch.bfloat16):
            advice = "its real part" if answer.is_complex() else "x.float() widens it"
            raise InputError(
                f"f returns numbers of {answer.dtype}: float32 and float64 are accepted ({advice})"
            )
        self._check_shape(tuple(answer.shape), rows)
        if answer.dtype == torch.float32:
            self.dtype_name = "float32"
        numbers: Array = answer.detach().to("cpu", torch.float64).numpy().reshape(rows, -1).copy()
        if not answer.is_floating_point() and (np.abs(numbers) >= 2.0**53).any():
            raise InputError(
                f"f returns {answer.dtype} numbers beyond 2^53, which no float holds: return floats"
            )
        return numbers

    def _check_shape(self, shape: tuple[int, ...], rows: int) -> None:
        tokens = self._tokens if self._tokens is not None else self.box.shape[0]
        sound = len(shape) == 1 + len(self.box.shape) and shape[0] == rows and shape[-1] > 0
        if sound and len(shape) == 3 and shape[1] != tokens:
            raise InputError(
                f"f turns {self.box.shape[0]} tokens into {shape[1]}, and {tokens} were announced: "
                + (f"write tokens={shape[1]}" if shape[1] else "it has to return at least one")
            )
        if not sound or (self.shape and shape[1:] != self.shape):
            raise InputError(
                f"f turns a tensor of shape {(rows, *self.box.shape)} into one of shape {shape}: {self._wanted()} is expected"
            )
        self.shape = shape[1:]

    def _wanted(self) -> str:
        if self.shape:
            return f"(batch, {', '.join(map(str, self.shape))})"
        tokens = self._tokens if self._tokens is not None else self.box.shape[0]
        return f"(batch, {tokens}, any)" if len(self.box.shape) == 2 else "(batch, any)"

    def _input(self, row: Array) -> str:
        """An input with few digits, nested as f takes it."""
        return str(_digits(row.reshape(self.box.shape).tolist())).replace("'", "")

    def _output(self, column: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(column, self.shape))


def _digits(numbers: Any) -> Any:
    return [_digits(n) for n in numbers] if isinstance(numbers, list) else f"{numbers:.6g}"


def _check_tokens(tokens: object, box: Box) -> None:
    if tokens is None:
        return
    if isinstance(tokens, bool) or not isinstance(tokens, (int, np.integer)) or tokens < 1:
        raise InputError(f"tokens={tokens!r}: the number of tokens that f returns, a positive whole number")
    if len(box.shape) != 2:
        raise InputError(f"tokens={tokens} needs a domain with tokens, a Box of shape (n, d): got {box}")


def _check_mode(f: object) -> None:
    if isinstance(f, nn.Module):
        training = [name or type(f).__name__ for name, part in f.named_modules() if part.training]
        if training:
            raise InputError(f"{training[0]} is in training mode: call model.eval()")


def _own_numbers(f: object) -> Tensor:
    """A tensor with the dtype and the device that f is given: those of its first parameter of floating point, if it has any."""
    if isinstance(f, nn.Module):
        for tensor in (*f.parameters(), *f.buffers()):
            if tensor.is_floating_point():
                return tensor.detach().new_empty(0)
    return torch.empty(0, dtype=torch.float64)


def _given(thing: object) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__}; make an object of it"
    if isinstance(thing, np.ndarray):
        return "a numpy array; torch.from_numpy makes a tensor of it"
    return "None" if thing is None else f"a {type(thing).__name__}"
