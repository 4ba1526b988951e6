"""The parts of a literal network: names of tokens and coordinates, embedding, self-attention, affine maps, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.altered import as_made
from attnc.network.running import PreciseModule, can_look, check_tensor, precise
from attnc.program.step import Numbers
from attnc.records.certificate import INTEGERS
from attnc.records.layers import Index
from attnc.records.numbers import Array

LARGEST = 1 << 27  # numbers in all matrices together
LETTERS = ("W_Q", "W_K", "W_V", "W_O")
Size = tuple[int, int]  # tokens, coordinates
Places = tuple[Index, Index]  # rows and columns

VALUES: dict[str, Callable[[Tensor], Tensor]] = {  # of inputs
    "real numbers": lambda x: x == x,
    "the labels 0 and 1": lambda x: (x == 0) | (x == 1),
    "counts 0, 1, 2, …": lambda x: (x >= 0) & (x == x.floor()),
}


class Layout(dict[str, slice]):
    """The names of a sequence of tokens: a mapping from registers to the coordinates of a token that hold them.

    A register of width 1 is one coordinate of the same name; a wider register has the coordinates "x[0]", "x[1]", …

    >>> layout = Layout({"data": 1, "x": 3}, ["data 0", "anchor 0"])
    >>> layout["x"], layout.coordinates, layout.tokens
    (slice(1, 4, None), ('data', 'x[0]', 'x[1]', 'x[2]'), ('data 0', 'anchor 0'))
    """

    def __init__(
        self, registers: Mapping[str, int] | Sequence[tuple[str, int]], tokens: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.width, self.tokens = 0, tuple(tokens)
        for name, size in dict(registers).items():
            self.add(name, size)

    def add(self, name: str, size: int) -> None:
        """Append a register of `size` coordinates."""
        if name in self:
            raise InputError(f"register {name!r} exists already")
        self[name] = slice(self.width, self.width + size)
        self.width += size

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The name of every coordinate."""
        sizes = [(name, at.stop - at.start) for name, at in self.items()]
        return tuple(name if size == 1 else f"{name}[{i}]" for name, size in sizes for i in range(size))

    def block(self, name: str) -> Array:
        """(D, width): the linear forms that read all coordinates of a register."""
        at = self[name]
        return np.eye(self.width, at.stop - at.start, -at.start)

    def form(self, name: str, offset: int = 0) -> Array:
        """(D,): the linear form that reads one coordinate of a register."""
        return self.block(name)[:, offset]

    def marks(self, *names: str) -> Array:
        """(D,): the sum of the forms of registers of width 1."""
        return sum((self.form(name) for name in names), np.zeros(self.width))

    def to_json(self) -> dict[str, object]:
        widths = [[name, at.stop - at.start] for name, at in self.items()]
        return {"registers": widths, "tokens": list(self.tokens)}

    def __missing__(self, name: str) -> slice:
        raise InputError(f"no register {name!r}: this sequence has {', '.join(map(repr, self))}")

    def __repr__(self) -> str:
        return ", ".join(f"{name} {at.start}:{at.stop}" for name, at in self.items())


def data_tokens(n: int) -> list[str]:
    return [f"data {i}" for i in range(n)]


@dataclass(frozen=True)
class Input:
    """A tensor (…, *shape) whose rows of `width` numbers become tokens; None in the shape stands for any size.

    With strict=True it must contain `values`, of at most `limit` in absolute value (None: any). If `ids` is given, the tensor
    holds token ids, whole numbers from 0 to `ids` - 1, and a row is the one-hot vector of an id."""

    name: str
    shape: tuple[int | None, ...]
    width: int
    limit: float | None = None
    values: str = "real numbers"
    ids: int | None = None

    def rows(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """(…, tokens, width) of x (…, *shape)."""
        if self.ids is None:
            check_tensor(self.name, x, dtype, self.shape)
            split = x.ndim - len(self.shape)
            return x.reshape(*x.shape[:split], math.prod(x.shape[split:]) // self.width, self.width)
        whole = isinstance(x, Tensor) and x.dtype in INTEGERS
        check_tensor(self.name, x.to(dtype) if whole else x, dtype, self.shape)
        places = x.long()
        if x.numel() and can_look(x) and not bool(((x == places) & (x >= 0) & (x < self.ids)).all()):
            raise InputError(f"{self.name} must hold token ids, whole numbers from 0 to {self.ids - 1}")
        return torch.eye(self.ids, dtype=dtype, device=x.device)[places]

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self), "shape": list(self.shape)}
        return {name: value for name, value in found.items() if name != "ids" or value is not None}

    @property
    def sizes(self) -> str:
        return f"({', '.join('n' if size is None else str(size) for size in self.shape)})"


