"""Benchmark of networks: proved bound against the largest error found, decisions, memory, time.

python benchmarks/networks.py             everything, a few minutes: JSON and tables in docs/networks.md
python benchmarks/networks.py --quick     a smoke test, under a minute; writes to out/ only
python benchmarks/networks.py --only layer     one section anew, the others kept
python benchmarks/networks.py --render    tables from the stored numbers
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

SECTIONS = ("mlps", "digits", "layer", "growth", "engines")


def main() -> None:
    one_thread()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # spinning threads on busy cores would be all that is measured
    options = _options()
    results = (ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results") / "networks.json"
    stored = json.loads(results.read_text()) if results.exists() and not options.quick else {}
    if not options.render:
        stored = {**stored, **run((options.only,) if options.only else SECTIONS, options.quick)}
        write(results, as_json(stored))
    if not stored:
        raise SystemExit(f"{results.name} is not there yet: run python benchmarks/networks.py first")
    import network_tables

    text = network_tables.markdown(stored)
    if options.quick:
        print(text)
    else:
        put(ROOT / "docs" / "networks.md", "networks", text)


def run(wanted: tuple[str, ...], quick: bool) -> dict[str, Any]:
    """The wanted sections, measured."""
    import network_sections
    import torch

    torch.set_num_threads(1)
    network_sections.warm_up()
    found: dict[str, Any] = {"versions": versions("scikit-learn")}
    for name in wanted:
        began = time.perf_counter()
        measure = getattr(network_sections, name)
        found[name] = measure(quick, lambda what, name=name: progress(f"{name}: {what}"))
        progress("")
        print(f"{name}: {time.perf_counter() - began:.0f} s")
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test with few sizes; leaves docs/ alone"
    )
    parser.add_argument("--only", choices=SECTIONS, help="one section anew")
    parser.add_argument("--render", action="store_true", help="tables from the stored numbers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
