"""Heads, networks and converted models as text and as JSON. Networks and conversions print their own description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnc.cli.output import number, print_facts
from attnc.errors import FileError

if TYPE_CHECKING:
    from attnc.network.head import Head
    from attnc.network.network import Network
    from attnc.pretrained.directory import Conversion
    from attnc.pretrained.report import ConversionReport

_SHOWN = 4  # items of a list


def load_saved(path: Path) -> Head | Network | Conversion:
    """What a file of `attnc head` or `attnc compile`, or a directory of `attnc convert`, holds."""
    from attnc.exporters.safetensors import load
    from attnc.network.literal import SelfAttentionNetwork
    from attnc.pretrained.directory import read_conversion

    if not path.is_dir():
        saved = load(path)
        if isinstance(saved, SelfAttentionNetwork):
            raise FileError(f"{path} holds a literal network: use attnc.load and attnc.verify in Python")
        return saved
    if not (path / "config.json").exists():
        raise FileError(f"cannot read {path}: the directory has no config.json; `attnc convert` writes one")
    return read_conversion(path)


def saved_record(saved: Head | Network | Conversion) -> dict[str, Any]:
    """Any of the three as JSON."""
    from attnc.network.head import Head
    from attnc.network.network import Network

    if isinstance(saved, Head):
        return head_record(saved)
    if isinstance(saved, Network):
        return network_record(saved)
    heads = len(list(saved.heads()))
    return {"kind": "model", "engine": saved.engine, "heads": heads, "report": saved.report.to_json()}


def head_record(head: Head) -> dict[str, Any]:
    """A head as JSON, with its certificate in full."""
    known = head.certificate
    return {
        "kind": "head",
        "function": known.facts["function"],
        "domain": {"lo": known.interval.lo, "hi": known.interval.hi},
        "design": head.design,
        "heads": head.heads,
        "anchors": head.key.shape[1],
        "dtype": known.dtype,
        **_certificate_record(head),
    }


def network_record(net: Network) -> dict[str, Any]:
    """A network as JSON, with its certificate in full."""
    from attnc.network.describe import COLUMNS, sizes
    from attnc.records.domains import domain_to_json

    parameters, anchors = sizes(net)
    return {
        "kind": "network",
        "domain": domain_to_json(net.domain),
        "output_shape": list(net.program.shapes[-1]),
        "dtype": net.certificate.dtype,
        "layers": [dict(zip(COLUMNS, row, strict=True)) for row in net.describe().rows],
        "parameters": parameters,
        "anchor_parameters": anchors,
        **net.presentation.to_json(),
        **_certificate_record(net),
    }


def _certificate_record(made: Head | Network) -> dict[str, Any]:
    certificate = made.certificate
    return {
        "bound": certificate.bound if certificate.proved else None,
        "quality": certificate.quality if certificate.proved else None,
        "certificate": certificate.to_json(),
    }


def network_status(net: Network) -> str:
    """'proved', 'measured', or 'not certified' if the certificate does not apply to the network as it is."""
    from attnc.network.describe import applies

    return str(net.certificate.status) if applies(net) else "not certified"


def conversion_status(report: ConversionReport) -> str:
    """'proved', or 'measured' if the domain of a block was measured on calibration."""
    return str(report.certificate.status)


def print_object(title: str, description: object, more: Mapping[str, str]) -> None:
    """Print a network or a conversion as it describes itself, then `more`."""
    typer.echo(f"{title}\n\n{description}")
    print_facts("", more)


def print_head(title: str, head: Head, more: Mapping[str, str]) -> None:
    """Print a head, its bound, and `more`."""
    known, witness, reason = head.certificate, head.certificate.witness, head.why_not_certified()
    assert witness is not None
    facts = {
        "function": str(known.facts["function"]),
        "domain": f"[{number(known.interval.lo)}, {number(known.interval.hi)}]",
        "design": head.design,
        "heads": str(head.heads),
        "anchors": f"{head.key.shape[1]}{' in each head' if head.heads > 1 else ''}",
        "dtype": known.dtype,
    }
    if not known.proved:
        facts["measured, not proved"] = f"at most {witness.error:.4g} at {known.facts['points']} points"
    elif reason is not None:
        facts["not certified"] = reason
    else:
        facts |= {
            "proved bound": number(known.bound),
            "  approximation": number(known.approximation),
            "  rounding": number(known.rounding),
            "witness": f"error {witness.error:.4g} at s = {number(witness.input[0])}",
            "quality": f"{known.quality:.3g} (bound / error of the witness; 1 is perfect)",
        }
    print_facts(title, {**facts, **more})


def claim(saved: Head | Network | Conversion) -> str:
    """The statement that `attnc verify` checks."""
    from attnc.network.describe import assumed, claim_text
    from attnc.network.head import Head
    from attnc.network.network import Network
    from attnc.pretrained.report import holds_for
    from attnc.program import Lookup

    if isinstance(saved, Head):
        known = saved.certificate
        inside = f"s in [{number(known.interval.lo)}, {number(known.interval.hi)}]"
        return f"|head(s) - {known.facts['function']}(s)| <= bound for {inside}, in {known.dtype}"
    if isinstance(saved, Network):
        if not saved.certificate.proved:
            return "none: |network - f| was measured"
        lookups = [step for step in saved.program.steps if isinstance(step, Lookup)]
        about = f" and for every {assumed(lookups[0])}" if lookups else ""
        where = f"on {saved.domain}, in {saved.certificate.dtype}"
        return f"{claim_text(saved)} <= bound in every output {where}{about}"
    inputs = ", ".join(sorted({holds_for(block) for block in saved.report.blocks}))
    sizes = f"approximation <= {saved.report.approximation:g}, for {inputs}"
    return f"|executed - original| <= approximation + rounding in every output of a block, {sizes}"


def shortened(items: Sequence[str]) -> str:
    """The first items of a list.

    >>> shortened(["a", "b"]), shortened(["a", "b", "c", "d", "e", "f"])
    ('a, b', 'a, b, c, d, … (6)')
    """
    return ", ".join(items[:_SHOWN]) + (f", … ({len(items)})" if len(items) > _SHOWN else "")
