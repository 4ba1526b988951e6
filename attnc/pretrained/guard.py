"""The model as it runs, beside the blocks as they were read: a last guard before anything is replaced. It proves nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc import functions
from attnc.domain import Array
from attnc.errors import Problem, UnsupportedError
from attnc.frontends.capture import fused_path
from attnc.frontends.transformers import Call, Site
from attnc.pretrained.blocks import PlannedBlock
from attnc.pretrained.flow import (
    MODES,
    behind,
    norm_module,
    note_input,
    note_output,
    refuse,
    rows_of,
    run,
    silent,
)
from attnc.pretrained.store import digest
from attnc.program.block import FeedForward

_ULPS = 32.0  # units in the last place by which an activation of torch may be off, of 1 + |s| + |f(s)|
_FAR = 1e8  # no input of a block is taken farther out than this
_SHAPES = ((1,), (1, 1), (3, 5), (2, 3, 4))
_MANY = 1 << 19  # numbers in the largest input that a part is called on


def check_runs(model: nn.Module, call: Call, planned: Sequence[PlannedBlock]) -> None:
    """Run the model with inputs of our own choice at every block's first map, and compare what comes out of each part of the
    block with what was read: at the ends of every interval, at kinks and around them, at random; with and without gradients;
    with contiguous and strided inputs. The choice is another one each time. The numbers of the blocks must stay as they are."""
    before = [digest(plan.site.feed_forward()) for plan in planned]
    for strided in (False, True):
        for mode in MODES:
            for wanted in (False, True)[: 1 + (mode is torch.enable_grad)]:
                seen = [_Watch(plan, strided) for plan in planned]
                with _hooked(model, seen), mode(), fused_path(False):
                    run(model, _with_gradients(call) if wanted else call)
                problems = [Problem(w.site.name, reason) for w in seen if (reason := w.problem())]
                refuse(model, problems)
    refuse(model, [Problem(p.site.name, reason) for p in planned if (reason := _alone(p))])
    refuse(model, _fused(model))
    after = [digest(plan.site.feed_forward()) for plan in planned]
    changed = [plan for plan, old, new in zip(planned, before, after, strict=True) if old != new]
    refuse(model, [Problem(plan.site.name, "changes its own numbers when it runs") for plan in changed])


def _with_gradients(call: Call) -> Call:
    """The same call, with inputs that require gradients."""

    def wanting(x: object) -> object:
        return x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x

    return Call(tuple(map(wanting, call.args)), {key: wanting(x) for key, x in (call.kwargs or {}).items()})


def _alone(plan: PlannedBlock) -> str | None:
    """The part that will be replaced, called by itself on inputs of several shapes, in every mode: does it do what was read?"""
    site, ff = plan.site, plan.site.feed_forward()
    part, width = site.replaced, site.first.sizes[1 if site.gated else 0]
    assert callable(part)
    many = max(2, min(67, _MANY // (65 * max(site.first.sizes))))
    for shape, mode in itertools.product((*_SHAPES, (many, 65)), MODES):
        rows = math.prod(shape)
        x = torch.from_numpy(_points(plan, ff, rows) if site.gated else _near(plan, rows))
        x = x.to(site.first.device, site.dtype).reshape(*shape, width)
        with mode(), torch.random.fork_rng(devices=[]):
            given = x.clone().requires_grad_().clone() if torch.is_grad_enabled() else x.clone()
            try:
                out = part(given)
            except Exception as problem:
                return f"fails on an input of shape {tuple(x.shape)}: {type(problem).__name__}: {problem}"
        expected, size = _block(site, ff, rows_of(x)) if site.gated else _activation(site, rows_of(x))
        unit, terms = torch.finfo(site.dtype).eps, (_ULPS + sum(site.first.sizes) if site.gated else _ULPS)
        if (
            not isinstance(out, Tensor)
            or out.shape[:-1] != x.shape[:-1]
            or not _close(rows_of(out), expected, size, unit, terms)
        ):
            return f"computes something else than was read, on an input of shape {tuple(x.shape)}"
    return None


def _activation(site: Site, s: Array) -> tuple[Array, Array]:
    """f(s), and the size that its rounding is a multiple of."""
    with np.errstate(all="ignore"):
        expected = functions.get(site.activation).torch_form(torch.from_numpy(s)).numpy()
    return expected, 1 + np.abs(s) + np.abs(expected)


def _block(site: Site, ff: FeedForward, x: Array) -> tuple[Array, Array]:
    """The output of a gated block, and the size that its rounding is a multiple of."""
    assert ff.U is not None and ff.c is not None
    with np.errstate(all="ignore"):
        s, t = x @ ff.W1.T + ff.b1, x @ ff.U.T + ff.c
        large = np.abs(x) @ np.abs(ff.W1.T) + np.abs(ff.b1), np.abs(x) @ np.abs(ff.U.T) + np.abs(ff.c)
        f, size = _activation(site, s)
        inner = (size + large[0]) * (1 + large[1])
        return (f * t) @ ff.W2.T + ff.b2, inner @ np.abs(ff.W2.T) + np.abs(ff.b2) + 1


def _near(plan: PlannedBlock, rows: int) -> Array:
    """Pre-activations of every neuron, inside its interval: at random, at the ends, at kinks and around them."""
    noise = np.random.default_rng()
    lo, hi = plan.reach
    shape = (rows, len(lo))
    s = lo + noise.random(shape) * (hi - lo)
    kinks = list(functions.get(plan.site.activation).kinks) or [0.0]
    near = noise.choice(kinks, shape) + noise.choice([0.0, 1e-3, -1e-3, 0.05, -0.05], shape)
    chosen = noise.integers(0, 8, shape)
    found: Array = np.clip(
        np.select([chosen == 0, chosen == 1, chosen == 2], [lo + 0 * s, hi + 0 * s, near], s), lo, hi
    )
    return found


def _fused(model: nn.Module) -> list[Problem]:
    """torch runs an encoder layer as one fused operation where it can, which looks at flags and weights, not at the parts: both
    ways must give the same."""
    reason = (
        "computes something else in torch's fused operation, which runs without gradients, than part by part"
    )
    layers = [
        (name, part) for name, part in model.named_modules() if isinstance(part, nn.TransformerEncoderLayer)
    ]
    return [Problem(name or "the model", reason) for name, layer in layers if not _same_fused(layer)]


def _same_fused(layer: nn.TransformerEncoderLayer) -> bool:
    weight = layer.self_attn.in_proj_weight
    like = next(layer.parameters()) if weight is None else weight
    x = torch.randn(3, 4, layer.self_attn.embed_dim, dtype=torch.float64).to(like.device, like.dtype)
    found = []
    for enabled in (True, False):
        with torch.no_grad(), torch.random.fork_rng(devices=[]), fused_path(enabled):
            try:
                found.append(layer(x))
            except Exception:  # the fused operation asks for attributes that a replaced part may lack
                return False
    size = float(found[1].abs().max())
    return torch.allclose(found[0], found[1], rtol=0, atol=1e-4 * (1 + size), equal_nan=True)


def check_reached(model: nn.Module, call: Call, planned: Sequence[PlannedBlock]) -> None:
    """That the modules in the places of the blocks are executed."""
    reached: set[int] = set()
    handles = [
        plan.module.register_forward_hook(lambda module, given, out: reached.add(id(module)))
        for plan in planned
    ]
    try:
        for grad in (False, True):
            reached.clear()
            with torch.set_grad_enabled(grad), silent(model):
                run(model, call)
            missing = [plan.site.name for plan in planned if id(plan.module) not in reached]
            if missing:
                raise UnsupportedError(
                    f"{type(model).__name__} cannot be converted, and is left as it was",
                    [Problem(name, "is not executed where it was put") for name in missing],
                )
    finally:
        for handle in handles:
            handle.remove()


@dataclass(eq=False)
class _Watch:
    """What passes through one block in one run."""

    plan: PlannedBlock
    strided: bool
    entering: list[Tensor] = field(default_factory=list)  # what the model hands to the first map
    chosen: list[Tensor] = field(default_factory=list)  # what we hand to it instead
    normed: list[Tensor] = field(default_factory=list)
    outputs: dict[str, list[Tensor]] = field(default_factory=lambda: {"first": [], "up": [], "second": []})
    inner: list[Tensor] = field(default_factory=list)  # what enters the second map

    @property
    def site(self) -> Site:
        return self.plan.site

    @cached_property
    def ff(self) -> FeedForward:
        return self.site.feed_forward()

    def choose(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x = given[0]
        self.entering.append(x.detach().clone())
        points = (
            torch.from_numpy(_points(self.plan, self.ff, x.numel() // x.shape[-1]))
            .to(x.device, x.dtype)
            .reshape(x.shape)
        )
        if self.strided:
            points = torch.stack([points, points], -1)[..., 0]
        self.chosen.append(points)
        return (points, *given[1:])

    def problem(self) -> str | None:
        """Where what ran is off what was read by more than rounding explains."""
        counts = {
            len(found) for found in (self.chosen, self.outputs["first"], self.outputs["second"], self.inner)
        }
        if counts == {0}:
            return "did not run: its maps are not called as modules"
        if len(counts) > 1:
            return "does not run its maps one behind the other"
        for k, x in enumerate(self.chosen):
            reason = self._compare(k, x)
            if reason is not None:
                return reason
        return behind(self.site.norm, self.entering, self.normed)

    def _compare(self, k: int, x: Tensor) -> str | None:
        site, unit = self.site, torch.finfo(self.site.dtype).eps
        ff, s, h = self.ff, rows_of(self.outputs["first"][k]), rows_of(self.inner[k])
        y = rows_of(self.outputs["second"][k])
        if not _close(
            s,
            rows_of(x) @ ff.W1.T + ff.b1,
            np.abs(rows_of(x)) @ np.abs(ff.W1.T) + np.abs(ff.b1),
            unit,
            len(ff.W1.T),
        ):
            return f"its first map, {site.first.name}, returns something else than W x + b"
        expected, size = _activation(site, s)
        if site.gated:
            t = rows_of(self.outputs["up"][k])
            with np.errstate(all="ignore"):
                expected, size = expected * t, size * (1 + np.abs(t))
        if not _close(h, expected, size, unit, _ULPS):
            return f"its second map is not given {site.activation} of what left the first: its forward does more than was read"
        if not _close(
            y, h @ ff.W2.T + ff.b2, np.abs(h) @ np.abs(ff.W2.T) + np.abs(ff.b2), unit, len(ff.W2.T)
        ):
            return f"its second map, {site.second.name}, returns something else than W x + b"
        return None


@contextmanager
def _hooked(model: nn.Module, seen: Sequence[_Watch]) -> Iterator[None]:
    handles = []
    for watch in seen:
        site = watch.site
        handles.append(site.first.module.register_forward_pre_hook(watch.choose))
        for role, m in (("first", site.first), ("up", site.up), ("second", site.second)):
            if m is not None:
                handles.append(m.module.register_forward_hook(note_output(watch.outputs[role])))
        handles.append(site.second.module.register_forward_pre_hook(note_input(watch.inner)))
        if (part := norm_module(model, site)) is not None:
            handles.append(part.register_forward_hook(note_output(watch.normed)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _points(plan: PlannedBlock, ff: FeedForward, rows: int) -> Array:
    """Inputs of the first map, each of which takes one neuron to the end of its interval, to a kink or next to it, or to a random
    place in between: x + w_j (target - s_j)/|w_j|²."""
    noise = np.random.default_rng()
    lo, hi = plan.reach
    W, b = ff.W1, ff.b1
    x = noise.standard_normal((rows, W.shape[1])) * noise.choice([0.0, 0.1, 1.0], (rows, 1))
    j = noise.integers(0, len(W), rows)
    farthest = int(np.argmax(np.maximum(np.abs(lo), np.abs(hi))))
    j[: min(2, rows)] = farthest
    targets = lo[j] + noise.random(rows) * (hi[j] - lo[j])
    ends = np.arange(rows) % 4
    targets = np.where(ends == 0, lo[j], np.where(ends == 1, hi[j], targets))
    kinks = list(functions.get(plan.site.activation).kinks) or [0.0]
    near = noise.choice(kinks, rows) + noise.choice([0.0, 1e-3, -1e-3, 0.05, -0.05], rows)
    targets = np.where((ends == 2) & (lo[j] <= near) & (near <= hi[j]), near, targets)
    w = W[j]
    length = (w * w).sum(1)
    step = np.divide(targets - (x * w).sum(1) - b[j], length, out=np.zeros(rows), where=length > 1e-30)
    found: Array = x + w * step[:, None]
    return np.clip(found, -_FAR, _FAR)


def _close(found: Array, expected: Array, size: Array, unit: float, terms: float) -> bool:
    """Whether they agree up to rounding; where one is not finite, neither must be the other."""
    if found.shape != expected.shape:
        return False
    with np.errstate(all="ignore"):
        gap = np.abs(found - expected)
        close = gap <= 2 * (terms + 8) * unit * size
    overflow = ~np.isfinite(found) & (~np.isfinite(expected) | (size > 1e37))
    return bool((close | overflow).all())
