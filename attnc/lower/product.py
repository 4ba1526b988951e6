"""A product becomes two squares: λ and the radius of each neuron, and one head for s² on [-1, 1]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attnc.arguments import check_arithmetic
from attnc.arithmetic import ARITHMETIC
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.functions import square
from attnc.heads.exact_term import square_candidate
from attnc.heads.target import Plan
from attnc.lower.function_to_head import finished_head
from attnc.lower.heads import HeadRequest, cached_head
from attnc.lower.pointwise import executed_error
from attnc.network.head import Head
from attnc.program import Product
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.outward import times, total
from attnc.prove.product import square_powers
from attnc.records.layers import Layer


def lower_product(program: Program, value: int, dtype: str) -> Layer:
    """The layer, without λ and radius: these depend on what is proved of its inputs."""
    step = program.steps[value - 1]
    assert isinstance(step, Product)
    nothing = np.zeros(0, np.int8)
    return Layer("product", step.inputs, value, {"scale": nothing, "radius": nothing})


def scaled_product(layer: Layer, known: Mapping[int, ValueBounds], dtype: str, room: float = 1.0) -> Layer:
    """The layer with a λ and a radius for each neuron; the radius has `room` for factors that are larger than is proved."""
    x, y = (_any_token(known[i], room) for i in layer.inputs)
    powers = square_powers(x, y, ARITHMETIC[dtype])
    if powers is None:
        raise InputError("the factors of a product may exceed 2^127: scale the weights down")
    return replace(layer, tensors=dict(zip(("scale", "radius"), powers, strict=True)))


def _any_token(x: ValueBounds, room: float) -> ValueBounds:
    """Bounds of the executed values that hold for every token, feature by feature."""
    if room == 1 and x.lo.ndim == 1:
        return x
    most = room * x.executed.max(axis=tuple(range(x.lo.ndim - 1)))
    return ValueBounds(-most, most, np.zeros_like(most), np.zeros_like(most))


def with_square(layer: Layer, head: Head) -> Layer:
    """The layer with the numbers of the head of its square."""
    parts = {f"square.0.{name}": array for name, array in head.numbers().tensors().items()}
    return replace(layer, tensors={**layer.tensors, **parts})


def square_head(dtype: str) -> Head:
    """s² on [-1, 1], exact except for the rounding of the dtype."""
    check_arithmetic(dtype)
    domain = Interval(-1.0, 1.0)
    plan = Plan(square(), domain, "lattice", 1, dtype)
    request = HeadRequest(square(), domain, dtype, approximation=1.0, design="square")
    return cached_head(request, lambda: finished_head(plan, square_candidate(plan)))


def square_errors(layer: Layer, head: Head, engine: str, dtype: str) -> HeadErrors:
    """The head of [-1, 1] serves [-ρ, ρ] as q(ζ) = ρ²·head(ζ/ρ). Scaling by powers of two rounds nothing except what
    underflows, where ζ/ρ moves by τ < 1 at most, hence the head by 2A + 2τ + τ². The closed form is the product itself."""
    assert head.certificate.proved
    exact, tiny = head.certificate.approximation, ARITHMETIC[dtype].tiny
    area = np.exp2(2.0 * layer.tensor("radius"))
    if engine == "closed-form":
        return HeadErrors(times(area, exact), multiplied=True)
    executed = total(executed_error(head, square(), engine), 2 * exact, 3 * tiny)
    return HeadErrors(times(area, exact), total(times(area, executed), tiny))
