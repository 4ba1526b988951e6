"""docs/for_teachers.md: prepared addresses open at their panel, and the solutions about the explorer follow from its numbers."""

from __future__ import annotations

import re
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any

import bundle
import pytest

from attnc.records.fields import at_most

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "for_teachers.md").read_text(encoding="utf-8")
ADDRESSES = [unescape(found) for found in re.findall(r'href="explorer\.html(#[^"]+)"', TEXT)]
# The site's theme scrolls smoothly, and scrolls once more as it starts, which stops a scroll that is under way
THEME = """<style>html { scroll-behavior: smooth }</style>
<script>document.addEventListener("DOMContentLoaded", () => window.scroll())</script></body>"""


@pytest.mark.parametrize("address", ADDRESSES)
def test_prepared_addresses_open_at_their_panel(opened: Any, tmp_path: Path, address: str) -> None:
    """At the panel itself, with nothing ignored."""
    assert len(ADDRESSES) == 6
    path = tmp_path / "explorer.html"
    path.write_text(bundle.standalone().replace("</body>", THEME), encoding="utf-8")
    section = address.split("?")[0]
    name = {
        "#one-head": "head",
        "#gradient-descent-in-context": "learner",
        "#a-token-program": "tokens",
        "#two-layers": "surface",
    }[section]
    with opened[0].new_page(viewport={"width": 1280, "height": 720}) as page:
        page.goto(path.as_uri() + address)
        top = f"document.querySelector('[data-panel={name}]').getBoundingClientRect().top"
        page.wait_for_function(f"{top} >= 0 && {top} < 40")
        assert page.locator(f'[data-panel={name}] [data-name="ignored"]').inner_text() == ""
        assert page.url.endswith(address)


def test_solutions_name_the_bounds_that_are_shown(data: Any) -> None:
    gelu = data["heads"][0]["designs"]["nearest"]
    assert f"{at_most(gelu['16']['bound'])} and {at_most(gelu['32']['bound'])}" in TEXT
    nets = {(n["method"], len(n["anchors"])): n["bound"] for n in data["two_tokens"][0]["networks"]}
    grid, lattice = nets["grid", 110], nets["lattice", 81]
    assert f"about {grid / lattice / 1e6:.1f} million: {at_most(grid)} and 1.31·10⁻⁷" in TEXT
    assert at_most(lattice) == "1.31e-07"


def test_solution_of_lesson_4(page: Any, data: Any) -> None:
    """Without head 1.1 of sort, the output is right for words without repeated letters, and wrong for dcbb."""
    stored = next(p for p in data["token_programs"] if p["name"] == "sort")
    assert [head["name"] for head in stored["layers"][1]].index("equal before") == 1
    assert "head 1.1, *equal before* of layer 1" in TEXT and "words without repeated letters" in TEXT
    letters = range(len(stored["vocabulary"]))
    words = [list(w) for n in (1, 2, 3, 4) for w in product(letters, repeat=n)]
    right = page.evaluate(
        """([model, words]) => words.map((word) => {
          const outputs = (...broken) => attncExplorer.runTokens(model, word, new Set(broken)).outputs.join();
          return outputs() === outputs("1.1");
        })""",
        [stored, words],
    )
    assert all(is_right for word, is_right in zip(words, right, strict=True) if len(set(word)) == len(word))
    assert not any(
        is_right for word, is_right in zip(words, right, strict=True) if len(set(word)) < len(word)
    )


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
