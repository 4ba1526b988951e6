"""A feed-forward block in its model: where it stands, what its numbers are, and how its nonlinearity is replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from attnc import functions
from attnc.domain import Normed
from attnc.errors import Problem
from attnc.frontends.transformers.norms import NormRead, as_numbers, stored_numbers
from attnc.frontends.transformers.reading import BlockRead, MapRead
from attnc.functions import Function
from attnc.program import Affine, Pointwise, Product, Program, Step
from attnc.program.block import FeedForward, Numbers


@dataclass(frozen=True, eq=False)
class Map:
    """An affine map x ↦ W x + b of a model, as it was read from the executed graph."""

    name: str  # dotted path of the module that runs it
    module: nn.Module
    weight: Tensor
    bias: Tensor | None
    transposed: bool  # W is stored as (inputs, outputs), as in transformers' Conv1D

    @classmethod
    def of(cls, read: MapRead, model: nn.Module) -> Map:
        return cls(read.path, model.get_submodule(read.path), read.weight, read.bias, read.transposed)

    @property
    def attribute(self) -> str:
        """Its name in the module that holds it."""
        return self.name.rpartition(".")[2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of W."""
        return self.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where W is."""
        return self.weight.device

    @property
    def sizes(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        rows, columns = self.weight.shape
        return (columns, rows) if self.transposed else (rows, columns)

    def step(self, value: int) -> Affine:
        """The map of a value of a program, with copies of the stored numbers."""
        W = stored_numbers(self.weight)
        b = None if self.bias is None else stored_numbers(self.bias)
        return Affine(value, W.T.copy() if self.transposed else W, b, name=self.name)

    def numbers(self) -> tuple[Numbers, Numbers]:
        """W (outputs, inputs) and b (outputs,), copies in float64 of what is stored."""
        W = as_numbers(self.weight)
        b = np.zeros(self.sizes[0]) if self.bias is None else as_numbers(self.bias)
        return W.T.copy() if self.transposed else W, b


@dataclass(frozen=True, eq=False)
class Site:
    """A feed-forward block, and the place where a module has to be put to convert it.

    plain: a module that maps pre-activations to activations, elementwise, takes the place of the activation.
    gated: a module that computes the whole block takes the place of the block; to keep the names of the weights it holds the
    maps `first`, `up`, `second` under their attributes.
    """

    name: str  # dotted path of what is replaced
    family: str
    activation: str  # a name of attnc.functions; '' where the block is converted
    places: tuple[tuple[nn.Module, str], ...]  # (parent, attribute), more than one where a block is tied
    first: Map
    second: Map
    up: Map | None = None  # where gated
    norm: NormRead | None = None  # what makes the block's input, wherever the model runs the block
    settings: tuple[tuple[nn.Module, str, object], ...] = ()  # (module, attribute, value) to set beside
    also: tuple[str, ...] = ()  # other names of the same block: converting it once is enough
    remarks: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    converted: bool = False
    uses: tuple[BlockRead, ...] = ()  # where it stands in the graph that was read

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
        """The activation (a module or a function), or the gated block, as it stands now."""
        return getattr(self.parent, self.attribute)

    def maps(self) -> tuple[Map, ...]:
        return (self.first, self.second) if self.up is None else (self.first, self.up, self.second)

    def feed_forward(self) -> FeedForward:
        """Its numbers, copied in float64.

        >>> from attnc.frontends.transformers import find_blocks
        >>> model = nn.TransformerEncoderLayer(4, 1, 8, activation="gelu", norm_first=True).eval()
        >>> block = find_blocks(model).blocks[0].feed_forward()
        >>> block.activation, block.W1.shape, block.W2.shape, block.norm.kind
        ('gelu', (8, 4), (4, 8), 'layer')
        """
        (W1, b1), (W2, b2) = self.first.numbers(), self.second.numbers()
        U, c = (None, None) if self.up is None else self.up.numbers()
        norm = None if self.norm is None else self.norm.numbers()
        return FeedForward(self.activation, W1, b1, W2, b2, U, c, norm)

    def program(self, function: Function | None = None) -> Program:
        """What the block computes on one token: W2 f(W1 x + b1) + b2, or W2 (f(W1 x + b1)∘(U x + c)) + b2 if it is gated.

        The numbers are copies in the dtype of the model. `function` is f; it is needed only where the block is converted, so that
        f is no longer in the model.

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
        """Every vector that can enter the block; None where no norm makes its input."""
        return None if self.norm is None else self.norm.domain()

    def replace(self, module: nn.Module) -> Callable[[], None]:
        """Put a module at the place of the activation or gated block; what is returned puts back what was there.

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


@dataclass(frozen=True)
class Skipped:
    """A part of the model that is left as it is, and why."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Call:
    """Arguments to run a model with."""

    args: tuple[object, ...] = ()
    kwargs: dict[str, object] | None = None

    def __str__(self) -> str:
        named = {**{f"argument {i + 1}": a for i, a in enumerate(self.args)}, **(self.kwargs or {})}
        shown = [
            f"{name} {tuple(value.shape)}" if isinstance(value, Tensor) else f"{name}={value!r:.40}"
            for name, value in named.items()
        ]
        return ", ".join(shown) or "no arguments"


@dataclass(frozen=True, eq=False)
class Found:
    """The feed-forward blocks of a model, in the order of execution, what is left alone, and the call that was read."""

    blocks: tuple[Site, ...]
    skipped: tuple[Skipped, ...]
    call: Call


def _put(part: nn.Module, attribute: str, value: object) -> None:
    """setattr, also where a module gives way to a function."""
    if attribute in part._modules and not isinstance(value, nn.Module):
        delattr(part, attribute)
    setattr(part, attribute, value)
