"""LayerNorm and RMSNorm as one layer of attention."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from attnc.arguments import checked_engine, checked_strict
from attnc.network.altered import as_made, why_altered
from attnc.network.inside import check_domain
from attnc.network.layer import LayerModule
from attnc.network.marking import mark_of
from attnc.network.marking import norm as marked_norm
from attnc.network.quadratic import QuadraticHeads, root, square
from attnc.network.running import PreciseModule, precise
from attnc.records.quadratic_numbers import QuadraticNumbers

ENGINES = ("softmax", "closed-form")


@as_made
class Norm(PreciseModule):
    """x ↦ gain∘z/√(|z|²/d + ε) + shift with z = x - mean x (`centred`, LayerNorm) or z = x (RMSNorm), token by token:

        y = gain∘(R z) + shift,     R = Σ_j value_j w_j,     w_j = softmax(intercept_j - slope_j z·z, 0)₀

    Each head has two keys: the token itself, with the value value_j z, and a key with the score 0 and the value 0. This is what
    engine="softmax" runs. engine="closed-form" runs R = 1/√(z·z/d + ε), which the sum is proved to approximate.
    The gain is `weight`, or 1 + `weight` taken in the dtype `one_plus`; the tensors keep their names in the model. A token whose
    mean square exceeds `most` is outside the domain.

    >>> from attnc.lower.quadratic import quadratic_numbers
    >>> weight = nn.Parameter(torch.ones(4))
    >>> norm = Norm(quadratic_numbers(0.5, 4, 1e-5, 1e6, 1e-7, "float32"), True, weight, None, engine="softmax")
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> torch.allclose(norm(x), nn.functional.layer_norm(x, (4,)), atol=1e-6)
    True
    """

    _takes_half = True
    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        numbers: QuadraticNumbers,
        centred: bool,
        weight: Tensor | None,
        bias: Tensor | None,
        *,
        one_plus: torch.dtype | None = None,
        most: float = float("inf"),
        engine: str = "closed-form",
        strict: bool | None = None,
    ) -> None:
        super().__init__()
        self.heads = QuadraticHeads(numbers)
        for name, tensor in (("weight", weight), ("bias", bias)):
            if isinstance(tensor, nn.Parameter) or tensor is None:
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        self.centred, self.one_plus, self.most = centred, one_plus, most
        self.engine, self.strict = engine, checked_strict(strict)

    @property
    def engine(self) -> str:
        """The engine that runs."""
        return self._engine

    @engine.setter
    def engine(self, engine: str) -> None:
        self._engine = checked_engine(engine, ENGINES)

    @property
    def runs(self) -> str:
        """The engine that executes."""
        return self.engine

    @property
    def parameters_added(self) -> int:
        """The number of numbers that it stores besides the weight and the bias."""
        return sum(int(tensor.numel()) for tensor in self.heads.state_dict().values())

    def forward(self, x: Tensor) -> Tensor:
        """The normalised tokens of x (…, d)."""
        if (name := mark_of(self)) is not None:
            marked: Tensor = marked_norm(x, name)
            return marked
        return self._run(x)

    @precise
    def _run(self, x: Tensor) -> Tensor:
        check_domain(self, x, self.strict, partial(_outside, most=self.most))
        z = x - x.mean(-1, keepdim=True) if self.centred else x
        root = self.heads(z) if self.engine == "softmax" else self.heads.closed_form(z)
        y: Tensor = root.unsqueeze(-1) * z
        gain = self.gain()
        y = y if gain is None else y * gain
        return y if self.bias is None else y + self.bias

    def gain(self) -> Tensor | None:
        """The factor of each feature."""
        if self.weight is None or self.one_plus is None:
            return self.weight
        return (1.0 + self.weight.to(self.one_plus)).to(self.weight.dtype)

    def why_not_certified(self) -> str | None:
        """None if attnc's code runs the norm, else the reason."""
        return why_altered(self)

    def extra_repr(self) -> str:
        kind = "LayerNorm" if self.centred else "RMSNorm"
        return f"{kind}, d={self.heads.dim}, engine={self.engine!r}"


@as_made
class NormLayer(LayerModule):
    """The norm of a network, by softmax: x ↦ gain∘(R z) + shift."""

    name = "norm"
    slope: nn.Parameter  # (heads,)
    intercept: nn.Parameter
    output: nn.Parameter
    gain: nn.Parameter  # (d,)
    shift: nn.Parameter

    @precise
    def forward(self, x: Tensor) -> Tensor:
        z = x - x.mean(-1, keepdim=True) if self.settings["centred"] else x
        sizes = root(square(z), self.slope, self.intercept, self.output)
        y: Tensor = sizes.unsqueeze(-1) * z * self.gain + self.shift
        return y

    def extra_repr(self) -> str:
        kind = "LayerNorm" if self.settings["centred"] else "RMSNorm"
        return f"{kind}, d={len(self.gain)}, {len(self.slope)} heads of two keys"


def _outside(x: Tensor, most: float) -> str | None:
    """None if the mean square of every token is at most `most`."""
    least, largest = (float(end) for end in torch.aminmax(x))
    if max(-least, largest) ** 2 <= most:
        return None
    square = float(x.double().square().mean(-1).amax())
    return None if square <= most else f"a token with a mean square of {square:g} exceeds {most:g}"
