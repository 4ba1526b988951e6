"""The numbers of a Coq file that `attnc.export` wrote, read back: their digests are those of the module."""

from __future__ import annotations

import re

import numpy as np

from attnc.errors import InputError
from attnc.records.numbers import Array, HeadNumbers

_MODEL = re.compile(r"^Definition model : list head :=\n  \[(.*?)\]\.$", re.DOTALL | re.MULTILINE)
_HEAD = re.compile(r"Head ((?:\S+ ){2}\S+)\s+\[([^\]]*)\]")
_PAIRS = re.compile(r"^Definition model : list pair :=\n  \[(.*?)\]\.$", re.DOTALL | re.MULTILINE)
_PAIR = re.compile(r"Pair ((?:\S+ ){2}[^\s;\]]+)")
_ANCHOR = re.compile(r"Anchor ((?:\S+ ){3}[^\s;\]]+)")


def numbers_in(text: str, dtype: str) -> HeadNumbers:
    """The stored numbers, as they are written in the definition of the model.

    Raises InputError if the definition is not of the form that attnc writes."""
    models = _MODEL.findall(text)
    if len(models) != 1:
        raise InputError(
            f"the file has {len(models)} definitions of a model as attnc writes it: one is expected"
        )
    heads = _HEAD.findall(models[0])
    try:
        tops = np.array([_floats(top) for top, _ in heads])
        rows = np.array([[_floats(row) for row in _ANCHOR.findall(anchors)] for _, anchors in heads])
        return HeadNumbers(tops[:, :2], rows[:, :, :2], rows[:, :, 2:], tops[:, 2], dtype=dtype)
    except (ValueError, IndexError) as problem:
        raise InputError(f"the model of the file cannot be read: {problem}") from None


def pairs_in(text: str) -> Array:
    """The slopes, intercepts and values of heads of two keys: (heads, 3)."""
    models = _PAIRS.findall(text)
    if len(models) != 1:
        raise InputError(
            f"the file has {len(models)} definitions of a model as attnc writes it: one is expected"
        )
    return np.array([_floats(row) for row in _PAIR.findall(models[0])])


def _floats(text: str) -> list[float]:
    words = [word.strip("()") for word in text.split()]
    return [float.fromhex(word) if "x" in word else float(word) for word in words]
