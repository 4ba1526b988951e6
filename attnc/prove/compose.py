"""How errors pass through a network: the bounds of each value from those of its inputs, one function for each kind of layer.

For every value v three bounds are kept, entry by entry: an interval of the exact v; v as an affine function of the input,
Aξ + c ± r with |ξ| <= ρ, which keeps what cancels between neurons; and `error` >= |executed - exact|, with the part
`approximation` of it that remains if heads are evaluated in exact arithmetic. All in outward-rounded arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array, Box, Normed
from attnc.errors import InputError
from attnc.program.program import Program
from attnc.prove.affine import affine_bounds, affine_carried
from attnc.prove.batch_norm import batch_norm_bounds, batch_norm_carried
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.combine import combine_bounds, combine_carried
from attnc.prove.forms import input_form
from attnc.prove.lookup import lookup_bounds, lookup_carried
from attnc.prove.norm import normed_input
from attnc.prove.outward import total
from attnc.prove.pointwise import pointwise_bounds, pointwise_carried
from attnc.prove.product import Squares, product_bounds, product_carried
from attnc.prove.reshape import reshape_bounds, reshape_carried
from attnc.records.network_numbers import Attention, Linear, Reorder, Scale, Selection, Stage, Sum

Layer = Stage | Squares
NO_ERRORS = HeadErrors()
# bounds of a layer's value, and what errors of its inputs become in exact arithmetic
KINDS: dict[type, tuple[Callable[..., ValueBounds], Callable[..., Array]]] = {
    Linear: (affine_bounds, affine_carried),
    Scale: (batch_norm_bounds, batch_norm_carried),
    Attention: (pointwise_bounds, pointwise_carried),
    Squares: (product_bounds, product_carried),
    Selection: (lookup_bounds, lookup_carried),
    Sum: (combine_bounds, combine_carried),
    Reorder: (reshape_bounds, reshape_carried),
}


def start(program: Program, domain: Box | Normed) -> ValueBounds:
    """The input: any vector of the domain, without an error."""
    if domain.shape != program.shape:
        raise InputError(f"the domain has shape {domain.shape}, but the input of the program {program.shape}")
    if isinstance(domain, Normed):
        with np.errstate(over="ignore", invalid="ignore"):
            return normed_input(domain)
    zero = np.zeros(domain.shape)
    return ValueBounds(domain.lo, domain.hi, zero, zero, input_form(domain, program))


def advance(
    program: Program,
    layer: Layer,
    known: Mapping[int, ValueBounds],
    dtype: str,
    heads: HeadErrors = NO_ERRORS,
) -> ValueBounds:
    """The bounds of the value that a layer computes. `heads` bounds the errors of its heads wherever their inputs may be."""
    bounds, _ = KINDS[type(layer)]
    with np.errstate(over="ignore", invalid="ignore"):
        return bounds(program, layer, [known[i] for i in inputs_of(layer)], ARITHMETIC[dtype], heads)


def compose(
    program: Program,
    layers: Sequence[Layer],
    domain: Box | Normed,
    heads: Mapping[int, HeadErrors],
    dtype: str,
) -> dict[int, ValueBounds]:
    """The bounds of every value that is computed; the heads of value v err by at most `heads[v]`."""
    known = {0: start(program, domain)}
    for layer in layers:
        known[layer.value] = advance(program, layer, known, dtype, heads.get(layer.value, NO_ERRORS))
    return known


def carried(
    layers: Sequence[Layer], known: Mapping[int, ValueBounds], own: Mapping[int, Array | float]
) -> dict[int, Array]:
    """What errors `own` of the values become in exact arithmetic, value by value (upper bounds)."""
    error: dict[int, Array] = {0: np.zeros(known[0].lo.shape)}
    for layer in layers:
        _, carry = KINDS[type(layer)]
        moved = carry(layer, [error[i] for i in inputs_of(layer)], known)
        error[layer.value] = total(moved, np.broadcast_to(own.get(layer.value, 0.0), moved.shape))
    return error


def inputs_of(layer: Any) -> tuple[int, ...]:
    """The values that a layer reads."""
    return tuple(layer.inputs) if hasattr(layer, "inputs") else (layer.input,)
