"""What a converted model executes, compared with what was read of it. torch.export traces a model with stand-ins for tensors: a
forward can notice that, and compute something else when it runs. The comparison proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnc.domain import Array
from attnc.errors import Problem
from attnc.frontends.capture import fused_path
from attnc.frontends.transformers import Call, PartSite, Site
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained.closeness import from_experts, is_close
from attnc.pretrained.guard import MODES, Flow, refuse, roles_of, rows_of, run_model, silent
from attnc.pretrained.inputs import removed

_ROWS = 16  # of a tensor that are compared


def run_parts(model: nn.Module, call: Call, sites: Sequence[PartSite]) -> dict[str, list[ConvertedRun]]:
    """Run the model in every grad mode, with random inputs of the first maps of its converted blocks. Raises UnsupportedError
    unless every block with a norm before it receives outputs of that norm, and every converted part is executed. Returns the
    runs of the converted blocks, by their names."""
    found: dict[str, list[ConvertedRun]] = {}
    for mode in MODES:
        runs = [_run_of(site) for site in sites]
        with (
            removed([handle for run in runs for handle in run.hooks(model)]),
            mode(),
            torch.autograd.graph.saved_tensors_hooks(_nothing, _no_gradient),
            fused_path(False),
            silent(model),
        ):
            run_model(model, call)
        refuse(model, [Problem(run.site.name, reason) for run in runs if (reason := run.problem())])
        for run in runs:
            if isinstance(run, ConvertedRun):
                found.setdefault(run.site.name, []).append(run)
    return found


def _nothing(tensor: object) -> None:
    """What autograd keeps of a tensor: its numbers would hold the weights of the whole model in memory."""


def _no_gradient(kept: object) -> Tensor:
    raise RuntimeError("the model asked for a gradient while its parts were run")


def _run_of(site: PartSite) -> Flow | _Reached:
    if isinstance(site, Site):
        converted = isinstance(site.replaced, (Pointwise, GatedBlock))
        return ConvertedRun(site) if converted else Flow(site)
    return _Reached(site)


class _Reached:
    """Whether a norm or an activation that was converted is executed."""

    def __init__(self, site: PartSite) -> None:
        self.site, self.reached = site, not isinstance(site.replaced, (Norm, Pointwise))

    def hooks(self, model: nn.Module) -> list[RemovableHandle]:
        part = self.site.replaced
        return [part.register_forward_hook(self._note)] if isinstance(part, (Norm, Pointwise)) else []

    def _note(self, *given: object) -> None:
        self.reached = True

    def problem(self) -> str | None:
        return None if self.reached else "is not executed"


class ConvertedRun(Flow):
    """What enters and leaves the maps, the activation and the product of a converted block in one run of the model, whose first
    maps receive random inputs."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.maps, part = roles_of(site), site.replaced
        self.parts: dict[str, nn.Module] = {role: linear.module for role, linear in self.maps.items()}
        if isinstance(part, GatedBlock):
            self.parts |= {"activation": part.activation, "product": part.product}
        elif isinstance(part, Pointwise):
            self.parts["activation"] = part
        self.passed: dict[str, list[tuple[Array, Array]]] = {name: [] for name in self.parts}

    def enters(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        super().enters(module, given)
        return None if self.site.experts else _with_noise(module, given)

    def hooks(self, model: nn.Module) -> list[RemovableHandle]:
        handles = super().hooks(model)
        if self.site.gated and self.site.rows is None:
            handles.append(self.parts["up"].register_forward_pre_hook(_with_noise))
        for name, part in self.parts.items():
            if not self.site.experts or name == "activation":
                handles.append(part.register_forward_hook(self._note(name)))
        return handles

    def _note(self, name: str) -> Callable[..., None]:
        return lambda part, given, out: self.passed[name].append((_some(given[0]), _some(out)))

    def runs(self, role: str, W: Array, b: Array) -> bool:
        """Whether a map returns W x + b."""
        linear = self.maps[role]
        for x, y in self.passed[role]:
            meant = x @ W.T + b, np.abs(x) @ np.abs(W.T) + np.abs(b)
            if not is_close(y[:, slice(*linear.rows or (None,))], meant, self.site.dtype, linear.sizes[1]):
                return False
        return True

    def between(self) -> str | None:
        """The activation must receive what the first map returns, and the second map what the activation or the product does."""
        rows = slice(*self.site.first.rows or (None,))
        last = "product" if "product" in self.parts else "activation"
        made = [y[:, rows] for _, y in self.passed["first"]], [y for _, y in self.passed[last]]
        taken = [x for x, _ in self.passed["activation"]], [x for x, _ in self.passed["second"]]
        if not (made[0] and self._same(made[0], taken[0]) and self._same(taken[1], made[1])):
            return "its maps and its activation do not run one after the other"
        return None

    def _same(self, some: list[Array], among: list[Array]) -> bool:
        def near(x: Array, y: Array) -> bool:
            return is_close(x, (y, np.abs(y)), self.site.dtype, 0)

        return all(any(near(x, y) for y in among) for x in some)

    def of_experts(self) -> str | None:
        passed = self.passed["activation"]
        if not passed or len(passed) != len(self.entering):
            return "its experts do not run once each time"
        for x, (s, _) in zip(map(rows_of, self.entering), passed, strict=True):
            if not from_experts(s, x, self.site.first, self.site.dtype):
                return "a pre-activation is not what one of its experts makes of a token"
        return None


def difference(runs: Sequence[ConvertedRun]) -> str | None:
    """Where runs of a block differ from the numbers that are stored now by more than rounding explains, or None."""
    with np.errstate(all="ignore"):
        if any(run.site.experts for run in runs):
            return next((reason for run in runs if (reason := run.of_experts())), None)
        for role, linear in roles_of(runs[0].site).items() if runs else ():
            numbers = linear.numbers()
            if not all(run.runs(role, *numbers) for run in runs):
                return f"its map {linear.name} returns something else than W x + b when it runs"
        return next((reason for run in runs if (reason := run.between())), None)


def _with_noise(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Random numbers instead of the first argument."""
    x = given[0]
    noise = np.random.default_rng().standard_normal(tuple(x.shape))
    return (torch.from_numpy(noise).to(x.device, x.dtype), *given[1:])


def _some(x: Tensor) -> Array:
    """Some rows of a tensor, evenly spaced."""
    rows = x.detach().reshape(-1, x.shape[-1])
    found: Array = rows_of(rows[np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(np.int64)])
    return found
