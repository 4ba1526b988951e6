"""Cards: how certificates, verdicts and modules are shown as HTML in a notebook.

A card has no script, no external file and no style sheet, takes its colours from the page where it can, and so reads on light and
dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_COLOURS = {"proved": "#1a7f37", "measured": "#9a6700", "refuted": "#cf222e"}
_GREY = "#6e7781"
_LINE = "rgba(128,128,128,.35)"
_CARD = (
    f"border:1px solid {_LINE};border-radius:8px;padding:.7em 1em;margin:.3em 0;max-width:60em;"
    "font-family:system-ui,sans-serif;font-size:14px;line-height:1.5;overflow-x:auto"
)
_CELL = "padding:.15em 1em .15em 0;text-align:left;vertical-align:top;border:0;background:none"
MANY = 40  # rows of a table that are shown


def card(title: str, status: str, lead: str, facts: Iterable[tuple[str, str]], *bodies: str) -> str:
    """A title with the status beside it, a sentence, facts by name, and HTML below them."""
    first = f"<div><b style='font-size:1.1em'>{escape(title)}</b> {pill(status)}</div>"
    said = f"<div style='margin:.3em 0;font-size:1.05em'>{escape(lead)}</div>" if lead else ""
    rows = [[name, text] for name, text in facts if text]
    return f"<div style='{_CARD}'>{first}{said}{''.join(bodies[:1])}{named(rows)}{''.join(bodies[1:])}</div>"


def pill(status: str) -> str:
    """A word in the colour of its status."""
    colour = _COLOURS.get(status.removesuffix(" in exact arithmetic"), _GREY)
    style = f"background:{colour};color:#fff;border-radius:1em;padding:.1em .7em"
    return f"<span style='{style};font-size:.85em;white-space:nowrap'>{escape(status)}</span>"


def named(rows: Iterable[Sequence[str]]) -> str:
    """Names and texts in two columns."""
    cells = (
        f"<tr style='background:none'><td style='{_CELL};opacity:.7;white-space:nowrap'>{escape(name)}</td>"
        f"<td style='{_CELL}'>{escape(text)}</td></tr>"
        for name, text in rows
    )
    body = "".join(cells)
    return (
        f"<table style='border-collapse:collapse;border:0;margin:.2em 0;font-size:14px'>{body}</table>"
        if body
        else ""
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls if it is wide; of many rows, the first."""
    line = f"border-bottom:1px solid {_LINE}"
    head = "".join(f"<th style='{_CELL};{line};white-space:nowrap'>{escape(name)}</th>" for name in header)
    cells = ("".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in row) for row in rows[:MANY])
    body = "".join(f"<tr style='background:none'>{row}</tr>" for row in cells)
    more = f"<div style='opacity:.7'>and {len(rows) - MANY:,} more</div>" if len(rows) > MANY else ""
    inner = f"<thead><tr style='background:none'>{head}</tr></thead><tbody>{body}</tbody>"
    style = "border-collapse:collapse;border:0;font-variant-numeric:tabular-nums;font-size:13px"
    return f"<div style='overflow-x:auto;margin:.4em 0'><table style='{style}'>{inner}</table>{more}</div>"


def lines(texts: Iterable[str]) -> str:
    """Small text, a line each."""
    return "".join(f"<div style='font-size:.95em;opacity:.85'>{escape(text)}</div>" for text in texts)


def folded(summary: str, body: str) -> str:
    """Something that opens with a click."""
    return f"<details style='margin:.3em 0'><summary style='cursor:pointer'>{escape(summary)}</summary>{body}</details>"


def chips(names: Sequence[str], most: int = 48) -> str:
    """Short names in boxes."""
    style = f"border:1px solid {_LINE};border-radius:4px;padding:0 .4em;margin:.1em;display:inline-block"
    shown = "".join(f"<code style='{style};background:none'>{escape(name)}</code>" for name in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def bound_name(proved: bool, exact: bool) -> str:
    """What a verdict calls a bound: that of a certificate that was not confirmed is only claimed."""
    name = "approximation" if exact else "bound"
    return name if proved else f"claimed {name}, not proved"
