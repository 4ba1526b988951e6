"""Files of heads, networks and learners: tensors in safetensors, everything else in one sealed JSON record. Reading executes
nothing.

A network's file also has its program. Numbers that the network shares with the program are stored once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnc.errors import AttncError, CertificateError, FileError
from attnc.functions import Function, get
from attnc.functions.function import label_of
from attnc.program import KINDS, Step
from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import DAMAGE, seal, unsealed, with_fields
from attnc.records.files import read_file, write_file
from attnc.records.layers import Layer, NetworkNumbers
from attnc.records.numbers import TENSORS, HeadNumbers, digest
from attnc.records.presentation import Presentation
from attnc.records.structure import mismatch

FORMAT = 3
_FIELDS = {"kind", "format", "dtype", "certificate"}
_NETWORK_FIELDS = {"program", "layers", "shared", "presentation"}


@dataclass(frozen=True)
class Record:
    """The contents of a file: the numbers of a head, of a network with its program, or of the heads of a learner by name."""

    numbers: HeadNumbers | NetworkNumbers | Mapping[str, HeadNumbers]
    certificate: Certificate
    program: Program | None = None
    presentation: Presentation = field(default_factory=Presentation)

    @property
    def kind(self) -> str:
        return self.certificate.subject

    @property
    def head(self) -> HeadNumbers:
        """The numbers of a head."""
        if not isinstance(self.numbers, HeadNumbers):
            raise FileError(f"expected a head, got a {self.kind}")
        return self.numbers

    @property
    def network(self) -> tuple[Program, NetworkNumbers]:
        """The program and the numbers of a network."""
        if not isinstance(self.numbers, NetworkNumbers) or self.program is None:
            raise FileError(f"expected a network, got a {self.kind}")
        return self.program, self.numbers

    @property
    def heads(self) -> Mapping[str, HeadNumbers]:
        """The numbers of a learner's heads."""
        if not isinstance(self.numbers, Mapping):
            raise FileError(f"expected a learner, got a {self.kind}")
        return self.numbers


def write(path: str | os.PathLike[str], record: Record) -> None:
    """Write a file; an existing file is replaced only when the new one is complete."""
    about, tensors = contents(record)
    write_file(path, tensors, about)


def contents(record: Record) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """The sealed metadata and the tensors of a file; `record_of` reads them."""
    if record.certificate.status is Status.UNKNOWN:
        raise CertificateError(f"this {record.kind} has no certificate: its error is unknown")
    about: dict[str, Any] = {
        "kind": record.kind,
        "format": FORMAT,
        "dtype": record.certificate.dtype,
        "certificate": record.certificate.to_json(),
    }
    tensors: dict[str, Numbers]
    if record.kind == "head":
        tensors = record.head.tensors()
    elif record.kind == "learner":
        heads = record.heads.items()
        tensors = {f"{name}.{part}": a for name, head in heads for part, a in head.tensors().items()}
    else:
        program, numbers = record.network
        tensors = dict(numbers.tensors())
        about |= {
            "program": {"shape": list(program.shape), "steps": [_step_json(s) for s in program.steps]},
            "layers": [layer.structure() for layer in numbers.layers],
            "shared": _share(program, tensors),
            "presentation": record.presentation.to_json(),
        }
    about["seal"] = seal(about)
    return about, tensors


def read(path: str | os.PathLike[str], function: Function | None = None) -> Record:
    """Read a file; `function` replaces a user-defined function that is not registered."""
    about, tensors = read_file(path)
    return record_of(path, about, tensors, function)


def record_of(
    path: object, about: Mapping[str, Any], tensors: dict[str, Numbers], function: Function | None = None
) -> Record:
    """The record that the metadata and the tensors of a file describe."""
    try:
        return _record(about, tensors, function)
    except CertificateError as problem:
        raise CertificateError(f"{path}: {problem}") from problem
    except AttncError as problem:
        raise FileError(f"{path}: {problem}") from problem
    except DAMAGE as problem:
        raise FileError(f"{path} is not a valid file: {type(problem).__name__}: {problem}") from problem


def _record(about: Mapping[str, Any], tensors: dict[str, Numbers], function: Function | None) -> Record:
    kind, version = about.get("kind"), about.get("format")
    if kind not in ("head", "network", "learner") or type(version) is not int or version != FORMAT:
        accepted = f"attnc reads heads, networks and learners of format {FORMAT}"
        raise FileError(f"it contains a {kind!r} of format {version!r}: {accepted}")
    body = unsealed(about, f"the {kind}")
    with_fields(kind, body, _FIELDS | (_NETWORK_FIELDS if kind == "network" else set()))
    certificate = Certificate.from_json(body["certificate"])
    if body["dtype"] != certificate.dtype:
        raise FileError(f"its dtype is {body['dtype']!r}, its certificate is for {certificate.dtype}")
    if certificate.subject != kind or certificate.status not in (Status.PROVED, Status.MEASURED):
        raise CertificateError(f"a {kind} has a certificate of a {certificate.subject}, {certificate.status}")
    if kind == "head":
        return Record(_head(tensors, body["dtype"]), certificate)
    if kind == "learner":
        return Record(_learner(tensors, certificate), certificate)
    return _network(body, tensors, certificate, function)


def _learner(tensors: Mapping[str, Numbers], certificate: Certificate) -> dict[str, HeadNumbers]:
    names = certificate.facts["heads"]
    expected = {f"{name}.{part}" for name in names for part in TENSORS}
    if len(names) != len(certificate.children) or set(tensors) != expected:
        raise FileError(f"it has the tensors {sorted(tensors)}: a learner with the heads {names} has others")
    return {name: _head(under(f"{name}.", tensors), certificate.dtype) for name in names}


def _head(tensors: Mapping[str, Numbers], dtype: str) -> HeadNumbers:
    if set(tensors) != set(TENSORS):
        raise FileError(f"it has the tensors {sorted(tensors)}: a head has {sorted(TENSORS)}")
    dtypes = {array.dtype.name for array in tensors.values()}
    if dtypes != {dtype}:
        raise FileError(f"its tensors have the dtypes {sorted(dtypes)}, expected {dtype!r}")
    return HeadNumbers.of(tensors, dtype)


def _network(
    body: Mapping[str, Any], tensors: dict[str, Numbers], certificate: Certificate, function: Function | None
) -> Record:
    with_fields("program", body["program"], {"shape", "steps"})
    arrays = tensors | {name: tensors[twin] for name, twin in body["shared"].items()}
    shape, steps = body["program"]["shape"], body["program"]["steps"]
    read = [_step(s, under(f"program.{i}.", arrays), function) for i, s in enumerate(steps)]
    program = Program(tuple(shape), tuple(read))
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
    del settings["kind"]
    if record["kind"] not in KINDS:
        raise FileError(f"unknown step {record['kind']!r}: expected one of {', '.join(KINDS)}")
    if "function" in settings:
        own = function is not None and label_of(function) == settings["function"]
        settings["function"] = function if own else get(settings["function"])
    return KINDS[record["kind"]](**(settings | dict(tensors)))
