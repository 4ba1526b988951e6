"""`attnc compile`: a trained network, or a function of sequences, as softmax attention."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any

import typer

import attnc
from attnc.cli.options import Dtype, Force, Json, Output, check_files, make_box, parse_dtype, parse_shape
from attnc.cli.output import errors_reported, finish, progress_bar
from attnc.cli.sources import check_absent, input_shape, is_object, load_object, read_weights, user_code

_SOURCE = "model.safetensors, or module:object (runs your own code)."
_LIPSCHITZ = "Function: |f(x) - f(y)| <= K|x - y| (Euclidean), to prove the error."
_Source = Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE)]
_Domain = Annotated[tuple[str, str], typer.Option(metavar="LO HI", help="Two numbers, or lists: -1,0 1,5.")]
_Eps = Annotated[float, typer.Option(metavar="E", help="The error allowed in every output.")]
_Shape = Annotated[str | None, typer.Option(metavar="D | N,D", help="Of one input; default from the model.")]
_Engine = Annotated[str, typer.Option(help="How attention is executed: softmax or sdpa.")]
_Activation = Annotated[str | None, typer.Option(metavar="NAME", help="File: between the layers.")]
_OutputActivation = Annotated[str | None, typer.Option(metavar="NAME", help="File: after the last layer.")]
_Order = Annotated[str | None, typer.Option(metavar="A,B,C", help="File: prefixes of the layers, in order.")]
_Form = Annotated[str | None, typer.Option(help="layers, two-layer or attention-softmax.")]
_Method = Annotated[str | None, typer.Option(metavar="NAME", help="Function: auto, lattice, grid or fit.")]
_Lipschitz = Annotated[float | None, typer.Option(metavar="K", help=_LIPSCHITZ)]
_Noise = Annotated[float | None, typer.Option(metavar="E", help="With --lipschitz: rounding error of f.")]
_Tokens = Annotated[int | None, typer.Option(metavar="M", help="Function: output tokens; default N.")]
_Seed = Annotated[int | None, typer.Option(metavar="S", help="Function: of random inputs and of the fit.")]


def compile(
    source: _Source,
    domain: _Domain,
    eps: _Eps,
    shape: _Shape = None,
    dtype: Dtype = "float32",
    engine: _Engine = "softmax",
    activation: _Activation = None,
    output_activation: _OutputActivation = None,
    order: _Order = None,
    form: _Form = None,
    method: _Method = None,
    lipschitz: _Lipschitz = None,
    noise: _Noise = None,
    tokens: _Tokens = None,
    seed: _Seed = None,
    output: Output = None,
    json: Json = False,
    force: Force = False,
) -> None:
    """Compile a network or a function to softmax attention.

    SOURCE is model.safetensors with the weights and biases of an MLP; nothing in the file is executed. Or it is
    module:object, and YOUR OWN PYTHON CODE IS IMPORTED AND RUN, from the current directory or Python's path: an
    nn.Module in eval mode, a fitted scikit-learn MLP (of a classifier, its logits), a function of a tensor
    (batch, tokens, features) that returns one, or a function without arguments that returns any of these.
    The error of a function without --lipschitz is measured, not proved.

    Exit status: 0 proved, 1 measured or not certified, 2 bad input.

    Example: attnc compile mlp.safetensors --activation relu --domain -1 1 --eps 1e-3 -o net.safetensors

    Example: attnc compile mine:sort --shape 3,1 --domain 0 1 --eps 1e-2
    """
    with errors_reported(json), user_code(is_object(source)):
        weights = {"activation": activation, "output_activation": output_activation, "order": order}
        function = {"method": method, "lipschitz": lipschitz, "noise": noise, "tokens": tokens, "seed": seed}
        files = check_files(output, None, force)
        settings: dict[str, Any] = {"dtype": parse_dtype(dtype), "engine": engine, "form": form, **function}
        began = time.perf_counter()
        with progress_bar(f"reading {source}") as progress:
            model, known = _read(source, weights, function, None if shape is None else parse_shape(shape))
            box = make_box(domain, known, source)
            given = {name: value for name, value in settings.items() if value is not None}
            net = attnc.compile(model, domain=box, eps=eps, progress=progress, **given)
            seconds = time.perf_counter() - began
            if output is not None:
                net.save(output)
    about = {"source": source, "eps": eps, "engine": engine}
    finish(net, f"{source} as softmax attention", json, about, seconds, files)


def _read(
    source: str, weights: dict[str, str | None], function: dict[str, Any], shape: tuple[int, ...] | None
) -> tuple[Any, tuple[int, ...] | None]:
    """The model and the shape of its inputs: --shape, or the shape that the model determines."""
    if is_object(source):
        check_absent(weights, f"only for a file of weights; {source} is a Python object")
        model = load_object(source)
        return model, shape or input_shape(model, source)
    check_absent(function, f"only for a function, module:object; {source} is a file of weights")
    program = read_weights(source, **weights)
    return program if shape is None else replace(program, shape=shape), shape or program.shape
