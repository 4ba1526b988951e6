"""The search for a head: the smallest one that meets eps, or the best one with a given number of anchors.

Sampling guides the search; the result is proved by `prove.supnorm`, or, if the function has no enclosure, measured at points
that the search has not used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnc import effort
from attnc.arithmetic import ARITHMETIC
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.heads import lattice, patience
from attnc.heads.chain import Chain
from attnc.heads.designs import best_candidates, candidates_of
from attnc.heads.draft import Finished, forward, rounding_estimate
from attnc.heads.target import Plan, bends, evaluate, find_kink, kind_of_kink, refuse_endless, target_of
from attnc.prove.supnorm import SupNorm, supnorm
from attnc.records.fields import round_up
from attnc.records.numbers import Array, HeadNumbers

LARGEST = {"nearest": 8192, "smooth": 512, "graded": 512, "gated": 24, "tuned": 24, "auto": 512}
MEASURED_POINTS = 20_011
_CANCELS = 32  # rounding above so many times the least error comes from values that cancel
_ENORMOUS = 1e4  # values so many times the largest |f|
_RELAXED = 3  # searches with a larger eps after one that failed
_LATTICE = 4096  # anchors of a lattice: the proof of more takes minutes
_USELESS, _GRID = 0.5, 1 << 15  # of the largest |f|: an error that says nothing; anchors of a grid
_DAMPINGS = (1e-2, 1e-3, 1e-4)  # of eps: what a unit of |value| costs in the search for smaller values


@dataclass(frozen=True)
class HeadCandidate:
    """The numbers of a head with their proof, or, if f has no enclosure, with the largest error that was measured."""

    design: str
    numbers: HeadNumbers
    proof: SupNorm | None
    measured: float
    measured_at: float
    rounding: float  # an estimate

    @property
    def bound(self) -> float:
        return self.proof.bound if self.proof is not None else self.measured + self.rounding


def best(plan: Plan, p: int) -> HeadCandidate:
    """The best head with p anchors (in each of its heads)."""
    refuse_kinks(plan)
    candidates = sorted(best_candidates(plan, p), key=lambda c: c.estimate)
    if not candidates:
        raise InputError(
            f"design={plan.design!r} with heads={plan.heads} needs more than {p} anchors for {plan.where}: several heads have "
            "anchors - 2 anchors each, and graded anchors stand on both sides of a kink"
        )
    plan.progress(f"proving {p} anchors, {candidates[0].design}")
    chosen = conclude(plan, candidates[0], math.inf)
    for candidate in candidates[1:]:
        if candidate.estimate < chosen.bound:
            chosen = min(chosen, conclude(plan, candidate, math.inf), key=lambda found: found.bound)
    if math.isfinite(chosen.bound):
        return chosen
    other = "" if plan.dtype == "float64" else "dtype=torch.float64, "
    raise ConvergenceError(
        f"no error bound could be proved for a head of {p} anchors for {plan.where} in {plan.dtype}: rounding error is too "
        f"large. Use {other}fewer anchors, or a smaller interval."
    )


def smallest(plan: Plan, eps: float) -> HeadCandidate:
    """The smallest head found that is proved to stay within eps: gallop upward, then close the gap.

    A search that has met nothing stops after `patience.SECONDS`, and the error says what came closest. Before that, smooth heads
    are tried where tuned ones failed: they have more anchors, and their values cancel less."""
    refuse_kinks(plan)
    clock = patience.Clock()
    search = _Search(plan, max(eps, least_error(plan)))
    with clock.until(clock.searching):
        search.gallop()
    late = clock.stopped and search.eps == eps and not search.target.kinks
    if search.found is None and plan.design == "auto" and (late or search.cancels()):
        clock.again()
        smooth = _Search(replace(plan, design="smooth"), search.eps)
        with clock.until(clock.searching):
            smooth.gallop()
        search = smooth if smooth.found is not None else search
    if search.found is None or search.eps > eps:
        closest = _closest(search, clock)
        if closest is not None and closest.bound <= eps:
            return closest
        clock.failed()
        raise _out_of_reach(plan, eps, search, closest, clock)
    return _steadier(plan, search.eps, search.close_gap(search.found))


def on_lattice(plan: Plan, eps: float) -> HeadCandidate | None:
    """A head with its anchors on a uniform lattice, as in `heads.exact_term`: proved within eps, or the closest one; None if f
    has no lattice. Wide intervals need it: the values of a lattice do not cancel, but it has hundreds of anchors, so it is tried
    when the other designs fail. In float32 its rounding is larger than theirs."""
    radius = max(abs(plan.domain.lo), abs(plan.domain.hi))
    single = plan.dtype == "float64" and plan.design == "auto" and plan.heads == 1
    if not single or not lattice.is_gate_symmetric(plan.f) or plan.f.kinks or radius > _LATTICE / 4:
        return None
    closest: HeadCandidate | None = None
    for share in (
        0.85,
        0.0,
    ):  # the last one does not depend on eps, so that what is reported as reachable is reached
        for numbers in lattice.lattice_gates(plan.f, radius, share * eps, plan.dtype):
            if numbers.anchors_per_head > _LATTICE:
                break
            sampled, s = measure(plan, numbers)[0], np.linspace(plan.domain.lo, plan.domain.hi, 257)
            parts = (numbers.query[0], numbers.key[0], numbers.value[0], s, ARITHMETIC[plan.dtype])
            candidate = Finished("lattice", numbers, sampled, float(rounding_estimate(*parts).max()))
            if share and candidate.estimate > eps:
                continue
            plan.progress(f"proving {numbers.anchors_per_head} anchors, lattice")
            promising = candidate.estimate <= eps
            until = math.inf if promising else effort.spent() + patience.SECONDS
            found = conclude(plan, candidate, math.inf, until)
            if found.bound <= eps:
                return found
            if math.isfinite(found.bound) and (closest is None or found.bound < closest.bound):
                closest = found
    return closest


def _steadier(plan: Plan, eps: float, found: HeadCandidate) -> HeadCandidate:
    """A head whose values cancel less, if there is one with at most as many anchors; else `found`. For values that are enormous
    beside f, twice as many anchors are accepted.

    At a kink, least squares in float64 accepts values of 1e5 that cancel: their rounding is still far below eps, but another
    library's exp moves the output by as much. Larger ridges find smaller values, and often need fewer anchors."""
    if plan.dtype != "float64" or not target_of(plan, eps).kinks or plan.design not in ("auto", "tuned"):
        return found
    enormous, least = _ENORMOUS * largest_value(plan), least_error(plan)

    def order(each: HeadCandidate) -> tuple[bool, int, float]:
        return np.abs(each.numbers.value).max() > enormous, each.numbers.anchors_per_head, each.bound

    for share in _DAMPINGS:
        if found.rounding <= _CANCELS * least:
            break
        search = _Search(plan, eps, share * eps)
        search.gallop(found.numbers.anchors_per_head * (2 if order(found)[0] else 1))
        if search.found is not None:
            found = min(found, search.close_gap(search.found), key=order)
    return found


