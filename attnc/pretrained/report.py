"""What a conversion did, and what is proved of it: as text, JSON and HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from typing import Any

from attnc.errors import CertificateError
from attnc.frontends.transformers import CONVERTED_BEFORE, Skipped
from attnc.records.fields import round_up


@dataclass(frozen=True)
class BlockReport:
    """One feed-forward block. For whatever enters it that `holds_for` names, each output satisfies

        |converted - original| <= exact              both in exact arithmetic
        |executed - original| <= exact + rounding    the converted block as the dtype runs it, the original in exact arithmetic

    `rounding` is that of the engine chosen (`roundings` by engine). Of it, `products` is what remains where every head is exact:
    the rounding of the matrix products, which the original has when it is executed too (and, where it is gated, that of the
    sums whose squares make the product)."""

    name: str
    family: str
    activation: str
    design: str
    engine: str
    neurons: int
    heads: int
    anchors: tuple[int, ...]  # by group of neurons, the farthest reach first
    interval: tuple[float, float]  # that holds every pre-activation
    holds_for: str
    dtype: str
    exact: float
    rounding: float
    roundings: Mapping[str, float]
    products: float
    norm: str | None = None
    also: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def bound(self) -> float:
        """At least |executed - original|, rounding included."""
        return round_up(self.exact + self.rounding)

    @property
    def proved(self) -> bool:
        """Whether the bound is proved for all that `holds_for` names; what calibration saw is no proof."""
        return "measured" not in self.holds_for


@dataclass(frozen=True)
class Difference:
    """An output of the converted model against the original one, both executed, on samples."""

    output: str
    numbers: int
    largest: float
    median: float


@dataclass(frozen=True)
class ConversionReport:
    """The blocks that became attention, those left alone and why, and how far the outputs moved on samples."""

    model: str
    eps: float
    blocks: tuple[BlockReport, ...]
    skipped: tuple[Skipped, ...]
    parameters: int  # of the model before
    parameters_added: int
    seconds: float
    measured: tuple[Difference, ...] = ()
    samples: int = 0
    read: str = ""  # the call whose executed operations were read
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def assumes(self) -> bool:
        """Whether a bound rests on what is assumed of executed norms."""
        return any(block.holds_for == EVERY_INPUT for block in self.blocks)

    @property
    def converted(self) -> int:
        return len(self.blocks)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it; `from_json` reads it back."""
        blocks = [{**asdict(block), "bound": block.bound, "proved": block.proved} for block in self.blocks]
        assumes = ASSUMED if self.assumes else None
        return {**asdict(self), "blocks": blocks, "converted": self.converted, "assumes": assumes}

    @classmethod
    def from_json(cls, record: object) -> ConversionReport:
        """What `to_json` wrote; a missing field or an unknown one is refused."""
        body = _fields(cls, record, {"converted", "assumes"})
        blocks = [_fields(BlockReport, block, {"bound", "proved"}) for block in body["blocks"]]
        for said, block in zip(body["blocks"], blocks, strict=True):
            if said.get("bound") != _block(block).bound:
                raise CertificateError(
                    f"the bound of {block['name']} is not the sum of its terms: the report was edited"
                )
        return cls(
            **{
                **body,
                "blocks": tuple(_block(block) for block in blocks),
                "skipped": tuple(Skipped(**_fields(Skipped, s)) for s in body["skipped"]),
                "measured": tuple(Difference(**_fields(Difference, m)) for m in body["measured"]),
            }
        )

    def __str__(self) -> str:
        return "\n".join([self.headline(), "", *_aligned([COLUMNS, *map(row, self.blocks)]), *_below(self)])

    def headline(self) -> str:
        """One line: what was converted, within what."""
        blocks = f"{self.converted} feed-forward block{'s' * (self.converted != 1)}"
        return (
            f"{self.model}: {blocks} became attention in {self.seconds:.1f} s, each within {self.eps:g} in exact arithmetic; "
            f"{self.parameters_added:,} numbers added to {self.parameters:,} ({share(self):.3%})"
        )

    def to_html(self) -> str:
        """One page that needs nothing else."""
        head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row(block)) + "</tr>"
            for block in self.blocks
        )
        notes = "".join(f"<p>{escape(line)}</p>" for line in _below(self) if line)
        return (
            f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(self.model)} as attention</title>"
            "<style>body{font:15px/1.5 system-ui;margin:2em;max-width:80em}table{border-collapse:collapse}"
            "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc;font-variant-numeric:tabular-nums}</style>"
            f"<h1>{escape(self.model)}</h1><p>{escape(self.headline())}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}</html>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()


