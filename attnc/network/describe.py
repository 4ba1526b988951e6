"""What a network tells a person: a table of its layers, for terminals and notebooks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from attnc.errors import InputError
from attnc.network import pointwise
from attnc.network.altered import why_altered
from attnc.network.stages import Selection
from attnc.program import Lookup, Pointwise
from attnc.records.network_certificate import LayerClaim, NetworkCertificate

if TYPE_CHECKING:
    from attnc.network.head import Head
    from attnc.network.network import Network

COLUMNS = ("layer", "function", "heads", "anchors", "interval", "error in", "error out")
NONE = "—"  # nothing is proved here


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
    """Interval: what the anchors serve. Errors: proved bounds of |executed - exact|, the largest over the neurons.

    Where a network was fitted to f, they are proved against that network; where nothing is proved, there is a dash."""
    rows: list[tuple[str, ...]] = []
    for stage in net.stages:
        if isinstance(stage, pointwise.Pointwise):
            rows += _layer_rows(net, stage)
        elif isinstance(stage, Selection):
            rows.append(_selection_row(net, stage))
    return Description(tuple(rows), _summary(net))


def claims_of(net: Network) -> NetworkCertificate | None:
    """What is proved of the layers: against the source, or against a network that was fitted to it."""
    return net.certificate or (net.measured.fitted if net.measured is not None else None)


def claim_of(net: Network, layer: pointwise.Pointwise) -> LayerClaim | None:
    """What is proved of one layer."""
    known = claims_of(net)
    found = [] if known is None else [claim for claim in known.layers if claim.value == layer.value]
    return found[0] if found else None


def lookup_error(net: Network, selection: Selection) -> float | None:
    """The proved bound of a head whose anchors are points of the whole input, if there is one."""
    known = () if net.certificate is None else net.certificate.lookups
    found = [claim.error_out for claim in known if claim.value == selection.value]
    return found[0] if found else None


def function_label(net: Network, stage: pointwise.Pointwise | Selection) -> str:
    """The function that a layer or a lookup imitates: 'gelu', 'sort (callable)'."""
    step = net.program.steps[stage.value - 1]
    return step.function.label if isinstance(step, Pointwise) else f"{step.name or 'f'} (callable)"


def why_not_measured(net: Network) -> str | None:
    """None where the measurement was made of what runs now, else the reason why not."""
    if net.measured is None:
        return "its error was not measured"
    altered = why_altered(net)
    if altered is not None:
        return altered
    try:
        numbers = net.numbers()
        found, known = numbers.digests(), net.measured.digests
    except InputError as problem:
        return str(problem)
    if numbers.dtype != net.measured.dtype:
        return f"it was measured in {net.measured.dtype}, and is {numbers.dtype} now"
    changed = sorted(name for name in found.keys() | known.keys() if found.get(name) != known.get(name))
    return f"changed since it was measured: {', '.join(changed)}" if changed else None


def lattice(selection: Selection) -> tuple[int, ...] | None:
    """How many anchors stand along each axis, where they form a lattice: every coordinate of a key with every other.

    >>> import numpy as np
    >>> from attnc.records.network_numbers import Selection as Numbers
    >>> key = np.array([[u, v] for u in (-1.0, 0.0, 1.0) for v in (2.0, 4.0)])
    >>> lattice(Selection(Numbers(0, 1, np.zeros(2), key, np.zeros(6), np.zeros((6, 1)))))
    (3, 2)
    """
    key = selection.key.detach().cpu().numpy()
    counts = tuple(len(np.unique(column)) for column in key.T)
    whole = math.prod(counts) == len(key) and len(np.unique(key, axis=0)) == len(key)
    return counts if whole else None


def _layer_rows(net: Network, layer: pointwise.Pointwise) -> list[tuple[str, ...]]:
    claim, groups = claim_of(net, layer) if _applies(net) else None, layer.groups
    width = net.program.shapes[layer.value][-1]
    errors = (NONE, NONE) if claim is None else (f"{claim.error_in:.2e}", f"{claim.error_out:.2e}")
    rows: list[tuple[str, ...]] = []
    for g, (neurons, head) in enumerate(groups):
        name = layer.name if len(groups) == 1 else f"{layer.name}, group {g + 1}"
        heads = str(width if neurons is None else len(neurons))
        if net.form in ("one-head", "many-heads"):  # the tokens share them
            heads = str(head.heads)
        about = (f"{head.key.shape[1]} {head.design}", _interval(head))
        rows.append((name, function_label(net, layer), heads, *about, *errors))
    return rows


def _interval(head: Head) -> str:
    known = head.certificate or head.measured
    return NONE if known is None else f"[{known.domain.lo:g}, {known.domain.hi:g}]"


def _selection_row(net: Network, selection: Selection) -> tuple[str, ...]:
    step, counts = net.program.steps[selection.value - 1], lattice(selection)
    kind = "grid" if isinstance(step, Lookup) or net.measured is None else net.measured.method
    shape = f" {' × '.join(map(str, counts))}" if counts is not None and len(counts) > 1 else ""
    error = lookup_error(net, selection) if _applies(net) else None
    unproved = "measured" if why_not_measured(net) is None else NONE
    return (
        selection.name,
        function_label(net, selection),
        "1",
        f"{selection.anchors} {kind}{shape}",
        "the box",
        NONE,
        unproved if error is None else f"{error:.2e}",
    )


def _summary(net: Network) -> tuple[str, ...]:
    own, added = sizes(net)
    parts = f"parameters: {own:,}, of which anchors {added:,} ({100 * added / own:.3g} %)"
    form = [] if net.form == "layers" else [f"form: {form_text(net)}"]
    notes = net.notes if _applies(net) else ("how it was made is left out: its numbers have changed since",)
    return (*_known(net), parts, *form, *_theorem(net), *notes)


def _applies(net: Network) -> bool:
    """Whether what is said of the network is about its numbers as they are now."""
    if net.certificate is not None:
        return net.why_not_certified() is None
    return why_not_measured(net) is None


def form_text(net: Network) -> str:
    """'two-layer, neurons as tokens'; a lookup has no neurons."""
    return f"{net.form}, neurons as {net.layout}" if net.layout and net.layers else net.form


def sizes(net: Network) -> tuple[int, int]:
    """How many numbers the network has, and how many of them belong to anchors."""
    added = sum(p.numel() for part in (*net.layers, *net.selections) for p in part.parameters())
    return sum(p.numel() for p in net.parameters()), added


def claim_text(net: Network) -> str:
    """What a certificate of the network speaks of: '|network - program|', or of every f that its lookup allows."""
    return "|network - f|" if net.selections else "|network - program|"


def _known(net: Network) -> list[str]:
    """What is proved; where nothing is, what was measured; where a network was fitted, what is proved of that one alone."""
    if net.certificate is not None:
        return [*_proved(net, net.certificate), *_measured_too(net)]
    if net.measured is None:
        return ["nothing is known of its error"]
    reason = why_not_measured(net)
    if reason is not None:
        return [f"neither proved nor measured: {reason}"]
    seen, lines = net.measured, [str(net.measured)]
    lines.append(f"on {seen.domain}, in {seen.dtype}; mean square error {seen.mean_square:.3g}")
    if seen.fitted is not None:
        lines += [
            f"proved against the network that was fitted to f, and not against f: |network - fitted| <= {seen.fitted.bound:.4g}",
            "error in, error out: against the fitted network too",
        ]
    return lines


def _proved(net: Network, c: NetworkCertificate) -> list[str]:
    reason = net.why_not_certified()
    if reason is not None:
        return [f"not certified: {reason}"]
    lines = [
        f"{proved_word(net)}: {claim_text(net)} <= {c.bound:.4g} on {c.domain}, in {c.dtype}",
        f"of which approximation {c.approximation:.3g}, rounding {c.rounding:.3g}; largest error seen {c.witness.error:.3g}",
    ]
    for selection in net.selections:
        step = net.program.steps[selection.value - 1]
        if isinstance(step, Lookup):
            lines.insert(1, f"for every {assumed(step)}")
    return lines


def proved_word(net: Network) -> str:
    """'proved', and what it rests on where that is the user's word: 'proved for Lipschitz constant 1'."""
    steps = [step for step in net.program.steps if isinstance(step, Lookup)]
    return f"proved for Lipschitz constant {steps[0].lipschitz:g}" if steps else "proved"


