"""A feed-forward block in its model: its place, its numbers, and how its nonlinearity is replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import nn

from attnc import functions
from attnc.domain import Normed
from attnc.errors import Problem
from attnc.frontends.transformers.blocks import BlockRead, LinearMap
from attnc.frontends.transformers.norms import NormRead
from attnc.functions import Function
from attnc.program import Pointwise, Product, Program, Step


@dataclass(frozen=True, eq=False)
class Site:
    """A feed-forward block, and the place where a module has to be put to convert it.

    plain: a module that maps pre-activations to activations, elementwise, takes the place of the activation.
    gated: a module that computes the whole block takes the place of the block; to keep the names of the weights it holds the
    maps `first`, `up`, `second` under their attributes.
    """

    name: str  # dotted path of what is replaced
    family: str
    activation: str  # a name of attnc.functions; '' if the block is converted
    places: tuple[tuple[nn.Module, str], ...]  # (parent, attribute), more than one for a tied block
    first: LinearMap
    second: LinearMap
    up: LinearMap | None = None  # of a gated block
    norm: NormRead | None = None  # computes the block's input, wherever the model runs the block
    settings: tuple[tuple[nn.Module, str, object], ...] = ()  # (module, attribute, value) to set beside
    also: tuple[str, ...] = ()  # other names of the same block
    remarks: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    converted: bool = False
    uses: tuple[BlockRead, ...] = ()  # in the graph that was read

    @property
    def parent(self) -> nn.Module:
        """The module that holds what is replaced."""
        return self.places[0][0]

    @property
    def attribute(self) -> str:
        """The name of what is replaced, in its parent."""
        return self.places[0][1]

    @property
    def norm_name(self) -> str | None:
        return None if self.norm is None else self.norm.name

    @property
    def gated(self) -> bool:
        return self.up is not None

    @property
    def returns(self) -> bool:
        """Whether it has as many outputs as inputs, as a block in a residual stream has."""
        return self.second.sizes[0] == self.first.sizes[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.first.dtype

    @property
    def replaced(self) -> object:
        """The activation (a module or a function), or the gated block, that is in the model now."""
        return getattr(self.parent, self.attribute)

    def maps(self) -> tuple[LinearMap, ...]:
        return (self.first, self.second) if self.up is None else (self.first, self.up, self.second)

    def same(self, other: Site) -> bool:
        """Whether both consist of the same tensors, functions and norms."""
        norms = other.norm is None if self.norm is None else self.norm.same(other.norm)
        pairs = zip(self.uses, other.uses, strict=False)
        return norms and len(self.uses) == len(other.uses) and all(a.same(b) for a, b in pairs)

    def program(self, function: Function | None = None) -> Program:
        """What the block computes on one token: W2 f(W1 x + b1) + b2, or W2 (f(W1 x + b1)∘(U x + c)) + b2 if it is gated.

        The numbers are copies in the dtype of the model. `function` is f; it is needed only if the block is converted, because
        f is then no longer in the model.

        >>> from attnc.frontends.transformers import find_blocks
        >>> model = nn.TransformerEncoderLayer(4, 1, 8, activation="gelu", norm_first=True).eval()
        >>> block = find_blocks(model).blocks[0]
        >>> [step.kind for step in block.program().steps], block.domain()
        (['affine', 'pointwise', 'affine'], Normed(LayerNorm, d=4))
        """
        f = functions.get(self.activation) if function is None else function
        steps: list[Step] = [self.first.step(0), Pointwise(1, f, name=self.name)]
        if self.up is not None:
            steps += [self.up.step(0), Product((2, 3), name=self.name)]
        return Program((self.first.sizes[1],), (*steps, self.second.step(len(steps))))

    def domain(self) -> Normed | None:
        """Every vector that can enter the block; None if no norm computes its input."""
        return None if self.norm is None else self.norm.domain()

    def replace(self, module: nn.Module) -> Callable[[], None]:
        """Put a module in the place of the activation or gated block; the returned function undoes it.

        >>> from attnc.frontends.transformers import find_blocks
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
        >>> undo = find_blocks(model).blocks[0].replace(nn.Tanh())
        >>> model[1]
        Tanh()
        >>> undo()
        >>> model[1]
        ReLU()
        """
        changes = [(parent, attribute, module) for parent, attribute in self.places]
        before = [(m, a, getattr(m, a)) for m, a, _ in (*changes, *self.settings)]
        for part, attribute, value in (*changes, *self.settings):
            _put(part, attribute, value)

        def undo() -> None:
            for part, attribute, value in before:
                _put(part, attribute, value)

        return undo


class SkipCause(str, Enum):
    """Why a part of a model is left as it is."""

    OUTSIDE = "outside"  # it is in no feed-forward block, or cannot be replaced
    FILTER = "filter"  # filter_fn returned False
    CONVERTED = "converted"


@dataclass(frozen=True)
class Skipped:
    """A part of the model that is left as it is, and why."""

    name: str
    reason: str
    cause: SkipCause = SkipCause.OUTSIDE

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", SkipCause(self.cause))


def _put(part: nn.Module, attribute: str, value: object) -> None:
    """setattr, also where a function takes the place of a module."""
    if attribute in part._modules and not isinstance(value, nn.Module):
        delattr(part, attribute)
    setattr(part, attribute, value)
