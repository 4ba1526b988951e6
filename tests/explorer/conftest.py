"""The explorer in Chromium, opened from a file; skipped where no browser is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / folder) for folder in ("benchmarks", "docs/extensions", "docs/explorer"))

import bundle  # noqa: E402
import chromium  # noqa: E402


@pytest.fixture(scope="session")
def data() -> dict[str, Any]:
    """The stored numbers."""
    found: dict[str, Any] = json.loads((ROOT / "docs" / "explorer" / "data.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser, and the address of the page with the panels."""
    if (missing := chromium.why_missing()) is not None:
        pytest.skip(missing)
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(bundle.standalone(), encoding="utf-8")
    with chromium.browser() as browser:
        yield browser, path.as_uri()


@pytest.fixture
def page(opened: Any) -> Iterator[Any]:
    """A fresh page at the width of a screen; the test fails if the console has a message or the page an exception."""
    browser, address = opened
    tab = browser.new_page(viewport={"width": 1000, "height": 900})
    heard = chromium.listen(tab)
    tab.goto(address)
    yield tab
    tab.close()
    assert heard == []
