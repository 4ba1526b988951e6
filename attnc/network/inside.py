"""Inputs outside the domain of a module, where its certificate does not hold.

`strict=None` warns once for each module, `strict=True` raises, `strict=False` ignores them. In a traced graph nothing is checked.
On devices other than the CPU, where reading values would wait for the device, only `strict=True` checks."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnc.domain import Box, Interval
from attnc.errors import DomainWarning, InputError
from attnc.network.running import FULL, can_look

_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def check_domain(
    module: nn.Module, x: Tensor, strict: bool | None, outside: Callable[[Tensor], str | None]
) -> None:
    """Warn or raise if `outside(x)` returns a reason."""
    if strict is False or (strict is None and (module in _warned or x.device.type != "cpu")):
        return
    if not x.numel() or not can_look(x) or (reason := outside(x.detach())) is None:
        return
    text = f"{reason}: no error bound holds there. Keep inputs inside, build the module for a larger domain"
    if strict:
        raise InputError(f"{text}, or call with strict=False")
    _warned.add(module)
    text += "; strict=False disables this warning, strict=True raises an error"
    warnings.warn(text, DomainWarning, stacklevel=_caller())


def _caller() -> int:
    """The stack level of the code that called a module, outside attnc and torch."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("attnc.", "torch.")):
        frame, level = frame.f_back, level + 1
    return level


def check_tensor(kind: str, x: object, dtype: torch.dtype) -> None:
    """Raise unless x is a tensor of the dtype in which a module runs: nothing is cast silently."""
    if not isinstance(x, Tensor):
        raise InputError(f"a {kind} takes a tensor: got {type(x).__name__}; write {kind}(torch.tensor(...))")
    if x.dtype != dtype:
        raise InputError(f"this {kind} runs in {dtype}: got {x.dtype}; convert x, or use dtype={x.dtype}")
    if dtype not in FULL:
        raise InputError(f"the numbers of this {kind} are {dtype}: a {kind} runs in float32 or float64")


def outside_interval(x: Tensor, domain: Interval) -> str | None:
    """None if every number of x lies in the interval; NaN does not."""
    least, most = float(x.amin()), float(x.amax())
    if domain.lo <= least and most <= domain.hi:
        return None
    worst = least if least < domain.lo or least != least else most
    return f"an input of {worst:g} lies outside [{domain.lo:g}, {domain.hi:g}]"


def outside_box(x: Tensor, box: Box) -> str | None:
    """None if every input of the batch lies in the box; NaN does not."""
    if float(box.lo.max()) <= float(x.amin()) and float(x.amax()) <= float(box.hi.min()):
        return None
    inside = box.contains(x).reshape(-1)
    if bool(inside.all()):
        return None
    return f"input {int((~inside).nonzero()[0])} of the batch lies outside {box}"
