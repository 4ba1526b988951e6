"""What commands say of a converted model."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from attnc.cli.output import print_table
from attnc.pretrained.report import COLUMNS, ConversionReport, holds_for, moved, row
from attnc.records.fields import at_most

_SHOWN = 3  # names of parts that are left alone for one reason


def print_blocks(title: str, report: ConversionReport) -> None:
    """A row for each converted block."""
    table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for block in report.blocks:
        table.add_row(*map(Text, row(block)))
    print_table(table, whole=True)


def conversion_facts(report: ConversionReport) -> dict[str, str]:
    """What there is to say about the whole model."""
    rounding = report.certificate.rounding
    facts = {
        "model": f"{report.model}, {', '.join(sorted({block.dtype for block in report.blocks}))}",
        "blocks converted": f"{report.converted}, {claim(report)}",
        "rounding": f"adds at most {at_most(rounding)} to a block's output, {status(report)} too",
        "left alone": left_alone(report),
        "numbers added": f"{report.parameters_added:,} to {report.parameters:,} ({report.share:.3%})",
    }
    if report.assumptions:
        facts["assumed"] = "\n".join(report.assumptions)
    remarks = [f"{block.name}: {remark}" for block in report.blocks for remark in block.facts["remarks"]]
    if remarks:
        facts["remarks"] = "\n".join(remarks)
    return facts


def claim(report: ConversionReport) -> str:
    """What holds of every block, in exact arithmetic."""
    holds = sorted({holds_for(block) for block in report.blocks})
    return f"each within {report.approximation:g} of the original in exact arithmetic: {status(report)} for {', '.join(holds)}"


def status(report: ConversionReport) -> str:
    """'proved', or 'measured' if the domain of a block was measured on calibration."""
    return str(report.certificate.status)


def left_alone(report: ConversionReport) -> str:
    """The parts that were not converted, by the reason why.

    >>> from attnc.frontends.transformers import Skipped
    >>> parts = tuple(Skipped(f"layer.{i}.act", "left out by filter_fn") for i in range(5))
    >>> from attnc.pretrained.report import model_certificate
    >>> left_alone(ConversionReport(model_certificate("Bert", 1e-4, ()), parts, 0, 0, 0.0))
    '5 left out by filter_fn: layer.0.act, layer.1.act, layer.2.act, …'
    """
    reasons: dict[str, list[str]] = {}
    for part in report.skipped:
        reasons.setdefault(part.reason, []).append(part.name)
    lines = [
        f"{len(names)} {reason}: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
        for reason, names in reasons.items()
    ]
    return "\n".join(lines) or "nothing"


def measured_text(report: ConversionReport, inputs: str) -> str:
    """How far each output moved on what it was run on.

    >>> from attnc.pretrained.report import Difference, model_certificate
    >>> seen = (Difference("logits", 50, 2e-6, 1e-7),)
    >>> measured_text(ConversionReport(model_certificate("Bert", 1e-4, ()), (), 0, 0, 0.0, seen, 1), "on 1 random input")
    'on 1 random input: logits differs by at most 2.00e-06, median 1.00e-07'
    """
    return f"{inputs}: {'; '.join(map(moved, report.measured))}" if report.measured else inputs
