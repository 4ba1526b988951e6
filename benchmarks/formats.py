"""Numbers and tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attnc.records.fields import round_up

Record = dict[str, Any]


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    names = head.split(", ")
    lines = [names, ["---"] * len(names), *([*row, *[""] * (len(names) - len(row))] for row in rows)]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def where(r: Record) -> tuple[str, str]:
    return r["function"], f"[{r['lo']:g}, {r['hi']:g}]"


def terms(r: Record) -> tuple[str, ...]:
    quality = f"{r['quality']:.2f}" if r["quality"] else "–"
    return rounded_up(r["bound"]), rounded_up(r["approximation"]), rounded_up(r["rounding"]), quality


def rounded_up(x: float | None) -> str:
    """Two digits, never less than x."""
    return "–" if x is None else f"{round_up(x, 2):.1e}"


def plain(x: float) -> str:
    return f"{x:g}"


def two_decimals(k: float) -> str:
    return f"{k:.2f}"


def ratio(a: float | None, b: float) -> str:
    return "–" if a is None else f"{a / b:.2f}" if a < 1e3 * b else f"{a / b:.0e}"


def median_and_range(ratio: Sequence[float]) -> str:
    low, middle, high = ratio
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def seconds(x: float) -> str:
    return f"{x:.2f}"
