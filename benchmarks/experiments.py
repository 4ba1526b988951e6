"""Copy the report of `attnc reproduce` into its page, and the results beside the others: python benchmarks/experiments.py DIR."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pages import ROOT, put

PICTURES = ROOT / "docs" / "img" / "experiments"


def main(folder: Path) -> None:
    """The report goes one level below the page's own headings, with PNG figures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path in (folder / "figures").glob("*.png"):
        shutil.copyfile(path, PICTURES / path.name)
    for name in ("results", "times"):
        shutil.copyfile(folder / f"{name}.csv", ROOT / "benchmarks" / "results" / f"experiments-{name}.csv")
    _, _, text = (folder / "report.md").read_text(encoding="utf-8").partition("\n\n")
    text = text.replace("\n## ", "\n### ").replace("(figures/", "(img/experiments/").replace(".svg)", ".png)")
    put(ROOT / "docs" / "experiments.md", "experiments", text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
