"""Why an approximation does not converge: a discontinuity near the input where it is worst."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnc.domain import Array
from attnc.errors import InputError
from attnc.frontends.asked import Asked

_NEIGHBOURS, _SEGMENTS, _HALVINGS = 384, 24, 80
_SCALES = (1.0, 0.3, 0.1, 0.03)  # of the reach: how far neighbours are looked for
_LOOK_BACK, _KEPT = 6, 0.8  # a jump keeps so much of its size while the segment is halved so often
_NEAR = {
    "float64": 2.0**-50,
    "float32": 2.0**-21,
}  # of |x|: the distance at which inputs are still told apart
_NOISE = {"float64": 2.0**-40, "float32": 2.0**-14}  # of |f|: differences that rounding may make


@dataclass(frozen=True, eq=False)
class Jump:
    """Two inputs that are as near to each other as floating point tells them apart, and how far f is apart there."""

    left: Array  # (box.size,)
    right: Array
    size: float
    output: int  # the one that jumps most, of the flat outputs

    def __str__(self) -> str:
        at = [float(f"{v:.6g}") for v in self.left]
        apart = float(np.abs(self.right - self.left).max())
        return f"jumps by {self.size:.3g} at x = {at} (over a distance of {apart:.1g})"


def find_jump(ask: Asked, at: Array, reach: Array | float, eps: float, seed: int = 0) -> Jump | None:
    """A discontinuity of size eps/2 or more between `at` and a point within `reach` of it, or None.

    Segments from `at` to its neighbours are halved, always keeping the half over which f changes more. Over a continuous f the
    change goes to zero with the length (a slope k leaves k·length, a root its root); over a jump it stays.

    >>> import torch
    >>> from attnc.domain import Box
    >>> step = Asked(lambda x: torch.sign(x - 0.3), Box(-1, 1, shape=(1,)))
    >>> print(find_jump(step, np.array([0.29]), 0.1, 1e-2))
    jumps by 2 at x = [0.3] (over a distance of ...)
    >>> root = Asked(lambda x: x.abs().sqrt(), Box(-1, 1, shape=(1,)))
    >>> print(find_jump(root, np.array([0.01]), 0.1, 1e-2))
    None
    """
    lo, hi = ask.box.lo.reshape(-1), ask.box.hi.reshape(-1)
    start = np.asarray(at, dtype=np.float64).reshape(-1)
    if start.shape != lo.shape or not np.isfinite(start).all():
        raise InputError(f"a point of the box, {lo.size} finite numbers, is expected: got {np.shape(at)}")
    start = np.clip(start, lo, hi)
    left, right = _segments(ask, start, np.broadcast_to(np.abs(reach), lo.shape), seed)
    f_left, f_right = ask(left), ask(right)
    history = [np.abs(f_right - f_left).max(1)]
    for _ in range(_HALVINGS):
        middle = left / 2 + right / 2
        size = np.maximum(np.abs(left), np.abs(right)).max(1) + 1e-3 * np.max(np.abs(reach))
        if (np.abs(right - left).max(1) <= 2 * _NEAR[ask.dtype_name] * size).all():
            break
        f_middle = ask(middle)
        first = np.abs(f_middle - f_left).max(1) >= np.abs(f_right - f_middle).max(1)
        chosen = first[:, None]
        left, right = np.where(chosen, left, middle), np.where(chosen, middle, right)
        f_left, f_right = np.where(chosen, f_left, f_middle), np.where(chosen, f_middle, f_right)
        history.append(np.abs(f_right - f_left).max(1))
    before, gap = history[max(0, len(history) - 1 - _LOOK_BACK)], history[-1]
    noise = _NOISE[ask.dtype_name] * max(float(np.abs(f_left).max()), float(np.abs(f_right).max()))
    sound = (gap >= max(eps / 2, noise)) & (gap > 0) & (gap >= _KEPT * before)
    if not sound.any():
        return None
    best = int(np.where(sound, gap, -np.inf).argmax())
    return Jump(left[best], right[best], float(gap[best]), int(np.abs(f_right - f_left)[best].argmax()))


def _segments(ask: Asked, start: Array, reach: Array, seed: int) -> tuple[Array, Array]:
    """The neighbours at which f differs most from its value at the start, as ends of segments."""
    noise = np.random.default_rng(seed)
    scale = np.array(_SCALES)[np.arange(_NEIGHBOURS) % len(_SCALES)][:, None]
    shifts = scale * noise.uniform(-1, 1, (_NEIGHBOURS, len(start)))
    axes = np.eye(len(start))[: _NEIGHBOURS // 2]
    shifts = np.concatenate([shifts, axes, -axes])
    near = np.clip(start + shifts * reach, ask.box.lo.reshape(-1), ask.box.hi.reshape(-1))
    change = np.abs(ask(near) - ask(start[None])).max(1)
    top = np.argsort(change, kind="stable")[::-1]
    chosen = np.concatenate([top[: _SEGMENTS // 2], top[_SEGMENTS // 2 :: max(1, 2 * len(top) // _SEGMENTS)]])
    return np.repeat(start[None], len(chosen), 0), near[chosen]
