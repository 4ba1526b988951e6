"""Plots of a head: the function and the head, the error and its bound, the attention weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.domain import Array
from attnc.errors import InputError
from attnc.functions import Function, get
from attnc.functions import function as make_function
from attnc.functions.balls import working
from attnc.network.head import Head
from attnc.plot import canvas
from attnc.plot.canvas import SavePath, known_error
from attnc.plot.heat_map import draw_head_attention, record_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AnyFunction = str | Function | Callable[[Tensor], Tensor]

POINTS = 800
_PRECISION = 128


def head(head: Head, *, f: AnyFunction | None = None, path: SavePath = None) -> Figure:
    """Plot the function and the head with a mark for each anchor, the error with its bound, and the attention weights.

    The proved bound is a solid line and the witness a circle; if the error is only measured, the line is dashed, at the largest
    measured error. `f` is needed only if the function is not registered. Returns the Figure, saved to `path` if one is given.

    >>> import attnc, attnc.plot
    >>> figure = attnc.plot.head(attnc.head("tanh", domain=(-8, 8), eps=1e-5))
    >>> [ax.get_title(loc="left") for ax in figure.axes[:3]]
    ['function', 'error', 'attention weights']
    """
    instead = "give what attnc.head or attnc.load returns; use attnc.plot.network for a network"
    canvas.prepare(path, head, (Head,), "head", instead)
    sample = sample_head(head, function_of(head, f))
    figure = canvas.new_figure(7.5, 8.5)
    grid = figure.add_gridspec(3, 2, width_ratios=(1, 0.025), height_ratios=(1, 1, 1.3))
    top = figure.add_subplot(grid[0, 0])
    middle, bottom = (figure.add_subplot(grid[row, 0], sharex=top) for row in (1, 2))
    draw_function(head, top, sample)
    _draw_error(head, middle, sample)
    image = draw_head_attention(head, bottom)
    figure.colorbar(image, cax=figure.add_subplot(grid[2, 1])).ax.tick_params(labelsize=8)
    for ax, title in ((top, "function"), (middle, "error")):
        ax.tick_params(labelbottom=False)
        canvas.title(ax, title)
    record = record_of(head)
    anchors = f"{head.heads} heads of " * (head.heads > 1) + f"{head.key.shape[1]} anchors"
    text = f"{record.facts['function']} on [{record.interval.lo:g}, {record.interval.hi:g}]: {anchors}, {head.design}"
    dtype = str(head.key.dtype).removeprefix("torch.")
    canvas.heading(figure, f"{text}, {dtype}\n{known_error(head).text}")
    return canvas.finish(figure, path)


class HeadSample(NamedTuple):
    """The executed head and f at points of the domain, and |head - f|."""

    s: Array
    head: Array
    f: Array
    error: Array


def function_of(head: Head, f: AnyFunction | None) -> Function:
    """The function of a head: the one given, or the registered one that the certificate names.

    >>> import attnc
    >>> function_of(attnc.head("tanh", domain=(-8, 8), eps=1e-5), None).name
    'tanh'
    """
    record, found = record_of(head), None
    label = record.facts["function"]
    if f is not None:
        found = get(f) if isinstance(f, str) else f if isinstance(f, Function) else make_function(f)
        if found.label != label:
            raise InputError(f"f={found.label!r} is not the function of this head: give {label!r}, or omit f")
        return found
    with suppress(InputError):
        found = get(label)
    # A measured head approximates a bare callable, whose name may be that of a built-in function.
    if found is None or (not record.proved and found.provable):
        raise InputError(f"the function {label!r} of this head is not registered: give it, f=...")
    return found


def sample_head(head: Head, f: Function) -> HeadSample:
    """The head and f at evenly spaced points, and near the ends, the kinks and the largest known error.

    If f has an enclosure, the difference is computed in ball arithmetic: it is accurate far below the resolution of float64."""
    s = _points(head, f)
    with torch.no_grad():
        executed = head(s.to(head.key.device), strict=False).to("cpu", torch.float64)
    wide = s.to(torch.float64)
    if not f.provable:
        exact = f(wide)
        return HeadSample(wide.numpy(), executed.numpy(), exact.numpy(), (executed - exact).abs().numpy())
    with working(_PRECISION):
        values = [f.value(x) for x in wide.tolist()]
        error = [float(abs(arb(g) - v).mid()) for g, v in zip(executed.tolist(), values, strict=True)]
        middles = [float(v.mid()) for v in values]
    return HeadSample(wide.numpy(), executed.numpy(), np.array(middles), np.array(error))


def _points(head: Head, f: Function) -> Tensor:
    """Points of the domain in the head's dtype, increasing and distinct."""
    record = record_of(head)
    lo, hi, width = record.interval.lo, record.interval.hi, record.interval.width
    worst = () if record.witness is None else record.witness.input
    special = [lo, hi, *worst, *f.kinks]
    near = [x + sign * width * 2.0**-j for x in special for j in range(5, 40) for sign in (-1, 1)]
    wide = torch.tensor([*np.linspace(lo, hi, POINTS).tolist(), *special, *near], dtype=torch.float64)
    held = np.unique(wide.to(head.key.dtype).double().numpy())
    return torch.from_numpy(held[(held >= lo) & (held <= hi)]).to(head.key.dtype)


def draw_function(head: Head, ax: Axes, sample: HeadSample) -> None:
    """Both curves, and a mark for each anchor in the domain."""
    record = record_of(head)
    canvas.curve_pair(ax, sample.s, sample.f, sample.head, (f"f = {record.facts['function']}", "head"))
    anchors = head.anchors.numpy().ravel()
    inside = anchors[(anchors >= record.interval.lo) & (anchors <= record.interval.hi)]
    some = f" ({len(inside)} of {len(anchors)} in the domain)" if len(inside) < len(anchors) else ""
    ax.margins(y=0.1)
    mark = {"markersize": 8, "markeredgewidth": 1.2, "color": canvas.VERMILION, "clip_on": False}
    canvas.rug(ax, inside, 0.035, label=f"anchors{some}", **mark)
    ax.set_xlim(record.interval.lo, record.interval.hi)
    canvas.legend_above(ax)
    canvas.style(ax)


def _draw_error(head: Head, ax: Axes, sample: HeadSample) -> None:
    """The error, the line that bounds it, and the input with the largest known error."""
    known, worst = known_error(head), int(sample.error.argmax())
    at, error, label = float(sample.s[worst]), float(sample.error[worst]), "at"
    witness = head.certificate.witness
    if known.proved and witness is not None:
        at, error = witness.input[0], witness.error
        label = f"witness: {error:.3g} at"
    elif known.value is None or known.value < error:  # the sample found a larger error
        known = replace(known, value=error)
    elif witness is not None:
        at, error = witness.input[0], witness.error
    ax.plot(sample.s, sample.error, color=canvas.BLUE, linewidth=1, label="_error")
    known.draw(ax)
    canvas.log_scale(ax, [known.value or 0.0, *sample.error])
    canvas.open_circle(ax, at, error, f"{label} s = {at:.8g}")
    ax.set_ylabel("|head − f|", fontsize=9)
    canvas.legend_above(ax)
    canvas.style(ax)
