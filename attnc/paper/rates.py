"""How fast errors fall: the theorems' networks measured at growing sizes, and the designs that go past them.

one head        error ~ 1/p               p anchors
many heads      error ~ 1/(nH)            H heads over n tokens
two-layer       error ~ 1/g               g grid points along each axis, nearest
attention-softmax                         the same, through its own literal network
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnc.domain import Box
from attnc.errors import InputError
from attnc.heads.target import Progress
from attnc.lower.function_to_head import head as make_head
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.paper.many_heads import many_heads
from attnc.paper.one_head import one_head
from attnc.paper.universal import attention_softmax, two_layer

ANCHORS, HEADS, GRIDS = (60, 120, 240, 480, 960), (1, 2, 4, 8, 16, 32, 64), (4, 8, 16, 32)
DESIGNS = {"smooth": (8, 16, 32, 64, 128), "graded": (8, 16, 32, 64, 128)}
PAST_GRID = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
RANGE = 25.0
_DENSE, _POINTS = 64, 5_000  # samples between two anchors; random inputs of a function


@dataclass(frozen=True)
class Series:
    """Errors of one construction at growing sizes, beside its theorem's line."""

    construction: str  # one head, many heads, two-layer, attention-softmax
    design: str  # nearest: the theorem's; others go past it
    against: str  # what grows
    sizes: tuple[int, ...]
    errors: tuple[float, ...]  # measured, the largest found
    theorem: tuple[float, ...] = ()
    proved: tuple[float, ...] = ()

    @property
    def slope(self) -> float:
        """Of log error against log size, by least squares."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.errors), 1)[0])

    @property
    def within(self) -> bool:
        """Whether no error is above the theorem's bound."""
        return all(e <= b for e, b in zip(self.errors, self.theorem, strict=True)) if self.theorem else True


@dataclass(frozen=True)
class Rates:
    """All series; `attnc.plot.rates` draws them."""

    series: tuple[Series, ...]
    seed: int

    def __getitem__(self, name: tuple[str, str]) -> Series:
        """By construction and design.

        >>> round(Rates((Series("one head", "nearest", "p", (2, 4), (1.0, 0.5)),), 0)["one head", "nearest"].slope, 6)
        -1.0
        """
        for one in self.series:
            if (one.construction, one.design) == name:
                return one
        known = ", ".join(f"{s.construction}/{s.design}" for s in self.series)
        raise InputError(f"there is no series {name}: there are {known}")

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(one), "slope": one.slope, "within": one.within} for one in self.series]
        return {"seed": self.seed, "series": rows}

    def __str__(self) -> str:
        lines = [f"{'construction':18} {'design':8} {'against':8} {'sizes':>12} {'errors':>21} {'slope':>7}"]
        for s in self.series:
            sizes, errors = f"{s.sizes[0]}…{s.sizes[-1]}", f"{s.errors[0]:.2g} … {s.errors[-1]:.2g}"
            above = "" if s.within else "  above the theorem's bound"
            lines.append(
                f"{s.construction:18} {s.design:8} {s.against:8} {sizes:>12} {errors:>21} {s.slope:7.3f}{above}"
            )
        return "\n".join(lines)


