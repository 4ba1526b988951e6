"""`attnc convert`: the feed-forward blocks of a pretrained transformer as attention, with a bound for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnc.cli.options import Json, output_option
from attnc.cli.output import errors_reported, finish, print_json, progress_bar
from attnc.errors import InputError

_SOURCE = "A Hugging Face model directory: config.json, safetensors."
_APPROXIMATION = "The error allowed in every block's output, in exact arithmetic."
_Engine = Annotated[str, typer.Option(help="How attention is executed: closed-form or softmax.")]
_PARTS = {"blocks": "feed-forward", "all": "all"}
_Parts = Annotated[
    str,
    typer.Option(
        metavar="blocks|all", help="What to convert: feed-forward blocks, or norms and poolers too."
    ),
]
_Output = Annotated[Path | None, output_option("A new directory.", "OUT")]
_JOBS = "Blocks to convert at the same time, by joblib: -1 is one for each core."
_DRY = "Say what would be converted, what is left and why, and the memory it needs; write nothing."
_DryRun = Annotated[bool, typer.Option("--dry-run", help=_DRY)]
_Jobs = Annotated[int, typer.Option(metavar="N", help=_JOBS)]
_Only = Annotated[str, typer.Option(metavar="TEXT", help="Convert only blocks whose names contain TEXT.")]
_NoCheck = Annotated[bool, typer.Option("--no-check", help="Do not compare the outputs on an example input.")]


def convert(
    source: Annotated[Path, typer.Argument(metavar="DIR", help=_SOURCE)],
    output: _Output = None,
    approximation: Annotated[float, typer.Option(metavar="E", help=_APPROXIMATION)] = 1e-4,
    engine: _Engine = "closed-form",
    parts: _Parts = "blocks",
    design: Annotated[str, typer.Option(help="Of the heads: auto, gated, lattice or tuned.")] = "auto",
    only: _Only = "",
    no_check: _NoCheck = False,
    jobs: _Jobs = 1,
    dry_run: _DryRun = False,
    json: Json = False,
) -> None:
    """Convert the feed-forward blocks of a transformer.

    Each block becomes attention over anchors, with a bound of its error. --parts all converts norms, and tanh and sigmoid
    outside of blocks, too: with --engine softmax, softmax is then the only nonlinear operation that the model executes.

    DIR is read by transformers, from safetensors alone; code that comes with the model is never run. OUT receives
    the model, its report, a model card and the other files of DIR, except for code; the files of the weights are hard
    links, or copies. Load it with attnc.from_pretrained, or without attnc by
    transformers.AutoModel.from_pretrained(OUT, trust_remote_code=True).

    Memory holds one layer of the model, not the model. If the command is killed, the same command resumes its work, which
    is kept beside OUT; the result has the same bytes.

    Exit status: 0 the bound of every block is proved, 1 it is not (always so in bfloat16 and float16, where the
    approximation alone is proved), 2 bad input.

    Example: attnc convert all-MiniLM-L6-v2 -o minilm-attention --approximation 1e-4
    """
    from attnc.pretrained.config import ConvertConfig
    from attnc.pretrained.convert_directory import convert_directory
    from attnc.pretrained.plan_directory import plan_directory

    def chosen(site: Any) -> bool:
        return only in site.name

    with errors_reported(json):
        config = ConvertConfig(engine=engine, design=design)
        if parts not in _PARTS:
            raise InputError(f"--parts {parts}: accepted are {', '.join(_PARTS)}")
        kinds = _PARTS[parts]
        if dry_run:
            with progress_bar(f"reading {source}") as progress:
                plan = plan_directory(source, config, chosen, parts=kinds, progress=progress)
            if json:
                print_json({"source": str(source), "plan": plan.to_json()})
            else:
                typer.echo(str(plan))
            return
        if output is None:
            raise InputError("give the name of a new directory by -o, or --dry-run")
        with progress_bar(f"reading {source}") as progress:
            report = convert_directory(
                source, output, approximation, config, chosen, parts=kinds, check=not no_check, jobs=jobs,
                progress=progress,
            )  # fmt: skip
    about, files = {"source": str(source)}, {"output": str(output)}
    finish(report, f"{source} as attention", json, about, report.seconds, files)
