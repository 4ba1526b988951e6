"""`attnc reproduce`: the paper's experiments, with trained and built networks, in a sweep that can be interrupted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnc.cli.output import NOT_PROVED, errors_reported, print_json, print_table
from attnc.cli.progress import counted_progress
from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.paper.experiments import Record

_What = Annotated[
    str, typer.Argument(metavar="WHAT", help="heads, range, anchors, heatmaps, seq2seq or all.")
]
_Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="Directory of records and results.")
]
_Seeds = Annotated[int, typer.Option(metavar="N", help="Use the seeds 1234, 1235, …; the paper has 11.")]
_Quick = Annotated[bool, typer.Option("--quick", help="Small sizes of the same shape: a minute or two.")]
_Jobs = Annotated[int, typer.Option(metavar="N", help="Number of parallel runs; -1 uses all cores.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def reproduce(
    output: _Output,
    what: _What = "all",
    seeds: _Seeds = 3,
    quick: _Quick = False,
    jobs: _Jobs = -1,
    json: _Json = False,
) -> None:
    """Run the paper's experiments: train networks with its protocol, and build networks for the same data.

    Each run writes its record when it ends. The same command continues an
    interrupted sweep. Results, figures and report replace earlier ones in the
    directory; records are kept.

    Exit status: 0 all runs succeeded, 1 some failed, 2 bad input.

    Example: attnc reproduce anchors --seeds 3 -o out/experiments
    """
    from attnc.paper.experiments import SweepError, settings, sweep
    from attnc.plot.canvas import require_matplotlib

    with errors_reported(json):
        require_matplotlib()
        _check_directory(output)
        began, wanted = time.perf_counter(), settings(what, seeds, quick)
        try:
            with counted_progress("running") as report:
                records = sweep(wanted, output, jobs=jobs, progress=report)
        except SweepError as problem:
            typer.echo(f"error: {problem}", err=True)
            if json:
                print_json(
                    {"error": {"kind": "SweepError", "message": str(problem), "failures": problem.failures}}
                )
            raise typer.Exit(NOT_PROVED) from problem
        files = _write(records, output)
        _print(records, files, time.perf_counter() - began, json)


def _check_directory(output: Path) -> None:
    """Refuse a directory that has files with our names but no records of a sweep."""
    if str(output) in ("", "."):
        raise InputError(
            f"--output {str(output)!r}: give the name of a new directory, or of one with earlier results"
        )
    names = ("results.json", "results.csv", "times.csv", "report.md", "report.html", "figures")
    others = [name for name in names if (output / name).exists()]
    if others and not (output / "records").is_dir():
        raise FileError(
            f"{output} has {', '.join(others)} but no records: give a new directory, or move these files"
        )


def _write(records: Sequence[Record], output: Path) -> list[Path]:
    """Write the results, the report, and every figure for which the records suffice; remove older figures."""
    from attnc.paper.experiments.report import FIGURES, figure_names, html, markdown
    from attnc.paper.experiments.store import versions, write_results, write_text
    from attnc.plot.experiments import draw

    files, names = write_results(records, output), figure_names(records)
    try:
        (output / "figures").mkdir(exist_ok=True)
        for path in (output / "figures" / f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")):
            path.unlink(missing_ok=True)
            if path.stem in names:
                draw(path.stem, records, path)
                files.append(path)
    except OSError as problem:
        raise FileError(f"cannot write figures to {output}: {problem.strerror or problem}") from problem
    note = "Versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()) + "."
    for name, text in (("report.md", markdown(records, note)), ("report.html", html(records, note))):
        write_text(output / name, text)
        files.append(output / name)
    return files


def _print(records: Sequence[Record], files: list[Path], seconds: float, as_json: bool) -> None:
    rows = summary_rows(records)
    if as_json:
        paths = [str(path) for path in files]
        print_json({"runs": len(records), "rows": rows, "seconds": round(seconds, 3), "files": paths})
        return
    from rich import box
    from rich.table import Table

    table = Table(
        *rows[0], title=f"{len(records)} runs, {seconds:.0f} s", title_justify="left", box=box.SIMPLE_HEAD
    )
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    print_table(table, whole=True)
    typer.echo("\n".join(str(path) for path in files if path.suffix != ".svg"))


def summary_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """For every size and method: its MSE over the seeds that did not diverge, and how many diverged."""
    from attnc.paper.experiments.store import frame

    table = frame(records)
    table["b-a"], table["lost"] = table.b - table.a, ~table.mse.abs().lt(float("inf"))
    groups = table.assign(mse=table.mse.mask(table.lost)).groupby(
        ["experiment", "method", "n", "p", "heads", "b-a"], sort=False
    )
    rows = groups.agg(
        mse=("mse", "mean"),
        lowest=("mse", "min"),
        highest=("mse", "max"),
        diverged=("lost", "sum"),
        seconds=("seconds", "mean"),
    )
    return list(rows.reset_index().astype(object).to_dict("records"))
