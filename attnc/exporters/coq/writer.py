"""Coq files of heads: `attnc.export(head, "head.v")`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from attnc.domain import Ball
from attnc.errors import (
    CertificateError,
    FileError,
    InputError,
    Problem,
    UnsupportedError,
)
from attnc.exporters.coq.checking import (
    FAILED,
    LIBRARIES,
    CoqCheck,
    assumptions_text,
    library,
    run_coqc,
)
from attnc.exporters.coq.network import NetworkClaim, network_claim, network_text
from attnc.exporters.coq.norm import NormClaim, norm_text
from attnc.exporters.coq.reading import numbers_in, pairs_in
from attnc.exporters.coq.rounding import LIBRARIES as EXECUTED_LIBRARIES
from attnc.exporters.coq.rounding import executed_text
from attnc.exporters.coq.text import Claim, file_text, interval_text
from attnc.exporters.export import CoqFile
from attnc.functions import get
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.network.norm import QuadraticHead
from attnc.records.certificate import Status
from attnc.records.files import replacing
from attnc.records.numbers import digest

AnyClaim = Claim | NormClaim | NetworkClaim
Subject = Head | QuadraticHead | Network
THEOREMS = ("approximation",)
TIMEOUT = 3600.0  # seconds
_STEM = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_KEYWORD = re.compile(
    "as|at|cofix|else|end|exists2?|fix|for|forall|fun|if|in|let|match|mod|return|then|using|where|with|Prop|Set|SProp|Type"
)
_OTHERS = "attnc writes theorems about attnc.head, attnc.quadratic_head, and small networks with tanh of attnc.compile"


def write(x: Any, path: Path, *, native: bool = True, check: bool = False, executed: bool = False) -> CoqFile:
    """See `attnc.export`."""
    written = _files(x, path, native, executed)
    texts = {f"{stem}.v": text for stem, text in written.texts.items()}
    texts[f"{path.stem}_assumptions.v"] = assumptions_text(written.theorems)
    texts |= {name: library(name) for name in written.libraries}
    for name, content in texts.items():
        with replacing(path.with_name(name)) as temporary:
            temporary.write_text(content, encoding="utf-8")
    verdict = check_file(x, path, native=native, executed=executed) if check else None
    names = tuple(name.split(".")[1] for name in written.theorems)
    files, relative = tuple(path.with_name(name) for name in texts), isinstance(written.claim, NormClaim)
    return CoqFile(path, files, names, written.claim.eps, verdict, relative)


def check_file(
    x: Any, path: Path | str, *, native: bool = True, executed: bool = False, timeout: float = TIMEOUT
) -> CoqCheck:
    """Whether a file is the one that `attnc.export` writes for this head, and whether coqc proves it.

    The text is compared with a new one, so a file that was edited fails, whatever it states. What is compiled is the new text,
    with the libraries that ship with attnc."""
    target = Path(path)
    expected = _files(x, target, native, executed)
    for stem, text in expected.texts.items():
        file = target.with_name(f"{stem}.v")
        try:
            found = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise FileError(f"cannot read {file}: {reason}") from problem
        if found != text:
            changed = _changed(found, expected.claim)
            return CoqCheck(FAILED, f"{file.name} is not the file that attnc writes for this head{changed}")
    return run_coqc(
        expected.texts, expected.theorems, native=native, timeout=timeout, libraries=expected.libraries
    )


class _Files(NamedTuple):
    """What is written for a head: texts by stem, theorems as stem.theorem, libraries in the order of compilation."""

    claim: AnyClaim
    texts: dict[str, str]
    theorems: tuple[str, ...]
    libraries: tuple[str, ...]


def _files(x: Any, path: Path, native: bool, executed: bool) -> _Files:
    stem = checked_stem(path)
    claim = claim_of(x, native)
    texts = {stem: text_of(x, claim, stem)}
    theorems = tuple(f"{stem}.{name}" for name in THEOREMS)
    if not executed:
        return _Files(claim, texts, theorems, LIBRARIES)
    if not isinstance(claim, Claim):
        raise UnsupportedError(
            "the theorem about the executed error is about heads of attnc.head",
            [Problem(type(x).__name__, "leave executed=True out")],
        )
    header = _header(x, claim, f"{stem}_executed", "executed", EXECUTED_LIBRARIES)
    bound = x.certificate.bound
    text = executed_text(claim.numbers, claim.function, claim.domain, bound, native=native)
    texts[f"{stem}_executed"] = "(* " + "\n   ".join(header) + " *)\n" + text
    return _Files(claim, texts, (*theorems, f"{stem}_executed.executed"), EXECUTED_LIBRARIES)


def _changed(found: str, claim: AnyClaim) -> str:
    """Whether the numbers of a file are those of the head, by their digests."""
    if isinstance(claim, NetworkClaim):
        return ""
    known = claim.numbers.digests()
    try:
        if isinstance(claim, Claim):
            digests = numbers_in(found, claim.numbers.dtype).digests()
        else:
            columns = dict(zip(claim.numbers.names, pairs_in(found).T, strict=True))
            digests = {
                name: digest(name, column.astype(claim.numbers.dtype)) for name, column in columns.items()
            }
    except (InputError, ValueError):
        return ": its numbers cannot be read"
    other = [name for name in known if digests[name] != known[name]]
    return f": {', '.join(other)} differ" if other else ": the numbers agree, the text does not"


def checked_stem(path: Path) -> str:
    """The name of the file as a Coq module."""
    reserved = {Path(name).stem for name in EXECUTED_LIBRARIES}
    taken = path.stem.lower() in {name.lower() for name in reserved}  # one file, where case does not matter
    word = _KEYWORD.fullmatch(path.stem)
    if not _STEM.fullmatch(path.stem) or taken or word or path.stem.endswith("_assumptions"):
        raise InputError(
            f"{path.name}: the name of a Coq file has letters, digits and _, starts with a letter and is not "
            f"{', '.join(sorted(reserved))}, …_assumptions or a word of Coq's language: for instance head.v"
        )
    return path.stem


def claim_of(x: Any, native: bool) -> AnyClaim:
    """The approximation term of a head's certificate, as a claim about its numbers; raises if there is none."""
    if isinstance(x, Network):
        return network_claim(x, native)
    if not isinstance(x, (Head, QuadraticHead)):
        raise UnsupportedError("this cannot be written as a Coq file", [Problem(type(x).__name__, _OTHERS)])
    why = x.why_not_certified()
    if why is not None:
        raise CertificateError(f"there is no theorem to state: {why}")
    certificate = x.certificate
    if certificate.status is not Status.PROVED or not certificate.approximation > 0:
        raise CertificateError(
            f"there is no theorem to state: the approximation term is {certificate.approximation:g}"
        )
    if isinstance(x, QuadraticHead):
        ball = certificate.holds_for
        assert isinstance(ball, Ball)
        return NormClaim(x.numbers(), ball.radius, certificate.approximation, native)
    name = certificate.facts["function"]
    try:
        f = get(name)
    except InputError:
        raise UnsupportedError(
            "this function has no expression over Coq's reals in attnc",
            [Problem(name, "it is not built in; attnc.functions.names() lists the functions that are")],
        ) from None
    return Claim(x.numbers(), f, certificate.interval, certificate.approximation, native)


