"""How errors pass through a network: the bounds of each value from those of its inputs, one function for each kind of layer.

For every value v three bounds are kept, entry by entry: an interval of the exact v; v as an affine function of the input,
Aξ + c ± r with |ξ| <= ρ, which keeps what cancels between neurons; and `error` >= |executed - exact|, with the part
`approximation` of it that remains if heads are evaluated in exact arithmetic. All in outward-rounded arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array, Box, Normed, Tokens
from attnc.errors import InputError
from attnc.program.program import Program
from attnc.prove.affine import affine_bounds, affine_carried
from attnc.prove.attend import attend_bounds, attend_carried
from attnc.prove.batch_norm import batch_norm_bounds, batch_norm_carried
from attnc.prove.bounds import Errors, HeadErrors, Known, LayerInputs, ValueBounds
from attnc.prove.combine import combine_bounds, combine_carried
from attnc.prove.embed import embed_bounds, embed_carried
from attnc.prove.forms import input_form
from attnc.prove.lookup import lookup_bounds, lookup_carried
from attnc.prove.mix import mix_bounds, mix_carried
from attnc.prove.norm import norm_bounds, norm_carried, normed_input
from attnc.prove.outward import total
from attnc.prove.pointwise import pointwise_bounds, pointwise_carried
from attnc.prove.product import product_bounds, product_carried
from attnc.prove.reshape import reshape_bounds, reshape_carried
from attnc.records.layers import Layer

NO_ERRORS = HeadErrors()
# bounds of a layer's value, and what errors of its inputs become in exact arithmetic
KINDS: dict[str, tuple[Callable[[LayerInputs], ValueBounds], Callable[[Layer, Errors, Known], Array]]] = {
    "affine": (affine_bounds, affine_carried),
    "attend": (attend_bounds, attend_carried),
    "batch_norm": (batch_norm_bounds, batch_norm_carried),
    "embed": (embed_bounds, embed_carried),
    "mix": (mix_bounds, mix_carried),
    "norm": (norm_bounds, norm_carried),
    "scale": (batch_norm_bounds, batch_norm_carried),
    "pointwise": (pointwise_bounds, pointwise_carried),
    "product": (product_bounds, product_carried),
    "lookup": (lookup_bounds, lookup_carried),
    "combine": (combine_bounds, combine_carried),
    "reshape": (reshape_bounds, reshape_carried),
}


def start(program: Program, domain: Box | Normed) -> ValueBounds:
    """The input: any vector of the domain, without an error."""
    if domain.shape != program.shape:
        raise InputError(f"the domain has shape {domain.shape}, but the input of the program {program.shape}")
    if isinstance(domain, Normed):
        with np.errstate(over="ignore", invalid="ignore"):
            return normed_input(domain)
    zero = np.zeros(domain.shape)
    form = None if isinstance(domain, Tokens) else input_form(domain, program)
    return ValueBounds(domain.lo, domain.hi, zero, zero, form)


def advance(
    program: Program, layer: Layer, known: Known, dtype: str, heads: HeadErrors = NO_ERRORS
) -> ValueBounds:
    """The bounds of the value that a layer computes. `heads` bounds the errors of its heads wherever their inputs may be."""
    inputs = LayerInputs(program, layer, [known[i] for i in layer.inputs], ARITHMETIC[dtype], heads)
    with np.errstate(over="ignore", invalid="ignore"):
        return KINDS[layer.kind][0](inputs)


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


def carried(layers: Sequence[Layer], known: Known, own: Mapping[int, Array | float]) -> dict[int, Array]:
    """What errors `own` of the values become in exact arithmetic, value by value (upper bounds)."""
    error: dict[int, Array] = {0: np.zeros(known[0].lo.shape)}
    for layer in layers:
        moved = KINDS[layer.kind][1](layer, [error[i] for i in layer.inputs], known)
        error[layer.value] = total(moved, np.broadcast_to(own.get(layer.value, 0.0), moved.shape))
    return error
