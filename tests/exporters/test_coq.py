"""attnc.export to Coq: what the file states, what is refused, and what coqc says of true and of false files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnc
from attnc import functions
from attnc.errors import CertificateError, FileError, InputError, UnsupportedError
from attnc.exporters.coq import checking
from attnc.exporters.coq.checking import LIBRARIES, axioms_in, is_allowed, library, run_coqc
from attnc.exporters.coq.formulas import NAMES, formula_of
from attnc.exporters.coq.gauss import Gauss
from attnc.exporters.coq.norm import octaves
from attnc.exporters.coq.reading import numbers_in, pairs_in
from attnc.exporters.coq.stretches import Planner, lines_of
from attnc.exporters.coq.text import literal
from attnc.exporters.coq.writer import check_file, claim_of, text_of
from tests.exporters.coq_formula import Formula
from tests.functions.reference import CASES
from tests.sampled import only

ROOT = Path(__file__).parents[2]
needs_coqc = pytest.mark.skipif(
    shutil.which("coqc") is None, reason="coqc is not installed: apt-get install coq libcoq-interval"
)


def made(function: str, domain: tuple[float, float] = (-4, 4), **options: Any) -> attnc.Head:
    return attnc.head(function, domain=domain, **{"dtype": torch.float64, "eps": 1e-2, **options})


def text(head: attnc.Head, native: bool = True) -> str:
    return text_of(head, claim_of(head, native), "head")


@pytest.fixture(scope="module")
def exp() -> attnc.Head:
    return made("exp", (-2, 2), eps=1e-6)


def test_the_file_states_the_certificate(exp: attnc.Head, tmp_path: Path) -> None:
    done = attnc.export(exp, tmp_path / "head.v")
    written = (tmp_path / "head.v").read_text()
    assert done.eps == exp.certificate.approximation and done.check is None
    assert f"Definition eps : Q := {exp.certificate.approximation.hex()}." in written
    assert {file.name for file in done.files} == {"head.v", "head_assumptions.v", *LIBRARIES}
    assert all(file.is_file() for file in done.files) and len(list(tmp_path.iterdir())) == len(done.files)
    assert all(digest in written for digest in exp.certificate.digests.values())
    assert "Admitted" not in written and "Axiom" not in written
    for name in LIBRARIES:
        assert (tmp_path / name).read_text() == library(name)
        assert not re.search(r"\b(Admitted|admit|Axiom|Parameter|Conjecture|Hypothesis)\b", library(name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("tanh", {}),
        ("relu", {"design": "gated"}),
        ("sin", {"design": "smooth", "heads": 3, "anchors": 5, "eps": None}),
    ],
)
def test_the_numbers_are_read_back_exactly(
    function: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    head = made(function, **{**options, "dtype": dtype})
    numbers = numbers_in(text(head), head.numbers().dtype)
    assert numbers.digests() == dict(head.certificate.digests)


def test_a_changed_number_changes_a_digest(exp: attnc.Head) -> None:
    written = text(exp)
    number = literal(float(exp.value[0, 1, 1]))
    moved = literal(float(np.nextafter(float(exp.value[0, 1, 1]), 0)))
    digests = numbers_in(written.replace(number, moved), "float64").digests()
    assert [name for name in digests if digests[name] != exp.certificate.digests[name]] == ["value"]
    with pytest.raises(InputError):
        numbers_in(written.replace("Definition model", "Definition other"), "float64")


@pytest.mark.parametrize("x", [0.1, -0.375, 8.0, 2.0**-1070, -1e300, 999.0, 1000.0, 1e22, 5e-324, 0.0])
def test_literals_are_exact(x: float) -> None:
    word = literal(x).strip("()")
    assert (float.fromhex(word) if "x" in word else float(word)) == x
    assert re.fullmatch(r"\(-[0-9a-fx.p+-]+\)|[0-9a-fx.p+-]+", literal(x))


def test_every_built_in_function_has_a_formula() -> None:
    assert set(NAMES) == set(functions.names())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_formulas_are_the_functions(case: Any) -> None:
    """The text of a formula, evaluated in mpmath, against the reference of the function's own tests."""
    import mpmath as mp

    with mp.workdps(40):
        formula = formula_of(functions.get(case.label)).text
        for x in (-11.0, -3.0, -1.75, -0.5, -0.0625, 0.0, 0.03125, 0.5, 1.25, 3.0, 7.5, 12.0):
            exact = case.whole(mp.mpf(x))
            assert abs(Formula(formula, mp.mpf(x)).value - exact) <= mp.mpf(10) ** -30 * (1 + abs(exact))


