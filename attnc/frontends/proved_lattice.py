"""The planner for traced functions: the smallest lattice whose error is proved to be at most eps."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from attnc.errors import InputError
from attnc.frontends.callable_source import CallableSource
from attnc.heads.target import Progress
from attnc.heads.tensor_search import VALUES, LatticeFit, tensor_lattice
from attnc.lower.traced_to_network import SLACK, LatticeDraft
from attnc.network.network import Network
from attnc.program import Traced
from attnc.prove.lattice_bound import LatticeBound, SingularError, check_defined

_ATTEMPTS = 8
_VALUES = (
    VALUES / 10
)  # smaller values than a measured lattice has: proofs, the checker too, lose what cancels
_CLAIM = 1 / (1 + 2.0**-8 + 2.0**-10)  # certificates state a part in 256 more than is proved, in four digits
_TIGHT = 1.4  # of the largest sampled error: the bound that is tried first
_ROUNDING = 0.3  # of eps: if rounding takes more and too little is left, the next lattice has smaller values
_LEAST = 0.05  # of eps: what must be left for the approximation, and the smallest bound that is tried
_TINY = 1e-300  # an error that is no longer 0


@dataclass(frozen=True, eq=False)
class Unproved:
    """Why no lattice was proved, with the last one that was found and the bound that was reached."""

    reason: str
    fit: LatticeFit | None


@dataclass(frozen=True, eq=False)
class LatticePlan:
    source: CallableSource
    traced: Traced
    eps: float
    dtype: str
    name: str
    most: int  # anchors
    seed: int
    seconds: float
    progress: Progress

    def network(self) -> Network | Unproved:
        """The network with a proved certificate. Raises `InputError` where f has a singularity in the box, and `ConvergenceError`
        if no lattice reaches eps at samples."""
        self._check_defined()
        deadline = time.process_time() + self.seconds
        goal, values = 0.97 * self.eps * _CLAIM, _VALUES
        reason, fit = "no lattice was found", None
        for attempt in range(_ATTEMPTS):
            fit = tensor_lattice(
                self.source,
                self.source.lo,
                self.source.hi,
                goal,
                self.dtype,
                self.most,
                self.seed + attempt,
                self.progress,
                values,
            )
            draft = LatticeDraft.of(self.source, self.traced, fit.lattice, self.dtype)
            seen = draft.samples
            sampled = max(seen.largest, fit.measured)
            rounding = SLACK * float(draft.rounding(seen.low - self.eps, seen.high + self.eps).max())
            room = self.eps * _CLAIM - rounding
            if not (room > _LEAST * self.eps and sampled <= 0.98 * room):
                if rounding > _ROUNDING * self.eps:
                    reason = f"rounding in {self.dtype} is proved to be at most {rounding:.2g} only"
                    values *= 0.5 * _ROUNDING * self.eps / rounding if np.isfinite(rounding) else 0.1
                    if values < 1e-3 * _VALUES:
                        break
                else:
                    reason = f"{fit.lattice.anchors} anchors have an error of {sampled:.3g} at a sample"
                    goal *= max(0.5, 0.93 * room / sampled)
                continue
            proof = self._bound(draft, sampled, room, deadline)
            if proof.bound <= room:
                net = draft.proved(draft.stated(proof, room), self.name)
                if net.certificate.bound <= self.eps:
                    return net
            if time.process_time() > deadline:
                reached = f"{proof.bound:.3g}" if np.isfinite(proof.bound) else "no bound"
                size = f"{fit.lattice.anchors} anchors"
                reason = f"not within {self.seconds:g} s, in which {reached} was proved for {size}"
                break
            largest = max(proof.refuted or sampled, _TINY)
            goal *= max(0.5, min(0.95, 0.93 * room / largest))
        return Unproved(reason, fit)

    def _check_defined(self) -> None:
        try:
            check_defined(self.traced, self.source.lo, self.source.hi)
        except SingularError as problem:
            raise self._singular(problem) from problem

    def _singular(self, problem: SingularError) -> InputError:
        cell = f"x between {self.source.shown(problem.lo)} and {self.source.shown(problem.hi)}"
        return InputError(
            f"f has a singularity near {cell}: it divides by something that may be 0, takes a logarithm or a root of something "
            "that may not be positive, or atan2 may cross its cut. Give a box without this point, or another f; if f has a "
            "Lipschitz constant K there, method='grid' with lipschitz=K gives a proof."
        )

    def _bound(self, draft: LatticeDraft, sampled: float, room: float, deadline: float) -> LatticeBound:
        """A bound near the sampled error, if that can be proved in half of the time; else one that just suffices."""
        try:
            target = min(room, max(_TIGHT * sampled, _LEAST * room))
            while True:
                left = deadline - time.process_time()
                proof = draft.bound(target, left / 2 if target < room else left, self.progress)
                if proof.bound <= room or target >= room:
                    return proof
                target = room if proof.refuted is None else min(room, _TIGHT * proof.refuted)
        except SingularError as problem:
            raise self._singular(problem) from problem
