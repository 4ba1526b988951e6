"""The activation of a pretrained model as attention over anchors: a module that takes its place."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.network.altered import as_made, why_altered
from attnc.network.head import Head
from attnc.network.inside import check_domain, checked_strict, is_checked, outside_interval
from attnc.network.kernel import attend
from attnc.network.marking import mark, mark_of
from attnc.network.pointwise import AttentionLayer, joined
from attnc.network.running import is_less, is_plain, precise
from attnc.network.window import run_window
from attnc.prove.window import Gate, Window, window_of
from attnc.records.layers import Index
from attnc.records.numbers import TENSORS

ENGINES = ("closed-form", "softmax")
_CHANGED = "a number of a head was changed after torch.compile: call refresh() of its AnchorActivation"


@as_made
class AnchorActivation(AttentionLayer):
    """x_j ↦ head(x_j) for every neuron j, which run along the last axis of x; the heads of a group are one.

    engine="softmax" attends to all anchors of each group. engine="closed-form" runs the window of each head (`prove.window`),
    once for all neurons where the groups have the same; a head that has none, and one whose parameters require a gradient, runs
    by softmax. The window follows the numbers: where they change, it is derived anew. The heads are copied, so that a head may be
    given to several models, and their numbers are buffers: what optimisers see of a model stays as it was.

    Heads run in float32 or float64. In a model that is cast to less, or runs under autocast, they stay as they are: inputs are
    converted to their dtype, and results back.

    `strict` says what happens to inputs outside the interval of a neuron's head, where nothing is promised: None warns once,
    True raises, False does nothing. Under torch.compile, torch.export and other tracing nothing is checked.

    >>> import attnc, torch
    >>> layer = AnchorActivation([(None, attnc.head("tanh", domain=(-8, 8), eps=1e-5))])
    >>> layer(torch.zeros(2, 3)).shape, layer.runs
    (torch.Size([2, 3]), 'softmax')
    """

    def __init__(
        self,
        groups: Sequence[tuple[Index | None, Head]],
        engine: str = "closed-form",
        strict: bool | None = None,
    ) -> None:
        _check_groups(groups)
        super().__init__(0, 1, [(neurons, _with_buffers(head)) for neurons, head in groups], "activation")
        self.engine, self.strict = engine, checked_strict(strict)
        self.refresh()
        self.register_load_state_dict_post_hook(_loaded)  # type: ignore[no-untyped-call]

    @property
    def engine(self) -> str:
        """The engine asked for: `runs` says what executes."""
        return self._engine

    @engine.setter
    def engine(self, engine: str) -> None:
        if engine not in ENGINES:
            raise InputError(f"engine={engine!r}: accepted are {', '.join(map(repr, ENGINES))}")
        self._engine = engine

    @property
    def runs(self) -> str:
        """The engines that execute: 'closed-form', 'softmax' or 'closed-form and softmax'."""
        return " and ".join(sorted({"softmax" if w is None else "closed-form" for w in self._windows()}))

    @property
    def neurons(self) -> int | None:
        """How many there are; None where any number of neurons shares one head."""
        return sum(n.numel() for n, _ in self.groups if n is not None) or None

    @property
    def parameters_added(self) -> int:
        """How many numbers it stores."""
        return sum(int(tensor.numel()) for tensor in self.state_dict().values())

    @precise
    def forward(self, x: Tensor, engine: str | None = None, strict: bool | None = None) -> Tensor:
        """x with head(x_j) in the place of x_j; `engine` and `strict` override the module's own."""
        if (name := mark_of(self)) is not None:
            marked: Tensor = mark(x, name)
            return marked
        if isinstance(x, Tensor) and is_less(x.dtype):
            return self._forward(x.to(self.groups[0][1].key.dtype), engine, strict).to(x.dtype)
        return self._forward(x, engine, strict)

    def _forward(self, x: Tensor, engine: str | None, strict: bool | None) -> Tensor:
        groups = self.groups
        self._check_input(x)
        if engine is not None and engine not in ENGINES:
            raise InputError(f"engine={engine!r}: accepted are {', '.join(map(repr, ENGINES))}")
        strict, windows = self.strict if strict is None else strict, self._windows(engine)
        if windows[0] is not None and all(window == windows[0] for window in windows[1:]):
            sizes: list[float] | None = [] if is_checked(self, x, strict) else None
            out = run_window(windows[0], x, sizes)
            if sizes is not None and not (sizes and all(size <= _reach(groups) for size in sizes)):
                check_domain(self, x, strict, partial(_outside, groups))
            return out
        check_domain(self, x, strict, partial(_outside, groups))
        parts = [
            _run(head, window, x if neurons is None else x.index_select(-1, neurons))
            for (neurons, head), window in zip(groups, windows, strict=True)
        ]
        return joined(groups, parts)

    def why_not_certified(self) -> str | None:
        """None where the heads are those of their certificates and attnc's code runs them, else the reason why not.

        A head's certificate covers engine="softmax". What is proved of windows, and of the block around the activation, is in the
        conversion report: `attnc.verify(model)` checks it."""
        altered = why_altered(self)
        if altered is not None:
            return altered
        if self.engine not in ENGINES:
            return f"engine={self.engine!r}: certified are {', '.join(map(repr, ENGINES))}"
        try:
            reasons = [head.why_not_certified() for _, head in self.groups]
            neurons = [n.detach().numpy() for n, _ in self.groups if n is not None]
        except InputError as problem:
            return str(problem)
        for g, reason in enumerate(reasons):
            if reason is not None:
                return f"head {g}: {reason}"
        return _neurons_problem(neurons) if neurons else None

    def group_of(self, neuron: int) -> int:
        """The group that a neuron belongs to."""
        for g, (neurons, _) in enumerate(self.groups):
            if neurons is None or bool((neurons == neuron).any()):
                return g
        raise InputError(f"neuron={neuron!r}: there are {self.neurons} neurons, numbered from 0")

    @precise
    def weights(self, x: Tensor, neuron: int | None = None, group: int = 0) -> Tensor:
        """The attention weights that x (…, neurons) gives rise to: those of one neuron (…, p), or of a whole group
        (…, neurons of the group, p), whose anchors stand at `groups[group][1].anchors`.

        >>> import attnc, torch
        >>> head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
        >>> weights = AnchorActivation([(None, head)]).weights(torch.zeros(2, 5))
        >>> weights.shape == (2, 5, *head.anchors.shape)
        True
        """
        if isinstance(x, Tensor) and is_less(x.dtype):
            x = x.to(self.groups[0][1].key.dtype)
        self._check_input(x)
        if neuron is not None:
            return self.groups[self.group_of(neuron)][1].weights(x[..., neuron])
        if not 0 <= group < len(self):
            raise InputError(f"group={group!r}: there are {len(self)} groups, numbered from 0")
        neurons, head = self.groups[group]
        return head.weights(x if neurons is None else x.index_select(-1, neurons))

    def refresh(self) -> None:
        """Derive the windows anew. To be called where numbers were changed in place under torch.compile; else it is done as
        soon as they are needed."""
        self._known = [_known(head) for _, head in self.groups]

    def __repr__(self) -> str:
        heads = [head for _, head in self.groups]
        function = heads[0].certificate.facts.get("function", "unknown")
        many = f"{len(heads)} group{'s' * (len(heads) > 1)}"
        anchors = " + ".join(str(head.key.shape[1]) for head in heads)
        return f"AnchorActivation({function}, {many}, {anchors} anchors, engine={self.engine!r})"

    def _windows(self, engine: str | None = None) -> list[Window | Gate | None]:
        """Of each group, the window that runs; None where attention to all anchors does."""
        if (engine or self.engine) == "softmax":
            return [None] * len(self)
        found: list[Window | Gate | None] = []
        for g, (_, head) in enumerate(self.groups):
            tensors = _tensors(head)
            if any(t.requires_grad for t in tensors):
                found.append(None)
            elif torch.compiler.is_compiling():
                found.append(self._known[g].compiled(tensors))
            elif not all(is_plain(t) for t in tensors):
                found.append(None)
            else:
                if not self._known[g].holds(tensors):
                    self._known[g] = _known(head)
                found.append(self._known[g].window)
        return found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AnchorActivation:
        super()._apply(fn, recurse)
        self.refresh()
        return self

    def _check_input(self, x: Tensor) -> None:
        self.groups[0][1]._check_input(x)
        if len(self) > 1 and (x.ndim == 0 or x.shape[-1] != self.neurons):
            raise InputError(
                f"x has the shape {tuple(x.shape)}: its last axis must hold the {self.neurons} neurons of this activation"
            )


