"""Random traced functions, and Taylor models against balls of 256 bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flint import arb

from attnc.domain import Array
from attnc.functions.balls import working
from attnc.program import Traced
from attnc.program.traced import BALLS, Operation
from attnc.prove.taylor import Model

BITS = 256


def random_function(draw: np.random.Generator, width: int, outputs: int = 1, kinks: bool = True) -> Traced:
    """A composition of operations that is defined everywhere: arguments of divisions, roots and logarithms are made positive."""
    operations: list[Operation] = []

    def add(*operation: object) -> int:
        operations.append(tuple(operation))
        return width + len(operations) - 1

    def positive(a: int) -> int:
        return add("add", add("constant", float(draw.uniform(0.5, 2))), add("power", a, 2))

    def small(a: int) -> int:
        """At most 2 in size, so that exponentials stay small."""
        return add(
            "multiply", add("constant", float(draw.uniform(0.5, 2))), add(str(draw.choice(["sin", "cos"])), a)
        )

    pool = list(range(width))
    names = [
        "add",
        "subtract",
        "multiply",
        "divide",
        "exp",
        "log",
        "sin",
        "cos",
        "sqrt",
        "erf",
        "atan",
        "power",
        "real",
        "negate",
        "scale",
    ]
    names += ["absolute", "maximum", "minimum", "where"] if kinks else []
    for _ in range(int(draw.integers(3, 9))):
        name = str(draw.choice(names))
        a, b = (int(i) for i in draw.choice(pool, 2))
        if name in ("add", "subtract", "multiply", "maximum", "minimum"):
            made = add(name, a, b)
        elif name == "where":  # continuous: a and 0.4a, beside a = 0
            made = add(name, a, a, add("multiply", add("constant", 0.4), a))
        elif name == "divide":
            made = add(name, a, positive(b))
        elif name in ("log", "sqrt"):
            made = add(name, positive(a))
        elif name == "exp":
            made = add(name, small(a))
        elif name == "power":
            made = (
                add(name, a, int(draw.integers(2, 4)))
                if draw.random() < 0.6
                else add(name, positive(a), -int(draw.integers(1, 3)))
            )
        elif name == "real":
            made = add("power", positive(a), float(draw.uniform(-2, 2)))
        elif name == "scale":
            made = add("multiply", add("constant", float(draw.uniform(-2, 2))), a)
        else:
            made = add(name, a)
        pool.append(made)
    returned = [pool[-1], *(int(i) for i in draw.choice(pool[width:], outputs - 1))]
    return Traced(0, width, tuple(operations), tuple(returned))


def exact_values(f: Traced, point: Sequence[arb]) -> list[arb]:
    return f.interpret(list(point), BALLS, arb)


def model_value(model: Model, cell: int, t: Array) -> arb:
    """The polynomial of a cell at t."""
    total = arb(0)
    for coefficient, exponents in zip(model.c[:, cell].tolist(), model.x.exponents.tolist(), strict=False):
        term = arb(coefficient)
        for s, e in zip(t.tolist(), exponents, strict=True):
            for _ in range(e):
                term = term * arb(s)
        total = total + term
    return total


def corner_or_inside(draw: np.random.Generator, d: int) -> Array:
    """A point of [-1, 1]^d: inside, on faces, or a corner."""
    t = draw.uniform(-1, 1, d)
    on_face = draw.random(d) < draw.choice([0.0, 0.5, 1.0])
    return np.where(on_face, np.sign(t), t)


def in_cell(centre: Array, half: Array, t: Array) -> list[arb]:
    with working(BITS):
        return [
            arb(c) + arb(h) * arb(s)
            for c, h, s in zip(centre.tolist(), half.tolist(), t.tolist(), strict=True)
        ]
