"""A gated feed-forward block as attention over anchors: products through squares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.activation import AnchorActivation
from attnc.network.kernel import in_place
from attnc.network.marking import mark_of, product

IntArray = NDArray[np.integer]
_HELD = 1 << 22  # numbers of a layer of neurons that are held at once
_CHUNK = 1 << 17  # products that are formed at once: what they are made of stays in the cache
_OWN = ("activation", "square", "scale", "radius")


class AnchorGate(nn.Module):
    """x ↦ second(h ∘ t) with h = activation(first(x)), t = up(x), where a product is the difference of two squares:

        ζ± = h/λ ± λt,   q(ζ) = ρ²·square(ζ/ρ),   p = (q(ζ⁺) - q(ζ⁻))/4 ≈ h t

    λ = 2^scale and ρ = 2^radius for every neuron, so that scaling rounds nothing; `square` serves [-1, 1]. The maps stand under
    the names they had in the block whose place this takes. Without gradients, on the CPU, memory is bounded: tokens go
    through the block some at a time.

    >>> import attnc
    >>> from attnc.anchors.lattice import square_numbers
    >>> silu = AnchorActivation([(None, attnc.head("silu", on=(-8, 8), eps=1e-4))])
    >>> maps = {name: nn.Linear(3, 3) for name in ("gate_proj", "up_proj", "down_proj")}
    >>> zeros = np.zeros(3, np.int8)
    >>> square = AnchorActivation([(None, attnc.Head(square_numbers("float32"), "lattice"))])
    >>> block = AnchorGate(maps, *maps, silu, square, zeros, zeros + 3)
    >>> block(torch.ones(2, 5, 3)).shape
    torch.Size([2, 5, 3])
    """

    scale: Tensor  # log2 λ, int8 (neurons,)
    radius: Tensor  # log2 ρ, int8 (neurons,)
    _factors: Tensor  # λ, 1/λ, 1/ρ, ρ²: (4, neurons)

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
        self.register_buffer("_factors", None, persistent=False)
        self._derive()
        self._check_scaling()
        self.register_load_state_dict_post_hook(AnchorGate._derive)  # type: ignore[no-untyped-call]

    @property
    def engine(self) -> str:
        """The engine asked for; setting it sets that of both activations."""
        return self.activation.engine

    @engine.setter
    def engine(self, engine: str) -> None:
        self.activation.engine = engine
        self.square.engine = engine

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
        self._check_scaling()
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
        dtype = self._factors.dtype
        out: Tensor = second(product(h.to(dtype), t.to(dtype)).to(h.dtype))
        return out

    def _product(self, h: Tensor, t: Tensor) -> Tensor:
        scale, inverse, shrink, square = self._factors
        left, right = h * inverse, t * scale
        above, below = (self.square(zeta * shrink) * square for zeta in (left + right, left - right))
        found: Tensor = (above - below) * 0.25
        return found

    def _product_in_place(self, h: Tensor, t: Tensor) -> Tensor:
        """The same operations in buffers of a chunk's size; h and t may be seen by hooks and stay as they are."""
        out = torch.empty_like(h)
        rows = min(self._rows(_CHUNK), len(h))
        buffers = h.new_empty(2, rows, h.shape[-1])
        scale, inverse, shrink, square = self._factors
        for start in range(0, len(h), max(1, rows)):
            part = slice(start, start + rows)
            left, right = buffers[:, : len(h[part])]
            torch.mul(h[part], inverse, out=left)
            torch.mul(t[part], scale, out=right)
            torch.add(left, right, out=out[part])
            left.sub_(right).mul_(shrink)
            torch.mul(self.square(out[part].mul_(shrink)), square, out=out[part])
            torch.mul(self.square(left), square, out=right)
            out[part].sub_(right).mul_(0.25)
        return out

    def _rows(self, numbers: int) -> int:
        return max(1, numbers // max(1, self.scale.numel()))

    def _derive(self, *_: object) -> None:
        """The factors, from the exponents: exact powers of two, where the dtype holds them."""
        like = self.square.groups[0][1].key
        self._problem: str | None = None
        if self.scale.is_meta:
            self._factors = torch.empty(4, self.scale.numel(), dtype=like.dtype, device="meta")
            return
        scale, radius = (k.detach().cpu().numpy().astype(np.int64) for k in (self.scale, self.radius))
        powers = np.stack([scale, -scale, -radius, 2 * radius])
        self._factors = torch.from_numpy(np.ldexp(1.0, powers)).to(like.device, like.dtype)
        least, most = powers.min(initial=0), powers.max(initial=0)
        limits = torch.finfo(like.dtype)
        if not (limits.tiny <= 2.0**least and 2.0**most <= limits.max):
            self._problem = (
                f"the block scales by 2^{least} … 2^{most}, which {like.dtype} does not hold: "
                "keep the dtype it was made for"
            )

    def _check_scaling(self) -> None:
        if self._problem is not None:
            raise InputError(self._problem)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AnchorGate:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._derive()
        return self


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
