"""What commands say of a converted model."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from attnc.cli.output import print_table
from attnc.pretrained.report import ASSUMED, COLUMNS, ConversionReport, at_most, row, share

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
    rounding = max(block.rounding for block in report.blocks)
    facts = {
        "model": f"{report.model}, {', '.join(sorted({block.dtype for block in report.blocks}))}",
        "blocks converted": f"{report.converted}, {claim(report)}",
        "rounding": f"adds at most {at_most(rounding)} to a block's output, {status(report)} too",
        "left alone": left_alone(report),
        "numbers added": f"{report.parameters_added:,} to {report.parameters:,} ({share(report):.3%})",
    }
    if report.assumes:
        facts["assumed"] = ASSUMED
    remarks = [f"{block.name}: {remark}" for block in report.blocks for remark in block.remarks]
    if remarks:
        facts["remarks"] = "\n".join(remarks)
    return facts


def claim(report: ConversionReport) -> str:
    """What holds of every block, in exact arithmetic."""
    holds = sorted({block.holds_for for block in report.blocks})
    return f"each within {report.eps:g} of the original in exact arithmetic: {status(report)} for {', '.join(holds)}"


def status(report: ConversionReport) -> str:
    """'proved', or 'measured' where the bound of some block rests on calibration."""
    return "proved" if all(block.proved for block in report.blocks) else "measured"


def left_alone(report: ConversionReport) -> str:
    """The parts that were not converted, by the reason why.

    >>> from attnc.frontends.transformers import Skipped
    >>> parts = tuple(Skipped(f"layer.{i}.act", "left out by filter_fn") for i in range(5))
    >>> left_alone(ConversionReport("Bert", 1e-4, (), parts, 0, 0, 0.0))
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

    >>> from attnc.pretrained.report import Difference
    >>> moved = (Difference("logits", 50, 2e-6, 1e-7),)
    >>> measured_text(ConversionReport("Bert", 1e-4, (), (), 0, 0, 0.0, moved, 1), "on 1 random input")
    'on 1 random input: logits moved by at most 2.00e-06, median 1.00e-07'
    """
    moved = [
        f"{one.output} moved by at most {one.largest:.2e}, median {one.median:.2e}" for one in report.measured
    ]
    return f"{inputs}: {'; '.join(moved)}" if moved else inputs
