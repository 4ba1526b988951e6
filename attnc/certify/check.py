"""The checker: proves or refutes a stored bound anew, with code, precision and cells of its own.

It imports nothing that builds heads and nothing of the prover (`supnorm`, `cells`, `rounding`), so that they
cannot share a mistake. What it shares is what gives a certificate its meaning: the functions' enclosures, the
numbers, the assumptions of `arithmetic`.

On a cell around m it bounds  g - f = Σ_h o_h (Σ_k (v_k - f) E_k)/(Σ_k E_k) + (Σ o_h - 1) f,  E_k =
exp(score_k - score of the key that wins at m), as a power series in t with a ball for its last coefficient,
adds the rounding error, and halves the cell until that is below the bound."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from flint import arb, arb_series

from attnc.certify.arithmetic import ARITHMETIC, Arithmetic, probe
from attnc.certify.certificate import Certificate
from attnc.certify.numbers import TENSORS, Array, HeadNumbers
from attnc.certify.record import read
from attnc.errors import InputError, UnknownFunctionError
from attnc.functions import Function, get
from attnc.functions.balls import working
from attnc.functions.function import Branch

PRECISION, ORDER, FIRST_CELLS, MOST_CELLS = 192, 8, 23, 400_000


@dataclass(frozen=True)
class Verdict:
    """`status` is "proved", "refuted" (with the input that refutes) or "unknown"; `reason` says why."""

    status: str
    reason: str
    bound: float | None = None
    input: float | None = None
    error: float | None = None
    cells: int = 0

    def __bool__(self) -> bool:
        return self.status == "proved"


def verify(what: str | os.PathLike[str] | torch.nn.Module, function: Function | None = None) -> Verdict:
    """Prove anew, from the stored numbers alone, what a head's certificate claims.

    Takes a file or a head. `function` is needed only where the certificate speaks of a function of your own
    that is not registered.

    >>> import attnc
    >>> attnc.verify(attnc.head("tanh", on=(-8, 8), eps=1e-5)).status
    'proved'
    """
    if isinstance(what, torch.nn.Module):
        certificate, measured = getattr(what, "certificate", None), getattr(what, "measured", None)
        changed = _dtype_changed(what, certificate)
        if changed is not None:
            return Verdict("unknown", changed)
        numbers = _numbers(what)
    elif isinstance(what, (str, os.PathLike)):
        record = read(what)
        numbers, certificate, measured = record.numbers, record.certificate, record.measured
    else:
        raise InputError(f"verify takes a file or a head: got {type(what).__name__}")
    if certificate is None:
        seen = f" ({measured.error:.3g} at {measured.points} points)" if measured is not None else ""
        return Verdict("unknown", f"there is no certificate: the error was measured{seen}, not proved")
    return check(numbers, certificate, function)


def check(numbers: HeadNumbers, certificate: Certificate, function: Function | None = None) -> Verdict:
    """The verdict on one certificate beside one set of numbers."""
    if numbers.dtype != certificate.dtype:
        return Verdict(
            "unknown",
            f"the certificate does not apply: it is for {certificate.dtype}, the numbers are {numbers.dtype}",
        )
    found = numbers.digests()
    changed = [name for name in TENSORS if found[name] != certificate.digests[name]]
    if changed:
        return Verdict(
            "unknown", f"the certificate does not apply: changed since it was made: {', '.join(changed)}"
        )
    try:
        f = function or get(certificate.function)
    except UnknownFunctionError:
        return Verdict(
            "unknown",
            f"{certificate.function!r} is not a known function: register it, or give verify(..., function=...)",
        )
    if not f.provable or f.label != certificate.function:
        return Verdict(
            "unknown",
            f"the certificate is about {certificate.function!r}; given was {f.label!r}, provable: {f.provable}",
        )
    broken = probe(numbers.dtype)
    if broken is not None:
        return Verdict("unknown", f"this machine's arithmetic is not what certificates assume: {broken}")
    with working(PRECISION, ORDER + 1):
        refuted = _attack(numbers, certificate, f)
        return refuted if refuted is not None else _prove(numbers, certificate, f)


def _attack(numbers: HeadNumbers, certificate: Certificate, f: Function) -> Verdict | None:
    """Execute the head where errors like to hide, and compare in high precision."""
    domain = certificate.domain
    special = [domain.lo, domain.hi, certificate.witness.input, *f.kinks]
    spread = [domain.lo + domain.width * i / 4000 for i in range(4001)]
    near = [x + sign * domain.width * 2.0**-j for x in special for j in range(3, 56) for sign in (-1, 1)]
    points = (
        torch.tensor([*special, *spread, *near], dtype=torch.float64)
        .to(getattr(torch, numbers.dtype))
        .double()
    )
    points = torch.unique(points[(points >= domain.lo) & (points <= domain.hi)])
    executed = execute(numbers, points)
    for s, y in zip(points.tolist(), executed.tolist(), strict=True):
        if not math.isfinite(y):
            return Verdict("refuted", f"the head returns {y} at s={s!r}", certificate.bound, s, math.inf)
        error = abs(arb(y) - f.value(s))
        if error > arb(certificate.bound):
            shown = float(error.mid())
            return Verdict(
                "refuted", f"at s={s!r} the executed head is off by {shown:.6g}", certificate.bound, s, shown
            )
    return None


def execute(numbers: HeadNumbers, s: torch.Tensor) -> torch.Tensor:
    """The head as torch runs it in its dtype, from the formula of `HeadNumbers`."""
    dtype = getattr(torch, numbers.dtype)
    query, key, value, output = (torch.tensor(getattr(numbers, name), dtype=dtype) for name in TENSORS)
    s = s.to(dtype)
    rows = max(1, (1 << 22) // key[..., 0].numel())
    parts = []
    for part in torch.split(s, rows):
        x = part[:, None] * query[:, 0] + query[:, 1]
        weights = torch.softmax(x[:, :, None] * key[:, :, 0] + key[:, :, 1], -1)
        values = part[:, None, None] * value[:, :, 0] + value[:, :, 1]
        parts.append(((weights * values).sum(-1) * output).sum(-1))
    return torch.cat(parts).double()


def _prove(numbers: HeadNumbers, certificate: Certificate, f: Function) -> Verdict:
    """Cells to the left first, halved until error and rounding together are below the bound."""
    a, bound = ARITHMETIC[numbers.dtype], arb(certificate.bound)
    if not _scores_finite(numbers, certificate, a):
        return Verdict("unknown", "scores may overflow on the domain", certificate.bound)
    stack: list[tuple[float, float, Branch]] = []
    for piece in f.pieces(certificate.domain.lo, certificate.domain.hi):
        edges = np.linspace(piece.lo, piece.hi, FIRST_CELLS + 1).tolist()
        edges[0], edges[-1] = piece.lo, piece.hi
        stack += [(x, y, piece.branch) for x, y in pairwise(edges)]
    done = 0
    while stack:
        lo, hi, branch = stack.pop()
        done += 1
        total = _cell_error(numbers, lo, hi, branch, a)
        if total is not None and total <= bound:
            continue
        middle = lo / 2 + hi / 2
        if not lo < middle < hi or done + len(stack) > MOST_CELLS:
            return Verdict(
                "unknown", f"no proof near s={middle!r} after {done} cells", certificate.bound, cells=done
            )
        stack += [(lo, middle, branch), (middle, hi, branch)]
    return Verdict(
        "proved", f"the bound holds on {done} cells at {PRECISION} bits", certificate.bound, cells=done
    )


def _cell_error(numbers: HeadNumbers, lo: float, hi: float, branch: Branch, a: Arithmetic) -> arb | None:
    """An upper bound of |executed - f| on [lo, hi]; None where the cell is too wide to say."""
    centre = arb(lo / 2 + hi / 2)
    half = (arb(hi) - centre).max(centre - arb(lo)).upper()
    s = centre + arb(0, half)
    try:
        f_point, f_cell = branch(arb_series([centre, 1])), branch(arb_series([s, 1]))
        parts = [_HeadCell(numbers, h, centre, half, f_point, f_cell, a) for h in range(numbers.heads)]
    except (ValueError, ZeroDivisionError):
        return None
    weights = [arb(o) for o in numbers.output]
    surplus = sum(weights, arb(-1))
    point = sum((w * part.point for w, part in zip(weights, parts, strict=True)), surplus * f_point)
    last = sum(
        (w * part.cell[ORDER] for w, part in zip(weights, parts, strict=True)), surplus * f_cell[ORDER]
    )
    total = abs(last) * half**ORDER + sum((abs(point[j]) * half**j for j in range(ORDER)), arb(0))
    total += sum((abs(w) * part.dropped_error for w, part in zip(weights, parts, strict=True)), arb(0))
    rounding = [part.rounding(s) for part in parts]
    if len(parts) == 1 and weights[0] == 1:
        total += rounding[0]
    else:
        u, n = arb(a.unit), len(parts)
        growth = (1 + u) ** n
        for w, part, r in zip(weights, parts, rounding, strict=True):
            total += abs(w) * (growth * r + (growth - 1) * abs(part.output)) + 2 * arb(a.tiny)
    return total.upper() if total.is_finite() else None


class _HeadCell:
    """One head on one cell: the series of Σ(v_k - f)E_k/ΣE_k at the centre and over the cell, and the head's
    rounding error."""

    def __init__(
        self,
        numbers: HeadNumbers,
        h: int,
        centre: arb,
        half: arb,
        f_point: arb_series,
        f_cell: arb_series,
        a: Arithmetic,
    ) -> None:
        self.a, self.p = a, numbers.anchors_per_head
        self.gain, self.offset = arb(numbers.query[h, 0]), arb(numbers.query[h, 1])
        self.value = numbers.value[h]
        self.drop = 90 + math.ceil(
            math.log1p(min(1e300, float(np.abs(self.value).max()) * (1 + abs(float(centre)))))
        )
        kept, self.dropped, top = _kept(numbers, h, float(centre), float(half.upper()), self.drop, a)
        self.dropped_value = arb(self._largest_value(kept, centre, half)) if self.dropped else arb(0)
        key = numbers.key[h]
        self.slopes, self.intercepts = [arb(key[k, 0]) for k in kept], [arb(key[k, 1]) for k in kept]
        self.own, self.constant = [arb(self.value[k, 0]) for k in kept], [arb(self.value[k, 1]) for k in kept]
        self.x = self.gain * centre + self.offset
        self.spread = arb(0, half)
        lead_slope, lead_intercept = arb(key[top, 0]), arb(key[top, 1])
        self.leads = [
            (k - lead_slope) * self.x + (c - lead_intercept)
            for k, c in zip(self.slopes, self.intercepts, strict=True)
        ]
        self.lead_slopes = [(k - lead_slope) * self.gain for k in self.slopes]
        weights = [float(lead.mid()) for lead in self.leads]
        shift = arb(_average(np.exp(np.minimum(weights, 0.0)), [float(b.mid()) for b in self.lead_slopes]))
        tilted = [b - shift for b in self.lead_slopes]
        self.point, _ = self._quotient(centre, arb(0), tilted, f_point)
        self.cell, self.exponentials = self._quotient(centre, self.spread, tilted, f_cell)
        spread = sum(
            (abs(self.point[j]) * half**j for j in range(1, ORDER)), abs(self.cell[ORDER]) * half**ORDER
        )
        self.gap = self.point[0] + arb(0, spread.upper())
        f_range = f_cell[0]
        self.dropped_error = (
            self.dropped * (-arb(self.drop)).exp() * (self.dropped_value + abs(self.gap) + abs(f_range))
        )
        self.output = self.cell[0] + f_range + arb(0, self.dropped_error.upper())

    def _quotient(
        self, centre: arb, t: arb, tilted: list[arb], f: arb_series
    ) -> tuple[arb_series, list[arb]]:
        s = arb_series([centre + t, 1])
        above, below, constants = arb_series([0]), arb_series([0]), []
        for lead, b, own, constant in zip(self.leads, tilted, self.own, self.constant, strict=True):
            e = arb_series([lead + b * t, b]).exp()
            above, below = above + (own * s + constant - f) * e, below + e
            constants.append(e[0])
        if not below[0] > 0:
            raise ValueError("the cell is too wide")
        return above / below, constants

    def _largest_value(self, kept: list[int], centre: arb, half: arb) -> arb:
        mask = np.ones(len(self.value), dtype=bool)
        mask[kept] = False
        own, constant = np.abs(self.value[mask]).max(axis=0)
        return (arb(own) * (abs(centre) + half) + arb(constant)).upper()

    def rounding(self, s: arb) -> arb:
        """|executed - exact| of this head, as docs/arithmetic.md derives it."""
        u, tau, units = arb(self.a.unit), arb(self.a.tiny), self.a.exp_units
        product = abs(self.gain * s) * (0 if self.gain == 1 else u)
        off_x = (
            product
            + (0 if self.offset == 0 else u) * (abs(self.gain * s + self.offset) + product + tau)
            + 2 * tau
        )
        x = self.x + self.gain * self.spread
        leads = [lead + b * self.spread for lead, b in zip(self.leads, self.lead_slopes, strict=True)]
        etas = []
        for k, c in zip(self.slopes, self.intercepts, strict=True):
            after_product = abs(k) * off_x * (1 + u) + u * abs(k * x) + tau
            etas.append((after_product * (1 + u) + u * abs(k * x + c) + tau).upper())
        highest = arb(0)
        for lead, eta in zip(leads, etas, strict=True):
            highest = highest.max(eta).max((lead + eta).upper())
        flushed = tau * highest.exp()
        denominator = sum(self.exponentials, arb(0))
        moved, lost, mass, sizes = arb(0), arb(0), arb(0), arb(0)
        for lead, eta, e, own, constant in zip(
            leads, etas, self.exponentials, self.own, self.constant, strict=True
        ):
            weight = e / denominator
            factor = (eta + u * (abs(lead) + eta + highest) + tau).exp() * (1 + units * u) - 1
            change, size = weight * factor + flushed, abs(own * s) + abs(constant)
            moved += change * abs(own * s + constant - self.output)
            lost += change
            mass += (weight + change) * size
            sizes += size
        dropped = self.dropped * (
            (u * highest - arb(self.drop) * (1 - 2 * u)).exp() * (1 + units * u) + flushed
        )
        moved += dropped * (self.dropped_value + abs(self.output))
        mass += (dropped + self.dropped * (-arb(self.drop)).exp()) * self.dropped_value
        left = 1 - lost - dropped
        if not left > 0:
            return arb("inf")
        turns = self.p + self.a.division_units + (2 if self.value[:, 0].any() else 0)
        growth = (1 + u) ** turns / (1 - self.p * u) - 1
        return (
            (moved + growth * mass) / left
            + 3 * tau * (sizes + self.dropped * self.dropped_value + self.p + 1)
        ).upper()


def _kept(
    numbers: HeadNumbers, h: int, centre: float, half: float, drop_distance: int, a: Arithmetic
) -> tuple[list[int], int, int]:
    """Keys that may come within the distance of the winner on the cell, how many do not, and the winner.

    Leads are affine, so |lead(s) - lead(centre)| <= |slope difference|·half; every float64 operation here
    errs by 2^-53 relative to `size`, of which 64 are allowed for. Twice the score error in the head's dtype
    is kept in reserve."""
    gain, offset = numbers.query[h]
    slope, intercept = numbers.key[h].T
    with np.errstate(all="ignore"):
        top = int(np.argmax(slope * (gain * centre + offset) + intercept))
        far_x = abs(gain) * (abs(centre) + half) + abs(offset)
        size = (np.abs(slope) + abs(slope[top])) * far_x + np.abs(intercept) + abs(intercept[top])
        lead = (slope - slope[top]) * (gain * centre + offset) + (intercept - intercept[top])
        lead = lead + np.abs(slope - slope[top]) * abs(gain) * half * 1.0000001
        eta = 8 * a.unit * (np.abs(slope) * far_x + np.abs(intercept)) + 32 * a.tiny * (1 + np.abs(slope))
        drop = lead + 64 * 2.0**-53 * size + 2 * eta < -(drop_distance + 1)
    drop[top] = False
    kept = [int(k) for k in np.flatnonzero(~drop)]
    return kept, len(slope) - len(kept), top


def _average(weights: Array, numbers: list[float]) -> float:
    mean = float(np.average(numbers, weights=weights))
    return mean if math.isfinite(mean) else 0.0


def _scores_finite(numbers: HeadNumbers, certificate: Certificate, a: Arithmetic) -> bool:
    s = arb(max(abs(certificate.domain.lo), abs(certificate.domain.hi)))
    limit = arb(a.largest) / 16
    for h in range(numbers.heads):
        x = abs(arb(numbers.query[h, 0])) * s + abs(arb(numbers.query[h, 1]))
        size = sum((abs(arb(own)) * s + abs(arb(c)) for own, c in numbers.value[h]), arb(0))
        if not (x < limit and size < limit and abs(arb(numbers.output[h])) * size * numbers.heads < limit):
            return False
        if not all(abs(arb(k)) * x + abs(arb(c)) < limit for k, c in numbers.key[h]):
            return False
    return True


def _numbers(module: Any) -> HeadNumbers:
    try:
        arrays = {name: getattr(module, name).detach().to("cpu", torch.float64).numpy() for name in TENSORS}
    except AttributeError as problem:
        raise InputError(f"verify takes an attnc head, with the tensors {TENSORS}: {problem}") from problem
    return HeadNumbers(**arrays, dtype=str(module.key.dtype).removeprefix("torch."))


def _dtype_changed(module: Any, certificate: Certificate | None) -> str | None:
    if certificate is None or not all(
        isinstance(getattr(module, name, None), torch.Tensor) for name in TENSORS
    ):
        return None
    found = {str(getattr(module, name).dtype).removeprefix("torch.") for name in TENSORS}
    if found == {certificate.dtype}:
        return None
    return f"the certificate does not apply: it is for {certificate.dtype}, the head is {', '.join(sorted(found))}"


__all__ = ["Verdict", "check", "execute", "verify"]