def rates(
    *,
    anchors: Sequence[int] = ANCHORS,
    heads: Sequence[int] = HEADS,
    grids: Sequence[int] = GRIDS,
    past: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Rates:
    """Build the theorems' networks at growing sizes and measure their largest errors; some minutes at the sizes given.

    One head: n = 50, d = 10, Range_[-25,25], w, t ~ N(0,1), X in [-5,5]; many heads: n = 10. The grids are for a function of two
    tokens with Lipschitz constant 1. With `past`, the smooth and graded designs and the tensor lattice on the same axes.

    >>> import attnc.paper
    >>> found = attnc.paper.rates(anchors=(20, 40), heads=(1, 2), grids=(4, 8), past=False)
    >>> round(found["one head", "nearest"].slope, 1), all(series.within for series in found.series)
    (-1.0, True)
    """
    for name, sizes in (("anchors", anchors), ("heads", heads), ("grids", grids)):
        if len(set(sizes)) < 2:
            raise InputError(f"{name}={tuple(sizes)}: a rate needs two sizes or more")
    say = progress or (lambda _: None)
    series = [_one_head(anchors, seed, say), _many_heads(heads, seed, say)]
    series += [_grids(form, grids, say) for form in ("two-layer", "attention-softmax")]
    if past:
        series += [_design(design, sizes, say) for design, sizes in DESIGNS.items()]
        series.append(_lattice(say))
    return Rates(tuple(series), seed)


def _tokens(n: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 10, generator=draw, dtype=torch.float64), torch.randn(
        n, generator=draw, dtype=torch.float64
    )


def _one_head(anchors: Sequence[int], seed: int, say: Progress) -> Series:
    made = []
    for p in anchors:
        say(f"one head, p = {p}")
        made.append(one_head(*_tokens(50, seed), -RANGE, RANGE, anchors=p))
    return _series(
        "one head", "p", anchors, made, [_head_error(n, p) for n, p in zip(made, anchors, strict=True)]
    )


def _many_heads(heads: Sequence[int], seed: int, say: Progress) -> Series:
    made = []
    for count in heads:
        say(f"many heads, H = {count}")
        made.append(many_heads(*_tokens(10, seed), -RANGE, RANGE, heads=count))
    errors = [_head_error(net, 8 * count) for net, count in zip(made, heads, strict=True)]
    return _series("many heads", "nH", [10 * count for count in heads], made, errors)


def _series(
    name: str, against: str, sizes: Sequence[int], made: Sequence[Network], errors: Sequence[float]
) -> Series:
    bounds = [net.theorem.bound for net in made if net.theorem is not None]
    theorem = tuple(b for b in bounds if b is not None)
    proved = tuple(net.certificate.bound for net in made if net.certificate.proved)
    return Series(name, "nearest", against, tuple(sizes), tuple(errors), theorem, proved)


def _head_error(net: Network, anchors: int) -> float:
    """The largest |head(s) - Range(s)| over every s that the tokens reach, densely between anchors; and over random X."""
    ((_, head),) = net.layers[0].groups
    found = _range_error(head, anchors)
    x = torch.rand(256, *net.domain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = x * 10 - 5
    flat = net.stages[1](x.reshape(len(x), -1)).clamp(-RANGE, RANGE)
    return max(found, float((net(x).reshape(len(x), -1) - flat).abs().max()))


def _range_error(head: Head, anchors: int) -> float:
    known = head.certificate
    assert known is not None
    s = torch.linspace(known.interval.lo, known.interval.hi, 2 * _DENSE * anchors + 1, dtype=torch.float64)
    return float((head(s) - s.clamp(-RANGE, RANGE)).abs().max())


def _design(design: str, sizes: Sequence[int], say: Progress) -> Series:
    """Range by a head whose anchors are placed or valued better: as many keys, the same softmax."""
    errors, proved = [], []
    for p in sizes:
        say(f"{design}, p = {p}")
        made = make_head(
            f"clip(-{RANGE:g},{RANGE:g})", domain=(-60, 60), anchors=p, design=design, dtype=torch.float64
        )
        assert made.certificate.proved
        errors.append(_range_error(made, max(p, 64)))
        proved.append(made.certificate.bound)
    return Series("one head", design, "p", tuple(sizes), tuple(errors), (), tuple(proved))


def _wave(x: Tensor) -> Tensor:
    """Two tokens, Lipschitz constant 1: the gradient of sin(x_1 + x_2)/√2 is at most 1 long."""
    total = x.sum(1, keepdim=True)
    return torch.cat([total.sin(), total.cos()], 1) / math.sqrt(2)


def _grids(form: str, grids: Sequence[int], say: Progress) -> Series:
    """g nearest points along each axis of [-1, 1]², measured through the literal network of the form."""
    box, make = Box(-1, 1, shape=(2, 1)), two_layer if form == "two-layer" else attention_softmax
    made, errors, sizes = [], [], []
    for g in grids:
        say(f"{form}, {g} × {g}")
        net = make(_wave, box, eps=1.02 * math.sqrt(2) / g, lipschitz=1.0)
        made.append(net)
        sizes.append(round(math.sqrt(net.selections[0].anchors)))
        errors.append(_largest(net.as_self_attention() if g <= 16 else net, _wave))
    return _series(form, "g", sizes, made, errors)


def _lattice(say: Progress) -> Series:
    """The same function by values that are solved for, at the right sharpness."""
    box, found = Box(-1, 1, shape=(2, 1)), {}
    for eps in PAST_GRID:
        say(f"lattice, eps = {eps:g}")
        net = two_layer(_wave, box, eps=eps)
        found[round(math.sqrt(net.selections[0].anchors))] = _largest(net, _wave)
    return Series("two-layer", "lattice", "g", tuple(found), tuple(found.values()))


def _largest(net: torch.nn.Module, f: Callable[[Tensor], Tensor]) -> float:
    """The largest error at random inputs and on the boundaries of cells."""
    draw = torch.Generator().manual_seed(7)
    x = torch.rand(_POINTS, 2, 1, dtype=torch.float64, generator=draw) * 2 - 1
    line = torch.linspace(-1, 1, 97, dtype=torch.float64)
    cross = torch.cartesian_prod(line, line).unsqueeze(-1)
    x = torch.cat([x, cross])
    with torch.no_grad():
        return float((net(x) - f(x)).abs().max())
