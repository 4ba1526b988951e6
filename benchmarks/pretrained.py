"""Benchmark of converted transformers: all-MiniLM-L6-v2 against its original, and a random model of Llama's shape.

python benchmarks/pretrained.py             everything, some three minutes: CSV, tables in docs/pretrained.md
python benchmarks/pretrained.py --quick     a smoke test with small settings; writes to out/ only
python benchmarks/pretrained.py --only time     one section anew, the others kept
python benchmarks/pretrained.py --render    tables from the stored numbers

Original and converted model take turns in one process on two threads, so that ratios stand even where times do not. Memory is
that of one forward pass in a process of its own, above what the loaded model holds.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import pretrained_sections as sections
import torch
from formats import table
from pages import ROOT, progress, put, versions, write
from pretrained_sections import QUICK, Row, Settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SECTIONS = ("blocks", "time", "memory", "attack", "llama")


def markdown(rows: Sequence[Row]) -> str:
    """The tables of the page."""
    by_block: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.section == "blocks":
            by_block.setdefault(row.case, {})[row.quantity] = row.value
    parts = [row.value for row in rows if row.section == "versions"]
    if by_block:
        names = [*next(iter(by_block.values()))]
        lines = [[case, *found.values()] for case, found in by_block.items()]
        parts.append(_wide(["", *names], lines))
    others = [row for row in rows if row.section not in ("versions", "blocks")]
    parts.append(table("of, what, found, asked", [(r.case, r.quantity, r.value, r.asked) for r in others]))
    return "\n\n".join(parts) + "\n"


def _wide(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Like `formats.table`, whose heads are parted at commas."""
    made = table(", ".join("·" for _ in head), rows).splitlines()
    return "\n".join(["| " + " | ".join(head) + " |", *made[1:]])


def as_csv(rows: Sequence[Row]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return file.getvalue()


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [Row(**record) for record in csv.DictReader(file)]


def measured(wanted: Sequence[str], settings: Settings) -> list[Row]:
    torch.set_num_threads(sections.THREADS)
    listed = ", ".join(f"{name} {version}" for name, version in versions("transformers").items())
    rows = [
        Row(
            "versions",
            "",
            "",
            f"Made with {listed}; converted with approximation {settings.approximation:g}.",
        )
    ]
    pair = sections.minilm(settings) if set(wanted) - {"llama"} else None
    makers = {
        "blocks": sections.blocks, "time": sections.times, "memory": sections.memory, "attack": sections.attack,
    }  # fmt: skip
    for name in wanted:
        rows += sections.llama(settings) if pair is None or name == "llama" else makers[name](pair, settings)
        progress("")
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        sections.child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small settings; leaves docs/ alone")
    parser.add_argument("--only", choices=SECTIONS, help="one section anew")
    parser.add_argument("--render", action="store_true", help="tables from the stored numbers")
    parser.add_argument("--approximation", type=float, help="of the conversion of MiniLM")
    options = parser.parse_args()
    settings = QUICK if options.quick else Settings()
    if options.approximation is not None:
        settings = replace(settings, approximation=options.approximation)
    folder = ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results"
    path = folder / "pretrained.csv"
    rows = read(path) if path.exists() else []
    if not options.render:
        fresh = measured((options.only,) if options.only else SECTIONS, settings)
        made = {row.section for row in fresh}
        kept = [row for row in rows if options.only and row.section not in made]
        order = ("versions", "conversion", *SECTIONS)
        rows = sorted([*fresh, *kept], key=lambda row: order.index(row.section))
        write(path, as_csv(rows))
    print(markdown(rows))
    if not options.quick:
        put(ROOT / "docs" / "pretrained.md", "pretrained", markdown(rows))


if __name__ == "__main__":
    main()
