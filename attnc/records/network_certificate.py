"""The certificate of a network: a bound for every input of a box, composed over its layers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from attnc.domain import Array, Box
from attnc.errors import CertificateError, InputError
from attnc.records.head_certificate import FORMAT, Certificate, check_types, checked_record


@dataclass(frozen=True)
class GroupClaim:
    """So many neurons share a head, and this is what is proved of it."""

    neurons: int
    head: Certificate

    def __post_init__(self) -> None:
        check_types(self, {"neurons": int})
        if self.neurons < 1:
            raise CertificateError(f"a group has {self.neurons} neurons: at least one is expected")

    def to_json(self) -> dict[str, Any]:
        return {"neurons": self.neurons, "head": self.head.to_json()}

    @classmethod
    def from_json(cls, record: object) -> GroupClaim:
        body = checked_record(cls, record)
        return cls(body["neurons"], Certificate.from_json(body["head"]))


@dataclass(frozen=True)
class LayerClaim:
    """One layer of attention: `error_in` bounds |executed - exact| of what enters it, `error_out` of what leaves it."""

    name: str
    value: int  # of the program
    function: str
    groups: tuple[GroupClaim, ...]
    error_in: float
    error_out: float

    def __post_init__(self) -> None:
        check_types(self, {"name": str, "value": int, "function": str} | _floats("error_in", "error_out"))
        if min(self.error_in, self.error_out) < 0:
            raise CertificateError("the errors of a layer are not negative")

    @property
    def neurons(self) -> int:
        return sum(group.neurons for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "groups": [group.to_json() for group in self.groups]}

    @classmethod
    def from_json(cls, record: object) -> LayerClaim:
        body = checked_record(cls, record)
        return cls(**{**body, "groups": tuple(map(GroupClaim.from_json, body["groups"]))})


@dataclass(frozen=True)
class LookupClaim:
    """One head whose anchors are points of the whole input: every f of the program's `Lookup` is within `error_out` of it."""

    name: str
    value: int  # of the program
    anchors: int
    error_out: float

    def __post_init__(self) -> None:
        check_types(self, {"name": str, "value": int, "anchors": int, "error_out": float})
        if self.error_out < 0:
            raise CertificateError("the error of a lookup is not negative")

    @classmethod
    def from_json(cls, record: object) -> LookupClaim:
        return cls(**checked_record(cls, record))


@dataclass(frozen=True)
class NetworkWitness:
    """An input, the output coordinate that is worst there, and its error, evaluated in high precision."""

    input: tuple[float, ...]
    output: int
    error: float

    def __post_init__(self) -> None:
        check_types(self, {"input": tuple, "output": int, "error": float})
        if (
            not all(type(x) is float and math.isfinite(x) for x in self.input)
            or min(self.error, self.output) < 0
        ):
            raise CertificateError(
                "a witness is a list of finite numbers, an output and an error that are not negative"
            )


@dataclass(frozen=True)
class NetworkCertificate:
    """|network(x) - program(x)| <= bound in every output, for every x of the box that the dtype holds, as executed.

    `approximation` is what heads leave in exact arithmetic, `rounding` what rounding adds, of stored numbers too: bound <= their
    sum. `program` is the SHA-256 of what the network imitates, `digests` those of its own tensors and of its structure."""

    domain: Box
    dtype: str
    bound: float
    approximation: float
    rounding: float
    layers: tuple[LayerClaim, ...]
    witness: NetworkWitness
    program: str
    digests: Mapping[str, str]
    versions: Mapping[str, str]
    lookups: tuple[LookupClaim, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        check_types(
            self,
            {"dtype": str, "program": str, "format": int} | _floats("bound", "approximation", "rounding"),
        )
        if min(self.bound, self.approximation, self.rounding) < 0:
            raise CertificateError("a certificate's bound and terms are not negative")
        for mapping in (self.digests, self.versions):
            if not isinstance(mapping, dict) or not all(
                isinstance(x, str) for pair in mapping.items() for x in pair
            ):
                raise CertificateError(f"digests and versions map names to texts: got {mapping!r}")
        if self.format != FORMAT:
            raise CertificateError(
                f"certificate format {self.format}: this version of attnc reads format {FORMAT}"
            )
        if len(self.witness.input) != self.domain.size:
            raise CertificateError("the witness is not an input of the domain's shape")

    @property
    def quality(self) -> float:
        """bound / witness error: 1 is perfect, and how much larger it is says what the proof gives away."""
        return self.bound / self.witness.error if self.witness.error > 0 else math.inf

    def covers(self, x: torch.Tensor) -> bool:
        """Whether the promise holds for every input of the batch: inside the box, not NaN, of the certified dtype."""
        if not isinstance(x, torch.Tensor):
            raise InputError(f"covers takes a tensor: got {type(x).__name__}")
        return x.dtype == getattr(torch, self.dtype) and bool(self.domain.contains(x).all())

    def seal(self) -> str:
        """The SHA-256 of everything the certificate says."""
        return hashlib.sha256(json.dumps(self._body(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {**self._body(), "seal": self.seal()}

    def _body(self) -> dict[str, Any]:
        body = {
            name: value
            for name, value in vars(self).items()
            if name not in ("domain", "layers", "lookups", "witness")
        }
        return {
            **body,
            "domain": box_json(self.domain),
            "layers": [layer.to_json() for layer in self.layers],
            "lookups": [asdict(lookup) for lookup in self.lookups],
            "witness": asdict(self.witness),
        }

    @classmethod
    def from_json(cls, record: object) -> NetworkCertificate:
        """Read what `to_json` wrote; an edit, a missing field or an unknown one raises."""
        if not isinstance(record, dict) or not isinstance(record.get("seal"), str):
            raise CertificateError("this is not a certificate: a JSON object with a seal is expected")
        body = checked_record(cls, {key: value for key, value in record.items() if key != "seal"})
        try:
            witness = checked_record(NetworkWitness, body["witness"])
            made = cls(
                **{
                    **body,
                    "domain": box_from_json(body["domain"]),
                    "layers": tuple(map(LayerClaim.from_json, body["layers"])),
                    "lookups": tuple(map(LookupClaim.from_json, body["lookups"])),
                    "witness": NetworkWitness(**{**witness, "input": tuple(witness["input"])}),
                }
            )
        except (TypeError, ValueError, OverflowError) as problem:
            raise CertificateError(f"the certificate holds something of another type: {problem}") from problem
        if made.seal() != record["seal"]:
            raise CertificateError(
                "the certificate was edited: its seal does not fit what it says. Make it anew with attnc.compile(...)."
            )
        return made


def box_json(box: Box) -> dict[str, Any]:
    """Ends that are the same everywhere are written once."""
    return {"lo": _end_json(box.lo), "hi": _end_json(box.hi), "shape": list(box.shape)}


def box_from_json(record: object) -> Box:
    if not isinstance(record, dict) or set(record) != {"lo", "hi", "shape"}:
        raise CertificateError("a box has lo, hi and shape")
    shape = tuple(record["shape"])
    ends = [np.array(record[name], dtype=np.float64) for name in ("lo", "hi")]
    lo, hi = (end if end.ndim == 0 else end.reshape(shape) for end in ends)
    try:
        return Box(lo, hi, shape)
    except InputError as problem:
        raise CertificateError(f"the certificate's domain is not a box: {problem}") from problem


def _end_json(end: Array) -> float | list[float]:
    flat: list[float] = end.ravel().tolist()
    return flat[0] if len(set(flat)) == 1 else flat


def _floats(*names: str) -> dict[str, type]:
    return dict.fromkeys(names, float)
