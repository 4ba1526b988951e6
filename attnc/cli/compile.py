"""`attnc compile`: a trained network as softmax attention, with a proof; a function too, proved or measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

import attnc
from attnc.cli.domains import box_of, parse_end, parse_shape
from attnc.cli.network_report import network_facts, network_record, print_layers, status
from attnc.cli.output import NOT_PROVED, chosen_dtype, errors_reported, made_facts, print_facts, print_json
from attnc.cli.progress import progress
from attnc.cli.sources import Words, is_object, read_source
from attnc.cli.targets import check_targets
from attnc.cli.user_code import user_code
from attnc.cli.wishes import FORMS, METHODS, Wishes
from attnc.domain import Array
from attnc.lower.function_to_head import checked_eps
from attnc.network.engines import CERTIFIED, checked_engine
from attnc.network.network import Network

_Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="model.safetensors, or module:object (runs your own code).")
]
_Domain = Annotated[
    tuple[str, str],
    typer.Option(metavar="LO HI", help="The inputs: two numbers, or two lists as in -1,0 1,5 by feature."),
]
_Eps = Annotated[float, typer.Option(metavar="E", help="Every output stays within E.")]
_Shape = Annotated[
    str | None, typer.Option(metavar="D | N,D", help="Of one input; left out where a model shows it.")
]
_Engine = Annotated[str, typer.Option(help=f"How attention is executed: {' or '.join(CERTIFIED)}.")]
_Activation = Annotated[
    str | None, typer.Option(metavar="NAME", help="State dict: between the layers; see `attnc functions`.")
]
_OutputActivation = Annotated[
    str | None, typer.Option(metavar="NAME", help="State dict: after the last layer; none if left out.")
]
_Order = Annotated[
    str | None, typer.Option(metavar="A,B,C", help="State dict: the prefixes of its layers, in order.")
]
_Form = Annotated[str | None, typer.Option(metavar="FORM", help=f"{' | '.join(FORMS)}.")]
_Method = Annotated[
    str | None,
    typer.Option(metavar="HOW", help=f"Function: where its values come from, {' | '.join(METHODS)}."),
]
_Lipschitz = Annotated[
    float | None, typer.Option(metavar="K", help="Function: |f(x) - f(y)| <= K|x - y| (Euclidean); a proof.")
]
_Noise = Annotated[float | None, typer.Option(metavar="E", help="With --lipschitz: what f itself may round.")]
_Tokens = Annotated[
    int | None,
    typer.Option(metavar="M", help="Function: how many tokens it returns, if not as many as it takes."),
]
_Seed = Annotated[int | None, typer.Option(metavar="N", help="Function: of random inputs and of a fit.")]
_Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="PATH", help="Write the network and its certificate."),
]


@dataclass(frozen=True)
class _Request:
    """What is asked, as far as it can be checked before anything is read."""

    source: str
    words: Words
    wishes: Wishes
    lo: Array
    hi: Array
    shape: tuple[int, ...] | None
    eps: float
    dtype: torch.dtype
    engine: str


def compile(
    source: _Source,
    domain: _Domain,
    eps: _Eps,
    shape: _Shape = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
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
    output: _Output = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
) -> None:
    """Turn a trained network, or any continuous function, into softmax attention and prove its error.

    SOURCE is model.safetensors, the weights and biases of an MLP: nothing in
    the file is executed. Or it is module:object, and YOUR OWN PYTHON CODE IS
    IMPORTED AND RUN, from the current directory or Python's path: an nn.Module
    in eval mode, a fitted scikit-learn MLP (of a classifier, its logits), a
    function of a tensor (batch, tokens, features) that returns one, or a
    function without arguments that returns any of these.

    Of a function without --lipschitz the error is measured, not proved.

    Exit status: 0 proved, 1 measured or not certified, 2 bad input.

    Example: attnc compile mlp.safetensors --activation relu --domain -1 1 --eps 1e-3 -o net.safetensors

    Example: attnc compile mine:sort --shape 3,1 --domain 0 1 --eps 1e-2
    """
    with errors_reported(json), user_code(is_object(source)):
        request = _Request(
            source,
            Words(activation, output_activation, order),
            Wishes(form, method, lipschitz, noise, tokens, seed),
            parse_end(domain[0]),
            parse_end(domain[1]),
            None if shape is None else parse_shape(shape),
            checked_eps(eps),
            chosen_dtype(dtype),
            checked_engine(engine, CERTIFIED),
        )
        if not is_object(source):
            request.wishes.check_file(source)
        check_targets([] if output is None else [output], force)
        net, seconds = _made(request, output)
    _tell(request, net, seconds, {} if output is None else {"output": str(output)}, json)
    if net.why_not_certified() is not None:
        raise typer.Exit(NOT_PROVED)


def _tell(request: _Request, net: Network, seconds: float, written: dict[str, str], json: bool) -> None:
    if json:
        asked = {"source": request.source, "eps": request.eps, "engine": request.engine}
        about = {"status": status(net), **asked, **network_record(net)}
        print_json({**about, "seconds": round(seconds, 3), "files": written})
        return
    print_layers(f"{request.source} as softmax attention", net)
    print_facts("the whole network", {**network_facts(net), **made_facts(seconds, written)})


def _made(request: _Request, output: Path | None) -> tuple[Network, float]:
    """The network, written where asked, and the seconds that it took."""
    began = time.perf_counter()
    with progress(f"reading {request.source}") as say:
        read = read_source(request.source, request.words, request.shape)
        box = box_of(request.lo, request.hi, read.shape, request.source)
        say(f"compiling {request.source}")
        net = attnc.compile(
            read.model,
            domain=box,
            eps=request.eps,
            dtype=request.dtype,
            engine=request.engine,
            progress=say,
            **request.wishes.given,
        )
        seconds = time.perf_counter() - began
        if output is not None:
            say(f"writing {output}")
            net.save(output)
    return net, seconds
