"""docs/for_teachers.md: prepared addresses open at their panel, and the solutions about the explorer follow from its numbers."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import bundle
import pytest

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "for_teachers.md").read_text(encoding="utf-8")
ADDRESSES = [unescape(found) for found in re.findall(r'href="explorer\.html(#[^"]+)"', TEXT)]
# The site's theme scrolls smoothly, and scrolls once more as it starts, which stops a scroll that is under way
THEME = """<style>html { scroll-behavior: smooth }</style>
<script>document.addEventListener("DOMContentLoaded", () => window.scroll())</script></body>"""


@pytest.mark.parametrize("address", ADDRESSES[-2:])
def test_prepared_addresses_open_at_their_panel(opened: Any, tmp_path: Path, address: str) -> None:
    assert len(ADDRESSES) == 5
    path = tmp_path / "explorer.html"
    path.write_text(bundle.standalone().replace("</body>", THEME), encoding="utf-8")
    name = {"#a-token-program": "tokens", "#two-layers": "surface"}[address.split("?")[0]]
    with opened[0].new_page(viewport={"width": 1000, "height": 600}) as page:
        page.goto(path.as_uri() + address)
        page.wait_for_function("scrollY > 300")
        top = f"document.querySelector('[data-panel={name}]').getBoundingClientRect().top"
        assert -60 < page.evaluate(top) < 300


def test_solution_of_lesson_5(data: Any) -> None:
    """The block in which most neurons use an anchor above 0, on average over the tokens, for each sentence."""
    best = []
    for sentence in data["transformer"]["sentences"]:
        means = [
            sum(sum(counts[(len(counts) + 1) // 2 :]) for counts in block) / len(block)
            for block in sentence["usage"]
        ]
        best.append(1 + means.index(max(means)))
    assert best == [1, 5, 5]
    assert "(b) In block 1 for the first sentence, and in block 5 for the other two." in TEXT