def _with_buffers(head: Head) -> Head:
    made = copy.deepcopy(head)
    for name in TENSORS:
        tensor = getattr(made, name).detach()
        delattr(made, name)
        made.register_buffer(name, tensor)
    return made


def _loaded(layer: AnchorActivation, _: object) -> None:
    layer.refresh()


@dataclass(frozen=True, eq=False)
class _Known:
    """The window of a head, and the numbers it was derived from."""

    window: Window | Gate | None
    copies: tuple[Tensor, ...] = ()
    marks: tuple[
        tuple[int, int], ...
    ] = ()  # address and version, where comparing numbers would wait for a device

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the numbers are what they were."""
        if not self._alike(tensors):
            return False
        if tensors[0].device.type != "cpu":
            return self.marks == _marks(tensors)
        return all(torch.equal(kept, now) for kept, now in zip(self.copies, tensors, strict=True))

    def compiled(self, tensors: Sequence[Tensor]) -> Window | Gate | None:
        """The window, within a graph that fails where the numbers are changed afterwards."""
        if self.window is None or not self._alike(tensors):
            return None
        for kept, now in zip(self.copies, tensors, strict=True):
            torch._assert_async((kept == now).all(), _CHANGED)
        return self.window

    def _alike(self, tensors: Sequence[Tensor]) -> bool:
        return len(self.copies) == len(tensors) and all(
            kept.dtype == now.dtype and kept.device == now.device and kept.shape == now.shape
            for kept, now in zip(self.copies, tensors, strict=True)
        )


def _known(head: Head) -> _Known:
    tensors = _tensors(head)
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors}
    if len(dtypes) > 1 or not dtypes <= set(ARITHMETIC) or not all(is_plain(t) for t in tensors):
        return _Known(None)
    copies = tuple(t.detach().clone() for t in tensors)
    finite = not any(t.is_meta for t in tensors) and all(bool(t.isfinite().all()) for t in tensors)
    return _Known(window_of(head.numbers()) if finite else None, copies, _marks(tensors))


def _marks(tensors: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors)


def _tensors(head: Head) -> list[Tensor]:
    return [getattr(head, name) for name in TENSORS]


def _run(head: Head, window: Window | Gate | None, s: Tensor) -> Tensor:
    return attend(head, s) if window is None else run_window(window, s)


def _check_groups(groups: Sequence[tuple[Index | None, Head]]) -> None:
    """That every neuron has one head, and the heads one dtype."""
    if not groups:
        raise InputError("no groups were given: give [(neurons, head), …], or [(None, head)] for all neurons")
    for neurons, head in groups:
        if not isinstance(head, Head):
            raise InputError(
                f"a group has a {type(head).__name__} in the place of its head: make it by attnc.head"
            )
        if (neurons is None) != (len(groups) == 1):
            raise InputError(
                "neurons=None stands for all neurons of a single group: say which are whose where there are several"
            )
    dtypes = sorted({str(head.key.dtype) for _, head in groups})
    if len(dtypes) > 1:
        raise InputError(f"the heads of the groups have the dtypes {', '.join(dtypes)}: they must share one")
    if groups[0][0] is not None:
        problem = _neurons_problem([np.asarray(neurons) for neurons, _ in groups])
        if problem is not None:
            raise InputError(problem)


def _neurons_problem(neurons: Sequence[Index]) -> str | None:
    named = np.concatenate(neurons)
    if named.dtype.kind == "i" and np.array_equal(np.sort(named), np.arange(len(named))):
        return None
    return f"the groups name {len(named)} neurons: each of 0 … {len(named) - 1} must be named once, as an integer"


def _reach(groups: Sequence[tuple[Tensor | None, Head]]) -> float:
    """[-reach, reach] lies in the interval of every head that has one."""
    domains = [head.domain for _, head in groups if head.domain is not None]
    return min((min(-domain.lo, domain.hi) for domain in domains), default=math.inf)


def _outside(groups: Sequence[tuple[Tensor | None, Head]], x: Tensor) -> str | None:
    """Whether a number of x lies outside the interval of its neuron's head: all against the smallest one first."""
    known = [(neurons, head.domain) for neurons, head in groups]
    domains = [domain for _, domain in known if domain is not None]
    if not domains:
        return None
    lo, hi = max(domain.lo for domain in domains), min(domain.hi for domain in domains)
    if lo < hi and outside_interval(x, Interval(lo, hi)) is None:
        return None
    for neurons, domain in known:
        part = x if neurons is None else x.index_select(-1, neurons)
        reason = None if domain is None or not part.numel() else outside_interval(part, domain)
        if reason is not None:
            return reason
    return None
