"""find_jump: a discontinuity near the input at which an approximation is worst."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnc.domain import Array
from attnc.errors import InputError
from attnc.frontends.callable_source import CallableSource

_NEIGHBOURS, _SEGMENTS, _HALVINGS = 384, 24, 80
_SCALES = (1.0, 0.3, 0.1, 0.03)  # of the reach: distances of neighbours
_LOOK_BACK, _KEPT = 6, 0.8  # over so many halvings of a segment, a jump keeps so much of its size
_NEAR = {"float64": 2.0**-50, "float32": 2.0**-21}  # of |x|: the least distance between inputs
_NOISE = {"float64": 2.0**-40, "float32": 2.0**-14}  # of |f|: differences that rounding may cause


@dataclass(frozen=True, eq=False)
class Jump:
    """Two neighbouring inputs in floating point, and the difference of f between them."""

    left: Array  # (box.size,)
    right: Array
    size: float
    output: int  # the index of the output that jumps most

    def __str__(self) -> str:
        at = [float(f"{v:.6g}") for v in self.left]
        apart = float(np.abs(self.right - self.left).max())
        return f"jumps by {self.size:.3g} at x = {at} (over a distance of {apart:.1g})"


def find_jump(
    source: CallableSource, at: Array, reach: Array | float, eps: float, seed: int = 0
) -> Jump | None:
    """A discontinuity of size eps/2 or more between `at` and a point within `reach` of it, or None.

    Segments from `at` to its neighbours are halved, and the half over which f changes more is kept. For a continuous f the
    change tends to zero with the length; at a jump it does not.

    >>> import torch
    >>> from attnc.domain import Box
    >>> step = CallableSource(lambda x: torch.sign(x - 0.3), Box(-1, 1, shape=(1,)))
    >>> print(find_jump(step, np.array([0.29]), 0.1, 1e-2))
    jumps by 2 at x = [0.3] (over a distance of ...)
    >>> root = CallableSource(lambda x: x.abs().sqrt(), Box(-1, 1, shape=(1,)))
    >>> print(find_jump(root, np.array([0.01]), 0.1, 1e-2))
    None
    """
    lo, hi = source.box.lo.reshape(-1), source.box.hi.reshape(-1)
    start = np.asarray(at, dtype=np.float64).reshape(-1)
    if start.shape != lo.shape or not np.isfinite(start).all():
        raise InputError(f"a point of the box has {lo.size} finite numbers: got {np.shape(at)}")
    left, right = _segments(source, np.clip(start, lo, hi), np.broadcast_to(np.abs(reach), lo.shape), seed)
    f_left, f_right = source(left), source(right)
    history = [np.abs(f_right - f_left).max(1)]
    for _ in range(_HALVINGS):
        size = np.maximum(np.abs(left), np.abs(right)).max(1) + 1e-3 * np.max(np.abs(reach))
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
    return Jump(left[best], right[best], float(gap[best]), int(np.abs(f_right - f_left)[best].argmax()))


def _segments(source: CallableSource, start: Array, reach: Array, seed: int) -> tuple[Array, Array]:
    """Segments from the start to the neighbours at which f differs most from its value there."""
    noise = np.random.default_rng(seed)
    scale = np.resize(_SCALES, _NEIGHBOURS)[:, None]
    shifts = scale * noise.uniform(-1, 1, (_NEIGHBOURS, len(start)))
    axes = np.eye(len(start))[: _NEIGHBOURS // 2]
    shifts = np.concatenate([shifts, axes, -axes])
    near = np.clip(start + shifts * reach, source.box.lo.reshape(-1), source.box.hi.reshape(-1))
    change = np.abs(source(near) - source(start[None])).max(1)
    top = np.argsort(change, kind="stable")[::-1]
    chosen = np.concatenate([top[: _SEGMENTS // 2], top[_SEGMENTS // 2 :: max(1, 2 * len(top) // _SEGMENTS)]])
    return np.repeat(start[None], len(chosen), 0), near[chosen]
