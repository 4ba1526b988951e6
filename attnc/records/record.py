"""Files of heads, networks, learners and literal networks: tensors in safetensors, everything else in one sealed JSON record.
Reading executes nothing.

A network's file also has its program. Numbers that the network shares with the program are stored once. The file of a literal
network also has the record of its source."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnc.errors import AttncError, CertificateError, FileError
from attnc.functions import Function, get
from attnc.functions.function import label_of
from attnc.program import KINDS, Step
from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.program.tokens import TokenProgram
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import DAMAGE, check_types, seal, unsealed, with_fields
from attnc.records.files import read_file, write_file
from attnc.records.layers import Layer, NetworkNumbers
from attnc.records.numbers import POWERS, QUADRATIC, TENSORS, HeadNumbers, QuadraticNumbers, digest
from attnc.records.presentation import Presentation
from attnc.records.structure import mismatch
from attnc.records.tokens import TokenNumbers, program_from_json, program_to_json

FORMATS = {"head": 3, "quadratic": 3, "network": 3, "learner": 3, "literal": 2, "tokens": 1}
_FIELDS = {
    "head": {"certificate"},
    "quadratic": {"certificate"},
    "network": {"certificate", "program", "layers", "shared", "presentation"},
    "learner": {"certificate"},
    "literal": {"structure", "encoding", "source"},
    "tokens": {"certificate", "program", "structure"},
}


@dataclass(frozen=True)
class Record:
    """The contents of a file: the numbers of a head, of a network with its program, or of the heads of a learner by name."""

    numbers: HeadNumbers | QuadraticNumbers | NetworkNumbers | TokenNumbers | Mapping[str, HeadNumbers]
    certificate: Certificate
    program: Program | TokenProgram | None = None
    presentation: Presentation = field(default_factory=Presentation)

    @property
    def kind(self) -> str:
        return self.certificate.subject

    @property
    def dtype(self) -> str:
        return self.certificate.dtype

    @property
    def applies(self) -> bool:
        """Whether the certificate is about these numbers: those of a module may have changed since it was issued."""
        known, numbers = self.certificate, self.numbers
        if isinstance(numbers, Mapping) or numbers.dtype != known.dtype:
            return False
        program = self.program.digest() if isinstance(self.program, Program) else None
        return numbers.digests() == known.digests and program == known.facts.get("program", program)

    @property
    def head(self) -> HeadNumbers:
        """The numbers of a head."""
        if not isinstance(self.numbers, HeadNumbers):
            raise FileError(f"expected a head, got a {self.kind}")
        return self.numbers

    @property
    def quadratic(self) -> QuadraticNumbers:
        """The numbers of heads for a function of a quadratic form."""
        if not isinstance(self.numbers, QuadraticNumbers):
            raise FileError(f"expected a quadratic head, got a {self.kind}")
        return self.numbers

    @property
    def network(self) -> tuple[Program, NetworkNumbers]:
        """The program and the numbers of a network."""
        if not isinstance(self.numbers, NetworkNumbers) or not isinstance(self.program, Program):
            raise FileError(f"expected a network, got a {self.kind}")
        return self.program, self.numbers

    @property
    def tokens(self) -> tuple[TokenProgram, TokenNumbers]:
        """The program and the numbers of a token network."""
        if not isinstance(self.numbers, TokenNumbers) or not isinstance(self.program, TokenProgram):
            raise FileError(f"expected a token network, got a {self.kind}")
        return self.program, self.numbers

    @property
    def heads(self) -> Mapping[str, HeadNumbers]:
        """The numbers of a learner's heads."""
        if not isinstance(self.numbers, Mapping):
            raise FileError(f"expected a learner, got a {self.kind}")
        return self.numbers


@dataclass(frozen=True)
class LiteralRecord:
    """A literal network: `structure` holds JSON values, `tensors` the matrices. `encoding` bounds the distance of its outputs
    to those of the source in exact arithmetic."""

    structure: Mapping[str, Any]
    tensors: Mapping[str, Numbers]
    dtype: str
    source: Record | None = None
    encoding: float = 0.0
    kind = "literal"

    @property
    def certificate(self) -> Certificate:
        """The certificate of the source, for the matrices of the literal network, in exact arithmetic.

        `approximation` is that of the source plus `encoding`: a bound on the error in exact arithmetic, in which weights that
        exp rounds to 0 count as 0. `attnc.verify` proves it. The rounding errors of the literal network are not bounded:
        `rounding` and `bound` are infinite, and the status is UNKNOWN. A certificate of other numbers than the source has says
        nothing."""
        digests = {name: digest(name, array) for name, array in self.tensors.items()}
        source = None if self.source is None else self.source.certificate
        known = source if self.source is not None and self.source.applies else None
        approximation = math.inf
        if known is not None and known.proved:
            approximation = known.approximation
            if self.encoding:
                approximation = math.nextafter(approximation + self.encoding, math.inf)
        return replace(
            Certificate.unknown("literal", self.dtype),
            name=str(self.structure["form"]),
            approximation=approximation,
            holds_for=None if source is None else source.holds_for,
            digests={**digests, "structure": seal(self.structure)},
            children=() if known is None else (known,),
        )


