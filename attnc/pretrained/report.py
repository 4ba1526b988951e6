"""The report of a conversion: the certificate of the model, the parts that were skipped, and the measured differences."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from attnc.domain import Ball, Normed
from attnc.errors import InputError
from attnc.frontends.transformers import SkipCause, Skipped
from attnc.progress import checked_call
from attnc.records.cards import card, folded, table
from attnc.records.certificate import HALF, Certificate, Status
from attnc.records.fields import at_most, checked_record, versions, with_fields
from attnc.records.window_numbers import FUNCTIONS, TailForm

if TYPE_CHECKING:
    from attnc.pretrained.for_input import InputCertificate


@dataclass(frozen=True)
class Difference:
    """An output of the converted model against that of the original, both executed, on samples."""

    output: str
    numbers: int
    largest: float
    median: float


@dataclass(frozen=True)
class ConversionReport:
    """The result of `convert_`. `certificate` has one child for each block that became attention; in each of its outputs

        |attention - original| <= approximation    both in exact arithmetic: attention over all anchors, as engine="softmax"
        |executed - original| <= bound             the converted block as executed, the original in exact arithmetic

    for every input of the block's `holds_for`. What a closed form differs from attention is part of the rounding of
    engine="closed-form". Its facts have the rounding of every engine (`roundings`), and `products`: what
    rounding leaves if the heads are exact, which the original has too when it is executed."""

    certificate: Certificate
    skipped: tuple[Skipped, ...]
    parameters: int  # of the model before
    parameters_added: int
    seconds: float = field(compare=False)  # 0 in a directory, whose bytes do not depend on the run
    measured: tuple[Difference, ...] = ()
    samples: int = 0
    read: str = ""  # the call whose executed operations were read
    memory: int = field(default=0, compare=False)  # of a process, at most, in bytes; 0 if it was not measured
    _model: ClassVar[weakref.ref[nn.Module] | None] = None  # of a report: the model that it is about

    def attached(self, model: nn.Module) -> ConversionReport:
        """This report, which now knows its model, as does its certificate; they keep no model alive."""
        from attnc.pretrained.store import why_changed

        vars(self)["_model"] = weakref.ref(model)
        vars(self)["certificate"] = self.certificate.held_by(model, why_changed)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_model"}

    @checked_call
    def for_input(self, inputs: object) -> InputCertificate:
        """How far the outputs of the converted model, as executed, are from the original model in exact arithmetic, for these
        inputs: a mapping of arguments, a tuple of them, or a tensor. The original runs in ball arithmetic.

        >>> import torch
        >>> from attnc.pretrained import convert_
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        >>> report = convert_(model, approximation=1e-4)
        >>> found = report.for_input(torch.randn(3, 5, 8))
        >>> found["output"].bound.shape, found["output"].largest < 1e-4
        (torch.Size([3, 5, 8]), True)
        """
        from attnc.pretrained.for_input import input_certificate

        model = None if self._model is None else self._model()
        if model is None:
            raise InputError(
                "this report is without its model: keep the model, and call attnc.pretrained.report_of(model).for_input(inputs)"
            )
        return input_certificate(model, inputs)

    @property
    def model(self) -> str:
        """The class of the model."""
        return self.certificate.name

    @property
    def approximation(self) -> float:
        """The requested bound in exact arithmetic."""
        return float(self.certificate.facts["requested"])

    @property
    def blocks(self) -> tuple[Certificate, ...]:
        """The certificates of the converted blocks."""
        return self._parts("block")

    @property
    def norms(self) -> tuple[Certificate, ...]:
        """The certificates of the converted norms."""
        return self._parts("norm")

    def _parts(self, subject: str) -> tuple[Certificate, ...]:
        return tuple(part for part in self.certificate.children if part.subject == subject)

    @property
    def converted(self) -> int:
        return len(self.blocks)

    @property
    def proved(self) -> bool:
        return self.certificate.proved

    def headline(self) -> str:
        """One line: how much was converted, and within which bound."""
        blocks = f"{self.converted} feed-forward block{'s' * (self.converted != 1)}"
        blocks += f" and {len(self.norms)} norm{'s' * (len(self.norms) != 1)}" if self.norms else ""
        share = self.parameters_added / max(1, self.parameters)
        spent = f" in {self.seconds:.1f} s" if self.seconds else ""
        spent += f" and {self.memory / 2**30:.2f} GiB of memory" if self.memory else ""
        return (
            f"{self.model}: {blocks} converted to attention{spent}, each within {self.approximation:g} in exact "
            f"arithmetic; {self.parameters_added:,} parameters added to {self.parameters:,} ({share:.3%})"
        )

    def notes(self) -> list[str]:
        """The lines below the table of blocks."""
        lapsed = self.certificate.why_lapsed()
        lines = [] if lapsed is None else [f"this does not apply to the model as it is now: {lapsed}"]
        lines += [_norms_line(self.norms)] if self.norms else []
        lines += map(_activation_line, self._parts("activation"))
        lines += [f"read from the operations of a call with {self.read}"] if self.read else []
        lines += sorted({note for block in self.blocks for note in _own_forms(block)})
        half = sorted({part.dtype for part in self.certificate.children} & {*HALF})
        lines += [f"{dtype}: {UNCLAIMED}" for dtype in half]
        normed = {block.dtype in HALF for block in self.blocks if isinstance(block.holds_for, Normed)}
        lines += [text for kind, text in ((False, ASSUMED), (True, ASSUMED_HALF)) if kind in normed]
        samples = f"{self.samples} sample{'s' * (self.samples != 1)}"
        lines += [
            f"measured on {samples}, converted against original: {one.output} differs by at most {one.largest:.2e}, median "
            f"{one.median:.2e}"
            for one in self.measured
        ]
        remarks = [(block.name, remark) for block in self.blocks for remark in block.facts["remarks"]]
        lines += [f"{name}: {remark}" for name, remark in shortened(remarks)]
        left = [(one.name, one.reason) for one in self.skipped]
        return lines + [f"skipped: {name} ({reason})" for name, reason in shortened(left)]

    def __str__(self) -> str:
        rows = [COLUMNS, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows]
        notes = self.notes()
        return "\n".join([self.headline(), "", *lines, *([""] if notes else []), *notes])

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each block. Of many blocks, a row for those with the same sizes, activation and heads, with their largest
        errors; the largest of all comes first."""
        if len(self.blocks) <= _MANY:
            return list(map(_row, self.blocks))
        groups: dict[object, list[Certificate]] = {}
        for block in self.blocks:
            groups.setdefault(_kind(block), []).append(block)
        ordered = [sorted(group, key=_errors, reverse=True) for group in groups.values()]
        ordered.sort(key=lambda group: _errors(group[0]), reverse=True)
        return [_row(worst, others) for worst, *others in ordered]

    def to_html(self) -> str:
        """A page without external files, with a row for every block."""
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in _row(block)) for block in self.blocks)
        rows = "".join(f"<tr>{row}</tr>" for row in cells)
        notes = "".join(f"<p>{escape(line)}</p>" for line in self.notes())
        return (
            f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(self.model)} as attention</title>"
            "<style>body{font:15px/1.5 system-ui;margin:2em;max-width:80em}table{border-collapse:collapse}"
            "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc;font-variant-numeric:tabular-nums}</style>"
            f"<h1>{escape(self.model)}</h1><p>{escape(self.headline())}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}</html>"
        )

    def _repr_html_(self) -> str:
        notes = folded("notes", "".join(f"<p>{escape(line)}</p>" for line in self.notes()))
        title, lapsed = f"{self.model} as attention", self.certificate.why_lapsed()
        status = str(self.certificate.status) if lapsed is None else "not certified"
        return card(title, status, lapsed or self.headline(), [], "", table(COLUMNS, self.rows()), notes)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it."""
        lists = {name: [asdict(one) for one in getattr(self, name)] for name in ("skipped", "measured")}
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**own, **lists, "certificate": self.certificate.to_json()}

    @classmethod
    def from_json(cls, record: object) -> ConversionReport:
        """Read the result of `to_json`; raises `CertificateError` if it was edited, or if a field is missing or unknown."""
        given = (
            {"memory": 0, **record} if isinstance(record, Mapping) else record
        )  # reports before 0.3 have no memory
        body = dict(checked_record(cls, given))
        for name, part in (("skipped", Skipped), ("measured", Difference)):
            body[name] = tuple(part(**checked_record(part, one)) for one in body[name])
        return cls(**{**body, "certificate": Certificate.from_json(body["certificate"])})


ASSUMED = (
    "every input: any input of the norm in front of the block, in every call that executes the operations that were read. "
    "Assumed: the executed norm returns a vector that is normalised to 2^-10. Layer norms in float32 do so for means of up to a "
    "few thousand standard deviations (docs/pretrained.md)"
)
ASSUMED_HALF = (
    "every input in half precision: any input of the norm in front of the block, in every call that executes the operations that "
    "were read. Assumed: the executed norm computes its mean square in float32, and rounding to half precision moves each of its "
    "numbers by at most a relative 2^-5 (docs/families.md)"
)
UNCLAIMED = (
    "approximation is proved for the stored weights in exact arithmetic; heads run in float32, and what the arithmetic of the "
    "model rounds is not claimed, so the error of the executed model is not proved"
)
COLUMNS = (
    "block", "activation", "neurons", "anchors", "interval", "engine", "approximation", "rounding", "holds for",
)  # fmt: skip
_MANY = 24  # blocks that are listed one by one
BLOCK_FACTS = {
    "family", "activation", "design", "engine", "neurons", "heads", "anchors", "interval", "roundings", "products", "norm",
    "also", "remarks",
}  # fmt: skip


def model_certificate(
    model: str, requested: float, blocks: Sequence[Certificate], made_with: Mapping[str, str] | None = None
) -> Certificate:
    """The certificate of a converted model: its bound holds for the outputs of each converted part, given its input. It is not a
    bound of the model's outputs."""
    for block in blocks:
        if block.subject == "block":
            with_fields(f"the facts of {block.name}", block.facts, BLOCK_FACTS)
    dtypes = {block.dtype for block in blocks}
    terms = ("approximation", "rounding", "bound")
    return Certificate(
        subject="model",
        name=model,
        status=_status({block.status for block in blocks}),
        **{term: max(getattr(block, term) for block in blocks) for term in terms},
        dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
        facts={"requested": requested},
        children=tuple(blocks),
        versions=dict(versions() if made_with is None else made_with),
    )


