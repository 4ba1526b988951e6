"""What commands print: text or one JSON object on stdout; errors, and a progress bar on a terminal, on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnc.cli.messages import in_options
from attnc.errors import AttncError, UnsupportedError
from attnc.progress import Progress, shown

if TYPE_CHECKING:
    from attnc.records.certificate import Certificate, Status

NOT_PROVED, BAD_INPUT = 1, 2  # exit status
_SHOWN = 4  # items of a list


@contextmanager
def errors_reported(as_json: bool) -> Iterator[None]:
    """Print an AttncError on stderr, with `--json` also as an object on stdout. Exit with status 2; if runs failed, with 1."""
    try:
        yield
    except AttncError as problem:
        typer.secho("error: ", err=True, nl=False, fg="red", bold=True)
        message = in_options(str(problem))
        typer.echo(message, err=True)
        if as_json:
            record: dict[str, Any] = {"kind": type(problem).__name__, "message": message}
            if isinstance(problem, UnsupportedError):
                record["problems"] = [asdict(part) for part in problem.problems]
            about = {
                name: getattr(problem, name) for name in ("reachable", "failures") if hasattr(problem, name)
            }
            print_json({"error": {**record, **about}})
        raise typer.Exit(NOT_PROVED if hasattr(problem, "failures") else BAD_INPUT) from problem


def progress_bar(first: str) -> AbstractContextManager[Progress]:
    """A bar on stderr, removed at the end; nothing in a pipe. Call the result with a message, and with counts to fill the bar."""
    return shown(first, delay=0)


def print_json(record: Mapping[str, Any]) -> None:
    """Print one JSON object; infinity and NaN, which JSON does not have, become null."""
    typer.echo(json.dumps(_finite(record), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns. No cell is cut or folded."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (header, *rows))


def facts_text(facts: Mapping[str, str]) -> str:
    """Names and values in two columns, like a printed certificate."""
    width = max(13, 2 + max(map(len, facts)))
    return "\n".join(f"{name + ':':<{width}}{value}".rstrip() for name, value in facts.items())


def run_facts(seconds: float, files: Mapping[str, str]) -> dict[str, str]:
    """The run time, the files that were written, and how to open a report."""
    facts = {"time": f"{seconds:.2f} s", **({"written": ", ".join(files.values())} if files else {})}
    page = files.get("report")
    return facts if page is None else facts | {"open": f"{Path(page).resolve().as_uri()} (in a browser)"}


def shortened(items: Sequence[str]) -> str:
    """The first items of a list, and how many there are."""
    return ", ".join(items[:_SHOWN]) + (f", … ({len(items)})" if len(items) > _SHOWN else "")


def status_of(value: Any, changed: str | None = None) -> tuple[Status, str | None]:
    """The status of the certificate of a Head, a Network or a ConversionReport, or UNKNOWN if it does not apply to it as it is
    now; and the reason if it is not proved. `changed` says why it does not apply."""
    from attnc.records.certificate import Status

    certificate: Certificate = value.certificate
    if certificate.subject == "model":
        reason = _why_unproved(certificate)
    else:
        changed = value.why_changed() if certificate.subject == "network" else None
        reason = value.why_not_certified()
    applies = changed is None and (reason is None or not certificate.proved)
    return certificate.status if applies else Status.UNKNOWN, changed or reason


def _why_unproved(model: Certificate) -> str | None:
    """Why the certificate of a converted model is not proved, or None."""
    from attnc.records.certificate import HALF, Status

    half = sorted({part.dtype for part in model.children} & {*HALF})
    unclaimed = f"the approximation is proved, but nothing is claimed of rounding in {' and '.join(half)}"
    measured = "the bounds of some blocks are for domains that were measured, not proved"
    if any(part.status is Status.MEASURED for part in model.children):
        return measured
    return None if model.proved else unclaimed


def result_json(value: Any, status: Status, reason: str | None) -> dict[str, Any]:
    """A result as JSON, with the certificate in full."""
    certificate: Certificate = value.certificate
    record: dict[str, Any] = {"kind": certificate.subject, "status": status, "reason": reason}
    if certificate.subject == "model":
        return {**record, "report": value.to_json()}
    if certificate.subject == "head":
        record |= {"heads": value.heads, "anchors": value.key.shape[1]}
    elif certificate.subject == "tokens":
        record |= {"layers": certificate.facts["layers"], "coordinates": list(value.coordinates)}
    else:
        parameters = sum(p.numel() for p in value.parameters())
        record |= {"parameters": parameters, **value.presentation.to_json()}
    return {**record, "certificate": certificate.to_json()}


def result_text(value: Any, status: Status, reason: str | None, title: str, more: Mapping[str, str]) -> str:
    """What a result says of itself, and its certificate; if that does not apply, the reason instead."""
    certificate: Certificate = value.certificate
    applies = status is certificate.status
    if certificate.subject == "head":
        anchors = f"{value.key.shape[1]}{f' in each of {value.heads} heads' if value.heads > 1 else ''}"
        function = certificate.facts["function"]
        described = facts_text({"function": function, "design": value.design, "anchors": anchors})
    elif certificate.subject in ("network", "tokens"):
        described = str(value.describe())
    else:
        described = str(value) if applies else value.model
    stated = str(certificate) if applies else facts_text({"status": "not certified", "reason": str(reason)})
    return "\n\n".join((title, described, stated, facts_text(more)))


def finish(
    value: Any,
    title: str,
    json: bool,
    about: Mapping[str, Any],
    seconds: float,
    files: Mapping[str, str],
    against: str | None = None,
) -> None:
    """Print what a command built, and what its bound is `against`. Exit with status 1 if its error is not proved."""
    status, reason = status_of(value)
    if json:
        ran = {"seconds": round(seconds, 3), "files": files}
        about = {**about, **({} if against is None else {"against": against})}
        print_json({**about, **result_json(value, status, reason), **ran})
    else:
        facts = {} if against is None else {"against": against}
        typer.echo(result_text(value, status, reason, title, facts | run_facts(seconds, files)))
    if reason is not None:
        raise typer.Exit(NOT_PROVED)
