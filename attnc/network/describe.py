"""The description of a network: a table of its layers, for terminals and notebooks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from attnc.network.lookup import LookupLayer
from attnc.network.pointwise import AttentionLayer
from attnc.program import Lookup, Pointwise
from attnc.records.certificate import Certificate

if TYPE_CHECKING:
    from attnc.network.network import Network

COLUMNS = ("layer", "function", "heads", "anchors", "interval", "error in", "error out")
NONE = "—"  # not proved


@dataclass(frozen=True)
class Description:
    """Rows of `COLUMNS`, and lines about the whole network."""

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
    """Interval: the domain of the heads. Errors: proved bounds of |executed - exact|, the largest over the neurons.

    If a network was fitted to f, they are proved against that network. A dash marks what is not proved."""
    rows: list[tuple[str, ...]] = []
    for stage in net.stages:
        if isinstance(stage, AttentionLayer):
            rows += _layer_rows(net, stage)
        elif isinstance(stage, LookupLayer):
            rows.append(_lookup_row(net, stage))
    return Description(tuple(rows), _summary(net))


def claim_of(net: Network, layer: AttentionLayer | LookupLayer) -> Certificate | None:
    """The proved certificate of one layer, or None."""
    known = net.certificate.claims
    found = () if known is None else known.children
    return next((claim for claim in found if claim.facts.get("value") == layer.value), None)


def function_label(net: Network, stage: AttentionLayer | LookupLayer) -> str:
    """The function that a layer or a lookup approximates: 'gelu', 'sort (callable)'."""
    step = net.program.steps[stage.value - 1]
    return step.function.label if isinstance(step, Pointwise) else f"{step.name or 'f'} (callable)"


def lattice(lookup: LookupLayer) -> tuple[int, ...] | None:
    """The number of anchors along each axis if they form a lattice, else None.

    >>> from attnc.records.layers import Layer
    >>> key = np.array([[u, v] for u in (-1.0, 0.0, 1.0) for v in (2.0, 4.0)])
    >>> tensors = {"centre": np.zeros(2), "key": key, "offset": np.zeros(6), "values": np.zeros((6, 1))}
    >>> lattice(LookupLayer(Layer("lookup", (0,), 1, tensors)))
    (3, 2)
    """
    key = lookup.key.detach().cpu().numpy()
    counts = tuple(len(np.unique(column)) for column in key.T)
    whole = math.prod(counts) == len(key) and len(np.unique(key, axis=0)) == len(key)
    return counts if whole else None


def applies(net: Network) -> bool:
    """Whether the certificate is about the network as it is now."""
    return (net.why_not_certified() if net.certificate.proved else net.why_changed()) is None


def _layer_rows(net: Network, layer: AttentionLayer) -> list[tuple[str, ...]]:
    claim, groups = claim_of(net, layer) if applies(net) else None, layer.groups
    width = net.program.shapes[layer.value][-1]
    errors = (NONE, NONE) if claim is None else (f"{claim.facts['error_in']:.2e}", f"{claim.bound:.2e}")
    rows: list[tuple[str, ...]] = []
    for g, (neurons, head) in enumerate(groups):
        name = layer.name if len(groups) == 1 else f"{layer.name}, group {g + 1}"
        heads = str(width if neurons is None else len(neurons))
        if net.form in ("one-head", "many-heads"):  # the tokens share them
            heads = str(head.heads)
        interval = NONE if head.domain is None else f"[{head.domain.lo:g}, {head.domain.hi:g}]"
        rows.append(
            (name, function_label(net, layer), heads, f"{head.key.shape[1]} {head.design}", interval, *errors)
        )
    return rows


def _lookup_row(net: Network, lookup: LookupLayer) -> tuple[str, ...]:
    step, counts, now = net.program.steps[lookup.value - 1], lattice(lookup), applies(net)
    kind = "grid" if isinstance(step, Lookup) else net.certificate.facts.get("method", "grid")
    shape = f" {' × '.join(map(str, counts))}" if counts is not None and len(counts) > 1 else ""
    claim = claim_of(net, lookup) if now else None
    error = f"{claim.bound:.2e}" if claim is not None else "measured" if now else NONE
    about = (f"{lookup.anchors} {kind}{shape}", "the box", NONE, error)
    return (lookup.name, function_label(net, lookup), "1", *about)


def _summary(net: Network) -> tuple[str, ...]:
    own, added = sizes(net)
    parts = f"parameters: {own:,}, of which anchors {added:,} ({100 * added / own:.3g} %)"
    form = [] if net.form == "layers" else [f"form: {form_text(net)}"]
    notes = net.notes if applies(net) else ("notes are omitted: the network has changed since it was made",)
    return (*_error(net), parts, *form, *_theorem(net), *notes)


def form_text(net: Network) -> str:
    """'two-layer, neurons as tokens'; a lookup has no neurons."""
    return f"{net.form}, neurons as {net.layout}" if net.layout and net.layers else net.form


def sizes(net: Network) -> tuple[int, int]:
    """The number of parameters, and how many of them belong to anchors."""
    added = sum(p.numel() for part in (*net.layers, *net.selections) for p in part.parameters())
    return sum(p.numel() for p in net.parameters()), added


def claim_text(net: Network) -> str:
    """The quantity that the certificate bounds."""
    return "|network - f|" if net.selections else "|network - program|"


def _error(net: Network) -> list[str]:
    """The proved or measured error of the network."""
    c = net.certificate
    if c.proved:
        reason = net.why_not_certified()
        return [f"not certified: {reason}"] if reason is not None else [*_proved(net, c), *_measured_too(c)]
    reason = net.why_changed()
    if reason is not None:
        return [f"the error of this network is unknown: {reason}"]
    lines = [
        *measured_lines(c),
        f"on {c.holds_for}, in {c.dtype}; mean square error {c.facts['mean_square']:.3g}",
    ]
    if c.claims is not None:
        lines += [
            f"proved against a network that was fitted to f, not against f: |network - fitted| <= {c.claims.bound:.4g}",
            "error in, error out: also against the fitted network",
        ]
    return lines


def measured_lines(c: Certificate) -> list[str]:
    """The measured error, and the confidence in it."""
    return [
        f"measured, not proved: |network - f| <= {c.error:.3g} at {c.facts['points']:,} random inputs (seed {c.facts['seed']}); "
        f"with {100 * c.facts['confidence']:g} % confidence at most {c.fraction:.2g} of the box has a larger error"
    ]


def _proved(net: Network, c: Certificate) -> list[str]:
    lines = [f"{proved_word(net)}: {claim_text(net)} <= {c.bound:.4g} on {c.holds_for}, in {c.dtype}"]
    steps = [step for step in net.program.steps if isinstance(step, Lookup)]
    lines += [f"for every {assumed(step)}" for step in steps]
    seen = f"; largest error seen {c.error:.3g}" if c.error is not None else ""
    return [*lines, f"approximation {c.approximation:.3g}, rounding {c.rounding:.3g}{seen}"]


def proved_word(net: Network) -> str:
    """'proved', or 'proved for Lipschitz constant 1' if the user stated it."""
    steps = [step for step in net.program.steps if isinstance(step, Lookup)]
    return f"proved for Lipschitz constant {steps[0].lipschitz:g}" if steps else "proved"


def assumed(step: Lookup) -> str:
    """The assumptions about a function that is known at points."""
    points = f"f with the stored values at {len(step.points):,} points, up to noise of {step.noise:.3g},"
    return f"{points} and Lipschitz constant {step.lipschitz:g} in every output"


def _measured_too(c: Certificate) -> list[str]:
    if "points" not in c.facts:
        return []
    facts = c.facts
    return [
        f"measured: at most {facts['error']:.3g} at {facts['points']:,} random inputs (seed {facts['seed']})"
    ]


def _theorem(net: Network) -> list[str]:
    """The bound of the theorem beside the bound of the certificate and the measured error."""
    if net.theorem is None:
        return []
    c, bound = net.certificate, net.theorem.bound
    beside = ["no number" if bound is None else f"bound {bound:.4g}"]
    if applies(net):
        beside += [f"proved {c.bound:.4g}"] if c.proved else []
        if "points" in c.facts:
            beside.append(f"measured {c.facts['error'] if c.proved else c.error:.4g}")
        elif c.error is not None:
            beside.append(f"largest error seen {c.error:.4g}")
    return [f"theorem {net.theorem.name}: {', '.join(beside)}", f"  {net.theorem.statement}"]