def _status(found: Collection[Status]) -> Status:
    """The status of a model with parts of these."""
    return next(s for s in (Status.UNKNOWN, Status.MEASURED, Status.PROVED) if s in found)


def _activation_line(part: Certificate) -> str:
    return (
        f"{part.name}: {part.facts['activation']} outside of blocks, one head of two keys, engine {part.facts['engine']}; "
        f"approximation at most {at_most(part.approximation)}, rounding {_rounding(part.rounding, 'at most ')} on "
        f"[{part.interval.lo:g}, {part.interval.hi:g}]"
    )


def _norms_line(norms: Sequence[Certificate]) -> str:
    """All norms in one line: they have the same heads, up to their number of features."""
    heads = sorted({norm.facts["heads"] for norm in norms})
    exact, off = (max(getattr(norm, term) for norm in norms) for term in ("approximation", "rounding"))
    rounding = _rounding(off, "at most ")
    balls = [norm.holds_for for norm in norms if isinstance(norm.holds_for, Ball)]
    square = min(ball.radius**2 / ball.features for ball in balls)
    return (
        f"norms: {len(norms)}, each of {' or '.join(map(str, heads))} heads with two keys, engine {norms[0].facts['engine']}; "
        f"approximation at most {at_most(exact)}, rounding {rounding}, for every token (of a LayerNorm: minus "
        f"its mean) with a mean square up to {square:.2g}"
    )


