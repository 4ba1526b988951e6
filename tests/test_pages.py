"""Code on the pages: sessions run (pytest collects every page), listings are files that are tested, commands exist."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import torch
from typer.main import get_command

import attnc
from attnc.cli.app import app
from attnc.functions import library

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(attnc [a-z].*?)(?:\s+#.*)?$", re.MULTILINE)


def blocks() -> Iterator[tuple[str, str, str]]:
    """Page, language and text of every block."""
    for path in PAGES:
        for match in BLOCK.finditer(path.read_text(encoding="utf-8")):
            yield path.name, match[1], match[2]


LISTINGS = [(name, text) for name, language, text in blocks() if language == "python" and ">>>" not in text]
COMMANDS = sorted(
    {
        command
        for _, language, text in blocks()
        if language in ("console", "text", "")
        for line in COMMAND.findall(text)
        for command in line.split(" && ")
    }
)


def test_the_kinds_of_blocks() -> None:
    """Nothing is in a language that no test knows."""
    kinds = Counter(language for _, language, _ in blocks() if not language.startswith("{"))
    assert set(kinds) <= {"python", "console", "text", ""}
    sessions = sum(language == "python" and ">>>" in text for _, language, text in blocks())
    assert sessions + len(LISTINGS) == kinds["python"] and sessions > 140


@pytest.mark.parametrize(("name", "text"), LISTINGS, ids=[name for name, _ in LISTINGS])
def test_listings_are_tested_code(name: str, text: str) -> None:
    """A listing is a part of a script in examples/, which tests/test_examples.py runs, or it runs here."""
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))]
    parts = text.strip().split("\n\n\n")  # definitions, not all that are in the script
    if any(all(part in source for part in parts) for source in sources):
        return
    assert name == "architecture.md" and text.startswith("def softcap")
    names = dict(vars(library))
    exec(text, names)
    capped = names["softcap"](2.0)
    head = attnc.head(capped, domain=(-8, 8), eps=1e-6, dtype=torch.float64)
    assert head.certificate.status == "proved" and head.certificate.bound <= 1e-6


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist_with_these_options(line: str) -> None:
    """The command and all its options are known, and their values have the right number."""
    words = shlex.split(line)[1:]
    command = get_command(app)
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    parser = command.make_parser(click.Context(command))
    parser.parse_args(words)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_have_rows(path: Path) -> None:
    """A benchmark that stored nothing must not leave an empty table."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^\|.*\|\n\|[-| :]+\|\n(?!\|)", text, re.MULTILINE) == []
