"""A last test before anything is replaced: the model runs, and each part of a block is compared with what was read. It proves
nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnc import functions
from attnc.domain import Array
from attnc.errors import Problem, UnsupportedError
from attnc.frontends.capture import fused_path
from attnc.frontends.comparison import swapped
from attnc.frontends.transformers import Call, Site
from attnc.frontends.transformers.blocks import LinearMap
from attnc.network.pointwise import Pointwise
from attnc.pretrained.closeness import from_experts, is_close, is_normalised
from attnc.pretrained.inputs import removed

if TYPE_CHECKING:
    from attnc.pretrained.blocks import PlannedBlock, PlannedPart

MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode)
ULPS = 32.0  # units in the last place by which an activation of torch may be off, of 1 + |s| + |f(s)|
_FAR = 1e8  # the largest input of a block that is tried
SHAPES = ((1,), (1, 1), (3, 5), (2, 3, 4))
_MANY = 1 << 19  # numbers in the largest input that a part is called on
_NEAR_KINKS = (0.0, 1e-3, -1e-3, 0.05, -0.05)


def check_runs(model: nn.Module, call: Call, planned: Sequence[PlannedBlock]) -> None:
    """Run the model with chosen inputs at every block's first map, and compare the output of each part of the block with what
    was read: at the ends of every interval, at kinks and around them, and at random points, which are drawn anew each time; with
    and without gradients; on contiguous and strided inputs. The numbers of the blocks must not change."""
    before, blocks = [_digest(plan.site) for plan in planned], [_Block(plan) for plan in planned]
    for strided, mode in itertools.product((False, True), MODES):
        for tracked in (False, True)[: 1 + (mode is torch.enable_grad)]:
            runs = [(_ExpertRun if b.site.experts else _BlockRun)(b, strided) for b in blocks]
            with removed([h for run in runs for h in run.hooks(model)]), mode(), fused_path(False):
                run_model(model, _with_gradients(call) if tracked else call)
            if problems := _problems(runs):
                refuse(model, _changed(planned, before) or problems)
    refuse(model, [Problem(b.site.name, reason) for b in blocks if (reason := _problem_alone(b))])
    refuse(model, _fused_problems(model))
    refuse(model, _changed(planned, before))


def _changed(planned: Sequence[PlannedBlock], before: Sequence[object]) -> list[Problem]:
    """The blocks whose numbers are no longer those of before."""
    changed = [p.site for p, old in zip(planned, before, strict=True) if _digest(p.site) != old]
    return [Problem(site.name, "changes its own numbers when it runs") for site in changed]


def check_reached(model: nn.Module, call: Call, planned: Sequence[PlannedPart]) -> None:
    """Raise UnsupportedError unless the model executes every module that was put in place of a block."""
    reached: set[int] = set()
    handles = [
        plan.module.register_forward_hook(lambda module, given, out: reached.add(id(module)))
        for plan in planned
    ]
    with removed(handles):
        for grad in (False, True):
            reached.clear()
            with torch.set_grad_enabled(grad), silent(model):
                run_model(model, call)
            missing = [plan.site.name for plan in planned if id(plan.module) not in reached]
            refuse(model, [Problem(name, "is not executed in its new place") for name in missing])


def _digest(site: Site) -> tuple[object, ...]:
    domain = site.domain()
    norm = () if domain is None else (domain.gain.tobytes(), domain.shift.tobytes())
    return (*(program.digest() for program in site.programs()), *norm)


class _Block:
    """A block as it was read. Each method returns a result in float64, and the size that its rounding is a multiple of."""

    def __init__(self, plan: PlannedBlock) -> None:
        self.site, (self.lo, self.hi) = plan.site, plan.reach
        self.f = functions.get(self.site.activation)
        self.maps = {role: linear.numbers() for role, linear in roles_of(self.site).items()}
        kind = np.float64 if self.site.dtype == torch.float64 else np.float32
        self.sizes = {role: np.abs(W).astype(kind) for role, (W, _) in self.maps.items()}
        self.kinks = list(self.f.kinks) or [0.0]

    def affine(self, role: str, x: Array) -> tuple[Array, Array]:
        W, b = self.maps[role]
        return x @ W.T + b, self._size(role, np.abs(x)) + np.abs(b)

    def _size(self, role: str, x: Array) -> Array:
        """|W||x|: it scales what rounding may add, and is not compared itself, so that float32 is enough for float32."""
        return np.asarray(x.astype(self.sizes[role].dtype) @ self.sizes[role].T, np.float64)

    def inner(self, s: Array, t: Array | None = None) -> tuple[Array, Array]:
        """f(s), times t if the block is gated."""
        y = self.f.torch_form(torch.from_numpy(s)).numpy()
        size = 1 + np.abs(s) + np.abs(y)
        return (y, size) if t is None else (y * t, size * (1 + np.abs(t)))

    def whole(self, x: Array) -> tuple[Array, Array]:
        """The output of a gated block."""
        (s, s_size), (t, t_size) = self.affine("first", x), self.affine("up", x)
        y, size = self.inner(s)
        W, b = self.maps["second"]
        return (y * t) @ W.T + b, self._size("second", (size + s_size) * (1 + t_size)) + np.abs(b) + 1

    def inputs(self, rows: int) -> Array:
        """Inputs of the first map, each of which takes one neuron to the end of its interval, to a kink or next to it, or to a
        random place in between: x + w_j (target - s_j)/|w_j|²."""
        noise = np.random.default_rng()
        W, b = self.maps["first"]
        x = noise.standard_normal((rows, W.shape[1])) * noise.choice([0.0, 0.1, 1.0], (rows, 1))
        j = noise.integers(0, len(W), rows)
        j[: min(2, rows)] = int(np.argmax(np.maximum(np.abs(self.lo), np.abs(self.hi))))
        lo, hi = self.lo[j], self.hi[j]
        near = noise.choice(self.kinks, rows) + noise.choice(_NEAR_KINKS, rows)
        kind = np.arange(rows) % 4
        chosen = [kind == 0, kind == 1, (kind == 2) & (lo <= near) & (near <= hi)]
        targets = np.select(chosen, [lo, hi, near], lo + noise.random(rows) * (hi - lo))
        w = W[j]
        length = (w * w).sum(1)
        step = np.divide(targets - (x * w).sum(1) - b[j], length, out=np.zeros(rows), where=length > 1e-30)
        found: Array = np.clip(x + w * step[:, None], -_FAR, _FAR)
        return found

    def pre_activations(self, rows: int) -> Array:
        """For every neuron numbers of its interval: random ones, the ends, kinks and numbers around them."""
        noise = np.random.default_rng()
        shape = (rows, len(self.lo))
        s = self.lo + noise.random(shape) * (self.hi - self.lo)
        near = noise.choice(self.kinks, shape) + noise.choice(_NEAR_KINKS, shape)
        kind = noise.integers(0, 8, shape)
        ends = [np.broadcast_to(self.lo, shape), np.broadcast_to(self.hi, shape)]
        found: Array = np.clip(
            np.select([kind == 0, kind == 1, kind == 2], [*ends, near], s), self.lo, self.hi
        )
        return found


def roles_of(site: Site) -> dict[str, LinearMap]:
    maps = {"first": site.first, "up": site.up, "second": site.second}
    return {role: linear for role, linear in maps.items() if linear is not None}


def _with_gradients(call: Call) -> Call:
    """The same call, with inputs that require gradients."""

    def tracked(x: object) -> object:
        return x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x

    return Call(tuple(map(tracked, call.args)), {key: tracked(x) for key, x in (call.kwargs or {}).items()})


def _problem_alone(block: _Block) -> str | None:
    """Call the part that will be replaced by itself, on inputs of several shapes, in every mode."""
    site = block.site
    part, width = site.replaced, site.first.sizes[1 if site.gated else 0]
    assert callable(part)
    many = max(2, min(67, _MANY // (65 * max(site.first.sizes))))
    for shape, mode in itertools.product((*SHAPES, (many, 65)), MODES):
        rows = math.prod(shape)
        x = torch.from_numpy(block.inputs(rows) if site.gated else block.pre_activations(rows))
        x = x.to(site.first.device, site.dtype).reshape(*shape, width)
        with mode(), torch.random.fork_rng(devices=[]):
            given = x.clone().requires_grad_().clone() if torch.is_grad_enabled() else x.clone()
            try:
                out = part(given)
            except Exception as problem:
                return f"fails on an input of shape {tuple(x.shape)}: {type(problem).__name__}: {problem}"
        with np.errstate(all="ignore"):
            expected = (block.whole if site.gated else block.inner)(rows_of(x))
        terms = ULPS + (sum(site.first.sizes) if site.gated else 0)
        shaped = isinstance(out, Tensor) and out.shape[:-1] == x.shape[:-1]
        if not shaped or not is_close(rows_of(out), expected, site.dtype, terms):
            return f"computes something else than was read, on an input of shape {tuple(x.shape)}"
    return None


def _fused_problems(model: nn.Module) -> list[Problem]:
    """torch may run an encoder layer as one fused operation, which reads flags and weights instead of calling the parts: both
    ways must return the same."""
    reason = "computes something else in torch's fused operation, without gradients, than part by part"
    return [
        Problem(name or "the model", reason)
        for name, part in model.named_modules()
        if isinstance(part, nn.TransformerEncoderLayer) and not _same_fused(part)
    ]


def _same_fused(layer: nn.TransformerEncoderLayer) -> bool:
    weight = layer.self_attn.in_proj_weight
    like = next(layer.parameters()) if weight is None else weight
    x = torch.randn(3, 4, layer.self_attn.embed_dim, dtype=torch.float64).to(like.device, like.dtype)
    found = []
    for enabled in (True, False):
        with torch.no_grad(), torch.random.fork_rng(devices=[]), fused_path(enabled):
            try:
                found.append(layer(x))
            except Exception:  # the fused operation reads attributes that a replaced part may lack
                return False
    size = float(found[1].abs().max())
    return torch.allclose(found[0], found[1], rtol=0, atol=1e-4 * (1 + size), equal_nan=True)


class Flow:
    """What enters a block in one run of the model, and what the norm in front of it returns."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.entering: list[Tensor] = []
        self.normed: list[Tensor] = []

    def enters(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        self.entering.append(given[0].detach().clone())
        return None

    def hooks(self, model: nn.Module) -> list[RemovableHandle]:
        name = self.site.norm_name
        handles = [self.site.first.module.register_forward_pre_hook(self.enters)]
        written_out = name and f"{self.site.name}.".startswith(f"{name}.")  # around the block
        if name and not written_out:
            handles.append(model.get_submodule(name).register_forward_hook(_record_output(self.normed)))
        return handles

    def problem(self) -> str | None:
        """Why the inputs of the block are not outputs of its norm, or None: they must be rows that the norm returned, if it is
        a module, and no longer than a norm's outputs."""
        norm = self.site.norm
        if norm is None:
            return None
        known = {row.tobytes() for out in self.normed for row in rows_of(out)}
        for x in map(rows_of, self.entering):
            foreign = bool(known) and any(row.tobytes() not in known for row in x)
            if foreign or not is_normalised(x, norm.domain()):
                return f"its input is not the output of {norm.name or 'its norm'}"
        return None


class _BlockRun(Flow):
    """The tensors that pass through a block in one run of the model with chosen inputs of its first map."""

    def __init__(self, block: _Block, strided: bool) -> None:
        super().__init__(block.site)
        self.block, self.strided = block, strided
        self.chosen: list[Tensor] = []  # take the place of the model's own inputs of the first map
        self.inner: list[Tensor] = []  # inputs of the second map
        self.maps = roles_of(self.site)
        self.outputs: dict[str, list[Tensor]] = {role: [] for role in self.maps}

    def enters(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        super().enters(module, given)
        x = given[0]
        points = torch.from_numpy(self.block.inputs(x.numel() // x.shape[-1]))
        points = points.to(x.device, x.dtype).reshape(x.shape)
        if self.strided:
            points = torch.stack([points, points], -1)[..., 0]
        self.chosen.append(points)
        return (points, *given[1:])

    def hooks(self, model: nn.Module) -> list[RemovableHandle]:
        into, second = self.inner, self.site.second.module
        handles = super().hooks(model)
        for role, out in self.outputs.items():
            handles.append(self.maps[role].module.register_forward_hook(_record_output(out)))
        entering = second.register_forward_pre_hook(lambda _, given: into.append(given[0].detach().clone()))
        return [*handles, entering]

    def problem(self) -> str | None:
        """The first part that differs from what was read by more than rounding explains."""
        counts = {len(found) for found in (self.chosen, self.inner, *self.outputs.values())}
        if counts == {0}:
            return "did not run: its maps are not called as modules"
        if len(counts) > 1:
            return "does not run its maps one after the other"
        with np.errstate(all="ignore"):
            reasons = [reason for k in range(len(self.chosen)) if (reason := self._difference(k)) is not None]
        return reasons[0] if reasons else super().problem()

    def _difference(self, k: int) -> str | None:
        dtype, block = self.site.dtype, self.block
        h = rows_of(self.inner[k])
        first, fused = rows_of(self.chosen[k]), self.site.rows is not None  # then one call computes both
        given = {"first": first, "up": first if fused else rows_of(self.entering[k]), "second": h}
        found = {
            role: rows_of(out[k])[:, slice(*self.maps[role].rows or (None,))]
            for role, out in self.outputs.items()
        }
        for role, linear in self.maps.items():
            if not is_close(found[role], block.affine(role, given[role]), dtype, linear.sizes[1]):
                return f"its map {linear.name} returns something else than W x + b"
        if not is_close(h, block.inner(found["first"], found.get("up")), dtype, ULPS):
            return f"the input of its second map is not {self.site.activation} of the first: its forward does more than was read"
        return None


class _ExpertRun(Flow):
    """The pre-activations and activations of experts in one run of the model: each row of pre-activations must be what some
    expert's map makes of a token that enters the experts."""

    def __init__(self, block: _Block, strided: bool) -> None:
        super().__init__(block.site)
        self.f = functions.get(self.site.activation)
        self.passed: list[tuple[Tensor, Tensor]] = []

    def hooks(self, model: nn.Module) -> list[RemovableHandle]:
        part = self.site.replaced
        if not isinstance(part, nn.Module):
            return super().hooks(model)
        note = lambda _, given, out: self.passed.append((given[0].detach().clone(), out.detach().clone()))  # noqa: E731
        return [*super().hooks(model), part.register_forward_hook(note)]

    def problem(self) -> str | None:
        site, dtype = self.site, self.site.dtype
        if not self.passed or len(self.passed) != len(self.entering):
            return "its experts do not run once each time, with the tokens as their first argument"
        for x, (s, y) in zip(map(rows_of, self.entering), self.passed, strict=True):
            if x.shape[1] != site.first.sizes[1]:
                return "its experts take something else than tokens"
            value = self.f.torch_form(torch.from_numpy(rows_of(s))).numpy()
            if not is_close(rows_of(y), (value, 1 + np.abs(rows_of(s)) + np.abs(value)), dtype, ULPS):
                return f"its activation is not {site.activation}"
            if not from_experts(rows_of(s), x, site.first, dtype):
                return "a pre-activation is not what one of its experts makes of a token"
        return super().problem()


def _problems(runs: Sequence[Flow]) -> list[Problem]:
    return [Problem(run.site.name, reason) for run in runs if (reason := run.problem())]


def _record_output(into: list[Tensor]) -> Callable[..., None]:
    return lambda module, given, out: into.append(out.detach().clone())  # the model may change it in place


def rows_of(x: Tensor) -> Array:
    found: Array = x.detach().to("cpu", torch.float64).reshape(-1, x.shape[-1]).numpy()
    return found


def run_model(model: nn.Module, call: Call) -> None:
    """Run the model; UnsupportedError if it fails."""
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
        what = f"{type(model).__name__} does not run what was read, and is unchanged"
        raise UnsupportedError(what, problems)


def silent(model: nn.Module) -> AbstractContextManager[None]:
    """No warnings and errors about inputs outside of a domain while attnc itself runs the model."""
    return swapped((vars(part), "strict", False) for part in model.modules() if isinstance(part, Pointwise))
