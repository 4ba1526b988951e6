"""Inputs: samples of a model's inputs, and the domain of the inputs of each block, which are the outputs of the norm in front,
a given box, or inputs seen on calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnc.domain import Array, Box, Normed
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.transformers import Call, Site
from attnc.pretrained.config import ConvertConfig
from attnc.records.certificate import Status

_ROOM = 0.25  # of its width, by which an interval seen on calibration is widened on each side


@dataclass(frozen=True, eq=False)
class Entering:
    """The domain of a block's input. If it was measured on calibration, so is the bound of the block."""

    domain: Normed | Box
    status: Status = Status.PROVED


def entering(model: nn.Module, sites: Sequence[Site], config: ConvertConfig) -> list[Entering]:
    """One for each site; an error lists every block whose inputs are unknown."""
    found = {site.name: Entering(site.norm.domain()) for site in sites if site.norm is not None}
    bare = {site.name: site for site in sites if site.norm is None}
    boxes = config.inputs if isinstance(config.inputs, Mapping) else dict.fromkeys(bare, config.inputs)
    for name, box in boxes.items():
        if name not in bare:
            known = "its inputs are known from its norm" if name in found else f"without a norm are {[*bare]}"
            raise InputError(f"inputs has a box for {name!r}: {known}")
        if box is not None:
            features = bare.pop(name).first.sizes[1]
            if box.shape != (features,):
                shape = f"the box for {name} has shape {box.shape}"
                raise InputError(f"inputs: {shape}, but the block takes {features} features")
            found[name] = Entering(box)
    found |= _measured(model, bare, config)
    missing = [site for site in bare.values() if site.name not in found]
    if missing:
        reason = "no calibration sample reached it" if config.calibration is not None else (
            "there is no norm in front of it, so its inputs are unknown: pass "
            "config=ConvertConfig(inputs=Box(lo, hi, shape=(d,))) or calibration=[…], or exclude it with filter_fn"
        )  # fmt: skip
        raise UnsupportedError(
            f"{type(model).__name__} cannot be converted, and was not changed",
            [Problem(site.name, "; ".join((*site.remarks[-1:], reason))) for site in missing],
        )
    return [found[site.name] for site in sites]


def _measured(model: nn.Module, bare: Mapping[str, Site], config: ConvertConfig) -> dict[str, Entering]:
    """A box around the inputs that the calibration samples bring to each block."""
    if not bare or config.calibration is None:
        return {}
    seen: dict[str, list[Array]] = {}

    def note(name: str, given: tuple[Any, ...]) -> None:
        x = given[0].detach().to("cpu", torch.float64).reshape(-1, given[0].shape[-1])
        if len(x):
            seen.setdefault(name, []).extend((x.amin(0).numpy(), x.amax(0).numpy()))

    handles = [
        site.first.module.register_forward_pre_hook(lambda _, given, name=name: note(name, given))
        for name, site in bare.items()
    ]
    with removed(handles):
        outputs(model, calls(config.calibration))
    found = {}
    for name, ends in seen.items():
        lo, hi = np.min(ends, axis=0), np.max(ends, axis=0)
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise InputError(f"calibration: an input of {name} is not finite; use other samples")
        room = _ROOM * (hi - lo)
        found[name] = Entering(Box(lo - room, hi + room), Status.MEASURED)
    return found


def calls(samples: object) -> list[Call]:
    """Samples as calls of the model: a tensor, a mapping of names to arguments, a tuple of arguments, or a list of those."""
    listed = samples if isinstance(samples, list) else [samples]
    if not listed:
        raise InputError("samples is an empty list: give inputs of the model, or leave it out")
    found = []
    for one in listed:
        if isinstance(one, Mapping):
            found.append(Call((), {str(name): value for name, value in one.items()}))
        elif isinstance(one, (Tensor, tuple)):
            found.append(Call(one if isinstance(one, tuple) else (one,)))
        else:
            accepted = "a tensor, a tuple of arguments or a mapping of names to arguments"
            raise InputError(f"a sample is {accepted}: got {type(one).__name__}")
    return found


def outputs(model: nn.Module, samples: Sequence[Call], *, grad: bool = False) -> list[dict[str, Tensor]]:
    """Every tensor of real numbers that the model returns for each sample, by its name."""
    found = []
    with torch.set_grad_enabled(grad):
        for call in samples:
            try:
                output = model(*call.args, **(call.kwargs or {}))
            except Exception as problem:
                reason = f"{type(problem).__name__}: {problem}"
                raise InputError(f"the model fails on a sample: {reason}") from problem
            found.append(dict(_tensors("output", output)))
    return found


def _tensors(name: str, output: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield name, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _tensors(str(key), value)
    elif isinstance(output, Sequence) and not isinstance(output, (str, bytes)):
        for i, value in enumerate(output):
            yield from _tensors(f"{name}[{i}]", value)


@contextmanager
def removed(handles: Sequence[RemovableHandle]) -> Iterator[None]:
    """Remove hooks on exit."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
