"""What a network tells a person: a table of its layers, for terminals and notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnc.network.network import Network

COLUMNS = ("layer", "function", "heads", "anchors", "interval", "error in", "error out")


@dataclass(frozen=True)
class Description:
    """Rows by `COLUMNS`, and what there is to say about the whole."""

    rows: tuple[tuple[str, ...], ...]
    summary: tuple[str, ...]

    def __str__(self) -> str:
        table = [COLUMNS, *self.rows]
        widths = [max(len(row[c]) for row in table) for c in range(len(COLUMNS))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        rule = "  ".join("-" * w for w in widths)
        return "\n".join([lines[0], rule, *lines[1:], "", *self.summary])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(c)}</th>" for c in COLUMNS)
        body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        notes = "".join(f"<li>{escape(line)}</li>" for line in self.summary)
        return f"<table><tr>{head}</tr>{body}</table><ul>{notes}</ul>"


def described(net: Network) -> Description:
    """Interval: what the anchors serve. Errors: proved bounds of |executed - exact|, the largest over the neurons."""
    rows = []
    for layer in net.certificate.layers:
        for g, group in enumerate(layer.groups):
            name = layer.name if len(layer.groups) == 1 else f"{layer.name}, group {g + 1}"
            domain = group.head.domain
            interval = f"[{domain.lo:g}, {domain.hi:g}]"
            heads, anchors = str(group.neurons), f"{_anchors(net, layer.value, g)} {group.head.design}"
            rows.append(
                (
                    name,
                    layer.function,
                    heads,
                    anchors,
                    interval,
                    f"{layer.error_in:.2e}",
                    f"{layer.error_out:.2e}",
                )
            )
    return Description(tuple(rows), _summary(net))


def _anchors(net: Network, value: int, group: int) -> int:
    (layer,) = (layer for layer in net.layers if layer.value == value)
    return int(layer.groups[group][1].key.shape[1])


def _summary(net: Network) -> tuple[str, ...]:
    c = net.certificate
    own = sum(p.numel() for p in net.parameters())
    added = sum(p.numel() for layer in net.layers for p in layer.parameters())
    reason = net.why_not_certified()
    proved = f"proved: |network - program| <= {c.bound:.4g} on {c.domain}, in {c.dtype}"
    if reason is not None:
        proved = f"not certified: {reason}"
    return (
        proved,
        f"of which approximation {c.approximation:.3g}, rounding {c.rounding:.3g}; largest error seen {c.witness.error:.3g}",
        f"parameters: {own:,}, of which anchors {added:,} ({100 * added / own:.3g} %)",
    )
