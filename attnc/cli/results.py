"""Heads, networks and conversions as text and as JSON: what they describe of themselves, and their certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnc.cli.output import NOT_PROVED, facts_text, print_json, run_facts

if TYPE_CHECKING:
    from attnc.records.certificate import Certificate, Status


@dataclass(frozen=True)
class Result:
    """A Head, a Network or a ConversionReport. `status` is that of its certificate, or UNKNOWN if the certificate does not apply
    to it as it is now; `reason` says why it is not proved."""

    value: Any
    status: Status
    reason: str | None

    @property
    def certificate(self) -> Certificate:
        found: Certificate = self.value.certificate
        return found

    def record(self) -> dict[str, Any]:
        """As JSON, with the certificate in full."""
        value, kind = self.value, self.certificate.subject
        record = {"kind": kind, "status": self.status, "reason": self.reason}
        if kind == "model":
            return {**record, "report": value.to_json()}
        if kind == "head":
            record |= {"heads": value.heads, "anchors": value.key.shape[1]}
        else:
            record |= {
                "parameters": sum(p.numel() for p in value.parameters()),
                **value.presentation.to_json(),
            }
        return {**record, "certificate": self.certificate.to_json()}

    def text(self, title: str, more: Mapping[str, str]) -> str:
        """The description and the certificate; if that does not apply, the reason instead."""
        value, applies = self.value, self.status is self.certificate.status
        if self.certificate.subject == "head":
            anchors = f"{value.key.shape[1]}{f' in each of {value.heads} heads' if value.heads > 1 else ''}"
            function = self.certificate.facts["function"]
            described = facts_text({"function": function, "design": value.design, "anchors": anchors})
        elif self.certificate.subject == "network":
            described = str(value.describe())
        else:
            described = str(value) if applies else value.model
        reason = facts_text({"status": "not certified", "reason": str(self.reason)})
        stated = str(self.certificate) if applies else reason
        return "\n\n".join((title, described, stated, facts_text(more)))


def result_of(value: Any) -> Result:
    """The result with its status."""
    from attnc.records.certificate import Status

    certificate: Certificate = value.certificate
    if certificate.subject == "model":
        reason = "the bounds of some blocks are for domains that were measured, not proved"
        return Result(value, certificate.status, None if certificate.proved else reason)
    changed = value.why_changed() if certificate.subject == "network" else None
    reason = changed or value.why_not_certified()
    known = changed is None and (reason is None or not certificate.proved)
    return Result(value, certificate.status if known else Status.UNKNOWN, reason)


def load_result(path: Path) -> Result:
    """What a file of `attnc head` or `attnc compile`, or a directory of `attnc convert`, contains."""
    from attnc.exporters.safetensors import load
    from attnc.pretrained.directory import read_report
    from attnc.records.certificate import Status

    if not path.is_dir():
        return result_of(load(path))
    report, reason = read_report(path)
    return result_of(report) if reason is None else Result(report, Status.UNKNOWN, reason)


def finish(
    value: Any, title: str, json: bool, about: Mapping[str, Any], seconds: float, files: Mapping[str, str]
) -> None:
    """Print what a command built. Exit with status 1 if its error is not proved."""
    result = result_of(value)
    if json:
        print_json({**about, **result.record(), "seconds": round(seconds, 3), "files": files})
    else:
        typer.echo(result.text(title, run_facts(seconds, files)))
    if result.reason is not None:
        raise typer.Exit(NOT_PROVED)