@as_made
class Softmax(PreciseModule):
    """scores ↦ softmax(scores) along one axis.

    In a layer of attention, forward hooks on this module see the scores as the input and the attention pattern as the output,
    both (batch, heads, queries, keys). A hook that returns a tensor replaces the pattern."""

    kind, shapes = "softmax", "over the rows"
    layout: Layout

    def __init__(self, axis: int, layout: Layout) -> None:
        super().__init__()
        self.axis, self.layout = axis, layout

    @precise
    def forward(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, self.axis)

    def settings(self) -> dict[str, Any]:
        return {"axis": self.axis}


@as_made
class SelfAttention(PreciseModule):
    """X ↦ Σ_h softmax(X W_Q^h (X W_K^h)ᵀ) X W_V^h W_O^h over all tokens.

    Head h uses the keys and values number `shared[h]`; `heads` are the names of the heads. Heads that do not share keys are
    evaluated one by one, with the same shapes: a head that repeats another one makes the same rounding errors."""

    kind = "attention"
    W_Q: nn.Parameter  # (heads, D, r)
    W_K: nn.Parameter  # (sets, D, r)
    W_V: nn.Parameter  # (sets, D, m)
    W_O: nn.Parameter  # (heads, m, E)

    def __init__(
        self,
        tensors: dict[str, Numbers],
        shared: Sequence[int],
        heads: Sequence[str],
        layout: Layout,
        dtype: str,
    ) -> None:
        super().__init__()
        self.shared, self.heads, self.layout = tuple(map(int, shared)), tuple(heads), layout
        if sorted(self.shared) != list(self.shared) or len(self.heads) != len(self.shared):
            raise InputError("heads that share keys must be neighbours, and every head needs a name")
        for letter in LETTERS:
            setattr(self, letter, parameter(tensors[letter], dtype))
        self.pattern = Softmax(-1, Layout({}))

    @precise
    def weights(self, x: Tensor) -> Tensor:
        """(batch, heads, tokens, tokens): the weights of every token over every token."""
        scores = []
        for g, heads in self._sets():
            query, key = torch.einsum("btd,hdr->bhtr", x, self.W_Q[heads]), x @ self.W_K[g]
            scores.append(query @ key.transpose(-1, -2).unsqueeze(1))
        found: Tensor = self.pattern(torch.cat(scores, 1))
        return found

    @precise
    def forward(self, x: Tensor) -> Tensor:
        weights, parts = self.weights(x), []
        for g, heads in self._sets():
            mixed = weights[:, heads] @ (x @ self.W_V[g]).unsqueeze(1)
            parts.append(torch.einsum("bhtm,hmd->btd", mixed, self.W_O[heads]))
        return reduce(torch.add, parts)

    def settings(self) -> dict[str, Any]:
        return {"shared": list(self.shared), "heads": list(self.heads), **self.pattern.settings()}

    @property
    def shapes(self) -> str:
        matrices = ", ".join(f"{name} {tuple(getattr(self, name).shape)}" for name in LETTERS)
        return f"{len(self.heads)} head{'s' * (len(self.heads) > 1)}: {matrices}"

    def extra_repr(self) -> str:
        return self.shapes

    def _sets(self) -> list[tuple[int, slice]]:
        """The sets of keys, each with the heads that share it."""
        edges = [i for i, g in enumerate(self.shared) if i == 0 or g != self.shared[i - 1]]
        return [(self.shared[a], slice(a, b)) for a, b in pairwise([*edges, len(self.shared)])]


