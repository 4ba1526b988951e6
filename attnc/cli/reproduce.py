"""`attnc reproduce`: the paper's experiments, with trained and built networks, in a sweep that can be interrupted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnc.cli.options import Json, output_option
from attnc.cli.output import errors_reported, print_json, progress_bar
from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.paper.experiments import Record

_WHAT = "heads, range, anchors, heatmaps, seq2seq or all."


def reproduce(
    output: Annotated[Path, output_option("Records and results.", "DIR")],
    what: Annotated[str, typer.Argument(metavar="WHAT", help=_WHAT)] = "all",
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds 1234, 1235, …; the paper has 11.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a minute or two.")] = False,
    jobs: Annotated[int, typer.Option(metavar="N", help="Parallel runs; -1 uses all cores.")] = -1,
    json: Json = False,
) -> None:
    """Run the paper's experiments: train networks with its protocol, and build networks for the same data.

    Each run writes its record when it ends. The same command continues an
    interrupted sweep. Results, figures and report replace earlier ones in the
    directory; records are kept.

    Exit status: 0 all runs succeeded, 1 some failed, 2 bad input.

    Example: attnc reproduce anchors --seeds 3 -o out/experiments
    """
    from attnc.paper.experiments import settings, sweep
    from attnc.plot.canvas import require_matplotlib

    with errors_reported(json):
        require_matplotlib()
        if str(output) in ("", "."):
            raise InputError(f"--output {str(output)!r}: give a new directory, or one with earlier results")
        names = ("results.csv", "times.csv", "report.md", "figures")
        others = [name for name in names if (output / name).exists()]
        if others and not (output / "records").is_dir():
            raise FileError(f"{output} has {', '.join(others)} but no records: give a new directory")
        began, wanted = time.perf_counter(), settings(what, seeds, quick)
        with progress_bar("running") as report:
            records = sweep(wanted, output, jobs=jobs, progress=report)
        files, rows = [str(path) for path in _write(records, output)], summary(records)
        seconds = time.perf_counter() - began
        if json:
            runs = rows.astype(object).to_dict("records")
            print_json({"runs": len(records), "rows": runs, "seconds": round(seconds, 3), "files": files})
        else:
            table = rows.to_string(index=False, float_format="{:.3g}".format)
            typer.echo(f"{len(records)} runs, {seconds:.0f} s\n\n{table}\n")
            typer.echo("\n".join(files))


def _write(records: Sequence[Record], output: Path) -> list[Path]:
    """Write the results, the report, and every figure for which the records suffice; remove older figures."""
    from attnc.paper.experiments.report import TITLES, figure_names, markdown
    from attnc.paper.experiments.sweeps import versions, write_results
    from attnc.plot.experiments import draw
    from attnc.records.files import replacing

    files, names, report = write_results(records, output), figure_names(records), output / "report.md"
    try:
        (output / "figures").mkdir(exist_ok=True)
        for path in (output / "figures" / f"{name}.{kind}" for name in TITLES for kind in ("png", "svg")):
            path.unlink(missing_ok=True)
            if path.stem in names:
                draw(path.stem, records, path)
                files.append(path)
    except OSError as problem:
        raise FileError(f"cannot write figures to {output}: {problem.strerror or problem}") from problem
    note = "Versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()) + "."
    with replacing(report) as temporary:
        temporary.write_text(markdown(records, note), encoding="utf-8")
    return [*files, report]


def summary(records: Sequence[Record]) -> Any:
    """A DataFrame with a row for every size and method: the MSE over the seeds that did not diverge."""
    from attnc.paper.experiments.report import checked_frame, summarise

    sizes = ["experiment", "method", "n", "p", "heads", "range"]
    rows = summarise(checked_frame(records), sizes)[[*sizes, "mse", "low", "high", "diverged", "seconds"]]
    return rows.rename(columns={"range": "b-a", "low": "lowest", "high": "highest"})
