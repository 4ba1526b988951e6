"""The text of a Coq file: the stored numbers, the function, the theorem and its proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from attnc.domain import Interval
from attnc.exporters.coq.formulas import Formula, formula_of
from attnc.exporters.coq.gauss import Gauss
from attnc.exporters.coq.stretches import Part, Planner, Stretch
from attnc.functions import Function
from attnc.records.numbers import HeadNumbers

DEGREE = 10  # of the Taylor models


@dataclass(frozen=True)
class Claim:
    """What a file states: these numbers are within `eps` of f on the domain, in exact arithmetic."""

    numbers: HeadNumbers
    function: Function
    domain: Interval
    eps: float
    native: bool = True  # whether `interval` may compute in machine floats


def literal(x: float) -> str:
    """A float as a rational of Coq, digit by digit.

    >>> literal(-0.375), literal(8.0), literal(0.1)
    ('(-0x1.8p-2)', '8', '0x1.999999999999ap-4')
    """
    if x == int(x) and abs(x) < 1000:
        text = str(int(x))
    else:
        mantissa, exponent = x.hex().split("p")
        text = f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{exponent}"
    return f"({text})" if text.startswith("-") else text


def model_text(numbers: HeadNumbers) -> str:
    """The stored numbers: `Definition model`."""
    heads = []
    for query, key, value, output in zip(
        numbers.query, numbers.key, numbers.value, numbers.output, strict=True
    ):
        rows = [
            f"Anchor {' '.join(literal(x) for x in (*k, *v))}"
            for k, v in zip(key.tolist(), value.tolist(), strict=True)
        ]
        joined = ";\n      ".join(rows)
        top = " ".join(literal(x) for x in (*query.tolist(), float(output)))
        heads.append(f"Head {top}\n     [{joined}]")
    return "Definition model : list head :=\n  [" + ";\n   ".join(heads) + "]."


def proof_text(claim: Claim) -> str:
    """Everything between the imports and the end of the file."""
    formula = formula_of(claim.function)
    lo, hi = claim.domain.lo, claim.domain.hi
    gauss = Gauss.on(lo, hi, claim.eps, claim.function) if formula.gaussian else None
    planner = Planner(claim.numbers, claim.function, claim.eps, gauss.cuts if gauss else ())
    stretches = planner.stretches(lo, hi)
    sections = [
        "(* The stored numbers: Head (query) (output) [Anchor (key) (value); ...]. *)",
        model_text(claim.numbers),
        f"(* The function. *)\nDefinition f (s : R) : R := {formula.text}.",
        "(* The domain, and the approximation term of the certificate. *)",
        f"Definition lo : Q := {literal(lo)}.\nDefinition hi : Q := {literal(hi)}.\nDefinition eps : Q := {literal(claim.eps)}.",
    ]
    if gauss is not None:
        sections.append(gauss.text(claim.native))
    lemmas = [_lemma(i, s, formula, gauss, claim) for i, s in enumerate(stretches)]
    joined = "on_0"
    for i in range(1, len(stretches)):
        joined = f"(join _ _ _ _ {joined} on_{i})"
    statement = "Theorem approximation : forall s : R, Q2R lo <= s <= Q2R hi -> Rabs (network model s - f s) <= Q2R eps."
    return "\n\n".join([*sections, *lemmas, f"{statement}\nProof. exact {joined}. Qed."]) + "\n"


def _lemma(i: int, stretch: Stretch, formula: Formula, gauss: Gauss | None, claim: Claim) -> str:
    lo, hi = literal(stretch.lo), literal(stretch.hi)
    parts = "; ".join(map(_part, stretch.parts))
    rewriting = formula.rewriting(stretch.branch, stretch.middle)
    allowed = "(Q2R eps)" if stretch.allowed == claim.eps else f"(Q2R {literal(stretch.allowed)})"
    steps = [f"intros s H; numeric H; unfold f; explicit{'; ' + rewriting if rewriting else ''}."]
    if gauss is not None:
        steps = gauss.steps(stretch, rewriting)
    steps += [*recentred(stretch), f"{interval(stretch, claim.native)}."]
    body = "\n    ".join(steps)
    return (
        f"Lemma on_{i} : forall s : R, Q2R {lo} <= s <= Q2R {hi} -> Rabs (network model s - f s) <= Q2R eps.\n"
        f"Proof.\n  apply (stretch model [{parts}] {lo} {hi} f _ {allowed}).\n"
        f"  - vm_compute; reflexivity.\n  - small.\n  - {body}\nQed."
    )


def _part(part: Part) -> str:
    first, count = part.kept[0], len(part.kept)
    if part.kept == tuple(range(first, first + count)):
        mask = f"(those {first} {count})"
    else:
        mask = "[" + "; ".join("true" if k in part.kept else "false" for k in range(part.anchors)) + "]"
    return f"Part {part.reference} {mask} {literal(part.centre)} {part.gap}"


def recentred(stretch: Stretch) -> list[str]:
    """The step to the variable t = s - centre, if the centre is not 0."""
    if stretch.centre == 0:
        return []
    m = Fraction(stretch.centre)
    ends = [Fraction(x) - m for x in (stretch.lo, stretch.hi)]
    lo, hi = (f"({x.numerator} # {x.denominator})" for x in ends)
    return [f"recentre t {literal(stretch.centre)}%Q {lo}%Q {hi}%Q."]


def interval(stretch: Stretch, native: bool, degree: int = DEGREE) -> str:
    """The tactic for a stretch; where machine floats may be too coarse, the next attempt has more bits."""
    x = "s" if stretch.centre == 0 else "t"
    options = f"i_bisect {x}, i_taylor {x}, i_depth {stretch.depth}"
    wide = max(64, stretch.precision)
    attempts = [f"interval with ({options}, i_degree {degree}, i_prec {wide})"]
    if native and stretch.precision == 53:
        attempts.insert(0, f"interval with ({options}, i_degree {degree})")
    attempts.append(f"interval with ({options}, i_degree {degree + 6}, i_prec {wide + 26})")
    return "first\n      [ " + "\n      | ".join(attempts) + " ]"


def interval_text(domain: Interval) -> str:
    """[lo, hi], in full digits."""
    return f"[{domain.lo!r}, {domain.hi!r}]"


def file_text(claim: Claim, header: Sequence[str]) -> str:
    """The whole file."""
    imports = (
        "From Coq Require Import QArith Qreals Reals List Lra.\nFrom Interval Require Import Tactic.\n"
        "Require Import Attnc.\nImport ListNotations.\nOpen Scope R_scope."
    )
    comment = "(* " + "\n   ".join(header) + " *)"
    return "\n".join([comment, imports, "", proof_text(claim)])
