"""The inputs of each block: the outputs of the norm in front, a given box, or the inputs seen on calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from attnc.domain import Array, Box, Normed
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.transformers import Site
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.samples import calls, outputs, removed
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
            known = (
                "its inputs are known from its norm"
                if name in found
                else f"the blocks without a norm are {[*bare]}"
            )
            raise InputError(f"inputs has a box for {name!r}: {known}")
        if box is not None:
            features = bare.pop(name).first.sizes[1]
            if box.shape != (features,):
                raise InputError(
                    f"inputs: the box for {name} has shape {box.shape}, but the block takes {features} features"
                )
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
    seen: dict[str, tuple[Array, Array]] = {}

    def note(name: str, given: tuple[Any, ...]) -> None:
        x = given[0].detach().to("cpu", torch.float64).reshape(-1, given[0].shape[-1])
        if len(x):
            low, high = x.amin(0).numpy(), x.amax(0).numpy()
            before = seen.get(name, (low, high))
            seen[name] = np.minimum(before[0], low), np.maximum(before[1], high)

    handles = [
        site.first.module.register_forward_pre_hook(lambda _, given, name=name: note(name, given))
        for name, site in bare.items()
    ]
    with removed(handles):
        outputs(model, calls(config.calibration))
    found = {}
    for name, (lo, hi) in seen.items():
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise InputError(f"calibration: an input of {name} is not finite; use other samples")
        room = _ROOM * (hi - lo)
        found[name] = Entering(Box(lo - room, hi + room), Status.MEASURED)
    return found
