"""Code blocks without the empty line at their end, which doctest needs in the source."""

from __future__ import annotations

from typing import Any


def trim(app: Any, doctree: Any) -> None:
    from docutils import nodes  # beside Sphinx

    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        if len(block.children) == 1 and text:
            block.rawsource = text
            block[:] = [nodes.Text(text)]


def setup(app: Any) -> dict[str, Any]:
    app.connect("doctree-read", trim)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
