"""A gated feed-forward block as attention over anchors: products through squares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.activation import AnchorActivation
from attnc.network.altered import as_made, why_altered
from attnc.network.inside import checked_strict
from attnc.network.marking import mark_of, product
from attnc.network.running import autocast_is_on, can_look, in_place, is_less

IntArray = NDArray[np.integer]
_HELD = 1 << 22  # numbers of a layer of neurons that are held at once
_CHUNK = 1 << 17  # products that are formed at once: what they are made of stays in the cache
_OWN = ("activation", "square", "scale", "radius")
_LAYOUT = {  # integers of its size, exponent of 1, bits of the fraction
    torch.float32: (torch.int32, 127, 23),
    torch.float64: (torch.int64, 1023, 52),
}


@as_made
class AnchorGate(nn.Module):
    """x ↦ second(h ∘ t) with h = activation(first(x)), t = up(x), where a product is the difference of two squares:

        ζ± = h/λ ± λt,   q(ζ) = ρ²·square(ζ/ρ),   p = (q(ζ⁺) - q(ζ⁻))/4 ≈ h t

    λ = 2^scale and ρ = 2^radius for every neuron, so that scaling rounds nothing; `square` serves [-1, 1]. The maps stand under
    the names they had in the block whose place this takes. Without gradients, on the CPU, memory is bounded: tokens go
    through the block some at a time. Under autocast the whole block runs in the dtype of its maps.

    `strict` is that of the activation. Where its inputs are inside, those of the squares are.

    >>> import attnc
    >>> from attnc.heads.lattice import square_numbers
    >>> silu = AnchorActivation([(None, attnc.head("silu", domain=(-8, 8), eps=1e-4))])
    >>> maps = {name: nn.Linear(3, 3) for name in ("gate_proj", "up_proj", "down_proj")}
    >>> zeros = np.zeros(3, np.int8)
    >>> square = AnchorActivation([(None, attnc.Head(square_numbers("float32"), "lattice"))])
    >>> block = AnchorGate(maps, *maps, silu, square, zeros, zeros + 3)
    >>> block(torch.ones(2, 5, 3)).shape
    torch.Size([2, 5, 3])
    """

    scale: Tensor  # log2 λ, int8 (neurons,)
    radius: Tensor  # log2 ρ, int8 (neurons,)

    def __init__(
        self,
        maps: Mapping[str, nn.Module],
        first: str,
        up: str,
        second: str,
        activation: AnchorActivation,
        square: AnchorActivation,
        scale: IntArray,
        radius: IntArray,
    ) -> None:
        super().__init__()
        _check(maps, (first, up, second), activation, square)
        for name, module in maps.items():
            self.add_module(name, module)
        self._roles = (first, up, second)
        self.activation, self.square = activation, square
        self.register_buffer("scale", _exponents("scale", scale))
        self.register_buffer("radius", _exponents("radius", radius))
        if self.scale.shape != self.radius.shape:
            raise InputError(
                f"scale has the shape {tuple(self.scale.shape)}, radius {tuple(self.radius.shape)}: one of each for every neuron"
            )
        self.factors()

    @property
    def engine(self) -> str:
        """The engine asked for; setting it sets that of both activations."""
        return self.activation.engine

    @engine.setter
    def engine(self, engine: str) -> None:
        self.activation.engine = engine
        self.square.engine = engine

    @property
    def strict(self) -> bool | None:
        """What happens to inputs outside the interval of the activation; setting it sets the activation's."""
        return self.activation.strict

    @strict.setter
    def strict(self, strict: bool | None) -> None:
        self.activation.strict = checked_strict(strict)

    @property
    def runs(self) -> str:
        """The engines that execute."""
        first, second = self.activation.runs, self.square.runs
        return first if first == second else f"{first}, squares {second}"

    @property
    def parameters_added(self) -> int:
        """How many numbers it stores besides the maps."""
        return (
            self.activation.parameters_added
            + self.square.parameters_added
            + self.scale.numel()
            + self.radius.numel()
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for x (…, features)."""
        if (name := mark_of(self)) is not None:
            return self._block(x, lambda h, t: product(h, t, name))
        if not autocast_is_on(x.device.type):
            return self._forward(x)
        dtype = next((p.dtype for p in self.get_submodule(self._roles[0]).parameters()), x.dtype)
        with torch.autocast(x.device.type, enabled=False):  # what enters may be less than the maps are
            return self._forward(x.to(dtype)).to(x.dtype) if is_less(x.dtype) else self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        if not in_place(x, *self.parameters(), *self.buffers()):
            return self._block(x, self._product)
        tokens = x.reshape(-1, x.shape[-1])
        parts = [self._block(part, self._product_in_place) for part in torch.split(tokens, self._rows(_HELD))]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.reshape(*x.shape[:-1], out.shape[-1])

    def extra_repr(self) -> str:
        first, up, second = self._roles
        return f"{second}(activation({first}(x)) ∘ {up}(x)), {self.scale.numel()} neurons"

    def _block(self, x: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        first, up, second = (self.get_submodule(name) for name in self._roles)
        h, t = self.activation(first(x)), up(x)
        dtype = self.square.groups[0][1].key.dtype
        out: Tensor = second(product(h.to(dtype), t.to(dtype)).to(h.dtype))
        return out

    def why_not_certified(self) -> str | None:
        """None where the heads are those of their certificates and attnc's code runs them, else the reason why not.

        What is claimed of the block, with its maps, is in the conversion report: `attnc.verify(model)` checks it."""
        maps = [part for name in self._roles for part in self.get_submodule(name).modules()]
        altered = why_altered(self, foreign=maps)
        if altered is not None:
            return altered
        for name, part in (("activation", self.activation), ("square", self.square)):
            reason = part.why_not_certified()
            if reason is not None:
                return f"{name}: {reason}"
        known = [head.certificate for _, head in self.square.groups]
        if len(known) != 1 or known[0].facts.get("function") != "square":
            return "square: its head is not certified for the square"
        if not known[0].interval.lo <= -1 <= 1 <= known[0].interval.hi:
            return "square: its head is not certified on [-1, 1]"
        return None

    def _product(self, h: Tensor, t: Tensor) -> Tensor:
        scale, inverse, shrink, square = self.factors()
        left, right = h * inverse, t * scale
        above, below = (
            self.square(zeta * shrink, strict=False) * square for zeta in (left + right, left - right)
        )
        found: Tensor = (above - below) * 0.25
        return found

    def _product_in_place(self, h: Tensor, t: Tensor) -> Tensor:
        """The same operations in buffers of a chunk's size; h and t may be seen by hooks and stay as they are."""
        out = torch.empty_like(h)
        rows = min(self._rows(_CHUNK), len(h))
        buffers = h.new_empty(2, rows, h.shape[-1])
        scale, inverse, shrink, square = self.factors()
        for start in range(0, len(h), max(1, rows)):
            part = slice(start, start + rows)
            left, right = buffers[:, : len(h[part])]
            torch.mul(h[part], inverse, out=left)
            torch.mul(t[part], scale, out=right)
            torch.add(left, right, out=out[part])
            left.sub_(right).mul_(shrink)
            torch.mul(self.square(out[part].mul_(shrink), strict=False), square, out=out[part])
            torch.mul(self.square(left, strict=False), square, out=right)
            out[part].sub_(right).mul_(0.25)
        return out

    def _rows(self, numbers: int) -> int:
        return max(1, numbers // max(1, self.scale.numel()))

    def factors(self) -> Tensor:
        """λ, 1/λ, 1/ρ and ρ², (4, neurons): exact powers of two, made of the exponents bit by bit."""
        like = self.square.groups[0][1].key
        if like.dtype not in _LAYOUT:
            raise InputError(f"the numbers of the square are {like.dtype}: heads run in float32 or float64")
        whole, bias, fraction = _LAYOUT[like.dtype]
        scale, radius = self.scale.to(whole), self.radius.to(whole)
        powers = torch.stack([scale, -scale, -radius, 2 * radius])
        if torch.compiler.is_compiling():
            torch._assert_async((powers.abs() < bias).all(), f"a factor is beyond what {like.dtype} holds")
        elif powers.numel() and powers.device.type == "cpu" and can_look(powers):
            least, most = (int(end) for end in torch.aminmax(powers))
            if not -bias < least <= most <= bias:
                raise InputError(
                    f"the block scales by 2^{least} … 2^{most}, which {like.dtype} does not hold: keep the dtype it was made for"
                )
        return torch.bitwise_left_shift(powers + bias, fraction).view(like.dtype)


def _exponents(name: str, given: IntArray) -> Tensor:
    found = np.asarray(given)
    if found.ndim != 1 or found.dtype.kind not in "iu" or (np.abs(found.astype(np.int64)) > 127).any():
        raise InputError(
            f"{name} has the shape {found.shape} and the dtype {found.dtype}: give one exponent k of 2^k, |k| <= 127, "
            "for every neuron, as integers"
        )
    return torch.from_numpy(found.astype(np.int8))


def _check(
    maps: Mapping[str, nn.Module],
    roles: tuple[str, str, str],
    activation: AnchorActivation,
    square: AnchorActivation,
) -> None:
    for role, name in zip(("first", "up", "second"), roles, strict=True):
        if name not in maps:
            raise InputError(f"{role}={name!r}: the maps given are {', '.join(map(repr, maps))}")
    taken = [name for name in maps if name in _OWN or hasattr(AnchorGate, name)]
    if taken:
        raise InputError(f"a map is called {taken[0]!r}: the block has a part of its own of that name")
    for name, part in (("activation", activation), ("square", square)):
        if not isinstance(part, AnchorActivation):
            raise InputError(f"{name} is a {type(part).__name__}: give an AnchorActivation")
    if len(square) != 1:
        raise InputError(f"square has {len(square)} groups of neurons: one head of [-1, 1] serves them all")
