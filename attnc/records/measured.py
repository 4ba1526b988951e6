"""What was measured of a network and not proved: the largest error at fresh random inputs, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnc.domain import Box
from attnc.errors import CertificateError
from attnc.records.head_certificate import check_types, checked_record
from attnc.records.network_certificate import NetworkCertificate, box_from_json, box_json

CONFIDENCE = 0.999


@dataclass(frozen=True)
class NetworkMeasured:
    """Not a certificate: |network - f| was at most `error` at `points` uniform random inputs that the network was not made from.

    `fitted` is what is proved of the network against a network that was fitted to f: it says nothing about f."""

    method: str  # how the values were found: lattice, grid, fit, layers
    domain: Box
    dtype: str
    error: float
    mean_square: float
    input: tuple[float, ...]  # where the error was seen
    output: int
    points: int
    seed: int
    digests: Mapping[str, str]
    fitted: NetworkCertificate | None = None
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        texts, counts = ("method", "dtype"), ("output", "points", "seed")
        floats = ("error", "mean_square", "confidence")
        check_types(
            self, dict.fromkeys(texts, str) | dict.fromkeys(counts, int) | dict.fromkeys(floats, float)
        )
        if self.points < 1 or not 0 < self.confidence < 1 or min(self.error, self.mean_square) < 0:
            raise CertificateError("a measurement has points, an error and a confidence between 0 and 1")
        if not isinstance(self.digests, dict) or len(self.input) != self.domain.size:
            raise CertificateError("a measurement names digests, and an input of the domain's shape")

    @property
    def fraction(self) -> float:
        """With `confidence`, at most this part of the box has an error above `error`.

        If a part q had one, N independent inputs would all miss it with probability (1 - q)^N; that is 1 - confidence for

            q = 1 - (1 - confidence)^(1/N)."""
        return float(1 - (1 - self.confidence) ** (1 / self.points))

    def __str__(self) -> str:
        return (
            f"measured, not proved: |network - f| <= {self.error:.3g} at {self.points:,} random inputs (seed {self.seed}); "
            f"with {100 * self.confidence:g} % confidence at most {self.fraction:.2g} of the box has a larger error"
        )

    def to_json(self) -> dict[str, Any]:
        fitted = None if self.fitted is None else self.fitted.to_json()
        return {**vars(self), "domain": box_json(self.domain), "input": list(self.input), "fitted": fitted}

    @classmethod
    def from_json(cls, record: object) -> NetworkMeasured:
        body = checked_record(cls, record)
        fitted = None if body["fitted"] is None else NetworkCertificate.from_json(body["fitted"])
        at = tuple(body["input"])
        if not all(type(x) is float for x in at):
            raise CertificateError("a measurement was made at numbers")
        return cls(**{**body, "domain": box_from_json(body["domain"]), "input": at, "fitted": fitted})
