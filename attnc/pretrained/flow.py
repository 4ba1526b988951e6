"""What a model passes from a norm to a block when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from attnc.domain import Array, Normed
from attnc.errors import Problem, UnsupportedError
from attnc.frontends.capture import fused_path
from attnc.frontends.transformers import Call, NormRead, Site
from attnc.network.gated_block import GatedBlock
from attnc.network.pointwise import Pointwise
from attnc.pretrained.samples import removed

MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode)


def check_flow(model: nn.Module, call: Call, sites: Sequence[Site]) -> None:
    """Raise UnsupportedError unless every block with a norm before it receives outputs of that norm when the model runs."""
    for mode in MODES:
        seen: list[tuple[Site, list[Tensor], list[Tensor]]] = [(site, [], []) for site in sites]
        handles = []
        for site, entering, normed in seen:
            handles.append(site.first.module.register_forward_pre_hook(record_input(entering)))
            if (part := norm_module(model, site)) is not None:
                handles.append(part.register_forward_hook(record_output(normed)))
        with removed(handles), mode(), fused_path(False), silent(model):
            run(model, call)
        found = [(site.name, check_normed(site.norm, entering, normed)) for site, entering, normed in seen]
        refuse(model, [Problem(name, reason) for name, reason in found if reason is not None])


def check_normed(norm: NormRead | None, entering: Sequence[Tensor], normed: Sequence[Tensor]) -> str | None:
    """Why the inputs of a block are not outputs of its norm, or None: they must be rows that the norm returned, if it is a
    module, and no longer than a norm's outputs."""
    if norm is None:
        return None
    known = {row.tobytes() for out in normed for row in rows_of(out)}
    for x in map(rows_of, entering):
        foreign = bool(known) and any(row.tobytes() not in known for row in x)
        if foreign or not _normalised(x, norm.domain()):
            return f"its input is not the output of {norm.name or 'its norm'}"
    return None


def _normalised(x: Array, norm: Normed) -> bool:
    """|(x - shift)/gain|₂ <= √d, up to the relative 2^-10 that the bounds allow for executed norms."""
    used = norm.gain != 0
    with np.errstate(all="ignore"):
        y = (x[:, used] - norm.shift[used]) / norm.gain[used]
        room = np.abs(norm.shift[used] / norm.gain[used]).max(initial=0.0)
    longest = (1 + 2.0**-10) * np.sqrt(x.shape[1]) + 2.0**-10 * room * np.sqrt(x.shape[1])
    return bool((np.sqrt((y * y).sum(1)) <= longest).all())


def norm_module(model: nn.Module, site: Site) -> nn.Module | None:
    """The norm, if it is a module of its own and not written out in the module that contains the block."""
    name = site.norm_name
    inline = not name or f"{site.name}.".startswith(f"{name}.")
    return None if inline or name is None else model.get_submodule(name)


def record_input(into: list[Tensor]) -> Callable[..., None]:
    return lambda module, given: into.append(given[0].detach().clone())


def record_output(into: list[Tensor]) -> Callable[..., None]:
    return lambda module, given, out: into.append(out.detach().clone())  # the model may change it in place


def rows_of(x: Tensor) -> Array:
    found: Array = x.detach().to("cpu", torch.float64).reshape(-1, x.shape[-1]).numpy()
    return found


def run(model: nn.Module, call: Call) -> None:
    try:
        with torch.random.fork_rng(devices=[]):
            model(*call.args, **(call.kwargs or {}))
    except Exception as problem:
        raise UnsupportedError(
            f"{type(model).__name__} cannot be converted, and is unchanged",
            [Problem("the model", f"fails when it runs: {type(problem).__name__}: {problem}")],
        ) from problem


def refuse(model: nn.Module, problems: list[Problem]) -> None:
    if problems:
        raise UnsupportedError(
            f"{type(model).__name__} runs something else than was read, and is unchanged", problems
        )


@contextmanager
def silent(model: nn.Module) -> Iterator[None]:
    """No warnings and errors about inputs outside of a domain while attnc itself runs the model."""
    parts = [part for part in model.modules() if isinstance(part, (Pointwise, GatedBlock))]
    before = [part.strict for part in parts]
    for part in parts:
        part.strict = False
    try:
        yield
    finally:
        for part, strict in zip(parts, before, strict=True):
            part.strict = strict
