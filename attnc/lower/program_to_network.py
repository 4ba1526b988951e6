"""program → network: each stage in order, the heads of a layer as soon as the reach of its neurons is proved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnc.domain import Array, Box, Interval, covering
from attnc.errors import ConvergenceError, PrecisionError
from attnc.heads import patience
from attnc.heads.candidates import Progress
from attnc.lower.budget import amplification, carried
from attnc.lower.groups import Neurons, by_reach
from attnc.lower.heads import head_for
from attnc.lower.skeleton import skeleton
from attnc.network.head import Head
from attnc.program import Pointwise
from attnc.program.program import Program
from attnc.prove.compose import Known, advance, compose, start
from attnc.records.fields import round_up
from attnc.records.layers import Layer

_SPENT = 0.98  # of eps, on purpose; the rest is for what errors of errors add
_LEAST = 0.25  # of what was spent, for the layers left where eps is already out of reach
_ROOM = 2.0  # over an error that was reached: another eps divides the budget otherwise, and finds other heads


@dataclass(frozen=True)
class Wish:
    """What is to be compiled, and how closely."""

    program: Program
    box: Box
    eps: float
    dtype: str
    progress: Progress = lambda _: None


@dataclass(frozen=True)
class Lowered:
    """Stages, the heads of each layer of attention by its value, and what is proved of every value."""

    stages: tuple[Layer, ...]
    heads: dict[int, list[tuple[Neurons, Head]]]
    known: dict[int, Known]

    @property
    def error(self) -> float:
        return float(self.known[self.stages[-1].value].error.max())


def lower(wish: Wish) -> Lowered:
    """The network whose output is proved within eps, or an error that says what stands in the way and what can be met."""
    stages = skeleton(wish.program, wish.dtype)
    exact = compose(wish.program, stages, wish.box, {}, wish.dtype)
    weights = {s.value: amplification(stages, exact, s) for s in stages if s.kind == "pointwise"}
    affine = float(exact[stages[-1].value].error.max())
    if not np.isfinite(affine):
        raise _overflow(wish, stages, exact)
    spent, closest = _SPENT, None
    for _ in range(5):
        left = spent * wish.eps - affine
        with patience.sharing() as shared:
            made = _attempt(wish, stages, weights, left if left > 0 else affine)
        if made.error <= wish.eps:
            return made
        closest = made if closest is None or made.error < closest.error else closest
        if affine >= spent * wish.eps or not _within_shares(made, weights, wish.eps - affine):
            break
        spent *= 0.75
    assert closest is not None
    raise _refusal(wish, closest, weights, affine, shared.stopped)


def _attempt(wish: Wish, stages: tuple[Layer, ...], weights: dict[int, float], allowed: float) -> Lowered:
    """Heads for every layer in order: equal shares of what is left of `allowed`, and the rest to those behind.

    Where nothing is left, or was to begin with, the attempt goes on, to find what can be met."""
    known, heads = {0: start(wish.program, wish.box)}, {}
    left, waiting = allowed, len(weights)
    for stage in stages:
        errors: Array | float = 0.0
        if stage.kind == "pointwise":
            share = max(left, _LEAST * (allowed - left)) / waiting
            layer = _Layer(wish, stage, known[stage.input], share / max(weights[stage.value], 2.0**-200))
            heads[stage.value], errors = layer.heads()
            left -= weights[stage.value] * float(errors.max())
            waiting -= 1
        known[stage.value] = advance(wish.program, stage, known, wish.dtype, errors)
    return Lowered(stages, heads, known)


def _within_shares(made: Lowered, weights: dict[int, float], allowed: float) -> bool:
    """Whether the heads are as good as was asked, so that only errors of errors are too much."""
    return sum(weights[value] * worst_bound(heads) for value, heads in made.heads.items()) <= allowed


def worst_bound(heads: list[tuple[Neurons, Head]]) -> float:
    return max(head.certificate.bound for _, head in heads)


class _Layer:
    """One layer of attention: what reaches its neurons, and what they may err."""

    def __init__(self, wish: Wish, stage: Layer, entering: Known, share: float) -> None:
        step = wish.program.steps[stage.value - 1]
        assert isinstance(step, Pointwise)
        self.wish, self.step, self.share = wish, step, share
        self.lo, self.hi = entering.reach
        self.name = layer_name(wish.program, stage.value)
        if not (np.isfinite(self.lo).all() and np.isfinite(self.hi).all()):
            raise PrecisionError(
                f"nothing can be proved of what enters {self.name}: it may overflow. Use a smaller box."
            )

    def heads(self) -> tuple[list[tuple[Neurons, Head]], Array]:
        """One head for all neurons; or one for each group of them, where that one is not good enough and they are better."""
        found: list[tuple[Neurons, Head]] = [(None, self._head(None))]
        groups = by_reach(self.lo, self.hi)
        if worst_bound(found) > self.share and len(groups) > 1:
            found = [(neurons, self._head(neurons)) for neurons in groups]
        errors = np.zeros(self.lo.shape)
        for neurons, head in found:
            errors[..., slice(None) if neurons is None else neurons] = head.certificate.bound
        return found, errors

    def _head(self, neurons: Neurons) -> Head:
        lo, hi = (x if neurons is None else x[..., neurons] for x in (self.lo, self.hi))
        domain = with_room(float(lo.min()), float(hi.max()))
        try:
            return head_for(
                self.step.function, domain, min(self.share, domain.width), self.wish.dtype, self._say
            )
        except (ConvergenceError, PrecisionError) as problem:
            raise type(problem)(f"{self.name}: {problem}") from problem

    def _say(self, text: str) -> None:
        self.wish.progress(f"{self.name}: {text}")


def with_room(lo: float, hi: float) -> Interval:
    """An interval around [lo, hi] and a 64th of its width on both sides, so that another prover need not tie with this one."""
    room = (hi - lo) / 64
    return covering(lo - room, hi + room)


def layer_name(program: Program, value: int) -> str:
    """Its number among the layers of attention, with what the source calls it."""
    number = f"layer {program.layers.index(value - 1) + 1}"
    named = program.steps[value - 1].name
    return number if not named or named.isdigit() else f"{number} ({named})"


def _overflow(wish: Wish, stages: tuple[Layer, ...], exact: dict[int, Known]) -> PrecisionError:
    first = next(stage for stage in stages if not np.isfinite(exact[stage.value].error).all())
    step = wish.program.steps[first.value - 1]
    name = (
        layer_name(wish.program, first.value)
        if isinstance(step, Pointwise)
        else step.name or f"step {first.value - 1}"
    )
    return PrecisionError(
        f"nothing can be proved of what leaves {name}: in {wish.dtype} it may overflow, or be too steep. Use a smaller box."
    )


def _deviation(wish: Wish, made: Lowered) -> float:
    """What the deviations of the source's own functions become at the output."""
    own = {}
    for value in made.heads:
        step = wish.program.steps[value - 1]
        assert isinstance(step, Pointwise)
        own[value] = np.where(made.known[step.input].hi > step.beyond, step.deviation, 0.0)
    found = carried(made.stages, made.known, own)[made.stages[-1].value] if own else np.zeros(1)
    return float(found.max())


