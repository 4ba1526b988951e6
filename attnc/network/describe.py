"""The descriptions of heads and networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnc.program import Lookup, Pointwise
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import at_most, round_up

if TYPE_CHECKING:
    from attnc.network import pointwise
    from attnc.network.head import Head
    from attnc.network.layer import LookupLayer
    from attnc.network.network import Network

COLUMNS = ("layer", "function", "heads", "anchors", "interval", "error in", "error out")
NONE = "—"  # not proved


def error_of(module: Head | Network, proved: str = "proved") -> str:
    """What is known about the error of a head or a network: 'at most 1e-05, proved'."""
    known = module.certificate
    if known.status is Status.MEASURED:
        return f"{known.error:.3g} measured at {known.facts['points']:,} points, not proved"
    reason = module.why_not_certified()
    return f"at most {known.bound:.4g}, {proved}" if reason is None else f"not certified: {reason}"


@dataclass(frozen=True)
class Description:
    """Rows of `COLUMNS`, and lines about the whole network."""

    rows: tuple[tuple[str, ...], ...]
    summary: tuple[str, ...]

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(COLUMNS, *self.rows, strict=True)]
        table = [COLUMNS, tuple("-" * width for width in widths), *self.rows]
        return "\n".join([*aligned(table), "", *self.summary])

    __repr__ = __str__


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows of a table as lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def described(net: Network) -> Description:
    """Interval: the domain of the heads. Errors: proved bounds of |executed - exact|, the largest over the neurons.

    If a network was fitted to f, they are proved against that network. A dash marks what is not proved."""
    c = net.certificate
    changed = net.why_not_certified() if c.proved else net.why_changed()
    known = None if changed is not None else c.claims
    claims = {claim.facts.get("value"): claim for claim in (() if known is None else known.children)}
    rows = [row for stage in net.stages for row in _rows(net, stage, claims.get(stage.value))]
    for lookup in net.selections:
        claim = claims.get(lookup.value)
        error = _up(claim.bound) if claim is not None else NONE if changed else "measured"
        function, anchors = function_label(net, lookup), _grid(net, lookup)
        rows.append((lookup.name, function, "1", anchors, "the box", NONE, error))
    return Description(tuple(rows), tuple(_summary(net, changed)))


def _rows(net: Network, stage: Any, claim: Certificate | None) -> list[tuple[str, ...]]:
    """The rows of a layer of attention. The error of a norm is that of the norm alone."""
    kind = getattr(stage, "kind", "pointwise")
    if kind == "pointwise":
        return _layer_rows(net, stage, claim)
    name = step_name(net, stage.value)
    if kind == "norm":
        norm = "LayerNorm" if stage.settings["centred"] else "RMSNorm"
        alone = NONE if claim is None else f"{_up(claim.bound)} alone"
        return [(name, norm, str(len(stage.slope)), "2 keys", NONE, NONE, alone)]
    if kind == "attend":
        return [(name, "attention", str(stage.settings["split"][0]), "tokens", NONE, NONE, NONE)]
    if kind == "product":
        errors = (NONE, NONE) if claim is None else (_up(claim.facts["error_in"]), _up(claim.bound))
        anchors = f"{stage.square.groups[0][1].key.shape[1]} square"
        return [(name, "product", str(2 * len(stage.scale)), anchors, NONE, *errors)]
    return []


def _up(bound: float) -> str:
    """A bound in three digits, rounded up, with the exponent that columns share."""
    return f"{round_up(bound, 3):.2e}"


def step_name(net: Network, value: int) -> str:
    """The number of a step among those that are attention, with its name in the source."""
    step, layers = net.program.steps[value - 1], net.program.layers
    if value - 1 not in layers:
        return step.label
    return f"layer {layers.index(value - 1) + 1}{f' ({step.name})' if step.name else ''}"


def function_label(net: Network, stage: pointwise.Pointwise | LookupLayer) -> str:
    """The function that a layer or a lookup approximates: 'gelu', 'sort (callable)'."""
    step = net.program.steps[stage.value - 1]
    return step.function.label if isinstance(step, Pointwise) else f"{step.name or 'f'} (callable)"


def lattice(lookup: LookupLayer) -> tuple[int, ...] | None:
    """The number of anchors along each axis if they form a lattice, else None."""
    key = lookup.key.detach().cpu().numpy()
    counts = tuple(len(np.unique(column)) for column in key.T)
    whole = math.prod(counts) == len(key) and len(np.unique(key, axis=0)) == len(key)
    return counts if whole else None


def _layer_rows(net: Network, layer: pointwise.Pointwise, claim: Certificate | None) -> list[tuple[str, ...]]:
    width = net.program.shapes[layer.value][-1]
    errors = (NONE, NONE) if claim is None else (_up(claim.facts["error_in"]), _up(claim.bound))
    rows: list[tuple[str, ...]] = []
    for name, (neurons, head) in zip(layer.names, layer.groups, strict=True):
        heads = str(width if neurons is None else len(neurons))
        if net.form in ("one-head", "many-heads"):  # the tokens share them
            heads = str(head.heads)
        interval = NONE if head.domain is None else f"[{head.domain.lo:g}, {head.domain.hi:g}]"
        anchors = f"{head.key.shape[1]} {head.design}"
        rows.append((name, function_label(net, layer), heads, anchors, interval, *errors))
    return rows


def _grid(net: Network, lookup: LookupLayer) -> str:
    """'441 grid 21 × 21'"""
    step, counts = net.program.steps[lookup.value - 1], lattice(lookup)
    kind = "grid" if isinstance(step, Lookup) else net.certificate.facts.get("method", "lattice")
    shape = f" {' × '.join(map(str, counts))}" if counts is not None and len(counts) > 1 else ""
    return f"{lookup.anchors} {kind}{shape}"


def _summary(net: Network, changed: str | None) -> list[str]:
    c = net.certificate
    if changed is None:
        lines = _proved(net, c) if c.proved else _measured(c)
    else:
        lines = [f"{'not certified' if c.proved else 'the error of this network is unknown'}: {changed}"]
    own = sum(p.numel() for p in net.parameters())
    added = sum(p.numel() for part in (*net.layers, *net.selections) for p in part.parameters())
    lines.append(f"parameters: {own:,}, of which anchors {added:,} ({100 * added / own:.3g} %)")
    if net.form != "layers":  # a lookup has no neurons
        layout = f", neurons as {net.layout}" if net.layout and net.layers else ""
        lines.append(f"form: {net.form}{layout}")
    if net.theorem is not None:
        bound = "no number" if net.theorem.bound is None else f"bound {net.theorem.bound:.4g}"
        lines += [f"theorem {net.theorem.name}: {bound}", f"  {net.theorem.statement}"]
    omitted = ("notes are omitted: the network has changed since it was made",)
    return [*lines, *(omitted if changed else net.notes)]


def _proved(net: Network, c: Certificate) -> list[str]:
    fitted = c.parts("network")
    quantity = "|network - f|" if net.selections or fitted else "|network - program|"
    lines = [f"{proved_word(net)}: {quantity} <= {at_most(c.bound)} on {c.holds_for}, in {c.dtype}"]
    lines += [
        f"for every f with the stored values at {len(step.points):,} point{'s' * (len(step.points) != 1)}, up to noise of "
        f"{step.noise:.3g}, and Lipschitz constant {step.lipschitz:g} in every output"
        for step in net.program.steps
        if isinstance(step, Lookup)
    ]
    seen = f"; largest error seen {c.error:.3g}" if c.error is not None else ""
    lines.append(f"approximation {at_most(c.approximation)}, rounding {at_most(c.rounding)}{seen}")
    if "points" in c.facts:
        error, points, seed = (c.facts[name] for name in ("error", "points", "seed"))
        lines.append(f"measured: at most {error:.3g} at {points:,} random inputs (seed {seed})")
    if fitted:
        lines.append("error in, error out: against the network that was fitted to f")
    return lines


def proved_word(net: Network) -> str:
    """'proved', or 'proved for Lipschitz constant 1' if the user stated it."""
    steps = [step for step in net.program.steps if isinstance(step, Lookup)]
    return f"proved for Lipschitz constant {steps[0].lipschitz:g}" if steps else "proved"


def _measured(c: Certificate) -> list[str]:
    lines = [
        f"measured, not proved: |network - f| <= {c.error:.3g} at {c.facts['points']:,} random inputs (seed {c.facts['seed']}); "
        f"with {100 * c.facts['confidence']:g} % confidence at most {c.fraction:.2g} of the box has a larger error",
        f"on {c.holds_for}, in {c.dtype}; mean square error {c.facts['mean_square']:.3g}",
    ]
    if c.claims is not None:
        lines += [
            f"proved against a network that was fitted to f, not against f: |network - fitted| <= {at_most(c.claims.bound)}",
            "error in, error out: also against the fitted network",
        ]
    return lines
