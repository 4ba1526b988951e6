"""Modules that stand for a while where converted ones will stand: is it the right place?"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from attnc.network.marking import mark, product


class Mark(nn.Module):
    """Takes the place of an activation while it is read whether that place is the right one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = mark(x, self.name)
        return found


class MarkedGate(nn.Module):
    """Takes the place of a gated block: the same maps under the same names, and a marked product."""

    def __init__(self, maps: Mapping[str, nn.Module], roles: tuple[str, str, str], name: str) -> None:
        super().__init__()
        for attribute, module in maps.items():
            self.add_module(attribute, module)
        self.roles, self.name = roles, name
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        first, up, second = (self.get_submodule(role) for role in self.roles)
        found: Tensor = second(product(mark(first(x), self.name), up(x), self.name))
        return found
