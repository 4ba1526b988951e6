"""Rates: the theorems' networks at growing sizes, their errors, fitted slopes and bounds.

python benchmarks/rates.py             everything, a few minutes: JSON, the table and the figure of docs/theorems.md
python benchmarks/rates.py --quick     a smoke test, under a minute; writes to out/ only
python benchmarks/rates.py --render    table and figure from the stored numbers
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

QUICK = {"anchors": (30, 60, 120), "heads": (1, 2, 4), "grids": (4, 8), "past": False}


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    results = (ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results") / "rates.json"
    if not options.render:
        write(results, as_json(run(options.quick)))
    if not results.exists():
        raise SystemExit(f"{results.name} is not there yet: run python benchmarks/rates.py first")
    stored = json.loads(results.read_text())
    if options.quick:
        print(markdown(stored))
    else:
        put(ROOT / "docs" / "theorems.md", "rates", markdown(stored))
        import theorem_rates

        theorem_rates.draw(stored["series"], ROOT / "docs" / "img" / "theorem_rates.png")


def run(quick: bool) -> dict[str, Any]:
    import theorem_rates

    began = time.perf_counter()
    rows = theorem_rates.rates(progress=progress, **(QUICK if quick else {}))
    progress("")
    seconds = round(time.perf_counter() - began, 1)
    return {"seed": 0, "series": rows, "versions": versions(), "seconds": seconds}


def markdown(stored: dict[str, Any]) -> str:
    lines = [
        "| construction | design | against | sizes | largest error found | slope of the error found | theorem's bound | "
        "proved bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in stored["series"]:
        cells = [
            s["construction"],
            s["design"],
            s["against"],
            f"{s['sizes'][0]} … {s['sizes'][-1]}",
            ends(s["errors"]),
            f"{s['slope']:.3f}",
            ends(s["theorem"]) + ("" if s["within"] else " **exceeded**"),
            ends(s["proved"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    made = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    lines += ["", f"Seed {stored['seed']}; {stored['seconds']} s on one core; {made}.", ""]
    return "\n".join(lines)


def ends(numbers: list[float]) -> str:
    return f"{numbers[0]:.3g} … {numbers[-1]:.3g}" if numbers else "—"


if __name__ == "__main__":
    main()
