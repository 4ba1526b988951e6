"""Checks of a context: examples, labels, counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnc.errors import InputError


def checked_examples(
    name: str, x: Any, features: int, dtype: torch.dtype, limit: float, strict: bool
) -> Tensor:
    """A finite tensor (n, features) of the dtype, within the radius if `strict`."""
    if not isinstance(x, Tensor) or x.dtype != dtype:
        raise InputError(f"{name} must be a tensor of {dtype}: got {getattr(x, 'dtype', type(x).__name__)}")
    if x.ndim != 2 or x.shape[1] != features or not len(x):
        raise InputError(f"{name} must have shape (n, {features}) with n >= 1: got {tuple(x.shape)}")
    return _within(name, x, limit, strict)


def checked_labels(y: Any, n: int, dtype: torch.dtype, limit: float, strict: bool) -> Tensor:
    """A finite label for each example, within the radius if `strict`."""
    if not isinstance(y, Tensor) or y.dtype != dtype or y.shape != (n,):
        got = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(
            f"context_y must be a tensor of shape ({n},) and dtype {dtype}, one label per example: got {got}"
        )
    return _within("context_y", y, limit, strict)


def _within(name: str, x: Tensor, limit: float, strict: bool) -> Tensor:
    if not bool(torch.isfinite(x).all()):
        at = tuple(int(i) for i in torch.nonzero(~torch.isfinite(x))[0])
        raise InputError(f"{name} contains {float(x[at])} at {at}: use finite numbers")
    if strict and float(x.abs().max()) > limit:
        at = tuple(int(i) for i in np.unravel_index(int(x.abs().argmax()), tuple(x.shape)))
        raise InputError(
            f"{name} contains {float(x[at]):.6g} at {at}, outside the radius {limit:g} of the bound. Standardise the "
            "data, use a larger radius, or call with strict=False"
        )
    return x


def checked_count(name: str, given: Any) -> int:
    """A positive whole number."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 1:
        raise InputError(f"{name}={given!r}: give a positive whole number")
    return int(given)


def largest_eigenvalue(x: Tensor) -> float:
    """At least the largest eigenvalue of XᵀX/n, computed in float64 with an allowance for its rounding."""
    wide = x.double()
    found = float(torch.linalg.eigvalsh(wide.T @ wide / len(wide))[-1])
    return found * (1 + eigenvalue_room(x)) + 1e-300


def eigenvalue_room(x: Tensor) -> float:
    """The rounding error of XᵀX/n and its eigenvalues in float64, relative to the largest eigenvalue."""
    n, d = x.shape
    return max(1e-9, 4 * (n + d * d) * d * 2.0**-53)


def check_reached(name: str, size: float, limit: float, part: str) -> None:
    """Raise if a size exceeds the radius."""
    if not size <= limit:
        raise InputError(
            f"{name} reached {size:.4g}, outside the radius {limit:g} for which the bound holds. Use a larger radius ({part}), "
            "or call with strict=False"
        )
