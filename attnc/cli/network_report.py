"""What commands say of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attnc.certify.network_certificate import GroupClaim, LayerClaim, box_json
from attnc.cli.output import number, print_table
from attnc.domain import Array, Box
from attnc.network.describe import COLUMNS
from attnc.network.network import Network

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
    certificate, parameters, anchors = net.certificate, *_sizes(net)
    return {
        "domain": box_text(certificate.domain),
        "output": f"shape {net.program.shapes[-1]}",
        "dtype": certificate.dtype,
        **_error_facts(net, word),
        "parameters": f"{parameters:,}, of which anchors {anchors:,} ({_percent(anchors, parameters):.3g} %)",
    }


def network_record(net: Network) -> dict[str, Any]:
    """What `--json` says: the facts of both tables, and the certificate in full."""
    certificate, parameters, anchors = net.certificate, *_sizes(net)
    return {
        "domain": box_json(certificate.domain),
        "output_shape": list(net.program.shapes[-1]),
        "dtype": certificate.dtype,
        "program": certificate.program,
        "bound": certificate.bound,
        "quality": certificate.quality,
        "layers": [
            _layer(net, layer, g, group)
            for layer in certificate.layers
            for g, group in enumerate(layer.groups)
        ],
        "parameters": parameters,
        "anchor_parameters": anchors,
        "anchor_percent": _percent(anchors, parameters),
        "certificate": certificate.to_json(),
    }


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
    if reason is not None:
        return {"not certified": reason}
    witness = certificate.witness
    return {
        f"{word} bound": number(certificate.bound),
        "  approximation": number(certificate.approximation),
        "  rounding": number(certificate.rounding),
        "witness": f"error {witness.error:.4g} of output {witness.output} at x = {point_text(witness.input)}",
        "quality": f"{certificate.quality:.3g} (bound / error of the witness; 1 is perfect)",
    }


def _layer(net: Network, layer: LayerClaim, g: int, group: GroupClaim) -> dict[str, Any]:
    """One row of the table, its numbers in full."""
    (module,) = (module for module in net.layers if module.value == layer.value)
    domain = group.head.domain
    return {
        "layer": layer.name,
        "group": g,
        "function": layer.function,
        "heads": group.neurons,
        "anchors": int(module.groups[g][1].key.shape[1]),
        "design": group.head.design,
        "interval": {"lo": domain.lo, "hi": domain.hi},
        "error_in": layer.error_in,
        "error_out": layer.error_out,
    }


def _sizes(net: Network) -> tuple[int, int]:
    """How many numbers the network has, and how many of them belong to anchors."""
    parameters = sum(p.numel() for p in net.parameters())
    return parameters, sum(p.numel() for layer in net.layers for p in layer.parameters())


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole


def _span(end: Array) -> str:
    low, high = float(end.min()), float(end.max())
    return number(low) if low == high else f"{number(low)}…{number(high)}"
