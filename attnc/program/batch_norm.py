"""y = (x - mean)/√(variance + ε)·gain + shift: a normalisation with fixed statistics, which is an affine map."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Numbers, OneInput, Shape, balls, freeze, wide


@dataclass(frozen=True, eq=False)
class BatchNorm(OneInput):
    """y = (x - mean)/√(variance + ε)·gain + shift on the features, with stored statistics."""

    mean: Numbers
    variance: Numbers
    gain: Numbers
    shift: Numbers
    epsilon: float
    kind = "batch_norm"

    def __post_init__(self) -> None:
        freeze(self, "mean", "variance", "gain", "shift")
        shapes = {a.shape for a in self.tensors().values()}
        if len(shapes) != 1 or len(self.mean.shape) != 1:
            raise InputError(f"{self.label}: expected four vectors of one size, got shapes {sorted(shapes)}")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if float(np.min(self.variance)) + self.epsilon <= 0 or not math.isfinite(self.epsilon):
            raise InputError(f"{self.label}: variance + epsilon must be positive")

    def shape(self, *given: Shape) -> Shape:
        self.check_features(given[0], len(self.mean))
        return given[0]

    def exact(self, *x: Balls) -> Balls:
        scale = [
            arb(float(g)) / (arb(float(v)) + arb(self.epsilon)).sqrt()
            for g, v in zip(self.gain, self.variance, strict=True)
        ]
        y: Balls = (x[0] - balls(self.mean)) * np.array(scale, dtype=object) + balls(self.shift)
        return y

    def approximate(self, *x: Tensor) -> Tensor:
        scale = wide(self.gain) / torch.sqrt(wide(self.variance) + self.epsilon)
        return (x[0] - wide(self.mean)) * scale + wide(self.shift)

    def magnitude(self, *x: Tensor) -> Tensor:
        scale = wide(self.gain).abs() / torch.sqrt(wide(self.variance).abs() + self.epsilon)
        return (x[0] + wide(self.mean).abs()) * scale + wide(self.shift).abs()
