"""Blocks of models without an adapter: a map, an activation and a map, in one nn.Sequential or in one module."""

from __future__ import annotations

import types
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnc.frontends.transformers import norms
from attnc.frontends.transformers.activations import CONVERTED, elementwise, known
from attnc.frontends.transformers.found import Map, Site, Skipped, altered, is_map, is_quantised, site

_PASSING = (nn.Dropout, nn.Identity)  # they change nothing in eval mode


def find_pattern(name: str, module: nn.Module) -> list[Site | Skipped]:
    """The blocks that stand directly in a module.

    >>> mlp = nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Dropout(), nn.Linear(4, 2)).eval()
    >>> [site.name for site in find_pattern("mlp", mlp)]
    ['mlp.1']
    """
    if isinstance(module, nn.Sequential):
        return _in_sequence(name, module) if type(module).forward is nn.Sequential.forward else []
    found = _in_module(name, module)
    return [] if found is None else [found]


def _in_sequence(name: str, module: nn.Sequential) -> list[Site | Skipped]:
    parts = [(key, m) for key, m in module._modules.items() if m is not None and not _passes(m)]
    found: list[Site | Skipped] = []
    for i in range(len(parts) - 2):
        (first, W1), (act, f), (second, W2) = parts[i : i + 3]
        if not is_map(W1) or not is_map(W2) or not _is_activation(f):
            continue
        norm = parts[i - 1][0] if i and norms.kind(parts[i - 1][1]) else None
        remarks = (
            ()
            if norm is None
            else ("its norm is the part before it in an nn.Sequential that runs as a whole",)
        )
        made = site(
            name, module, "pattern", activation=act, first=first, second=second, norm=norm, remarks=remarks
        )
        found += [made] if made else []
    return found


def _in_module(name: str, module: nn.Module) -> Site | Skipped | None:
    """A module with two maps and one activation, whose output is what they say it is."""
    maps = [Map(key, part) for key, part in module._modules.items() if part is not None and is_map(part)]
    if len(maps) != 2:
        return None
    acts = [key for key, f in _callables(module) if _is_activation(f)]
    if len(acts) != 1:
        return None
    if any(is_quantised(m.module) for m in maps):  # refused later on; there are no numbers to try it with
        return site(name, module, "pattern", activation=acts[0], first=maps[0].name, second=maps[1].name)
    refused = [f"{m.name} {reason}" for m in maps if (reason := m.problem())]
    fitting = [(a, b) for a, b in (maps, maps[::-1]) if not refused and a.sizes == b.sizes[::-1]]
    for first, second in fitting:
        if _computes(module, getattr(module, acts[0]), first, second):
            return site(name, module, "pattern", activation=acts[0], first=first.name, second=second.name)
    if fitting:
        refused = [f"{type(module).__name__} computes something else from its two maps and its activation"]
    return Skipped(name, "; ".join(refused)) if refused else None


def _passes(part: nn.Module) -> bool:
    """Whether a part hands on what it is given: not so a class derived from one that does, or one with a hook."""
    return type(part) in _PASSING and not any(altered(part, layer=False))


def _callables(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Modules and functions that a module holds under a name."""
    yield from ((key, part) for key, part in module._modules.items() if part is not None)
    yield from (
        (key, value) for key, value in vars(module).items() if callable(value) and not key.startswith("_")
    )


def _is_activation(f: object) -> bool:
    """One that is listed, one that is converted, or a part without parameters that acts on each number alone."""
    if type(f).__name__ in CONVERTED:
        return True
    if (name := known(f)) is not None:
        return name != "identity"
    if isinstance(f, nn.Module):
        passing = type(f) in (*_PASSING, nn.Sequential, nn.ModuleList) or norms.kind(f) is not None
        bare = next(f.parameters(), None) is None and next(f.buffers(), None) is None
        return bare and not passing and elementwise(f, _example(6, torch.float64))
    return isinstance(f, types.FunctionType) and elementwise(f, _example(6, torch.float64))


def _computes(module: nn.Module, activation: nn.Module, first: Map, second: Map) -> bool:
    """Whether, at an example, the module's output is W2 f(W1 x + b1) + b2, up to rounding."""
    x = _example(first.sizes[1], first.dtype).to(first.module.get_parameter("weight").device)
    try:
        with torch.no_grad():
            inner = activation(first.module(x))
            expected, got = second.module(inner), module(x)
            size = inner.abs().sum(-1).max() * second.module.get_parameter("weight").abs().max()
    except Exception:
        return False
    if not isinstance(got, Tensor) or got.shape != expected.shape:
        return False
    tolerance = 4 * sum(first.sizes) * torch.finfo(first.dtype).eps * float(1 + size + expected.abs().max())
    return bool((got - expected).abs().max() <= tolerance)


def _example(features: int, dtype: torch.dtype) -> Tensor:
    """(2, 3, features), the same at every call; torch's own generator is not touched."""
    source = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, features, generator=source, dtype=torch.float64).to(dtype)
