"""A function of every neuron as attention over anchors: a step of a compiled network, and the activation of a converted model."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn

from attnc.arguments import checked_engine, checked_strict
from attnc.errors import InputError
from attnc.network.altered import as_made, why_altered, why_parts
from attnc.network.engines import CHUNK, run_window, window_now
from attnc.network.head import Head
from attnc.network.layer import to_array
from attnc.network.marking import mark, mark_of
from attnc.network.running import PreciseModule, check_domain, outside_domain, precise
from attnc.progress import checked_call
from attnc.records.layers import Index, Layer, pointwise_layer
from attnc.records.numbers import TENSORS
from attnc.records.window_numbers import ClosedForm

if TYPE_CHECKING:
    from attnc.network.literal import SelfAttentionNetwork

Groups = list[tuple[Tensor | None, Head]]


@as_made
class Pointwise(PreciseModule, nn.ModuleList):
    """x_j ↦ head(x_j) for every neuron j along the last axis of x. The neurons of a group share a head.

    The module is the list of the groups' heads; if there are several, the buffers `neurons_0`, `neurons_1`, … name their neurons.

    engine="softmax" and engine="sdpa" attend to all anchors. engine="closed-form" runs the window of each head; a head that has
    none, or whose numbers require a gradient, runs by softmax.

    A step of a network has `inputs` and `value`: the numbers of the values it reads and computes. Without `inputs`, the module
    takes the place of an activation in a model: it holds copies of the heads, whose numbers are buffers, so that optimisers see
    the parameters of the model alone. In a model that is cast to half precision, or runs under autocast, heads keep their dtype.

    `strict` controls inputs outside the interval of a neuron's head, as in `Head`.

    >>> import attnc, torch
    >>> layer = Pointwise([(None, attnc.head("tanh", domain=(-8, 8), eps=1e-5))])
    >>> layer(torch.zeros(2, 3)).shape, layer.runs
    (torch.Size([2, 3]), 'softmax')
    """

    _takes_half = True

    def __init__(
        self,
        groups: Sequence[tuple[Index | None, Head]],
        engine: str = "closed-form",
        strict: bool | None = None,
        *,
        name: str = "activation",
        inputs: tuple[int, ...] = (),
        value: int = 0,
    ) -> None:
        super().__init__([head if inputs else copy.deepcopy(head) for _, head in groups])
        self.name, self.inputs, self.value = name, inputs, value
        self.engine, self.strict = engine, checked_strict(strict)
        for g, (neurons, _) in enumerate(groups):
            if neurons is not None:
                self.register_buffer(f"neurons_{g}", torch.from_numpy(np.array(neurons)))
        self._check_groups()
        if not inputs:
            for _, head in self.groups:
                for part in TENSORS:
                    tensor = getattr(head, part).detach()
                    delattr(head, part)
                    head.register_buffer(part, tensor)
            self.refresh()

    @property
    def engine(self) -> str:
        """The engine that was chosen. `runs` names the engines that execute."""
        return self._engine

    @engine.setter
    def engine(self, engine: str) -> None:
        self._engine = checked_engine(engine)

    @property
    def runs(self) -> str:
        """The engines that execute: "softmax", "sdpa", "closed-form" or "closed-form and softmax"."""
        dense = "sdpa" if self.engine == "sdpa" else "softmax"
        return " and ".join(sorted({"closed-form" if w else dense for w in self._windows(self.engine)}))

    @property
    def groups(self) -> Groups:
        """The neurons of each group (None: all), and their head."""
        groups: Groups = []
        for g, head in enumerate(self):
            neurons = self._buffers.get(f"neurons_{g}")
            if not isinstance(head, Head) or (neurons is None) != (len(self) == 1):
                raise InputError(
                    f"group {g} of {len(self)} is a {type(head).__name__} with {'no' if neurons is None else 'a'} list of "
                    "neurons: each group is an attnc.Head, and each of several has its list neurons_0, …"
                )
            groups.append((neurons, head))
        return groups

    @property
    def names(self) -> list[str]:
        """The names of the groups."""
        return [self.name] if len(self) == 1 else [f"{self.name}, group {g + 1}" for g in range(len(self))]

    @property
    def neurons(self) -> int | None:
        """The number of neurons; None if one head serves any number of them."""
        return sum(n.numel() for n, _ in self.groups if n is not None) or None

    def forward(self, x: Tensor, engine: str | None = None, strict: bool | None = None) -> Tensor:
        """x with head(x_j) in place of x_j; `engine` and `strict` override the module's own."""
        if not self.inputs and (name := mark_of(self)) is not None:
            return cast(Tensor, mark(x, name))
        return self._run(x, self.engine if engine is None else engine, strict)

    @precise
    def _run(self, x: Tensor, engine: str, strict: bool | None) -> Tensor:
        groups, engine = self.groups, checked_engine(engine)
        self._check_input(x)
        check_domain(self, x, strict, partial(_outside, groups))
        windows = self._windows(engine)
        if windows[0] is not None and all(window == windows[0] for window in windows[1:]):
            return run_window(windows[0], x)
        parts = []
        for (neurons, head), window in zip(groups, windows, strict=True):
            s = _part(x, neurons)
            if window is not None:
                parts.append(run_window(window, s))
            else:
                parts.append(head.run(s, "sdpa" if engine == "sdpa" else "softmax", strict=False))
        if len(groups) == 1:
            return parts[0]
        order = torch.cat([neurons for neurons, _ in groups if neurons is not None])
        together = torch.cat(parts, -1)
        return torch.empty_like(together).index_copy(-1, order, together)

    def why_not_certified(self) -> str | None:
        """None if the heads are those of their certificates and attnc's code runs them, else the reason. The report of a
        converted model covers windows and the block around the activation: `attnc.verify(model)` checks it."""
        if (altered := why_altered(self)) is not None:
            return altered
        try:
            self._check_groups()
        except InputError as problem:
            return str(problem)
        return why_parts({f"head {g}": head for g, (_, head) in enumerate(self.groups)})

    @precise
    def weights(self, x: Tensor, group: int = 0) -> Tensor:
        """The attention weights of a group for x (…, neurons): (…, neurons of the group, p)."""
        self._check_input(x)
        if not 0 <= group < len(self):
            raise InputError(f"group={group!r}: there are {len(self)} groups, numbered from 0")
        neurons, head = self.groups[group]
        return head.weights(_part(x, neurons))

    @checked_call
    def as_self_attention(
        self, n: int, neurons: int | None = None, *, maps: tuple[nn.Module, nn.Module] | None = None
    ) -> SelfAttentionNetwork:
        """The activation as plain self-attention over n data tokens and the anchors, (…, n, neurons): what engine="softmax"
        computes. Give `neurons` if one head serves any number of them. With maps=(first, second) it is the whole block,
        second(activation(first(x))): `first` is part of W_Q and `second` of W_O."""
        from attnc.network.literal.blocks import literal_activation

        return literal_activation(self, n, neurons, maps)

    def windows(self) -> list[ClosedForm | None]:
        """The closed form that the engine runs for each group; None where attention to all anchors runs."""
        return self._windows(self.engine)

    def refresh(self) -> None:
        """Derive the windows again. Call it after changing numbers in place under torch.compile; otherwise it is automatic."""
        for _, head in self.groups:
            head.refresh()

    def numbers(self) -> Layer:
        """The numbers of a step of a network, as they are stored now."""
        groups = [(None if n is None else to_array(n), head.numbers()) for n, head in self.groups]
        return pointwise_layer(self.inputs[0], self.value, groups)

    def __repr__(self) -> str:
        heads = [head for _, head in self.groups]
        function = heads[0].certificate.facts.get("function", "unknown")
        many = f"{len(heads)} group{'s' * (len(heads) > 1)}"
        anchors = " + ".join(str(head.key.shape[1]) for head in heads)
        engine = "" if self.inputs else f", engine={self.engine!r}"
        return f"Pointwise({function}, {many}, {anchors} anchors{engine})"

    def _windows(self, engine: str) -> list[ClosedForm | None]:
        """The window that runs for each group; None if attention to all anchors runs."""
        return [window_now(head) if engine == "closed-form" else None for _, head in self.groups]

    def _check_input(self, x: Tensor) -> None:
        self.groups[0][1]._check_input(x)
        if len(self) > 1 and (x.ndim == 0 or x.shape[-1] != self.neurons):
            raise InputError(
                f"x has the shape {tuple(x.shape)}: its last axis must hold the {self.neurons} neurons of this module"
            )

    def _check_groups(self) -> None:
        """Every neuron must have one head, and the heads one dtype."""
        groups = self.groups
        if not groups:
            raise InputError("there are no groups: give [(neurons, head), …], or [(None, head)] for all")
        dtypes = sorted({str(head.key.dtype) for _, head in groups})
        if len(dtypes) > 1:
            raise InputError(f"the heads have the dtypes {', '.join(dtypes)}: they must share one")
        if len(groups) > 1:
            named = np.concatenate([n.detach().cpu().numpy() for n, _ in groups if n is not None])
            if named.dtype.kind != "i" or not np.array_equal(np.sort(named), np.arange(len(named))):
                raise InputError(
                    f"the groups name {len(named)} neurons: name each of 0 … {len(named) - 1} once, as an integer"
                )


