"""A feed-forward block as plain arrays, with which tests build and evaluate blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnc import functions
from attnc.domain import Normed
from attnc.frontends.transformers import Site
from attnc.program import Affine, Pointwise, Product
from attnc.program.program import Program
from attnc.program.step import Step

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Norm:
    """What makes the block's input x from any vector z: x = γ∘(z - mean z)/√(var z + ε) + β, or without the mean (rms)."""

    kind: str  # "layer" or "rms"
    gain: Numbers  # (d,)
    shift: Numbers  # (d,), zeros for rms

    def domain(self) -> Normed:
        """The outputs of the norm."""
        return Normed(self.kind == "layer", self.gain, self.shift)


@dataclass(frozen=True, eq=False)
class FeedForward:
    """x ↦ W2 f(W1 x + b1) + b2; gated: x ↦ W2 (f(W1 x + b1) ∘ (U x + c)) + b2."""

    activation: str  # a name of attnc.functions
    W1: Numbers  # (m, d)
    b1: Numbers  # (m,)
    W2: Numbers  # (outputs, m)
    b2: Numbers  # (outputs,)
    U: Numbers | None = None  # (m, d) where gated
    c: Numbers | None = None
    norm: Norm | None = None  # None: nothing is known of x

    @property
    def gated(self) -> bool:
        return self.U is not None

    def program(self, dtype: str = "float64") -> Program:
        """The block as a program over its input, with its numbers in the dtype that they were read from.

        The values are 1: W1 x + b1, 2: f(1), then the output, or if gated 3: U x + c, 4: 2∘3 and the output."""

        def affine(source: int, weight: Numbers, bias: Numbers) -> Affine:
            return Affine(source, weight.astype(dtype), bias.astype(dtype))

        steps: list[Step] = [affine(0, self.W1, self.b1), Pointwise(1, functions.get(self.activation))]
        if self.U is not None and self.c is not None:
            steps += [affine(0, self.U, self.c), Product((2, 3))]
        steps.append(affine(len(steps), self.W2, self.b2))
        return Program((self.W1.shape[1],), tuple(steps))


def feed_forward(site: Site) -> FeedForward:
    """The numbers of a block of a model, copied in float64."""
    (W1, b1), (W2, b2) = site.first.numbers(), site.second.numbers()
    U, c = (None, None) if site.up is None else site.up.numbers()
    domain = site.domain()
    norm = None if domain is None else Norm("layer" if domain.centred else "rms", domain.gain, domain.shift)
    return FeedForward(site.activation, W1, b1, W2, b2, U, c, norm)


def attainable(W: Numbers, domain: Normed) -> Numbers:
    """(m, d): for each row the z, of length √d, whose normalised vector (ε = 0) takes w·x to the upper end of its interval
    in exact arithmetic; -z takes it to the lower end. z = 0 if the interval is a point."""
    z = W * domain.gain
    z = np.ldexp(z, -np.frexp(np.abs(z).max(axis=1, keepdims=True))[1])
    if domain.centred:
        z = z - z.mean(axis=1, keepdims=True)
    length = np.sqrt((z * z).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(z, length, out=np.zeros_like(z), where=length > 0) * np.sqrt(W.shape[1]))
