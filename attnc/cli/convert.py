"""`attnc convert`: the feed-forward blocks of a pretrained transformer as attention, with a bound for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnc.cli.options import Json
from attnc.cli.output import NOT_PROVED, errors_reported, print_json, run_facts
from attnc.cli.progress import progress_bar
from attnc.cli.report import conversion_status, print_object
from attnc.errors import AttncError, InputError

if TYPE_CHECKING:
    from torch import Tensor

_LENGTH = 32  # tokens of the random input
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")

_SOURCE = "A Hugging Face model directory: config.json, safetensors."
_EPS = "The error allowed in every block's output, in exact arithmetic."
_Source = Annotated[Path, typer.Argument(metavar="DIR", help=_SOURCE)]
_Output = Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="A new directory.")]
_Eps = Annotated[float, typer.Option(metavar="E", help=_EPS)]
_Engine = Annotated[str, typer.Option(help="How attention is executed: window or dense.")]
_Design = Annotated[str, typer.Option(help="Of the heads: auto, gate, lattice or tuned.")]
_Only = Annotated[str, typer.Option(metavar="TEXT", help="Convert only blocks whose names contain TEXT.")]
_NoCheck = Annotated[bool, typer.Option("--no-check", help="Do not compare on a random input.")]


def convert(
    source: _Source,
    output: _Output,
    eps: _Eps = 1e-4,
    engine: _Engine = "closed-form",
    design: _Design = "auto",
    only: _Only = "",
    no_check: _NoCheck = False,
    json: Json = False,
) -> None:
    """Convert the feed-forward blocks of a transformer.

    Each block becomes attention over anchors, with a bound of its error.

    DIR is read by transformers, from safetensors alone; code that comes with the model is never run. OUT receives
    the model, its report and the other files of DIR. Load it with attnc.from_pretrained: transformers'
    from_pretrained loads the original model.

    Exit status: 0 the bound of every block is proved, 1 it is not, 2 bad input.

    Example: attnc convert all-MiniLM-L6-v2 -o minilm-attention --eps 1e-4
    """
    from attnc.lower.function_to_head import checked_eps
    from attnc.pretrained.config import ConvertConfig
    from attnc.pretrained.convert import convert_
    from attnc.pretrained.directory import load_model, read_config
    from attnc.pretrained.saving import check_new, save_converted

    with errors_reported(json):
        eps, config = checked_eps(eps), ConvertConfig(engine=engine, design=design)
        check_new(output)
        if "attnc" in read_config(source):
            raise InputError(f"{source} is already converted: give the original model")
        with progress_bar(f"loading {source}") as progress:
            model = load_model(source)
            sample, note = ({}, "not run: --no-check") if no_check else random_input(model)
            report = convert_(
                model, eps, config, lambda site: only in site.name, samples=sample or None, progress=progress
            )
            progress(f"writing {output}")
            save_converted(model, output, source)
    files = {"output": str(output)}
    if json:
        about = {"status": conversion_status(report), "source": str(source), "check": note}
        print_json({**about, "report": report.to_json(), "files": files})
    else:
        more = {"random input": note, **run_facts(report.seconds, files)}
        print_object(f"{source} as attention", report, more)
    if conversion_status(report) != "proved":
        raise typer.Exit(NOT_PROVED)


def random_input(model: Any) -> tuple[dict[str, Tensor], str]:
    """A fixed random input made from the model's config, and a note; an empty one and the reason where it cannot be made."""
    from attnc.pretrained.samples import outputs

    try:
        sample = dict(_random_tensors(model))
        outputs(model, sample)
    except (AttncError, AttributeError, TypeError, ValueError, RuntimeError) as problem:
        return {}, f"not run: no random input could be made from the config ({problem})"
    return sample, "run before and after"


def _random_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    name = str(model.main_input_name)
    if name == "pixel_values":
        size = model.config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        shape = (1, getattr(model.config, "num_channels", 3), height, width)
        yield name, torch.randn(shape, generator=generator, dtype=torch.float64).to(model.dtype)
        return
    if name != "input_ids":
        raise InputError(f"the model takes {name}")
    config = model.config.get_text_config()
    lengths = [length for key in _POSITIONS if isinstance(length := getattr(config, key, None), int)]
    length = min([_LENGTH, *(length for length in lengths if length > 0)])
    ids = torch.randint(config.vocab_size, (1, length), generator=generator)
    yield name, ids
    if model.config.is_encoder_decoder:
        yield "decoder_input_ids", ids
