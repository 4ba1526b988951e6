"""attnc.compile: a model goes in, a network of affine maps and softmax attention comes out, with its proof."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnc.anchors.candidates import Progress
from attnc.domain import Box
from attnc.errors import InputError, UnsupportedError
from attnc.frontends import to_program
from attnc.lower.certified import certified
from attnc.lower.function_to_head import check_arithmetic, checked_dtype, checked_eps
from attnc.lower.program_to_network import Wish, lower
from attnc.network.network import Network, checked_engine
from attnc.program.check import problems


def compile(
    model: Any,
    *,
    domain: Box,
    eps: float,
    dtype: torch.dtype = torch.float32,
    engine: str = "columns",
    strict: bool = False,
    progress: Progress | None = None,
) -> Network:
    """A trained network as attention: every output proved within eps of the model, for every input of the box.

    `model` is a torch module of Linear layers and activations (residual connections are traced), a fitted scikit-learn
    MLPRegressor or MLPClassifier (its logits), or a `Program`. What the proof is about is the function that the model denotes
    in exact arithmetic. Everything that is not understood is listed, before any work begins.

    >>> import attnc, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    >>> net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-3)
    >>> x = torch.rand(5, 4)
    >>> bool((net(x) - model(x)).abs().max() <= 1e-3), net.certificate.covers(x)
    (True, True)
    """
    if not isinstance(domain, Box):
        raise InputError(
            f"domain is an attnc.Box, e.g. attnc.Box(-1, 1, shape=(16,)): got {type(domain).__name__}"
        )
    name, allowed, engine = checked_dtype(dtype), checked_eps(eps), checked_engine(engine)
    program = to_program(model, domain.shape, domain)
    found = problems(program)
    if found:
        raise UnsupportedError("the model cannot be compiled", found)
    _check_box(domain, name)
    check_arithmetic(name, network=True)
    wish = Wish(program, domain, allowed, name, progress or (lambda _: None))
    return certified(wish, lower(wish), engine, strict)


def _check_box(box: Box, dtype: str) -> None:
    """Every coordinate must have a number of the dtype, or the promise would be empty."""
    with np.errstate(over="ignore"):
        near = box.lo.astype(dtype)
    low = np.where(near < box.lo, np.nextafter(near, np.array(np.inf, dtype)), near)
    empty = np.argwhere(~(low <= box.hi))
    if len(empty):
        at = tuple(int(i) for i in empty[0])
        raise InputError(
            f"no {dtype} lies between lo={box.lo[at]!r} and hi={box.hi[at]!r} at coordinate {at}: widen the box there, "
            "or use another dtype"
        )
