"""docs/check.py finds what is wrong with a page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABOUT = '<html lang="en"><meta name="viewport" content="width=device-width"><title>t</title>'
GOOD = (
    ABOUT
    + '<h1 id="top">t</h1><a href="#top">a</a><a href="other.html#place">b</a><img src="x.png" alt="words"></html>'
)


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_check", ROOT / "docs" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["site_check"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (GOOD, 0),
        (GOOD.replace(' alt="words"', ""), 1),
        (GOOD.replace("x.png", "y.png"), 1),
        (GOOD.replace("#place", "#nowhere"), 1),
        (GOOD.replace("#place", "#place?setting=1"), 0),
        (GOOD.replace("#place", "#nowhere?setting=1"), 1),
        (GOOD.replace("other.html#place", "missing.html"), 1),
        (GOOD.replace("#top", "#bottom"), 1),
        (GOOD.replace("</html>", '<script src="https://example.org/x.js"></script></html>'), 1),
        (GOOD.replace("</html>", "<h1>two</h1></html>"), 1),
        (GOOD.replace(' lang="en"', ""), 1),
        (GOOD.replace("viewport", "other"), 1),
        (GOOD.replace("<title>t</title>", ""), 1),
        (GOOD.replace("</html>", "x" * 1_600_000), 1),
    ],
)
def test_static_problems(check: ModuleType, tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "x.png").write_bytes(b"")
    (tmp_path / "other.html").write_text(f'{ABOUT}<h1>t</h1><p id="place"></p></html>', encoding="utf-8")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    found, pages = check.static_problems(tmp_path)
    assert len(found) == count and len(pages) == 2
