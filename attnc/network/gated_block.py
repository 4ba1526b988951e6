"""The gated feed-forward block of a transformer: its own affine maps, with its activation and its product as attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from attnc.arguments import checked_strict
from attnc.errors import InputError
from attnc.network.altered import as_made, why_altered
from attnc.network.marking import mark_of, product
from attnc.network.pointwise import Pointwise
from attnc.network.product import Product
from attnc.network.running import autocast_is_on, in_chunks, in_place, is_less

_HELD = 1 << 22  # numbers of a layer of neurons in memory


@as_made
class GatedBlock(nn.Module):
    """x ↦ second(activation(first(x)) ∘ up(x)). The maps keep the names that they had in the original block.

    Without gradients, on the CPU, tokens pass through the block in chunks. Under autocast the block runs in the dtype of its
    maps. `strict` is that of the activation: inputs inside its intervals are inside those of the squares."""

    def __init__(self, maps: Mapping[str, nn.Module], activation: Pointwise, product: Product) -> None:
        """maps: first, up and second, in this order, by their names in the original block."""
        super().__init__()
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
        stored = (*self.activation.state_dict().values(), *self.product.state_dict().values())
        return sum(int(tensor.numel()) for tensor in stored)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for x (…, features)."""
        if (name := mark_of(self)) is not None:
            return self._block(x, lambda h, t: product(h, t, name))
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
        parts: dict[str, Pointwise | Product] = {"activation": self.activation, "product": self.product}
        reasons = ((name, part.why_not_certified()) for name, part in parts.items())
        return next((f"{name}: {reason}" for name, reason in reasons if reason is not None), None)

    def extra_repr(self) -> str:
        first, up, second = self.roles
        return f"{second}(activation({first}(x)) ∘ {up}(x))"

    def _forward(self, x: Tensor) -> Tensor:
        if not in_place(x, *self.parameters(), *self.buffers()):
            return self._block(x, self.product)
        rows = _HELD // max(1, self.product.scale.numel())
        out = in_chunks(lambda part: self._block(part, self.product), rows, x.reshape(-1, x.shape[-1]))
        return out.reshape(*x.shape[:-1], out.shape[-1])

    def _block(self, x: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        first, up, second = (self.get_submodule(name) for name in self.roles)
        out: Tensor = second(multiply(self.activation(first(x)), up(x)))
        return out
