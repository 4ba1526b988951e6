"""A learner as plain self-attention over all tokens, with a residual stream of named registers.

Tokens: each example twice with τ = ±1, queries with τ = 1, the weight token, BOS, anchors of the activation in two copies
(κ, c, v) and (-κ, c, -v), anchors of the soft threshold. One gradient step is three layers, four for lasso, with the same
matrices in every step and for every n:

    A   data, query → {weight, BOS}      scores e w·τx and 0       u = τ w·x
    B   data, query → anchors of its τ   scores ±κu + c            g = τψ; for a loss of the residual the query is u - τy
    C   weight → data                    scores e τr and 2e τr     w ← w - η((1/n) Σ r_i x_i + λw), λw from itself
        data, query                      A and B again, negated    u = g = 0, exactly
    D   weight → threshold anchors       a head for each w_j       w_j ← w_j - clip(w_j)

After the last step A, and B for a GLM, run again: the prediction is u or g of the query tokens.

τr is u - τy without an activation, g - τy for ψ(u) - y, and g for ψ(u - y). The heads of a layer read the same X, so those of C
that repeat A and B find the w and u of A and B: they compute the same numbers and subtract them.

Gates say which tokens attend to which (`KeySet`). Tokens that must not change attend to tokens whose value is exactly 0 in this
head: BOS, in A the examples."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from attnc.errors import InputError
from attnc.network.literal import Embedding, Input, Layout, SelfAttention, SelfAttentionNetwork
from attnc.network.literal.builder import Builder, Gates, KeySet, largest_score
from attnc.records.numbers import Array, HeadNumbers

if TYPE_CHECKING:
    from attnc.incontext.learner import Learner
    from attnc.network.head import Head

_KINDS = ("weight", "bos", "data", "query", "anchor+", "anchor-", "threshold")  # of tokens


def literal_learner(learner: Learner, unrolled: bool = False) -> SelfAttentionNetwork:
    """The learner as self-attention: the same three or four layers in every step or, with `unrolled`, a copy for each step."""
    build = _Learner(learner)
    layers, features, radius = build.layers(), learner.features, learner.radius
    predicts = learner.activation is not None and not learner.loss.of_residual
    order = [(f"step {t + 1}: {name}", name) for t in range(learner.steps) for name in layers]
    order += [(f"predict: {name}", name) for name in (("A", "B") if predicts else ("A",))]
    steps = [(step, copy.deepcopy(layers[name]) if unrolled else layers[name]) for step, name in order]
    inputs = (
        Input("context_x", (None, features), features, radius.x),
        Input("context_y", (None,), 1, radius.y, learner.loss.labels),
        Input("query_x", (None, features), features, radius.x),
    )
    output = "g" if predicts else "u", None, 2
    literal = SelfAttentionNetwork(
        "learner", inputs, steps, build.at, output, build.dtype, embeddings=build.embeddings(), fixed=build.fixed_tokens(),
        limits={"w": radius.w, "u": radius.u}, strict=learner.strict,
    )  # fmt: skip
    return literal.to(learner.reading.key.device)


def registers_of(features: int, activation: int = 0, threshold: int = 0) -> Layout:
    """The registers of a token, for d features and as many heads as the activation and the threshold have (0: none).

    The first are flags, one for each kind of token: a token has a 1 in exactly one of them.

    x, tx: features of an example or a query (the intercept's 1 last), and τx · y, ty: label, and τ times it · tau: τ = ±1 ·
    w: coefficients, in the weight token · u: τ w·x, written by A, cleared by C · g: τψ, written by B, cleared by C · kappa, c, v:
    keys and values of an anchor, one for each head of the activation; "threshold kappa", … of the soft threshold."""
    kinds = [*_KINDS[:4], *_KINDS[4:6] * bool(activation), *_KINDS[6:] * bool(threshold)]
    widths = dict.fromkeys(kinds, 1)
    widths |= {"x": features, "tx": features, "y": 1, "ty": 1, "tau": 1, "w": features, "u": 1}
    if activation:
        widths |= {"g": 1, "kappa": activation, "c": activation, "v": activation}
    if threshold:
        widths |= dict.fromkeys(("threshold kappa", "threshold c", "threshold v"), threshold)
    return Layout(widths)


class _Learner:
    """The matrices of the layers."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.settings, self.dtype = learner, learner.settings, learner.settings.dtype
        self.numbers = {name: plain_numbers(name, head) for name, head in learner._heads().items()}
        counts = {name: numbers.heads for name, numbers in self.numbers.items() if name != "reading"}
        self.at = registers_of(learner.settings.features, **counts)
        self.kinds = [name for name in self.at if name in _KINDS]
        copies = [("anchor+", "activation", "", 1), ("anchor-", "activation", "", -1)]
        copies.append(("threshold", "threshold", "threshold ", 1))
        self.anchors = [
            (kind, self.numbers[of], prefix, sign) for kind, of, prefix, sign in copies if of in self.numbers
        ]
        names = [f"{kind} {k}" for kind, n, *_ in self.anchors for k in range(n.anchors_per_head)]
        self.at.tokens = ("weight", "bos", *names)

    def layers(self) -> dict[str, SelfAttention]:
        """All heads have the same shapes, so that those of C repeat the roundings of A and B."""
        heads = {"A": self._reads(1.0), "B": self._activates(1.0)}
        heads["C"] = [*self._gathers(), *self._reads(-1.0), *self._activates(-1.0)]
        heads["D"] = self._thresholds()
        every = [head for layer in heads.values() for head in layer]
        r, m = max(h.key.shape[1] + len(h.gates) for h in every), max(h.value.shape[1] for h in every)
        build = Builder("learner", self.dtype)
        return {name: build.attention(layer, 1, self.at, r, m) for name, layer in heads.items() if layer}

    def _reads(self, sign: float) -> list[KeySet]:
        """A: score (e τx)·w with the weight token and 0 with BOS; the values are those of the reading head."""
        n, at, found = self.numbers["reading"], self.at, []
        read = self._only(at.marks("data", "query"), "weight", "bos")
        gates = [read, self._idle("data", "query", sink="data")]
        for h in range(n.heads):
            query = n.query[h, 0] * n.key[h, 0, 0] * at.block("tx")
            value = n.value[h, 0, 1] * at.marks("weight") + n.value[h, 1, 1] * at.marks("bos")
            out, top = sign * n.output[h] * at.form("u"), self._largest("reading", h)
            name = f"{'write' if sign > 0 else 'clear'} u: head {h}"
            found.append(KeySet.single(name, query, at.block("w"), value[:, None], out[None], gates, top))
        return found

    def _activates(self, sign: float) -> list[KeySet]:
        """B: with anchors of the own τ, κτ(a τs + oτ) + c = κ(a s + o) + c, s = w·x or w·x - y; the values are τv."""
        if "activation" not in self.numbers:
            return []
        at = self.at
        every, tau = at.marks("data", "query"), at.form("tau")
        gates = [self._only((every + tau) / 2, "anchor+"), self._only((every - tau) / 2, "anchor-")]
        gates.append(self._idle("data", "query"))
        s = at.form("u") - (at.form("ty") if self.learner.loss.of_residual else 0.0)
        name = f"{'write' if sign > 0 else 'clear'} g"
        return self._anchored("activation", name, "", (s, tau, every), sign * at.form("g"), gates)

    def _gathers(self) -> list[KeySet]:
        """C: scores e τr and 2e τr, values τx, coefficients -4η/(3e) and η/(6e); and -ηλ w from the weight token itself."""
        at, e, eta, loss = self.at, self.settings.e, self.settings.step_size, self.learner.loss
        weight, largest, w = at.marks("weight"), self.learner._bounds("bound").residual()[0], at.block("w")
        residual = at.form("u" if loss.function is None else "g")
        if not loss.of_residual or loss.function is None:
            residual = residual - at.form("ty")
        gates, found = [self._only(weight, "data"), self._idle("weight")], []
        for name, size, factor in (("gather e", e, -4 * eta / (3 * e)), ("gather 2e", 2 * e, eta / (6 * e))):
            query, key, out = size * weight[:, None], residual[:, None], factor * w.T
            found.append(KeySet.single(name, query, key, at.block("tx"), out, gates, size * largest))
        if loss.ridge > 0:
            none, shrunk = np.zeros((at.width, 0)), -eta * loss.ridge * w.T
            shrunk[self.learner.features :] = 0.0  # not the intercept
            gates = [self._only(weight, "weight"), self._idle("weight")]
            found.append(KeySet.single("ridge", none, none, w, shrunk, gates, 0.0))
        return found

    def _thresholds(self) -> list[KeySet]:
        """D: the weight token attends to the anchors of the threshold, one head a coordinate, and subtracts clip(w_j)."""
        if "threshold" not in self.numbers:
            return []
        weight, found = self.at.marks("weight"), list[KeySet]()
        gates = [self._only(weight, "threshold"), self._idle("weight")]
        for j in range(self.learner.features):
            w, name = self.at.form("w", j), f"threshold w[{j}]"
            found += self._anchored("threshold", name, "threshold ", (w, weight, weight), -w, gates)
        return found

    def _anchored(
        self, of: str, name: str, prefix: str, forms: tuple[Array, Array, Array], out: Array, gates: Gates
    ) -> list[KeySet]:
        """q = (a s + o, 1), `forms` read s and the two constants; keys (κ, c) and values v are in the registers of anchors."""
        (s, shift, one), n, found = forms, self.numbers[of], []
        for h in range(n.heads):
            kappa, c, v = (self.at.form(f"{prefix}{part}", h) for part in ("kappa", "c", "v"))
            query, key = (
                np.stack([n.query[h, 0] * s + n.query[h, 1] * shift, one], 1),
                np.stack([kappa, c], 1),
            )
            written, top = n.output[h] * out[None], self._largest(of, h)
            found.append(KeySet.single(f"{name}: head {h}", query, key, v[:, None], written, gates, top))
        return found

    def _largest(self, of: str, h: int) -> float:
        """The largest |score| of head h on the interval that it is certified for."""
        domain = self.learner._heads()[of].certificate.interval
        return largest_score(self.numbers[of], h, domain.lo, domain.hi)

    def _only(self, who: Array, *kinds: str) -> tuple[Array, Array]:
        """A gate: tokens with who = 1 attend to these kinds of tokens alone."""
        return who, self.at.marks(*(kind for kind in self.kinds if kind not in kinds))

    def _idle(self, *active: str, sink: str = "bos") -> tuple[Array, Array]:
        """A gate: all tokens that are not active attend to the sink, which has the value 0 in this head."""
        return self._only(self.at.marks(*(kind for kind in self.kinds if kind not in active)), sink)

    def fixed_tokens(self) -> Array:
        """(tokens, D): the weight token with w = 0, BOS, the anchors of the activation and of the threshold."""
        rows = [self.at.marks("weight")[None], self.at.marks("bos")[None]]
        for kind, n, prefix, sign in self.anchors:
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
