"""attnc.compile: a model or a function goes in, a network of affine maps and softmax attention comes out, with its proof."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from attnc.arguments import (
    check_arithmetic,
    check_box,
    checked_choice,
    checked_domain,
    checked_engine,
    checked_eps,
    checked_positive,
    checked_strict,
    resolve_dtype,
)
from attnc.domain import Box
from attnc.errors import InputError
from attnc.frontends import to_program
from attnc.frontends.advice import advising_compile
from attnc.frontends.black_box import METHODS, SECONDS, FunctionRequest, compile_function
from attnc.frontends.input_shape import input_shape
from attnc.frontends.sklearn import is_estimator, task_of
from attnc.lower.layers import check_ids
from attnc.lower.program_to_network import certified, lower
from attnc.lower.request import Request
from attnc.network.engines import CERTIFIED
from attnc.network.literal.parts import read
from attnc.network.network import Network
from attnc.program.program import Program
from attnc.progress import Progress, resolve_progress, watched

COMPILED = ("layers", "two-layer", "attention-softmax")


@watched("compiling")
def compile(
    model: Any,
    *,
    domain: Box | tuple[float, float],
    eps: float | None = None,
    approximation: float | None = None,
    form: str | None = None,
    method: str = "auto",
    lipschitz: float | None = None,
    noise: float | None = None,
    tokens: int | None = None,
    seed: int = 0,
    time_limit: float = SECONDS,
    dtype: torch.dtype | str | None = None,
    engine: str = "softmax",
    strict: bool | None = None,
    progress: Progress | bool | None = None,
) -> Network:
    """Compile a trained network or any continuous function to attention, with every output within eps on the whole box.

    `model` is a torch module of Linear layers and activations (attnc reads the operations that it executes on a batch of shape
    (batch, *domain.shape)), a fitted scikit-learn MLPRegressor or MLPClassifier (its logits), or a `Program`: then eps is proved,
    against what the model computes in exact arithmetic. The error lists every operation that is not supported.
    Or it is a function of a tensor (batch, n, d) that returns (batch, n, d'), or (batch, tokens, d'). A function of up to 4
    numbers that is made of torch operations is proved from these operations, in `time_limit` CPU seconds, against f in exact
    arithmetic (docs/functions.md). With `lipschitz`, a constant K such that every output changes by at most K|x - x'|₂, or
    `method="grid"`, a grid of anchors proves eps for every function with this constant that is within `noise` of the returned
    values (2⁻⁴⁶ of their size in float64, 2⁻¹⁸ in float32). Otherwise `method` finds the anchors ("lattice" for up to 4 numbers,
    "fit" for more), and the status of `net.certificate` is "measured". `form` selects what `as_self_attention` writes,
    "two-layer" (the default) or "attention-softmax". `dtype` defaults to the model's, else to torch's default. Inputs outside
    the box warn once (`strict=None`), raise (True) or are ignored (False). `domain=(lo, hi)` is for models of known width.

    With `approximation` instead of eps, each step that becomes attention is within it in exact arithmetic, for all that may enter
    it. The bound of `net.certificate` is what follows for the outputs; it may be large.

    >>> import attnc, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    >>> net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-3)
    >>> bool((net(torch.ones(4)) - model(torch.ones(4))).abs().max() <= 1e-3)
    True
    >>> swap = attnc.compile(lambda x: x.flip(1) ** 2 / 2, domain=attnc.Box(0, 1, shape=(2, 1)), eps=1e-3)
    >>> swap.certificate.bound <= 1e-3, swap.certificate.status
    (True, 'proved')
    """
    domain, name = _box(domain, model, _is_function(model, method)), resolve_dtype(dtype, model)
    allowed, each = _targets(eps, approximation, _is_function(model, method))
    engine, strict = checked_engine(engine, CERTIFIED), checked_strict(strict)
    _check_choices(method, form)
    limit, report = checked_positive("time_limit", time_limit), resolve_progress(progress)
    with torch.inference_mode(False), torch.enable_grad():  # a witness is found by gradients
        if _is_function(model, method):
            constants = (lipschitz, noise, tokens, seed)
            request = FunctionRequest(model, domain, allowed, name, method, *constants, report, limit)
            net = compile_function(request, form or "two-layer")
        else:
            _check_function_words(method, {"lipschitz": lipschitz, "noise": noise, "tokens": tokens})
            with advising_compile(model, domain):
                net = _of_model(model, domain, allowed, name, report, each)
            net.form = form or "layers"
    net.engine, net.strict = engine, strict
    return _in_form(net)


def _box(domain: Any, model: Any, function: bool) -> Box:
    """The box; two numbers are the ends of every coordinate of a model whose first layer determines its inputs."""
    pair = (
        isinstance(domain, (tuple, list))
        and len(domain) == 2
        and all(isinstance(x, (int, float)) for x in domain)
    )
    if not pair:
        return checked_domain(domain)
    box = f"attnc.Box({domain[0]!r}, {domain[1]!r}, shape="
    if function:
        raise InputError(
            f"domain={tuple(domain)!r} does not say how many numbers f takes: give {box}(n, d)) for n tokens of d features"
        )
    shape = input_shape(model)
    if shape is None:
        raise InputError(
            f"domain={tuple(domain)!r}: the model does not determine the shape of an input: give {box}(…))"
        )
    return Box(domain[0], domain[1], shape)


def _in_form(net: Network) -> Network:
    """With its layout; raises unless the network has the layers of its theorem."""
    net.layout = "heads" if net.form == "two-layer" else ""
    if net.form != "layers":
        read(net)
    return net


def _check_choices(method: str, form: str | None) -> None:
    checked_choice("method", method, METHODS)
    if form is not None:
        checked_choice("form", form, COMPILED, "; attnc.paper builds networks of one head and of many heads")


def _targets(eps: object, approximation: object, function: bool) -> tuple[float, float | None]:
    """The error of the outputs that is allowed, or that of each step."""
    if approximation is None:
        return checked_eps(eps), None
    if eps is not None or function:
        raise InputError(
            f"approximation={approximation!r} is for models, without eps; for functions give eps=…"
        )
    return math.inf, checked_eps(approximation, "approximation")


def _of_model(
    model: Any, domain: Box, eps: float, dtype: str, progress: Progress, approximation: float | None
) -> Network:
    program = to_program(model, domain.shape, domain)
    check_box(domain, dtype)
    check_ids(program, domain)
    check_arithmetic(dtype, network=True)
    request = Request(program, domain, eps, dtype, progress, approximation)
    net = certified(request, lower(request))
    if is_estimator(model):
        net.task, net.classes = task_of(model)
    return net


def _is_function(model: Any, method: str) -> bool:
    """Whether to evaluate the model as a function: a callable that is no model, or a module with a method."""
    if isinstance(model, nn.Module):
        return method != "auto"
    return callable(model) and not isinstance(model, type | Program) and not is_estimator(model)


def _check_function_words(method: str, words: dict[str, object]) -> None:
    """Refuse the options of functions for a model that is compiled from its operations."""
    for name, given in {**words, "method": None if method == "auto" else method}.items():
        if given is not None:
            raise InputError(
                f"{name}={given!r} applies to functions only: this model is compiled from its own operations; leave it out. (A "
                "torch module is compiled as a function with method='grid', 'lattice' or 'fit'.)"
            )