def _part(x: Tensor, neurons: Tensor | None) -> Tensor:
    return x if neurons is None else x.index_select(-1, neurons)


def _outside(groups: Groups, x: Tensor) -> str | None:
    """The reason if a number of x lies outside the interval of its neuron's head. The common interval is tried first, on rows
    that stay in the cache; where it does not hold, the extremes of each neuron are taken."""
    domains = [head.domain for _, head in groups if head.domain is not None]
    lo, hi = (max((d.lo for d in domains), default=-math.inf), min((d.hi for d in domains), default=math.inf))
    rows = x.reshape(-1, x.shape[-1] if x.ndim else 1)
    for chunk in torch.split(rows, max(1, CHUNK // max(1, rows.shape[1]))):
        least, most = torch.aminmax(chunk)
        inside = lo <= float(least), float(most) <= hi
        if all(inside):
            continue
        if len(groups) > 1:
            low, high = least.expand(chunk.shape[1]), most.expand(chunk.shape[1])
            chunk = torch.stack([low if inside[0] else chunk.amin(0), high if inside[1] else chunk.amax(0)])
        parts = ((_part(chunk, neurons), head.domain) for neurons, head in groups)
        for part, domain in parts:
            reason = None if domain is None or not part.numel() else outside_domain(part, domain)
            if reason is not None:
                return reason
    return None
