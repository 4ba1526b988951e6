"""n truncated linear functions of n tokens, and a given head: from a program to a certified network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attnc.domain import Array, Box, Interval
from attnc.errors import ConvergenceError, InputError
from attnc.functions import clip
from attnc.heads.plan import HeadCandidate
from attnc.heads.target import Plan, Progress
from attnc.lower.function_to_head import check_arithmetic, check_box, checked_dtype, finished_head
from attnc.lower.layers import lower_steps
from attnc.lower.pointwise import HeadGroup, head_errors
from attnc.lower.program_to_network import Lowered, Request, certified, with_room
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.program import Affine, Pointwise, Program, Reshape, Step
from attnc.prove.compose import compose

LEAST_SHARPNESS, LARGEST_SHARPNESS = 0.5, 2.0**20


@dataclass(frozen=True, eq=False)
class Truncated:
    """Range_[a,b](<w_i, x_i> + t_i) for the tokens i of every X in a box of shape (n, d), in a dtype."""

    W: Array  # (n, d)
    t: Array  # (n,)
    a: float
    b: float
    box: Box
    dtype: str

    @property
    def tokens(self) -> int:
        return len(self.W)

    def program(self, coordinates: Sequence[int], outputs: int) -> Program:
        """X ↦ Y of shape (n, outputs), Y[i, coordinates[i]] = Range_[a,b](<w_i, x_i> + t_i), and 0 elsewhere.

        On vec(X) the n linear functions are one matrix with w_1 … w_n along its diagonal."""
        n, d = self.W.shape
        every = np.zeros((n, n * d))
        for i, w in enumerate(self.W):
            every[i, i * d : (i + 1) * d] = w
        steps: list[Step] = [
            Reshape(0, (n * d,)),
            Affine(1, every, self.t),
            Pointwise(2, clip(self.a, self.b)),
        ]
        if outputs > 1:
            place = np.zeros((n * outputs, n))
            place[np.arange(n) * outputs + np.asarray(coordinates), np.arange(n)] = 1.0
            steps.append(Affine(3, place))
        return Program((n, d), (*steps, Reshape(len(steps), (n, outputs))))

    def interval(self, program: Program) -> Interval:
        """Around [a, b] and all that the s_i reach in the box, as executed."""
        stages = lower_steps(program, self.dtype)
        lo, hi = compose(program, stages[:2], self.box, {}, self.dtype)[2].reach
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise InputError(
                f"<w, x> + t may overflow in {self.dtype} on {self.box}: give a smaller domain or smaller W and t"
            )
        return with_room(min(float(lo.min()), self.a), max(float(hi.max()), self.b))

    def plan(self, domain: Interval, heads: int, progress: Progress | None) -> Plan:
        return Plan(clip(self.a, self.b), domain, "nearest", heads, self.dtype, progress or (lambda _: None))


def truncated(W: Any, t: Any, a: Any, b: Any, domain: Any, dtype: object) -> Truncated:
    """The arguments that both theorems share, checked."""
    name = checked_dtype(dtype)
    w, shift = numbers_of("W", W), numbers_of("t", t)
    if w.ndim != 2 or 0 in w.shape:
        raise InputError(f"W has the shape {w.shape}: (n, d) is expected, a row w_i for every token")
    if shift.shape != w.shape[:1]:
        raise InputError(
            f"W has the shape {w.shape} and t {shift.shape}: one number t_i for each of the {len(w)} tokens is expected"
        )
    ends = [numbers_of("a", a), numbers_of("b", b)]
    if any(end.ndim for end in ends) or not float(ends[0]) < float(ends[1]):
        raise InputError(f"Range_[a,b] needs two numbers a < b: got a={a!r}, b={b!r}")
    box = box_of(domain, w.shape)
    check_box(box, name)
    check_arithmetic(name, network=True)
    return Truncated(w, shift, float(ends[0]), float(ends[1]), box, name)


def numbers_of(name: str, given: Any) -> Array:
    """Finite float64 numbers of a tensor or of anything numpy takes."""
    try:
        array = np.asarray(given.detach().cpu() if isinstance(given, torch.Tensor) else given)
        found: Array = np.array(array, dtype=np.float64) if array.dtype.kind in "iuf" else np.full(1, np.nan)
    except (TypeError, ValueError):
        raise InputError(f"{name} holds real numbers: got {given!r}") from None
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} holds real numbers: got {array.dtype}")
    if not np.isfinite(found).all():
        raise InputError(f"{name} holds a NaN or an infinity: finite numbers are accepted")
    if array.dtype.kind in "iu" and not (np.abs(found) <= 2.0**53).all():
        raise InputError(f"{name} holds whole numbers beyond 2^53, which no float equals: give floats")
    return found


def box_of(domain: Any, shape: tuple[int, ...]) -> Box:
    """A box of the shape; two numbers (lo, hi) stand for all coordinates."""
    if isinstance(domain, (tuple, list)) and len(domain) == 2:
        return Box(domain[0], domain[1], shape=shape)
    if not isinstance(domain, Box):
        raise InputError(f"domain is (lo, hi) or an attnc.Box of shape {shape}: got {domain!r}")
    if domain.shape != shape:
        raise InputError(f"the domain has the shape {domain.shape}: {shape} is expected")
    return domain


def whole_number(name: str, given: object, least: int, most: int, why: str) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not least <= given <= most:
        raise InputError(f"{name}={given!r}: give a whole number from {least} to {most}, {why}")
    return int(given)


def checked_sharpness(given: object) -> float:
    """c = βΔ², for which the theorems hold from 1/2 on."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InputError(f"sharpness={given!r}: give a number c = βΔ²")
    if not LEAST_SHARPNESS <= given <= LARGEST_SHARPNESS:
        raise InputError(
            f"sharpness={given!r}: c = βΔ² from {LEAST_SHARPNESS} to {LARGEST_SHARPNESS:g} is accepted; the larger, the "
            "harder softmax picks the nearest anchor"
        )
    return float(given)


def proved_head(plan: Plan, found: HeadCandidate) -> Head:
    """The head with its certificate; an error where nothing is proved."""
    if not math.isfinite(found.bound):
        other = "" if plan.dtype == "float64" else " and dtype=torch.float64"
        raise ConvergenceError(
            f"nothing can be proved about this head on [{plan.domain.lo:g}, {plan.domain.hi:g}] in {plan.dtype}: rounding drowns "
            f"it. Use fewer anchors, a lower sharpness{other}."
        )
    return finished_head(plan, found, math.inf)


def assembled(given: Truncated, program: Program, head: Head, progress: Progress | None) -> Network:
    """The network of the program with one head for all tokens, certified."""
    assert head.certificate.proved
    stages = lower_steps(program, given.dtype)
    (layer,) = (stage for stage in stages if stage.kind == "pointwise")
    groups, step = [HeadGroup(None, head)], program.steps[layer.value - 1]
    assert isinstance(step, Pointwise)
    entering = compose(program, stages[: stages.index(layer)], given.box, {}, given.dtype)[layer.input]
    errors = {layer.value: head_errors(groups, step.function, entering)}
    known = compose(program, stages, given.box, errors, given.dtype)
    request = Request(program, given.box, math.inf, given.dtype, progress or (lambda _: None))
    return certified(request, Lowered(stages, {layer.value: groups}, known), strict=False)
