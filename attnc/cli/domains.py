"""--domain and --shape: the box of a network's inputs, as it is typed."""

from __future__ import annotations

import numpy as np

from attnc.domain import Array, Box
from attnc.errors import InputError


def parse_shape(text: str) -> tuple[int, ...]:
    """
    >>> parse_shape("16"), parse_shape("4, 16")
    ((16,), (4, 16))
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(
            f"--shape {text}: give the shape of one input, positive whole numbers: 16 features, or 4,16 for 4 tokens of 16"
        )
    return tuple(map(int, parts))


def parse_end(text: str) -> Array:
    """One number, or one for each feature.

    >>> parse_end("-1").tolist(), parse_end("0, 2.5").tolist()
    (-1.0, [0.0, 2.5])
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--domain {text}: give a number, or one for each feature with commas between them, e.g. --domain -1,0 1,5"
        ) from None
    return np.array(numbers[0] if len(numbers) == 1 else numbers)


def box_of(lo: Array, hi: Array, shape: tuple[int, ...] | None, source: str) -> Box:
    """The box of a shape; where none is known, lists of numbers tell it. Tokens share the ends of their features.

    >>> box_of(parse_end("0,1"), parse_end("2"), (3, 2), "net.safetensors")
    Box(0…1, 2, shape=(3, 2))
    """
    if shape is None and not (lo.ndim or hi.ndim):
        raise InputError(
            f"what shape an input of {source} has cannot be seen: give --shape 16 for 16 features, "
            "or --shape 4,16 for 4 tokens of 16"
        )
    known = shape or (lo if lo.ndim else hi).shape
    for end in (lo, hi):
        if end.ndim and end.shape != known[-1:]:
            raise InputError(
                f"--domain has a list of {end.size} numbers, where an input of {source} has {known[-1]} features: "
                "give one number for all of them, or one for each"
            )
    lo, hi = (np.broadcast_to(end, known) if end.ndim else end for end in (lo, hi))
    return Box(lo, hi, known)
