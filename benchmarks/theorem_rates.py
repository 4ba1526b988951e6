"""How fast errors fall: the theorems' networks measured at growing sizes, and the designs that improve on them.

one head        error ~ 1/p               p anchors
many heads      error ~ 1/(nH)            H heads over n tokens
two-layer       error ~ 1/g               g grid points along each axis, nearest
attention-softmax                         the same, through its own literal network

A row of the result has `construction`, `design`, `against` (what grows), `sizes`, the largest `errors` found, the bounds of the
`theorem`, the `proved` bounds, the `slope` of log error against log size, and whether all errors are `within` the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import attnc
from attnc.paper import attention_softmax, many_heads, one_head, two_layer
from attnc.plot import canvas

ANCHORS, HEADS, GRIDS = (60, 120, 240, 480, 960), (1, 2, 4, 8, 16, 32, 64), (4, 8, 16, 32)
PAST_ANCHORS, PAST_GRID = (8, 16, 32, 64, 128), (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
RANGE, BOX = 25.0, attnc.Box(-1, 1, shape=(2, 1))
_DENSE, _POINTS = 64, 5_000  # samples between two anchors; random inputs of a function
_AXES = {"p": "anchors p", "nH": "tokens × heads, n·H", "g": "anchors along each axis, g"}
_COLOURS = {
    "nearest": canvas.BLUE,
    "smooth": "#009E73",
    "graded": canvas.VERMILION,
    "lattice": canvas.VERMILION,
}
Row = dict[str, Any]


def rates(
    anchors: Sequence[int] = ANCHORS,
    heads: Sequence[int] = HEADS,
    grids: Sequence[int] = GRIDS,
    past: bool = True,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """One head: n = 50, d = 10, Range_[-25,25], w, t ~ N(0,1), X in [-5,5]; many heads: n = 10. The grids are for a function of
    two tokens with Lipschitz constant 1. With `past`, also the smooth and graded designs and the tensor lattice."""
    rows = [_one_head(anchors, seed, progress), _many_heads(heads, seed, progress)]
    rows += [_grids(form, grids, progress) for form in ("two-layer", "attention-softmax")]
    if past:
        rows += [_design(design, progress) for design in ("smooth", "graded")] + [_lattice(progress)]
    return rows


def row(
    construction: str, design: str, against: str, sizes: Sequence[int], errors: Sequence[float],
    theorem: Sequence[float] = (), proved: Sequence[float] = (),
) -> Row:  # fmt: skip
    within = not theorem or all(e <= b for e, b in zip(errors, theorem, strict=True))
    slope = float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])
    names = {
        "construction": construction,
        "design": design,
        "against": against,
        "slope": slope,
        "within": within,
    }
    return {**names, "sizes": [*sizes], "errors": [*errors], "theorem": [*theorem], "proved": [*proved]}


def _of_networks(
    name: str, against: str, sizes: Sequence[int], nets: Sequence[attnc.Network], errors: Sequence[float]
) -> Row:
    theorem = [net.theorem.bound for net in nets if net.theorem and net.theorem.bound is not None]
    proved = [net.certificate.bound for net in nets if net.certificate.proved]
    return row(name, "nearest", against, sizes, errors, theorem, proved)


def _tokens(n: int, seed: int) -> tuple[Tensor, Tensor]:
    draw: dict[str, Any] = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    return torch.randn(n, 10, **draw), torch.randn(n, **draw)


def _one_head(anchors: Sequence[int], seed: int, progress: Callable[[str], None]) -> Row:
    nets = []
    for p in anchors:
        progress(f"one head, p = {p}")
        nets.append(one_head(*_tokens(50, seed), -RANGE, RANGE, anchors=p))
    errors = [_head_error(net, p) for net, p in zip(nets, anchors, strict=True)]
    return _of_networks("one head", "p", anchors, nets, errors)


def _many_heads(heads: Sequence[int], seed: int, progress: Callable[[str], None]) -> Row:
    nets = []
    for count in heads:
        progress(f"many heads, H = {count}")
        nets.append(many_heads(*_tokens(10, seed), -RANGE, RANGE, heads=count))
    errors = [_head_error(net, 8 * count) for net, count in zip(nets, heads, strict=True)]
    return _of_networks("many heads", "nH", [10 * count for count in heads], nets, errors)


def _head_error(net: attnc.Network, anchors: int) -> float:
    """The largest |head(s) - Range(s)| over every s that the tokens reach, densely between anchors; and over random X."""
    ((_, head),) = net.layers[0].groups
    x = torch.rand(256, *net.domain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = x * 10 - 5
    flat = net.stages[1](x.reshape(len(x), -1)).clamp(-RANGE, RANGE)
    return max(_range_error(head, anchors), float((net(x).reshape(len(x), -1) - flat).abs().max()))


def _range_error(head: attnc.Head, anchors: int) -> float:
    on = head.certificate.interval
    s = torch.linspace(on.lo, on.hi, 2 * _DENSE * anchors + 1, dtype=torch.float64)
    return float((head(s) - s.clamp(-RANGE, RANGE)).abs().max())


def _design(design: str, progress: Callable[[str], None]) -> Row:
    """Range by a head with another design of its anchors."""
    errors, proved, function = [], [], f"clip(-{RANGE:g},{RANGE:g})"
    for p in PAST_ANCHORS:
        progress(f"{design}, p = {p}")
        head = attnc.head(function, domain=(-60, 60), anchors=p, design=design, dtype=torch.float64)
        assert head.certificate.proved
        errors.append(_range_error(head, max(p, 64)))
        proved.append(head.certificate.bound)
    return row("one head", design, "p", PAST_ANCHORS, errors, (), proved)


def _wave(x: Tensor) -> Tensor:
    """Two tokens, Lipschitz constant 1: the gradient of sin(x_1 + x_2)/√2 is at most 1 long."""
    total = x.sum(1, keepdim=True)
    return torch.cat([total.sin(), total.cos()], 1) / math.sqrt(2)


def _grids(form: str, grids: Sequence[int], progress: Callable[[str], None]) -> Row:
    """g nearest points along each axis of [-1, 1]², measured through the literal network of the form."""
    build = two_layer if form == "two-layer" else attention_softmax
    nets, errors = [], []
    for g in grids:
        progress(f"{form}, {g} × {g}")
        nets.append(build(_wave, BOX, eps=1.02 * math.sqrt(2) / g, lipschitz=1.0))
        errors.append(_wave_error(nets[-1].as_self_attention() if g <= 16 else nets[-1]))
    return _of_networks(form, "g", [_side(net) for net in nets], nets, errors)


def _lattice(progress: Callable[[str], None]) -> Row:
    """The same function by the lattice that `attnc.compile` finds without a Lipschitz constant."""
    found = {}
    for eps in PAST_GRID:
        progress(f"lattice, eps = {eps:g}")
        net = two_layer(_wave, BOX, eps=eps)
        found[_side(net)] = _wave_error(net)
    return row("two-layer", "lattice", "g", [*found], [*found.values()])


def _side(net: attnc.Network) -> int:
    return round(math.sqrt(net.selections[0].anchors))


def _wave_error(net: torch.nn.Module) -> float:
    """The largest error at random inputs and on the boundaries of cells."""
    draw = torch.Generator().manual_seed(7)
    x = torch.rand(_POINTS, 2, 1, dtype=torch.float64, generator=draw) * 2 - 1
    line = torch.linspace(-1, 1, 97, dtype=torch.float64)
    x = torch.cat([x, torch.cartesian_prod(line, line).unsqueeze(-1)])
    with torch.no_grad():
        return float((net(x) - _wave(x)).abs().max())


def draw(rows: Sequence[Row], path: Path) -> None:
    """One panel for each size that grows: measured errors with their fitted slopes, and the theorems' bounds."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    sizes = [name for name in _AXES if any(one["against"] == name for one in rows)]
    figure = canvas.new_figure(4.2 * len(sizes), 3.8)
    for name, ax in zip(sizes, figure.subplots(1, len(sizes), squeeze=False)[0], strict=True):
        for one in (one for one in rows if one["against"] == name):
            second = one["construction"] == "attention-softmax"  # the same errors from another network
            colour = "#56B4E9" if second else _COLOURS[one["design"]]
            label = one["construction"] if one["design"] == "nearest" else one["design"]
            style, size = ("x--", 7) if second else ("o-", 4)
            label += f", slope {one['slope']:.2f}"
            ax.plot(one["sizes"], one["errors"], style, color=colour, markersize=size, label=label)
            if one["theorem"] and not second:
                ax.plot(one["sizes"], one["theorem"], ":", color=canvas.GREY, label="theorem's bound")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel(_AXES[name])
        ax.grid(color="#dddddd", linewidth=0.5)
        ax.set_axisbelow(True)
        ax.legend(fontsize=8, frameon=False)
    figure.axes[0].set_ylabel("largest error found")
    canvas.save(figure, path)
