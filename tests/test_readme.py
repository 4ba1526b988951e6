"""The README's links; its sessions run in tests/test_packaging.py, its commands in tests/test_page_commands.py."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_files_that_the_readme_points_to_exist() -> None:
    for target in re.findall(r"\]\(([^)h][^)]*)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