def test_stretches_cover_the_domain() -> None:
    head = made("clip(-1,1)", eps=1e-6)
    numbers = head.numbers()
    planner = Planner(numbers, functions.get("clip(-1,1)"), head.certificate.approximation)
    found = planner.stretches(-4.0, 4.0)
    assert found[0].lo == -4.0 and found[-1].hi == 4.0
    assert all(a.hi == b.lo for a, b in pairwise(found))
    assert {-1.0, 1.0} <= {stretch.lo for stretch in found}
    (lines,) = lines_of(numbers)
    for stretch in found:
        (part,) = stretch.parts
        assert part.reference in part.kept and stretch.allowed <= head.certificate.approximation
        for k in set(range(part.anchors)) - set(part.kept):
            for s in (Fraction(stretch.lo), Fraction(stretch.hi)):
                assert lines[k].at(s) - lines[part.reference].at(s) <= -part.gap


@pytest.mark.slow
def test_anchors_that_do_not_matter_are_dropped() -> None:
    head = made("tanh", (-8, 8), design="nearest", anchors=64, eps=None)
    found = Planner(head.numbers(), functions.get("tanh"), head.certificate.approximation).stretches(
        -8.0, 8.0
    )
    assert max(len(stretch.parts[0].kept) for stretch in found) <= 8


def test_polynomials_are_near_the_normal_distribution() -> None:
    import mpmath as mp

    gauss = Gauss.on(-8.0, 8.0, 1e-6, functions.get("gelu"))
    assert gauss.cells[0].lo == 0 and gauss.cells[-1].hi == 8
    with mp.workdps(40):
        for cell in gauss.cells:
            for i in range(41):
                s = mp.mpf(cell.lo) + mp.mpf(cell.hi - cell.lo) * i / 40
                powers = [mp.mpf(c.numerator) / c.denominator for c in reversed(cell.coefficients)]
                assert abs(mp.polyval(powers, s - cell.middle) - mp.ncdf(s)) <= cell.error <= 1e-9


def test_machine_floats_only_where_allowed(exp: attnc.Head) -> None:
    head = made("relu", eps=1e-4)
    assert re.search(r"i_degree \d+\)", text(head)) and not re.search(
        r"i_degree \d+\)", text(head, native=False)
    )


@pytest.fixture(scope="module")
def norm() -> Any:
    return attnc.quadratic_head("rsqrt", features=8, domain=(1e-3, 1.0), eps=1e-2, dtype=torch.float64)


def test_the_heads_of_a_norm(norm: Any, tmp_path: Path) -> None:
    done = attnc.export(norm, tmp_path / "norm.v")
    written = (tmp_path / "norm.v").read_text()
    assert done.eps == norm.certificate.approximation and literal(done.eps) in written and done.relative
    assert "inverse (q : R) : R := sqrt (q / 8 + " in written
    numbers = norm.numbers()
    assert np.array_equal(pairs_in(written), np.stack([numbers.slope, numbers.intercept, numbers.value], 1))
    found = octaves(claim_of(norm, True))
    assert found[0].lo == 0 and all(a.hi == b.lo for a, b in pairwise(found))
    assert found[-1].hi == norm.certificate.holds_for.radius**2
    for octave in found:
        for k in set(range(len(numbers))) - set(octave.kept):
            height = Fraction(numbers.slope[k]) * Fraction(octave.lo) - Fraction(numbers.intercept[k])
            assert height >= octave.gap
    with pytest.raises(UnsupportedError):
        attnc.export(norm, tmp_path / "norm.v", executed=True)


