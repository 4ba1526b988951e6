"""A certificate: a proved bound, what it is about, and a seal that shows edits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attnc.domain import Interval
from attnc.errors import CertificateError, InputError
from attnc.records.fields import check_types, checked_record, round_up, versions
from attnc.records.numbers import TENSORS

__all__ = ["Certificate", "Measured", "Witness", "check_types", "checked_record", "round_up", "versions"]

FORMAT = 1


@dataclass(frozen=True)
class Witness:
    """An input and the error there of what was executed, evaluated in high precision: the lower end of the
    truth."""

    input: float
    error: float


@dataclass(frozen=True)
class Measured:
    """Not a certificate: the largest error seen at sample points. Larger ones may exist between them."""

    function: str
    domain: Interval
    dtype: str
    error: float
    input: float
    points: int
    design: str

    def __post_init__(self) -> None:
        check_types(
            self,
            {"function": str, "dtype": str, "error": float, "input": float, "points": int, "design": str},
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: object) -> Measured:
        record = checked_record(cls, record)
        return cls(**{**record, "domain": _interval(record["domain"])})


@dataclass(frozen=True)
class Certificate:
    """|head(s) - f(s)| <= bound for every s of the domain that the dtype holds, in the arithmetic that runs.

    `approximation` is the supremum of the error in exact arithmetic, `rounding` that of the executed
    arithmetic against it."""

    function: str
    domain: Interval
    dtype: str
    bound: float
    approximation: float
    rounding: float
    witness: Witness
    design: str
    digests: Mapping[str, str]
    precision: int
    cells: int
    versions: Mapping[str, str]
    format: int = FORMAT

    def __post_init__(self) -> None:
        texts, counts = ("function", "dtype", "design"), ("precision", "cells", "format")
        floats = ("bound", "approximation", "rounding")
        check_types(
            self, dict.fromkeys(texts, str) | dict.fromkeys(counts, int) | dict.fromkeys(floats, float)
        )
        check_types(self.witness, {"input": float, "error": float})
        if min(self.bound, self.approximation, self.rounding, self.witness.error) < 0:
            raise CertificateError("a certificate's bound, terms and witness are not negative")
        for mapping in (self.digests, self.versions):
            if not isinstance(mapping, dict) or not all(
                isinstance(x, str) for pair in mapping.items() for x in pair
            ):
                raise CertificateError(f"digests and versions map names to texts: got {mapping!r}")
        if self.format != FORMAT:
            raise CertificateError(
                f"certificate format {self.format}: this version of attnc reads format {FORMAT}"
            )
        if sorted(self.digests) != sorted(TENSORS):
            raise CertificateError(f"a certificate names the digests of {TENSORS}: got {tuple(self.digests)}")

    @property
    def quality(self) -> float:
        """bound / witness error: 1 is perfect, and how much larger it is says what the proof gives away."""
        return self.bound / self.witness.error if self.witness.error > 0 else math.inf

    def covers(self, s: torch.Tensor) -> bool:
        """Whether the promise holds for every element of s: inside the domain, not NaN, of the certified
        dtype."""
        if not isinstance(s, torch.Tensor):
            raise InputError(f"covers takes a tensor: got {type(s).__name__}")
        if s.dtype != getattr(torch, self.dtype):
            return False
        wide = s.detach().to(torch.float64)
        return bool(((wide >= self.domain.lo) & (wide <= self.domain.hi)).all())

    def seal(self) -> str:
        """The SHA-256 of everything the certificate says."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seal": self.seal()}

    @classmethod
    def from_json(cls, record: object) -> Certificate:
        """Read what `to_json` wrote; an edit, a missing field or an unknown one raises."""
        if not isinstance(record, dict) or not isinstance(record.get("seal"), str):
            raise CertificateError("this is not a certificate: a JSON object with a seal is expected")
        body = {key: value for key, value in record.items() if key != "seal"}
        body = checked_record(cls, body)
        witness = checked_record(Witness, body["witness"])
        try:
            certificate = cls(**{**body, "domain": _interval(body["domain"]), "witness": Witness(**witness)})
        except (TypeError, ValueError) as problem:
            raise CertificateError(f"the certificate holds something of another type: {problem}") from problem
        if certificate.seal() != record["seal"]:
            raise CertificateError(
                "the certificate was edited: its seal does not fit what it says. Make it anew with attnc.head(...)."
            )
        return certificate


def _interval(record: object) -> Interval:
    checked = checked_record(Interval, record)
    try:
        return Interval(**checked)
    except InputError as problem:
        raise CertificateError(f"the certificate's domain is not an interval: {problem}") from problem
