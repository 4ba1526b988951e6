"""Products of two values as attention over anchors, through squares."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnc.errors import InputError
from attnc.network.altered import as_made, why_altered
from attnc.network.head import Head
from attnc.network.layer import to_array
from attnc.network.pointwise import Pointwise
from attnc.network.running import PreciseModule, can_look, in_chunks, in_place, precise
from attnc.records.certificate import Certificate
from attnc.records.layers import Layer, square_of

IntArray = NDArray[np.integer]
_CHUNK = 1 << 17  # products in one chunk: small enough for the cache
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

    engine="closed-form" multiplies: the closed form of the product is x∘y. engine="softmax" runs the head.

    >>> from attnc.heads.lattice import square_numbers
    >>> product = Product(Head(square_numbers("float64"), "lattice"), np.zeros(3, np.int8), np.full(3, 3))
    >>> x, y = torch.tensor([[2.0, -3, 0.5], [1, 1, 2]], dtype=torch.float64)
    >>> torch.allclose(product(x, y), x * y)
    True
    """

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
        if torch.compiler.is_compiling():
            torch._assert_async((powers.abs() < bias).all(), f"a factor is out of the range of {dtype}")
        elif powers.numel() and powers.device.type == "cpu" and can_look(powers):
            least, most = (int(end) for end in torch.aminmax(powers))
            if not -bias < least <= most <= bias:
                raise InputError(
                    f"the factors 2^{least} … 2^{most} are out of the range of {dtype}: keep the dtype of the conversion"
                )
        return torch.bitwise_left_shift(powers + bias, fraction).view(dtype)

    def extra_repr(self) -> str:
        return f"{self.scale.numel()} neurons"

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
