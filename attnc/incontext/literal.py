"""A learner as plain self-attention over all tokens, with a residual stream of named registers.

Tokens: each example twice with τ = ±1, queries with τ = 1, the weight token, BOS, anchors of the activation in two copies (κ, c, v)
and (-κ, c, -v), anchors of the soft threshold. One gradient step is three layers, four for lasso, with the same matrices in every
step and for every n:

    A   data, query → {weight, BOS}      scores e w·τx and 0       u = τ w·x
    B   data, query → anchors of its τ   scores ±κu + c            g = τψ; for a loss of the residual the query is u - τy
    C   weight → data                    scores e τr and 2e τr     w ← w - η((1/n) Σ r_i x_i + λw), λw from itself
        data, query                      A and B again, negated    u = g = 0, exactly
    D   weight → threshold anchors       a head for each w_j       w_j ← w_j - clip(w_j)

After the last step A, and B for a GLM, run again: the prediction is u or g of the query tokens.

τr is u - τy without an activation, g - τy for ψ(u) - y, and g for ψ(u - y). The heads of a layer read the same X, so those of C
that repeat A and B find the w and u of A and B: they compute the same numbers and subtract them.

Each head has a column of gates for each group of tokens that query: the query holds -M, the key 1 on every token that this group
does not attend to. Scores with the others are unchanged. M exceeds every score within the radius by so much that exp underflows to
exactly 0. Tokens that must not change attend to tokens whose value is exactly 0 in this head: BOS, in A the examples."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from attnc.errors import InputError
from attnc.network.literal import Embedding, Input, Layout, Output, SelfAttention, SelfAttentionNetwork
from attnc.network.literal.builder import Builder, largest_score
from attnc.network.literal.network import Plan
from attnc.network.literal.parts import Group
from attnc.network.literal.steps import Step
from attnc.records.numbers import Array, HeadNumbers

if TYPE_CHECKING:
    from attnc.incontext.learner import Learner
    from attnc.network.head import Head

_LABELS = {"logistic": "the labels 0 and 1", "poisson": "counts 0, 1, 2, …"}


def literal_learner(learner: Learner, unrolled: bool = False) -> SelfAttentionNetwork:
    """The learner as self-attention: the same three or four layers in every step or, with `unrolled`, a copy for each step.

    >>> import attnc.incontext, torch
    >>> learner = attnc.incontext.gradient_descent("ridge(0.1)", features=2, steps=20, step_size=0.5)
    >>> net = literal_learner(learner)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    >>> y = x @ torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> stream = net.stream(x, y, after="step 20: C")
    >>> bool((net.read(stream, "w", of="weight")[0] - learner.coefficients(x, y)).abs().max() < 1e-9)
    True
    >>> net.read(stream, "u").abs().max()
    tensor(0., dtype=torch.float64)
    >>> net.step("step 1: C").heads
    ('gather e', 'gather 2e', 'ridge', 'clear u: head 0', 'clear u: head 1')
    """
    build = _Learner(learner)
    layers, features, radius = build.layers(), learner.features, learner.radius
    predicts = build.activation is not None and not learner.loss.of_residual
    order = [(f"step {t + 1}: {name}", name) for t in range(learner.steps) for name in layers]
    order += [(f"predict: {name}", name) for name in (("A", "B") if predicts else ("A",))]
    steps: list[Step] = (
        [copy.deepcopy(layers[name]) for _, name in order] if unrolled else list(layers.values())
    )
    index = range(len(order)) if unrolled else [list(layers).index(name) for _, name in order]
    labels = _LABELS.get(learner.loss.name, "real numbers")
    inputs = (
        Input("context_x", (None, features), features, radius.x),
        Input("context_y", (None,), 1, radius.y, labels),
        Input("query_x", (None, features), features, radius.x),
    )
    plan = Plan(
        "learner", inputs, build.embeddings(), build.fixed_tokens(), steps,
        tuple((step, i) for (step, _), i in zip(order, index, strict=True)),
        Output("g" if predicts else "u", None, embedding=2), build.dtype, build.at,
        limits={"w": radius.w, "u": radius.u}, strict=learner.strict,
    )  # fmt: skip
    return SelfAttentionNetwork(plan).to(learner.reading.key.device)


def registers_of(features: int, activation: int = 0, threshold: int = 0) -> Layout:
    """The registers of a token, for d features and as many heads as the activation and the threshold have (0: none).

    The first are flags, one for each kind of token: a token has a 1 in exactly one of them.

    x, tx: features of an example or a query (the intercept's 1 last), and τx · y, ty: label · tau: τ = ±1 · w: coefficients, in the
    weight token · u: τ w·x, written by A, cleared by C · g: τψ, written by B, cleared by C · kappa, c, v: keys and values of an
    anchor, one for each head of the activation; "threshold kappa", … of the soft threshold.

    >>> layout = registers_of(3)
    >>> layout["x"], layout["w"], list(layout)
    (slice(4, 7, None), slice(13, 16, None), ['weight', 'bos', 'data', 'query', 'x', 'tx', 'y', 'ty', 'tau', 'w', 'u'])
    """
    kinds = (
        "weight",
        "bos",
        "data",
        "query",
        *(("anchor+", "anchor-") * bool(activation)),
        *(("threshold",) * bool(threshold)),
    )
    widths = dict.fromkeys(kinds, 1)
    widths |= {"x": features, "tx": features, "y": 1, "ty": 1, "tau": 1, "w": features, "u": 1}
    if activation:
        widths |= {"g": 1, "kappa": activation, "c": activation, "v": activation}
    if threshold:
        widths |= dict.fromkeys(("threshold kappa", "threshold c", "threshold v"), threshold)
    return Layout(widths)


@dataclass
class _Head:
    """W_Q, W_K, W_V, W_O of one head; `attend` lists groups of tokens (a linear form that is 1 on them) and the kinds of tokens
    that they attend to; `top` is at least every score."""

    name: str
    query: Array
    key: Array
    value: Array
    out: Array
    attend: list[tuple[Array, tuple[str, ...]]]
    top: float


@dataclass
class _Learner:
    """The matrices of the layers."""

    learner: Learner
    at: Layout = field(init=False)

    def __post_init__(self) -> None:
        certificate = self.learner.certificate
        self.certificate, self.d, self.dtype = certificate, certificate.features, certificate.dtype
        self.reading, self.activation, self.threshold = (
            None if head is None else plain_numbers(name, head)
            for name, head in (
                ("reading", self.learner.reading),
                ("activation", self.learner.activation),
                ("threshold", self.learner.threshold),
            )
        )
        self.at = registers_of(self.d, *(n.heads if n else 0 for n in (self.activation, self.threshold)))
        self.kinds = [
            name
            for name in self.at
            if name in ("weight", "bos", "data", "query", "anchor+", "anchor-", "threshold")
        ]
        names = ["weight", "bos"]
        for kind, numbers in (
            ("anchor+", self.activation),
            ("anchor-", self.activation),
            ("threshold", self.threshold),
        ):
            names += [f"{kind} {k}" for k in range(numbers.anchors_per_head)] if numbers else []
        self.at.tokens = tuple(names)
        self.build = Builder("learner", self.dtype)

    def layers(self) -> dict[str, SelfAttention]:
        heads = {"A": self._reads(1.0), "B": self._activates(1.0)}
        heads["C"] = [*self._gathers(), *self._reads(-1.0), *self._activates(-1.0)]
        heads["D"] = self._thresholds()
        every = [head for layer in heads.values() for head in layer]
        r = max(head.query.shape[1] + len(head.attend) for head in every)
        m = max(head.value.shape[1] for head in every)
        return {name: self._layer(layer, r, m) for name, layer in heads.items() if layer}

    def _layer(self, heads: list[_Head], r: int, m: int) -> SelfAttention:
        """Heads of all layers have the same shapes, filled up with 0. Columns of scores, then columns of gates."""
        found = self.build.matrices(1, len(heads), len(heads), self.at.width, r, m, self.at.width)
        for h, head in enumerate(heads):
            columns, distance = head.query.shape[1], self.build.distance(head.top)
            found["W_Q"][h, :, :columns], found["W_K"][h, :, :columns] = head.query, head.key
            for g, (who, kinds) in enumerate(head.attend, columns):
                found["W_Q"][h, :, g] = -distance * who
                found["W_K"][h, :, g] = self.at.marks(*(kind for kind in self.kinds if kind not in kinds))
            found["W_V"][h, :, : head.value.shape[1]], found["W_O"][h, : len(head.out)] = head.value, head.out
        return self.build.attention(found, range(len(heads)), [head.name for head in heads], self.at)

    def _reads(self, sign: float) -> list[_Head]:
        """A: score (e τx)·w with the weight token and 0 with BOS; the values are those of the reading head."""
        n, at, found = self.reading, self.at, []
        assert n is not None
        attend = [(at.marks("data", "query"), ("weight", "bos")), self._idle("data", "query", sink="data")]
        for h in range(n.heads):
            query, key = np.zeros((2, at.width, self.d))
            query[at["tx"]] = n.query[h, 0] * n.key[h, 0, 0] * np.eye(self.d)
            key[at["w"]] = np.eye(self.d)
            value = n.value[h, 0, 1] * at.marks("weight") + n.value[h, 1, 1] * at.marks("bos")
            name = f"{'write' if sign > 0 else 'clear'} u: head {h}"
            out, top = sign * n.output[h] * at.form("u")[None], _largest(self.learner.reading, h)
            found.append(_Head(name, query, key, value[:, None], out, attend, top))
        return found

    def _activates(self, sign: float) -> list[_Head]:
        """B: with anchors of the own τ, κτ(a τs + oτ) + c = κ(a s + o) + c, s = w·x or w·x - y; the values are τv."""
        head, n, at, found = self.learner.activation, self.activation, self.at, []
        if head is None or n is None:
            return []
        querying, tau = at.marks("data", "query"), at.form("tau")
        attend = [
            ((querying + tau) / 2, ("anchor+",)),
            ((querying - tau) / 2, ("anchor-",)),
            self._idle("data", "query"),
        ]
        s = at.form("u") - (at.form("ty") if self.learner.loss.of_residual else 0.0)
        for h in range(n.heads):
            query = np.stack([n.query[h, 0] * s + n.query[h, 1] * tau, querying], 1)
            name = f"{'write' if sign > 0 else 'clear'} g: head {h}"
            out = sign * n.output[h] * at.form("g")[None]
            found.append(_Head(name, query, *self._anchors("", h), out, attend, _largest(head, h)))
        return found

    def _gathers(self) -> list[_Head]:
        """C: scores e τr and 2e τr, values τx, coefficients -4η/(3e) and η/(6e); and -ηλ w from the weight token itself."""
        at, e, eta, loss = self.at, self.certificate.e, self.certificate.step_size, self.learner.loss
        weight, largest = at.marks("weight"), self.certificate.residual()[0]
        tx, w = (np.eye(at.width)[:, at[name]] for name in ("tx", "w"))
        residual = at.form("u" if self.activation is None else "g")
        if self.activation is None or not loss.of_residual:
            residual = residual - at.form("ty")
        attend = [(weight, ("data",)), self._idle("weight")]
        found = [
            _Head(name, size * weight[:, None], residual[:, None], tx, factor * w.T, attend, size * largest)
            for name, size, factor in (
                ("gather e", e, -4 * eta / (3 * e)),
                ("gather 2e", 2 * e, eta / (6 * e)),
            )
        ]
        if loss.ridge > 0:
            none, shrunk = np.zeros((at.width, 0)), -eta * loss.ridge * w.T
            shrunk[self.learner.features :] = 0.0  # not the intercept
            found.append(
                _Head("ridge", none, none, w, shrunk, [(weight, ("weight",)), self._idle("weight")], 0.0)
            )
        return found

    def _thresholds(self) -> list[_Head]:
        """D: the weight token attends to the anchors of the threshold, one head a coordinate, and subtracts clip(w_j)."""
        head, n, at, found = self.learner.threshold, self.threshold, self.at, []
        if head is None or n is None:
            return []
        weight = at.marks("weight")
        attend = [(weight, ("threshold",)), self._idle("weight")]
        for j, h in product(range(self.learner.features), range(n.heads)):
            query = np.stack([n.query[h, 0] * at.form("w", j) + n.query[h, 1] * weight, weight], 1)
            out, name = -n.output[h] * at.form("w", j)[None], f"threshold w[{j}]: head {h}"
            found.append(_Head(name, query, *self._anchors("threshold ", h), out, attend, _largest(head, h)))
        return found

    def _idle(self, *active: str, sink: str = "bos") -> tuple[Array, tuple[str, ...]]:
        """All tokens that are not active attend to the sink, which has the value 0 in this head."""
        return self.at.marks(*(kind for kind in self.kinds if kind not in active)), (sink,)

    def _anchors(self, prefix: str, h: int) -> tuple[Array, Array]:
        """Keys (κ, c) and values v of head h, read from the registers of the anchors."""
        kappa, c, v = (self.at.form(f"{prefix}{name}", h) for name in ("kappa", "c", "v"))
        return np.stack([kappa, c], 1), v[:, None]

    def fixed_tokens(self) -> Array:
        """(tokens, D): the weight token with w = 0, BOS, the anchors of the activation (κ, c, v) and (-κ, c, -v), of the threshold."""
        rows = [self.at.marks("weight")[None], self.at.marks("bos")[None]]
        copies = [("anchor+", "", 1.0, self.activation), ("anchor-", "", -1.0, self.activation)]
        for kind, prefix, sign, n in [*copies, ("threshold", "threshold ", 1.0, self.threshold)]:
            if n is not None:
                anchors = np.tile(self.at.marks(kind), (n.anchors_per_head, 1))
                anchors[:, self.at[f"{prefix}kappa"]] = sign * n.key[:, :, 0].T
                anchors[:, self.at[f"{prefix}c"]] = n.key[:, :, 1].T
                anchors[:, self.at[f"{prefix}v"]] = sign * n.value[:, :, 1].T
                rows.append(anchors)
        return np.concatenate(rows)

    def embeddings(self) -> list[Embedding]:
        """Examples with τ = 1 and with τ = -1, queries. If the registers hold one feature more than is given, it is the
        intercept's 1."""
        found, features, at = [], self.learner.features, self.at
        given = np.arange(features)
        for name, kind, tau in (("example", "data", 1.0), ("twin", "data", -1.0), ("query", "query", 1.0)):
            reads = (0, 1) if kind == "data" else (2,)
            weight, start = np.zeros((features + len(reads) - 1, at.width)), np.zeros((1, at.width))
            for register, sign in (("x", 1.0), ("tx", tau)):
                first = at[register].start
                weight[given, first + given] = sign
                start[0, first + features : at[register].stop] = sign
            if kind == "data":
                weight[features, [at["y"].start, at["ty"].start]] = (1.0, tau)
            start[0, [at[kind].start, at["tau"].start]] = (1.0, tau)
            found.append(Embedding(name, reads, weight, start, self.dtype))
        return found


def plain_numbers(name: str, head: Head) -> HeadNumbers:
    """The numbers of a head that does not attend to itself: the tokens of a learner have no position."""
    numbers = head.numbers()
    if numbers.gated:
        raise InputError(f"the {name} head of this learner is gated: it cannot be written as self-attention")
    return numbers


def _largest(head: Head, h: int) -> float:
    """The largest |score| of head h on the interval that it is certified for."""
    assert head.domain is not None
    group = Group(head.numbers(), np.zeros(0, np.int64), head.domain.lo, head.domain.hi)
    return largest_score(group, group, h)
