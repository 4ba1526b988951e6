"""y = f(x), element by element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.functions import Function
from attnc.functions.function import label_of
from attnc.program.step import Balls, OneInput, Shape, finite_setting


@dataclass(frozen=True, eq=False)
class Pointwise(OneInput):
    """y = f(x), element by element.

    `deviation` bounds |source's own function - f| for x > `beyond`: torch's softplus becomes the identity above its threshold,
    which differs from softplus by up to log(1 + exp(-threshold))/beta."""

    function: Function
    deviation: float = 0.0
    beyond: float = math.inf
    kind = "pointwise"
    linear = False

    def __post_init__(self) -> None:
        finite_setting(self, "deviation")
        object.__setattr__(self, "beyond", float(self.beyond))
        if math.isnan(self.beyond):
            raise InputError(f"{self.label}: beyond={self.beyond} must be a number or infinity")

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "function": label_of(self.function)}

    def shape(self, *given: Shape) -> Shape:
        return given[0]

    def problem(self) -> str | None:
        if self.function.provable:
            return None
        return f"{self.function.label!r} has no enclosure, so its error cannot be proved: pass attnc.function(..., enclosure=...)"

    def exact(self, *x: Balls) -> Balls:
        def value(s: arb) -> arb:
            off = self.deviation and not s <= arb(self.beyond)
            return self.function.over(s) + arb(0, self.deviation) if off else self.function.over(s)

        return np.asarray(np.frompyfunc(value, 1, 1)(x[0]), dtype=object)

    def approximate(self, *x: Tensor) -> Tensor:
        return self.function.torch_form(x[0])
