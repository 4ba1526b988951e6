"""Benchmark of single heads: anchors against proved bound, measured error and time.

python benchmarks/heads.py             everything, a few minutes: JSON, tables in docs/heads.md, pictures
python benchmarks/heads.py --quick     a smoke test, under a minute; writes to out/ only
python benchmarks/heads.py --only speed     one section anew, the others kept
python benchmarks/heads.py --render    tables and pictures from the stored numbers
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

SECTIONS = ("asked", "rates", "designs", "float32", "many", "speed")
ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- heads:begin -->", "<!-- heads:end -->"


def main() -> None:
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"  # before numpy and torch are loaded
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
    page = docs / "heads.md"
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"docs/heads.md must hold the markers {BEGIN} and {END}")
    write(page, f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    from importlib.metadata import version

    import attnc

    packages = ("torch", "numpy", "python-flint")
    return {
        "attnc": attnc.__version__,
        "Python": platform.python_version(),
        **{p: version(p) for p in packages},
    }


def as_json(stored: dict[str, Any]) -> str:
    """JSON with a line for each record, so that a change shows as a line."""
    parts = []
    for name, value in sorted(stored.items()):
        records = value if isinstance(value, list) else [value]
        lines = ",\n".join(json.dumps(record, sort_keys=True, allow_nan=False) for record in records)
        parts.append(f'"{name}": ' + (f"[\n{lines}\n]" if isinstance(value, list) else lines))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(path: Path, text: str) -> None:
    """All of it or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def progress(what: str) -> None:
    """One line that is written over, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


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