def text_of(x: Subject, claim: AnyClaim, stem: str) -> str:
    """The file with the theorem about exact arithmetic."""
    header = _header(x, claim, stem, "approximation", LIBRARIES)
    if isinstance(claim, NetworkClaim):
        return network_text(claim, header)
    return file_text(claim, header) if isinstance(claim, Claim) else norm_text(claim, header)


def _header(x: Subject, claim: AnyClaim, stem: str, theorem: str, libraries: tuple[str, ...]) -> list[str]:
    """Which module the file is about, and how to check it."""
    c, numbers = x.certificate, x.numbers()
    if isinstance(claim, Claim):
        heads, p = claim.numbers.heads, claim.numbers.anchors_per_head
        title = f"A softmax head for {claim.function.label} on {interval_text(claim.domain)}"
        size = f"{heads} head{'s' * (heads != 1)} of {p} anchors"
    elif isinstance(claim, NetworkClaim):
        title = f"A network of {len(claim.maps)} affine maps with tanh between them, as softmax heads"
        size = f"{len(claim.heads)} heads"
    else:
        form = f"|z|^2 / {claim.numbers.dim} + {claim.numbers.offset!r}"
        title = f"Heads of two keys for {c.facts['function']} of {form}"
        size = f"{len(claim.numbers)} heads of two keys"
    about = (
        "exact arithmetic" if theorem == "approximation" else f"what {numbers.dtype} arithmetic may return"
    )
    return [
        f"{title}, written by attnc.",
        "",
        f"  {size}, stored in {numbers.dtype}; SHA-256 of the stored tensors:",
        *(f"    {name + ':':<11}{value}" for name, value in numbers.digests().items()),
        f"  its certificate: approximation {c.approximation!r}, rounding {c.rounding!r}, bound {c.bound!r}",
        "",
        f"The theorem `{theorem}` is about the stored numbers and {about}. To check it:",
        "",
        *(f'  coqc -R . "" {name}' for name in (*libraries, f"{stem}.v")),
    ]
