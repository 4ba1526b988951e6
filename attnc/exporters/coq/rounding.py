"""The executed error of a head as a theorem of Coq: approximation and rounding.

The theorem is about every result that a machine may return under the assumptions of docs/arithmetic.md: AttncRounding.v states
them, `AttncExecuted.executes` applies them to the stored numbers. docs/coq_rounding.md explains both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnc.domain import Interval
from attnc.errors import Problem, UnsupportedError
from attnc.exporters.coq.formulas import formula_of
from attnc.exporters.coq.rounding_plan import RoundingPlan, Share, Turn
from attnc.exporters.coq.text import Claim, literal, model_text, proof_text
from attnc.functions import Function
from attnc.records.numbers import HeadNumbers

LIBRARIES = (
    "Attnc.v",
    "AttncRounding.v",
    "AttncEnclosure.v",
    "AttncExecuted.v",
)  # in the order of compilation
_IMPORTS = (
    "From Coq Require Import QArith Qreals Reals List Lra.\nFrom Interval Require Import Tactic.\n"
    "Require Import Attnc.\nRequire AttncRounding AttncEnclosure AttncExecuted.\nImport ListNotations.\nOpen Scope R_scope."
)


def rounding_text(numbers: HeadNumbers, domain: Interval, rounding: float) -> str:
    """A file with the theorem `rounding`: |executed - exact| <= rounding for every s of the domain.

    >>> import attnc, torch
    >>> head = attnc.head("tanh", domain=(-4, 4), eps=1e-6, dtype=torch.float64)
    >>> text = rounding_text(head.numbers(), head.domain, head.certificate.rounding)
    >>> text.strip().splitlines()[-2].partition("->")[2]
    ' forall y : R, executes s y -> Rabs (y - network model s) <= Q2R bound.'
    """
    check_supported(numbers)
    turns = RoundingPlan(numbers).turns(domain.lo, domain.hi)
    lemmas, proof = _rounding_lemmas("rounding", turns, "bound")
    statement = f"Theorem rounding : {_for_all('lo', 'hi')} {_ROUNDED.format('bound')}."
    return (
        "\n\n".join(
            [*_preamble(numbers, domain, rounding), *lemmas, f"{statement}\nProof. exact {proof}. Qed."]
        )
        + "\n"
    )


def executed_text(
    numbers: HeadNumbers, function: Function, domain: Interval, bound: float, *, native: bool = True
) -> str:
    """A file with the theorem `executed`: |executed - f| <= bound for every s of the domain.

    The domain is cut into stretches. On each, the approximation term is proved as in `proof_text`, and the rounding term by
    computation, such that their sum is at most the bound."""
    check_supported(numbers)
    formula = formula_of(function)
    definition = f"Definition f (s : R) : R := {formula.text}."
    shares = RoundingPlan(numbers, function).shares(domain.lo, domain.hi, bound)
    sections = [*_preamble(numbers, domain, bound), definition]
    for i, share in enumerate(shares):
        claim = Claim(numbers, function, Interval(share.lo, share.hi), share.approximation, native)
        body = proof_text(claim).replace(model_text(numbers), "").replace(definition, "")
        sections.append(f"Module Approximation_{i}.\n\n{body}\nEnd Approximation_{i}.")
        sections += _share_lemmas(i, share)
    proof = _joined([f"executed_{i}" for i in range(len(shares))])
    statement = f"Theorem executed : {_for_all('lo', 'hi')} {_EXECUTED}."
    return "\n\n".join([*sections, f"{statement}\nProof. exact {proof}. Qed."]) + "\n"


def check_supported(numbers: HeadNumbers) -> None:
    """Raise `UnsupportedError` unless there is one head, and its output weight is 1."""
    if numbers.heads != 1 or numbers.output[0] != 1:
        given = f"{numbers.heads} heads" if numbers.heads != 1 else f"the output weight {numbers.output[0]:g}"
        raise UnsupportedError(
            "the rounding theorem is about one head with the output weight 1",
            [Problem(given, "build the head with heads=1")],
        )


_ROUNDED = "forall y : R, executes s y -> Rabs (y - network model s) <= Q2R {}"
_EXECUTED = "forall y : R, executes s y -> Rabs (y - f s) <= Q2R bound"


def _for_all(lo: str, hi: str) -> str:
    return f"forall s : R, Q2R {lo} <= s <= Q2R {hi} ->"


def _preamble(numbers: HeadNumbers, domain: Interval, bound: float) -> list[str]:
    return [
        _IMPORTS,
        "(* The stored numbers: Head (query) (output) [Anchor (key) (value); ...]. *)",
        model_text(numbers),
        f"(* y is a possible result of the module in {numbers.dtype}. *)\n"
        f"Definition executes : R -> R -> Prop := AttncExecuted.executes AttncRounding.{numbers.dtype} model.",
        f"Definition lo : Q := {literal(domain.lo)}.\nDefinition hi : Q := {literal(domain.hi)}.\n"
        f"Definition bound : Q := {literal(bound)}.",
    ]


def _share_lemmas(i: int, share: Share) -> Iterable[str]:
    """The rounding term on a stretch, and its sum with the approximation term."""
    r, lo, hi = literal(share.rounding), literal(share.lo), literal(share.hi)
    lemmas, proof = _rounding_lemmas(f"rounding_{i}", share.turns, r)
    yield from lemmas
    yield (f"Lemma rounding_{i} : {_for_all(lo, hi)} {_ROUNDED.format(r)}.\nProof. exact {proof}. Qed.")
    yield (
        f"Lemma executed_{i} : {_for_all(lo, hi)} {_EXECUTED}.\n"
        f"Proof.\n  intros s S y Y.\n"
        f"  apply (AttncExecuted.both _ model f {r} Approximation_{i}.eps bound s y (rounding_{i} s S)\n"
        f"    (Approximation_{i}.approximation s S)); [vm_compute; reflexivity|exact Y].\nQed."
    )


def _rounding_lemmas(name: str, turns: Sequence[Turn], bound: str) -> tuple[list[str], str]:
    """One lemma for each turn, and a proof term of what they state together."""
    lemmas = []
    for j, turn in enumerate(turns):
        lo, hi = literal(turn.lo), literal(turn.hi)
        lemmas.append(
            f"Lemma {name}_turn_{j} : {_for_all(lo, hi)} {_ROUNDED.format(bound)}.\n"
            f"Proof. apply (AttncExecuted.rounding _ model {lo} {hi} {turn.reference} {turn.pivot} {literal(turn.top)}); "
            "vm_compute; reflexivity. Qed."
        )
    return lemmas, _joined([f"{name}_turn_{j}" for j in range(len(turns))])


def _joined(names: Sequence[str]) -> str:
    joined, *others = names
    for name in others:
        joined = f"(join _ _ _ _ {joined} {name})"
    return joined
