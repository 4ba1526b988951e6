"""A theorem's network as a module: its steps one behind the other, and nothing beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.altered import as_made
from attnc.network.forms.steps import ColumnSoftmax, SequenceMap, Step
from attnc.network.literal import LiteralAttention
from attnc.network.running import PreciseModule, precise

_CHUNK = 1 << 22  # numbers held at once
_KINDS = {SequenceMap: "map", LiteralAttention: "attention", ColumnSoftmax: "softmax"}


@as_made
class TheoremNetwork(PreciseModule):
    """Attn∘A, Attn∘A∘Attn∘A or Softmax∘A∘Attn∘A with a map behind: made by `Network.as_self_attention` for the form of a theorem.

    A is an affine map of the whole sequence, Attn(X) = Σ_h softmax(X W_Q^h (X W_K^h)ᵀ) X W_V^h W_O^h over all tokens. There is no
    residual stream and no mask. The result is read from the first tokens of the last step. The outputs are those of the
    network it was made from up to rounding; the certificate is that network's own.
    """

    def __init__(
        self, form: str, layout: str, steps: Sequence[Step], shape: tuple[int, ...], result: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.form, self.layout, self.shape, self.result = form, layout, shape, result
        self.steps = nn.ModuleList(steps)

    @property
    def layers(self) -> list[LiteralAttention]:
        """The layers of attention, in order."""
        return [step for step in self.steps if isinstance(step, LiteralAttention)]

    @property
    def maps(self) -> list[SequenceMap]:
        """The affine maps of the sequence, in order."""
        return [step for step in self.steps if isinstance(step, SequenceMap)]

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the steps are: "map", "attention", "softmax"."""
        return tuple(_KINDS[type(cast(Step, step))] for step in self.steps)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch (…, *shape), as the network's."""
        flat = self._tokens(x)
        parts = [self._run(part) for part in torch.split(flat, self._rows())]
        out = (parts[0] if len(parts) == 1 else torch.cat(parts))[:, : math.prod(self.result[:-1])]
        return out.reshape(*x.shape[: x.ndim - len(self.shape)], *self.result)

    @precise
    def attention(self, x: Tensor) -> dict[str, Tensor]:
        """By step, (…, heads, tokens, tokens): every token's weights over every token; of a softmax over columns, its outcome."""
        lead = x.shape[: x.ndim - len(self.shape)] if isinstance(x, Tensor) else ()
        found: dict[str, Tensor] = {}
        self._run(self._tokens(x), found)
        return {name: weights.reshape(*lead, *weights.shape[1:]) for name, weights in found.items()}

    @precise
    def sequences(self, x: Tensor) -> dict[str, Tensor]:
        """By step, (…, tokens, coordinates): the sequence behind it."""
        y = self._tokens(x)
        lead, found = x.shape[: x.ndim - len(self.shape)], {}
        for step in self.steps:
            y = step(y)
            found[cast(Step, step).name] = y.reshape(*lead, *y.shape[1:])
        return found

    def describe(self) -> str:
        """A line for every step: its name, the sequences it is between, the shapes of its matrices."""
        layout = f", layout {self.layout!r}" if self.layout else ""
        sizes = self._sizes()
        rows = []
        for i, (kind, step) in enumerate(zip(self.kinds, self.steps, strict=True)):
            between = f"{sizes[i]} → {sizes[i + 1]}"
            rows.append((f"{i + 1}", kind, cast(Step, step).name, between, _matrices(cast(Step, step))))
        widths = [max(len(row[c]) for row in rows) for c in range(4)]
        lines = ["  ".join([*map(str.ljust, row[:4], widths), row[4]]).rstrip() for row in rows]
        return "\n".join([f"form {self.form!r}{layout}: {self.shape} → {self.result}", *lines])

    def __repr__(self) -> str:
        return f"{type(self).__name__}, {self.describe()}"

    def _sizes(self) -> list[tuple[int, int]]:
        """(tokens, coordinates) before the first step and behind every step."""
        found = [self.maps[0].in_shape]
        for step in self.steps:
            match step:
                case SequenceMap():
                    found.append(step.out_shape)
                case LiteralAttention():
                    found.append((found[-1][0], step.W_O.shape[2]))
                case _:
                    found.append(found[-1])
        return found

    def _rows(self) -> int:
        """How many inputs run at once."""
        sizes = self._sizes()
        held = [math.prod(size) for size in sizes]
        for (tokens, width), step in zip(sizes, self.steps, strict=False):
            if isinstance(step, LiteralAttention):
                inner = sum(matrix.shape[2] for matrix in (step.W_Q, step.W_K, step.W_V))
                held.append(step.W_Q.shape[0] * tokens * (tokens + inner) + tokens * width)
        return max(1, _CHUNK // max(held))

    def _run(self, x: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        for step in self.steps:
            if weights is not None and isinstance(step, LiteralAttention):
                weights[step.name] = step.weights(x)
            x = step(x)
            if weights is not None and isinstance(step, ColumnSoftmax):
                weights[step.name] = x
        return x

    def _tokens(self, x: Tensor) -> Tensor:
        """(batch, n, d): the sequence that the first step gets."""
        dtype, given = next(self.parameters()).dtype, getattr(x, "dtype", type(x).__name__)
        if not isinstance(x, Tensor) or x.dtype != dtype:
            raise InputError(f"this network runs on tensors of {dtype}: got {given}")
        if x.ndim < len(self.shape) or tuple(x.shape[x.ndim - len(self.shape) :]) != self.shape:
            wanted = ", ".join(map(str, self.shape))
            raise InputError(f"this network takes inputs of the shape (…, {wanted}): got {tuple(x.shape)}")
        return x.reshape(-1, *self.maps[0].in_shape)


def _matrices(step: Step) -> str:
    match step:
        case SequenceMap():
            outputs, inputs = math.prod(step.out_shape), math.prod(step.in_shape)
            return f"matrix ({outputs}, {inputs}), bias ({outputs},)"
        case LiteralAttention():
            heads = step.W_Q.shape[0]
            shapes = ", ".join(
                f"{name} {tuple(getattr(step, name).shape)}" for name in ("W_Q", "W_K", "W_V", "W_O")
            )
            return f"{heads} head{'s' if heads > 1 else ''}: {shapes}"
        case ColumnSoftmax():
            return "over the rows"
