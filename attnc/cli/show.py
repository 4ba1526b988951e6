"""`attnc show`: what a file holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from attnc.cli.head_report import head_facts, head_record
from attnc.cli.network_report import network_facts, network_record, print_layers
from attnc.cli.output import NOT_PROVED, errors_reported, print_facts, print_json
from attnc.exporters.safetensors import load
from attnc.network.head import Head
from attnc.network.network import Network


def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file of `attnc head` or `attnc compile`.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show what the file of a head or a network holds, without proving it anew.

    Exit status: 0 its certificate applies to the numbers in the file, 1 it does not, 2 not a file of attnc's, or
    a damaged or edited one.

    Example: attnc show net.safetensors
    """
    with errors_reported(json):
        made = load(path)
        if json:
            print_json(_record(path, made))
        else:
            _print(path, made)
    if made.why_not_certified() is not None:
        raise typer.Exit(NOT_PROVED)


def _record(path: Path, made: Head | Network) -> dict[str, Any]:
    reason = made.why_not_certified()
    about = head_record(made) if isinstance(made, Head) else network_record(made)
    return {
        "file": str(path),
        "kind": "head" if isinstance(made, Head) else "network",
        "certified": reason is None,
        "reason": reason,
        **about,
        "versions": made.certificate.versions if made.certificate else None,
    }


def _print(path: Path, made: Head | Network) -> None:
    if isinstance(made, Head):
        title, facts = head_facts(made, "certified")
        title = f"{path}: {title}"
    else:
        print_layers(f"{path}: a network of softmax attention", made)
        title, facts = "the whole network", network_facts(made, "certified")
        facts["program"] = f"SHA-256 {made.program.digest()[:16]}…"
    if made.certificate is not None:
        facts["made with"] = _versions(made.certificate.versions)
        facts["note"] = f"read, not proved anew: for that, attnc verify {path}"
    else:
        facts["note"] = "its error was measured: there is no certificate that could be proved anew"
    print_facts(title, facts)


def _versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in found.items())