def write(path: str | os.PathLike[str], record: Record | LiteralRecord) -> None:
    """Write a file; an existing file is replaced only when the new one is complete."""
    about, tensors = _contents(record)
    write_file(path, tensors, about)


def _contents(record: Record | LiteralRecord) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """The sealed metadata and the tensors of a file; `_record` reads them."""
    about: dict[str, Any] = {"kind": record.kind, "format": FORMATS[record.kind], "dtype": record.dtype}
    tensors: dict[str, Numbers]
    if isinstance(record, LiteralRecord):
        tensors, source = dict(record.tensors), None
        if record.source is not None and record.source.certificate.status is not Status.UNKNOWN:
            source, arrays = _contents(record.source)
            tensors |= {f"source.{name}": array for name, array in arrays.items()}
        about |= {"structure": dict(record.structure), "encoding": record.encoding, "source": source}
        return {**about, "seal": seal(about)}, tensors
    if record.certificate.status is Status.UNKNOWN:
        raise CertificateError(f"this {record.kind} has no certificate: its error is unknown")
    about["certificate"] = record.certificate.to_json()
    if record.kind == "head":
        tensors = record.head.tensors()
    elif record.kind == "quadratic":
        tensors = record.quadratic.tensors()
    elif record.kind == "learner":
        heads = record.heads.items()
        tensors = {f"{name}.{part}": a for name, head in heads for part, a in head.tensors().items()}
    elif record.kind == "tokens":
        meaning, stored = record.tokens
        tensors = stored.tensors()
        about |= {"program": program_to_json(meaning), "structure": stored.structure()}
    else:
        program, numbers = record.network
        tensors = dict(numbers.tensors())
        about |= {
            "program": {"shape": list(program.shape), "steps": [_step_json(s) for s in program.steps]},
            "layers": [layer.structure() for layer in numbers.layers],
            "shared": _share(program, tensors),
            "presentation": record.presentation.to_json(),
        }
    return {**about, "seal": seal(about)}, tensors


def read(path: str | os.PathLike[str], function: Function | None = None) -> Record | LiteralRecord:
    """Read a file; `function` replaces a user-defined function that is not registered."""
    about, tensors = read_file(path)
    try:
        return _record(about, tensors, function)
    except CertificateError as problem:
        raise CertificateError(f"{path}: {problem}") from problem
    except AttncError as problem:
        raise FileError(f"{path}: {problem}") from problem
    except DAMAGE as problem:
        raise FileError(f"{path} is not a valid file: {type(problem).__name__}: {problem}") from problem


def _record(
    about: Mapping[str, Any], tensors: dict[str, Numbers], function: Function | None
) -> Record | LiteralRecord:
    kind, version = about.get("kind"), about.get("format")
    if kind not in FORMATS or type(version) is not int or version != FORMATS[kind]:
        accepted = ", ".join(f"{name} {number}" for name, number in FORMATS.items())
        raise FileError(f"it contains a {kind!r} of format {version!r}: attnc reads the formats {accepted}")
    body = unsealed(about, f"the {kind}")
    with_fields(kind, body, {"kind", "format", "dtype", *_FIELDS[kind]})
    if kind == "literal":
        return _literal(body, tensors, function)
    certificate = Certificate.from_json(body["certificate"])
    if body["dtype"] != certificate.dtype:
        raise FileError(f"its dtype is {body['dtype']!r}, its certificate is for {certificate.dtype}")
    if certificate.subject != kind or certificate.status not in (Status.PROVED, Status.MEASURED):
        raise CertificateError(f"a {kind} has a certificate of a {certificate.subject}, {certificate.status}")
    if kind == "head":
        return Record(_head(tensors, body["dtype"]), certificate)
    if kind == "quadratic":
        return Record(_quadratic(tensors, certificate), certificate)
    if kind == "learner":
        return Record(_learner(tensors, certificate), certificate)
    if kind == "tokens":
        stored = TokenNumbers.of(body["structure"], tensors, body["dtype"])
        return Record(stored, certificate, program_from_json(body["program"]))
    return _network(body, tensors, certificate, function)


