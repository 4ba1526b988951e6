"""The explorer as one script, and as one page that needs no other file."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = (
    "networks", "page", "panel_head", "panel_surface", "panel_learner", "panel_transformer", "panel_tokens", "address",
    "main",
)  # fmt: skip
PANELS = ("head", "surface", "learner", "transformer", "norm", "tokens")


def script() -> str:
    """All sources and the exported numbers, as one classic script: modules cannot be loaded from file:// addresses."""
    data = (HERE / "data.json").read_text(encoding="utf-8").strip()
    parts = [(HERE / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SOURCES]
    return "\n".join(['(() => {\n"use strict";', f"const DATA = {data};", *parts, "})();\n"])


def style() -> str:
    """The style sheet of the panels."""
    return (HERE / "explorer.css").read_text(encoding="utf-8")


def standalone() -> str:
    """A page with the panels and nothing else."""
    places = "\n".join(f'<section class="ex" data-panel="{name}"></section>' for name in PANELS)
    safe = script().replace("</", "<\\/")
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>attnc explorer</title><link rel="icon" href="data:,">'
        f"<style>body {{ font-family: system-ui, sans-serif; max-width: 56rem; margin: 1rem auto; }}\n{style()}</style></head>\n"
        f"<body>\n{places}\n<script>{safe}</script>\n</body>\n</html>\n"
    )