def _own_forms(block: Certificate) -> list[str]:
    """The formulas that a block executes by closed form and that are not derived from its anchors."""
    facts, name, runs = block.facts, block.facts["activation"], []
    if not facts["engine"].startswith("closed-form"):
        return []
    form = FUNCTIONS.get((name, block.dtype)) if facts["design"] == "lattice" else None
    if form is not None:
        tail = "the normal tail (Mills ratio)"
        runs.append(
            f"{name} is computed from {tail if isinstance(form, TailForm) else 'a sigmoid'}, not by attention"
        )
    if facts["heads"] > facts["neurons"]:
        runs.append("products of two values are computed as x*y, not by attention")
    return [f"closed-form: {one}; the formula is proved to approximate the function itself" for one in runs]


def _rounding(rounding: float, before: str = "") -> str:
    return f"{before}{at_most(rounding)}" if math.isfinite(rounding) else "not claimed"


def holds_for(block: Certificate) -> str:
    """The domain of a block in words."""
    if isinstance(block.holds_for, Normed):
        return "every input"
    return "the given box" if block.status is not Status.MEASURED else "inputs as in calibration"


def _row(block: Certificate, others: Sequence[Certificate] = ()) -> tuple[str, ...]:
    """A block as a row of the table; with others of its kind, the largest of each number."""
    facts, group = block.facts, (block, *others)
    ends = [one.facts["interval"] for one in group]
    lo, hi = min(lo for lo, _ in ends), max(hi for _, hi in ends)
    return (
        block.name + (f" and {len(others)} more" if others else ""), f"{facts['activation']} ({facts['design']})",
        str(facts["neurons"]), ", ".join(map(str, facts["anchors"])),
        f"[{math.floor(10 * lo) / 10}, {math.ceil(10 * hi) / 10}]", facts["engine"],
        at_most(max(one.approximation for one in group)), _rounding(max(one.rounding for one in group)), holds_for(block),
    )  # fmt: skip


