"""The whole network, literally: plain self-attention over [data tokens; anchor tokens], matrices and no mask.

A token is a row of coordinates, and the rows are a stream to which every step adds:

    X ← X + Σ_h softmax(X W_Q^h (X W_K^h)ᵀ) X W_V^h W_O^h        a layer of attention
    X ← X + X W                                                  a token-wise map: a scaling, a residual sum

    coordinate     in a data token            in an anchor token
    data           1                          0
    anchor         0                          1
    position       one-hot, its place         0          only where a reshape moves numbers between tokens
    v0             the input                  0
    v3, v5, …      a bias, later the value    0          a register for each value of the program that is kept
    anchors v2     0                          κ, c, v    keys and values of the layer that makes v2

In W2 f(W1 x + b1) + b2 neuron j is one head. Its query is (a(w_j·x + b_j) + o, 1, -M): w_j reads the register of x, constants
come from `data`. The key of an anchor is (κ, c, 0), of a data token (0, 0, 1); so a data token scores κs + c with anchors and
-M with data tokens. The value is v, and W_O^j, the column j of W2, adds to the register where b2 waits. The query of an anchor
is (0, 0, M): it attends to data tokens alone, whose v is 0, and never changes. M exceeds every score on the certified interval
by so much that exp underflows to exactly 0. The heads of a group share W_K and W_V.

A map between two layers of attention is in W_O of the first; the queries of the second then pick coordinates. No register is
written twice: at the end the stream holds every value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.affine import AffineLayer, ScaleLayer
from attnc.network.altered import as_made
from attnc.network.combine import CombineLayer
from attnc.network.pointwise import Pointwise, Stage
from attnc.network.reshape import ReshapeLayer
from attnc.network.running import PreciseModule, precise
from attnc.records.numbers import Array, HeadNumbers

if TYPE_CHECKING:
    from attnc.network.network import Network

LARGEST = 1 << 27  # numbers in all matrices together
_CHUNK = 1 << 22  # attention weights held at once
_UNDERFLOW = {"float32": 128.0, "float64": 1024.0}  # exp of minus this is exactly 0


@as_made
class LiteralAttention(PreciseModule):
    """X ↦ Σ_h softmax(X W_Q^h (X W_K^h)ᵀ) X W_V^h W_O^h over all tokens; head h has the keys and values number shared[h]."""

    W_Q: nn.Parameter  # (heads, D, r)
    W_K: nn.Parameter  # (sets, D, r)
    W_V: nn.Parameter  # (sets, D, m)
    W_O: nn.Parameter  # (heads, m, D)
    shared: Tensor  # (heads,)

    def __init__(
        self, name: str, matrices: Mapping[str, NDArray[Any]], shared: Sequence[int], dtype: str
    ) -> None:
        super().__init__()
        self.name = name
        for letter, matrix in matrices.items():
            setattr(self, letter, _parameter(matrix, dtype))
        self.register_buffer("shared", torch.tensor(shared, dtype=torch.int64))

    @precise
    def weights(self, x: Tensor) -> Tensor:
        """(batch, heads, tokens, tokens): every token's weights over every token."""
        query = torch.einsum("btd,hdr->bhtr", x, self.W_Q)
        key = torch.einsum("btd,gdr->bgtr", x, self.W_K).index_select(1, self.shared)
        return torch.softmax(query @ key.transpose(-1, -2), -1)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        value = torch.einsum("btd,gdm->bgtm", x, self.W_V).index_select(1, self.shared)
        return torch.einsum("bhtm,hmd->btd", self.weights(x) @ value, self.W_O)

    def extra_repr(self) -> str:
        return f"{self.name}: {self.W_Q.shape[0]} heads"


@as_made
class TokenMap(PreciseModule):
    """X ↦ X W, the same for every token."""

    W: nn.Parameter  # (D, D)

    def __init__(self, name: str, matrix: Array, dtype: str) -> None:
        super().__init__()
        self.name, self.W = name, _parameter(matrix, dtype)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.W


