"""LayerNorm and RMSNorm: y = gain∘(x - mean x)/√(var x + ε) + shift, or without the mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Numbers, OneInput, Shape, balls, finite_setting, freeze, wide


@dataclass(frozen=True, eq=False)
class Norm(OneInput):
    """y = gain∘u/√(mean u² + ε) + shift over the features of each token, with u = x - mean x if `centred`, else u = x."""

    gain: Numbers  # (d,)
    shift: Numbers  # (d,)
    epsilon: float
    centred: bool  # LayerNorm; False: RMSNorm
    kind = "norm"
    linear = False

    def __post_init__(self) -> None:
        freeze(self, "gain", "shift")
        if self.gain.ndim != 1 or not len(self.gain) or self.shift.shape != self.gain.shape:
            shapes = f"{self.gain.shape} and {self.shift.shape}"
            raise InputError(f"{self.label}: gain and shift have shapes {shapes}, expected (d,)")
        finite_setting(self, "epsilon")
        object.__setattr__(self, "centred", bool(self.centred))

    def problem(self) -> str | None:
        return None if self.epsilon > 0 else "its epsilon is 0: a norm is bounded for a positive epsilon"

    def shape(self, *given: Shape) -> Shape:
        self.check_features(given[0], len(self.gain))
        return given[0]

    def exact(self, *x: Balls) -> Balls:
        rows = x[0].reshape(-1, len(self.gain))
        y = np.empty_like(rows)
        for i, row in enumerate(rows):
            u = row - sum(row, arb(0)) / len(row) if self.centred else row
            square = sum((s * s for s in u), arb(0)) / len(u)
            y[i] = u / (square + arb(self.epsilon)).sqrt()
        return np.asarray(y * balls(self.gain) + balls(self.shift), dtype=object).reshape(x[0].shape)

    def approximate(self, *x: Tensor) -> Tensor:
        u = x[0] - x[0].mean(-1, keepdim=True) if self.centred else x[0]
        root = torch.sqrt(u.square().mean(-1, keepdim=True) + self.epsilon)
        return u / root * wide(self.gain) + wide(self.shift)

    def magnitude(self, *x: Tensor) -> Tensor:
        most = wide(self.gain).abs() * math.sqrt(len(self.gain)) + wide(self.shift).abs()
        return most.expand(x[0].shape)
