"""`attnc compile`: a trained network, or a function of sequences, as softmax attention."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attnc
from attnc.cli.options import (
    Force,
    Json,
    Output,
    Report,
    check_files,
    make_box,
    parse_dtype,
    parse_shape,
    write_report,
)
from attnc.cli.output import errors_reported, finish, progress_bar
from attnc.cli.own_code import OBJECT, is_function, load_object, user_code
from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.program import Program

_SOURCE = "model.safetensors, or module:object (runs your own code)."
_LIPSCHITZ = "Function: |f(x) - f(y)| <= K|x - y| (Euclidean), to prove the error."
_Domain = Annotated[tuple[str, str], typer.Option(metavar="LO HI", help="Two numbers, or lists: -1,0 1,5.")]
_Shape = Annotated[str | None, typer.Option(metavar="D | N,D", help="Of one input; default from the model.")]
_OutputActivation = Annotated[str | None, typer.Option(metavar="NAME", help="File: after the last layer.")]
_Order = Annotated[str | None, typer.Option(metavar="A,B,C", help="File: prefixes of the layers, in order.")]
_Method = Annotated[str | None, typer.Option(metavar="NAME", help="Function: auto, lattice, grid or fit.")]
_Noise = Annotated[float | None, typer.Option(metavar="E", help="With --lipschitz: rounding error of f.")]
_Tokens = Annotated[int | None, typer.Option(metavar="M", help="Function: output tokens; default N.")]
_Dtype = Annotated[str | None, typer.Option(help="float32 or float64; default the model's, else float32.")]
_TimeLimit = Annotated[float | None, typer.Option(metavar="S", help="Function: CPU seconds for its proof.")]
_Seed = Annotated[int | None, typer.Option(metavar="S", help="Function: of random inputs and of the fit.")]


def compile(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE)],
    domain: _Domain,
    eps: Annotated[float, typer.Option(metavar="E", help="The error allowed in every output.")],
    shape: _Shape = None,
    dtype: _Dtype = None,
    engine: Annotated[str, typer.Option(help="How attention is executed: softmax or sdpa.")] = "softmax",
    activation: Annotated[str | None, typer.Option(metavar="NAME", help="File: between the layers.")] = None,
    output_activation: _OutputActivation = None,
    order: _Order = None,
    form: Annotated[str | None, typer.Option(help="layers, two-layer or attention-softmax.")] = None,
    method: _Method = None,
    lipschitz: Annotated[float | None, typer.Option(metavar="K", help=_LIPSCHITZ)] = None,
    noise: _Noise = None,
    tokens: _Tokens = None,
    seed: _Seed = None,
    time_limit: _TimeLimit = None,
    output: Output = None,
    report: Report = None,
    json: Json = False,
    force: Force = False,
) -> None:
    """Compile a network or a function to softmax attention.

    SOURCE is model.safetensors with the weights and biases of an MLP; nothing in the file is executed. Or it is
    module:object, and YOUR OWN PYTHON CODE IS IMPORTED AND RUN, from the current directory or Python's path: an
    nn.Module in eval mode, a fitted scikit-learn MLP (of a classifier, its logits), a function of a tensor
    (batch, tokens, features) that returns one, or a function without arguments that returns any of these.
    A function of up to 4 numbers is proved from its torch operations; if that fails, its error is measured.

    Exit status: 0 proved, 1 measured or not certified, 2 bad input.

    Example: attnc compile mlp.safetensors --activation relu --domain -1 1 --eps 1e-3 -o net.safetensors

    Example: attnc compile mine:sort --shape 3,1 --domain 0 1 --eps 1e-2
    """
    with errors_reported(json), user_code() if _is_object(source) else nullcontext():
        weights = {"activation": activation, "output_activation": output_activation, "order": order}
        function = {"method": method, "lipschitz": lipschitz, "noise": noise, "tokens": tokens, "seed": seed}
        function |= {"time_limit": time_limit}
        files = check_files(output, None, force, report=report)
        settings: dict[str, Any] = {"dtype": dtype and parse_dtype(dtype), "engine": engine, "form": form}
        began, given = time.perf_counter(), None if shape is None else parse_shape(shape)
        with progress_bar(f"reading {source}") as progress:
            if _is_object(source):
                _check_absent(weights, f"only for a file of weights; {source} is a Python object")
                model: Any = load_object(source)
                box = make_box(domain, given or _input_shape(model, source), source)
            else:
                _check_absent(function, f"only for a function, module:object; {source} is a file of weights")
                model, stored = _read_weights(source, given, **weights)
                settings["dtype"], box = settings["dtype"] or stored, make_box(domain, model.shape, source)
            options = {name: value for name, value in (settings | function).items() if value is not None}
            net = attnc.compile(model, domain=box, eps=eps, progress=progress, **options)
            seconds = time.perf_counter() - began
            if output is not None:
                net.save(output)
            write_report(net, report, progress)
    about = {"source": source, "eps": eps, "engine": engine}
    against = None if _is_object(source) else _compared(activation, output_activation)
    finish(net, f"{source} as softmax attention", json, about, seconds, files, against)


def _compared(activation: str | None, last: str | None) -> str:
    """What the bound of a file of weights is about."""
    after = f" and {last} after the last one" if last else ""
    return f"these weights with {activation} between the layers{after}; it was not compared with a model"


def _is_object(source: str) -> bool:
    """Whether SOURCE is module:object rather than a file."""
    module, _, name = source.partition(":")
    if module.endswith(".py"):
        raise InputError(f"{source}: give the import name of the module, as in {module[:-3]}:{name or 'net'}")
    if os.path.lexists(source):
        return False
    if not OBJECT.fullmatch(source):
        raise FileError(f"cannot read {source}: no such file; give a model.safetensors, or module:object")
    return True


def _check_absent(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that do not apply to this SOURCE."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise InputError(f"{' and '.join(given)}: {reason}")


def _read_weights(
    source: str,
    shape: tuple[int, ...] | None,
    activation: str | None,
    output_activation: str | None,
    order: str | None,
) -> tuple[Program, Any]:
    """The MLP whose weights and biases are in a safetensors file, on inputs of the shape that is given; and its dtype."""
    from attnc.arguments import DTYPES
    from attnc.frontends import mlp, read_state_dict
    from attnc.records.files import read_file

    try:
        read_file(source)
    except FileError:  # not a file of attnc
        tensors = read_state_dict(source)
    else:
        raise FileError(f"{source} was written by attnc, see `attnc show`: give the weights of a model")
    if activation is None:
        raise InputError(f"{source} has no activation: give --activation, a name of `attnc functions`")
    prefixes = None if order is None else [prefix.strip() for prefix in order.split(",")]
    program = mlp(tensors, activation, order=prefixes, output_activation=output_activation)
    stored = {tensor.dtype for tensor in tensors.values()}
    dtype = stored.pop() if len(stored) == 1 else None
    return program if shape is None else replace(program, shape=shape), dtype if dtype in DTYPES else None


def _input_shape(model: Any, source: str) -> tuple[int, ...] | None:
    """The shape of one input where the model determines it; None where --shape is needed."""
    from attnc.frontends.input_shape import input_shape

    if is_function(model):
        raise InputError(f"{source} is a function: give --shape, as in 3,1 for 3 tokens of 1 feature")
    return input_shape(model)
