"""Files of literal networks: matrices, names of tokens and coordinates, and the record of the source with its certificate."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnc.errors import FileError
from attnc.functions import Function
from attnc.program.step import Numbers
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import check_type, seal, unsealed, with_fields
from attnc.records.files import write_file
from attnc.records.numbers import digest
from attnc.records.record import Record, contents, record_of

FORMAT = 2
_FIELDS = {"kind", "format", "dtype", "structure", "encoding", "source"}


@dataclass(frozen=True)
class LiteralRecord:
    """A literal network: `structure` holds JSON values, `tensors` the matrices. `encoding` bounds the distance of its outputs
    to those of the source in exact arithmetic."""

    structure: Mapping[str, Any]
    tensors: Mapping[str, Numbers]
    dtype: str
    source: Record | None = None
    encoding: float = 0.0

    @property
    def kind(self) -> str:
        return "literal"

    @property
    def certificate(self) -> Certificate:
        """The certificate of the source, for the matrices of the literal network, in exact arithmetic.

        `approximation` is that of the source plus `encoding`: a bound on the error in exact arithmetic, in which weights that
        exp rounds to 0 count as 0. `attnc.verify` proves it. The rounding errors of the literal network are not bounded:
        `rounding` and `bound` are infinite, and the status is UNKNOWN."""
        digests = {name: digest(name, array) for name, array in self.tensors.items()}
        digests["structure"] = seal(self.structure)
        source = None if self.source is None else self.source.certificate
        approximation = math.inf
        if source is not None and source.status is Status.PROVED:
            approximation = source.approximation
            if self.encoding:
                approximation = math.nextafter(approximation + self.encoding, math.inf)
        return Certificate(
            subject="literal",
            name=str(self.structure["form"]),
            status=Status.UNKNOWN,
            approximation=approximation,
            rounding=math.inf,
            bound=math.inf,
            holds_for=None if source is None else source.holds_for,
            dtype=self.dtype,
            digests=digests,
            children=() if source is None else (source,),
        )


def write_literal(path: str | os.PathLike[str], record: LiteralRecord) -> None:
    """Write a file; an existing file is replaced only when the new one is complete."""
    about: dict[str, Any] = {
        "kind": "literal",
        "format": FORMAT,
        "dtype": record.dtype,
        "encoding": record.encoding,
    }
    about |= {"structure": dict(record.structure), "source": None}
    tensors = dict(record.tensors)
    if record.source is not None and record.source.certificate.status is not Status.UNKNOWN:
        about["source"], arrays = contents(record.source)
        tensors |= {f"source.{name}": array for name, array in arrays.items()}
    about["seal"] = seal(about)
    write_file(path, tensors, about)


def literal_record_of(
    path: object, about: Mapping[str, Any], tensors: Mapping[str, Numbers], function: Function | None = None
) -> LiteralRecord:
    """The record that the metadata and the tensors of a file describe."""
    body = unsealed(about, f"{path}: the literal network")
    with_fields(f"{path}: literal network", body, _FIELDS)
    if type(body["format"]) is not int or body["format"] != FORMAT:
        raise FileError(
            f"{path} is a literal network of format {body['format']!r}: this version reads {FORMAT}"
        )
    check_type("encoding", body["encoding"], float)
    check_type("structure", body["structure"], dict)
    check_type("form", body["structure"].get("form"), str)
    own = {name: array for name, array in tensors.items() if not name.startswith("source.")}
    for name, array in own.items():
        whole = name.endswith((".rows", ".columns"))
        if array.dtype.name != ("int64" if whole else body["dtype"]) or not np.isfinite(array).all():
            raise FileError(f"{path}: tensor {name!r} of {array.dtype}: expected finite {body['dtype']}")
    source = None
    if body["source"] is not None:
        arrays = {k.removeprefix("source."): a for k, a in tensors.items() if k.startswith("source.")}
        source = record_of(path, body["source"], arrays, function)
    return LiteralRecord(body["structure"], own, body["dtype"], source, body["encoding"])
