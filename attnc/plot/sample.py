"""What the pictures show, as numbers: the head as it runs, the function as it is, the attention weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.functions import Function, get
from attnc.functions import function as make_function
from attnc.functions.balls import working
from attnc.network.head import Head
from attnc.plot.canvas import expect_kind
from attnc.records.head_certificate import Certificate, Measured
from attnc.records.numbers import Array

AnyFunction = str | Function | Callable[[Tensor], Tensor]

POINTS = 800
COLUMNS = 600
MOST_ROWS = 256
_AT_ONCE = 1 << 22
_PRECISION = 128


@dataclass(frozen=True)
class Sample:
    """The executed head and f at points of the domain, and |head - f|."""

    s: Array
    head: Array
    f: Array
    error: Array


@dataclass(frozen=True)
class Level:
    """The line that the error stays below, and the input that comes closest to it."""

    height: float
    input: float
    error: float
    proved: bool

    @property
    def label(self) -> str:
        if self.proved:
            return f"proved bound {self.height:.4g}"
        return f"largest measured {self.height:.3g}, not proved"

    @property
    def point_label(self) -> str:
        where = f"at s = {self.input:.8g}"
        return f"witness: {self.error:.3g} {where}" if self.proved else where


def about(head: Head, name: str = "head") -> Certificate | Measured:
    """The certificate or the measurement: what says which function this is, and where. `name` is that of the picture."""
    instead = "give what attnc.head or attnc.load returns; networks are drawn by attnc.plot.network"
    expect_kind(head, (Head,), name, instead)
    known = head.certificate or head.measured
    if known is None:
        raise InputError(
            "this head says nothing of its function and domain: "
            "draw one that attnc.head or attnc.load returned"
        )
    return known


def function_of(head: Head, f: AnyFunction | None) -> Function:
    """The function that the head imitates: the one given, or the one that the certificate names.

    >>> import attnc
    >>> function_of(attnc.head("tanh", domain=(-8, 8), eps=1e-5), None).name
    'tanh'
    """
    known = about(head)
    if f is None:
        return _by_name(known)
    found = get(f) if isinstance(f, str) else f if isinstance(f, Function) else make_function(f)
    if found.label != known.function:
        raise InputError(
            f"the head imitates {known.function!r}: got f={found.label!r}; "
            "give the function that it was made for"
        )
    return found


def sample(head: Head, f: Function) -> Sample:
    """The head and f at evenly spaced points, and around the places where errors hide.

    Where f has an enclosure, the difference is taken in ball arithmetic: it is true far below what float64
    resolves.
    """
    s = _points(head, f)
    with torch.no_grad():
        executed = head(s.to(head.key.device), strict=False).to("cpu", torch.float64)
    wide = s.to(torch.float64)
    y, at = executed.tolist(), wide.tolist()
    if not f.provable:
        exact = f(wide)
        return Sample(wide.numpy(), executed.numpy(), exact.numpy(), (executed - exact).abs().numpy())
    with working(_PRECISION):
        values = [f.value(x) for x in at]
        error = [float(abs(arb(g) - v).mid()) for g, v in zip(y, values, strict=True)]
        shown = [float(v.mid()) for v in values]
    return Sample(wide.numpy(), executed.numpy(), np.array(shown), np.array(error))


def level(head: Head, seen: Sample) -> Level:
    """The proved bound with its witness; where nothing is proved, the largest error measured, called so."""
    if head.certificate is not None and head.why_not_certified() is None:
        witness = head.certificate.witness
        return Level(head.certificate.bound, witness.input, witness.error, proved=True)
    worst = int(np.argmax(seen.error))
    top, at = float(seen.error[worst]), float(seen.s[worst])
    if head.measured is not None and head.measured.error >= top:
        top, at = head.measured.error, head.measured.input
    return Level(top, at, top, proved=False)


def attention_columns(head: Head) -> tuple[Array, list[Array], int]:
    """An image of attention weights, each head's anchor positions, and how many anchors share a row.

    The rows are the anchors in order of position, head after head; the columns are points of the domain.
    Where there were more than `MOST_ROWS`, neighbouring anchors share a row, which shows the sum of their
    weights.
    """
    domain = about(head).domain
    middles = domain.lo + domain.width * ((np.arange(COLUMNS) + 0.5) / COLUMNS)
    s = torch.from_numpy(middles).to(head.key.device, head.key.dtype)
    positions = np.atleast_2d(head.anchors.numpy())
    order = np.argsort(positions, axis=1, kind="stable")
    p = positions.shape[1]
    share = math.ceil(p / max(1, MOST_ROWS // head.heads))
    parts = []
    at_once = max(1, _AT_ONCE // positions.size)
    for first in range(0, COLUMNS, at_once):
        part = s[first : first + at_once]
        with torch.no_grad():
            weights = head.weights(part).to("cpu", torch.float64).reshape(len(part), head.heads, p).numpy()
        in_order = np.take_along_axis(weights, order[None], axis=2)
        rows = np.add.reduceat(in_order, np.arange(0, p, share), axis=2)
        parts.append(rows.reshape(len(part), -1).T)
    return np.concatenate(parts, axis=1), list(np.take_along_axis(positions, order, axis=1)), share


def _by_name(known: Certificate | Measured) -> Function:
    found = None
    with suppress(InputError):
        found = get(known.function)
    # A measured head imitates a bare callable, which may bear the name of a built-in function and be another.
    if found is None or (isinstance(known, Measured) and found.provable):
        raise InputError(
            f"the head imitates {known.function!r}, a function of your own that is not registered: "
            "give it, f=..., or register it with attnc.functions.register"
        )
    return found


def _points(head: Head, f: Function) -> Tensor:
    """Points of the domain in the head's dtype, increasing and distinct."""
    known = about(head)
    lo, hi, width = known.domain.lo, known.domain.hi, known.domain.width
    worst = known.witness.input if isinstance(known, Certificate) else known.input
    special = [lo, hi, worst, *f.kinks]
    near = [x + sign * width * 2.0**-j for x in special for j in range(5, 40) for sign in (-1, 1)]
    wide = torch.tensor([*np.linspace(lo, hi, POINTS).tolist(), *special, *near], dtype=torch.float64)
    held = np.unique(wide.to(head.key.dtype).double().numpy())
    return torch.from_numpy(held[(held >= lo) & (held <= hi)]).to(head.key.dtype)
