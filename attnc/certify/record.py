"""A head on disk: four tensors in a safetensors file, and a JSON record in its metadata. Reading executes
nothing."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes

from attnc.certify.certificate import Certificate, Measured
from attnc.certify.numbers import TENSORS, HeadNumbers
from attnc.errors import CertificateError, FileError, InputError

KIND, FORMAT = "head", 1


@dataclass(frozen=True)
class HeadRecord:
    """What a file holds: the numbers, and the certificate or the measurement."""

    numbers: HeadNumbers
    certificate: Certificate | None
    measured: Measured | None


def write(path: str | os.PathLike[str], record: HeadRecord) -> None:
    """Write to a temporary name beside the target, then rename: a failure leaves what was there."""
    target = _path(path)
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
    data = save_bytes(tensors, metadata={"attnc": json.dumps(about)})
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    except (OSError, ValueError) as problem:
        raise FileError(
            f"cannot write {target}: {getattr(problem, 'strerror', None) or problem}"
        ) from problem
    finally:
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> HeadRecord:
    """Read a head; whatever is wrong with the file is said."""
    source = _path(path)
    try:
        data = source.read_bytes()
    except (OSError, ValueError) as problem:
        raise FileError(f"cannot read {source}: {getattr(problem, 'strerror', None) or problem}") from problem
    about = _about(source, data)
    try:
        tensors = load_bytes(data)
    except (SafetensorError, ValueError, RuntimeError, KeyError) as problem:
        raise FileError(f"{source} is damaged: {problem}") from problem
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


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a file is given by its path: got {type(path).__name__}")
    return Path(path)


def _about(source: Path, data: bytes) -> dict[str, Any]:
    """The JSON record of the metadata, from the header alone."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        if size > len(data) - 8:
            raise ValueError("the header is cut off")
        header = json.loads(data[8 : 8 + size])
        metadata = header.get("__metadata__", {})
    except (struct.error, ValueError, AttributeError, RecursionError) as problem:
        raise FileError(f"{source} is not a safetensors file, or it is damaged: {problem}") from problem
    if not isinstance(metadata, dict) or "attnc" not in metadata:
        raise FileError(
            f"{source} is a safetensors file, but not one that attnc wrote: it has no 'attnc' record in its metadata"
        )
    try:
        about = json.loads(metadata["attnc"])
    except (ValueError, TypeError, RecursionError) as problem:
        raise FileError(f"{source}: the 'attnc' record is not JSON: {problem}") from problem
    wanted = {"kind", "format", "certificate", "measured"}
    if not isinstance(about, dict) or set(about) != wanted:
        raise FileError(f"{source}: the 'attnc' record must hold {sorted(wanted)}")
    if about["kind"] != KIND or type(about["format"]) is not int or about["format"] != FORMAT:
        raise FileError(
            f"{source} holds a {about['kind']!r} of format {about['format']!r}: this version reads {KIND!r} of format {FORMAT}"
        )
    return about


def _numbers(source: Path, tensors: dict[str, torch.Tensor]) -> HeadNumbers:
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
