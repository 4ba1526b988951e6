"""attnc.compile: a model or a function goes in, a network of affine maps and softmax attention comes out, with its proof."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attnc.domain import Box
from attnc.errors import InputError
from attnc.frontends import to_program
from attnc.frontends.function import METHODS, Question, compiled
from attnc.frontends.sklearn import is_estimator
from attnc.heads.candidates import Progress
from attnc.lower.certified import certified
from attnc.lower.function_to_head import check_arithmetic, check_box, checked_dtype, checked_eps
from attnc.lower.layers import check_supported
from attnc.lower.program_to_network import Request, lower
from attnc.network.inside import checked_strict
from attnc.network.literal.parts import read
from attnc.network.network import Network, checked_engine
from attnc.program.program import Program

COMPILED = ("layers", "two-layer", "attention-softmax")


def compile(
    model: Any,
    *,
    domain: Box,
    eps: float,
    form: str | None = None,
    method: str = "auto",
    lipschitz: float | None = None,
    noise: float | None = None,
    tokens: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    engine: str = "softmax",
    strict: bool | None = None,
    progress: Progress | None = None,
) -> Network:
    """A trained network or any continuous function as attention: every output within eps, for every input of the box.

    `model` is a torch module of Linear layers and activations (read from the operations that it executes on a batch, of the shape
    (batch, *domain.shape)), a fitted scikit-learn MLPRegressor or MLPClassifier (its logits), or a `Program`: then eps is proved.
    The proof is about the function that the model denotes in exact arithmetic. Everything that is not understood is listed.

    Or it is a function of a tensor (batch, n, d) that returns (batch, n, d'), or (batch, tokens, d'). With `lipschitz`, a
    constant K such that every output changes by at most K|x - x'|₂, eps is proved by a grid of anchors, for every function with
    that constant that is within `noise` of the answers (2⁻⁴⁶ of their size in float64, 2⁻¹⁸ in float32, if you do not say: give
    more if the function subtracts large numbers). Without a constant, the values are found by `method` ("lattice" for smooth
    functions of up to 4 numbers, "fit" for more) and the error is measured: the status of `net.certificate` is "measured".
    `form`, "two-layer" (the default) or "attention-softmax", says which of the paper's networks `as_self_attention` writes.
    `strict`: inputs outside the box warn once (None), raise (True) or do nothing (False).

    >>> import attnc, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    >>> net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-3)
    >>> x = torch.rand(5, 4)
    >>> bool((net(x) - model(x)).abs().max() <= 1e-3), net.certificate.covers(x)
    (True, True)
    >>> swap = attnc.compile(lambda x: x.flip(1) ** 2 / 2, domain=attnc.Box(0, 1, shape=(2, 1)), eps=0.05, lipschitz=1)
    >>> swap.certificate.bound <= 0.05, attnc.verify(swap).status
    (True, 'proved')
    """
    if not isinstance(domain, Box):
        raise InputError(f"domain is an attnc.Box(lo, hi, shape=(…)): got {type(domain).__name__}")
    name, allowed = checked_dtype(dtype), checked_eps(eps)
    engine, strict = checked_engine(engine), checked_strict(strict)
    _check_words(form, method)
    say = progress or (lambda _: None)
    with torch.inference_mode(False), torch.enable_grad():  # a witness is found by gradients
        if _is_function(model, method):
            check_box(domain, name)
            check_arithmetic(name, network=True)
            question = Question(model, domain, allowed, name, method, lipschitz, noise, tokens, seed, say)
            net = compiled(question, form or "two-layer")
        else:
            _check_function_words(method, {"lipschitz": lipschitz, "noise": noise, "tokens": tokens})
            net = _of_model(model, domain, allowed, name, say)
            net.form = form or "layers"
    net.layout = "heads" if net.form == "two-layer" else ""
    net.engine, net.strict = engine, strict
    if net.form != "layers":
        read(net)  # raises where the network has not the layers of the theorem
    return net


def _of_model(model: Any, domain: Box, eps: float, dtype: str, progress: Progress) -> Network:
    program = to_program(model, domain.shape, domain)
    check_supported(program)
    check_box(domain, dtype)
    check_arithmetic(dtype, network=True)
    request = Request(program, domain, eps, dtype, progress)
    return certified(request, lower(request), "softmax", None)


def _is_function(model: Any, method: str) -> bool:
    """Whether it can only be asked: a callable that is no model, or a module that is not to be read."""
    if isinstance(model, nn.Module):
        return method != "auto"
    return callable(model) and not isinstance(model, type | Program) and not is_estimator(model)


def _check_words(form: str | None, method: str) -> None:
    if form is not None and form not in COMPILED:
        raise InputError(
            f"form={form!r}: accepted are {', '.join(map(repr, COMPILED))}; one head and many heads are in attnc.paper"
        )
    if method not in METHODS:
        raise InputError(f"method={method!r}: accepted are {', '.join(map(repr, METHODS))}")


def _check_function_words(method: str, words: dict[str, object]) -> None:
    """Refuse the options of functions for a model that is compiled from its operations."""
    for name, given in {**words, "method": None if method == "auto" else method}.items():
        if given is not None:
            raise InputError(
                f"{name}={given!r} applies to functions only: this model is compiled from its own operations; leave it out. (A "
                "torch module is compiled as a function with method='grid', 'lattice' or 'fit'.)"
            )
