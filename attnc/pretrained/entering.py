"""What enters each block: proved from the norm in front, given as a box, or measured on calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from attnc.domain import Array, Box
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.transformers import Site
from attnc.pretrained import samples
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.report import EVERY_INPUT
from attnc.program.block import Norm

PROVED, GIVEN, MEASURED = EVERY_INPUT, "the box given", "measured on calibration"
_ROOM = 0.25  # of its width, by which what calibration saw is widened on each side


@dataclass(frozen=True, eq=False)
class Entering:
    """A norm or a box, and where it comes from: a bound holds for `source`."""

    inputs: Norm | Box
    source: str


def entering(model: nn.Module, sites: Sequence[Site], config: ConvertConfig) -> list[Entering]:
    """One for each site; blocks of which nothing is known are refused all at once."""
    bare = [site for site in sites if site.norm is None and _box(site, config) is None]
    seen = {}
    if bare and config.calibration is not None:
        seen = samples.entering(model, {s.first.name: s.first.module for s in bare}, config.calibration)
    missing = [site for site in bare if site.first.name not in seen]
    if missing:
        reason = "no calibration sample reached it" if seen or config.calibration is not None else (
            "no norm stands in front of it, so that its inputs are unknown: give "
            "config=ConvertConfig(inputs=Box(lo, hi, shape=(d,))) or calibration=[…], or leave it out by filter_fn"
        )  # fmt: skip
        raise UnsupportedError(
            f"{type(model).__name__} cannot be converted, and is left as it was",
            [Problem(site.name, "; ".join((*site.remarks[-1:], reason))) for site in missing],
        )
    _check_names(sites, config)
    return [_of(site, config, seen) for site in sites]


def _of(site: Site, config: ConvertConfig, seen: Mapping[str, tuple[Array, Array]]) -> Entering:
    features = site.first.sizes[1]
    if site.norm is not None:
        return Entering(site.norm.numbers(), PROVED)
    box = _box(site, config)
    if box is not None:
        if box.shape != (features,):
            raise InputError(
                f"the box for {site.name} has the shape {box.shape}: the block takes {features} features"
            )
        return Entering(box, GIVEN)
    lo, hi = seen[site.first.name]
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        raise InputError(
            f"on calibration a number that is not finite entered {site.name}: give other samples"
        )
    room = _ROOM * (hi - lo)
    return Entering(Box(lo - room, hi + room), MEASURED)


def _box(site: Site, config: ConvertConfig) -> Box | None:
    if isinstance(config.inputs, Mapping):
        return config.inputs.get(site.name)
    return config.inputs


def _check_names(sites: Sequence[Site], config: ConvertConfig) -> None:
    """A box that would be passed over is a mistake."""
    if not isinstance(config.inputs, Mapping):
        return
    named = {site.name: site for site in sites}
    for name in config.inputs:
        if name not in named:
            raise InputError(
                f"inputs has a box for {name!r}, but the blocks are {', '.join([*named][:4])}, …"
            )
        if named[name].norm is not None:
            raise InputError(
                f"inputs has a box for {name!r}, whose inputs are known from its norm {named[name].norm_name}: leave it out"
            )
