"""`attnc convert`: the feed-forward blocks of a pretrained transformer become attention, with a proof for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from attnc.cli.converted_report import conversion_facts, measured_text, print_blocks, status
from attnc.cli.output import NOT_PROVED, errors_reported, made_facts, print_facts, print_json
from attnc.cli.progress import counted_progress
from attnc.errors import AttncError, InputError
from attnc.frontends.transformers import Site
from attnc.heads.exact_term import DESIGNS
from attnc.lower.function_to_head import checked_eps
from attnc.pretrained.config import ENGINES, ConvertConfig
from attnc.pretrained.convert import Progress, convert_
from attnc.pretrained.directory import load_model, read_config
from attnc.pretrained.report import ConversionReport
from attnc.pretrained.samples import outputs
from attnc.pretrained.saving import check_new, save_converted

_LENGTH = 32  # tokens of the random input
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")

_Source = Annotated[
    Path, typer.Argument(metavar="DIR", help="A model directory of Hugging Face: config.json, safetensors.")
]
_Output = Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="A new directory.")]
_Eps = Annotated[
    float, typer.Option(metavar="E", help="Every block's output stays within E, in exact arithmetic.")
]
_Engine = Annotated[str, typer.Option(help=f"How attention is executed: {' or '.join(ENGINES)}.")]
_Design = Annotated[str, typer.Option(help=f"Of the heads: {', '.join(DESIGNS)}.")]
_Only = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Convert only the blocks whose names contain TEXT.")
]
_NoCheck = Annotated[
    bool, typer.Option("--no-check", help="Do not run the model before and after on a random input.")
]


def convert(
    source: _Source,
    output: _Output,
    eps: _Eps = 1e-4,
    engine: _Engine = "closed-form",
    design: _Design = "auto",
    only: _Only = None,
    no_check: _NoCheck = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Replace the feed-forward blocks of a pretrained transformer by attention, and prove what it costs.

    DIR is read by transformers, from safetensors alone; code of the model's own
    is never run. OUT gets the model, its report and the other files of DIR.
    Read it by attnc.from_pretrained: transformers' own gives the original.

    Exit status: 0 the bound of every block is proved, 1 it is not, 2 bad input.

    Example: attnc convert all-MiniLM-L6-v2 -o minilm-attention --eps 1e-4
    """
    with errors_reported(json):
        eps, config = checked_eps(eps), ConvertConfig(engine=engine, design=design)
        check_new(output)
        if "attnc" in read_config(source):
            raise InputError(
                f"{source} is converted already: attnc show {source} says how; convert the original"
            )
        with counted_progress(f"loading {source}") as tell:
            model = load_model(source)
            sample, note = ({}, "not run: --no-check") if no_check else random_input(model)
            report = _converted(model, eps, config, only, sample, tell)
            tell(report.converted, report.converted, f"writing {output}")
            save_converted(model, output, source)
    _tell(source, output, report, measured_text(report, note), json)
    if status(report) != "proved":
        raise typer.Exit(NOT_PROVED)


def _converted(
    model: Any, eps: float, config: ConvertConfig, only: str | None, sample: dict[str, Tensor], tell: Progress
) -> ConversionReport:
    names: list[str] = []

    def wanted(site: Site) -> bool:
        names.append(site.name)
        return only is None or only in site.name

    try:
        return convert_(
            model, approximation=eps, config=config, filter_fn=wanted, samples=sample or None, progress=tell
        )
    except InputError as problem:
        if only is None or not names or any(only in name for name in names):
            raise
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise InputError(
            f"--only {only}: the name of no block contains it; the {len(names)} blocks are {shown}"
        ) from problem


def _tell(source: Path, output: Path, report: ConversionReport, measured: str, json: bool) -> None:
    if json:
        about = {"status": status(report), "source": str(source), **report.to_json()}
        print_json({**about, "check": measured, "written": str(output)})
        return
    print_blocks(f"{source} as attention", report)
    facts = {**conversion_facts(report), "measured": measured}
    print_facts("the whole model", {**facts, **made_facts(report.seconds, {"output": str(output)})})


def random_input(model: Any) -> tuple[dict[str, Tensor], str]:
    """An input made from the model's config, the same each time, and what it is; none, and why not, where it cannot be run."""
    try:
        sample = dict(_made(model))
        outputs(model, sample)
    except (AttncError, AttributeError, TypeError, ValueError, RuntimeError) as problem:
        return {}, f"not run: no random input could be made from its config ({problem})"
    return sample, "on 1 random input"


def _made(model: Any) -> Iterator[tuple[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    config = model.config.get_text_config()
    name = str(model.main_input_name)
    if name == "pixel_values":
        size = model.config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        shape = (1, getattr(model.config, "num_channels", 3), height, width)
        yield name, torch.randn(shape, generator=draw, dtype=torch.float64).to(model.dtype)
        return
    if name != "input_ids":
        raise InputError(f"it takes {name}")
    limits = [
        limit for key in _POSITIONS if isinstance(limit := getattr(config, key, None), int) and limit > 0
    ]
    ids = torch.randint(config.vocab_size, (1, min([_LENGTH, *limits])), generator=draw)
    yield name, ids
    if model.config.is_encoder_decoder:
        yield "decoder_input_ids", ids
