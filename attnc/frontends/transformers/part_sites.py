"""Norms and activations outside of feed-forward blocks, each a module of its own, with their places in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from attnc.errors import Problem
from attnc.frontends import aten
from attnc.frontends.capture import Captured
from attnc.frontends.transformers.blocks import blocks_in
from attnc.frontends.transformers.expressions import MARK
from attnc.frontends.transformers.norms import NORM, NormRead, norms_in
from attnc.frontends.transformers.sites import holders, hooks_of, put
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise

LEAST_EPS = 1e-24
SATURATING = ("tanh", "sigmoid")  # one head of two keys computes them for every input
_FULL = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class PartUse:
    """One run of a part in the graph: the node that it computes, and the one that enters it."""

    leaving: fx.Node
    entering: fx.Node
    mark: str  # the operation that stands for it where marks are in place


@dataclass(frozen=True, eq=False, kw_only=True)
class PartSite:
    """A part that is a module of its own, and its place in the model."""

    name: str
    places: tuple[tuple[nn.Module, str], ...]
    dtype: torch.dtype
    uses: tuple[PartUse, ...]
    problems: tuple[Problem, ...] = ()
    converted: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for sites that compute the same, from the same tensors."""
        return (len(self.uses),)

    @property
    def replaced(self) -> nn.Module:
        """The module that is in the model now."""
        found = getattr(*self.places[0])
        assert isinstance(found, nn.Module)
        return found

    def replace(self, module: nn.Module) -> Callable[[], None]:
        """Put a module in its place; the returned function undoes it."""
        before = self.replaced
        put([(*place, module) for place in self.places])
        return lambda: put([(*place, before) for place in self.places])


@dataclass(frozen=True, eq=False, kw_only=True)
class NormSite(PartSite):
    """A LayerNorm or RMSNorm."""

    norm: NormRead

    @property
    def key(self) -> tuple[object, ...]:
        return (self.norm.key, len(self.uses))

    @property
    def epsilon(self) -> float:
        """ε; torch's rms_norm takes the machine epsilon of the dtype if none is given."""
        return torch.finfo(self.dtype).eps if self.norm.eps is None else self.norm.eps


@dataclass(frozen=True, eq=False, kw_only=True)
class ActivationSite(PartSite):
    """tanh or sigmoid outside of feed-forward blocks, as in a pooler."""

    activation: str

    @property
    def key(self) -> tuple[object, ...]:
        return (self.activation, len(self.uses))


def norm_sites_in(model: nn.Module, captured: Captured) -> list[NormSite]:
    """Every norm that the graph runs, in the order of execution; uses of one module are put together."""
    groups: dict[str, list[tuple[PartUse, NormRead]]] = {}
    for leaving, entering, norm in norms_in(captured):
        groups.setdefault(norm.name, []).append((PartUse(leaving, entering, NORM), norm))
    sites = []
    for name, found in groups.items():
        norms = [norm for _, norm in found]
        site = NormSite(**_placed(model, captured, name, [use for use, _ in found], Norm), norm=norms[0])
        sites.append(replace(site, problems=(*site.problems, *_norm_problems(site, norms))))
    return sites


def activation_sites_in(model: nn.Module, captured: Captured) -> list[ActivationSite]:
    """Every tanh and sigmoid outside of blocks, in the order of execution."""
    taken = {node for block in blocks_in(captured) for node in block.inside}
    groups: dict[tuple[str, str], list[PartUse]] = {}
    for node in captured.graph.nodes:
        op, given = aten.name(node), aten.arguments(node)
        name = str(given["name"]) if op == MARK else captured.path(node)
        if node not in taken and (op in SATURATING or op == MARK):
            entering = aten.origin(given["x" if op == MARK else "self"])
            groups.setdefault((name, op), []).append(PartUse(node, entering, MARK))
    return [
        ActivationSite(**_placed(model, captured, name, uses, Pointwise), activation="" if op == MARK else op)
        for (name, op), uses in groups.items()
    ]


def _placed(
    model: nn.Module, captured: Captured, name: str, uses: list[PartUse], kind: type[nn.Module]
) -> dict[str, Any]:
    """The fields of a site, with what is wrong with its place."""
    held = captured.parts.get(name)
    places, converted = holders(model, held), isinstance(held, kind)
    dtype = aten.dtype(uses[0].leaving) or torch.float32
    problems = []
    if not places or held is None:
        advice = "make it a module, e.g. self.norm = nn.LayerNorm(d)"
        problems.append(Problem(name or "the model", f"calls a function inside its forward: {advice}"))
    elif not converted and hooks_of(held):
        problems.append(Problem(name, "has hooks, which would be lost: remove them by handle.remove()"))
    if dtype not in _FULL:
        problems.append(Problem(name or "the model", f"runs in {dtype}: call model.float()"))
    return {
        "name": name or "the model", "places": places, "dtype": dtype, "uses": tuple(uses), "problems": tuple(problems),
        "converted": converted,
    }  # fmt: skip


def _norm_problems(site: NormSite, norms: list[NormRead]) -> Iterator[Problem]:
    if any(norm.key != norms[0].key for norm in norms):
        yield Problem(site.name, "is used with other weights elsewhere: give each norm a module of its own")
    if not site.epsilon >= LEAST_EPS:
        reason = f"has eps={site.epsilon:g}: attention normalises for eps >= {LEAST_EPS:g}, since 1/√u is unbounded at 0"
        yield Problem(site.name, reason)
    yield from site.norm.problems()
    known = {id(tensor) for _, tensor in site.norm.tensors()}
    own = () if site.converted or not site.places else (*site.replaced.parameters(), *site.replaced.buffers())
    if any(id(tensor) not in known for tensor in own):
        yield Problem(site.name, "holds tensors of its own besides gain and shift, which would be lost")
