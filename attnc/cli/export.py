"""`attnc export`: a saved result as a file for other programs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

import attnc
from attnc.cli import output as out
from attnc.cli.options import Force, Json, Saved, check_files, output_option
from attnc.errors import InputError

_FORMATS = ("onnx",)
_Output = Annotated[Path, output_option("The file to write.")]
_To = Annotated[str, typer.Option("--to", metavar="FORMAT", help="The format: onnx.")]
_Engine = Annotated[str, typer.Option(help="What the file executes: softmax or closed-form.")]
_Opset = Annotated[int | None, typer.Option(metavar="N", help="The operator set of ONNX, 18 to 23.")]


def export(
    path: Saved,
    output: _Output,
    to: _To = "onnx",
    engine: _Engine = "softmax",
    opset: _Opset = None,
    json: Json = False,
    force: Force = False,
) -> None:
    """Write a saved result for other programs.

    The file is run and compared with the saved result before it gets its name. It carries the certificate: the
    approximation term holds wherever it runs, the rounding term was proved for torch on a CPU.

    Exit status: 0 the file was written, 2 bad input, or the file does not compute what the saved result computes.

    Example: attnc export net.safetensors --to onnx -o net.onnx
    """
    with out.errors_reported(json):
        if to.replace("_", "-") == "transformer-lens":
            raise InputError(
                f"--to {to}: a TransformerLens model is an object, not a file. In Python, call "
                f"attnc.load({str(path)!r}).as_self_attention(…).to_transformer_lens()"
            )
        if to not in _FORMATS:
            raise InputError(f"--to {to}: accepted is {', '.join(_FORMATS)}")
        if output.suffix != f".{to}":
            raise InputError(f"--output {output}: the name of the file must end in .{to}")
        check_files(output, None, force)
        began = time.perf_counter()
        with out.progress_bar(f"loading {path}") as progress:
            saved = attnc.from_pretrained(path) if path.is_dir() else attnc.load(path)
            progress(f"writing and running {output}")
            done = attnc.export(saved, output, engine=engine, opset=opset)
        seconds = time.perf_counter() - began
    about = {
        "file": str(path),
        "engine": done.engine,
        "difference": f"{done.difference:.3g} at {done.inputs} inputs; rounding explains {done.allowed:.3g}",
        "operations": ", ".join(done.operations),
        "any length": "; ".join(
            f"{name}: {', '.join(own.values())}" for name, own in done.axes.items() if own
        ),
        **out.run_facts(seconds, {"output": str(output)}),
    }
    if json:
        facts = {name: getattr(done, name) for name in ("engine", "difference", "allowed", "inputs", "axes")}
        listed = {"operations": list(done.operations), "seconds": round(seconds, 3)}
        out.print_json({"file": str(path), "output": str(output), **facts, **listed})
    else:
        typer.echo(out.facts_text({name: value for name, value in about.items() if value}))
