"""A page of text, tables and figures, written as Markdown or as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

FOLDER = "figures"  # beside the report


@dataclass(frozen=True)
class Text:
    """A paragraph without markup."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; all but the first `names` columns are numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


@dataclass(frozen=True)
class Picture:
    """A figure by name: `figures/<name>.svg`."""

    name: str
    caption: str


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Text | Table | Picture, ...]


@dataclass(frozen=True)
class Page:
    title: str
    lead: tuple[Text | Table, ...]
    sections: tuple[Section, ...]


def page_markdown(page: Page) -> str:
    """The page as Markdown.

    >>> print(page_markdown(Page("Results", (Text("Two runs."),), ())), end="")
    # Results
    <BLANKLINE>
    Two runs.
    """
    parts = [f"# {page.title}", *map(_markdown, page.lead)]
    for section in page.sections:
        parts += [f"## {section.title}", *map(_markdown, section.blocks)]
    return "\n\n".join(parts) + "\n"


def page_html(page: Page) -> str:
    """The page as one file that loads nothing but its figures; light or dark as the reader's system is.

    >>> "<h1>a &lt; b</h1>" in page_html(Page("a < b", (), ()))
    True
    """
    body = [f"<h1>{escape(page.title)}</h1>", *map(_html, page.lead), _contents(page.sections)]
    for number, section in enumerate(page.sections, 1):
        blocks = "\n".join(map(_html, section.blocks))
        body.append(f'<section id="s{number}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>')
    return _FRAME.format(title=escape(page.title), style=_STYLE, body="\n".join(body))


def _markdown(block: Text | Table | Picture) -> str:
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Picture):
        return f"![{block.caption}]({FOLDER}/{block.name}.svg)"
    rule = ["---"] * block.names + ["---:"] * (len(block.head) - block.names)
    rows = [block.head, rule, *block.rows]
    return f"**{block.title}**\n\n" + "\n".join(_markdown_row(row) for row in rows)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _html(block: Text | Table | Picture) -> str:
    if isinstance(block, Text):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Picture):
        caption, source = escape(block.caption), f"{FOLDER}/{escape(block.name)}.svg"
        return (
            f'<figure><a href="{source}"><img src="{source}" alt="{caption}"></a>'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    head = _html_row(block.head, block.names, "th")
    rows = "\n".join(_html_row(row, block.names, "td") for row in block.rows)
    return (
        f'<div class="table"><table>\n<caption>{escape(block.title)}</caption>\n'
        f"<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _html_row(cells: Sequence[str], names: int, tag: str) -> str:
    marks = (' class="name"' if i < names else "" for i in range(len(cells)))
    return (
        "<tr>"
        + "".join(f"<{tag}{m}>{escape(c)}</{tag}>" for m, c in zip(marks, cells, strict=True))
        + "</tr>"
    )


def _contents(sections: Sequence[Section]) -> str:
    items = "".join(f'<li><a href="#s{i}">{escape(s.title)}</a></li>' for i, s in enumerate(sections, 1))
    return f"<nav><ol>{items}</ol></nav>" if sections else ""


_FRAME = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
_STYLE = """:root { --ink: #222; --soft: #5c5c5c; --paper: #fff; --line: #d9d9d9; --band: #f5f6f8; --link: #0062a3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --soft: #a3a3a3; --paper: #16181c; --line: #383c44; --band: #1f2329; --link: #74b9ec; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.8rem; line-height: 1.25; }
h2 { font-size: 1.3rem; margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; }
a { color: var(--link); }
nav { color: var(--soft); }
.table { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0 0.6rem 0.4rem 0; }
th, td { padding: 0.3rem 0.7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
.name { text-align: left; }
tbody tr:nth-child(even) { background: var(--band); }
figure { margin: 1.5rem 0; }
figure img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
figcaption { color: var(--soft); font-size: 0.875rem; margin-top: 0.4rem; max-width: 46rem; }
"""