def test_the_executed_bound_is_a_file_of_its_own(tmp_path: Path) -> None:
    head = made("tanh", eps=1e-6)
    done = attnc.export(head, tmp_path / "head.v", executed=True)
    assert done.theorems == ("approximation", "executed")
    assert (
        f"Definition bound : Q := {literal(head.certificate.bound)}."
        in (tmp_path / "head_executed.v").read_text()
    )
    assert {file.name for file in done.files} >= {"head.v", "head_executed.v", "AttncRounding.v"}
    several = made("sin", heads=3, anchors=5, eps=None)
    with pytest.raises(UnsupportedError):
        attnc.export(several, tmp_path / "several.v", executed=True)


def own() -> attnc.Function:
    return attnc.function(lambda s: s / 2, name="my_half", enclosure=lambda x: x / 2)


def measured() -> attnc.Head:
    return attnc.head(lambda s: torch.lgamma(s + 4), domain=(-1, 1), eps=1e-2)


def changed() -> attnc.Head:
    head = made("tanh")
    head.value.data[0, 0, 1] += 1e-3
    return head


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: attnc.head(own(), domain=(-1, 1), eps=1e-2), UnsupportedError, "my_half"),
        (lambda: attnc.head(lambda s: s.sin(), domain=(-1, 1), eps=1e-2), UnsupportedError, "not built in"),
        (measured, CertificateError, "measured"),
        (changed, CertificateError, "value"),
        (lambda: torch.nn.Tanh(), UnsupportedError, "Tanh"),
    ],
)
def test_refusals(make: Callable[[], Any], error: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        attnc.export(make(), tmp_path / "head.v")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["my-head.v", "1.v", "Attnc.v", "attnc.v", "AttncRounding.v", "match.v", "a_assumptions.v", "ü.v"]
)
def test_names_that_coq_cannot_read(name: str, exp: attnc.Head, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="head"):
        attnc.export(exp, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_options_of_other_formats(exp: attnc.Head, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="engine"):
        attnc.export(exp, tmp_path / "head.v", engine="closed-form")
    with pytest.raises(InputError, match="check"):
        attnc.export(exp, tmp_path / "head.onnx", check=True)
    with pytest.raises(InputError, match="native"):
        attnc.export(exp, tmp_path / "head.v", native=1)  # type: ignore[arg-type]


def test_without_coqc_nothing_is_proved(
    exp: attnc.Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking.shutil, "which", lambda name: None)
    done = attnc.export(exp, tmp_path / "head.v", check=True)
    assert done.check is not None and done.check.status == "not installed" and not done.check


def test_the_result_prints_the_kinds_of_axioms() -> None:
    machine = tuple(f"Uint63.fact_{i}" for i in range(41))
    check = checking.CoqCheck("proved", "coqc accepts the proof", axioms=("Classical_Prop.classic", *machine))
    assert "1 logical axiom, 41 about machine integers)" in repr(check)
    assert "fact_3" not in repr(check) and len(repr(check)) < 120


def test_a_network_of_a_theorem_is_told_which_part_has_a_file(tmp_path: Path) -> None:
    net = attnc.paper.one_head(torch.eye(2), torch.zeros(2), -2, 2, anchors=9, domain=(-1, 1))
    with pytest.raises(UnsupportedError, match=r"net\.layers\[0\]\.groups\[0\]\[1\]"):
        attnc.export(net, tmp_path / "net.v")
    done = attnc.export(net.layers[0].groups[0][1], tmp_path / "head.v")
    assert done.theorems == ("approximation",)


def test_edited_files_fail_before_coqc(exp: attnc.Head, tmp_path: Path) -> None:
    path = tmp_path / "head.v"
    attnc.export(exp, path)
    written = path.read_text()
    for edited in (
        written.replace("Proof. exact on_0. Qed.", "Admitted."),
        "Axiom cheat : False.\n" + written,
        written.replace("exp s.", "exp s + 1."),
    ):
        assert edited != written
        path.write_text(edited)
        assert check_file(exp, path).status == "failed"
    with pytest.raises(FileError):
        check_file(exp, tmp_path / "missing.v")


def test_axioms_are_read_and_judged() -> None:
    lines = (
        "Axioms:",
        "Classical_Prop.classic : forall P : Prop, P \\/ ~ P",
        "Uint63.add_spec",
        "  : forall x y",
        "head.cheat : False",
    )
    printed = "\n".join(lines)
    assert axioms_in(printed) == ("Classical_Prop.classic", "Uint63.add_spec", "head.cheat")
    assert axioms_in("Closed under the global context\n") == () and axioms_in("") is None
    assert is_allowed("FloatAxioms.add_spec", native=True)
    assert not is_allowed("FloatAxioms.add_spec", native=False) and not is_allowed("cheat", native=True)
    (unsafe,) = axioms_in("Axioms:\nUint63.loop is assumed to be guarded.\n") or ()
    assert not is_allowed(unsafe, native=True)


@pytest.mark.parametrize(
    "script",
    ["no program", "#!/no/such/shell\n", "#!/bin/sh\nprintf '\\377'; exit 1\n", "#!/bin/sh\nkill -9 $$\n"],
)
def test_a_coqc_that_does_not_run_proves_nothing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coqc = tmp_path / "coqc"
    coqc.write_text(script)
    coqc.chmod(0o755)
    monkeypatch.setattr(checking.shutil, "which", lambda name: str(coqc))
    assert run_coqc({"head": ""}, ("head.approximation",), native=True, timeout=60).status == "failed"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the compiled libraries."""
    directory = tmp_path_factory.mktemp("coq")
    libraries = {Path(name).stem: library(name) for name in LIBRARIES}
    assert run_coqc(libraries, (), native=True, timeout=600, work=directory)
    return directory


def tamperings(written: str) -> list[tuple[str, str]]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from tampering import tamperings as every
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return list(every(written))


@needs_coqc
def test_coqc_proves_a_head(exp: attnc.Head, tmp_path: Path) -> None:
    done = attnc.export(exp, tmp_path / "head.v", check=True, native=False)
    assert done.check is not None and done.check.status == "proved", done.check
    assert not any(axiom.startswith(("PrimFloat", "FloatAxioms")) for axiom in done.check.axioms)
    assert set(done.check.times) >= {"head.v", *LIBRARIES}


@needs_coqc
@pytest.mark.parametrize(
    "start", only(["eps × 0.99"], ["value of anchor 1", "eps × 0.99", "f(s) = exp s + 1e-7"])
)
def test_coqc_rejects_a_false_theorem(start: str, exp: attnc.Head, work: Path) -> None:
    changed = next(changed for what, changed in tamperings(text(exp)) if what.startswith(start))
    found = run_coqc({"head": changed}, (), native=True, timeout=600, work=work)
    assert found.status == "failed" and "head.v" in found.reason


@needs_coqc
@pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_DATA_DIRS", "COQPATH"])
def test_a_library_of_the_same_name_elsewhere_is_not_used(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coq searches the user's directories too: a file must not be proved about other definitions than those of attnc."""
    planted = tmp_path / "coq"
    planted.mkdir()
    (planted / "Attnc.v").write_text("Definition one := 2.\n")
    subprocess.run(["coqc", "-q", "-Q", ".", "", "Attnc.v"], cwd=planted, check=True)
    monkeypatch.setenv(variable, str(planted if variable == "COQPATH" else tmp_path))
    lie = "Require Import Attnc.\nTheorem t : one = 2.\nProof. reflexivity. Qed.\n"
    texts = {"Attnc": "Definition one := 1.\n", "head": lie}
    assert run_coqc(texts, ("head.t",), native=True, timeout=600, libraries=()).status == "failed"
    texts["head"] = lie.replace("2", "1")
    assert run_coqc(texts, ("head.t",), native=True, timeout=600, libraries=()).status == "proved"


@needs_coqc
def test_axioms_of_a_file_are_noticed(work: Path) -> None:
    cheat = "Axiom cheat : False.\nTheorem approximation : 1 = 2.\nProof. destruct cheat. Qed.\n"
    found = run_coqc({"head": cheat}, ("head.approximation",), native=True, timeout=600, work=work)
    assert found.status == "failed" and "head.cheat" in found.reason
    admitted = "Theorem approximation : 1 = 2.\nProof. Admitted.\n"
    assert not run_coqc({"head": admitted}, ("head.approximation",), native=True, timeout=600, work=work)


@needs_coqc
@pytest.mark.slow
def test_coqc_proves_the_heads_of_a_norm(norm: Any, work: Path) -> None:
    assert run_coqc(
        {"norm": text_of(norm, claim_of(norm, True), "norm")}, (), native=True, timeout=1800, work=work
    )


@needs_coqc
@pytest.mark.slow
def test_coqc_proves_the_executed_bound(tmp_path: Path) -> None:
    done = attnc.export(made("relu", eps=1e-4), tmp_path / "head.v", executed=True, check=True)
    assert done.check is not None and done.check.status == "proved", done.check


@needs_coqc
@pytest.mark.slow
def test_coqc_rejects_every_tampered_file(exp: attnc.Head, work: Path) -> None:
    every = tamperings(text(exp))
    assert len(every) >= 20
    for what, changed in every:
        assert run_coqc({"head": changed}, (), native=True, timeout=600, work=work).status == "failed", what


@needs_coqc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "domain", "options"),
    [
        ("gelu", (-8, 8), {"eps": 1e-6}),
        ("gelu_10", (-6, 11), {"eps": 1e-4}),
        ("relu", (-8, 8), {"design": "gated", "eps": 1e-6}),
        ("sin", (-4, 4), {"design": "smooth", "heads": 3, "anchors": 5, "eps": None}),
        ("tanh", (-8, 8), {"design": "nearest", "anchors": 64, "eps": None}),
        ("softplus(3)", (-4, 4), {"eps": 1e-4}),
        ("silu", (-8, 8), {"eps": 1e-4, "dtype": torch.float32}),
    ],
)
def test_coqc_proves_other_heads(
    function: str, domain: tuple[float, float], options: dict[str, Any], work: Path
) -> None:
    found = run_coqc(
        {"head": text(made(function, domain, **options))}, (), native=True, timeout=1800, work=work
    )
    assert found.status == "proved", found


