"""find_blocks: every feed-forward block of a model, with the place where a module has to be put to convert it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.problems import global_hooks, training_parts
from attnc.frontends.transformers.calls import Call, example_call
from attnc.frontends.transformers.placement import misplaced, record
from attnc.frontends.transformers.sites import Site, SkipCause, Skipped, sites_in

_CONVERTED = "is converted already: convert the original model, or leave this block out by filter_fn"
_GRAD = "computes different results with and without gradients: make forward independent of the grad mode"


@dataclass(frozen=True, eq=False)
class BlockList:
    """The feed-forward blocks of a model in the order of execution, the parts that are left as they are, and the call that was
    recorded."""

    blocks: tuple[Site, ...]
    skipped: tuple[Skipped, ...]
    call: Call


def find_blocks(
    model: nn.Module, filter_fn: Callable[[Site], bool] | None = None, *, call: Call | None = None
) -> BlockList:
    """Every feed-forward block of a model in eval mode for which `filter_fn`, if given, returns True. The model is not changed.

    The model runs on `call` (by default on inputs that fit it), and the executed operations are read. Blocks that cannot be
    converted raise UnsupportedError with every reason, unless the filter leaves them out. A second reading, with gradients, must
    find the same blocks. In a third one, marks stand in the places of the blocks: it must differ from the first reading in the
    marks alone.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    >>> model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 1), nn.Sigmoid()).eval()
    >>> found = find_blocks(model)
    >>> [(site.name, site.activation, site.norm_name) for site in found.blocks]
    [('0.layers.0.activation', 'gelu', '0.layers.0.norm1'), ('0.layers.1.activation', 'gelu', '0.layers.1.norm1')]
    >>> [(part.name, part.reason) for part in found.skipped]
    [('2', 'sigmoid, in no feed-forward block')]
    >>> [site.name for site in find_blocks(model, lambda site: "layers.1" in site.name).blocks]
    ['0.layers.1.activation']
    """
    if filter_fn is not None and not callable(filter_fn):
        raise InputError(
            f"filter_fn={filter_fn!r}: pass a function, e.g. lambda site: 'layer.0' in site.name"
        )
    _check(model)
    call = example_call(model) if call is None else call
    captured = record(model, call, grad=False)
    sites, skipped = sites_in(model, captured)
    if not sites:
        what = f"{type(model).__name__} runs no feed-forward block (linear map, activation, linear map) that can be converted"
        if skipped:
            raise UnsupportedError(what, [Problem(part.name, part.reason) for part in skipped])
        raise InputError(what)
    kept = [site for site in sites if filter_fn is None or filter_fn(site)]
    if not kept:
        names = ", ".join(site.name for site in sites[:3]) + (", …" if len(sites) > 3 else "")
        raise InputError(f"filter_fn returned False for all {len(sites)} blocks: {names}")
    problems = [problem for site in kept for problem in site.problems]
    problems += [Problem(site.name, _CONVERTED) for site in kept if site.converted]
    problems = problems or _unlike(kept, sites_in(model, record(model, call, grad=True))[0])
    problems = problems or misplaced(model, call, captured, kept)
    if problems:
        what = f"{type(model).__name__} cannot be converted, and is unchanged"
        raise UnsupportedError(what, _grouped(problems))
    left = []
    for site in (site for site in sites if site not in kept):
        reason = (
            ("converted before", SkipCause.CONVERTED)
            if site.converted
            else ("left out by filter_fn", SkipCause.FILTER)
        )
        left.append(Skipped(site.name, *reason))
    return BlockList(tuple(kept), (*left, *skipped), call)


def read_sites(model: nn.Module, call: Call | None = None) -> list[Site]:
    """Every block that a model runs, converted or not, with its problems, read with gradients and without.

    >>> [site.name for site in read_sites(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval())]
    ['1']
    """
    _check(model)
    call = example_call(model) if call is None else call
    sites, others = (sites_in(model, record(model, call, grad=grad))[0] for grad in (False, True))
    problems = _unlike([site for site in sites if not site.problems], others)
    if problems:
        raise UnsupportedError(f"attnc cannot read what {type(model).__name__} executes", problems)
    return sites


def _unlike(sites: Sequence[Site], others: Sequence[Site]) -> list[Problem]:
    """The blocks that are not the same in another graph of the model."""
    keys = {site.name: None if site.problems else site.key for site in others}
    return [Problem(site.name, _GRAD) for site in sites if keys.get(site.name) != site.key]


def _check(model: object) -> None:
    """Raise InputError for problems of the model as a whole."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a torch.nn.Module: got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule) or type(model).__name__ == "OptimizedModule":
        advice = "convert the original nn.Module, and compile the result"
        raise InputError(f"{type(model).__name__} is compiled: {advice}")
    for problem in (*global_hooks(), *training_parts(model)):
        raise InputError(f"{problem.where} {problem.reason}")
    absent = [name for name, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
    if absent:
        raise InputError(
            f"{len(absent)} tensors are on the meta device and hold no numbers, {absent[0]} among them: load the weights first"
        )


def _grouped(problems: list[Problem]) -> list[Problem]:
    """One line for each reason: a model of a hundred layers has most of them a hundred times."""
    places: dict[str, list[str]] = {}
    for problem in dict.fromkeys(problems):
        places.setdefault(problem.reason, []).append(problem.where)
    more = {reason: f" (and {len(where) - 1} more)" * (len(where) > 1) for reason, where in places.items()}
    return [Problem(where[0] + more[reason], reason) for reason, where in places.items()]
