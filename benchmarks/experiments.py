"""Put the report of `attnc reproduce` into its page and its results beside the others: python benchmarks/experiments.py DIR."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pages import ROOT, put

from attnc.paper.experiments import Results
from attnc.paper.experiments.report import figures, markdown

PICTURES = ROOT / "docs" / "img" / "experiments"


def main(folder: Path) -> None:
    """Tables from the results, one level below the page's own headings; figures as PNG."""
    found = Results.read(folder)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in figures(found):
        shutil.copyfile(folder / "figures" / f"{name}.png", PICTURES / f"{name}.png")
    stored = ROOT / "benchmarks" / "results"
    for name in ("results", "times"):
        shutil.copyfile(folder / f"{name}.csv", stored / f"experiments-{name}.csv")
    _, _, text = markdown(found, note=_note(found)).partition("\n\n")
    text = text.replace("\n## ", "\n### ").replace("(figures/", "(img/experiments/").replace(".svg)", ".png)")
    put(ROOT / "docs" / "experiments.md", "experiments", text)


def _note(found: Results) -> str:
    return "Made with " + ", ".join(f"{name} {version}" for name, version in found.versions.items()) + "."


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
