"""The tutorial notebook runs from top to bottom and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[1] / "examples" / "tutorial.ipynb"
LITERAL = "proved in exact arithmetic, unknown as executed"
STATUS = ("proved", "measured", "unknown", "not certified", LITERAL)


def skeleton(text: str) -> list[str]:
    """Lines with numbers and the white space around columns folded."""
    lines = [
        re.sub(r"\s+", " ", re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", line)).strip()
        for line in text.splitlines()
    ]
    return [line for line in lines if line]


def printed(outputs: list[Any]) -> list[str]:
    return skeleton("".join(output["text"] for output in outputs if output["output_type"] == "stream"))


def shown(outputs: list[Any]) -> list[str]:
    """The kinds of results, and their status where they are cards."""
    kinds = []
    for output in outputs:
        html = output.get("data", {}).get("text/html", "")
        words = [word for word in STATUS if f">{word}<" in html]
        kinds += [*(kind for kind in ("text/html", "image/png") if output.get("data", {}).get(kind)), *words]
    return kinds


def test_it_runs_and_its_outputs_are_those_that_are_stored() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.read(PATH, as_version=4)
    stored = [list(cell.get("outputs", ())) for cell in book.cells]
    assert sum(map(len, stored)) > 12
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(PATH.parent)}}).execute()
    for cell, before in zip(book.cells, stored, strict=True):
        after = cell.get("outputs", [])
        assert (printed(after), shown(after)) == (printed(before), shown(before)), cell["source"]
    assert_seen_is_below_proved(book.cells)


SOLUTION_2B = """
with torch.no_grad():
    broken.value[0, 2, 1] -= 1000
print(broken.value[0, 2, 1] == head.value[0, 2, 1], broken.why_not_certified() is None)
with torch.no_grad():
    broken.value[0, 2, 1] = head.value[0, 2, 1]
print(broken.why_not_certified() is None)
"""


def test_a_value_that_was_rounded_is_not_certified_again() -> None:
    """The solution of task 2 (b), run after the cells of the first two sections."""
    cells = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    (last,) = (i for i, text in enumerate(texts) if "+= 1000" in text)
    code = [t for t, cell in zip(texts[: last + 1], cells, strict=False) if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        for text in [*(re.sub(r"(?m)^%.*$", "", text) for text in code), SOLUTION_2B]:
            exec(compile(text, "tutorial.ipynb", "exec"), names)
    assert heard.getvalue().split()[-3:] == ["tensor(False)", "False", "True"]
    assert "(v + 1000) − 1000 differs from v" in texts[-1]


def assert_seen_is_below_proved(cells: list[Any]) -> None:
    """Where a cell prints an error that was seen and a bound that is proved, the first is at most the second."""
    pairs = []
    for cell in cells:
        text = "".join(output.get("text", "") for output in cell.get("outputs", ()))
        pairs += re.findall(r"(?:seen|on the grid) ([\d.e-]+), proved[^\d]*([\d.e-]+)", text)
    assert len(pairs) == 2 and all(float(seen) <= float(proved) for seen, proved in pairs)


def test_the_transformer_runs_attention_and_every_section_has_tasks() -> None:
    cells = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    (converted,) = (
        cell for cell, text in zip(cells, texts, strict=True) if "attnc.convert_(" in text and cell["outputs"]
    )
    assert converted["outputs"][0]["text"][-1].endswith(": ()\n")
    sections = sum(bool(re.match(r"## \d", text)) for text in texts)
    assert (
        sections
        == sum(text.startswith("**Try it.**") for text in texts)
        == len(re.findall(r"^\d\.", texts[-1], re.M))
    )
