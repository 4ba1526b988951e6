"""`make site`: the site is built without a warning, and its check finds no problem."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_site(tmp_path: Path) -> None:
    if any(find_spec(name) is None for name in ("sphinx", "furo", "myst_parser")):
        pytest.skip("the extra site is not installed")
    site = tmp_path / "site"
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "trees")]
    subprocess.run([*build, "-b", "html", "docs", str(site)], cwd=ROOT, check=True)
    check = [sys.executable, "docs/check.py", str(site)]
    done = subprocess.run(check, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (site / "_static" / "explorer.js").stat().st_size > 100_000