@as_made
class LiteralNetwork(PreciseModule):
    """A network as plain self-attention, made by `Network.as_self_attention`.

    `layout` says which coordinates of a token hold what. The outputs are the network's up to rounding; the certificate is the
    network's own."""

    start: nn.Parameter  # (n + p, D): the tokens before an input is written into v0

    def __init__(self, net: Network, n: int | None = None) -> None:
        super().__init__()
        made = _Build(net, n)
        self.layout, self.n, self.p = made.layout, made.n, made.p
        self.shape, self.result, self._last = (
            made.shapes[0],
            made.shapes[-1],
            made.registers[len(net.program.steps)],
        )
        self.steps = nn.ModuleList(made.steps())
        self.start = _parameter(made.start(), made.dtype)
        self.to(next(net.parameters()).device)

    @property
    def layers(self) -> list[LiteralAttention]:
        """The layers of attention, in order; those that carry out a reshape are among them."""
        return [step for step in self.steps if isinstance(step, LiteralAttention)]

    @precise
    def tokens(self, x: Tensor) -> Tensor:
        """(…, n + p, D): the sequence that the first step gets."""
        self._check_input(x)
        lead, used = x.shape[: x.ndim - len(self.shape)], _tokens(self.shape)
        start, v0 = self.start.expand(*lead, -1, -1), self.layout["v0"]
        given = x.reshape(*lead, used, self.shape[-1])
        data = torch.cat([start[..., :used, : v0.start], given, start[..., :used, v0.stop :]], -1)
        return torch.cat([data, start[..., used:, :]], -2)

    @precise
    def stream(self, x: Tensor) -> Tensor:
        """(…, n + p, D): the sequence behind the last step; its registers hold every value."""
        tokens = self.tokens(x)
        heads = max([layer.W_Q.shape[0] for layer in self.layers], default=1)
        rows = max(1, _CHUNK // (heads * tokens.shape[-2] ** 2))
        parts = [self._run(part) for part in torch.split(tokens.reshape(-1, *self.start.shape), rows)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(tokens.shape)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch (…, *shape), as the network's."""
        out = self.stream(x)[..., : _tokens(self.result), self._last]
        return out.reshape(*x.shape[: x.ndim - len(self.shape)], *self.result)

    @precise
    def attention(self, x: Tensor) -> dict[str, Tensor]:
        """By layer, (…, heads, n + p, n + p): every token's weights over every token."""
        tokens = self.tokens(x)
        found: dict[str, Tensor] = {}
        self._run(tokens.reshape(-1, *self.start.shape), found)
        return {name: w.reshape(*tokens.shape[:-2], *w.shape[1:]) for name, w in found.items()}

    def _run(self, x: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        for step in self.steps:
            if weights is not None and isinstance(step, LiteralAttention):
                weights[step.name] = step.weights(x)
            x = x + step(x)
        return x

    def _check_input(self, x: Tensor) -> None:
        given = getattr(x, "dtype", type(x).__name__)
        if given != self.start.dtype:
            raise InputError(f"this network runs on tensors of {self.start.dtype}: got {given}")
        if x.ndim < len(self.shape) or tuple(x.shape[x.ndim - len(self.shape) :]) != self.shape:
            wanted = ", ".join(map(str, self.shape))
            raise InputError(f"this network takes inputs of the shape (…, {wanted}): got {tuple(x.shape)}")

    def extra_repr(self) -> str:
        parts = ", ".join(f"{name} {at.start}:{at.stop}" for name, at in self.layout.items())
        return f"{self.n} data tokens and {self.p} anchors, coordinates: {parts}"


@dataclass(frozen=True)
class _Keys:
    """Keys and values of anchors, the neurons whose heads share them, and M."""

    numbers: HeadNumbers
    h: int
    neurons: Sequence[int]
    distance: float
    at: slice  # κ, c, v


class _Build:
    """What goes where: registers for the values that are kept, maps that become part of a layer's matrices."""

    def __init__(self, net: Network, n: int | None) -> None:
        self.stages = [cast(Stage, stage) for stage in net.stages]
        self.dtype, self.program = net.numbers().dtype, net.program
        self.shapes = _over_tokens(net.program.shapes, n)
        self.before, self.after = _folds(self.stages)
        within = [*self.before.values(), *self.after.values()]
        maps = [s for s in self.stages if not isinstance(s, Pointwise | ReshapeLayer)]
        self.alone = [stage for stage in maps if stage not in within]
        inside = {*self.after, *(stage.value for stage in self.before.values())}
        self.routes = {s.value: self._routes(s) for s in self.stages if isinstance(s, ReshapeLayer)}
        self.n = max(_tokens(shape) for shape in self.shapes)
        self.width, self.layout = 0, dict[str, slice]()
        self._add("data", 1)
        self._add("anchor", 1)
        if any(self.routes.values()):
            self._add("position", self.n)
        self.registers = {0: self._add("v0", self.shapes[0][-1])}
        for stage in self.stages:
            if self.routes.get(stage.value) == []:
                self.registers[stage.value] = self.registers[stage.inputs[0]]
            elif stage.value not in inside:
                self.registers[stage.value] = self._add(f"v{stage.value}", self.shapes[stage.value][-1])
        self.keys = {s.value: list(self._keys(s)) for s in self.stages if isinstance(s, Pointwise)}
        self.p = max([k.numbers.anchors_per_head for keys in self.keys.values() for k in keys], default=1)
        self._check_size()

    def _check_size(self) -> None:
        """Refuse what would be too large, before it is made."""
        heads = {value: sum(len(k.neurons) for k in keys) for value, keys in self.keys.items()}
        total = sum(4 * self.width * (heads[value] + len(keys)) for value, keys in self.keys.items())
        for routes in filter(None, self.routes.values()):
            total += 2 * len(routes) * self.width * (2 + max(j - i for i, j in routes))
        total += self.width**2 * len(self.alone)
        if total > LARGEST:
            raise InputError(
                f"as plain self-attention this network has {total:,} numbers ({sum(heads.values()):,} heads over tokens of "
                f"{self.width:,} coordinates): up to {LARGEST:,} are made. Take a smaller network, or a head of this one: "
                "net.layers[0][0].as_self_attention(1)"
            )

    def start(self) -> Array:
        """The tokens without an input: flags and biases in data tokens, keys and values in anchors."""
        tokens = np.zeros((self.n + self.p, self.width))
        data, anchors = tokens[: self.n], tokens[self.n :]
        data[:, self.layout["data"]] = anchors[:, self.layout["anchor"]] = 1.0
        if "position" in self.layout:
            data[:, self.layout["position"]] = np.eye(self.n)
        for stage in self.stages:
            constant = getattr(stage, "bias" if isinstance(stage, AffineLayer) else "shift", None)
            if stage.value in self.registers and constant is not None:
                data[:, self.registers[stage.value]] = _array(constant)
        for k in (k for keys in self.keys.values() for k in keys):
            own = k.numbers.anchors_per_head
            anchors[:own, k.at] = np.c_[k.numbers.key[k.h], k.numbers.value[k.h, :, 1]]
            anchors[own:, k.at.start + 1] = -k.distance  # other layers' anchors have a weight of exactly 0
        return tokens

    def steps(self) -> Iterator[LiteralAttention | TokenMap]:
        seen: set[str] = set()
        for stage in self.stages:
            name = getattr(stage, "name", self.program.steps[stage.value - 1].name)
            name = name if name and name not in seen else f"{name} v{stage.value}".strip()
            if isinstance(stage, Pointwise):
                yield self._attention(stage, name)
            elif isinstance(stage, ReshapeLayer) and self.routes[stage.value]:
                yield self._routing(stage, name)
            elif isinstance(stage, AffineLayer | ScaleLayer | CombineLayer) and stage in self.alone:
                yield TokenMap(name, self._token_map(stage), self.dtype)
            else:
                continue
            seen.add(name)

    def _attention(self, layer: Pointwise, name: str) -> LiteralAttention:
        """A head for every neuron (and every head of its anchors), those that share keys side by side."""
        keys = self.keys[layer.value]
        before, after = self.before.get(layer.value), self.after.get(layer.value)
        read = self.registers[before.inputs[0] if before else layer.inputs[0]]
        write = self.registers[after.value if after else layer.value]
        shared = [i for i, k in enumerate(keys) for _ in k.neurons]
        made = self._zeros(len(shared), len(keys), 3, 1)
        rows = np.eye(read.stop - read.start) if before is None else _array(before.weight)
        bias = np.zeros(len(rows)) if before is None or before.bias is None else _array(before.bias)
        columns = np.eye(write.stop - write.start) if after is None else _array(after.weight)
        data, anchor = (self.layout[flag].start for flag in ("data", "anchor"))
        for i, k in enumerate(keys):
            heads, neurons = np.flatnonzero(np.array(shared) == i), np.array(k.neurons)
            gain, offset = k.numbers.query[k.h]
            made["W_Q"][heads, read, 0] = gain * rows[neurons]
            made["W_Q"][heads, data, 0] = gain * bias[neurons] + offset
            made["W_Q"][heads, data, 1:] = (1.0, -k.distance)
            made["W_Q"][heads, anchor, 2] = k.distance
            made["W_K"][i, [k.at.start, k.at.start + 1, data], [0, 1, 2]] = 1.0
            made["W_V"][i, k.at.start + 2, 0] = 1.0
            made["W_O"][heads, 0, write] = k.numbers.output[k.h] * columns[:, neurons].T
        return LiteralAttention(name, made, shared, self.dtype)

    def _routing(self, stage: ReshapeLayer, name: str) -> LiteralAttention:
        """A head for every pair of tokens: the target attends to the source alone, everyone else to anchors, which hold 0.

        q = M(position_t, data + anchor - position_t)      k = (position_s, anchor)"""
        routes, (source, target) = self.routes[stage.value], (stage.inputs[0], stage.value)
        made = self._zeros(len(routes), len(routes), 2, max(j - i for i, j in routes))
        data, anchor, place = (self.layout[flag].start for flag in ("data", "anchor", "position"))
        for h, (i, j) in enumerate(routes):
            (s, read), (t, write) = (divmod(i, self.shapes[value][-1]) for value in (source, target))
            made["W_Q"][h, [data, anchor], 1] = 1.0
            made["W_Q"][h, place + t] = (1.0, -1.0)
            made["W_K"][h, [place + s, anchor], [0, 1]] = 1.0
            across = np.arange(j - i)
            made["W_V"][h, self.registers[source].start + read + across, across] = 1.0
            made["W_O"][h, across, self.registers[target].start + write + across] = 1.0
        made["W_Q"] *= _UNDERFLOW[self.dtype]
        return LiteralAttention(name, made, range(len(routes)), self.dtype)

    def _token_map(self, stage: AffineLayer | ScaleLayer | CombineLayer) -> Array:
        """What stands in the registers of the inputs, carried to that of the value; constants wait there already."""
        matrix, write = np.zeros((self.width, self.width)), self.registers[stage.value]
        match stage:
            case AffineLayer():
                blocks = [_array(stage.weight).T]
            case ScaleLayer():
                blocks = [np.diag(_array(stage.scale))]
            case CombineLayer():
                blocks = [c * np.eye(write.stop - write.start) for c in stage.settings["coefficients"]]
        for value, block in zip(stage.inputs, blocks, strict=True):
            matrix[self.registers[value], write] += block
        return matrix

    def _keys(self, layer: Pointwise) -> Iterator[_Keys]:
        first = self._add(f"anchors v{layer.value}", 3 * sum(head.heads for _, head in layer.groups)).start
        for neurons, head in layer.groups:
            numbers, domain = head.numbers(), head.domain
            if domain is None or numbers.gated:
                reason = "has no domain" if domain is None else "attends to itself"
                raise InputError(f"{layer.name}: a head that {reason} has no place in plain self-attention")
            own = range(self.shapes[layer.value][-1]) if neurons is None else neurons.tolist()
            for h in range(numbers.heads):
                distance = _distance(numbers, h, domain.lo, domain.hi)
                yield _Keys(numbers, h, own, distance, slice(first, first + 3))
                first += 3

    def _routes(self, stage: ReshapeLayer) -> list[tuple[int, int]]:
        """Stretches [i, j) of the numbers that lie within one token before and behind a reshape; none where tokens stay."""
        end = math.prod(self.shapes[stage.value])
        a, b = (self.shapes[value][-1] for value in (stage.inputs[0], stage.value))
        return [] if a == b else list(pairwise(sorted({*range(0, end, a), *range(0, end, b), end})))

    def _add(self, name: str, width: int) -> slice:
        self.layout[name] = slice(self.width, self.width + width)
        self.width += width
        return self.layout[name]

    def _zeros(self, heads: int, sets: int, r: int, m: int) -> dict[str, NDArray[Any]]:
        d = self.width
        shapes = {"W_Q": (heads, d, r), "W_K": (sets, d, r), "W_V": (sets, d, m), "W_O": (heads, m, d)}
        return {name: np.zeros(shape, self.dtype) for name, shape in shapes.items()}


def _folds(stages: Sequence[Stage]) -> tuple[dict[int, AffineLayer], dict[int, AffineLayer]]:
    """By the value of a layer of attention: the map before it that nobody else reads, for W_Q, and the map behind it that is
    its only reader, for W_O."""
    before: dict[int, AffineLayer] = {}
    after: dict[int, AffineLayer] = {}
    made = {stage.value: stage for stage in stages}
    for layer in (stage for stage in stages if isinstance(stage, Pointwise)):
        source = made.get(layer.inputs[0])
        alone = sum(layer.inputs[0] in stage.inputs for stage in stages) == 1
        if isinstance(source, AffineLayer) and alone and source not in after.values():
            before[layer.value] = source
        behind = [stage for stage in stages if layer.value in stage.inputs]
        if len(behind) == 1 and isinstance(behind[0], AffineLayer):
            after[layer.value] = behind[0]
    return before, after


def _distance(numbers: HeadNumbers, h: int, lo: float, hi: float) -> float:
    """M: a power of two beyond every score on [lo, hi] plus the underflow of exp."""
    ends = numbers.query[h, 0] * np.array([lo, hi]) + numbers.query[h, 1]
    largest = float(np.abs(np.outer(numbers.key[h, :, 0], ends) + numbers.key[h, :, 1:]).max())
    return 2.0 ** math.ceil(math.log2(2 * largest + _UNDERFLOW[numbers.dtype]))


def _over_tokens(shapes: Sequence[tuple[int, ...]], n: int | None) -> list[tuple[int, ...]]:
    """The shapes of the values, with an axis of n data tokens where n is given and they have none."""
    if n is None or (_tokens(shapes[0]) == n and len(shapes[0]) > 1):
        return list(shapes)
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"as_self_attention(n) takes the number of data tokens, n >= 1: got {n!r}")
    if any(len(shape) > 1 for shape in shapes):
        raise InputError(
            f"this network is over inputs of the shape {shapes[0]}, {_tokens(shapes[0])} data tokens: got n={n}; leave n out"
        )
    return [(n, *shape) for shape in shapes]


def _tokens(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


def _array(tensor: Tensor) -> Array:
    return cast(Array, tensor.detach().to("cpu", torch.float64).numpy())


def _parameter(array: NDArray[Any], dtype: str) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(array, dtype)), requires_grad=False)
