"""`attnc show`: what a file or a directory holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from attnc.cli.converted_report import conversion_facts, measured_text, print_blocks, status
from attnc.cli.head_report import head_facts, head_record
from attnc.cli.network_report import network_facts, network_record, print_layers
from attnc.cli.output import NOT_PROVED, errors_reported, print_facts, print_json
from attnc.errors import FileError
from attnc.exporters.safetensors import load
from attnc.network.head import Head
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.network import Network
from attnc.pretrained.directory import Conversion, changed_heads, read_conversion

_SHOWN = 3  # names of heads that changed
_PATH = "A file of `attnc head` or `attnc compile`, or a directory of `attnc convert`."


def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help=_PATH)],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show what the file of a head or a network, or the directory of a converted model, holds, without proving it anew.

    Exit status: 0 its certificates apply to the numbers stored, 1 they do not, 2 not attnc's, or damaged or edited.

    Example: attnc show net.safetensors
    """
    with errors_reported(json):
        certified = _show_directory(path, json) if path.is_dir() else _show_file(path, json)
    if not certified:
        raise typer.Exit(NOT_PROVED)


def _show_file(path: Path, json: bool) -> bool:
    made = load(path)
    if isinstance(made, SelfAttentionNetwork):
        return _show_literal(path, made, json)
    if json:
        print_json(_record(path, made))
    else:
        _print(path, made)
    return made.why_not_certified() is None


def _show_literal(path: Path, literal: SelfAttentionNetwork, json: bool) -> bool:
    reason, certificate = literal.why_not_certified(), literal.certificate
    if json:
        about = {"file": str(path), "kind": "literal", "certified": reason is None, "reason": reason}
        print_json({**about, "form": literal.form, "certificate": str(certificate).splitlines()})
    else:
        typer.echo(f"{path}: {literal.describe()}\n{certificate}")
    return reason is None


def _show_directory(path: Path, json: bool) -> bool:
    if not (path / "config.json").exists():
        raise FileError(
            f"cannot read {path}: a directory without config.json was not written by `attnc convert`"
        )
    known = read_conversion(path)
    reason = _why_not(changed_heads(path, known))
    if reason is None and status(known.report) != "proved":
        reason = "the bounds of some blocks are measured on calibration, not proved"
    if json:
        about = {"file": str(path), "kind": "model", "certified": reason is None, "reason": reason}
        print_json({**about, "heads": len(list(known.heads())), **known.report.to_json()})
    else:
        _print_directory(path, known, reason)
    return reason is None


def _why_not(changed: tuple[str, ...]) -> str | None:
    """Which heads their certificates do not speak of."""
    if not changed:
        return None
    names = ", ".join(changed[:_SHOWN]) + (", …" if len(changed) > _SHOWN else "")
    return f"{len(changed)} head{'s' * (len(changed) > 1)} changed since certified: {names}"


def _print_directory(path: Path, known: Conversion, reason: str | None) -> None:
    report, heads = known.report, len(list(known.heads()))
    if reason is not None and status(report) == "proved":
        print_facts(f"{path}: a converted model", {"model": report.model, "not certified": reason})
        return
    print_blocks(f"{path}: a transformer as attention", report)
    facts = {**conversion_facts(report), "heads stored": f"{heads}, those of their certificates"}
    if report.measured:
        facts["measured"] = measured_text(report, f"on {report.samples} input{'s' * (report.samples > 1)}")
    if reason is not None:
        facts["not certified"] = reason
    facts["made with"] = _versions(report.certificate.versions)
    facts["note"] = "read, not proved anew; attnc.from_pretrained compares the weights too"
    print_facts("the whole model", facts)


def _record(path: Path, made: Head | Network) -> dict[str, Any]:
    reason = made.why_not_certified()
    about = head_record(made) if isinstance(made, Head) else network_record(made)
    return {
        "file": str(path),
        "kind": "head" if isinstance(made, Head) else "network",
        "certified": reason is None,
        "reason": reason,
        **about,
        "versions": made.certificate.versions,
    }


def _print(path: Path, made: Head | Network) -> None:
    if isinstance(made, Head):
        title, facts = head_facts(made, "certified")
        title = f"{path}: {title}"
    else:
        print_layers(f"{path}: a network of softmax attention", made)
        title, facts = "the whole network", network_facts(made, "certified")
        facts["program"] = f"SHA-256 {made.program.digest()[:16]}…"
    facts["made with"] = _versions(made.certificate.versions)
    if made.certificate.proved:
        facts["note"] = f"read, not proved anew: for that, attnc verify {path}"
    else:
        facts["note"] = "its error was measured: there is no bound to verify"
    print_facts(title, facts)


def _versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in found.items())
