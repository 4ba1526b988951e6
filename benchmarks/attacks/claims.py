"""Whether what is claimed of a converted block is true: the block against the original, for all that the claim covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import attnc
from attacks.drive import attacks, bears, entering, gaps, laid_out, leaving, ways
from attacks.layouts import Model
from attnc.domain import Box, Normed

OWN_ROUNDING = (
    1e-13  # of the size of a result: what the reference, itself executed in float64, may lose besides
)


@dataclass
class Judged:
    """The worst that was seen of a claim."""

    ratio: float = 0.0
    claimed: float = float("nan")
    measured: float = 0.0
    inputs: int = 0
    proved: bool = True
    note: str = ""

    def see(self, error: float, bound: float, inputs: int, note: str) -> None:
        self.inputs += inputs
        ratio = max(error, 0.0) / bound if bound > 0 else (float("inf") if error > 0 else 0.0)
        if ratio > self.ratio or self.claimed != self.claimed:
            self.ratio, self.claimed, self.measured, self.note = ratio, bound, error, note


@dataclass
class Rivals:
    """The model as it stood, in its own dtype and in float64, and what it was converted to."""

    original: Model
    wide: Model | None  # None where what the original computes depends on the dtype
    converted: Model
    box: attnc.Box | None = None


def judge_report(rivals: Rivals, report: Any, rng: np.random.Generator, count: int) -> Judged:
    """Attack the claim about the block of the layout's layer."""
    judged, layer = Judged(), rivals.original.layout.layer
    named = [b for b in report.blocks if not layer or b.name == layer or b.name.startswith(f"{layer}.")]
    judged.proved = any(b.proved for b in named)
    for block in named:
        if not block.proved:
            continue
        for way in ways(rivals.original.layout.tokens):
            if not bears(rivals.original, way):
                continue
            for where, x in _covered(rivals, block, rng, count if way.name == "plain" else count // 4, way):
                _compare(rivals, block, x, way, judged, where)
        _direct(rivals, block, rng, judged)
    return judged


def _covered(rivals: Rivals, block: Any, rng: np.random.Generator, count: int, way: Any) -> Any:
    """(how they come about, inputs of the block) that the claim speaks of."""
    original = rivals.original
    if isinstance(block.holds_for, Box):
        assert rivals.box is not None
        yield "box", _in_box(rivals.box, rng, count, original.dtype)
        return
    z = attacks(original, rng, count)
    if not isinstance(block.holds_for, Normed):  # every output of its norm: of that alone
        with torch.no_grad():
            yield (
                "norm",
                original.part(block.facts["norm"])(laid_out(z.to(original.dtype), way)).reshape(
                    -1, z.shape[-1]
                ),
            )
        return
    for model, name in ((original, ""), (rivals.converted, " of the converted model")):
        yield f"norm{name}", entering(model, z, original.layout.norm, way)
        if original.layout.layer:
            yield f"layer{name}", entering(model, z, original.layout.layer, way)


def _in_box(box: attnc.Box, rng: np.random.Generator, count: int, dtype: torch.dtype) -> Tensor:
    inside = box.lo + rng.random((count, *box.shape)) * (box.hi - box.lo)
    corners = np.where(rng.random((count, *box.shape)) < 0.5, box.lo, box.hi)
    mixed = np.where(rng.random(inside.shape) < 0.5, inside, corners)
    x = torch.from_numpy(np.concatenate([corners, inside, mixed])).to(dtype)
    return x[box.contains(x)]


def _compare(rivals: Rivals, block: Any, x: Tensor, way: Any, judged: Judged, where: str) -> None:
    x = x[x.isfinite().all(-1)]
    rows = len(x) // way.tokens * way.tokens
    if rows == 0:
        return
    x = x[:rows]
    found = leaving(rivals.converted, x, way)
    own = leaving(rivals.original, x, way)
    if not found and not own:
        judged.note = "the block's output was not seen"
        return
    if len(found) != len(own):
        judged.see(
            float("inf"),
            block.bound,
            rows,
            f"{where}, {way.name}: the block is executed in another number of places",
        )
        return
    narrow = rivals.original.dtype == torch.float32
    error, size = gaps(found, own)
    error -= (
        OWN_ROUNDING * (1 + size) + block.facts["products"]
    )  # the original rounds its matrix products, too
    judged.see(error, block.bound, rows, f"{where}, {way.name}")
    if narrow and rivals.wide is not None:
        error, size = gaps(found, leaving(rivals.wide, x.double(), way))
        judged.see(error - OWN_ROUNDING * (1 + size), block.bound, 0, f"{where}, {way.name}, against float64")


def _direct(rivals: Rivals, block: Any, rng: np.random.Generator, judged: Judged) -> None:
    """Without a single hook, which some fast paths need: where the model's output is its input plus the block, or the block."""
    layout = rivals.original.layout
    if layout.family not in ("encoder first", "sequential") or rivals.original.dtype != torch.float64:
        return
    if not isinstance(block.holds_for, Normed):
        return
    z = attacks(rivals.original, rng, 64)
    z = z[: len(z) // 4 * 4].reshape(4, -1, z.shape[-1])
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            error, size = gaps([rivals.converted.module(z)], [rivals.original.module(z)])
        judged.see(
            error - block.facts["products"] - OWN_ROUNDING * (1 + size),
            block.bound,
            z.shape[0] * z.shape[1],
            "the whole model, without hooks",
        )
