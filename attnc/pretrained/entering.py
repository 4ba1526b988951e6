"""The inputs of each block: the outputs of the norm in front, a given box, or the inputs seen on calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from attnc.domain import Array, Box, Normed
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.transformers import Site
from attnc.pretrained import samples
from attnc.pretrained.config import ConvertConfig
from attnc.records.certificate import Status

_ROOM = 0.25  # of its width, by which an interval seen on calibration is widened on each side


@dataclass(frozen=True, eq=False)
class Entering:
    """The domain of a block's input. If it was measured on calibration, so is the bound of the block."""

    domain: Normed | Box
    status: Status


def entering(model: nn.Module, sites: Sequence[Site], config: ConvertConfig) -> list[Entering]:
    """One for each site; an error lists every block whose inputs are unknown."""
    bare = [site for site in sites if site.norm is None and _box(site, config) is None]
    seen = {}
    if bare and config.calibration is not None:
        seen = samples.entering(model, {s.first.name: s.first.module for s in bare}, config.calibration)
    missing = [site for site in bare if site.first.name not in seen]
    if missing:
        reason = "no calibration sample reached it" if seen or config.calibration is not None else (
            "there is no norm in front of it, so its inputs are unknown: pass "
            "config=ConvertConfig(inputs=Box(lo, hi, shape=(d,))) or calibration=[…], or exclude it with filter_fn"
        )  # fmt: skip
        raise UnsupportedError(
            f"{type(model).__name__} cannot be converted, and was not changed",
            [Problem(site.name, "; ".join((*site.remarks[-1:], reason))) for site in missing],
        )
    _check_names(sites, config)
    return [_of(site, config, seen) for site in sites]


def _of(site: Site, config: ConvertConfig, seen: Mapping[str, tuple[Array, Array]]) -> Entering:
    features = site.first.sizes[1]
    if site.norm is not None:
        return Entering(site.norm.domain(), Status.PROVED)
    box = _box(site, config)
    if box is not None:
        if box.shape != (features,):
            raise InputError(
                f"inputs: the box for {site.name} has shape {box.shape}, but the block takes {features} features"
            )
        return Entering(box, Status.PROVED)
    lo, hi = seen[site.first.name]
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        raise InputError(f"calibration: an input of {site.name} is not finite; use other samples")
    room = _ROOM * (hi - lo)
    return Entering(Box(lo - room, hi + room), Status.MEASURED)


def _box(site: Site, config: ConvertConfig) -> Box | None:
    if isinstance(config.inputs, Mapping):
        return config.inputs.get(site.name)
    return config.inputs


def _check_names(sites: Sequence[Site], config: ConvertConfig) -> None:
    """Every box that is given by name must be used."""
    if not isinstance(config.inputs, Mapping):
        return
    named = {site.name: site for site in sites}
    for name in config.inputs:
        if name not in named:
            raise InputError(
                f"inputs has a box for {name!r}, which is not a block: the blocks are {', '.join([*named][:4])}, …"
            )
        if named[name].norm is not None:
            raise InputError(
                f"inputs has a box for {name!r}, but its inputs are known from the norm {named[name].norm_name}: remove the box"
            )
