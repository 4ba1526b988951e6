"""Traced functions over cells: every bound against balls of real and complex numbers, with zero slack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import acb, arb

from attnc.check.cell_operations import Cells, remainder_factors
from attnc.check.cell_values import RADII
from attnc.check.lattice import chebyshev
from attnc.functions.balls import working
from attnc.program import Traced

PRECISION = 256


def random_program(draw: np.random.Generator, width: int, length: int) -> Traced:
    """A composition of the operations; arguments of log, sqrt and divisors are often made positive."""
    operations: list[Any] = [("constant", float(abs(draw.normal()))), ("constant", 1.0)]

    def add(*operation: Any) -> int:
        operations.append(operation)
        return width + len(operations) - 1

    for _ in range(length):
        a, b = (int(i) for i in draw.integers(0, width + len(operations), 2))
        kind = draw.choice(
            ["add", "subtract", "multiply", "divide", "maximum", "minimum", "negate", "absolute", "exp", "log", "sin", "cos",
             "sqrt", "erf", "atan", "where", "power", "power", "real power"]
        )  # fmt: skip
        if kind in ("log", "sqrt", "divide", "real power") and draw.random() < 0.95:
            b = add("add", add("multiply", b, b), width + int(draw.integers(0, 2)))
        if kind == "power":
            add("power", a, int(draw.integers(-2, 5)))
        elif kind == "real power":
            add("power", b, float(draw.choice([0.5, -0.5, 1.5, 2.25])))
        elif kind == "exp":
            add("exp", add("sin", a))
        elif kind in ("log", "sqrt"):
            add(kind, b)
        elif kind in ("negate", "absolute", "sin", "cos", "erf", "atan"):
            add(kind, a)
        elif kind == "where":
            add(kind, int(draw.integers(0, width + len(operations))), a, b)
        else:
            add(kind, a, b)
    count = width + len(operations)
    return Traced(0, width, tuple(operations), tuple(range(width, count)))


def continued(f: Traced, x: list[acb], signs: list[acb]) -> list[acb]:
    """f at a complex point: the branch of kinks that holds at the real point whose values are `signs`."""
    values = list(x)
    for name, *given in f.operations:
        here = [values[i] for i in given] if name not in ("constant", "power") else []
        if name == "constant":
            made = acb(given[0])
        elif name == "power":
            base, exponent = values[given[0]], given[1]
            made = (acb(exponent) * base.log()).exp() if isinstance(exponent, float) else base**exponent
        elif name == "absolute":
            made = here[0] if signs[given[0]].real > 0 else -here[0]
        elif name == "where":
            made = here[1] if signs[given[0]].real > 0 else here[2]
        elif name in ("maximum", "minimum"):
            first = signs[given[0]].real > signs[given[1]].real
            made = here[0] if first == (name == "maximum") else here[1]
        elif name in ("add", "subtract", "multiply", "divide"):
            plain = {
                "add": acb.__add__,
                "subtract": acb.__sub__,
                "multiply": acb.__mul__,
                "divide": acb.__truediv__,
            }
            made = plain[name](*here)
        else:
            made = -here[0] if name == "negate" else getattr(here[0], name)()
        values.append(made)
    return values


def random_cells(draw: np.random.Generator, width: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    middle, half = draw.uniform(-2, 2, (count, width)), 10 ** draw.uniform(-4, 0, (count, width))
    low, high = middle - half, middle + half
    low[draw.random((count, width)) < 0.1] = 0.0
    return np.minimum(low, high), np.maximum(low, high)


def test_remainder_of_interpolation() -> None:
    """1/(s - t_1)·…·1/(s - t_d) on the cell [-1, 1]^d: what the interpolant errs is below the estimate, and not far below it."""
    for degree, axes, i in [(4, 1, 3), (6, 2, 2), (8, 2, 4), (3, 3, 5)]:
        pole = float(RADII[i]) * 1.02
        nodes, _, matrix = chebyshev(degree)
        t = np.linspace(-1, 1, 201)
        basis = np.cos(np.outer(np.arccos(t), np.arange(degree + 1)))
        line = basis @ (matrix @ (1 / (pole - nodes)))  # the interpolant of a product is a product
        ends = 1 / (pole - t)
        off = max(abs(line[k] ** axes - ends[k] ** axes) for k in (0, 200, 100, 57))
        most = (1 / (pole - RADII[i])) ** axes
        estimate = remainder_factors(degree, axes)[i] * most
        assert off <= estimate <= 2000**axes * off


def test_random_programs() -> None:
    assert sum(checked(seed) for seed in range(16)) > 4000


def checked(seed: int) -> int:
    """Values of all operations at corners, faces, random points and nodes, and their continuations on the polydiscs."""
    draw = np.random.default_rng(seed)
    width = int(draw.integers(1, 4))
    f, degree = random_program(draw, width, 12), 4
    low, high = random_cells(draw, width, 12)
    cells = Cells(low, high, chebyshev(degree)[0])
    outputs = cells.outputs(f)
    finite = 0
    for cell in range(len(low)):
        known = [_of(v, cell) for v in outputs]
        with working(PRECISION):
            c = [(arb(float(a)) + arb(float(b))) / 2 for a, b in zip(low[cell], high[cell], strict=True)]
            h = [(arb(float(b)) - arb(float(a))) / 2 for a, b in zip(low[cell], high[cell], strict=True)]
            middle = _real(f, c)
            for _ in range(4):
                t = np.where(
                    draw.random(width) < 0.4, draw.choice([-1.0, 1.0], width), draw.uniform(-1, 1, width)
                )
                values = _real(f, [m + s * float(u) for m, s, u in zip(c, h, t, strict=True)])
                for v, y in zip(known, values[width:], strict=True):
                    if math.isfinite(v["low"]) and cells.defined[cell]:
                        assert y.is_finite() and not y < v["low"] and not y > v["high"]
                        finite += 1
            node = tuple(int(i) for i in draw.integers(0, degree + 1, width))
            exact = [(arb.pi() * (2 * i + 1) / (2 * degree + 2)).cos() for i in node]
            values = _real(f, [m + s * t for m, s, t in zip(c, h, exact, strict=True)])
            for v, y in zip(known, values[width:], strict=True):
                if math.isfinite(v["error"]) and math.isfinite(v["rest"]) and cells.defined[cell]:
                    at = np.broadcast_to(v["nodes"], (degree + 1,) * width)[node]
                    assert not abs(arb(float(at)) - y) > arb(v["error"]) + arb(v["rest"])
            for i, r in enumerate(RADII.tolist()):
                angle = draw.uniform(0, 2 * math.pi, width)
                z = [
                    acb(m) + acb(s) * r * acb(math.cos(a), math.sin(a)) * (1 - 2**-50)
                    for m, s, a in zip(c, h, angle, strict=True)
                ]
                there = continued(f, z, list(map(acb, middle)))
                for v, y in zip(known, there[width:], strict=True):
                    if v["rest"] == 0 and math.isfinite(v["radius"][i]) and cells.defined[cell]:
                        assert not abs(y - v["centre"]) > v["radius"][i]
    return finite


def _real(f: Traced, x: list[arb]) -> list[arb]:
    """All values, inputs first."""
    every = Traced(0, f.width, f.operations, tuple(range(f.width + len(f.operations))))
    return list(every.exact(np.array([x], dtype=object))[0])


def _of(v: Any, cell: int) -> dict[str, Any]:
    def pick(x: np.ndarray) -> Any:
        return x[..., min(cell, x.shape[-1] - 1)]

    found = {name: float(pick(getattr(v, name))) for name in ("centre", "low", "high", "rest", "error")}
    return {**found, "radius": pick(v.radius), "nodes": v.nodes[min(cell, len(v.nodes) - 1)]}
