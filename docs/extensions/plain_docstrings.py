"""Docstrings are plain text: `code`, **bold**, *italics*, examples after >>>, indented formulas.

This turns them into reStructuredText."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

_CODE = re.compile(r"`([^`]+)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_ITALIC = re.compile(r"(?<![\w*])\*(\w[^*]*\w|\w)\*(?![\w*])")
_SPECIAL = re.compile(r"([\\*`|_])")


def to_rst(lines: list[str]) -> list[str]:
    """Paragraphs with their special characters escaped; indented paragraphs and examples as they are.

    >>> to_rst(["|w| of `x_i`:", "", "    a_i*b"])
    ['\\\\|w\\\\| of ``x_i``:', '', '.. code-block:: text', '', '   a_i*b', '']
    """
    found: list[str] = []
    for kind, paragraph in _paragraphs(lines):
        if kind == "words":
            found += [*(_escaped(line) for line in paragraph), ""]
        else:
            inner = textwrap.dedent("\n".join(paragraph)).splitlines()
            found += [f".. code-block:: {kind}", "", *(f"   {line}" for line in inner), ""]
    return found


def _paragraphs(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The paragraphs, each "words", "text" (indented) or "pycon" (an example); neighbours of one of these kinds are joined.
    An indented line directly below words ends their paragraph."""
    kind, held = "", list[str]()
    for line in [*lines, ""]:
        now = (
            ""
            if not line.strip()
            else "text"
            if line.startswith(" ")
            else "pycon"
            if line.startswith(">>>")
            else "words"
        )
        if kind == "pycon" and now:  # the output of an example
            now = "pycon"
        if held and now != kind:
            yield kind, held
            held = []
        kind = now
        if now:
            held.append(line)


def _escaped(line: str) -> str:
    """One line of words: code between backticks is literal, bold stays bold."""
    parts = _CODE.split(line)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"``{part}``" + (
                "\\ " if i + 1 < len(parts) and re.match(r"[\w’']", parts[i + 1]) else ""
            )
        else:
            words = _BOLD.split(part)
            parts[i] = "".join(f"**{w}**" if j % 2 else _plain(w) for j, w in enumerate(words))
    return "".join(parts)


def _plain(text: str) -> str:
    """Words that are not bold: italics stay, other special characters are escaped."""
    words = _ITALIC.split(text)
    return "".join(f"*{w}*" if j % 2 else _SPECIAL.sub(r"\\\1", w) for j, w in enumerate(words))


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst(lines)


def readable(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    """Signatures of dataclasses hold "<factory>", which is not Python: types beside it would not be linked."""
    return (
        (signature.replace("<factory>", "..."), returns) if signature and "<factory>" in signature else None
    )


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", readable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
