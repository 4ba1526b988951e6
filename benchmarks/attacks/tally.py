"""What attacks found: counts, the largest error/bound, and the cases that were false or crashed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

KINDS = ("heads", "networks", "blocks", "families", "inputs", "learners", "altered")
COLUMNS = ("kind", "cases", "refused", "converted", "inputs attacked", "largest ratio", "false", "crashed")


@dataclass
class Outcome:
    """One attacked case.

    `verdict` is "refused" (an AttncError, or the object disclaims its certificate), "converted" (claimed, and no input
    exceeded the bound), "measured" (converted, but nothing is claimed as proved), "false" or "crashed".
    """

    kind: str
    name: str
    verdict: str
    ratio: float = 0.0  # the largest error / bound that was seen
    claimed: float = math.nan
    measured: float = math.nan
    inputs: int = 0
    note: str = ""
    control: bool = False  # an honest case, which has to convert
    seconds: float = 0.0


@dataclass
class Tally:
    """All outcomes of a run."""

    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def of(self, verdict: str) -> list[Outcome]:
        return [o for o in self.outcomes if o.verdict == verdict]

    @property
    def inputs(self) -> int:
        return sum(o.inputs for o in self.outcomes)

    @property
    def refused_controls(self) -> list[Outcome]:
        """Honest cases that were not converted: refusing everything is not a pass."""
        return [o for o in self.outcomes if o.control and o.verdict != "converted"]

    @property
    def passed(self) -> bool:
        return not (self.of("false") or self.of("crashed") or self.refused_controls)

    def rows(self) -> list[tuple[str, ...]]:
        """One row for each kind, and their sum."""
        kinds = [k for k in KINDS if any(o.kind == k for o in self.outcomes)]
        return [_row(k, [o for o in self.outcomes if o.kind == k]) for k in kinds] + [
            _row("all", self.outcomes)
        ]

    def table(self) -> str:
        rows = [COLUMNS, *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        return "\n".join(
            "  ".join(
                cell.rjust(w) if i else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def problems(self) -> list[str]:
        """A line for each case that must not be."""
        lines = [
            f"FALSE    {o.kind} {o.name}: claimed {o.claimed:.4g}, measured {o.measured:.4g} (ratio {o.ratio:.4g}) {o.note}"
            for o in self.of("false")
        ]
        lines += [f"CRASHED  {o.kind} {o.name}: {o.note}" for o in self.of("crashed")]
        return lines + [f"CONTROL  {o.kind} {o.name}: {o.verdict} {o.note}" for o in self.refused_controls]

    def write(self, path: Path, **about: object) -> None:
        """The run as JSON."""
        named = [dict(zip(COLUMNS, row, strict=True)) for row in self.rows()]
        record = {**about, "table": named, "outcomes": [plain(o) for o in self.outcomes]}
        path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def plain(outcome: Outcome) -> dict[str, object]:
    """Without numbers that JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(outcome).items()
    }


def _row(kind: str, outcomes: list[Outcome]) -> tuple[str, ...]:
    count = {
        v: sum(o.verdict == v for o in outcomes)
        for v in ("refused", "converted", "measured", "false", "crashed")
    }
    ratio = max((o.ratio for o in outcomes if not math.isnan(o.ratio)), default=0.0)
    converted = count["converted"] + count["measured"] + count["false"]
    return (
        kind, str(len(outcomes)), str(count["refused"]), str(converted), f"{sum(o.inputs for o in outcomes):,}",
        f"{ratio:.4g}", str(count["false"]), str(count["crashed"]),
    )  # fmt: skip
