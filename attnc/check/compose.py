"""The checker's own composition of errors: what holds of every value of a program, one file for each kind of step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnc.arithmetic import ARITHMETIC
from attnc.check import (
    affine,
    attend,
    batch_norm,
    combine,
    embed,
    lookup,
    mix,
    norm,
    pointwise,
    product,
    reshape,
)
from attnc.check.values import CheckError, Errors, Passing, Value, start
from attnc.domain import Box, Normed
from attnc.program import Program
from attnc.records.layers import Layer

KINDS: dict[str, Callable[[Passing], Value]] = {
    "affine": affine.bound,
    "attend": attend.bound,
    "batch_norm": batch_norm.bound,
    "combine": combine.bound,
    "embed": embed.bound,
    "lookup": lookup.bound,
    "mix": mix.bound,
    "norm": norm.bound,
    "pointwise": pointwise.bound,
    "product": product.bound,
    "reshape": reshape.bound,
    "scale": batch_norm.bound,
}


def compose(
    program: Program,
    layers: Sequence[Layer],
    domain: Box | Normed,
    errors: Mapping[int, Errors],
    dtype: str,
    forms: bool = True,
) -> dict[int, Value]:
    """What holds of each value that the layers compute; `errors` states what was proved of the heads of a value.

    Raises `CheckError` where nothing follows, for instance where a head is not proved for all that may reach it."""
    values = {0: start(program, domain, forms)}
    with np.errstate(all="ignore"):
        for layer in layers:
            inputs = [values[i] for i in layer.inputs]
            at = Passing(program, layer, inputs, ARITHMETIC[dtype], errors.get(layer.value))
            try:
                values[layer.value] = KINDS[layer.kind](at).narrowed()
            except CheckError as problem:
                raise CheckError(f"{at.step.label}: {problem}") from None
    return values