def least_error(plan: Plan) -> float:
    """No bound below this can be proved: the sum of p >= 2 products and the division round, and growth·Σ w|v| of
    `prove.rounding` is at least 5u|g|, |g| >= |f| - bound."""
    return 4 * ARITHMETIC[plan.dtype].unit * largest_value(plan)


def largest_value(plan: Plan) -> float:
    """The largest |f| at samples of the interval."""
    return float(np.abs(evaluate(plan.f, np.linspace(plan.domain.lo, plan.domain.hi, 257))).max())


def _closest(search: _Search, clock: patience.Clock) -> HeadCandidate | None:
    """The closest head that could be proved. The course of a search depends on its eps, and one with a larger eps may come
    closer, so values between eps and the error that was reached are tried too, as long as there is time."""
    if search.found is not None:
        return search.found
    plan = search.plan
    last = search.closest.found[:-3:-1]
    nearest = [conclude(plan, candidate, math.inf, clock.closing) for candidate in last]
    proved = [found for found in nearest if math.isfinite(found.bound)]
    best = min(proved, key=lambda found: found.bound, default=None)
    low, high = search.eps, best.bound if best is not None else math.inf
    for _ in range(_RELAXED):
        if not high > 4 * low or not low > 0 or clock.stopped:
            break
        again = _Search(plan, math.sqrt(low * high) if math.isfinite(high) else 1e3 * low)
        with clock.until(clock.closing):
            again.gallop()
        if again.found is not None:
            best, high = again.found, again.found.bound
        else:
            low = again.eps
    return best