def _kind(block: Certificate) -> object:
    """Equal for blocks with the same sizes, activation, engine and heads."""
    facts = block.facts
    about = tuple(facts[key] for key in ("family", "activation", "design", "engine", "neurons", "heads"))
    return about, block.dtype, holds_for(block), tuple(head.seal() for head in block.children)


def _errors(block: Certificate) -> tuple[float, float]:
    return block.bound, block.approximation


def shortened(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names and reasons. Of many, one line for each reason."""
    if len(lines) <= _MANY:
        return list(lines)
    names: dict[str, list[str]] = {}
    for name, reason in lines:
        names.setdefault(reason, []).append(name)
    more = {reason: f" and {len(found) - 1} more" * (len(found) > 1) for reason, found in names.items()}
    return [(found[0] + more[reason], reason) for reason, found in names.items()]


def joined_reports(before: ConversionReport, after: ConversionReport) -> ConversionReport:
    """One report of two conversions of a model; the second converted blocks that the first skipped."""
    names = {part.name for part in after.certificate.children}
    kept = (part for part in before.certificate.children if part.name not in names)
    blocks = (*kept, *after.certificate.children)
    requested = max(before.approximation, after.approximation)
    return replace(
        after,
        certificate=model_certificate(after.model, requested, blocks, after.certificate.versions),
        skipped=tuple(one for one in after.skipped if one.cause is not SkipCause.CONVERTED),
        parameters=before.parameters,
        parameters_added=before.parameters_added + after.parameters_added,
        seconds=round(before.seconds + after.seconds, 3),
    )
