"""The executed error as a theorem of Coq: what the files state, how the bound is divided, and what coqc says of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import attnc
from attnc import Interval, functions
from attnc.errors import UnsupportedError
from attnc.exporters.coq.checking import axioms_in, is_allowed, library
from attnc.exporters.coq.rounding import LIBRARIES, executed_text, rounding_text
from attnc.exporters.coq.rounding_plan import RoundingPlan
from attnc.exporters.coq.text import literal

needs_coqc = pytest.mark.skipif(
    shutil.which("coqc") is None, reason="coqc is not installed: apt-get install coq libcoq-interval"
)
REFUSED = ("Unable to unify", "Numerical evaluation failed", "No applicable tactic")  # as coqc says it
HEADS = {"tanh": (-4, 4), "sigmoid": (-8, 8), "relu": (-8, 8), "silu": (-8, 8), "gelu": (-8, 8)}


@cache
def made(name: str, dtype: torch.dtype = torch.float64) -> attnc.Head:
    return attnc.head(name, domain=HEADS[name], dtype=dtype, eps=1e-6 if dtype == torch.float64 else 1e-4)


def rounding_of(head: attnc.Head, scale: float = 1.0) -> str:
    return rounding_text(head.numbers(), head.certificate.interval, head.certificate.rounding * scale)


def executed_of(head: attnc.Head, scale: float = 1.0) -> str:
    c = head.certificate
    return executed_text(head.numbers(), functions.get(c.facts["function"]), c.interval, c.bound * scale)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("coq")
    for name in LIBRARIES:
        (directory / name).write_text(library(name), encoding="utf-8")
        assert coqc(directory, name).returncode == 0, name
    return directory


def coqc(directory: Path, file: str) -> subprocess.CompletedProcess[str]:
    command = ["coqc", "-q", "-w", "none", "-R", ".", "", file]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=3000)


def accepts(directory: Path, text: str, stem: str) -> bool:
    (directory / f"{stem}.v").write_text(text, encoding="utf-8")
    done = coqc(directory, f"{stem}.v")
    assert done.returncode == 0 or any(reason in done.stderr for reason in REFUSED), done.stderr
    return done.returncode == 0


def test_libraries_have_no_gaps() -> None:
    for name in LIBRARIES:
        assert not re.search(r"\b(Admitted|admit|Axiom|Parameter|Conjecture|Abort)\b", library(name)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_the_file_states_the_certificate(name: str, dtype: torch.dtype) -> None:
    head = made(name, dtype)
    kind = str(dtype).removeprefix("torch.")
    for text, term, theorem in (
        (rounding_of(head), head.certificate.rounding, "rounding"),
        (executed_of(head), head.certificate.bound, "executed"),
    ):
        assert f"Definition bound : Q := {literal(term)}." in text
        assert f"AttncExecuted.executes AttncRounding.{kind} model." in text
        assert (
            text.count("Definition model ") == 1
            and f"Theorem {theorem} : forall s : R, Q2R lo <= s <= Q2R hi" in text
        )
        assert "Admitted" not in text and "Axiom" not in text
        for number in head.numbers().key[0].ravel().tolist():
            assert literal(number) in text


@pytest.mark.parametrize("name", list(HEADS))
def test_shares_cover_the_domain_and_fit_the_bound(name: str) -> None:
    head = made(name)
    c = head.certificate
    shares = RoundingPlan(head.numbers(), functions.get(name)).shares(c.interval.lo, c.interval.hi, c.bound)
    assert (shares[0].lo, shares[-1].hi) == (c.interval.lo, c.interval.hi)
    assert all(a.hi == b.lo for a, b in pairwise(shares))
    for share in shares:
        assert Fraction(share.rounding) + Fraction(share.approximation) <= Fraction(c.bound)
        assert (share.turns[0].lo, share.turns[-1].hi) == (share.lo, share.hi)
        assert all(a.hi == b.lo for a, b in pairwise(share.turns))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(HEADS))
def test_the_bound_of_coq_is_that_of_the_prover(name: str, dtype: torch.dtype) -> None:
    head = made(name, dtype)
    plan = RoundingPlan(head.numbers(), functions.get(name))
    largest = float(plan.rounding_at(plan._points(*HEADS[name])).max())
    assert 0.6 * head.certificate.rounding <= largest <= head.certificate.rounding


def test_what_is_not_one_head_is_refused() -> None:
    several = attnc.head("tanh", domain=(-4, 4), eps=1e-3, heads=2, dtype=torch.float64)
    with pytest.raises(UnsupportedError):
        rounding_of(several)
    numbers = made("tanh").numbers()
    doubled = replace(numbers, output=np.array([2.0]))
    with pytest.raises(UnsupportedError):
        executed_text(doubled, functions.get("tanh"), Interval(-4, 4), 1e-10)


@needs_coqc
def test_coqc_proves_the_rounding_term_and_nothing_smaller(libraries: Path) -> None:
    head = made("tanh")
    assert accepts(libraries, rounding_of(head), "tanh")
    (libraries / "axioms.v").write_text("Require tanh.\nPrint Assumptions tanh.rounding.\n")
    axioms = axioms_in(coqc(libraries, "axioms.v").stdout)
    assert axioms and all(is_allowed(axiom, native=False) for axiom in axioms)
    assert not accepts(libraries, rounding_of(head, scale=0.9), "lowered")


@needs_coqc
def test_the_theorem_is_not_about_nothing(libraries: Path) -> None:
    """For every s there is a y with `executes s y`: the result of exact arithmetic."""
    statement = "Theorem some : forall s : R, executes s (network model s).\n"
    proof = "Proof. intros s; apply AttncExecuted.exact_executes; [reflexivity|discriminate]. Qed.\n"
    for name in ("relu", "silu"):
        definitions = rounding_of(made(name)).partition("Lemma")[0]
        assert accepts(libraries, definitions + statement + proof, f"some_{name}")
    gate = attnc.head("relu", domain=(-4, 4), eps=1e-2, design="gated", dtype=torch.float64)
    assert accepts(libraries, rounding_of(gate).partition("Lemma")[0] + statement + proof, "some_gate")


@needs_coqc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(HEADS))
def test_coqc_proves_the_rounding_terms(name: str, dtype: torch.dtype, libraries: Path) -> None:
    head = made(name, dtype)
    assert accepts(libraries, rounding_of(head), f"rounding_{name}")
    assert not accepts(libraries, rounding_of(head, scale=0.6), f"lowered_{name}")


@needs_coqc
@pytest.mark.slow
def test_coqc_proves_the_rounding_term_of_a_gate(libraries: Path) -> None:
    gate = attnc.head("silu", domain=(-8, 8), eps=1e-6, design="gated", dtype=torch.float64)
    assert gate.is_gated and accepts(libraries, rounding_of(gate), "gate")


@needs_coqc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(HEADS))
def test_coqc_proves_the_executed_bound(name: str, dtype: torch.dtype, libraries: Path) -> None:
    assert accepts(libraries, executed_of(made(name, dtype)), f"executed_{name}")


@needs_coqc
@pytest.mark.slow
def test_coqc_refuses_a_lowered_bound_and_tampered_numbers(libraries: Path) -> None:
    head = made("relu")
    assert not accepts(libraries, executed_of(head, scale=0.8), "lowered_bound")
    text = executed_of(head)
    stored = literal(float(head.numbers().value[0, 1, 1]))
    tampered = text.replace(stored, literal(float(head.numbers().value[0, 1, 1]) * 1.001))
    assert tampered != text and not accepts(libraries, tampered, "tampered")
