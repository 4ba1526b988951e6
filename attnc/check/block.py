"""The verdict on the claims of one feed-forward block: [Affine, Pointwise, Affine], or gated [Affine, Pointwise, Affine, Product,
Affine], composed over everything that may enter it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from attnc.arithmetic import ARITHMETIC
from attnc.check.compose import compose
from attnc.check.values import CheckError, Errors, HeadErrors, SquareErrors, Value, largest_float
from attnc.domain import Array, Box, Normed
from attnc.functions import Function
from attnc.program import Affine, Pointwise, Product, Program
from attnc.records.certificate import Status, Verdict
from attnc.records.layers import Layer

HIDDEN, GATED = 2, 4  # the values that heads and products compute
Map = tuple[Array, Array]  # W (outputs, inputs) and b (outputs,)


@dataclass(frozen=True)
class BlockClaim:
    """|converted - original| <= approximation in exact arithmetic; executed, at most approximation + rounding; `products` is what
    rounding leaves if the heads are exact."""

    approximation: float
    rounding: float | None  # None: nothing is claimed of executions
    products: float | None = None
    interval: Sequence[float] | None = None  # [lo, hi] of all pre-activations, up to a 64th of the width


def block_program(f: Function, first: Map, second: Map, up: Map | None = None) -> Program:
    """x ↦ W2 f(W1 x + b1) + b2; gated: x ↦ W2 (f(W1 x + b1) ∘ (U x + c)) + b2."""
    inner = (Affine(0, *first), Pointwise(1, f))
    gate = () if up is None else (Affine(0, *up), Product((2, 3)))
    return Program(first[0].shape[1:], (*inner, *gate, Affine(2 if up is None else 4, *second)))


def check_block(
    program: Program,
    domain: Box | Normed,
    heads: HeadErrors,
    squares: SquareErrors | None,
    claim: BlockClaim,
    dtype: str,
) -> Verdict:
    """Whether the claim holds in every output of a block, for all inputs of the domain.

    >>> from attnc import functions
    >>> one = np.ones((1, 1))
    >>> program = block_program(functions.relu(), (one, one[0] * 0), (3 * one, one[0] * 0))
    >>> heads = HeadErrors(*(one[0] * c for c in (-2, 2, 1e-3, 1.001e-3)))
    >>> norm = Normed(False, np.ones(1), np.zeros(1))
    >>> for rounding in (4e-6, 1e-6):
    ...     print(check_block(program, norm, heads, None, BlockClaim(0.003001, rounding), "float32").status)
    proved
    unknown
    """
    bound = claim.approximation + (claim.rounding or 0.0)
    try:
        _check_fit(program, domain, heads, squares, dtype)
        entering, found = _composed(program, domain, heads, squares, dtype)
        none = np.zeros_like(heads.approximation)  # without errors of heads: what matrix products round
        heads = replace(heads, approximation=none, executed=none)
        plain = squares is not None and squares.multiplied and squares.approximation == 0  # no square at all
        squares = squares and replace(squares, approximation=0.0, executed=0.0, multiplied=plain)
        _, exact = _composed(program, domain, heads, squares, dtype)
        claims = [("approximation", found.approximation, Fraction(claim.approximation))]
        if claim.rounding is not None:
            total = Fraction(claim.approximation) + Fraction(claim.rounding)
            claims.append(("approximation + rounding", found.error, total))
        if claim.products is not None:
            claims.append(("products", exact.error, Fraction(claim.products)))
        if claim.interval is not None:
            (lo, hi), (low, high) = map(Fraction, claim.interval), entering.reach
            claims += [("interval", -low, (hi - lo) / 64 - lo), ("interval", high, (hi - lo) / 64 + hi)]
        for name, worst, claimed in claims:
            proved = largest_float(worst)
            if not (np.isfinite(proved) and Fraction(proved) <= claimed):
                raise CheckError(f"{name} is claimed to be {float(claimed):.6g}, but {proved:.6g} is proved")
    except CheckError as problem:
        return problem.verdict(bound)
    return Verdict(Status.PROVED, f"the bounds of {program.shapes[-1][-1]} outputs hold", bound)


def _composed(
    program: Program, domain: Box | Normed, heads: HeadErrors, squares: SquareErrors | None, dtype: str
) -> tuple[Value, Value]:
    """What holds of the pre-activations and of the outputs."""
    errors: dict[int, Errors] = {HIDDEN: heads, GATED: squares}
    powers = {} if squares is None else {"scale": squares.scale, "radius": squares.radius}
    more = {"product": (powers, {}), "pointwise": ({}, {"heads": 0})}
    layers = []
    for i, step in enumerate(program.steps, 1):
        tensors, settings = more.get(step.kind, ({}, {}))
        layers.append(Layer(step.kind, step.inputs, i, step.tensors() | tensors, settings))
    values = compose(program, layers, domain, errors, dtype, forms=False)
    return values[1], values[len(layers)]


def _check_fit(
    program: Program, domain: Box | Normed, heads: HeadErrors, squares: SquareErrors | None, dtype: str
) -> None:
    """Raise `CheckError` where nothing can be proved."""
    if dtype not in ARITHMETIC:
        raise CheckError(f"blocks run in float32 or float64: got {dtype!r}")
    arrays = [array for step in program.steps for array in step.tensors().values()]
    if not all(np.isfinite(x).all() and np.array_equal(x.astype(dtype), x) for x in arrays):
        raise CheckError(f"the block has numbers that {dtype} cannot represent, or that are not finite")
    if (squares is None) != (len(program.steps) == 3):
        raise CheckError("squares are required for gated blocks, and for those alone")
    proved = [heads.lo, heads.hi, heads.approximation, heads.executed]
    proved += [] if squares is None else [squares.scale, squares.radius]
    if not all(x.shape == program.shapes[1] and np.isfinite(x).all() for x in proved):
        raise CheckError("the bounds of the heads do not fit the neurons of the block")
    if domain.shape != program.shape:
        raise CheckError(f"inputs have the shape {program.shape}, but the domain has {domain.shape}")
