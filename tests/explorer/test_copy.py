"""The button on code blocks copies what a reader types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SESSION = """>>> import torch
>>> for i in range(2):
...     print(i)
0
1
>>> torch.ones(1)
tensor([1.])"""
BLOCKS = {
    SESSION: "import torch\nfor i in range(2):\n    print(i)\n\ntorch.ones(1)\n",
    "$ attnc verify x\nstatus: proved": "attnc verify x\n",
    "def f():\n    return ...": "def f():\n    return ...",
    ">>> with a:\n...     b": "with a:\n    b\n\n",
}


def test_prompts_and_outputs_are_left_out(opened: Any, tmp_path: Path) -> None:
    browser, _ = opened
    blocks = "".join(
        f'<div class="highlight-pycon"><div class="highlight"><pre>{text.replace(">", "&gt;")}</pre></div></div>'
        for text in BLOCKS
    )
    script = (ROOT / "docs" / "static" / "copy.js").as_uri()
    path = tmp_path / "page.html"
    path.write_text(f'<article>{blocks}</article><script src="{script}"></script>', encoding="utf-8")
    with browser.new_page() as page:
        page.goto(path.as_uri())
        buttons = page.locator("button.copy")
        found = buttons.evaluate_all("(all) => all.map((one) => one.dataset.text)")
        assert found == list(BLOCKS.values())
        buttons.first.click()
        page.get_by_text("Copied", exact=True).wait_for()  # after the clipboard has answered
