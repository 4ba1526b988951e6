"""A norm becomes heads of two keys, for every mean square that may reach them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Ball
from attnc.errors import PrecisionError
from attnc.lower.quadratic import QuadraticProof, proved_heads
from attnc.program import Norm
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.norm import mean_square
from attnc.prove.quadratic import norm_errors
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up
from attnc.records.layers import NORM_HEADS, Layer

_LARGEST_TARGET = 2.0**-12  # of the relative error: outputs stay normalised to 2^-10
_ROOM = 1 + 2.0**-4  # for the checker's bound of the rounding of few heads
_LEAST_MOST, _MOST = 2.0**4, 2.0**64  # mean squares


def lower_norm(program: Program, value: int, dtype: str) -> Layer:
    """The layer, without heads: these depend on what is proved of its input."""
    step = program.steps[value - 1]
    assert isinstance(step, Norm)
    nothing = np.zeros(0, dtype)
    numbers = {"gain": step.gain.astype(dtype), "shift": step.shift.astype(dtype)}
    return Layer(
        "norm", step.inputs, value, dict.fromkeys(NORM_HEADS, nothing) | numbers, {"centred": step.centred}
    )


def norm_heads(layer: Layer, step: Norm, entering: ValueBounds, share: float, dtype: str) -> QuadraticProof:
    """The fewest heads whose outputs are within `share` in exact arithmetic; if none are, the closest ones."""
    size = float(np.abs(layer.tensor("gain")).max()) * math.sqrt(len(step.gain))
    square = float(mean_square(entering, step.centred, ARITHMETIC[dtype]).max())
    if not square <= _MOST:
        raise PrecisionError(
            f"a token of {step.label} may have a mean square above {_MOST:g}: use a smaller box"
        )
    most = max(_LEAST_MOST, 4.0 ** math.ceil(math.log(1.25 * (square + step.epsilon), 4.0)))
    target = min(_LARGEST_TARGET, share / size / 1.05 if size > 0 else 1.0)
    target = 10.0 ** math.floor(math.log10(max(target, 1e-300)))
    while True:
        try:
            proof = proved_heads(0.5, len(step.gain), step.epsilon, most, max(target, 1e-15), dtype)
            return replace(proof, executed=_ROOM * proof.executed)
        except PrecisionError:
            target = max(target, 1e-15) * 10
            if target > _LARGEST_TARGET:
                raise


def with_heads(layer: Layer, proof: QuadraticProof) -> Layer:
    """The layer with the numbers of its heads."""
    numbers = proof.numbers
    heads = dict(zip(NORM_HEADS, (numbers.slope, numbers.intercept, numbers.value), strict=True))
    return replace(layer, tensors={**layer.tensors, **{n: a.astype(numbers.dtype) for n, a in heads.items()}})


def root_errors(proof: QuadraticProof) -> HeadErrors:
    """The relative errors of the root."""
    return HeadErrors(proof.approximation, proof.executed, most=proof.most)


def norm_terms(layer: Layer, proof: QuadraticProof) -> dict[str, Any]:
    """At least |y - norm| in every feature for one token: in exact arithmetic, and as executed."""
    gain, shift = (layer.tensor(name).astype(np.float64) for name in ("gain", "shift"))
    a = ARITHMETIC[proof.numbers.dtype]
    exact, executed = norm_errors(gain, shift, proof.approximation, proof.executed, a)
    return {"approximation": round_up(exact), "rounding": round_up(executed)}


def norm_claim(layer: Layer, step: Norm, name: str, proof: QuadraticProof) -> Certificate:
    """The certificate of the norm alone, for every token with a mean square up to `most`."""
    terms, numbers = norm_terms(layer, proof), proof.numbers
    return Certificate(
        subject="norm",
        name=name,
        status=Status.PROVED,
        **terms,
        bound=round_up(terms["approximation"] + terms["rounding"]),
        holds_for=Ball(numbers.dim, math.sqrt(numbers.dim * proof.most), step.centred),
        dtype=numbers.dtype,
        digests=numbers.digests(),
        facts={
            "kind": "layer" if step.centred else "rms", "engine": "softmax", "features": numbers.dim, "value": layer.value,
            "epsilon": step.epsilon, "heads": len(numbers), "relative": proof.approximation, "most": proof.most,
            "executed": {"softmax": proof.executed}, "roundings": {"softmax": terms["rounding"]},
        },
    )  # fmt: skip
