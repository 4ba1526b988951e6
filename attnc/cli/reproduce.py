"""`attnc reproduce`: the paper's experiments, trained and built, in one run that can be interrupted."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnc.cli.options import Json
from attnc.cli.output import NOT_PROVED, errors_reported, print_json, print_rows
from attnc.cli.progress import progress_bar
from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.paper.experiments import Record, Results, Setting
    from attnc.progress import Progress

_FILES = ("results.json", "results.csv", "times.csv", "report.md", "report.html")
_What = Annotated[
    str, typer.Argument(metavar="WHAT", help="heads, range, anchors, heatmaps, seq2seq or all.")
]
_Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", metavar="DIR", help="Records, results, figures and report; goes on if there."
    ),
]
_Seeds = Annotated[int, typer.Option(metavar="N", help="1234, 1235, …; the paper has 11.")]
_Quick = Annotated[bool, typer.Option("--quick", help="Small sizes of the same shape, in a minute or two.")]
_Jobs = Annotated[int | None, typer.Option(metavar="N", help="Runs at once; one for each core if left out.")]
_Backend = Annotated[
    str, typer.Option(metavar="NAME", help="loky, multiprocessing, sequential, dask, ray, or joblib's own.")
]
_Address = Annotated[
    str | None, typer.Option(metavar="URL", help="Of the scheduler of a dask or ray cluster.")
]


def reproduce(
    output: _Output,
    what: _What = "all",
    seeds: _Seeds = 3,
    quick: _Quick = False,
    jobs: _Jobs = None,
    backend: _Backend = "loky",
    address: _Address = None,
    json: Json = False,
) -> None:
    """The paper's experiments: networks trained by its protocol beside networks that are built, on the same data.

    Every run leaves a record at once: an interrupted sweep, started again, goes
    on where it stopped. Results, figures and report are of the sweeps asked for,
    and take the place of earlier ones in the directory; records are kept.

    Exit status: 0 all runs are there, 1 some failed, 2 bad input.

    Example: attnc reproduce anchors --seeds 3 -o out/experiments
    """
    from attnc.paper.experiments import settings
    from attnc.plot.canvas import require_matplotlib

    with errors_reported(json):
        require_matplotlib()
        _check_place(output)
        began, wanted = time.perf_counter(), settings(what, seeds, quick)
        with progress_bar("running") as progress:
            found = _swept(
                wanted, output, _cores() if jobs is None else jobs, backend, address, progress, json
            )
            written = [*found.write(output), *_draw(found, output, progress), *_report(found, output)]
        if json:
            print_json(_summary(found, written, time.perf_counter() - began))
        else:
            _print(found, written, time.perf_counter() - began)


def _swept(
    wanted: tuple[Setting, ...],
    output: Path,
    jobs: int,
    backend: str,
    address: str | None,
    progress: Progress,
    as_json: bool,
) -> Results:
    """All runs; where some fail, the others are kept, and the command ends with status 1."""
    from attnc.paper.experiments import SweepError, sweep

    def count(done: int, total: int, message: str) -> None:
        progress(message, done, total)

    try:
        return sweep(wanted, output, jobs=jobs, backend=backend, address=address, progress=count)
    except SweepError as problem:
        typer.echo(f"error: {problem}", err=True)
        if as_json:
            print_json(
                {"error": {"kind": "SweepError", "message": str(problem), "failures": problem.failures}}
            )
        raise typer.Exit(NOT_PROVED) from problem


def _check_place(output: Path) -> None:
    """Files of these names that no sweep has left are somebody's own."""
    if str(output) in ("", "."):
        raise InputError("-o names no directory: give the name of a new one, or of one that a sweep has left")
    if (output / "records").is_dir():
        return
    others = [name for name in (*_FILES, "figures") if (output / name).exists()]
    if others:
        raise FileError(
            f"{output} has {', '.join(others)} and no records of a sweep: give the name of a new directory, or move them away"
        )


def _cores() -> int:
    return os.cpu_count() or 1


def _draw(found: Results, output: Path, progress: Progress) -> list[Path]:
    """Every figure that the records suffice for, as PNG and SVG; those of an earlier sweep that they do not suffice for go."""
    from attnc.paper.experiments.report import FIGURES, figures
    from attnc.plot.experiments import draw

    folder, drawn = output / "figures", []
    names, kinds = figures(found), ("png", "svg")
    try:
        folder.mkdir(exist_ok=True)
        for name in set(FIGURES) - set(names):
            for kind in kinds:
                (folder / f"{name}.{kind}").unlink(missing_ok=True)
    except OSError as problem:
        raise FileError(f"cannot write figures to {folder}: {problem.strerror or problem}") from problem
    for name in names:
        progress(f"drawing {name}")
        for kind in kinds:
            drawn.append(folder / f"{name}.{kind}")
            draw(name, found, drawn[-1])
    return drawn


def _report(found: Results, output: Path) -> list[Path]:
    from attnc.paper.experiments.report import html, markdown
    from attnc.paper.experiments.store import write_whole

    note = "Made by " + ", ".join(f"{name} {version}" for name, version in found.versions.items()) + "."
    pages = {output / "report.md": markdown(found, note=note), output / "report.html": html(found, note=note)}
    for path, text in pages.items():
        write_whole(path, text)
    return list(pages)


def _rows(found: Results) -> list[dict[str, Any]]:
    """A row for every size and method: its MSE over the seeds whose training did not diverge."""
    groups: dict[str, list[Record]] = {}
    for record in found:
        groups.setdefault(record.setting.key.rpartition("-s")[0], []).append(record)
    return [_row(group) for group in groups.values()]


def _row(group: list[Record]) -> dict[str, Any]:
    setting = group[0].setting
    finite = [one.mse for one in group if math.isfinite(one.mse)]
    return {
        **{name: getattr(setting, name) for name in ("experiment", "method", "n", "p", "heads")},
        "b-a": setting.b - setting.a,
        "mse": sum(finite) / len(finite) if finite else math.nan,
        "lowest": min(finite, default=math.nan),
        "highest": max(finite, default=math.nan),
        "diverged": len(group) - len(finite),
        "seconds": sum(one.seconds for one in group) / len(group),
    }


def _summary(found: Results, written: list[Path], seconds: float) -> dict[str, Any]:
    return {
        "runs": len(found),
        "redone": list(found.redone),
        "rows": _rows(found),
        "versions": dict(found.versions),
        "seconds": round(seconds, 3),
        "files": [str(path) for path in written],
    }


def _print(found: Results, written: list[Path], seconds: float) -> None:
    for note in found.redone:
        typer.echo(note)
    names, rows = ("experiment", "method", "n", "p", "heads", "b-a"), []
    for row in _rows(found):
        numbers = [f"{row[name]:.3g}" for name in ("mse", "lowest", "highest")]
        shown = [str(row[name]) for name in names[:5]] + [f"{row['b-a']:g}"]
        rows.append([*shown, *numbers, f"{row['seconds']:.1f}"])
    header = (*names, "test MSE", "lowest", "highest", "s")
    print_rows(f"{len(found)} runs, {seconds:.0f} s", header, rows)
    typer.echo("\n".join(str(path) for path in written if path.suffix != ".svg"))