def _refusal(
    wish: Wish, made: Lowered, weights: dict[int, float], affine: float, stopped: bool
) -> PrecisionError:
    """Which layer and which term stand in the way, and what can be met; and whether a search was stopped for time."""
    deviation = _deviation(wish, made)
    source = "the source itself, whose functions are not quite what their names say (torch's softplus beyond its threshold)"
    parts = {"the affine maps, by their rounding": max(affine - deviation, 0.0), source: deviation}
    for value, heads in made.heads.items():
        known = max((h.certificate for _, h in heads), key=lambda c: c.bound)
        term = "rounding" if known.rounding > known.approximation else "approximation"
        name = layer_name(wish.program, value)
        parts[f"{name}, by the {term} of its heads ({known.facts['function']})"] = (
            weights[value] * known.bound
        )
    worst = max(parts, key=lambda name: parts[name])
    reachable = round_up(_ROOM * made.error, 2)
    other = "dtype=torch.float64, or " if wish.dtype == "float32" and worst != source else ""
    offer = (
        f"Use {other}eps >= {reachable:g}, which can be met"
        if np.isfinite(reachable)
        else f"Use {other}a smaller box"
    )
    share = f"{min(parts[worst], made.error):.2g} of the {made.error:.2g} that all add up to"
    return PrecisionError(
        f"eps={wish.eps:g} cannot be met in {wish.dtype}: most in the way stand {worst} ({share}). {offer}."
        + " The search for heads was stopped for time: a longer one might come closer." * stopped,
        reachable if np.isfinite(reachable) else None,
    )
