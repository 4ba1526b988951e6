"""A network of affine maps and tanh in Coq: the errors of its heads, composed.

With exact weights W and heads within δ of tanh, whose Lipschitz constant is 1,

    |W a' - W a| <= max_i Σ_j |W_ij| · max|a' - a|,        |head(s') - tanh(s)| <= δ + |s' - s|

layer by layer. Bounds of the arguments follow from the box and from |tanh| <= 1. Coq computes the sums with rational numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from attnc.domain import Interval
from attnc.errors import CertificateError, Problem, UnsupportedError
from attnc.exporters.coq.text import Claim, literal, proof_text
from attnc.functions import get
from attnc.prove.supnorm import supnorm
from attnc.records.layers import Layer, heads_of
from attnc.records.numbers import HeadNumbers

_WHAT = "this network cannot be written as a Coq file"
_ACCEPTED = "accepted are affine maps with tanh between them, one head for each layer"


@dataclass(frozen=True)
class Affine:
    """The stored weights and biases of an affine map, exactly."""

    rows: tuple[tuple[tuple[float, ...], float], ...]

    @property
    def mass(self) -> Fraction:
        """The largest Σ_j |W_ij|."""
        return max(sum((abs(Fraction(w)) for w in row), Fraction(0)) for row, _ in self.rows)

    def reach(self, bound: Fraction) -> Fraction:
        """The largest |W a + b| for |a| <= bound."""
        return max(
            sum((abs(Fraction(w)) for w in row), Fraction(0)) * bound + abs(Fraction(b))
            for row, b in self.rows
        )

    def text(self, i: int) -> str:
        rows = ";\n   ".join(f"([{'; '.join(map(literal, row))}], {literal(b)})" for row, b in self.rows)
        return f"Definition w_{i} : list (list Q * Q) :=\n  [{rows}]%Q."


@dataclass(frozen=True)
class NetworkClaim:
    """Affine maps, and the heads between them as claims about tanh; errors and bounds after each map."""

    maps: tuple[Affine, ...]
    heads: tuple[Claim, ...]
    box: float  # |x_i| is at most this
    bounds: tuple[float, ...]  # of the arguments of heads
    errors: tuple[float, ...]  # before each head, and of the outputs
    eps: float

    @property
    def deltas(self) -> tuple[float, ...]:
        """Errors behind each head."""
        return tuple(
            _up(Fraction(e) + Fraction(h.eps)) for e, h in zip(self.errors, self.heads, strict=False)
        )


def network_claim(x: Any, native: bool) -> NetworkClaim:
    """The claim for a compiled network; raises if it has other layers."""
    why = x.why_not_certified()
    if why is not None:
        raise CertificateError(f"there is no theorem to state: {why}")
    layers = x.numbers().layers
    kinds = [layer.kind for layer in layers]
    if kinds != ["affine", *["pointwise", "affine"] * (len(kinds) // 2)] or any(
        layer.inputs != (i,) for i, layer in enumerate(layers)
    ):
        advice = "; the head of a layer has a file of its own, export(net.layers[0].groups[0][1], …)"
        reason = _ACCEPTED + (advice if "pointwise" in kinds else "")
        raise UnsupportedError(_WHAT, [Problem(", ".join(kinds), reason)])
    maps = [_affine(layer) for layer in layers[::2]]
    numbers = [_head(layer) for layer in layers[1::2]]
    functions = {head.facts["function"] for head in x.certificate.walk() if head.subject == "head"}
    if functions != {"tanh"}:
        raise UnsupportedError(_WHAT, [Problem(", ".join(sorted(functions)), _ACCEPTED)])
    box = max(float(abs(x.certificate.box.lo).max()), float(abs(x.certificate.box.hi).max()))
    bounds, errors, heads, before, error = [], [], [], Fraction(box), Fraction(0)
    for affine, head in zip(maps, numbers, strict=False):
        bounds.append(_up(affine.reach(before)))
        errors.append(_up(affine.mass * error))
        heads.append(_claim(head, _up(Fraction(bounds[-1]) + Fraction(errors[-1])), native))
        before, error = Fraction(1), Fraction(_up(Fraction(errors[-1]) + Fraction(heads[-1].eps)))
    errors.append(_up(maps[-1].mass * error))
    return NetworkClaim(tuple(maps), tuple(heads), box, tuple(bounds), tuple(errors), errors[-1])


def _affine(layer: Layer) -> Affine:
    weight = layer.tensor("weight").astype(float).tolist()
    bias = layer.tensors["bias"].astype(float).tolist() if "bias" in layer.tensors else [0.0] * len(weight)
    return Affine(tuple((tuple(row), b) for row, b in zip(weight, bias, strict=True)))


def _head(layer: Layer) -> HeadNumbers:
    found = heads_of(layer)
    if len(found) != 1:
        raise UnsupportedError(_WHAT, [Problem(f"{len(found)} heads in a layer", _ACCEPTED)])
    return found[0][1]


def _claim(numbers: HeadNumbers, reach: float, native: bool) -> Claim:
    """tanh on [-reach, reach], within a bound that attnc's prover found."""
    domain, f = Interval(-reach, reach), get("tanh")
    eps = supnorm(numbers, f, domain).approximation
    if not 0 < eps < math.inf:
        raise UnsupportedError(_WHAT, [Problem(f"a head on {domain}", "its error is not proved there")])
    return Claim(numbers, f, domain, eps, native)


