"""docs/architecture.md names files, functions and levels that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.contracts.test_layers import ORDER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
EXAMPLE = "scale_residual"  # the step that the page adds


def found(path: str) -> Path | None:
    places = (ROOT / "attnc" / path, ROOT / path)
    return next((place for place in places if place.exists()), None)


def test_every_file_that_is_named_exists() -> None:
    named = {path for path in re.findall(r"[\w/]+\.py\b", PAGE) if "/" in path and EXAMPLE not in path}
    assert len(named) > 40
    assert [path for path in sorted(named) if found(path) is None] == []


def test_the_walks_name_what_their_files_define() -> None:
    rows = re.findall(r"^ *([\w/]+\.py) +(\w+) ", PAGE, re.MULTILINE)
    assert len(rows) > 25
    for path, name in rows:
        place = found(path)
        assert place is not None, path
        defined = {node.name for node in ast.parse(place.read_text()).body if hasattr(node, "name")}
        assert name in defined | set(re.findall(r"^(\w+)(?::| \|?=)", place.read_text(), re.MULTILINE)), (
            path,
            name,
        )


def test_the_tables_are_where_the_page_says() -> None:
    rows = re.findall(r"`(\w+)`(?: and `(\w+)`)? in `([\w/]+\.py)`", PAGE)
    assert len(rows) > 12
    for *names, path in rows:
        place = found(path)
        assert place is not None, path
        for name in filter(None, names):
            assert re.search(rf"\b{name}\b", place.read_text()), (path, name)


def test_the_levels_are_those_that_are_enforced() -> None:
    rows = re.findall(r"^\| \d+ \| (.*) \|$", PAGE, re.MULTILINE)
    levels = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    assert levels == [{name for name in names if not name.startswith("__")} for names in ORDER]
