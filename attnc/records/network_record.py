"""A network on disk: its tensors, the program's, and a JSON record of both with the certificate.

Numbers that the network took over unchanged from the program are stored once."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attnc.errors import AttncError, CertificateError, FileError
from attnc.functions import Function, get
from attnc.functions.function import label_of
from attnc.program import Affine, BatchNorm, BlackBox, Combine, Lookup, Pointwise, Reshape, Step
from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.records.files import expect, read_file, write_file
from attnc.records.head_certificate import checked_record
from attnc.records.measured import NetworkMeasured
from attnc.records.network_certificate import NetworkCertificate
from attnc.records.network_numbers import (
    Attention,
    Group,
    Linear,
    NetworkNumbers,
    Reorder,
    Scale,
    Selection,
    Stage,
    Sum,
)
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.structure import mismatch
from attnc.records.theorem import Theorem

KIND, FORMAT = "network", 2
FORMS = {
    "layers": ("",),
    "one-head": ("",),
    "many-heads": ("",),
    "two-layer": ("heads", "tokens"),
    "attention-softmax": ("",),
}


@dataclass(frozen=True)
class Shown:
    """What is said of a network beside its numbers: as which theorem's network it is written, and how it was made."""

    form: str = "layers"
    layout: str = ""
    theorem: Theorem | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        theorem = None if self.theorem is None else self.theorem.to_json()
        return {"form": self.form, "layout": self.layout, "theorem": theorem, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, record: object) -> Shown:
        body = checked_record(cls, record)
        theorem = None if body["theorem"] is None else Theorem.from_json(body["theorem"])
        made = cls(body["form"], body["layout"], theorem, tuple(body["notes"]))
        if made.layout not in FORMS.get(made.form, ()) or not all(isinstance(n, str) for n in made.notes):
            raise FileError(f"the form {made.form!r} with the layout {made.layout!r} is unknown")
        return made


@dataclass(frozen=True)
class NetworkRecord:
    """What a file holds."""

    program: Program
    numbers: NetworkNumbers
    certificate: NetworkCertificate | None
    measured: NetworkMeasured | None = None
    shown: Shown = Shown()

    @property
    def claims(self) -> NetworkCertificate | None:
        """What is proved of the layers: against the source, or against a network that was fitted to it."""
        return self.certificate or (self.measured.fitted if self.measured else None)


_FIELDS = {
    "kind", "format", "dtype", "program", "stages", "shared", "certificate", "measured", "shown", "seal",
}  # fmt: skip


def seal(about: Mapping[str, Any]) -> str:
    """The SHA-256 of what is said of a network and not sealed in its certificate."""
    return hashlib.sha256(
        json.dumps([about["measured"], about["shown"]], sort_keys=True).encode()
    ).hexdigest()


def write_network(path: str | os.PathLike[str], record: NetworkRecord) -> None:
    """Write a network; the file replaces what was there only when it is whole."""
    tensors: dict[str, Numbers] = dict(record.numbers.tensors())
    same = {_fingerprint(array): name for name, array in tensors.items()}
    shared: dict[str, str] = {}
    for name, array in _program_tensors(record.program).items():
        twin = same.get(_fingerprint(array))
        if twin is None:
            tensors[name] = array
        else:
            shared[name] = twin
    about = {
        "kind": KIND,
        "format": FORMAT,
        "dtype": record.numbers.dtype,
        "program": {
            "shape": list(record.program.shape),
            "steps": [_step_json(s) for s in record.program.steps],
        },
        "stages": [_stage_json(stage) for stage in record.numbers.stages],
        "shared": shared,
        "certificate": None if record.certificate is None else record.certificate.to_json(),
        "measured": None if record.measured is None else record.measured.to_json(),
        "shown": record.shown.to_json(),
    }
    about["seal"] = seal(about)
    write_file(path, {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}, about)


def read_network(
    path: str | os.PathLike[str],
    about: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    function: Function | None = None,
) -> NetworkRecord:
    """Read a network; `function` stands in for a user's function that is not registered."""
    if about is None or tensors is None:
        about, tensors = read_file(path)
    expect(path, about, KIND, FORMAT, _FIELDS)
    try:
        if set(about["program"]) != {"shape", "steps"}:
            raise FileError(
                f"the program has the fields {sorted(about['program'])}: shape and steps are expected"
            )
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        for name, twin in about["shared"].items():
            arrays[name] = arrays[twin]
        steps = [_step(i, s, arrays, function) for i, s in enumerate(about["program"]["steps"])]
        program = Program(tuple(about["program"]["shape"]), tuple(steps))
        stages = tuple(_stage(i, s, arrays) for i, s in enumerate(about["stages"]))
        numbers = NetworkNumbers(stages, about["dtype"])
        if about["seal"] != seal(about):
            raise CertificateError(
                "what it says of its error, form or making was edited: its seal does not fit"
            )
        certificate = _optional(NetworkCertificate, about["certificate"])
        measured = _optional(NetworkMeasured, about["measured"])
        record = NetworkRecord(program, numbers, certificate, measured, Shown.from_json(about["shown"]))
        _check_parts(record)
    except CertificateError as problem:
        raise CertificateError(f"{path}: {problem}") from problem
    except AttncError as problem:
        raise FileError(f"{path}: {problem}") from problem
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as problem:
        raise FileError(
            f"{path} does not describe a network: {type(problem).__name__}: {problem}"
        ) from problem
    return record


