"""The README's console output is what the command prints, but for digits that differ between machines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from attnc.cli.app import app

README = (Path(__file__).parents[1] / "README.md").read_text()


def skeleton(text: str) -> list[str]:
    """Lines with numbers and the white space around columns folded."""
    lines = [
        re.sub(r"\s+", " ", re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", line)).strip()
        for line in re.sub(r"file://\S*/out/", "file:///…/out/", text).splitlines()
    ]
    return [line for line in lines if line]


def test_the_demo_prints_what_the_readme_shows(tmp_path: Path, monkeypatch) -> None:
    block = re.search(r"```console\n\$ attnc (head .*)\n((?:.*\n)*?)```", README)
    assert block is not None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    result = CliRunner().invoke(app, shlex.split(block.group(1)))
    assert result.exit_code == 0, result.output
    assert skeleton(result.output) == skeleton(block.group(2))
    assert (tmp_path / "out" / "gelu.safetensors").exists()
    assert (tmp_path / "out" / "gelu.html").exists()


def test_the_files_that_the_readme_points_to_exist() -> None:
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\(([^)h][^)]*)\)", README):
        assert (root / target).exists(), target


def test_the_demo_is_the_make_target() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    command = re.search(r"\$ (attnc head .*)", README)
    assert command is not None
    assert command.group(1) in makefile
