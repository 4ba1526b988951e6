"""Links to pages whose text is a file name show the title of the page instead: "arithmetic.md" helps readers of the source."""

from __future__ import annotations

import re
from typing import Any

_FILE = re.compile(r"(?:docs/)?\w+\.md")


def show_titles(app: Any, doctree: Any, docname: str) -> None:
    from docutils import nodes  # beside Sphinx

    for link in doctree.findall(nodes.reference):
        target = link.get("refuri", "").split("#")[0]
        if not _FILE.fullmatch(link.astext()) or "://" in target:
            continue
        name = target.removesuffix(".html").rpartition("/")[2] or docname
        if (title := app.env.titles.get(name)) is not None:
            link[:] = [nodes.Text(title.astext().split(":")[0])]


def setup(app: Any) -> dict[str, Any]:
    app.connect("doctree-resolved", show_titles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
