"""Running coqc: a file is proved if it compiles, and if its theorems rest on nothing but the axioms that docs/coq.md lists."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

PROVED, FAILED, NOT_INSTALLED = "proved", "failed", "not installed"
LIBRARIES = ("Attnc.v",)  # in the order in which they are compiled
_REALS = ("ClassicalDedekindReals.sig_forall_dec", "ClassicalDedekindReals.sig_not_dec")
_LOGIC = ("FunctionalExtensionality.functional_extensionality_dep", "Classical_Prop.classic")
_INTEGERS = ("PrimInt63.", "Uint63.", "Sint63.")
_FLOATS = ("PrimFloat.", "FloatAxioms.")
_NAME = re.compile(r"[\w.']+")
_TYPED = re.compile(r"(?<=[\w.'])\s*:(\s.*)?$")
_AXIOMS = "attnc_assumptions.v"
_NEEDED = "coqc with CoqInterval: apt-get install coq libcoq-interval"


@dataclass(frozen=True)
class CoqCheck:
    """What coqc said of a file: `status` is "proved", "failed" or "not installed".

    It is true if the file is proved. `axioms` are those that the theorems rest on. `seconds` is the CPU time of all files;
    `times` has it by file."""

    status: str
    reason: str
    seconds: float = 0.0
    times: Mapping[str, float] = field(default_factory=dict)
    axioms: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.status == PROVED

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}"

    def __repr__(self) -> str:
        """With the kinds of the axioms, whose names have thousands of characters."""
        return f"CoqCheck({self.status!r}, {self.reason!r}, {_kinds_of(self.axioms)})"


def _kinds_of(axioms: tuple[str, ...]) -> str:
    """How many axioms there are of each kind.

    >>> _kinds_of(("Classical_Prop.classic", "Uint63.add_spec", "PrimFloat.add"))
    '1 logical axiom, 2 about machine integers and floats'
    """
    logical = sum(axiom in (*_REALS, *_LOGIC) for axiom in axioms)
    integers, floats = (sum(a.startswith(names) for a in axioms) for names in (_INTEGERS, _FLOATS))
    machine = "machine integers and floats" if floats else "machine integers"
    other = len(axioms) - logical - integers - floats
    counts = [
        (logical, f"logical axiom{'s' * (logical != 1)}"),
        (integers + floats, f"about {machine}"),
        (other, "others"),
    ]
    return ", ".join(f"{n} {what}" for n, what in counts if n) or "no axioms"


def library(name: str) -> str:
    """The text of one of the libraries that ship with attnc."""
    return files("attnc.exporters.coq").joinpath(name).read_text(encoding="utf-8")


def assumptions_text(theorems: tuple[str, ...]) -> str:
    """A file that prints what theorems rest on; they are given as stem.theorem."""
    stems = " ".join(dict.fromkeys(name.split(".")[0] for name in theorems))
    together = f"({', '.join(theorems)})" if len(theorems) > 1 else theorems[0]
    return (
        f"(* The axioms on which {', '.join(theorems)} rest. *)\nRequire {stems}.\n"
        f"Definition theorems := {together}.\nPrint Assumptions theorems.\n"
    )


def run_coqc(
    texts: Mapping[str, str],
    theorems: tuple[str, ...],
    *,
    native: bool,
    timeout: float,
    work: Path | None = None,
    libraries: tuple[str, ...] = LIBRARIES,
) -> CoqCheck:
    """Compile the libraries and the files `texts` (by stem) in a directory of their own, and look at the axioms.

    `work` is a directory in which libraries, and files that are not in `texts`, were compiled before: for many files in a row.
    Then nothing is said of axioms unless `theorems` names some, as stem.theorem."""
    coqc = shutil.which("coqc")
    if coqc is None:
        return CoqCheck(NOT_INSTALLED, f"there is no coqc on the path: install {_NEEDED}")
    todo = {f"{stem}.v": text for stem, text in texts.items()}
    if work is not None:
        return _run_all(coqc, work, todo, theorems, native, timeout)
    with tempfile.TemporaryDirectory() as name:
        todo = {file: library(file) for file in libraries} | todo
        return _run_all(coqc, Path(name), todo, theorems, native, timeout)


def _run_all(
    coqc: str, work: Path, todo: Mapping[str, str], theorems: tuple[str, ...], native: bool, timeout: float
) -> CoqCheck:
    deadline, times = time.monotonic() + timeout, dict[str, float]()

    def result(status: str, reason: str, axioms: tuple[str, ...] = ()) -> CoqCheck:
        return CoqCheck(status, reason, sum(times.values()), times, axioms)

    printed = ""
    axioms_file = {_AXIOMS: assumptions_text(theorems)} if theorems else {}
    for file, text in {**todo, **axioms_file}.items():
        (work / file).write_text(text, encoding="utf-8")
        began = _children()
        try:
            done = _run(coqc, work, file, max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return result(FAILED, f"{file}: coqc took more than {timeout:g} s")
        except OSError as problem:
            return result(FAILED, f"{coqc} cannot be run: {problem.strerror or problem}")
        times[file] = _children() - began
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[-400:]
            if "Cannot find a physical path" in said or "Unable to locate library" in said:
                return result(NOT_INSTALLED, f"{said}: install {_NEEDED}")
            return result(FAILED, f"{file}: {said or f'coqc ended with status {done.returncode}'}")
        printed = done.stdout
    axioms = axioms_in(printed)
    if theorems and axioms is None:
        return result(FAILED, "coqc did not print the axioms")
    unknown = [axiom for axiom in axioms or () if not is_allowed(axiom, native)]
    if unknown:
        return result(FAILED, f"the proof rests on {', '.join(unknown)}", axioms or ())
    return result(PROVED, f"coqc accepts the proof ({sum(times.values()):.1f} CPU s)", axioms or ())


def _run(coqc: str, work: Path, file: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """coqc, which sees no other libraries than those that are installed with it and those in `work`.

    With -R a library of `work` precedes one of the same name elsewhere; with -Q it would not. Coq also reads libraries from the
    user's directories for data, unless those are somewhere else."""
    hidden = ("COQPATH", "COQFLAGS", "COQEXTRAFLAGS")
    nowhere = dict.fromkeys(("XDG_DATA_HOME", "XDG_DATA_DIRS"), str(work.resolve() / "no-data"))
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | nowhere
    command = [coqc, "-q", "-w", "none", "-R", ".", "", file]
    return subprocess.run(
        command,
        cwd=work,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout,
    )


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def axioms_in(printed: str) -> tuple[str, ...] | None:
    """The names that `Print Assumptions` printed; None if it printed nothing."""
    if "Axioms:" not in printed and "Closed under the global context" not in printed:
        return None
    lines = [line.rstrip() for line in printed.splitlines() if line and not line[0].isspace()]
    said = ("Axioms:", "Section Variables:", "Closed under the global context")
    # a line that is not "name" or "name : type" stays whole, for instance "name is assumed to be guarded."
    names = [_TYPED.sub("", line) for line in lines if line not in said]
    return tuple(sorted(set(names)))


def is_allowed(axiom: str, native: bool) -> bool:
    """Whether a proof may rest on this axiom.

    >>> is_allowed("Classical_Prop.classic", native=False), is_allowed("head.cheat", native=True)
    (True, False)
    """
    if axiom in (*_REALS, *_LOGIC):
        return True
    if not _NAME.fullmatch(axiom):
        return False
    return axiom.startswith((*_INTEGERS, *(_FLOATS if native else ())))
