"""Products of two values as attention over anchors, through squares; and the gated feed-forward block of a transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnc.arguments import checked_strict
from attnc.errors import InputError
from attnc.network.altered import as_made, why_altered, why_parts
from attnc.network.head import Head
from attnc.network.layer import to_array
from attnc.network.marking import mark_of
from attnc.network.marking import product as marked_product
from attnc.network.pointwise import Pointwise
from attnc.network.running import (
    PreciseModule,
    autocast_is_on,
    can_look,
    in_chunks,
    in_place,
    is_less,
    is_traced,
    precise,
)
from attnc.progress import checked_call
from attnc.records.certificate import Certificate
from attnc.records.layers import Layer, square_of

if TYPE_CHECKING:
    from attnc.network.literal import SelfAttentionNetwork

IntArray = NDArray[np.integer]
Rows = tuple[tuple[int, int], tuple[int, int]]
_CHUNK = 1 << 17  # products in one chunk: small enough for the cache
_HELD = 1 << 22  # numbers of a layer of neurons of a block in memory
_LARGEST = 254  # of an exponent: twice that of an int8
_LAYOUT = {  # integers of the same size, exponent of 1, bits of the fraction
    torch.float32: (torch.int32, 127, 23),
    torch.float64: (torch.int64, 1023, 52),
}


@as_made
class Product(PreciseModule):
    """(x, y) ↦ x∘y, a quarter of the difference of two squares, neuron by neuron along the last axis:

        ζ± = x/λ ± λy,   q(ζ) = ρ²·square(ζ/ρ),   p = (q(ζ⁺) - q(ζ⁻))/4 ≈ x y

    λ = 2^scale and ρ = 2^radius of each neuron are powers of two, so that scaling does not round. The head `square` serves
    [-1, 1]. Without gradients, on the CPU, the products are formed in chunks. The numbers are buffers, not parameters.

    engine="closed-form" multiplies: the closed form of the product is x∘y. engine="softmax" runs the head."""

    _takes_half = True
    scale: Tensor  # log2 λ, int8 (neurons,)
    radius: Tensor  # log2 ρ, int8 (neurons,)

    def __init__(self, square: Head, scale: IntArray, radius: IntArray, engine: str = "closed-form") -> None:
        super().__init__()
        self.square = Pointwise([(None, square)], engine)
        self.register_buffer("scale", _exponents("scale", scale))
        self.register_buffer("radius", _exponents("radius", radius))
        if self.scale.shape != self.radius.shape:
            raise InputError(
                f"scale has the shape {tuple(self.scale.shape)}, radius {tuple(self.radius.shape)}: give one of each for every "
                "neuron"
            )
        self.factors()

    @precise
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x∘y for x and y (…, neurons)."""
        if self.square.engine == "closed-form":
            return x * y
        if not in_place(x, y, *self.buffers()):
            return self._multiply(x, y)
        tokens = (t.reshape(-1, t.shape[-1]) for t in (x, y))
        return in_chunks(self._multiply, _CHUNK // max(1, self.scale.numel()), *tokens).reshape(x.shape)

    @property
    def runs(self) -> str:
        """The engines that execute."""
        return "closed-form" if self.square.engine == "closed-form" else self.square.runs

    def why_not_certified(self) -> str | None:
        """None if the head is certified for the square on [-1, 1] and attnc's code runs it, else the reason."""
        if (reason := why_altered(self) or self.square.why_not_certified()) is not None:
            return reason
        known = [head for _, head in self.square.groups]
        if len(known) != 1 or known[0].certificate.facts.get("function") != "square":
            return "its head is not certified for the square"
        domain = known[0].domain
        if domain is None or not domain.lo <= -1 <= 1 <= domain.hi:
            return "its head is not certified on [-1, 1]"
        return None

    def factors(self) -> Tensor:
        """λ, 1/λ, 1/ρ and ρ², (4, neurons): exact powers of two, assembled from the bits of the exponents."""
        dtype = self.square.groups[0][1].key.dtype
        if dtype not in _LAYOUT:
            raise InputError(f"the numbers of the square are {dtype}: heads run in float32 or float64")
        whole, bias, fraction = _LAYOUT[dtype]
        scale, radius = self.scale.to(whole), self.radius.to(whole)
        powers = torch.stack([scale, -scale, -radius, 2 * radius])
        if is_traced():
            return self._looked_up(powers, dtype)
        if powers.numel() and powers.device.type == "cpu" and can_look(powers):
            least, most = (int(end) for end in torch.aminmax(powers))
            if not -bias < least <= most <= bias:
                raise InputError(
                    f"the factors 2^{least} … 2^{most} are out of the range of {dtype}: keep the dtype of the conversion"
                )
        return torch.bitwise_left_shift(powers + bias, fraction).view(dtype)

    def extra_repr(self) -> str:
        return f"{self.scale.numel()} neurons"

    @staticmethod
    def _looked_up(powers: Tensor, dtype: torch.dtype) -> Tensor:
        """The powers of two from a table, since a graph may leave torch, and other runtimes have no operations on bits."""
        if torch.compiler.is_compiling():
            bias = _LAYOUT[dtype][1]
            torch._assert_async((powers.abs() < bias).all(), f"a factor is out of the range of {dtype}")
        table = torch.tensor([2.0**k for k in range(-_LARGEST, _LARGEST + 1)], dtype=torch.float64)
        return table.to(powers.device, dtype)[(powers + _LARGEST).long()]

    def _multiply(self, x: Tensor, y: Tensor) -> Tensor:
        scale, inverse, shrink, square = self.factors()
        left, right = x * inverse, y * scale
        above, below = (
            self.square(zeta * shrink, strict=False) * square for zeta in (left + right, left - right)
        )
        product: Tensor = (above - below) * 0.25
        return product


@as_made
class ProductLayer(Product):
    """The product of two values of a network, by softmax."""

    kind = name = "product"

    def __init__(self, layer: Layer, square: Certificate) -> None:
        head = Head(square_of(layer), str(square.facts["design"]), square)
        super().__init__(head, layer.tensor("scale"), layer.tensor("radius"), "softmax")
        self.inputs, self.value = layer.inputs, layer.value

    def numbers(self) -> Layer:
        """The numbers as they are stored now."""
        ((_, head),) = self.square.groups
        parts = {f"square.0.{name}": array for name, array in head.numbers().tensors().items()}
        powers = {"scale": to_array(self.scale), "radius": to_array(self.radius)}
        return Layer("product", self.inputs, self.value, powers | parts)


def _exponents(name: str, given: IntArray) -> Tensor:
    exponents = np.asarray(given)
    whole = exponents.ndim == 1 and exponents.dtype.kind in "iu"
    if not whole or (np.abs(exponents.astype(np.int64)) > 127).any():
        raise InputError(
            f"{name} has the shape {exponents.shape} and the dtype {exponents.dtype}: give an integer k of 2^k, |k| <= 127, for "
            "every neuron"
        )
    return torch.from_numpy(exponents.astype(np.int8))


@as_made
class GatedBlock(nn.Module):
    """x ↦ second(activation(first(x)) ∘ up(x)). `maps` are first, up and second, by the names that they had in the model's block.
    If first and up are parts of one map, `maps` are that one and second, and `rows` are the outputs [start, stop) of each part.

    Without gradients, on the CPU, tokens pass through the block in chunks. Under autocast the block runs in the dtype of its
    maps. `strict` is that of the activation: inputs inside its intervals are inside those of the squares."""

    def __init__(
        self, maps: Mapping[str, nn.Module], activation: Pointwise, product: Product, rows: Rows | None = None
    ) -> None:
        super().__init__()
        self.rows = rows
        for name, module in maps.items():
            if name in ("activation", "product") or hasattr(GatedBlock, name):
                raise InputError(f"a map is called {name!r}: that is the name of a part of GatedBlock")
            self.add_module(name, module)
        self.roles: tuple[str, ...] = tuple(maps)
        self.activation, self.product = activation, product

    @property
    def engine(self) -> str:
        """The engine that was chosen; setting it sets that of the activation and of the squares."""
        return self.activation.engine

    @engine.setter
    def engine(self, engine: str) -> None:
        self.activation.engine = self.product.square.engine = engine

    @property
    def strict(self) -> bool | None:
        """The `strict` of the activation."""
        return self.activation.strict

    @strict.setter
    def strict(self, strict: bool | None) -> None:
        self.activation.strict = checked_strict(strict)

    @property
    def runs(self) -> str:
        """The engines that execute."""
        first, second = self.activation.runs, self.product.runs
        return first if first == second else f"{first}, products {second}"

    @property
    def parameters_added(self) -> int:
        """The number of numbers that it stores besides the maps."""
        return self.activation.parameters_added + self.product.parameters_added

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for x (…, features)."""
        if (name := mark_of(self)) is not None:
            return self._block(x, lambda h, t: marked_product(h, t, name))
        if not autocast_is_on(x.device.type):
            return self._forward(x)
        dtype = next((p.dtype for p in self.get_submodule(self.roles[0]).parameters()), x.dtype)
        with torch.autocast(x.device.type, enabled=False):  # x may have less precision than the maps
            return self._forward(x.to(dtype)).to(x.dtype) if is_less(x.dtype) else self._forward(x)

    def why_not_certified(self) -> str | None:
        """None if the heads are those of their certificates and attnc's code runs them, else the reason.

        The report of the conversion covers the block with its maps: `attnc.verify(model)` checks it."""
        maps = [part for name in self.roles for part in self.get_submodule(name).modules()]
        if (altered := why_altered(self, foreign=maps)) is not None:
            return altered
        return why_parts({"activation": self.activation, "product": self.product})

    @checked_call
    def as_self_attention(self, n: int) -> SelfAttentionNetwork:
        """The whole block as plain self-attention over n data tokens and the anchors, (…, n, features): what engine="softmax"
        computes."""
        from attnc.network.literal.blocks import literal_block

        return literal_block(self, n)

    def extra_repr(self) -> str:
        *maps, second = self.roles
        if self.rows is not None:
            maps = [f"{maps[0]}[{start}:{stop}]" for start, stop in self.rows]
        first, up = maps
        return f"{second}(activation({first}(x)) ∘ {up}(x))"

    def _forward(self, x: Tensor) -> Tensor:
        if not in_place(x, *self.parameters(), *self.buffers()):
            return self._block(x, self.product)
        rows = _HELD // max(1, self.product.scale.numel())
        out = in_chunks(lambda part: self._block(part, self.product), rows, x.reshape(-1, x.shape[-1]))
        return out.reshape(*x.shape[:-1], out.shape[-1])

    def _block(self, x: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        *maps, second = (self.get_submodule(name) for name in self.roles)
        if self.rows is None:
            s, t = (linear(x) for linear in maps)
        else:
            both = maps[0](x)
            s, t = (both[..., start:stop] for start, stop in self.rows)
        return cast(Tensor, second(multiply(self.activation(s), t)))
