"""The tutorial notebook, executed again and stored with its outputs.

python benchmarks/notebook.py             execute examples/tutorial.ipynb in place
python benchmarks/notebook.py --page OUT  also write it as an HTML page, to look at
"""

from __future__ import annotations

import argparse
import html
from pathlib import Path

from pages import ROOT, write

NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"


def main() -> None:
    import nbformat
    from nbclient import NotebookClient

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    book = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_empty(output)]
    write(NOTEBOOK, nbformat.writes(book) + "\n")
    if options.page is not None:
        options.page.write_text(page(book), encoding="utf-8")


def _is_empty(output: dict) -> bool:
    """Whether it is a progress bar that ended."""
    return output.get("output_type") == "display_data" and not output["data"].get("text/html", "x")


def page(book: dict) -> str:
    """The cells and their outputs as plain HTML."""
    parts = [
        "<!doctype html><meta charset='utf-8'><body style='font:16px system-ui;max-width:60em;margin:2em auto'>"
    ]
    for cell in book["cells"]:
        parts.append(
            f"<pre style='white-space:pre-wrap;background:#8881'>{html.escape(cell['source'])}</pre>"
        )
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(
                    f"<img alt='' style='max-width:100%' src='data:image/png;base64,{data['image/png']}'>"
                )
            else:
                parts.append(data.get("text/html") or f"<pre>{html.escape(output.get('text', ''))}</pre>")
    return "".join(parts)


if __name__ == "__main__":
    main()