def _optional(kind: type[Any], record: object) -> Any:
    return None if record is None else kind.from_json(record)


def _check_parts(record: NetworkRecord) -> None:
    """Program, numbers, and what is said of them must be about one network."""
    known = record.certificate or record.measured
    if known is None:
        raise FileError("it has neither a certificate nor a measurement")
    if record.numbers.digests().get("structure") != known.digests.get("structure"):
        raise FileError("its stages are other than were certified")
    wrong = mismatch(record.program, record.numbers, record.claims)
    if wrong is not None:
        raise FileError(f"its parts do not fit together: {wrong}")


def _program_tensors(program: Program) -> dict[str, Numbers]:
    return {
        f"program.{i}.{name}": a for i, step in enumerate(program.steps) for name, a in step.tensors().items()
    }


def _fingerprint(array: Numbers) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes()


def _step_json(step: Step) -> dict[str, Any]:
    fields = {k: list(v) if isinstance(v, tuple) else v for k, v in step.settings().items()}
    if fields.get("beyond") == np.inf:
        del fields["beyond"]
    return {"kind": step.kind, "name": step.name, **fields}


def _step(i: int, record: dict[str, Any], arrays: Mapping[str, Numbers], function: Function | None) -> Step:
    body = {key: value for key, value in record.items() if key != "kind"}
    prefix = f"program.{i}."
    body |= {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
    match record["kind"]:
        case "affine":
            return Affine(**body)
        case "batch_norm":
            return BatchNorm(**body)
        case "pointwise":
            named = function is not None and label_of(function) == body["function"]
            return Pointwise(**{**body, "function": function if named else get(body["function"])})
        case "lookup":
            return Lookup(**body)
        case "black_box":
            return BlackBox(**body)
        case "combine":
            return Combine(
                **{**body, "inputs": tuple(body["inputs"]), "coefficients": tuple(body["coefficients"])}
            )
        case "reshape":
            return Reshape(**{**body, "to": tuple(body["to"])})
    raise FileError(f"step {i} is of the unknown kind {record['kind']!r}")


def _stage_json(stage: Stage) -> dict[str, Any]:
    match stage:
        case Linear() | Scale() | Selection():
            return {"kind": type(stage).__name__.lower(), "input": stage.input, "value": stage.value}
        case Attention():
            return {
                "kind": "attention",
                "input": stage.input,
                "value": stage.value,
                "groups": len(stage.groups),
            }
        case Sum():
            return {
                "kind": "sum",
                "inputs": list(stage.inputs),
                "value": stage.value,
                "coefficients": list(stage.coefficients),
            }
        case Reorder():
            return {"kind": "reorder", "input": stage.input, "value": stage.value, "shape": list(stage.shape)}


def _stage(i: int, record: dict[str, Any], arrays: Mapping[str, Numbers]) -> Stage:
    prefix = f"stages.{i}."
    own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
    fields = {
        "attention": {"input", "groups"},
        "sum": {"inputs", "coefficients"},
        "reorder": {"input", "shape"},
    }
    wanted = {"kind", "value"} | fields.get(record["kind"], {"input"})
    if set(record) != wanted:
        raise FileError(f"stage {i} has the fields {sorted(record)}: {sorted(wanted)} are expected")
    value = _whole(record["value"])
    match record["kind"]:
        case "linear":
            return Linear(_whole(record["input"]), value, own["weight"], own.get("bias"))
        case "scale":
            return Scale(_whole(record["input"]), value, own["scale"], own["shift"])
        case "selection":
            tensors = (own[name] for name in ("centre", "key", "offset", "values"))
            return Selection(_whole(record["input"]), value, *tensors)
        case "attention":
            return Attention(
                _whole(record["input"]), value, tuple(_group(g, own) for g in range(record["groups"]))
            )
        case "sum":
            coefficients = tuple(record["coefficients"])
            if not all(type(c) is float and math.isfinite(c) for c in coefficients):
                raise FileError(
                    f"stage {i} has the coefficients {coefficients!r}: finite numbers are expected"
                )
            return Sum(tuple(map(_whole, record["inputs"])), value, coefficients)
        case "reorder":
            return Reorder(_whole(record["input"]), value, tuple(map(_whole, record["shape"])))
    raise FileError(f"stage {i} is of the unknown kind {record['kind']!r}")


def _whole(number: object) -> int:
    if type(number) is not int:
        raise FileError(f"a whole number is expected: got {number!r}")
    return number


def _group(g: int, own: Mapping[str, Numbers]) -> Group:
    parts = {name: own[f"{g}.{name}"] for name in TENSORS}
    dtype = parts["key"].dtype.name
    head = HeadNumbers(**{name: a.astype(np.float64) for name, a in parts.items()}, dtype=dtype)
    return Group(own.get(f"neurons_{g}"), head)