def _literal(
    body: Mapping[str, Any], tensors: dict[str, Numbers], function: Function | None
) -> LiteralRecord:
    structure, dtype = body["structure"], body["dtype"]
    check_types(body, {"encoding": float, "structure": dict})
    check_types(structure, {"form": str})
    arrays = under("source.", tensors)
    own = {name: array for name, array in tensors.items() if not name.startswith("source.")}
    for name, array in own.items():
        whole = name.endswith((".rows", ".columns"))
        if array.dtype.name != ("int64" if whole else dtype) or not np.isfinite(array).all():
            raise FileError(f"tensor {name!r} of {array.dtype}: expected finite {dtype}")
    source = None if body["source"] is None else _record(body["source"], arrays, function)
    if isinstance(source, LiteralRecord):
        raise FileError("the source of a literal network is a head, a network or a learner")
    return LiteralRecord(structure, own, dtype, source, body["encoding"])


def _learner(tensors: Mapping[str, Numbers], certificate: Certificate) -> dict[str, HeadNumbers]:
    names = certificate.facts["heads"]
    expected = {f"{name}.{part}" for name in names for part in TENSORS}
    if len(names) != len(certificate.children) or set(tensors) != expected:
        raise FileError(f"it has the tensors {sorted(tensors)}: a learner with the heads {names} has others")
    return {name: _head(under(f"{name}.", tensors), certificate.dtype) for name in names}


def _head(tensors: Mapping[str, Numbers], dtype: str) -> HeadNumbers:
    _check_tensors(tensors, TENSORS, dtype)
    return HeadNumbers.of(tensors, dtype)


def _quadratic(tensors: Mapping[str, Numbers], certificate: Certificate) -> QuadraticNumbers:
    _check_tensors(tensors, QUADRATIC, certificate.dtype)
    facts, (slope, intercept, value) = (
        certificate.facts,
        (tensors[name].astype(np.float64) for name in QUADRATIC),
    )
    if facts["function"] not in POWERS:
        raise FileError(f"it is for the function {facts['function']!r}: expected one of {', '.join(POWERS)}")
    power = POWERS[facts["function"]]
    sizes = facts["features"], facts["offset"], power
    return QuadraticNumbers(slope, intercept, value, *sizes, certificate.dtype)


def _check_tensors(tensors: Mapping[str, Numbers], names: tuple[str, ...], dtype: str) -> None:
    found = {(name, array.dtype.name) for name, array in tensors.items()}
    if found != {(name, dtype) for name in names}:
        raise FileError(f"it has the tensors {sorted(found)}: a head has {', '.join(names)} of {dtype!r}")


def _network(
    body: Mapping[str, Any], tensors: dict[str, Numbers], certificate: Certificate, function: Function | None
) -> Record:
    with_fields("program", body["program"], {"shape", "steps"})
    arrays = tensors | {name: tensors[twin] for name, twin in body["shared"].items()}
    shape, steps = body["program"]["shape"], body["program"]["steps"]
    found = [_step(s, under(f"program.{i}.", arrays), function) for i, s in enumerate(steps)]
    program = Program(tuple(shape), tuple(found))
    layers = [Layer.from_structure(s, under(f"stages.{i}.", arrays)) for i, s in enumerate(body["layers"])]
    numbers = NetworkNumbers(tuple(layers), body["dtype"])
    if numbers.digests()["structure"] != certificate.digests.get("structure"):
        raise FileError("its layers are not those of the certificate")
    wrong = mismatch(program, numbers, certificate.claims)
    if wrong is not None:
        raise FileError(f"its parts do not fit together: {wrong}")
    return Record(numbers, certificate, program, Presentation.from_json(body["presentation"]))


def under(prefix: str, arrays: Mapping[str, Numbers]) -> dict[str, Numbers]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def _share(program: Program, tensors: dict[str, Numbers]) -> dict[str, str]:
    """Add the program's tensors; of those that are there already, return the names of both."""
    same = {digest("", array): name for name, array in tensors.items()}
    shared = {}
    for i, step in enumerate(program.steps):
        for name, array in step.tensors().items():
            twin = same.get(digest("", array))
            if twin is None:
                tensors[f"program.{i}.{name}"] = array
            else:
                shared[f"program.{i}.{name}"] = twin
    return shared


def _step_json(step: Step) -> dict[str, Any]:
    """The kind, name and settings of a step; infinite settings, which JSON cannot hold, are defaults."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in step.settings().items()}
    return {"kind": step.kind, "name": step.name} | {k: v for k, v in settings.items() if v != math.inf}


def _step(record: Mapping[str, Any], tensors: Mapping[str, Numbers], function: Function | None) -> Step:
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
    kind = settings.pop("kind")
    if kind not in KINDS:
        raise FileError(f"unknown step {kind!r}: expected one of {', '.join(KINDS)}")
    if "function" in settings:
        own = function is not None and label_of(function) == settings["function"]
        settings["function"] = function if own else get(settings["function"])
    return KINDS[kind](**(settings | dict(tensors)))
