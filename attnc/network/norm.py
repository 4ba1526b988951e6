"""LayerNorm and RMSNorm as one layer of attention."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from attnc.arguments import checked_engine, checked_strict
from attnc.domain import Ball
from attnc.errors import InputError
from attnc.network.altered import CertifiedModule, as_made, warn_if_changed, why_altered, why_changed
from attnc.network.layer import LayerModule
from attnc.network.marking import mark_of
from attnc.network.marking import norm as marked_norm
from attnc.network.running import (
    PreciseModule,
    check_domain,
    check_tensor,
    constant,
    in_place,
    is_less,
    precise,
)  # fmt: skip
from attnc.progress import checked_call
from attnc.records.certificate import Certificate
from attnc.records.numbers import QUADRATIC, QuadraticNumbers
from attnc.records.record import Record, write

if TYPE_CHECKING:
    from attnc.network.literal import SelfAttentionNetwork

ENGINES = ("softmax", "closed-form")
_CHUNK = 1 << 18  # numbers in one chunk


@as_made
class TwoKeySum(PreciseModule):
    """z ↦ Σ_j value_j w_j ≈ (|z|²/dim + offset)^-power, where the two-key softmax of head j gives

        w_j = softmax(intercept_j - slope_j z·z, 0)₀

    Query and key of the token are z itself, its value is value_j; the second key has the score 0 and the value 0."""

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
        return self.sum(self.squares(z))

    def squares(self, z: Tensor) -> Tensor:
        """q = z·z, query and key of each token with itself: (…)."""
        if z.shape[-1:] != (self.dim,):
            raise InputError(f"inputs of the shape (…, {self.dim}) are expected: got {tuple(z.shape)}")
        return squares_of(z)

    def sum(self, squares: Tensor) -> Tensor:
        """Σ_j value_j w_j for the squares q (…)."""
        return two_key_sum(squares, self.slope, self.intercept, self.value)

    def closed_form(self, squares: Tensor) -> Tensor:
        """Of the power 1/2: (q/dim + offset)^-1/2 for the squares q (…), by a square root and a division."""
        if self.power != 0.5:
            raise InputError(f"the closed form is that of the power 1/2: got {self.power:g}")
        share, offset = constant(1.0 / self.dim, squares), constant(self.offset, squares)
        root: Tensor = (squares * share + offset).sqrt().reciprocal()
        return root.reshape(squares.shape)

    def numbers(self) -> QuadraticNumbers:
        """The numbers, as they are stored now."""
        dtype = str(self.slope.dtype).removeprefix("torch.")
        slope, intercept, value = (getattr(self, name).detach().cpu().double().numpy() for name in QUADRATIC)
        return QuadraticNumbers(slope, intercept, value, self.dim, self.offset, self.power, dtype)

    def extra_repr(self) -> str:
        u, count = f"(|z|²/{self.dim} + {self.offset:g})", len(self.slope)
        name = f"e^-{u}" if self.power == math.inf else f"{u}^-{self.power:g}"
        return f"{count} head{'s' * (count != 1)}, {name}"


@as_made
class QuadraticHead(TwoKeySum, CertifiedModule):
    """What `attnc.quadratic_head` makes: the sum of the heads, with its certificate. A token whose norm exceeds the radius of
    `certificate.holds_for` is outside the domain: `strict` says what happens then (None warns once, True raises)."""

    _takes_half = False

    def __init__(
        self, numbers: QuadraticNumbers, certificate: Certificate, strict: bool | None = None
    ) -> None:
        super().__init__(numbers)
        self.certificate, self.strict = certificate, checked_strict(strict)

    @precise
    def forward(self, z: Tensor, strict: bool | None = None) -> Tensor:
        """f(|z|²/features + lo) for z (…, features): (…). `strict` overrides the head's own for this call."""
        check_tensor("head", z, self.slope.dtype)
        squares, domain = self.squares(z), self.certificate.holds_for
        if isinstance(domain, Ball):
            most = domain.radius * domain.radius / self.dim
            check_domain(self, z, strict, partial(_outside, squares=squares, most=most))
        return self.sum(squares)

    @precise
    def weights(self, z: Tensor) -> Tensor:
        """The attention weights (…, heads, 2): of the token itself and of the second key."""
        scores = self.intercept - self.slope * self.squares(z).unsqueeze(-1)
        return torch.softmax(torch.stack([scores, torch.zeros_like(scores)], -1), -1)

    def why_not_certified(self) -> str | None:
        """None if the certificate applies to the head as it is now, else the reason."""
        return why_changed(self, self.certificate)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write numbers and certificate to a safetensors file; `attnc.load` reads it back. Warns if numbers have changed."""
        warn_if_changed(self, self.certificate)
        write(path, self.record())

    def record(self) -> Record:
        """Numbers and certificate, as in a file."""
        return Record(self.numbers(), self.certificate)


def squares_of(z: Tensor) -> Tensor:
    """q = z·z, query and key of each token with itself: (…)."""
    return (z.unsqueeze(-2) @ z.unsqueeze(-1)).reshape(z.shape[:-1])


def two_key_sum(squares: Tensor, slope: Tensor, intercept: Tensor, value: Tensor) -> Tensor:
    """Σ_j value_j w_j for the squares q = z·z (…), w_j = softmax(intercept_j - slope_j q, 0)₀."""
    scores = intercept.unsqueeze(-1) - slope.unsqueeze(-1) * squares.reshape(-1)
    weights = torch.softmax(torch.stack([scores, torch.zeros_like(scores)]), 0)[0]
    return (value @ weights).reshape(squares.shape)


@as_made
class Norm(PreciseModule):
    """x ↦ gain∘z/√(|z|²/d + ε) + shift with z = x - mean x (`centred`, LayerNorm) or z = x (RMSNorm), token by token:

        y = gain∘(R z) + shift,     R = Σ_j value_j w_j,     w_j = softmax(intercept_j - slope_j z·z, 0)₀

    Each head has two keys: the token itself, with the value value_j z, and a key with the score 0 and the value 0. This is what
    engine="softmax" runs. engine="closed-form" runs R = 1/√(z·z/d + ε), which the sum is proved to approximate.
    The gain is `weight`, or 1 + `weight` taken in the dtype `one_plus`; the tensors keep their names in the model. A token whose
    mean square exceeds `most` is outside the domain."""

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
        self.heads = TwoKeySum(numbers)
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
        return self.heads.parameters_added

    def forward(self, x: Tensor) -> Tensor:
        """The normalised tokens of x (…, d)."""
        name = mark_of(self)
        return self._run(x) if name is None else cast(Tensor, marked_norm(x, name))

    @precise
    def _run(self, x: Tensor) -> Tensor:
        closed = self.engine == "closed-form"
        if closed and x.is_contiguous() and x.shape[-1:] == (self.heads.dim,) and self._is_plain(x):
            return self._in_chunks(x)
        z = x - x.mean(-1, keepdim=True) if self.centred else x
        squares = self.heads.squares(z)
        self._check(x, squares)
        root = self.heads.closed_form(squares) if closed else self.heads.sum(squares)
        y: Tensor = root.unsqueeze(-1) * z
        gain = self.gain()
        y = y if gain is None else y * gain
        return y if self.bias is None else y + self.bias

    def _is_plain(self, x: Tensor) -> bool:
        numbers = [t for t in (self.weight, self.bias) if t is not None]
        return in_place(x, *numbers) and all(t.dtype == x.dtype for t in numbers)

    def _in_chunks(self, x: Tensor) -> Tensor:
        """The closed form, written in place, in chunks that stay in the cache."""
        out, squares, gain = torch.empty_like(x), [], self.gain()
        tokens = (t.view(-1, self.heads.dim) for t in (x.detach(), out))
        rows = (torch.split(t, max(1, _CHUNK // self.heads.dim)) for t in tokens)
        for part, y in zip(*rows, strict=True):
            z = torch.sub(part, part.mean(-1, keepdim=True), out=y) if self.centred else part
            squares.append(torch.linalg.vecdot(z, z))
            torch.mul(z, self.heads.closed_form(squares[-1]).unsqueeze(-1), out=y)
            if gain is not None and self.bias is not None:
                torch.addcmul(self.bias, y, gain, out=y)
            elif gain is not None:
                y.mul_(gain)
            elif self.bias is not None:
                y.add_(self.bias)
        self._check(x, torch.cat(squares))
        return out

    def _check(self, x: Tensor, squares: Tensor) -> None:
        outside = partial(_outside, squares=squares, most=self.most, centred=self.centred)
        check_domain(self, x, self.strict, outside)

    @checked_call
    def as_self_attention(self, n: int) -> SelfAttentionNetwork:
        """The norm as plain self-attention over n data tokens and an anchor, (…, n, d): what engine="softmax" computes."""
        from attnc.network.literal.blocks import literal_norm

        return literal_norm(self, n)

    def gain(self) -> Tensor | None:
        """The factor of each feature."""
        if self.weight is None or self.one_plus is None:
            return self.weight
        gain = 1.0 + self.weight.to(self.one_plus)
        return gain if is_less(self.weight.dtype) else gain.to(self.weight.dtype)

    def _full_dtype(self) -> torch.dtype:
        return self.heads.slope.dtype  # weight and bias may have half precision

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
        sizes = two_key_sum(squares_of(z), self.slope, self.intercept, self.output)
        y: Tensor = sizes.unsqueeze(-1) * z * self.gain + self.shift
        return y

    def extra_repr(self) -> str:
        kind = "LayerNorm" if self.settings["centred"] else "RMSNorm"
        return f"{kind}, d={len(self.gain)}, {len(self.slope)} heads of two keys"


def _outside(x: Tensor, squares: Tensor, most: float, centred: bool = False) -> str | None:
    """None if the mean square of every token is at most `most`. The squares z·z are rounded: near `most` they are summed anew."""
    if float(squares.detach().amax()) / x.shape[-1] <= most * (63 / 64):
        return None
    z = x - x.mean(-1, keepdim=True) if centred else x
    square = float(z.double().square().mean(-1).amax())
    return None if square <= most else f"a token with a mean square of {square:g} exceeds {most:g}"
