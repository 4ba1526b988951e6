"""--domain and --shape of `attnc compile`: the box of a network's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnc.errors import InputError

if TYPE_CHECKING:
    from attnc.domain import Box


def parse_shape(text: str) -> tuple[int, ...]:
    """
    >>> parse_shape("16"), parse_shape("4, 16")
    ((16,), (4, 16))
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--shape {text}: give positive integers, as in 16, or 4,16 for 4 tokens of 16")
    return tuple(map(int, parts))


def parse_end(text: str) -> list[float]:
    """One number, or one for each feature.

    >>> parse_end("-1"), parse_end("0, 2.5")
    ([-1.0], [0.0, 2.5])
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--domain {text}: give a number, or one for each feature as in -1,0 1,5") from None


def make_box(lo: list[float], hi: list[float], shape: tuple[int, ...] | None, source: str) -> Box:
    """The box [lo, hi] of a shape, which a list of numbers determines where it is None. All tokens have the same ends.

    >>> make_box([0.0, 1.0], [2.0], (3, 2), "net.safetensors")
    Box(0…1, 2, shape=(3, 2))
    """
    import numpy as np

    from attnc.domain import Box

    features = max(len(lo), len(hi))
    if shape is None and features == 1:
        raise InputError(f"{source} does not determine the shape of an input: give --shape, as in 16 or 4,16")
    shape = shape or (features,)
    for end in (lo, hi):
        if len(end) not in (1, shape[-1]):
            raise InputError(
                f"--domain has {len(end)} numbers but an input of {source} has {shape[-1]} features"
            )
    low, high = (end[0] if len(end) == 1 else np.broadcast_to(end, shape) for end in (lo, hi))
    return Box(low, high, shape)
