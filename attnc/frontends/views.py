"""View: a tensor of a recorded graph as an arrangement of the numbers of one value of a program.

Transposes, slices, head splits and repeats are carried out on positions and add no step. A step is added where an operation
needs the numbers in an order that no value has. A view covers several inputs at once: a forward that mixes the inputs of a batch
is noticed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attnc.frontends.activations import RefusedError
from attnc.frontends.operations import Builder, Value
from attnc.frontends.problems import to_numpy
from attnc.program import Affine, Mix, Scale
from attnc.program.step import Numbers

MIXES = "arranges numbers of different tokens, or of different inputs of the batch, in one vector"
IDS = "computes with the token ids: sequences of one length without padding are accepted, and ids that only select embeddings"


@dataclass(frozen=True, eq=False)
class View:
    """A tensor whose entry e is sign[e]·value[index[e]]. `index` counts the numbers of (batch, *value.shape), row by row."""

    value: Value
    index: Tensor  # int64, of the shape of the tensor
    sign: Tensor | None = None  # 1 and -1, of the same shape

    @property
    def signs(self) -> Tensor:
        return torch.ones_like(self.index) if self.sign is None else self.sign


def plain(value: Value, batch: int) -> View:
    """The value itself, with the batch axis first."""
    return View(value, torch.arange(batch * math.prod(value.shape)).reshape(batch, *value.shape))


class SequenceBuilder(Builder):
    """Steps for values (tokens, features), which operations read through views."""

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[np.floating], batch: int, *, ids: bool
    ) -> None:
        super().__init__(shape, dtype)
        self.batch, self.ids = batch, ids

    def check(self, view: View) -> None:
        if self.ids and view.value.index == 0:
            raise RefusedError(IDS)

    def is_whole(self, view: View) -> bool:
        """Whether the tensor holds every number of the value once."""
        size = self.batch * math.prod(view.value.shape)
        if view.sign is not None or view.index.numel() != size:
            return False
        return bool(torch.bincount(view.index.reshape(-1), minlength=size).eq(1).all())

    def whole(self, view: View) -> View:
        """A view that holds every number of its value once."""
        self.check(view)
        return view if self.is_whole(view) else self.ordered(view)

    def matrix(self, value: Value) -> Value:
        """A value as (tokens, features)."""
        shape = value.shape
        return value if len(shape) < 3 else self.reshaped(value, (math.prod(shape[:-1]), shape[-1]))

    def ordered(self, view: View) -> View:
        """A value that holds the numbers of the tensor only, those of each token in the order of the tensor."""
        self.check(view)
        x, d = self.matrix(view.value), view.value.shape[-1]
        flat = view.index.reshape(-1)
        order = torch.argsort(flat // d, stable=True)
        rows, counts = torch.unique_consecutive(flat[order] // d, return_counts=True)
        if len(rows) % self.batch or bool((counts != counts[0]).any()):
            raise RefusedError(MIXES)
        tokens = rows.reshape(self.batch, -1) - torch.arange(self.batch)[:, None] * math.prod(x.shape[:-1])
        features = (flat[order] % d).reshape(len(rows), -1)
        signs = (
            torch.ones_like(features) if view.sign is None else view.sign.reshape(-1)[order].view_as(features)
        )
        if any(bool((part != part[:1]).any()) for part in (tokens, features, signs)):
            raise RefusedError(MIXES)
        if tokens[0].tolist() != list(range(math.prod(x.shape[:-1]))):
            x = self.add(Mix, x, matrix=self._one_hot(tokens[0], math.prod(x.shape[:-1])))
        x = self.selected(x, features[0], signs[0])
        index = torch.empty_like(flat)
        index[order] = torch.arange(len(flat))
        return View(x, index.view_as(view.index))

    def selected(self, x: Value, features: Tensor, signs: Tensor) -> Value:
        """Some features of a value, or all in another order, times 1 or -1. Of W x + b these are rows of W and b."""
        if features.tolist() == list(range(x.shape[-1])) and bool((signs == 1).all()):
            return x
        at, sign, step = features.numpy(), signs.numpy().astype(self.dtype), self.step(x)
        if isinstance(step, Affine):
            weight, source = (
                step.weight[at] * sign[:, None],
                Value(step.input, (*x.shape[:-1], step.weight.shape[1])),
            )
            return self.add(
                Affine, source, weight=weight, bias=None if step.bias is None else step.bias[at] * sign
            )
        return self.add(Affine, x, weight=self._one_hot(features, x.shape[-1]) * sign[:, None])

    def _one_hot(self, at: Tensor, size: int) -> Numbers:
        found: Numbers = np.eye(size, dtype=self.dtype)[at.numpy()]
        return found

    def by_vector(self, view: View, apply: Callable[[Value], Value]) -> View:
        """A map of the vectors along the last axis, each of which must be one row of a value (rows, d)."""
        self.check(view)
        d = view.index.shape[-1]
        for again in (False, True):
            found = self.ordered(view) if again else view
            x, first = found.value, found.index[..., :1]
            runs = found.sign is None and math.prod(x.shape) % d == 0 and bool((first % d == 0).all())
            if runs and torch.equal(found.index, first + torch.arange(d)):
                split = x.shape[-1] != d or len(x.shape) > 2  # several vectors of one token: its heads
                result = apply(self.reshaped(x, (math.prod(x.shape) // d, d)) if split else x)
                index = first // d * result.shape[-1] + torch.arange(result.shape[-1])
                joined = split and len(x.shape) == 2 and x.shape[-1] % d == 0
                if joined:
                    result = self.reshaped(result, (x.shape[0], math.prod(result.shape) // x.shape[0]))
                return View(result, index)
        raise RefusedError(MIXES)

    def pair(self, x: View, y: View) -> tuple[Value, Value, Tensor]:
        """Two values whose numbers correspond to each other as those of two tensors do, and where they are."""
        shape = np.broadcast_shapes(x.index.shape, y.index.shape)
        x, y = (self._expanded(view, shape) for view in (x, y))
        alike = x.value.shape == y.value.shape and torch.equal(x.index, y.index)
        if not (alike and self.is_whole(x) and self.is_whole(y)):
            x, y = self.ordered(x), self.ordered(y)
        if x.value.shape != y.value.shape or not torch.equal(x.index, y.index):
            raise RefusedError("combines different tokens with each other")
        return x.value, y.value, x.index

    def _expanded(self, view: View, shape: Sequence[int]) -> View:
        sign = None if view.sign is None else view.sign.expand(*shape)
        return replace(view, index=view.index.expand(*shape), sign=sign)

    def around(self, view: View, constant: Tensor) -> tuple[View, Numbers]:
        """A view that holds its value once, and the constant, which is broadcast with the tensor, in the order of the value."""
        shape = np.broadcast_shapes(view.index.shape, constant.shape)
        found = self.whole(self._expanded(view, shape))
        numbers = torch.empty(found.index.numel(), dtype=constant.dtype)
        numbers[found.index.reshape(-1)] = constant.expand(*shape).reshape(-1)
        each = numbers.reshape(self.batch, *self.matrix(found.value).shape)
        if bool((each != each[:1]).any()):
            raise RefusedError("combines each input of the batch with other numbers")
        same = each.ndim == 3 and bool((each[0] == each[0, :1]).all())
        return found, self.finite(each[0, 0] if same else each[0])

    def finite(self, constant: Tensor) -> Numbers:
        """The numbers of a constant, which must be finite; whole numbers in the source's dtype."""
        if constant.dtype == torch.bool or constant.is_complex() or not bool(torch.isfinite(constant).all()):
            raise RefusedError(f"uses a constant of {constant.dtype} that is not made of finite real numbers")
        found = to_numpy(constant)
        return found if found.dtype in (np.float32, np.float64) else found.astype(self.dtype)

    def scale(self, view: View, factor: Tensor | None, shift: Tensor | None, sign: float = 1.0) -> View:
        """sign·factor∘x + shift for a constant factor or shift."""
        given = shift if factor is None else factor
        assert given is not None
        found, numbers = self.around(view, given)
        if factor is None:
            fields = {"factor": np.full_like(numbers, sign), "shift": numbers}
        else:
            fields = {"factor": numbers, "shift": np.zeros_like(numbers)}
        value = self.add(Scale, self.matrix(found.value), **fields)
        return View(value, found.index)

    def joined(self, parts: Sequence[View], dim: int) -> View:
        """Tensors of several values, one after the other along an axis: of the features of the same tokens, or of tokens."""
        views = [self.ordered(part) for part in parts]
        values = [
            self.reshaped(v.value, (1, *v.value.shape)) if len(v.value.shape) == 1 else v.value for v in views
        ]
        row = views[0].index // values[0].shape[-1]
        along = row.movedim(dim, 0)
        of_tokens = bool((along != along[:1]).any())
        axis = 0 if of_tokens else 1
        if len({v.shape[1 - axis] for v in values}) != 1:
            raise RefusedError("joins tensors of different tokens or features")
        sizes = [v.shape[axis] for v in values]
        total, start, placed, moved = sum(sizes), 0, [], []
        for view, value, size in zip(views, values, sizes, strict=True):
            n, d = value.shape
            b, t, f = view.index // (n * d), view.index // d % n, view.index % d
            moved.append((b * total + start + t) * d + f if of_tokens else (b * n + t) * total + start + f)
            place = np.eye(total, dtype=self.dtype)[:, start : start + size]
            placed.append((value, place))
            start += size
        index = torch.cat(moved, dim)
        if of_tokens:
            terms = [self.add(Mix, value, matrix=place) for value, place in placed]
            return View(self.combine(terms, [1.0] * len(terms)), index)
        # the features in the order in which the tensor has them, so that no other step has to move them
        n = values[0].shape[0]
        flat = index.reshape(-1)
        order = torch.argsort(flat // total, stable=True)
        features = (flat[order] % total).reshape(self.batch * n, -1)
        if features.shape[1] != total or bool((features != features[:1]).any()):
            raise RefusedError(MIXES)
        terms = [self.add(Affine, value, weight=place[features[0].numpy()]) for value, place in placed]
        back = torch.empty_like(flat)
        back[order] = torch.arange(len(flat))
        return View(self.combine(terms, [1.0] * len(terms)), back.view_as(index))
