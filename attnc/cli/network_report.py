"""What commands say of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attnc.cli.output import number, print_table
from attnc.domain import Array, Box
from attnc.network.describe import (
    COLUMNS,
    assumed,
    claim_of,
    form_text,
    function_label,
    lattice,
    sizes,
)
from attnc.network.lookup import LookupLayer
from attnc.network.network import Network
from attnc.network.pointwise import AttentionLayer
from attnc.program import Lookup
from attnc.records.certificate import Status
from attnc.records.domains import domain_to_json

_SHOWN = 4  # coordinates of an input


def print_layers(title: str, net: Network) -> None:
    """The table of `Network.describe`."""
    table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for row in net.describe().rows:
        table.add_row(*map(Text, row))
    print_table(table, whole=True)


def network_facts(net: Network, word: str = "proved") -> dict[str, str]:
    """What there is to say about the whole; `word` says whether the bound was proved just now."""
    parameters, anchors = sizes(net)
    facts = {
        "domain": box_text(net.domain),
        "output": f"shape {net.program.shapes[-1]}",
        "dtype": net.certificate.dtype,
        **_error_facts(net, word),
        "parameters": f"{parameters:,}, of which anchors {anchors:,} ({_percent(anchors, parameters):.3g} %)",
    }
    if net.form != "layers":
        facts["form"] = form_text(net)
    if net.theorem is not None:
        bound = "" if net.theorem.bound is None else f", bound {number(net.theorem.bound)}"
        facts["theorem"] = f"{net.theorem.name}{bound}: {net.theorem.statement}"
    if net.notes:
        facts["notes"] = "\n".join(net.notes)
    return facts


def network_record(net: Network) -> dict[str, Any]:
    """What `--json` says: the facts of both tables, and the certificate or the measurement in full."""
    certificate, parameters, anchors = net.certificate, *sizes(net)
    return {
        "domain": domain_to_json(net.domain),
        "output_shape": list(net.program.shapes[-1]),
        "dtype": net.certificate.dtype,
        "program": net.program.digest(),
        "bound": certificate.bound if certificate.proved else None,
        "quality": certificate.quality if certificate.proved else None,
        "layers": [_layer(net, layer, g) for layer in net.layers for g in range(len(layer.groups))],
        "layer_errors_against": _against(net),
        "lookups": [_lookup(net, selection) for selection in net.selections],
        "parameters": parameters,
        "anchor_parameters": anchors,
        "anchor_percent": _percent(anchors, parameters),
        **net.presentation.to_json(),
        "certificate": certificate.to_json(),
    }


def status(net: Network) -> str:
    """'proved', 'measured', or 'not certified' if the certificate does not apply to the network as it is now."""
    if net.certificate.status is Status.MEASURED and net.why_changed() is None:
        return "measured"
    return "proved" if net.why_not_certified() is None else "not certified"


def box_text(domain: Box) -> str:
    """The box as it is read aloud.

    >>> box_text(Box(-1, 1, shape=(4,))), box_text(Box([0.0, -2.0], 1))
    ('[-1, 1], shape (4,)', 'from -2…0 to 1, shape (2,)')
    """
    lo, hi = _span(domain.lo), _span(domain.hi)
    ends = f"from {lo} to {hi}" if "…" in lo + hi else f"[{lo}, {hi}]"
    return f"{ends}, shape {domain.shape}"


def point_text(x: Sequence[float]) -> str:
    """An input in few digits, or the beginning of a long one; `--json` has it in full.

    >>> point_text((0.5, -1.0)), point_text((0.0,) * 6)
    ('(0.5, -1)', '(0, 0, 0, 0, … 6 numbers)')
    """
    shown = [f"{v:.4g}" for v in x[:_SHOWN]]
    return f"({', '.join(shown)}{f', … {len(x)} numbers' if len(x) > _SHOWN else ''})"


def _error_facts(net: Network, word: str) -> dict[str, str]:
    reason, certificate = net.why_not_certified(), net.certificate
    if not certificate.proved:
        return _measured_facts(net)
    if reason is not None:
        return {"not certified": reason}
    witness = certificate.witness
    assert witness is not None
    facts = {
        f"{word} bound": number(certificate.bound),
        "  approximation": number(certificate.approximation),
        "  rounding": number(certificate.rounding),
        "witness": f"error {witness.error:.4g} of output {witness.output} at x = {point_text(witness.input)}",
        "quality": f"{certificate.quality:.3g} (bound / error of the witness; 1 is perfect)",
    }
    known = [net.program.steps[selection.value - 1] for selection in net.selections]
    for step in (step for step in known if isinstance(step, Lookup)):
        facts["assumed"] = f"an {assumed(step)}"
    return facts


def _measured_facts(net: Network) -> dict[str, str]:
    """The measured |network - f|, and the proved bound against a network that was fitted to f."""
    certificate, reason = net.certificate, net.why_changed()
    seen, facts = certificate.witness, certificate.facts
    if seen is None or reason is not None:
        return {"not certified": f"the error is unknown: {reason}"}
    where = f"of output {seen.output} at x = {point_text(seen.input)}"
    sampled = f"at {facts['points']:,} random inputs (seed {facts['seed']})"
    part = f"at most {certificate.fraction:.2g} of the box has a larger error"
    rows = {
        "measured, not proved": f"|network - f| <= {seen.error:.4g} {sampled}",
        "largest": f"{seen.error:.4g} {where}",
        "mean square": f"{facts['mean_square']:.4g}",
        "confidence": f"{100 * facts['confidence']:g} % that {part}",
        "method": str(facts["method"]),
    }
    if certificate.claims is not None:
        bound = number(certificate.claims.bound)
        rows["fitted network"] = (
            f"proved: |network - fitted| <= {bound}, against the network that was fitted to f"
        )
    return rows


def _layer(net: Network, layer: AttentionLayer, g: int) -> dict[str, Any]:
    """One row of the table, its numbers in full."""
    neurons, head = layer.groups[g]
    claim, domain = claim_of(net, layer), head.domain
    return {
        "layer": layer.name,
        "group": g,
        "function": function_label(net, layer),
        "heads": net.program.shapes[layer.value][-1] if neurons is None else len(neurons),
        "anchors": int(head.key.shape[1]),
        "design": head.design,
        "interval": None if domain is None else {"lo": domain.lo, "hi": domain.hi},
        "error_in": None if claim is None else claim.facts["error_in"],
        "error_out": None if claim is None else claim.bound,
    }


def _lookup(net: Network, selection: LookupLayer) -> dict[str, Any]:
    counts, claim = lattice(selection), claim_of(net, selection)
    return {
        "name": selection.name,
        "function": function_label(net, selection),
        "anchors": selection.anchors,
        "lattice": None if counts is None else list(counts),
        "error_out": None if claim is None else claim.bound,
    }


def _against(net: Network) -> str | None:
    """The reference of the errors of the layers."""
    if net.certificate.claims is None:
        return None
    return "program" if net.certificate.proved else "fitted network"


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole


def _span(end: Array) -> str:
    low, high = float(end.min()), float(end.max())
    return number(low) if low == high else f"{number(low)}…{number(high)}"
