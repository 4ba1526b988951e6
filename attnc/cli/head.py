"""`attnc head`: a function by its name, as a softmax head with a proof."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import attnc
import attnc.plot
from attnc.anchors.candidates import DESIGNS
from attnc.cli.output import NOT_PROVED, errors_reported, interval, number, print_facts, print_json
from attnc.cli.progress import progress
from attnc.cli.targets import check_targets
from attnc.errors import InputError
from attnc.network.head import Head
from attnc.plot.canvas import picture_format, require_matplotlib

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def head(
    name: Annotated[str, typer.Argument(help="A name from `attnc functions`: gelu, 'clip(-25,25)', …")],
    on: Annotated[tuple[float, float], typer.Option(metavar="LO HI", help="The interval.")],
    eps: Annotated[
        float | None, typer.Option(metavar="E", help="Find the smallest head proved to stay within E.")
    ] = None,
    anchors: Annotated[
        int | None, typer.Option(metavar="P", help="Or: find the best head with P anchors.")
    ] = None,
    design: Annotated[str, typer.Option(help=f"One of {', '.join(DESIGNS)}.")] = "auto",
    heads: Annotated[int, typer.Option(metavar="H", help="Split the interval over H heads.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    save: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the head and its certificate (.safetensors).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Draw it (.png, .svg or .pdf; needs matplotlib).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Turn a function into a softmax head and prove its error.

    Example: attnc head gelu --on -8 8 --eps 1e-4 --save gelu.safetensors
    """
    with errors_reported(json):
        _check_request(eps, anchors, dtype)
        _check_files(save, plot, force)
        began = time.perf_counter()
        with progress(f"building {name}") as say:
            made = attnc.head(
                name,
                on=on,
                eps=eps,
                anchors=anchors,
                design=design,
                heads=heads,
                dtype=_DTYPES[dtype],
                progress=say,
            )
            seconds = time.perf_counter() - began
            if save is not None:
                say(f"writing {save}")
                made.save(save)
            if plot is not None:
                say(f"drawing {plot}")
                attnc.plot.head(made, plot)
        files = {"save": save, "plot": plot}
        written = {key: str(path) for key, path in files.items() if path is not None}
        if json:
            print_json(_record(made, seconds, written))
        else:
            print_facts(*_facts(made, seconds, written))
    if made.certificate is None:
        raise typer.Exit(NOT_PROVED)


def _check_request(eps: float | None, anchors: int | None, dtype: str) -> None:
    if (eps is None) == (anchors is None):
        given = "neither" if eps is None else "both"
        raise InputError(
            "give either --eps E (the smallest head that meets it) "
            f"or --anchors P (the best of that size): got {given}"
        )
    if dtype not in _DTYPES:
        raise InputError(f"--dtype {dtype}: accepted are {' and '.join(_DTYPES)}")


def _check_files(save: Path | None, plot: Path | None, force: bool) -> None:
    if plot is not None:
        picture_format(plot)
        require_matplotlib()
    check_targets([path for path in (save, plot) if path is not None], force)


def _record(made: Head, seconds: float, written: dict[str, str]) -> dict[str, Any]:
    """What `--json` says: the facts of the table, and the certificate in full."""
    known = made.certificate or made.measured
    assert known is not None
    return {
        "status": "proved" if made.certificate else "measured",
        "function": known.function,
        "domain": {"lo": known.domain.lo, "hi": known.domain.hi},
        "design": made.design,
        "heads": made.heads,
        "anchors": made.key.shape[1],
        "dtype": known.dtype,
        "bound": made.certificate.bound if made.certificate else None,
        "quality": made.certificate.quality if made.certificate else None,
        "certificate": made.certificate.to_json() if made.certificate else None,
        "measured": made.measured.to_json() if made.measured else None,
        "seconds": round(seconds, 3),
        "files": written,
    }


def _facts(made: Head, seconds: float, written: dict[str, str]) -> tuple[str, dict[str, str]]:
    known = made.certificate or made.measured
    assert known is not None
    facts = {
        "function": known.function,
        "interval": interval(known.domain),
        "design": made.design,
        "heads": str(made.heads),
        "anchors": f"{made.key.shape[1]}{' in each head' if made.heads > 1 else ''}",
        "dtype": known.dtype,
        **_error_facts(made),
        "time": f"{seconds:.2f} s",
    }
    if written:
        facts["written"] = "\n".join(written.values())
    return f"{known.function} as a softmax head", facts


def _error_facts(made: Head) -> dict[str, str]:
    if made.certificate is None:
        assert made.measured is not None
        seen = made.measured
        where = f"at s = {number(seen.input)}, of {seen.points} points"
        return {"largest measured": f"{seen.error:.4g} {where}: not proved"}
    certificate = made.certificate
    witness = certificate.witness
    return {
        "proved bound": number(certificate.bound),
        "  approximation": number(certificate.approximation),
        "  rounding": number(certificate.rounding),
        "witness": f"error {witness.error:.4g} at s = {number(witness.input)}",
        "quality": f"{certificate.quality:.3g} (bound / error of the witness; 1 is perfect)",
    }
