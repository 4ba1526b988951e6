"""The model as it runs, beside the blocks as they were read: a last guard before anything is replaced. It proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc import functions
from attnc.domain import Array
from attnc.errors import Problem, UnsupportedError
from attnc.frontends.transformers import Call, Site
from attnc.pretrained.blocks import Planned

_ULPS = 32.0  # units in the last place by which an activation of torch may be off, of 1 + |s| + |f(s)|
_SEEDS = 2


def check_runs(model: nn.Module, call: Call, planned: Sequence[Planned]) -> None:
    """Run the model with inputs of our own choice at every block's first map, and compare what comes out of each part of the
    block with what was read: at the ends of every interval, at kinks and around them, at random; with and without gradients;
    with contiguous and strided inputs. The choice is another one each time."""
    for strided in (False, True):
        for grad in (False, True):
            for _ in range(_SEEDS):
                seen = [_Watch(plan, strided) for plan in planned]
                with _hooked(model, seen), torch.set_grad_enabled(grad), torch.random.fork_rng(devices=[]):
                    _run(model, call)
                problems = [Problem(w.site.name, reason) for w in seen if (reason := w.problem())]
                if problems:
                    raise UnsupportedError(
                        f"{type(model).__name__} runs something else than was read, and is left as it was", problems
                    )


def check_reached(model: nn.Module, call: Call, planned: Sequence[Planned]) -> None:
    """That the modules in the places of the blocks are executed."""
    reached: set[int] = set()
    handles = [
        plan.module.register_forward_hook(lambda module, given, out: reached.add(id(module))) for plan in planned
    ]
    try:
        for grad in (False, True):
            reached.clear()
            with torch.set_grad_enabled(grad), torch.random.fork_rng(devices=[]):
                _run(model, call)
            missing = [plan.site.name for plan in planned if id(plan.module) not in reached]
            if missing:
                raise UnsupportedError(
                    f"{type(model).__name__} cannot be converted, and is left as it was",
                    [Problem(name, "is not executed where it was put") for name in missing],
                )
    finally:
        for handle in handles:
            handle.remove()


def _run(model: nn.Module, call: Call) -> None:
    try:
        model(*call.args, **(call.kwargs or {}))
    except Exception as problem:
        raise UnsupportedError(
            f"{type(model).__name__} cannot be converted, and is left as it was",
            [Problem("the model", f"fails when it runs: {type(problem).__name__}: {problem}")],
        ) from problem


@dataclass(eq=False)
class _Watch:
    """What passes through one block in one run."""

    plan: Planned
    strided: bool
    entering: list[Tensor] = field(default_factory=list)  # what the model hands to the first map
    chosen: list[Tensor] = field(default_factory=list)  # what we hand to it instead
    normed: list[Tensor] = field(default_factory=list)
    outputs: dict[str, list[Tensor]] = field(default_factory=lambda: {"first": [], "up": [], "second": []})
    inner: list[Tensor] = field(default_factory=list)  # what enters the second map

    @property
    def site(self) -> Site:
        return self.plan.site

    def choose(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x = given[0]
        self.entering.append(x.detach().clone())
        points = torch.from_numpy(_points(self.plan, x.numel() // x.shape[-1])).to(x.device, x.dtype).reshape(x.shape)
        if self.strided:
            points = torch.stack([points, points], -1)[..., 0]
        self.chosen.append(points)
        return (points, *given[1:])

    def problem(self) -> str | None:
        """Where what ran is off what was read by more than rounding explains."""
        counts = {len(found) for found in (self.chosen, self.outputs["first"], self.outputs["second"], self.inner)}
        if counts == {0}:
            return "did not run: its maps are not called as modules"
        if len(counts) > 1:
            return "does not run its maps one behind the other"
        for k, x in enumerate(self.chosen):
            reason = self._compare(k, x)
            if reason is not None:
                return reason
        return self._behind_norm()

    def _compare(self, k: int, x: Tensor) -> str | None:
        site, unit = self.site, torch.finfo(self.site.dtype).eps
        ff, s, h = site.feed_forward(), _rows(self.outputs["first"][k]), _rows(self.inner[k])
        y = _rows(self.outputs["second"][k])
        if not _close(s, _rows(x) @ ff.W1.T + ff.b1, np.abs(_rows(x)) @ np.abs(ff.W1.T) + np.abs(ff.b1), unit, len(ff.W1.T)):
            return f"its first map, {site.first.name}, returns something else than W x + b"
        f = functions.get(site.activation)
        with np.errstate(all="ignore"):
            expected = f.torch_form(torch.from_numpy(s)).numpy()
            size = 1 + np.abs(s) + np.abs(expected)
            if site.gated and ff.U is not None and ff.c is not None:
                t = _rows(self.outputs["up"][k])
                expected, size = expected * t, size * (1 + np.abs(t))
        if not _close(h, expected, size, _ULPS * unit, 1):
            return f"what enters its second map is not {site.activation} of what left the first: its forward does more than was read"
        if not _close(y, h @ ff.W2.T + ff.b2, np.abs(h) @ np.abs(ff.W2.T) + np.abs(ff.b2), unit, len(ff.W2.T)):
            return f"its second map, {site.second.name}, returns something else than W x + b"
        return None

    def _behind_norm(self) -> str | None:
        norm = self.site.norm
        if norm is None or len(self.normed) != len(self.entering):
            return None
        for out, x in zip(self.normed, self.entering, strict=True):
            if out.numel() == x.numel() and not torch.equal(out.reshape(-1), x.reshape(-1)):
                return f"its input is not the output of {norm.name}"
        return None


@contextmanager
def _hooked(model: nn.Module, seen: Sequence[_Watch]) -> Iterator[None]:
    handles = []

    def note(into: list[Tensor]) -> Callable[..., None]:
        return lambda module, given, out: into.append(out.detach())

    for watch in seen:
        site = watch.site
        handles.append(site.first.module.register_forward_pre_hook(watch.choose))
        for role, m in (("first", site.first), ("up", site.up), ("second", site.second)):
            if m is not None:
                handles.append(m.module.register_forward_hook(note(watch.outputs[role])))
        inner = watch.inner
        handles.append(
            site.second.module.register_forward_pre_hook(lambda module, given, inner=inner: inner.append(given[0].detach()))
        )
        norm = watch.site.norm
        if norm is not None and norm.name and not f"{site.name}.".startswith(f"{norm.name}."):
            handles.append(model.get_submodule(norm.name).register_forward_hook(note(watch.normed)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _points(plan: Planned, rows: int) -> Array:
    """Inputs of the first map, each of which takes one neuron to the end of its interval, to a kink or next to it, or to a random
    place in between: x + w_j (target - s_j)/|w_j|²."""
    noise = np.random.default_rng()
    ff = plan.site.feed_forward()
    lo, hi = plan.reach
    W, b = ff.W1, ff.b1
    x = noise.standard_normal((rows, W.shape[1])) * noise.choice([0.0, 0.1, 1.0], (rows, 1))
    j = noise.integers(0, len(W), rows)
    farthest = int(np.argmax(np.maximum(np.abs(lo), np.abs(hi))))
    j[: min(2, rows)] = farthest
    targets = lo[j] + noise.random(rows) * (hi[j] - lo[j])
    ends = np.arange(rows) % 4
    targets = np.where(ends == 0, lo[j], np.where(ends == 1, hi[j], targets))
    kinks = [k for k in functions.get(plan.site.activation).kinks] or [0.0]
    near = noise.choice(kinks, rows) + noise.choice([0.0, 1e-3, -1e-3, 0.05, -0.05], rows)
    targets = np.where((ends == 2) & (lo[j] <= near) & (near <= hi[j]), near, targets)
    w = W[j]
    length = np.maximum((w * w).sum(1), np.finfo(np.float64).tiny)
    return x + w * ((targets - (x * w).sum(1) - b[j]) / length)[:, None]


def _rows(x: Tensor) -> Array:
    found: Array = x.detach().to("cpu", torch.float64).reshape(-1, x.shape[-1]).numpy()
    return found


def _close(found: Array, expected: Array, size: Array, unit: float, terms: int) -> bool:
    """Whether they agree up to rounding; where one is not finite, neither must be the other."""
    if found.shape != expected.shape:
        return False
    with np.errstate(all="ignore"):
        gap = np.abs(found - expected)
        close = gap <= 2 * (terms + 8) * unit * size
    overflow = ~np.isfinite(found) & (~np.isfinite(expected) | (size > 1e37))
    return bool((close | overflow).all())
