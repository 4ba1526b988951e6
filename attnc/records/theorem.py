"""What the paper promises of a network, beside what is proved of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from attnc.records.head_certificate import check_types, checked_record


@dataclass(frozen=True)
class Theorem:
    """A theorem by name, its statement, and its bound evaluated for the parameters of one network."""

    name: str
    statement: str
    bound: float | None  # None where the theorem says that weights exist and names no number

    def __post_init__(self) -> None:
        check_types(self, {"name": str, "statement": str})
        if self.bound is not None:
            check_types(self, {"bound": float})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: object) -> Theorem:
        return cls(**checked_record(cls, record))