def _up(x: Fraction) -> float:
    """A float that is at least x."""
    near = float(x)
    return near if Fraction(near) >= x else math.nextafter(near, math.inf)


def network_text(claim: NetworkClaim, header: Sequence[str]) -> str:
    """The whole file."""
    count = len(claim.heads)
    exact = compiled = "(affine w_0 x)"
    definitions, steps = [], []
    for i in range(count):
        name, d = f"Head_{i}", literal(claim.deltas[i])
        definitions.append(f"Module {name}.\n\n{proof_text(claim.heads[i])}\nEnd {name}.")
        c, e = literal(claim.bounds[i]), literal(claim.errors[i])
        known = f"(affine_bounded w_0 {literal(claim.box)}); [vm_compute; reflexivity|exact H]"
        near = "apply close_refl"
        if i:
            known = f"(affine_bounded w_{i} 1); [vm_compute; reflexivity|apply tanh_bounded]"
            near = f"apply (affine_close w_{i} {literal(claim.deltas[i - 1])}); [vm_compute; reflexivity|exact D{i - 1}]"
        steps.append(f"assert (B{i} : bounded {c} {exact}) by (apply {known}).")
        steps.append(f"assert (E{i} : close {e} {compiled} {exact}) by ({near}).")
        applied = f"(map (network {name}.model) {compiled})", f"(map tanh {exact})"
        steps.append(
            f"assert (D{i} : close {d} {applied[0]} {applied[1]}).\n"
            f"  {{ apply (head_close _ _ {name}.lo {name}.hi {c} {e} {name}.eps); "
            f"[exact {name}.approximation|apply tanh_lipschitz| |exact B{i}|exact E{i}].\n"
            "    vm_compute; reflexivity. }"
        )
        compiled, exact = (f"(affine w_{i + 1} {side})" for side in applied)
    last = f"apply (affine_close w_{count} {literal(claim.deltas[-1])}); [vm_compute; reflexivity|exact D{count - 1}]."
    parts = [
        "(* " + "\n   ".join(header) + " *)\n"
        "From Coq Require Import QArith Qreals Reals List Lra.\nFrom Interval Require Import Tactic.\n"
        "Require Import Attnc.\nImport ListNotations.\nOpen Scope R_scope.",
        "(* The stored weights: rows and biases. *)",
        *(affine.text(i) for i, affine in enumerate(claim.maps)),
        "(* The heads. *)",
        *definitions,
        f"(* The network with tanh, and with heads in its place. *)\nDefinition exact (x : list R) : list R := {exact}.\n"
        f"Definition compiled (x : list R) : list R := {compiled}.",
        f"Definition box : Q := {literal(claim.box)}.\nDefinition eps : Q := {literal(claim.eps)}.",
        "Theorem approximation : forall x : list R, bounded box x -> close eps (compiled x) (exact x).\n"
        "Proof.\n  intros x H; unfold compiled, exact.\n  " + "\n  ".join([*steps, last]) + "\nQed.",
    ]
    return "\n\n".join(parts) + "\n"
