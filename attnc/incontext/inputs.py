"""What learners are given, checked: examples, labels, counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.arithmetic import loose_products
from attnc.errors import InputError
from attnc.network.altered import why_altered
from attnc.network.head import Head
from attnc.records.certificate import Certificate


def checked_examples(
    name: str, x: Any, features: int, dtype: torch.dtype, limit: float, strict: bool
) -> Tensor:
    """A tensor (n, features) of the dtype, finite, and within the radius where that is asked."""
    if not isinstance(x, Tensor) or x.dtype != dtype:
        raise InputError(f"{name} is a tensor of {dtype}: got {getattr(x, 'dtype', type(x).__name__)}")
    if x.ndim != 2 or x.shape[1] != features or not len(x):
        raise InputError(f"{name} has the shape (n, {features}), n >= 1: got {tuple(x.shape)}")
    return _within(name, x, limit, strict)


def checked_labels(y: Any, n: int, dtype: torch.dtype, limit: float, strict: bool) -> Tensor:
    """A label for each example, finite, and within the radius where that is asked."""
    if not isinstance(y, Tensor) or y.dtype != dtype or y.shape != (n,):
        got = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"context_y is a tensor ({n},) of {dtype}, a label for each example: got {got}")
    return _within("context_y", y, limit, strict)


def _within(name: str, x: Tensor, limit: float, strict: bool) -> Tensor:
    if not bool(torch.isfinite(x).all()):
        at = tuple(int(i) for i in torch.nonzero(~torch.isfinite(x))[0])
        raise InputError(f"{name} holds {float(x[at])} at {at}: finite numbers are accepted")
    if strict and float(x.abs().max()) > limit:
        at = tuple(int(i) for i in np.unravel_index(int(x.abs().argmax()), tuple(x.shape)))
        raise InputError(
            f"{name} holds {float(x[at]):.6g} at {at}, beyond the radius {limit:g}: nothing is promised there. Standardise the "
            "data, give a larger radius, or call with strict=False"
        )
    return x


def checked_count(name: str, given: Any) -> int:
    """A positive whole number."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 1:
        raise InputError(f"{name}={given!r}: a positive whole number is accepted")
    return int(given)


def largest_eigenvalue(x: Tensor) -> float:
    """At least the largest eigenvalue of XᵀX/n, as computed in float64 and with room for all of its rounding."""
    wide = x.double()
    found = float(torch.linalg.eigvalsh(wide.T @ wide / len(wide))[-1])
    return found * (1 + eigenvalue_room(x)) + 1e-300


def eigenvalue_room(x: Tensor) -> float:
    """Of the largest eigenvalue: what XᵀX/n and its eigenvalues may be off in float64."""
    n, d = x.shape
    return max(1e-9, 4 * (n + d * d) * d * 2.0**-53)


def check_reached(name: str, size: float, limit: float, part: str) -> None:
    """Raise where something grew beyond the radius."""
    if not size <= limit:
        raise InputError(
            f"{name} reached {size:.4g}, beyond the radius {limit:g}: nothing is promised there. Give a larger radius ({part}), "
            "or call with strict=False"
        )


def why_not(
    learner: nn.Module, dtype: str, heads: Mapping[str, tuple[Head | None, Certificate | None]]
) -> str | None:
    """None where a learner and every head of it are what was certified, in the dtype and the arithmetic that were; else the
    reason why not. By name, each head and what the learner's certificate says of it."""
    altered = why_altered(learner)
    if altered is not None:
        return altered
    for name, (head, certificate) in heads.items():
        if (None if head is None else head.certificate) != certificate:
            return f"{name}: it is not the head that was certified"
        if head is None:
            continue
        reason = head.why_not_certified()
        if reason is not None:
            return f"{name}: {reason}"
        if not head.certificate.proved or head.certificate.dtype != dtype:
            return f"{name}: the certificate is for {dtype}"
    return loose_products(dtype)


def check_applies(reason: str | None) -> None:
    if reason is not None:
        raise InputError(
            f"the certificate does not apply: {reason}. Build the learner anew, or call with strict=False"
        )