def assumed(step: Lookup) -> str:
    """What is taken for granted of a function that is known at points."""
    points = f"f that has the stored values at {len(step.points):,} points, up to noise of {step.noise:.3g},"
    return f"{points} and the Lipschitz constant {step.lipschitz:g} in every output"


def _measured_too(net: Network) -> list[str]:
    if net.measured is None or why_not_measured(net) is not None:
        return []
    seen = net.measured
    return [f"measured: at most {seen.error:.3g} at {seen.points:,} random inputs (seed {seen.seed})"]


def _theorem(net: Network) -> list[str]:
    """The theorem's bound beside the proved one and the error that was seen."""
    if net.theorem is None:
        return []
    bound = net.theorem.bound
    beside = ["names no number" if bound is None else f"bound {bound:.4g}"]
    certified = net.why_not_certified() is None
    if net.certificate is not None and certified:
        beside.append(f"proved {net.certificate.bound:.4g}")
    if net.measured is not None and why_not_measured(net) is None:
        beside.append(f"measured {net.measured.error:.4g}")
    elif net.certificate is not None and certified:
        beside.append(f"largest error seen {net.certificate.witness.error:.4g}")
    return [f"theorem {net.theorem.name}: {', '.join(beside)}", f"  {net.theorem.statement}"]
