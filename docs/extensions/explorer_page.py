"""The script and the style sheet of the explorer, written beside the other static files and loaded by its page alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = "explorer"


def bundle() -> ModuleType:
    """docs/explorer/bundle.py."""
    path = Path(__file__).resolve().parent.parent / "explorer" / "bundle.py"
    spec = importlib.util.spec_from_file_location("explorer_bundle", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_files(app: Any, problem: Exception | None) -> None:
    """explorer.js and explorer.css, once the pages are written."""
    if problem is None and app.builder.format == "html":
        static, made = Path(app.outdir) / "_static", bundle()
        (static / "explorer.js").write_text(made.script(), encoding="utf-8")
        (static / "explorer.css").write_text(made.style(), encoding="utf-8")


def add_files(app: Any, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The links to both, on the explorer's page."""
    if pagename == PAGE:
        app.add_css_file("explorer.css")
        app.add_js_file("explorer.js", loading_method="defer")


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", write_files)
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
