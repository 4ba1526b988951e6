"""A literal form as blocks of attention over one residual stream, X ← X + Σ_h softmax(X W_Q^h (X W_K^h)ᵀ) X W_V^h W_O^h.

A literal form with a residual stream whose steps are all attention has this form already. Otherwise:

    in the literal form                  here
    no residual stream, X ← step(X)      the result of every step has coordinates of its own, which start at 0
    a bias B of a map                    these coordinates start at B
    maps before the first attention      part of the embedding
    a map A·vec(X) of the sequence       a layer of routing heads
    sequences of several lengths         tokens that a sequence does not have are outside: they do not take part in its layer

**Routing heads** have patterns of 0 and 1: token t attends to one token s(t), and W_V W_O is a block of A. Equal blocks share a
head. The score of token t with the token at place p is

    M (2 s(t) p - p²) = M s(t)² - M (s(t) - p)².

These are integers times a power of two, which are exact, and exp(-M) is 0. If token t gets nothing from any token, s(t) is a
token "nothing", whose registers are 0. In layers of attention, "nothing" and tokens outside attend to "nothing" alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor

from attnc.errors import InputError, Problem, UnsupportedError
from attnc.network.literal import Layout, SelfAttention, SelfAttentionNetwork, SequenceMap
from attnc.network.literal.steps import LARGEST, LETTERS, Step
from attnc.records.layers import Index
from attnc.records.numbers import Array

_UNDERFLOW = {"float32": 128.0, "float64": 1024.0}  # M: exp of minus this is exactly 0
_PLACES = {"float32": 2048, "float64": 1 << 20}  # tokens: 2 p² must be exact
_FAR = 2.0**100  # more than any score
ONE, PLACE, SQUARE, NOTHING = "route: one", "route: place", "route: place²", "nothing"


@dataclass(frozen=True, eq=False)
class Block:
    """One layer of attention, with the names of its heads."""

    name: str
    heads: tuple[str, ...]
    W_Q: Array  # (heads, D, r)
    W_K: Array  # (heads, D, r)
    W_V: Array  # (heads, D, m)
    W_O: Array  # (heads, m, D)


@dataclass(frozen=True, eq=False)
class AttentionOnly:
    """`layout` names the coordinates and the tokens of the stream. The sequence after the first `leading` steps of the literal
    form goes into the first coordinates of the first tokens, and `constants` (tokens, D) are added; None stands for none.
    `output` are the coordinates of the result."""

    blocks: tuple[Block, ...]
    layout: Layout
    leading: int
    constants: Array | None
    output: slice


@dataclass(frozen=True, eq=False)
class _Route:
    """block[j, i] for some coordinates: what coordinate i of token sources[t] adds to coordinate j of token t (-1: no source)."""

    sources: Index  # (tokens,)
    rows: Index
    columns: Index
    values: Array

    def matrix(self) -> tuple[Index, Index, Array]:
        """The coordinates that are written and read, and the block between them."""
        rows, at_row = np.unique(self.rows, return_inverse=True)
        columns, at_column = np.unique(self.columns, return_inverse=True)
        found = np.zeros((len(rows), len(columns)))
        found[at_row, at_column] = self.values
        return rows, columns, found


def check_size(layers: int, heads: int, width: int, d: int) -> None:
    """Raise if matrices for `layers` layers of `heads` heads of one width over d coordinates have more than `LARGEST` numbers."""
    if (size := 4 * layers * heads * width * d) > LARGEST:
        raise InputError(
            f"{layers} layers of {heads} heads of width {width} over {d} coordinates have {size:,} numbers, over {LARGEST:,}: "
            "use a smaller network, or a larger eps"
        )


def attention_only(literal: SelfAttentionNetwork) -> AttentionOnly:
    """The blocks of a literal form, in its dtype."""
    return _Stream(literal).found()


class _Stream:
    """The coordinates and tokens of the stream, and the blocks that read and write them."""

    def __init__(self, literal: SelfAttentionNetwork) -> None:
        self.literal, self.dtype = literal, str(literal.fixed.dtype).removeprefix("torch.")
        steps = [(name, cast(Step, literal.steps[i])) for name, i in literal.order]
        attention = [i for i, (_, step) in enumerate(steps) if isinstance(step, SelfAttention)]
        varies = any(None in spec.shape for spec in literal.inputs)
        problems = _problems(literal, steps, varies)
        if problems or not attention:
            nothing = Problem(literal.form, "has no layer of attention")
            raise UnsupportedError("this literal form has no attention-only form", problems or [nothing])
        self.leading = 0 if literal.residual else attention[0]
        self.steps, self.layout = steps[self.leading :], Layout({})
        layouts = list(literal.layouts.items())[self.leading :]
        self.counts = [len(layout.tokens) for _, layout in layouts]  # tokens before and after every step
        self.starts = self._registers(layouts)
        self.routes = {
            i: _routes(step, self.counts[i])
            for i, (_, step) in enumerate(self.steps)
            if isinstance(step, SequenceMap)
        }
        longest = max(layouts, key=lambda named: len(named[1].tokens))[1].tokens
        places = max(self.counts)
        sources = [route.sources for routes in self.routes.values() for route in routes]
        unfilled = any(len(found) < places or bool((found < 0).any()) for found in sources)
        self.nothing = not varies and (unfilled or min(self.counts) < places)
        self.layout.tokens = (*longest, *[NOTHING] * self.nothing)
        if len(self.layout.tokens) > _PLACES[self.dtype] and self.routes:
            raise InputError(
                f"{len(self.layout.tokens)} tokens: routing heads in {self.dtype} serve {_PLACES[self.dtype]}"
            )
        self.known: dict[bytes, str] = {}  # registers with a number for each token
        if self.nothing or self.routes:
            self.constants = self._constants()

    def _registers(self, layouts: Sequence[tuple[str, Layout]]) -> list[int]:
        """Where the coordinates of the sequence before and after every step begin."""
        starts = []
        for i, (name, layout) in enumerate(layouts):
            if i == 0 or not self.literal.residual:
                starts.append(self.layout.width)
                for register, at in layout.items():
                    title = register if self.literal.residual else f"{name}: {register}"
                    self.layout.add(title, at.stop - at.start)
            else:
                starts.append(starts[-1])
        return starts

    def _constants(self) -> dict[str, Array]:
        """By register, the number of every token."""
        tokens: Array = np.arange(len(self.layout.tokens), dtype=np.float64)
        found: dict[str, Array] = {ONE: np.ones_like(tokens)}
        if self.nothing:
            counts = {n for i, n in enumerate(self.counts[:-1]) if i not in self.routes}
            for count in sorted(counts | {len(tokens) - 1}):
                found[self._outside(count)] = (tokens >= count) * np.ones_like(tokens)
        if self.routes:
            found |= {PLACE: tokens, SQUARE: tokens * tokens}
            self.known[tokens.tobytes()] = PLACE
        for i, routes in self.routes.items():
            for g, route in enumerate(routes):
                sources, name = self._sources(route), f"route: {self.steps[i][0]} {g}"
                if self.known.setdefault(sources.tobytes(), name) == name:
                    found[name] = sources
        for name in found:
            self.layout.add(name, 1)
        return found

    def _outside(self, count: int) -> str:
        """The register that is 1 in the tokens after the first `count`."""
        return f"route: {NOTHING}" if count == len(self.layout.tokens) - 1 else f"route: not of {count}"

    def _sources(self, route: _Route) -> Array:
        """(tokens,): s(t); "nothing" is the last token."""
        found = np.full(len(self.layout.tokens), len(self.layout.tokens) - 1, dtype=np.float64)
        known = np.flatnonzero(route.sources >= 0)
        found[known] = route.sources[known]
        return found

    def found(self) -> AttentionOnly:
        layers = [step for _, step in self.steps if isinstance(step, SelfAttention)]
        width = max(max(a.W_Q.shape[2] + 2 * self.nothing, a.W_V.shape[2]) for a in layers)
        heads = max(*(len(a.heads) for a in layers), *map(len, self.routes.values()), 1)
        check_size(len(self.steps), heads, width, self.layout.width)
        blocks = tuple(self._blocks(max(width, 2)))
        register, last = self.literal.output[0], self.starts[-1]
        whole = slice(last, last + self.steps[-1][1].layout.width)
        output = whole if register is None else self.literal.layout[register]
        return AttentionOnly(blocks, self.layout, self.leading, self._start(), output)

    def _start(self) -> Array | None:
        """What the stream holds beside the embedded sequence: places, marks, and the biases of maps."""
        if not (self.nothing or self.routes):
            return None
        found = np.zeros((len(self.layout.tokens), self.layout.width))
        for name, numbers in self.constants.items():
            found[:, self.layout[name].start] = numbers
        for i in self.routes:
            step, begin = cast(SequenceMap, self.steps[i][1]), self.starts[i + 1]
            bias = _numpy(step.bias).reshape(step.out_shape)
            repeats = self.counts[i] // step.in_shape[0]
            found[: repeats * len(bias), begin : begin + bias.shape[1]] += np.tile(bias, (repeats, 1))
        return found

    def _blocks(self, width: int) -> Iterator[Block]:
        for i, (name, step) in enumerate(self.steps):
            if isinstance(step, SelfAttention):
                yield self._attention(name, step, i)
            else:
                yield self._routing(name, i, width)

    def _attention(self, name: str, step: SelfAttention, i: int) -> Block:
        """A layer of the literal form. Two gates separate its tokens from those outside, where all of its registers are 0."""
        w_q, w_k, w_v, w_o = (_numpy(getattr(step, letter)) for letter in LETTERS)
        shared = list(step.shared)
        w_q, w_k, w_v = (self._at(w, self.starts[i]) for w in (w_q, w_k[shared], w_v[shared]))
        w_o = self._at(w_o.swapaxes(1, 2), self.starts[i + 1]).swapaxes(1, 2)
        if self.nothing:
            outside, one = self.layout.form(self._outside(self.counts[i])), self.layout.form(ONE)
            nothing = self.layout.form(f"route: {NOTHING}")
            query, key = np.stack([outside - one, -outside], 1), np.stack([outside, one - nothing], 1)
            w_q, w_k = (
                np.concatenate([w, np.broadcast_to(gates, (len(w), *gates.shape))], 2)
                for w, gates in ((w_q, _FAR * query), (w_k, key))
            )
        return Block(name, step.heads, w_q, w_k, w_v, w_o)

    def _at(self, matrices: Array, start: int) -> Array:
        """(…, D, width) of (…, d, width): the coordinates of one sequence among those of the stream."""
        heads, d, width = matrices.shape
        found = np.zeros((heads, self.layout.width, width))
        found[:, start : start + d] = matrices
        return found

    def _routing(self, name: str, i: int, width: int) -> Block:
        """A head for every block of A and every `width` of its coordinates."""
        read, write, d = self.starts[i], self.starts[i + 1], self.layout.width
        form, m, found = self.layout.form, _UNDERFLOW[self.dtype], []
        key = np.stack([form(PLACE), -form(SQUARE)], 1)
        for g, route in enumerate(self.routes[i]):
            query = np.stack([2 * m * form(self.known[self._sources(route).tobytes()]), m * form(ONE)], 1)
            rows, columns, block = route.matrix()
            wide = len(columns) <= len(rows)
            for at in range(0, min(block.shape), width):
                value, out = np.zeros((d, width)), np.zeros((width, d))
                part = np.arange(at, min(at + width, *block.shape))
                if wide:  # W_V copies, W_O multiplies
                    value[read + columns[part], part - at] = 1.0
                    out[np.ix_(part - at, write + rows)] = block[:, part].T
                else:
                    value[np.ix_(read + columns, part - at)] = block[part].T
                    out[part - at, write + rows[part]] = 1.0
                found.append((f"{name}: route {g}" + f", {at}:" * (at > 0), query, value, out))
        if not found:
            found = [(f"{name}: nothing", 0 * key, np.zeros((d, 1)), np.zeros((1, d)))]
        names, queries, values, outs = zip(*found, strict=True)
        keys = np.broadcast_to(key, (len(found), *key.shape))
        return Block(name, names, np.stack(queries), keys, np.stack(values), np.stack(outs))


def _problems(
    literal: SelfAttentionNetwork, steps: Sequence[tuple[str, Step]], varies: bool
) -> list[Problem]:
    found = []
    for name, step in steps:
        if not isinstance(step, (SelfAttention, SequenceMap)):
            found.append(Problem(name, "a softmax over columns is not attention: use form='two-layer'"))
        elif isinstance(step, SequenceMap) and varies:
            found.append(Problem(name, "a map in a sequence of any length has no routing heads"))
        elif isinstance(step, SequenceMap) and literal.residual and bool(step.bias.any()):
            found.append(
                Problem(name, "a map with a bias: let the register that it writes start at the bias")
            )
    return found


def _routes(step: SequenceMap, tokens: int) -> list[_Route]:
    """The blocks of A, (n, d) → (m, e), for a sequence of `tokens` tokens: equal blocks together, one source for a token."""
    (n, d), (m, e) = step.in_shape, step.out_shape
    rows, columns, core = step.rows.cpu().numpy(), step.columns.cpu().numpy(), _numpy(step.core)
    if core.ndim == 2:
        rows, columns, core = np.repeat(rows, len(columns)), np.tile(columns, len(rows)), core.reshape(-1)
    kept = core != 0
    (target, j), (source, i), core = np.divmod(rows[kept], e), np.divmod(columns[kept], d), core[kept]
    order = np.lexsort((i, j, source, target))
    target, j, source, i, core = (a[order] for a in (target, j, source, i, core))
    changes = np.diff(target, prepend=-1) != 0
    first = np.flatnonzero(changes | (np.diff(source, prepend=-1) != 0)).tolist()  # of every pair of tokens
    alike: dict[tuple[bytes, ...], list[_Route]] = {}
    for a, b in zip(first, [*first[1:], len(core)], strict=True):
        parts = j[a:b], i[a:b], core[a:b]
        repeats = range(tokens // n)
        pairs = np.array([target[a] + k * m for k in repeats]), np.array([source[a] + k * n for k in repeats])
        routes = alike.setdefault(tuple(part.tobytes() for part in parts), [])
        free = next((route for route in routes if (route.sources[pairs[0]] < 0).all()), None)
        if free is None:
            free = _Route(np.full(tokens // n * m, -1), *parts)
            routes.append(free)
        free.sources[pairs[0]] = pairs[1]
    return [route for routes in alike.values() for route in routes]


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().cpu().double().numpy()