def tanh_network(*sizes: int) -> attnc.Network:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [torch.nn.Linear(a, b), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers[:-1]).double().eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=sizes[:1]), eps=1e-6)


def test_a_network_is_composed_from_its_heads(tmp_path: Path) -> None:
    net = tanh_network(3, 5, 5, 2)
    done = attnc.export(net, tmp_path / "net.v")
    written = (tmp_path / "net.v").read_text()
    weights = [layer.tensor("weight") for layer in net.numbers().layers if layer.kind == "affine"]
    assert all(literal(float(w)) in written for weight in weights for w in weight.ravel())
    (a, b), masses = [head.eps for head in claim_of(net, True).heads], [abs(w).sum(1).max() for w in weights]
    assert done.eps == pytest.approx(masses[2] * (b + masses[1] * a), rel=1e-9)
    with pytest.raises(UnsupportedError):
        attnc.export(net, tmp_path / "net.v", executed=True)
    relu = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)).double().eval()
    other = attnc.compile(relu, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-3)
    with pytest.raises(UnsupportedError, match="relu"):
        attnc.export(other, tmp_path / "relu.v")


@needs_coqc
@pytest.mark.slow
def test_coqc_proves_a_network(work: Path) -> None:
    net = tanh_network(3, 5, 5, 2)
    written = text_of(net, claim_of(net, True), "net")
    assert run_coqc({"net": written}, (), native=True, timeout=1800, work=work)
    claim = re.search(r"Definition eps : Q := (\S+)\.\n\nTheorem", written)
    assert claim is not None
    lowered = written.replace(claim.group(), claim.group().replace(claim.group(1), literal(1e-17)))
    assert not run_coqc({"net": lowered}, (), native=True, timeout=1800, work=work)
