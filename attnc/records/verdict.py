"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnc.records.certificate import Status


@dataclass(frozen=True)
class Verdict:
    """`status` is PROVED, REFUTED (`input` has the error `error`) or UNKNOWN; `reason` explains it.

    A verdict is true if it is PROVED. `children` has one verdict for each part, for instance for each block of a model.

    >>> bool(Verdict(Status.PROVED, "1 layer")), bool(Verdict(Status.UNKNOWN, "no certificate"))
    (True, False)
    """

    status: Status
    reason: str
    bound: float | None = None
    input: tuple[float, ...] | None = None
    error: float | None = None
    cells: int = 0
    name: str = ""  # of the part
    children: tuple[Verdict, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))

    def __bool__(self) -> bool:
        return self.status is Status.PROVED

    def __str__(self) -> str:
        return f"{self.name + ': ' if self.name else ''}{self.status}: {self.reason}"
