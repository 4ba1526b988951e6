"""Lipschitz constants of traced functions: what is proved holds for slopes between points, and false ones are not proved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flint import arb

from attnc.check.cell_operations import Cells
from attnc.check.gradients import DualCells, check_lipschitz
from attnc.check.values import CheckError
from attnc.functions.balls import working
from attnc.program import Traced

X, Y = 0, 1
SMOOTH: dict[str, tuple[Any, ...]] = {
    "sin 3xy": (("constant", 3.0), ("multiply", X, Y), ("multiply", 2, 3), ("sin", 4)),
    "quotient": (("constant", 3.0), ("add", X, 2), ("divide", Y, 3), ("cos", 4)),
    "root": (
        ("multiply", X, X),
        ("power", Y, 2),
        ("add", 2, 3),
        ("constant", 0.5),
        ("add", 4, 5),
        ("sqrt", 6),
    ),
    "power": (
        ("exp", X),
        ("power", 2, 1.5),
        ("constant", 2.0),
        ("add", Y, 4),
        ("log", 5),
        ("subtract", 3, 6),
    ),
    "bell": (("erf", X), ("power", Y, 3), ("multiply", 2, 3), ("negate", 4)),
}
KINKED: dict[str, tuple[Any, ...]] = {
    "maximum": (("maximum", X, Y),),
    "minimum of three": (("negate", X), ("minimum", X, Y), ("minimum", 2, 3)),
    "clamp": (("constant", 0.25), ("maximum", X, 2), ("constant", 0.5), ("minimum", 3, 4)),
    "absolute": (("absolute", X),),
}


def steepest(f: Traced, points: int = 20_000) -> float:
    """The largest slope at points of the box, corners and edges included."""
    draw = np.random.default_rng(0)
    x = torch.from_numpy(np.clip(draw.uniform(-1.2, 1.2, (points, 2)), -1, 1)).requires_grad_(True)
    (slope,) = torch.autograd.grad(f.approximate(x).sum(), x)
    return float(slope.norm(dim=1).max())


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions(name: str) -> None:
    f = Traced(0, 2, SMOOTH[name], (1 + len(SMOOTH[name]),))
    most = steepest(f)
    check_lipschitz(f, -np.ones(2), np.ones(2), 1.02 * most)
    with pytest.raises(CheckError):
        check_lipschitz(f, -np.ones(2), np.ones(2), 0.99 * most, 3000)


@pytest.mark.parametrize("name", KINKED)
def test_functions_with_kinks_have_the_constant_one(name: str) -> None:
    f = Traced(0, 2, KINKED[name], (1 + len(KINKED[name]),))
    assert check_lipschitz(f, -np.ones(2), np.ones(2), 1.0) < 100
    with pytest.raises(CheckError):
        check_lipschitz(f, -np.ones(2), np.ones(2), 0.999, 3000)


@pytest.mark.parametrize("operations", [(("sqrt", X),), (("power", X, -1),), (("log", X), ("add", X, Y))])
def test_functions_without_a_constant(operations: tuple[Any, ...]) -> None:
    with pytest.raises(CheckError):
        check_lipschitz(Traced(0, 2, operations, (1 + len(operations),)), np.zeros(2), np.ones(2), 1e9, 3000)


def test_slopes_between_points_of_a_cell() -> None:
    """Of random cells of all these functions: |f(x) - f(y)| <= length·|x - y|, in balls."""
    draw = np.random.default_rng(4)
    low = draw.uniform(-1, 0.8, (20, 2))
    high = low + 10 ** draw.uniform(-3, -0.7, (20, 2))
    low[:8], high[:8] = -0.3, 0.3
    steep = (("constant", 5.0), ("multiply", X, 2), ("maximum", 3, Y), ("absolute", 4))
    for operations in (*SMOOTH.values(), *KINKED.values(), steep):
        f = Traced(0, 2, operations, (1 + len(operations),))
        (output,) = DualCells(Cells(low, high)).outputs(f)
        x, y = (np.clip(low + draw.random(low.shape) * (high - low), low, high) for _ in range(2))
        length = np.broadcast_to(output.length, len(low))
        assert np.isfinite(length).all()
        with working(256):
            ends = [[[arb(float(s)) for s in row] for row in points] for points in (x, y)]
            values = [f.exact(np.array(end, dtype=object))[:, 0] for end in ends]
            for a, b, v, w, most in zip(*ends, *values, length.tolist(), strict=True):
                apart = sum(((p - q) ** 2 for p, q in zip(a, b, strict=True)), arb(0)).sqrt()
                assert abs(v - w) <= arb(most) * apart
