"""Sites: the parts of a model that can be converted (blocks, norms, activations), each with its place in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import torch
from torch import fx, nn

from attnc import functions
from attnc.domain import Normed
from attnc.errors import Problem
from attnc.frontends.transformers.blocks import LinearMap
from attnc.frontends.transformers.norms import NormRead
from attnc.program import Pointwise, Product, Program, Step


@dataclass(frozen=True, eq=False)
class PartUse:
    """One run of a part in the graph: the node that it computes, and the one that enters it."""

    leaving: fx.Node
    entering: fx.Node
    mark: str  # the operation that stands for it where marks are in place
    factor: fx.Node | None = None  # of a gated block: what its activation is multiplied by


@dataclass(frozen=True, eq=False, kw_only=True)
class PartSite:
    """A part of a model, and the place where a module has to be put to convert it."""

    part: ClassVar[str]  # as in the argument `parts` of `convert_`
    name: str  # dotted path of what is replaced
    places: tuple[tuple[nn.Module, str], ...]  # (parent, attribute), more than one for a tied part
    dtype: torch.dtype
    uses: tuple[PartUse, ...]  # in the graph that was read
    key: tuple[object, ...]  # equal for sites that consist of the same tensors, functions and norms
    settings: tuple[tuple[nn.Module, str, object], ...] = ()  # (module, attribute, value) to set beside
    problems: tuple[Problem, ...] = ()
    converted: bool = False

    @property
    def replaced(self) -> Any:
        """What is in the model now: a module, or a function; None if nothing can take its place."""
        return getattr(*self.places[0]) if self.places else None

    def replace(self, module: nn.Module) -> Callable[[], None]:
        """Put a module in the place of the part; the returned function undoes it."""
        changes = [*((*place, module) for place in self.places), *self.settings]
        before = [(part, attribute, getattr(part, attribute)) for part, attribute, _ in changes]
        _put(changes)
        return lambda: _put(before)


def _put(changes: list[tuple[nn.Module, str, object]]) -> None:
    """setattr, also where a function takes the place of a module."""
    for part, attribute, value in changes:
        if attribute in part._modules and not isinstance(value, nn.Module):
            delattr(part, attribute)
        setattr(part, attribute, value)


@dataclass(frozen=True, eq=False, kw_only=True)
class Site(PartSite):
    """A feed-forward block.

    plain: a module that maps pre-activations to activations, elementwise, takes the place of the activation.
    experts: the same, for all experts at once.
    gated: a module that computes the whole block takes the place of the block; to keep the names of the weights it holds the
    maps `first`, `up`, `second` under their attributes."""

    part = "feed-forward"
    family: str
    activation: str  # a name of attnc.functions; '' if the block is converted
    first: LinearMap
    second: LinearMap
    up: LinearMap | None  # of a gated block
    norm: NormRead | None  # computes the block's input, wherever the model runs the block
    also: tuple[str, ...]  # other names of the same block
    remarks: tuple[str, ...]

    @property
    def norm_name(self) -> str | None:
        return None if self.norm is None else self.norm.name

    @property
    def experts(self) -> int:
        """The number of experts that share the place; 0 if the block is one of its own."""
        return self.first.experts

    @property
    def gated(self) -> bool:
        """Whether a module takes the place of the whole block. Of experts, only the activation is replaced."""
        return self.up is not None and not self.experts

    @property
    def rows(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Of a gated block whose maps `first` and `up` are parts of one: the outputs of that one which are theirs."""
        if self.up is None or self.first.rows is None or self.up.rows is None:
            return None
        if self.first.module is not self.up.module:
            return None
        return self.first.rows, self.up.rows

    def maps(self) -> tuple[LinearMap, ...]:
        return (self.first, self.second) if self.up is None else (self.first, self.up, self.second)

    def programs(self) -> Iterator[Program]:
        """What the block, or each of its experts, computes on one token."""
        yield from map(self.program, range(max(1, self.experts)))

    def program(self, expert: int = 0) -> Program:
        """What the block computes on one token: W2 f(W1 x + b1) + b2, or W2 (f(W1 x + b1)∘(U x + c)) + b2 if it is gated.

        The numbers are copies in the dtype of the model. The block must not be converted: f is then no longer in the model."""
        f = functions.get(self.activation)
        steps: list[Step] = [self.first.step(0, expert), Pointwise(1, f, name=self.name)]
        if self.up is not None:
            steps += [self.up.step(0, expert), Product((2, 3), name=self.name)]
        return Program((self.first.sizes[1],), (*steps, self.second.step(len(steps), expert)))

    def domain(self) -> Normed | None:
        """Every vector that can enter the block; None if no norm computes its input."""
        return None if self.norm is None else self.norm.domain()


@dataclass(frozen=True, eq=False, kw_only=True)
class NormSite(PartSite):
    """A LayerNorm or RMSNorm that is a module of its own."""

    part = "norm"
    norm: NormRead

    @property
    def epsilon(self) -> float:
        """ε; torch's rms_norm takes the machine epsilon of the dtype if none is given."""
        return torch.finfo(self.dtype).eps if self.norm.eps is None else self.norm.eps


@dataclass(frozen=True, eq=False, kw_only=True)
class ActivationSite(PartSite):
    """tanh or sigmoid outside of feed-forward blocks, as in a pooler."""

    part = "activation"
    activation: str


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
