"""`attnc export`: a saved result as a file for other programs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attnc
from attnc.cli import output as out
from attnc.cli.options import Force, Json, Saved, check_files, output_option
from attnc.errors import InputError
from attnc.exporters.export import CoqFile

if TYPE_CHECKING:
    from attnc.records.certificate import Certificate

_FORMATS = {"onnx": ".onnx", "coq": ".v"}  # and the suffixes of their files
_Output = Annotated[Path, output_option("The file to write.")]
_To = Annotated[str, typer.Option("--to", metavar="FORMAT", help="The format: onnx or coq.")]
_Engine = Annotated[str, typer.Option(help="What the file executes: softmax or closed-form.")]
_Opset = Annotated[int | None, typer.Option(metavar="N", help="The operator set of ONNX, 18 to 23.")]
_Check = Annotated[bool, typer.Option("--check", help="Coq: run coqc, and report what it says.")]
_Executed = Annotated[
    bool, typer.Option("--executed", help="Coq: a theorem about the executed error too, rounding included.")
]
_NoNative = Annotated[bool, typer.Option("--no-native", help="Coq: a proof without machine floats.")]


def export(
    path: Saved,
    output: _Output,
    to: _To = "onnx",
    engine: _Engine = "softmax",
    opset: _Opset = None,
    check: _Check = False,
    no_native: _NoNative = False,
    executed: _Executed = False,
    json: Json = False,
    force: Force = False,
) -> None:
    """Write a saved result for other programs.

    The file is run and compared with the saved result before it gets its name. A transformer takes input_ids and
    attention_mask, if it accepts a mask; otherwise a note says so. --engine softmax needs a model that was converted with
    --parts all. The file carries the certificate: the
    approximation term holds wherever it runs, the rounding term was proved for torch on a CPU.

    --to coq writes a head as a file for the Coq proof assistant: the approximation term of its certificate as a theorem,
    with its proof. --check runs coqc, and reports proved, failed or not installed.

    Exit status: 0 the file was written (and, with --check, proved), 1 coqc did not prove it or is not installed, 2 bad input,
    or the file does not compute what the saved result computes.

    Examples: attnc export net.safetensors --to onnx -o net.onnx; attnc export gelu.safetensors --to coq -o gelu.v --check
    """
    with out.errors_reported(json):
        _check_format(to, path, output)
        check_files(output, None, force)
        began = time.perf_counter()
        with out.progress_bar(f"loading {path}") as progress:
            saved = attnc.from_pretrained(path) if path.is_dir() else attnc.load(path)
            progress(f"writing and {'checking' if to == 'coq' else 'running'} {output}")
            coq = {"check": check, "native": not no_native, "executed": executed}
            done = attnc.export(saved, output, engine=engine, opset=opset, **coq)
        seconds = time.perf_counter() - began
    if isinstance(done, CoqFile):
        _report_coq(path, done, saved.certificate, seconds, json)
        raise typer.Exit(0 if done.check is None or done.check else 1)
    about = {
        "file": str(path),
        "engine": done.engine,
        "difference": f"{done.difference:.3g} at {done.inputs} inputs; rounding explains {done.allowed:.3g}",
        "operations": ", ".join(done.operations),
        "any length": "; ".join(
            f"{name}: {', '.join(own.values())}" for name, own in done.axes.items() if own
        ),
        "note": "; ".join(done.notes),
        **out.run_facts(seconds, {"output": str(output)}),
    }
    if json:
        facts = {name: getattr(done, name) for name in ("engine", "difference", "allowed", "inputs", "axes")}
        listed = {
            "operations": list(done.operations),
            "notes": list(done.notes),
            "seconds": round(seconds, 3),
        }
        out.print_json({"file": str(path), "output": str(output), **facts, **listed})
    else:
        typer.echo(out.facts_text({name: value for name, value in about.items() if value}))


def _check_format(to: str, path: Path, output: Path) -> None:
    """Raise InputError unless the format is known and the name of the file fits it."""
    if to.replace("_", "-") == "transformer-lens":
        raise InputError(
            f"--to {to}: a TransformerLens model is an object, not a file. In Python, call "
            f"attnc.load({str(path)!r}).as_self_attention(…).to_transformer_lens()"
        )
    if to not in _FORMATS:
        raise InputError(f"--to {to}: accepted are {', '.join(_FORMATS)}")
    if output.suffix != _FORMATS[to]:
        raise InputError(f"--output {output}: the name of the file must end in {_FORMATS[to]}")


def _statement(done: CoqFile, certificate: Certificate) -> str:
    """|head - f| <= 3.1e-05 in exact arithmetic, f = relu, for every input of [-8, 8]"""
    f = certificate.facts.get("function", "the network with tanh")
    subject = "network" if certificate.subject == "network" else "head"
    error = f"|{subject}/f - 1|" if done.relative else f"|{subject} - f|"
    domain = dict(certificate.rows())["holds for"].removesuffix(f", {certificate.dtype}")
    return f"{error} <= {done.eps!r} in exact arithmetic, f = {f}, for {domain}"


def _report_coq(path: Path, done: CoqFile, certificate: Certificate, seconds: float, json: bool) -> None:
    """What was written for Coq, and what coqc said."""
    check = done.check
    said = "not run; add --check" if check is None else str(check)
    if json:
        facts: dict[str, Any] = {
            "file": str(path),
            "output": str(done.path),
            "files": [str(file) for file in done.files],
        }
        facts |= {
            "theorems": list(done.theorems),
            "eps": done.eps,
            "relative": done.relative,
            "seconds": round(seconds, 3),
        }
        if check is not None:
            facts["check"] = {"status": check.status, "reason": check.reason, "axioms": list(check.axioms)}
        out.print_json(facts)
        return
    about = {
        "file": str(path),
        "theorem": _statement(done, certificate),
        "theorems": ", ".join(done.theorems),
        "files": ", ".join(file.name for file in done.files),
        "coqc": said,
        **out.run_facts(seconds, {"output": str(done.path)}),
    }
    typer.echo(out.facts_text(about))