def refuse_kinks(plan: Plan) -> None:
    """Raise if a user's function has a kink that is not declared, a jump or a pole: the search would not converge."""
    refuse_endless(plan)
    kink = find_kink(plan.f, plan.domain)
    if kink is None:
        return
    kind = kind_of_kink(plan.f, plan.domain, kink)
    if kind == "kink":
        reason = f"the function is not smooth near s={kink:.9g}, and no kink is declared there"
        advice = f"Declare it with attnc.function(f, kinks=({kink:.6g},))"
        advice += "; the error is then measured, not proved" if not plan.f.provable else ""
    else:
        what = "jumps" if kind == "jump" else "grows without bound"
        reason, advice = (
            f"the function {what} near s={kink:.9g}, and attention is continuous",
            "Use an interval without this point",
        )
    raise ConvergenceError(f"heads for {plan.where} do not converge: {reason}. {advice}.")


def conclude(plan: Plan, candidate: Finished, needed: float, until: float = math.inf) -> HeadCandidate:
    """Prove or measure a candidate; the bound is infinite if the proof takes longer than `until`."""
    numbers, proof = candidate.numbers, None
    measured, at = measure(plan, numbers)
    if plan.f.provable:
        seen = min(measured, 0.95 * candidate.approximation + 0.05 * measured)
        quality = 1.25 if candidate.design == "nearest" else 1.1
        proof = supnorm(numbers, plan.f, plan.domain, seen=seen, needed=needed, quality=quality, until=until)
    return HeadCandidate(candidate.design, numbers, proof, measured, at, candidate.rounding)