@as_made
class SequenceMap(PreciseModule):
    """X ↦ A·vec(X) + B, an affine map (n, d) → (m, e), applied to every n consecutive tokens of the sequence.

    n = 1 is a token-wise map. Only the numbers of A that are not zero are stored: A[rows, columns] = core if `core` is a matrix;
    A[rows[i], columns[i]] = core[i] if it is a vector. `matrix` is A, (m·e, n·d), and `bias` is B, (m·e,)."""

    kind = "map"
    core: nn.Parameter  # (r, c) or (r,)
    bias: nn.Parameter  # (m·e,)
    rows: Tensor  # (r,)
    columns: Tensor  # (c,) or (r,)

    def __init__(
        self, core: Numbers, bias: Numbers, shapes: tuple[Size, Size], at: Places, layout: Layout, dtype: str
    ) -> None:
        super().__init__()
        (self.in_shape, self.out_shape), self.layout = shapes, layout
        sizes = [tuple(map(len, at)), (len(at[0]),)]
        if bias.shape != (math.prod(self.out_shape),) or core.shape not in sizes:
            raise InputError(f"a map {shapes} with a bias {bias.shape}, a core {core.shape}")
        self.core, self.bias = parameter(core, dtype), parameter(bias, dtype)
        for key, index in (("rows", at[0]), ("columns", at[1])):
            self.register_buffer(key, torch.from_numpy(np.ascontiguousarray(index, np.int64)))

    @precise
    def forward(self, x: Tensor) -> Tensor:
        n, size = x.shape[-2] // self.in_shape[0], math.prod(self.in_shape)
        picked = x.reshape(x.shape[0], n, size).index_select(-1, self.columns)
        product = picked * self.core if self.core.ndim == 1 else picked @ self.core.T
        zeros = x.new_zeros(x.shape[0], n, len(self.bias))
        out = zeros.index_copy(-1, self.rows, product) + self.bias
        return out.reshape(x.shape[0], n * self.out_shape[0], self.out_shape[1])

    @property
    def matrix(self) -> Tensor:
        """A, (m·e, n·d), with its zeros."""
        shape = (math.prod(self.out_shape), math.prod(self.in_shape))
        if math.prod(shape) > LARGEST:
            raise InputError(f"A {shape} exceeds {LARGEST:,}: use rows, columns and core")
        found = self.core.new_zeros(shape)
        found[self.rows[:, None] if self.core.ndim == 2 else self.rows, self.columns] = self.core
        return found

    def settings(self) -> dict[str, Any]:
        return {"in_shape": list(self.in_shape), "out_shape": list(self.out_shape)}

    @property
    def shapes(self) -> str:
        return f"{self.in_shape} → {self.out_shape}: {len(self.rows)} rows, {len(self.columns)} columns"

    def extra_repr(self) -> str:
        a = math.prod(self.out_shape), math.prod(self.in_shape)
        return f"{self.in_shape} → {self.out_shape}, matrix {a}, bias {a[:1]}"


@as_made
class Embedding(PreciseModule):
    """Rows of the inputs ↦ rows W + start: one token for every row. `reads` are the inputs whose rows are joined."""

    W: nn.Parameter  # (numbers of a row, D)
    start: nn.Parameter  # (1, D) or (rows, D)

    def __init__(self, name: str, reads: Sequence[int], weight: Numbers, start: Numbers, dtype: str) -> None:
        super().__init__()
        self.name, self.reads = name, tuple(reads)
        self.W, self.start = parameter(weight, dtype), parameter(start, dtype)

    @precise
    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.W + self.start


def parameter(array: Numbers, dtype: str) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(array, dtype)), requires_grad=False)


Step = SelfAttention | SequenceMap | Softmax