EVERY_INPUT = "every input"
ASSUMED = (
    "every input: whatever enters the norm in front of the block, in every call that executes the operations that were read, as "
    "long as the norm as executed returns a vector normalised to 2^-10 (float32 layer norms do so up to some thousand standard "
    "deviations of mean: docs/pretrained.md)"
)
COLUMNS = (
    "block",
    "activation",
    "neurons",
    "anchors",
    "interval",
    "engine",
    "exact",
    "rounding",
    "holds for",
)


def row(block: BlockReport) -> tuple[str, ...]:
    """A block as the table shows it."""
    lo, hi = block.interval
    anchors = ", ".join(map(str, block.anchors))
    return (
        block.name, f"{block.activation} ({block.design})", str(block.neurons), anchors,
        f"[{math.floor(10 * lo) / 10}, {math.ceil(10 * hi) / 10}]", block.engine, at_most(block.exact), at_most(block.rounding),
        block.holds_for,
    )  # fmt: skip


def at_most(bound: float) -> str:
    """Three digits, rounded up: what is printed of a bound is a bound.

    >>> at_most(2.431e-05), at_most(0.0)
    ('2.44e-05', '0.00e+00')
    """
    return f"{round_up(bound, 3):.2e}"


def share(report: ConversionReport) -> float:
    """Numbers added, of those there were."""
    return report.parameters_added / max(1, report.parameters)


def _below(report: ConversionReport) -> list[str]:
    lines = [""]
    if report.read:
        lines.append(f"read from the operations that a call with {report.read} executes")
    if report.assumes:
        lines.append(ASSUMED)
    for difference in report.measured:
        lines.append(
            f"measured on {report.samples} sample{'s' * (report.samples != 1)}, converted against original as executed: "
            f"{difference.output} differs by at most {difference.largest:.2e}, median {difference.median:.2e}"
        )
    lines += [f"{block.name}: {remark}" for block in report.blocks for remark in block.remarks]
    lines += [f"left alone: {one.name} ({one.reason})" for one in report.skipped]
    return lines if len(lines) > 1 else []


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in rows]


def _block(record: dict[str, Any]) -> BlockReport:
    sequences = {name: tuple(record[name]) for name in ("anchors", "interval", "also", "remarks")}
    return BlockReport(**{**record, **sequences})


def _fields(cls: type, record: object, derived: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    known = {f.name for f in fields(cls)}
    if not isinstance(record, Mapping) or set(record) - derived != known:
        raise CertificateError(
            f"this is not a {cls.__name__}: the fields {', '.join(sorted(known))} are expected"
        )
    return {name: value for name, value in record.items() if name in known}


def joined_reports(before: ConversionReport, after: ConversionReport) -> ConversionReport:
    """One report of two conversions of a model, the second of blocks that the first left alone."""
    names = {block.name for block in after.blocks}
    return replace(
        after,
        eps=max(before.eps, after.eps),
        blocks=(*(block for block in before.blocks if block.name not in names), *after.blocks),
        skipped=tuple(one for one in after.skipped if one.reason != CONVERTED_BEFORE),
        parameters=before.parameters,
        parameters_added=before.parameters_added + after.parameters_added,
        seconds=round(before.seconds + after.seconds, 3),
    )


def as_text(report: ConversionReport) -> str:
    """The JSON of a report, as a file holds it."""
    return json.dumps(report.to_json(), indent=2, allow_nan=False)
