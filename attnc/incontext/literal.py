"""The literal network of a learner: plain self-attention over all tokens, a residual stream, no mask, no feed-forward block.

    X ← X + Σ_h softmax(X W_Q^h (X W_K^h)ᵀ) X W_V^h W_O^h

Tokens: the weight token, BOS, anchors of the activation in two copies (κ, c, v) and (-κ, c, -v), anchors of the soft threshold,
each example twice with τ = ±1, queries with τ = 1. One gradient step is three layers, four for lasso, the same matrices in every
step and for every n:

    A   data, query → {weight, BOS}      scores e w·τx and 0       u = τ w·x
    B   data, query → anchors of its τ   scores ±κu + c            g = τψ, where for a loss of the residual u - τy asks
    C   weight → data                    scores e τr and 2e τr     w ← w - η((1/n) Σ r_i x_i + λw), λw from itself
        data, query                      A and B again, negated    u = g = 0, exactly
    D   weight → threshold anchors       a head for each w_j       w_j ← w_j - clip(w_j)

τr is u - τy without an activation, g - τy for ψ(u) - y, and g for ψ(u - y). The heads of a layer read the same X, so those of C
that repeat A and B find the w and u of A and B: they compute the same numbers and take them away.

Each head has a column of gates for each group of tokens that ask: the query holds -M, the key 1 on every token that this group
may not attend to. Scores with the others are untouched. M exceeds every score within the radius by so much that exp underflows to
exactly 0. Tokens that must not change attend to tokens whose value is exactly 0 in this head: BOS, in A the examples."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.incontext.learner import Learner
from attnc.incontext.literal_layers import LiteralHead, LiteralLayer, parameter
from attnc.incontext.registers import Group, Registers, fixed_tokens, gates, plain_numbers, token_maps
from attnc.network.altered import as_made
from attnc.network.head import Head
from attnc.network.running import PreciseModule, precise
from attnc.records.numbers import Array

_UNDERFLOW = {"float32": 128.0, "float64": 1024.0}  # exp of minus this is exactly 0


@as_made
class LiteralLearner(PreciseModule):
    """A learner as plain self-attention, made by `literal_learner`: every number that it works with stands in a named register.

    `registers` says which coordinates of a token hold what, `layers` has A, B, C and D, `stream` is the residual stream after
    some steps. Results are the learner's up to rounding; the certificate is the learner's own. With `strict` data are checked
    to be finite and within the radius, for which M is made; strict=False looks at no value."""

    start: nn.Parameter  # (fixed tokens, D): weight token, BOS, anchors
    maps: nn.Parameter  # (3, features + 2, D): from (x, y, 1) to a token

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        made = _Build(learner)
        self.registers, self.features, self.steps = made.r, learner.features, learner.steps
        self.loss, self.radius, self.strict = learner.loss, learner.radius, learner.strict
        self.layers = nn.ModuleDict({name: LiteralLayer(heads) for name, heads in made.layers().items()})
        self.start = parameter(fixed_tokens(made.r, made.activation, made.threshold), made.dtype)
        self.maps = parameter(token_maps(made.r, learner.features), made.dtype)
        self.to(learner.reading.key.device)

    @precise
    def tokens(
        self, context_x: Tensor, context_y: Tensor, query_x: Tensor | None = None, strict: bool | None = None
    ) -> Tensor:
        """(tokens, D): fixed tokens, examples with τ = 1, examples with τ = -1, queries, before the first step."""
        self._check_shapes(context_x, context_y, query_x)
        if self._strict(strict):
            self._check_values(context_x, context_y, query_x)
        one = torch.ones(len(context_x), 1, dtype=context_x.dtype, device=context_x.device)
        example = torch.cat([context_x, context_y[:, None], one], 1)
        rows = [self.start, example @ self.maps[0], example @ self.maps[1]]
        if query_x is not None:
            one = torch.ones(len(query_x), 1, dtype=query_x.dtype, device=query_x.device)
            rows.append(torch.cat([query_x, torch.zeros_like(one), one], 1) @ self.maps[2])
        return torch.cat(rows)

    @precise
    def step(self, x: Tensor, weights: dict[str, Tensor] | None = None, t: int = 0) -> Tensor:
        """Gradient step t of the stream: every layer once. `weights` is filled with the layers' attention weights."""
        for name, layer in self.layers_of(t).items():
            if weights is not None:
                weights[name] = cast(LiteralLayer, layer).weights(x)
            x = x + layer(x)
        return x

    def layers_of(self, t: int) -> nn.ModuleDict:
        """The layers of step t: the same for all."""
        return self.layers

    @precise
    def stream(
        self, context_x: Tensor, context_y: Tensor, query_x: Tensor | None = None, steps: int | None = None
    ) -> Tensor:
        """(tokens, D): the residual stream after all steps, or as many as told."""
        count = self.steps if steps is None else self._checked_step(steps, self.steps)
        return self._run(self.tokens(context_x, context_y, query_x), count, self.strict)[0]

    def _run(self, x: Tensor, steps: int, strict: bool) -> tuple[Tensor, Tensor]:
        """The stream after some steps, and w before the first and after every one of them."""
        found = [x[0, self.registers["w"]]]
        for t in range(steps):
            x = self.step(x, t=t)
            found.append(x[0, self.registers["w"]])
        w = torch.stack(found)
        if strict:
            self._check_reached(w, x)
        return x, w

    def read(self, stream: Tensor, name: str, of: str | None = None) -> Tensor:
        """What a register holds, (tokens, width): in tokens of the kind `of`, or by default where it has a meaning.

        `w` is read from the weight token; x, tx, y, ty, tau, u and g from examples and queries; flags from every token."""
        kinds = (of,) if of is not None else self.registers.holders(name)
        if unknown := [kind for kind in kinds if kind not in self.registers.kinds]:
            raise InputError(
                f"of={unknown[0]!r}: kinds of tokens are {', '.join(map(repr, self.registers.kinds))}"
            )
        at = self.registers[name]
        flags = torch.stack([stream[..., self.registers.at(kind)] for kind in kinds]).sum(0)
        return stream[flags == 1][:, at]

    @precise
    def forward(
        self, context_x: Tensor, context_y: Tensor, query_x: Tensor, strict: bool | None = None
    ) -> Tensor:
        """Predictions for the rows of query_x, from the registers of the query tokens: all steps, then A, and B for a GLM."""
        tokens = self.tokens(context_x, context_y, query_x, strict)
        x, _ = self._run(tokens, self.steps, self._strict(strict))
        x = x + self.layers["A"](x)
        predicts = "B" in self.layers and not self.loss.of_residual
        if predicts:
            x = x + self.layers["B"](x)
        found: Tensor = x[len(x) - len(query_x) :, self.registers.at("g" if predicts else "u")]
        return found

    @precise
    def trajectory(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """w before the first and after every step, (T + 1, d), read from the weight token."""
        tokens = self.tokens(context_x, context_y, None, strict)
        return self._run(tokens, self.steps, self._strict(strict))[1]

    @precise
    def attention(self, context_x: Tensor, context_y: Tensor, step: int = 0) -> dict[str, Tensor]:
        """By layer, (heads, tokens, tokens): every token's weights over every token in one step, the first of which is 0."""
        x = self.stream(context_x, context_y, steps=self._checked_step(step, self.steps - 1))
        found: dict[str, Tensor] = {}
        self.step(x, found, step)
        return found

    def extra_repr(self) -> str:
        return f"{self.steps} steps, tokens of {self.registers.width} coordinates: {self.registers!r}"

    def _check_shapes(self, context_x: Any, context_y: Any, query_x: Any) -> None:
        n = len(context_x) if isinstance(context_x, Tensor) and context_x.ndim else 1
        rows = len(query_x) if isinstance(query_x, Tensor) and query_x.ndim else 1
        given = [("context_x", context_x, (n, self.features)), ("context_y", context_y, (n,))]
        for name, x, shape in [*given, ("query_x", query_x, (rows, self.features))][: 3 - (query_x is None)]:
            fits = isinstance(x, Tensor) and x.dtype == self.start.dtype and tuple(x.shape) == shape
            if not fits or not shape[0]:
                got = f"{tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
                wanted = f"({n},)" if name == "context_y" else f"(n, {self.features}), n >= 1,"
                raise InputError(f"{name} is a tensor {wanted} of {self.start.dtype}: got {got}")

    def _checked_step(self, step: Any, last: int) -> int:
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= last:
            raise InputError(
                f"step {step!r}: this learner has {self.steps} steps, and 0 to {last} are accepted here"
            )
        return step

    def _strict(self, strict: bool | None) -> bool:
        return self.strict if strict is None else bool(strict)

    def _check_values(self, x: Tensor, y: Tensor, query_x: Tensor | None) -> None:
        self._check_within("context_x", x, self.radius.x)
        self._check_within("context_y", y, self.radius.y)
        self.loss.check_labels(y.double().cpu().numpy())
        if query_x is not None:
            self._check_within("query_x", query_x, self.radius.x)

    def _check_within(self, name: str, x: Tensor, limit: float) -> None:
        worst = x.flatten()[int(x.abs().flatten().argmax())]  # a NaN is the largest of all
        if not float(worst.abs()) <= limit:
            raise InputError(
                f"{name} holds {float(worst):.6g}: finite numbers within the radius {limit:g} are accepted. Standardise "
                "the data, give the learner a larger radius, or call with strict=False"
            )

    def _check_reached(self, w: Tensor, stream: Tensor) -> None:
        """Beyond the radius a score could pass M."""
        u = self.read(stream, "x", of="data") @ w.T
        asked = torch.cat([self.read(stream, "x", of="query") @ w[-1], w.new_zeros(1)])
        limits = (
            ("|w|", w, self.radius.w),
            ("|w·x|", u, self.radius.u),
            ("|w·x| of a query", asked, self.radius.u),
        )
        for name, size, limit in limits:
            if not float(size.abs().max()) <= limit:
                raise InputError(
                    f"{name} reached {float(size.abs().max()):.4g}, beyond the radius {limit:g}: give the learner a larger "
                    "radius or a smaller step size, or call with strict=False"
                )


def literal_learner(learner: Learner) -> LiteralLearner:
    """The learner as plain self-attention over the whole sequence: W_Q, W_K, W_V, W_O, flags, and nothing else.

    >>> import attnc.incontext, torch
    >>> learner = attnc.incontext.gradient_descent("ridge(0.1)", features=2, steps=20, step_size=0.5)
    >>> net = literal_learner(learner)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    >>> y = x @ torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> stream = net.stream(x, y)
    >>> bool((net.read(stream, "w")[0] - learner.coefficients(x, y)).abs().max() < 1e-9)
    True
    >>> net.read(stream, "u").abs().max()
    tensor(0., dtype=torch.float64)
    >>> net.layers["C"].names
    ['gather e', 'gather 2e', 'ridge', 'clear u: head 0', 'clear u: head 1']
    """
    return LiteralLearner(learner)


class _Build:
    """The matrices of the layers."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.settings = learner, learner.settings
        self.d, self.dtype = learner.settings.features, learner.settings.dtype
        self.reading = plain_numbers("reading", learner.reading)
        self.activation = (
            None if learner.activation is None else plain_numbers("activation", learner.activation)
        )
        self.threshold = None if learner.threshold is None else plain_numbers("threshold", learner.threshold)
        self.r = Registers(self.d, *(n.heads if n else 0 for n in (self.activation, self.threshold)))

    def layers(self) -> dict[str, list[LiteralHead]]:
        made = {"A": self._reads(1.0), "B": self._activates(1.0)}
        made["C"] = [*self._gathers(), *self._reads(-1.0), *self._activates(-1.0)]
        made["D"] = self._thresholds()
        return {name: heads for name, heads in made.items() if heads}

    def _reads(self, sign: float) -> list[LiteralHead]:
        """A: score (e τx)·w with the weight token and 0 with BOS; the values are those of the reading head."""
        n, r, made = self.reading, self.r, []
        groups = [
            Group(r.marks("data", "query"), ("weight", "bos")),
            self._idle("data", "query", sink="data"),
        ]
        for h in range(n.heads):
            query, key = np.zeros((2, r.width, self.d))
            query[r["tx"]] = n.query[h, 0] * n.key[h, 0, 0] * np.eye(self.d)
            key[r["w"]] = np.eye(self.d)
            value = n.value[h, 0, 1] * r.marks("weight") + n.value[h, 1, 1] * r.marks("bos")
            name = f"{'write' if sign > 0 else 'clear'} u: head {h}"
            out, largest = sign * n.output[h] * r.form("u")[None], _largest(self.learner.reading, h)
            made.append(self._head(name, query, key, value[:, None], out, groups, largest))
        return made

    def _activates(self, sign: float) -> list[LiteralHead]:
        """B: with anchors of the own τ, κτ(a τs + oτ) + c = κ(a s + o) + c, s = w·x or w·x - y; the values are τv."""
        head, n, r, made = self.learner.activation, self.activation, self.r, []
        if head is None or n is None:
            return []
        asking, tau = r.marks("data", "query"), r.form("tau")
        groups = [
            Group((asking + tau) / 2, ("anchor+",)),
            Group((asking - tau) / 2, ("anchor-",)),
            self._idle("data", "query"),
        ]
        s = r.form("u") - (r.form("ty") if self.learner.loss.of_residual else 0.0)
        for h in range(n.heads):
            query = np.stack([n.query[h, 0] * s + n.query[h, 1] * tau, asking], 1)
            name = f"{'write' if sign > 0 else 'clear'} g: head {h}"
            out = sign * n.output[h] * r.form("g")[None]
            made.append(self._head(name, query, *self._anchors("", h), out, groups, _largest(head, h)))
        return made

    def _gathers(self) -> list[LiteralHead]:
        """C: scores e τr and 2e τr, values τx, coefficients -4η/(3e) and η/(6e); and -ηλ w from the weight token itself."""
        r, e, eta, loss = self.r, self.settings.e, self.settings.step_size, self.learner.loss
        weight, largest = r.marks("weight"), self.learner._bounds("bound").residual()[0]
        tx, w = (np.eye(r.width)[:, r[name]] for name in ("tx", "w"))
        residual = r.form("u" if self.activation is None else "g")
        if self.activation is None or not loss.of_residual:
            residual -= r.form("ty")
        groups = [Group(weight, ("data",)), self._idle("weight")]
        made = [
            self._head(
                name, size * weight[:, None], residual[:, None], tx, factor * w.T, groups, size * largest
            )
            for name, size, factor in (
                ("gather e", e, -4 * eta / (3 * e)),
                ("gather 2e", 2 * e, eta / (6 * e)),
            )
        ]
        if loss.ridge > 0:
            none, own = np.zeros((r.width, 0)), [Group(weight, ("weight",)), self._idle("weight")]
            shrunk = -eta * loss.ridge * w.T
            shrunk[self.learner.features :] = 0.0  # not the intercept
            made.append(self._head("ridge", none, none, w, shrunk, own, 0.0))
        return made

    def _thresholds(self) -> list[LiteralHead]:
        """D: the weight token attends to the threshold's anchors, one head a coordinate, and takes clip(w_j) away."""
        head, n, r, made = self.learner.threshold, self.threshold, self.r, []
        if head is None or n is None:
            return []
        weight, groups = r.marks("weight"), [Group(r.marks("weight"), ("threshold",)), self._idle("weight")]
        for j, h in product(range(self.learner.features), range(n.heads)):
            query = np.stack([n.query[h, 0] * r.form("w", j) + n.query[h, 1] * weight, weight], 1)
            out = -n.output[h] * r.form("w", j)[None]
            keys, name = self._anchors("threshold ", h), f"threshold w[{j}]: head {h}"
            made.append(self._head(name, query, *keys, out, groups, _largest(head, h)))
        return made

    def _idle(self, *active: str, sink: str = "bos") -> Group:
        """All tokens that are not active attend to the sink, which has the value 0 in this head."""
        return Group(self.r.marks(*self.r.others(*active)), (sink,))

    def _anchors(self, prefix: str, h: int) -> tuple[Array, Array]:
        """Keys (κ, c) and values v of head h, read from the anchors' registers."""
        kappa, c, v = (self.r.form(f"{prefix}{name}", h) for name in ("kappa", "c", "v"))
        return np.stack([kappa, c], 1), v[:, None]

    def _head(
        self, name: str, query: Array, key: Array, value: Array, out: Array, groups: list[Group], top: float
    ) -> LiteralHead:
        """Columns of scores, then columns of gates; M is a power of two beyond 2 top, top the largest score, and underflow."""
        distance = 2.0 ** math.ceil(math.log2(2 * top + _UNDERFLOW[self.dtype]))
        asks, closed = gates(self.r, groups, distance)
        return LiteralHead(name, np.c_[query, asks], np.c_[key, closed], value, out, self.dtype)


def _largest(head: Head, h: int) -> float:
    """The largest |score| of head h on the interval that it is certified for."""
    assert head.certificate.proved
    numbers, domain = head.numbers(), head.certificate.interval
    ends = numbers.query[h, 0] * np.array([domain.lo, domain.hi]) + numbers.query[h, 1]
    return float(np.abs(np.outer(numbers.key[h, :, 0], ends) + numbers.key[h, :, 1:]).max())
