"""Inputs outside the domain of a module: nothing is promised there.

`strict=None` warns once for each module, `strict=True` raises, `strict=False` says nothing. The check is not part of a traced
graph: under torch.compile, torch.export, torch.jit.trace, make_fx and torch.func nothing is checked. On other devices than the
CPU, where looking at values would wait for the device, only `strict=True` checks."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable

from torch import Tensor, nn

from attnc.arguments import checked_strict as checked_strict
from attnc.domain import Box, Interval
from attnc.errors import DomainWarning, InputError
from attnc.network.running import can_look

_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def check_domain(
    module: nn.Module, x: Tensor, strict: bool | None, outside: Callable[[Tensor], str | None]
) -> None:
    """Warn or raise where `outside(x)` gives a reason; `strict` is what holds for this call."""
    if not is_checked(module, x, strict):
        return
    reason = outside(x.detach())
    if reason is None:
        return
    if strict:
        raise InputError(f"{reason}: nothing is promised there. {_ADVICE}, or call with strict=False")
    _warned.add(module)
    warnings.warn(
        f"{reason}: nothing is promised there, and results may be far off. {_ADVICE}; strict=False turns this warning off, "
        "strict=True makes it an error",
        DomainWarning,
        stacklevel=_caller(),
    )


def _caller() -> int:
    """How far up the stack the code is that called a module: neither attnc's nor torch's."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("attnc.", "torch.")):
        frame, level = frame.f_back, level + 1
    return level


def is_checked(module: nn.Module, x: Tensor, strict: bool | None) -> bool:
    """Whether anything would be said of an input outside."""
    if strict is False or (strict is None and (module in _warned or x.device.type != "cpu")):
        return False
    return x.numel() > 0 and can_look(x)


_ADVICE = "Keep inputs inside, build the module for a larger domain"


def outside_interval(x: Tensor, domain: Interval) -> str | None:
    """None where every number of x lies in the interval. NaN does not."""
    least, most = float(x.amin()), float(x.amax())
    if domain.lo <= least and most <= domain.hi:
        return None
    worst = least if least < domain.lo or least != least else most
    return f"an input of {worst:g} lies outside [{domain.lo:g}, {domain.hi:g}]"


def outside_box(x: Tensor, box: Box) -> str | None:
    """None where every input of the batch lies in the box. NaN does not."""
    if float(box.lo.max()) <= float(x.amin()) and float(x.amax()) <= float(box.hi.min()):
        return None
    inside = box.contains(x).reshape(-1)
    if bool(inside.all()):
        return None
    return f"input {int((~inside).nonzero()[0])} of the batch lies outside {box}"
