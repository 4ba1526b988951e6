"""Heads under attack: random functions, designs, dtypes, intervals and engines, at inputs that like to break bounds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

import attnc
from attacks.tally import Outcome
from attnc import functions
from attnc.errors import AttncError
from attnc.functions import Function
from attnc.functions.balls import lower, upper, working
from attnc.network.head import Head
from attnc.prove.supnorm import supnorm
from tests.soundness.attack import DESIGNS, SPECS, Attacked, attack_points, random_head

ENGINES = ("softmax", "sdpa")
SUSPECT = 0.9  # of the bound: from here on an error is evaluated again, in ball arithmetic
BITS = 160


@dataclass
class Screen:
    """Errors of executed heads: float64 for all inputs, balls for all that come near the bound."""

    f: Function
    bound: float
    ratio: float = 0.0
    error: float = 0.0
    at: float = math.nan
    inputs: int = 0

    def see(self, s: Tensor, executed: Tensor) -> Tensor:
        """Take the outputs of a batch up; the rough ratios, for a local search."""
        wide = s.double()
        meant = self.f.torch_form(wide)
        rough = (executed.double() - meant).abs().nan_to_num(math.inf) / self.bound
        own = 2.0**-49 * (1 + float(meant.abs().max())) / self.bound  # what the reference may lose, in bounds
        self.inputs += len(s)
        suspects = torch.nonzero(rough + own >= SUSPECT).flatten()
        if (
            len(suspects) > 4000
        ):  # the bound is of the size of float64's rounding: balls for some, and only they count
            suspects = suspects[torch.randperm(len(suspects))[:4000]]
            self.inputs += 4000 - len(s)
        top = rough.argsort(descending=True)[:8]
        self._exactly(s, executed, torch.cat([top, suspects]).tolist())
        return rough

    def _exactly(self, s: Tensor, executed: Tensor, chosen: list[int]) -> None:
        with working(BITS):
            limit = arb(self.bound)
            for i in dict.fromkeys(chosen):
                at, y = float(s[i]), float(executed[i])
                error = abs(arb(y) - self.f.value(at)) if math.isfinite(y) else arb("inf")
                ratio = upper(error / limit)
                if ratio > self.ratio:  # above 1 only where the error surely exceeds the bound
                    sure = (not error <= limit and lower(error) > self.bound) or not math.isfinite(y)
                    self.ratio = max(ratio, math.nextafter(1, 2)) if sure else min(ratio, 1.0)
                    self.error, self.at = upper(error), at


def attack(seed: int, points: int = 60_000) -> Outcome:
    """The head of a seed: one of the designs, or, of every eighth seed, what attnc.head returns."""
    began, rng = time.perf_counter(), np.random.default_rng([1, seed])
    spec, design = SPECS[seed % len(SPECS)], DESIGNS[(seed // len(SPECS) + seed) % len(DESIGNS)]
    dtype = ("float32", "float64")[int(rng.integers(2))]
    outcome = Outcome("heads", f"{seed}: {spec}, {design}, {dtype}", "refused")
    try:
        made = _public(rng, spec, dtype) if seed % 8 == 7 else _designed(rng, spec, design, dtype)
    except AttncError as problem:
        outcome.note = str(problem)[:200]
        made = None
    if made is not None:
        case, head, bound = made
        screen = Screen(case.f, bound)
        for s in batches(rng, case, head, screen, points):
            for engine in ENGINES[: 1 if head.is_gated or head.heads > 1 else 2]:
                with torch.no_grad():
                    screen.see(s, head.run(s, engine))
        outcome.ratio, outcome.claimed, outcome.measured = screen.ratio, bound, screen.error
        outcome.inputs, outcome.note = screen.inputs, f"at s={screen.at!r}"
        outcome.verdict = "false" if screen.ratio > 1 else "converted"
    outcome.seconds = time.perf_counter() - began
    return outcome


Made = tuple[Attacked, Head, float]


def _designed(rng: np.random.Generator, spec: str, design: str, dtype: str) -> Made | None:
    case = random_head(rng, spec, design, dtype)
    proof = supnorm(case.finished.numbers, case.f, case.domain, quality=1.5, seen=case.finished.approximation)
    if not math.isfinite(proof.bound):
        return None
    return case, Head(case.finished.numbers, design), proof.bound


def _public(rng: np.random.Generator, spec: str, dtype: str) -> Made:
    half = float(rng.choice([2.0, 4.0, 8.0]))
    eps = float(10.0 ** rng.uniform(-3, -1.5)) * (math.exp(half) if spec == "exp" else 1.0)
    head = attnc.head(spec, domain=(-half, half), eps=eps, dtype=getattr(torch, dtype))
    if not head.certificate.proved:
        raise attnc.CertificateError("measured only")

    @dataclass(frozen=True)
    class Finished:
        numbers: object

    found = Attacked(functions.get(spec), head.certificate.holds_for, Finished(head.numbers()))  # type: ignore[arg-type]
    return found, head, head.certificate.bound


def batches(
    rng: np.random.Generator, case: Attacked, head: Head, screen: Screen, points: int
) -> Iterator[Tensor]:
    """Special points and their neighbours; random ones; dense ones near the kinks; then a search around the worst so far."""
    lo, hi = case.domain.lo, case.domain.hi
    dtype = head.key.dtype
    yield attack_points(rng, case, np.linspace(lo, hi, 257).tolist(), 6000)
    size = points // 4
    near = [
        k + (hi - lo) * rng.standard_normal(size // 8) * 10.0 ** -rng.uniform(1, 9, size // 8)
        for k in case.f.kinks
    ]
    ends = np.concatenate(
        [lo + (hi - lo) * 10.0 ** -rng.uniform(1, 16, 500), hi - (hi - lo) * 10.0 ** -rng.uniform(1, 16, 500)]
    )
    for wide in (rng.uniform(lo, hi, 2 * size), np.concatenate([*near, ends])):
        yield _inside(wide, lo, hi, dtype)
    for width in (1e-2, 1e-4, 1e-6, 1e-9, 1e-13):
        if math.isfinite(screen.at):
            around = screen.at + (hi - lo) * width * rng.uniform(-1, 1, size // 5)
            yield _inside(around, lo, hi, dtype)


def _inside(wide: np.ndarray, lo: float, hi: float, dtype: torch.dtype) -> Tensor:  # type: ignore[type-arg]
    s = torch.from_numpy(np.concatenate([wide, [lo, hi, 0.0, -0.0]])).to(dtype)
    kept = s.double()
    return s[(kept >= lo) & (kept <= hi)]
