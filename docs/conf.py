"""Sphinx: the site, from the pages in this folder. `make site` builds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "extensions")]

project = "attnc"
author = "The attnc developers"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "plain_docstrings",
    "trimmed_code",
    "page_titles",
    "explorer_page",
]
exclude_patterns = ["extensions/**", "explorer/**"]
nitpicky = False

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "attnc"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_favicon = "static/icon.svg"
html_show_search_summary = False  # summaries are fetched, which file:// addresses do not allow
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options: dict[str, Any] = {
    "light_css_variables": {"color-brand-primary": "#1f63c9", "color-brand-content": "#1f63c9"},
    "dark_css_variables": {"color-brand-primary": "#6aa8ff", "color-brand-content": "#6aa8ff"},
}
pygments_style = "default"
pygments_dark_style = "github-dark"
