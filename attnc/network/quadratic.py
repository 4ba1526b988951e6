"""Powers of a quadratic form as attention: a token attends to itself and to a second key."""

from __future__ import annotations

import torch
from torch import Tensor

from attnc.errors import InputError
from attnc.network.altered import as_made
from attnc.network.running import PreciseModule, precise
from attnc.records.quadratic_numbers import QUADRATIC, QuadraticNumbers


@as_made
class QuadraticHeads(PreciseModule):
    """z ↦ Σ_j value_j w_j ≈ (|z|²/dim + offset)^-power, where the two-key softmax of head j gives

        w_j = softmax(intercept_j - slope_j z·z, 0)₀

    Query and key of the token are z itself, its value is value_j; the second key has the score 0 and the value 0.

    >>> import numpy as np
    >>> from attnc.lower.quadratic import quadratic_numbers
    >>> heads = QuadraticHeads(quadratic_numbers(0.5, 4, 1e-5, 1e6, 1e-6, "float64"))
    >>> z = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    >>> bool((heads(z) * (z.square().mean() + 1e-5).sqrt() - 1).abs() < 1e-6)
    True
    """

    _takes_half = True
    slope: Tensor  # (heads,)
    intercept: Tensor
    value: Tensor

    def __init__(self, numbers: QuadraticNumbers) -> None:
        super().__init__()
        self.dim, self.offset, self.power = numbers.dim, numbers.offset, numbers.power
        for name in QUADRATIC:
            stored = torch.from_numpy(getattr(numbers, name).astype(numbers.dtype))
            self.register_buffer(name, stored)

    @precise
    def forward(self, z: Tensor) -> Tensor:
        """The sum of the heads for z (…, dim): (…)."""
        return root(self._square(z), self.slope, self.intercept, self.value)

    @precise
    def closed_form(self, z: Tensor) -> Tensor:
        """(z·z/dim + offset)^-1/2 for z (…, dim), by a square root and a division."""
        if self.power != 0.5:
            raise InputError(f"the closed form is that of the power 1/2: got {self.power:g}")
        return (self._square(z) * (1.0 / self.dim) + self.offset).sqrt().reciprocal()

    def _square(self, z: Tensor) -> Tensor:
        """z·z, query and key of each token with itself: (…)."""
        if z.shape[-1:] != (self.dim,):
            raise InputError(f"inputs of the shape (…, {self.dim}) are expected: got {tuple(z.shape)}")
        return square(z)

    def numbers(self) -> QuadraticNumbers:
        """The numbers, as they are stored now."""
        dtype = str(self.slope.dtype).removeprefix("torch.")
        slope, intercept, value = (getattr(self, name).detach().cpu().double().numpy() for name in QUADRATIC)
        return QuadraticNumbers(slope, intercept, value, self.dim, self.offset, self.power, dtype)

    def extra_repr(self) -> str:
        return f"{len(self.slope)} heads, (|z|²/{self.dim} + {self.offset:g})^-{self.power:g}"


def square(z: Tensor) -> Tensor:
    """z·z, query and key of each token with itself: (…)."""
    return (z.unsqueeze(-2) @ z.unsqueeze(-1)).reshape(z.shape[:-1])


def root(squares: Tensor, slope: Tensor, intercept: Tensor, value: Tensor) -> Tensor:
    """Σ_j value_j w_j for the squares q = z·z (…), w_j = softmax(intercept_j - slope_j q, 0)₀."""
    scores = intercept.unsqueeze(-1) - slope.unsqueeze(-1) * squares.reshape(-1)
    weights = torch.softmax(torch.stack([scores, torch.zeros_like(scores)]), 0)[0]
    return (value @ weights).reshape(squares.shape)
