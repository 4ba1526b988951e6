"""ONNX files: written under a temporary name, walked, run in onnxruntime and compared with the module before they get theirs."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from attnc.errors import AttncError, CertificateError, ExportError, InputError, Problem, UnsupportedError
from attnc.exporters.export import Export
from attnc.exporters.model_inputs import unmasked_note
from attnc.exporters.onnx_graph import Graph, operations_in
from attnc.exporters.reference import LiteralRounding, Rounding
from attnc.exporters.subjects import IMPURE, SIZES, Axes, Subject, subject_of
from attnc.extras import optional
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.running import in_rows
from attnc.pretrained.verify import verify
from attnc.records.certificate import Certificate, Status, Verdict
from attnc.records.fields import versions
from attnc.records.files import replacing

OPSETS = range(18, 24)
_DEFAULT = 20
_LARGEST = 2**31 - 1  # bytes of one protocol buffer
_EXACT = "The approximation term of the certificate holds in exact arithmetic, so for this file too. "
_CLOSED = (
    "The approximation term of the certificate is that of attention over anchors. This file evaluates closed forms instead; how "
    "far they are from attention is part of the rounding term. "
)
_ROUNDING = "Its rounding term was proved for the arithmetic of torch on a CPU, not for the runtime that executes this file."
_TOKENS = (
    "The certificate is about the output tokens of the network as torch executes it on a CPU. Before this file got its name, its "
    "output tokens were compared with those of the network, on a sample or on all sequences; nothing is proved of its runtime."
)
_LENGTHS = (1, 8, 16, 33)  # tokens for which a file is compared too
_LONGEST = 4096
_STATEMENTS = {
    Status.PROVED: _EXACT + _ROUNDING,
    Status.MEASURED: "The error was measured at samples, in torch. Nothing is proved.",
    Status.UNKNOWN: "Nothing is proved of the rounding of this file.",
}


def write(x: Any, path: Path, *, engine: str, inputs: Any, opset: int | None) -> Export:
    """See `attnc.export`. If the file cannot take the attention masks of a model, it is written without them."""
    for module in ("onnx", "onnxruntime", "onnxscript"):
        optional(module, "onnx", "ONNX files")
    chosen, why = _checked_opset(opset), ""
    subject = subject_of(x, engine, inputs)
    try:
        done = _write(x, path, subject, engine, chosen)
    except (UnsupportedError, ExportError) as problem:
        if not subject.masks:
            raise
        subject, why = subject_of(x, engine, inputs, masks=False), f". With it: {problem}"
        done = _write(x, path, subject, engine, chosen)
    if subject.unmasked and inputs is None:
        warnings.warn(f"{path}: {unmasked_note(subject.unmasked)}{why}", stacklevel=4)
    return done


def _write(x: Any, path: Path, subject: Subject, engine: str, opset: int) -> Export:
    dtype = subject.dtype
    with subject.running(), _quiet():
        program, axes = _traced(subject)
        model = _translated(program, subject, opset, axes)
        if engine == "softmax":
            _check_pure(model)
    verdict = _verdict(x, subject.certificate)
    with subject.running(), _quiet():
        _describe(model, subject, engine, verdict)
        if (size := model.ByteSize()) > _LARGEST:
            raise UnsupportedError(
                "a file of ONNX holds 2 GB at most", [Problem(str(path), f"the model has {size:,} bytes")]
            )
        with replacing(path) as temporary:
            temporary.write_bytes(model.SerializeToString())
            with _as_written(path):
                literal = isinstance(x, SelfAttentionNetwork)
                rounding = LiteralRounding(x) if literal else Rounding(program, dtype, subject.decides)
                difference, allowed, count = _compare(temporary, subject, rounding, axes)
                _check_lengths(temporary, subject, rounding, axes, _lengths(program, subject, axes))
    named = {name: dict(own) for name, own in zip(subject.names, axes, strict=True)}
    notes = (unmasked_note(subject.unmasked),) if subject.unmasked else ()
    return Export(path, engine, difference, allowed, count, operations_in(model), named, notes)


def _verdict(x: Any, certificate: Certificate) -> Verdict | None:
    """What the independent checker says of a certificate that claims a proof: it may have been read from any file. If the checker
    does not confirm it, the file claims nothing. The checker of a literal form has run before."""
    if not certificate.proved:
        return None
    verdict = verify(x)
    if verdict.status is Status.REFUTED:
        raise CertificateError(f"the certificate is not true, so it is not exported: {verdict.reason}")
    return verdict


def _checked_opset(opset: object) -> int:
    if opset is None:
        return _DEFAULT
    if type(opset) is not int or opset not in OPSETS:
        raise InputError(f"opset={opset!r}: give an operator set of ONNX from {OPSETS[0]} to {OPSETS[-1]}")
    return opset


def _traced(subject: Subject) -> tuple[ExportedProgram, tuple[Axes, ...]]:
    """The graph of the module, and the axes that may have any length in it."""
    example = subject.samples(SIZES[1], {name for own in subject.axes for name in own.values()})
    dims = tuple(dict.fromkeys(own, Dim.AUTO) for own in subject.axes)
    try:
        with torch.no_grad(), in_rows():
            program = torch.export.export(subject.called, example, dynamic_shapes=(dims,), strict=False)
    except AttncError:
        raise
    except Exception as problem:  # of any kind: it may come from the model
        name, reason = type(subject.called.module).__name__, str(problem).partition("\n")[0]
        raise UnsupportedError("torch.export cannot trace this module", [Problem(name, reason)]) from problem
    given = set(program.graph_signature.user_inputs)
    values = [
        node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in given
    ]
    found = []
    for value, own in zip(values, subject.axes, strict=True):
        found.append({i: name for i, name in own.items() if not isinstance(value.shape[i], int)})
    return program, tuple(found)


def _translated(program: ExportedProgram, subject: Subject, opset: int, axes: tuple[Axes, ...]) -> Any:
    """The graph in ONNX's operations. The rewriting rules of torch.onnx are left out: they take numbers below 1e-8 for 0 and
    numbers within 1e-5 of 1 for 1. So are the notes on the source code, which contain paths of this machine."""
    import onnxscript.optimizer

    try:
        made: Any = torch.onnx.export(
            program, (), dynamo=True, optimize=False, verbose=False, opset_version=opset,
            input_names=list(subject.names), output_names=list(subject.outputs),
        )  # fmt: skip
        onnxscript.optimizer.inline(made.model)
        onnxscript.optimizer.fold_constants(made.model)
        onnxscript.optimizer.remove_unused_nodes(made.model)
        model: Any = made.model_proto
    except Exception as problem:  # of any kind: torch.onnx has its own
        name, reason = type(subject.called.module).__name__, str(problem).strip().partition("\n")[0]
        raise UnsupportedError(
            "torch.onnx cannot translate this module", [Problem(name, reason)]
        ) from problem
    graph = model.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    _name_axes(graph, axes)
    return model


def _name_axes(graph: Any, axes: tuple[Axes, ...]) -> None:
    """ "batch" and "tokens" in the place of the names that torch.export makes up."""
    names: dict[str, str] = {}
    for value, own in zip(graph.input, axes, strict=True):
        for i, name in own.items():
            names.setdefault(value.type.tensor_type.shape.dim[i].dim_param, name)
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _check_pure(model: Any) -> None:
    if others := Graph(model).nonlinear():
        raise UnsupportedError(IMPURE, [Problem(name, "not softmax, and not linear") for name in others])


def _describe(model: Any, subject: Subject, engine: str, verdict: Verdict | None) -> None:
    """Certificate, digests and versions in the metadata of the file. A literal form has the certificate of its source."""
    import onnx

    own, carried = subject.certificate, subject.carried
    doubted = verdict is not None and not verdict
    about = {
        "attnc": versions()["attnc"],
        "attnc.subject": own.subject,
        "attnc.status": str(Status.UNKNOWN if doubted else own.status),
        "attnc.digests": json.dumps(_digests(own)),
        "attnc.engine": engine,
        "attnc.statement": _statement(None if doubted else carried, engine),
    }
    about |= {f"attnc.{name}": json.dumps(value) for name, value in subject.about.items()}
    if verdict is not None:
        about["attnc.verdict"] = str(verdict)
    known = carried is not None and (carried.status is not Status.UNKNOWN or carried.subject == "literal")
    if carried is not None and known and not doubted:
        about["attnc.certificate"] = json.dumps(carried.to_json())
    onnx.helper.set_model_props(model, about)
    model.producer_name, model.producer_version = "attnc", about["attnc"]


def _statement(carried: Certificate | None, engine: str) -> str:
    if carried is None or carried.status not in _STATEMENTS:
        return "Nothing is claimed of this file."
    if carried.subject == "tokens" and carried.status is Status.PROVED:
        return _TOKENS
    if carried.status is Status.PROVED and engine == "closed-form":
        return _CLOSED + _ROUNDING
    encoded = carried.subject == "literal" and math.isfinite(carried.approximation)
    return _EXACT * encoded + _STATEMENTS[carried.status]


def _digests(certificate: Certificate) -> dict[str, dict[str, str]]:
    """The digests of the numbers of every part, by its number and title."""
    return {
        f"{i} {part.title}": dict(part.digests) for i, part in enumerate(certificate.walk()) if part.digests
    }


def _compare(
    file: Path, subject: Subject, rounding: Rounding | LiteralRounding, axes: tuple[Axes, ...]
) -> tuple[float, float, int]:
    """The largest difference between the file in onnxruntime and the module, what rounding explains, and the inputs compared.

    Each output of a head or a network is within `certificate.rounding` of exact arithmetic in torch. A runtime with the same unit
    roundoff makes errors of that size too, so twice the term is the most that rounding explains; `rounding` measures how much it
    does in fact. The smaller of the two is allowed."""
    session = _session(file)
    free = {name for own in axes for name in own.values()}
    sizes = SIZES if free else SIZES[1:2]
    allowed = [
        max(found)
        for found in zip(*(rounding.allowed(subject.samples(n, free)) for n in sizes[:2]), strict=True)
    ]
    if subject.rounds:
        allowed = [min(most, 2 * subject.certificate.rounding) for most in allowed]
    worst, seen = 0.0, 0
    for given in (*(subject.samples(count, free) for count in sizes), *subject.further):
        with torch.no_grad():
            expected = subject.called(*given)
        found = session.run(None, {name: x.numpy() for name, x in zip(subject.names, given, strict=True)})
        for name, y, z, most in zip(subject.outputs, expected, found, allowed, strict=True):
            difference = _difference(y, z)
            if not difference <= most:
                raise ExportError(
                    f"onnxruntime and torch differ by {difference:.3g} in {name}, for a batch of {len(given[0])}; rounding "
                    f"explains {most:.3g}. Nothing was written. torch.onnx rounds the factors that a float64 model has as Python "
                    "numbers to float32: convert the model in float32; otherwise use other versions of torch and onnxruntime"
                )
            if subject.decides and not np.array_equal(y.numpy().argmax(-1), z.argmax(-1)):
                raise ExportError(
                    f"onnxruntime returns other tokens than torch for sequences of {given[0].shape[1]}. Nothing was written. "
                    "Use float64, or other versions of torch and onnxruntime"
                )
            worst = max(worst, difference)
        seen += len(given[0])
    return worst, max(allowed), seen


def _lengths(program: ExportedProgram, subject: Subject, axes: tuple[Axes, ...]) -> dict[str, set[int]]:
    """Lengths of each axis at which a model may take another branch of its code than the one that was traced: next to those for
    which torch.export knows that its graph holds, and for tokens some others."""
    given, found = set(program.graph_signature.user_inputs), dict[str, set[int]]()
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in given]
    for node, own in zip(nodes, axes, strict=True):
        for i, name in own.items():
            lengths = found.setdefault(name, set(_LENGTHS if name == "tokens" else ()))
            known = program.range_constraints.get(node.meta["val"].shape[i].node.expr)
            ends = () if known is None else (known.lower - 1, known.upper + 1)
            lengths |= {int(end) for end in ends if 1 <= end <= _LONGEST}
    return found


def _check_lengths(
    file: Path,
    subject: Subject,
    rounding: Rounding | LiteralRounding,
    axes: tuple[Axes, ...],
    lengths: Mapping[str, set[int]],
) -> None:
    """Raise ExportError if the file returns something else than the module for inputs of other lengths. Those that the module
    or onnxruntime does not take are left out."""
    session, example = _session(file), subject.samples(2, {name for own in axes for name in own.values()})
    for axis, length in ((name, n) for name, own in lengths.items() for n in sorted(own)):
        places = [next((i for i, name in own.items() if name == axis), None) for own in axes]
        given = tuple(
            x if i is None else x.index_select(i, torch.arange(length) % x.shape[i])
            for x, i in zip(example, places, strict=True)
        )
        try:
            with torch.no_grad():
                expected = subject.called(*given)
            found = session.run(None, {name: x.numpy() for name, x in zip(subject.names, given, strict=True)})
        except Exception:  # of any kind: of the model, or of onnxruntime
            continue
        try:
            allowed = rounding.allowed(given)
        except Exception:  # the graph does not hold for this length
            allowed = rounding.allowed(example)
        for name, y, z, most in zip(subject.outputs, expected, found, allowed, strict=True):
            if not (difference := _difference(y, z)) <= most:
                raise ExportError(
                    f"the module computes something else for {axis} of length {length} than for the lengths that were traced: "
                    f"onnxruntime and torch differ by {difference:.3g} in {name}; rounding explains {most:.3g}. Nothing was "
                    "written: a file holds one branch of the code. Remove the branch from the model"
                )


def _session(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # onnxruntime has no root of its errors
        raise ExportError(
            f"onnxruntime cannot run the file, which was not kept: {str(problem).strip()}. Choose another opset"
        ) from problem


def _difference(expected: Tensor, found: Any) -> float:
    """The largest |expected - found|; infinite if shapes or dtypes differ, or if one number is not finite."""
    y = expected.numpy()
    if y.shape != found.shape or y.dtype != found.dtype:
        return float("inf")
    if not y.size:
        return 0.0
    if not np.isfinite(y).all() or not np.isfinite(found).all():
        return 0.0 if np.array_equal(y, found) else float("inf")
    return float(np.abs(y.astype(np.float64) - found.astype(np.float64)).max())


@contextlib.contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Errors of a runtime name the file that was meant, not the temporary one."""
    try:
        yield
    except AttncError:
        raise
    except Exception as problem:
        raise ExportError(
            f"{path} could not be run by onnxruntime: {str(problem).partition(chr(10))[0]}"
        ) from problem


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and lines of progress of torch.onnx."""
    loggers = [
        logging.getLogger(name)
        for name in ("torch.onnx", "torch.onnx._internal.exporter._registration", "onnxscript")
    ]
    before = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(loggers, before, strict=True):
            log.setLevel(level)
