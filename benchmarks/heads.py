"""Benchmark of single heads: anchors against proved bound, measured error and time.

python benchmarks/heads.py             everything, a few minutes: JSON, tables in docs/heads.md, pictures
python benchmarks/heads.py --quick     a smoke test, under a minute; writes to out/ only
python benchmarks/heads.py --only speed     one section anew, the others kept
python benchmarks/heads.py --render    tables and pictures from the stored numbers
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

SECTIONS = ("asked", "rates", "designs", "float32", "many", "speed")


def main() -> None:
    one_thread()
    options = _options()
    quick = ROOT / "out" / "bench"
    results = quick / "heads.json" if options.quick else ROOT / "benchmarks" / "results" / "heads.json"
    stored = json.loads(results.read_text()) if results.exists() and not options.quick else {}
    if not options.render:
        wanted = (options.only,) if options.only else SECTIONS
        stored = {**stored, **run(wanted, options.quick, options.full)}
        write(results, as_json(stored))
    if not stored:
        raise SystemExit(f"{results.name} is not there yet: run python benchmarks/heads.py first")
    render(stored, None if options.quick else ROOT / "docs", quick)


def run(wanted: tuple[str, ...], quick: bool, full: bool) -> dict[str, Any]:
    """The wanted sections, measured."""
    import cases
    import sections
    import torch

    torch.set_num_threads(1)
    cases.check_complete()
    sections.warm_up()
    makers = {
        "asked": lambda step: sections.asked(quick, step),
        "rates": lambda step: sections.curves(quick, full, step),
        "designs": lambda step: sections.designs(quick, step),
        "float32": lambda step: sections.float32(quick, step),
        "many": lambda step: sections.many(quick, step),
        "speed": lambda step: sections.speed(quick, step),
    }
    found: dict[str, Any] = {"versions": versions()}
    for name in wanted:
        found[name] = makers[name](lambda what, name=name: progress(f"{name}: {what}"))
    progress("")
    return found


def render(stored: dict[str, Any], docs: Path | None, scratch: Path) -> None:
    """Tables into the page and pictures beside it; without `docs` the tables go to the terminal."""
    import figures
    import sections
    import tables

    smallest = sections.floor([*stored.get("designs", []), *stored.get("float32", [])])
    text = tables.markdown({**stored, "floor": smallest})
    folder = docs / "img" if docs else scratch
    if stored.get("rates"):
        figures.rates(stored["rates"], folder / "rates.png")
    if smallest:
        figures.floor(smallest, folder / "floor.png")
    if docs is None:
        print(text)
        return
    put(docs / "heads.md", "heads", text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test with few sizes; leaves docs/ alone"
    )
    parser.add_argument("--full", action="store_true", help="nearest up to 4096 anchors; takes long")
    parser.add_argument("--only", choices=SECTIONS, help="one section anew")
    parser.add_argument("--render", action="store_true", help="tables and pictures from the stored numbers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
