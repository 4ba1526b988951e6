"""NormSite: a norm with its place in the model; norm_sites_in: the norms of a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import fx, nn

from attnc.errors import Problem
from attnc.frontends import aten
from attnc.frontends.capture import Captured
from attnc.frontends.transformers.blocks import NormRead, norms_in
from attnc.frontends.transformers.sites import holders, hooks_of, put
from attnc.network.norm import Norm

LEAST_EPS = 1e-24
_FULL = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class NormUse:
    """One run of a norm in the graph: the node that it computes, and the one that enters it."""

    leaving: fx.Node
    entering: fx.Node


@dataclass(frozen=True, eq=False)
class NormSite:
    """A norm that is a module of its own, and its place in the model."""

    name: str
    norm: NormRead
    places: tuple[tuple[nn.Module, str], ...]
    dtype: torch.dtype
    uses: tuple[NormUse, ...]
    problems: tuple[Problem, ...] = ()
    converted: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for sites that consist of the same tensors."""
        return (self.norm.key, len(self.uses))

    @property
    def epsilon(self) -> float:
        """ε; torch's rms_norm takes the machine epsilon of the dtype if none is given."""
        return torch.finfo(self.dtype).eps if self.norm.eps is None else self.norm.eps

    @property
    def replaced(self) -> nn.Module:
        """The norm that is in the model now."""
        found = getattr(*self.places[0])
        assert isinstance(found, nn.Module)
        return found

    def replace(self, module: nn.Module) -> Callable[[], None]:
        """Put a module in the place of the norm; the returned function undoes it."""
        before = self.replaced
        put([(*place, module) for place in self.places])
        return lambda: put([(*place, before) for place in self.places])


def norm_sites_in(model: nn.Module, captured: Captured) -> list[NormSite]:
    """Every norm that the graph runs, in the order of execution; uses of one module are put together."""
    groups: dict[str, list[tuple[NormUse, NormRead, torch.dtype]]] = {}
    for leaving, entering, norm in norms_in(captured):
        dtype = aten.dtype(leaving) or torch.float32
        groups.setdefault(norm.name, []).append((NormUse(leaving, entering), norm, dtype))
    sites = []
    for name, found in groups.items():
        uses, norms, dtypes = zip(*found, strict=True)
        held = captured.parts.get(name)
        places = holders(model, held)
        site = NormSite(name, norms[0], places, dtypes[0], uses, (), isinstance(held, Norm))
        problems = tuple(_problems(site, held, norms))
        sites.append(NormSite(name, norms[0], places, dtypes[0], uses, problems, site.converted))
    return sites


def _problems(site: NormSite, held: nn.Module | None, norms: tuple[NormRead, ...]) -> Iterator[Problem]:
    name = site.name or "the model"
    if not site.places or held is None:
        yield Problem(
            name, "calls a norm inside its forward: make it a module, e.g. self.norm = nn.LayerNorm(d)"
        )
        return
    if any(norm.key != norms[0].key for norm in norms):
        yield Problem(name, "is used with other weights elsewhere: give each norm a module of its own")
    if not site.epsilon >= LEAST_EPS:
        reason = f"has eps={site.epsilon:g}: attention normalises for eps >= {LEAST_EPS:g}, since 1/√u is unbounded at 0"
        yield Problem(name, reason)
    if site.dtype not in _FULL:
        yield Problem(name, f"runs in {site.dtype}: call model.float()")
    yield from site.norm.problems()
    if not site.converted and hooks_of(held):
        yield Problem(name, "has hooks, which would be lost: remove them by handle.remove()")
    known = {id(tensor) for _, tensor in site.norm.tensors()}
    own = (*held.parameters(), *held.buffers())
    if not site.converted and any(id(tensor) not in known for tensor in own):
        yield Problem(name, "holds tensors of its own besides gain and shift, which would be lost")
