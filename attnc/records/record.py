"""A head on disk: four tensors in a safetensors file, and a JSON record in its metadata. Reading executes
nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnc.errors import CertificateError, FileError, InputError
from attnc.records.files import expect, read_file, write_file
from attnc.records.head_certificate import Certificate, Measured
from attnc.records.numbers import TENSORS, HeadNumbers

KIND, FORMAT = "head", 1


@dataclass(frozen=True)
class HeadRecord:
    """What a file holds: the numbers, and the certificate or the measurement."""

    numbers: HeadNumbers
    certificate: Certificate | None
    measured: Measured | None


def write(path: str | os.PathLike[str], record: HeadRecord) -> None:
    """Write a head; the file replaces what was there only when it is whole."""
    about = {
        "kind": KIND,
        "format": FORMAT,
        "certificate": record.certificate.to_json() if record.certificate else None,
        "measured": record.measured.to_json() if record.measured else None,
    }
    dtype = getattr(torch, record.numbers.dtype)
    tensors = {
        name: torch.from_numpy(getattr(record.numbers, name)).to(dtype).contiguous() for name in TENSORS
    }
    write_file(path, tensors, about)


def read(path: str | os.PathLike[str]) -> HeadRecord:
    """Read a head; whatever is wrong with the file is said."""
    return head_record(path, *read_file(path))


def head_record(source: object, about: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> HeadRecord:
    """The head that a file's record and tensors describe."""
    expect(source, about, KIND, FORMAT, {"kind", "format", "certificate", "measured"})
    numbers = _numbers(source, tensors)
    try:
        certificate = (
            Certificate.from_json(about["certificate"]) if about["certificate"] is not None else None
        )
        measured = Measured.from_json(about["measured"]) if about["measured"] is not None else None
    except CertificateError as problem:
        raise CertificateError(f"{source}: {problem}") from problem
    if (certificate is None) == (measured is None):
        raise CertificateError(f"{source}: a head has a certificate or a measurement, one of them")
    return HeadRecord(numbers, certificate, measured)


def _numbers(source: object, tensors: Mapping[str, torch.Tensor]) -> HeadNumbers:
    if set(tensors) != set(TENSORS):
        raise FileError(f"{source} holds the tensors {sorted(tensors)}: a head has {sorted(TENSORS)}")
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors.values()}
    if len(dtypes) != 1:
        raise FileError(f"{source} mixes the dtypes {sorted(dtypes)}: a head has one")
    try:
        return HeadNumbers(
            **{name: t.to(torch.float64).numpy() for name, t in tensors.items()}, dtype=dtypes.pop()
        )
    except (InputError, TypeError) as problem:
        raise FileError(f"{source}: {problem}") from problem