def measure(plan: Plan, numbers: HeadNumbers) -> tuple[float, float]:
    """The largest error, in float64, at points that no design uses, and where."""
    s = unused_points(plan)
    parts = np.array_split(s, 1 + len(s) * numbers.key.size // 4_000_000)
    error = np.concatenate([np.abs(forward(numbers, part) - evaluate(plan.f, part)) for part in parts])
    worst = int(np.argmax(error))
    return float(error[worst]), float(s[worst])


def unused_points(plan: Plan, special: Sequence[float] = ()) -> Array:
    """Points that no design uses: a golden-ratio sequence, the ends, the kinks and `special` points, and their surroundings."""
    lo, hi, width = plan.domain.lo, plan.domain.hi, plan.domain.width
    golden = np.modf(np.arange(MEASURED_POINTS) * ((math.sqrt(5) - 1) / 2))[0]
    special = [lo, hi, *plan.f.kinks, *special]
    near = [x + sign * width * 2.0**-j for x in special for j in range(4, 50) for sign in (-1, 1)]
    s = np.concatenate([lo + width * golden, special, near])
    return s[(s >= lo) & (s <= hi)]


class Closest:
    """The candidates that came closest, the last of them closest of all, and how many sizes in a row brought no progress."""

    def __init__(self) -> None:
        self.found: list[Finished] = []
        self.stale, self.least, self.mark = 0, math.inf, math.inf

    def add(self, candidate: Finished, error: float) -> None:
        self.stale += 1
        if not self.found or error < self.least:
            self.found.append(candidate)
            self.least = error
        if error < 0.8 * self.mark:
            self.mark, self.stale = error, 0


class _Search:
    """Attempts by size; the best is kept."""

    def __init__(self, plan: Plan, eps: float, damping: float = 0.0) -> None:
        self.plan, self.eps = plan, eps
        self.target, self.bends = replace(target_of(plan, eps), damping=damping), bends(plan)
        self.found: HeadCandidate | None = None
        self.failed = 1  # the last size of the gallop that did
        self.closest = Closest()
        self.tried: dict[int, list[Finished]] = {}
        self.chains: dict[int, Chain] = {}

    def gallop(self, most: float = math.inf) -> None:
        """Try larger and larger heads, of at most so many anchors, until one is proved or progress stops: five sizes in a row
        brought none although they could follow every bend of f; three if rounding dominates."""
        for p in self._sizes():
            if p > most or self.attempt(p):
                break
            self.failed = p
            nearest = self.closest.found[-1] if self.closest.found else None
            dominated = nearest is not None and nearest.rounding > max(self.eps, 4 * nearest.approximation)
            if self.closest.stale >= 3 if dominated else self.closest.stale >= 5 and p >= 3 * self.bends:
                break

    def cancels(self) -> bool:
        """Whether large values cancel in the closest candidate, so that rounding alone exceeds eps: tuned heads of few anchors
        may have such values, smooth heads of more anchors do not."""
        if not self.closest.found or self.target.kinks:
            return False
        return self.closest.found[-1].rounding > max(self.eps, _CANCELS * least_error(self.plan))

    def _sizes(self) -> Iterator[int]:
        plan = self.plan
        inner = len(self.target.kinks)
        p = max(2, self.bends // 2) if plan.design in ("auto", "smooth") else 2
        p = 3 if plan.heads > 1 else 1 + 2 * inner if plan.design == "graded" and inner else p
        while p <= LARGEST[plan.design] // plan.heads:
            yield p
            p += max(1, p // 3 if plan.design != "nearest" else p)

    def attempt(self, p: int) -> bool:
        """Whether a head of p anchors is proved."""
        self.plan.progress(f"trying {p} anchors")
        patience.check(MEASURED_POINTS, p)
        if self.found is not None and not self.promising(p):
            return False
        candidates = self._candidates(p)
        if candidates:
            self.closest.add(candidates[0], candidates[0].estimate)
        for candidate in candidates:
            if candidate.estimate <= self.eps and measure(self.plan, candidate.numbers)[0] <= self.eps:
                self.plan.progress(f"proving {p} anchors, {candidate.design}")
                found = conclude(self.plan, candidate, self.eps)
                if found.bound <= self.eps:
                    self.found = found
                    return True
        return False

    def close_gap(self, found: HeadCandidate) -> HeadCandidate:
        """Look for a smaller size than the first that succeeded: one by one, or by halving a wide gap."""
        failed, first = self.failed, found.numbers.anchors_per_head
        reached = first
        while reached - failed > 8:
            middle = (failed + reached) // 2
            failed, reached = (failed, middle) if self.promising(middle) else (middle, reached)
        for p in range(failed + 1, first):
            if self.attempt(p):
                break
        assert self.found is not None
        return self.found

    def promising(self, p: int) -> bool:
        """Whether the sampled error is small enough for a proof to succeed."""
        sampled = [measure(self.plan, c.numbers)[0] + c.rounding for c in self._candidates(p)]
        return 1.1 * min(sampled, default=math.inf) <= self.eps

    def _candidates(self, p: int) -> list[Finished]:
        """Sorted by estimate; computed once for each size, starting from the next smaller size that was tried."""
        if p not in self.tried:
            smaller = max((q for q in self.chains if q < p), default=0)
            made = candidates_of(self.plan, self.target, p, self.eps, self.chains.get(smaller))
            self.tried[p] = sorted((finished for finished, _ in made), key=lambda c: c.estimate)
            for _, chain in made:
                if chain is not None:
                    self.chains[p] = chain
        return self.tried[p]


def _out_of_reach(
    plan: Plan, eps: float, search: _Search, found: HeadCandidate | None, clock: patience.Clock
) -> ConvergenceError | PrecisionError:
    design, late = f"design={plan.design!r}", clock.note()
    if not search.closest.found:
        return ConvergenceError(f"no head for {plan.where} was found with {design}.{late}")
    if found is None:
        what = f"no error bound could be proved for {plan.where} with {design} in {plan.dtype}"
        advice = (
            "use another design, a smaller interval, or an enclosure that is finite and sharp on small cells"
        )
        return ConvergenceError(f"{what}: {advice}.{late}")
    return refusal(plan, eps, found, late)


def refusal(plan: Plan, eps: float, found: HeadCandidate, late: str) -> ConvergenceError | PrecisionError:
    """What was found instead of a head within eps."""
    shown, anchors = f"{round_up(found.bound, 2):.1e}", found.numbers.anchors_per_head
    approximation = found.measured if found.proof is None else found.proof.approximation
    if approximation <= found.rounding or found.rounding > eps / 2:
        other = "dtype=torch.float64, " if plan.dtype == "float32" else ""
        reached = f"in {plan.dtype} for {plan.where}: {anchors} anchors reach {shown}, limited by rounding"
        advice = f"Use {other}a smaller interval, or eps >= {shown}.{late}"
        return PrecisionError(
            f"attnc found no head within eps={eps:g} {reached}. {advice}", float(shown), found
        )
    reached = f"for {plan.where} with design={plan.design!r}: {anchors} anchors per head reach {shown}"
    if found.bound > _USELESS * largest_value(plan):  # a constant is as close
        box = f"attnc.Box({plan.domain.lo:g}, {plan.domain.hi:g}, shape=(1, 1))"
        grid = f"attnc.compile(f, domain={box}, eps=…, method='grid', dtype=torch.float64)"
        reached += ", no closer than a constant. The function varies too fast for this search"
        advice = f"Use a smaller interval, or {grid}, which proves a grid of up to {_GRID:,} anchors.{late}"
    else:
        other = "a smaller interval" if plan.design == "auto" else "design='auto'"
        advice = f"Use {other}, more heads, or eps >= {shown}.{late}"
    return ConvergenceError(
        f"attnc found no head within eps={eps:g} {reached}. {advice}", float(shown), found
    )
