"""The feed-forward blocks of transformers, read from the operations that the model executes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules import module as hooks

from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.capture import Captured, CaptureError, capture
from attnc.frontends.transformers.calls import example_call
from attnc.frontends.transformers.found import Call, Found, Map, Site, Skipped
from attnc.frontends.transformers.marks import Mark, MarkedGate
from attnc.frontends.transformers.outputs import Tensors, unwrapped
from attnc.frontends.transformers.signature import Numbering, signature
from attnc.frontends.transformers.sites import sites_in
from attnc.network.marking import marking

__all__ = ["CONVERTED_BEFORE", "Call", "Found", "Map", "Site", "Skipped", "find_blocks", "read_sites"]

CONVERTED_BEFORE = "converted before"
_ALREADY = "is converted already: convert the model as it was before, or leave this block out by filter_fn"


def find_blocks(
    model: nn.Module, filter_fn: Callable[[Site], bool] | None = None, *, call: Call | None = None
) -> Found:
    """Every feed-forward block of a model in eval mode, for which `filter_fn`, where given, says True. Nothing is changed.

    The model is run on `call` (inputs that fit it, where none is given) and read from the operations that are executed. A block
    that cannot be converted is refused, with the full list of reasons, unless the filter leaves it out. Read a second time, with
    gradients, the blocks must be the same. Each place where a module will be put is tried: with marks in these places the model
    is read once more, and must compute what was read at first, with marks for the activations.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    >>> model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 1), nn.Sigmoid()).eval()
    >>> found = find_blocks(model)
    >>> [(site.name, site.activation, site.norm_name) for site in found.blocks]
    [('0.layers.0.activation', 'gelu', '0.layers.0.norm1'), ('0.layers.1.activation', 'gelu', '0.layers.1.norm1')]
    >>> found.skipped
    (Skipped(name='2', reason='sigmoid, in no feed-forward block'),)
    >>> [site.name for site in find_blocks(model, lambda site: "layers.1" in site.name).blocks]
    ['0.layers.1.activation']
    """
    _refuse(model, filter_fn)
    call = example_call(model) if call is None else call
    captured = _captured(model, call, grad=False)
    sites, skipped = sites_in(model, captured)
    if not sites:
        what = f"{type(model).__name__} runs no feed-forward block that can be converted: a linear map, an activation and a "
        what += "linear map, one behind the other"
        raise (
            UnsupportedError(what, [Problem(s.name, s.reason) for s in skipped])
            if skipped
            else InputError(what)
        )
    kept = [site for site in sites if filter_fn is None or filter_fn(site)]
    if not kept:
        names = ", ".join(site.name for site in sites[:3]) + (", …" if len(sites) > 3 else "")
        raise InputError(f"filter_fn says False for each of the {len(sites)} blocks: their names are {names}")
    problems = [problem for site in kept for problem in site.problems]
    problems += [Problem(site.name, _ALREADY) for site in kept if site.converted]
    problems = problems or _unlike(kept, sites_in(model, _captured(model, call, grad=True))[0])
    problems = problems or _misplaced(model, call, captured, kept)
    if problems:
        raise UnsupportedError(
            f"{type(model).__name__} cannot be converted, and is left as it was", _grouped(problems)
        )
    left = [Skipped(site.name, _why_left(site)) for site in sites if site not in kept]
    return Found(tuple(kept), (*left, *skipped), call)


def read_sites(model: nn.Module, call: Call | None = None) -> list[Site]:
    """Every block that a model runs, converted or not, with what is wrong with it, read with gradients and without.

    >>> [site.name for site in read_sites(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval())]
    ['1']
    """
    _refuse(model, None)
    call = example_call(model) if call is None else call
    sites, others = (sites_in(model, _captured(model, call, grad=grad))[0] for grad in (False, True))
    problems = _unlike([site for site in sites if not site.problems], others)
    if problems:
        raise UnsupportedError(f"attnc cannot read what {type(model).__name__} executes", problems)
    return sites


def _captured(model: nn.Module, call: Call, *, grad: bool) -> Captured:
    """The executed graph, in which every converted part is a mark."""
    try:
        with marking(model):
            found = capture(Tensors(model), call.args, dict(call.kwargs or {}), grad=grad, functional=True)
    except CaptureError as problem:
        where = problem.path.removeprefix("model").removeprefix(".")
        raise UnsupportedError(
            f"attnc cannot read what {type(model).__name__} executes",
            [Problem(where or "the model", problem.reason)],
        ) from problem
    return unwrapped(found, model)


def _unlike(sites: Sequence[Site], others: Sequence[Site]) -> list[Problem]:
    """The blocks that are not the same in another graph of the model."""
    named = {site.name: site for site in others}
    return [
        Problem(
            site.name,
            "computes different things with and without gradients: make forward independent of the grad mode",
        )
        for site in sites
        if site.name not in named or not _alike(site, named[site.name])
    ]


def _alike(one: Site, other: Site) -> bool:
    norms = one.norm is other.norm if one.norm is None else one.norm.same(other.norm)
    same = len(one.uses) == len(other.uses) and all(
        a.same(b) for a, b in zip(one.uses, other.uses, strict=True)
    )
    return norms and same and not other.problems


def _misplaced(model: nn.Module, call: Call, captured: Captured, sites: Sequence[Site]) -> list[Problem]:
    """Whether marks in the places of the blocks give what was read, with marks for the activations; and so with gradients."""
    if _same_with_marks(model, call, captured, sites):
        return []
    wrong = [site for site in sites if not _same_with_marks(model, call, captured, [site])]
    reason = "cannot be replaced: with another module in this place the model computes something else besides"
    return [Problem(site.name, reason) for site in wrong or sites]


def _same_with_marks(model: nn.Module, call: Call, captured: Captured, sites: Sequence[Site]) -> bool:
    numbering = Numbering()
    expected = signature(captured, numbering, {site.name: site.uses for site in sites})
    try:
        with _marks(sites):
            return signature(_captured(model, call, grad=True), numbering, {}) == expected
    except UnsupportedError:
        return False


@contextmanager
def _marks(sites: Sequence[Site]) -> Iterator[None]:
    undo: list[Callable[[], None]] = []
    try:
        for site in sites:
            undo.append(site.replace(_mark(site)))
        yield
    finally:
        for put_back in reversed(undo):
            put_back()


def _mark(site: Site) -> nn.Module:
    if not site.gated:
        return Mark(site.name)
    maps = site.maps()
    first, up, second = (m.attribute for m in maps)
    return MarkedGate({m.attribute: m.module for m in maps}, (first, up, second), site.name)


def _why_left(site: Site) -> str:
    return CONVERTED_BEFORE if site.converted else "left out by filter_fn"


def _refuse(model: object, filter_fn: object) -> None:
    """What is wrong with the model as a whole."""
    if not isinstance(model, nn.Module):
        raise InputError(f"what is converted is a torch.nn.Module: got {type(model).__name__}")
    if filter_fn is not None and not callable(filter_fn):
        raise InputError(
            f"filter_fn is a function of a block, e.g. lambda site: 'layer.0' in site.name: got {filter_fn!r}"
        )
    if isinstance(model, torch.jit.ScriptModule) or type(model).__name__ == "OptimizedModule":
        raise InputError(
            f"{type(model).__name__} is compiled: convert the nn.Module it was made from, and compile the result"
        )
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        raise InputError("torch has global forward hooks, which may change every result: remove them first")
    training = [name for name, part in model.named_modules() if part.training]
    if training:
        where = f"its part {training[0]}" if training[0] else "the model"
        raise InputError(f"{where} is in training mode: call model.eval() first")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    absent = [name for name, tensor in tensors if tensor.is_meta]
    if absent:
        raise InputError(
            f"{len(absent)} of {len(tensors)} tensors are on the meta device and hold no numbers, {absent[0]} among them: "
            "load the weights first"
        )


def _grouped(problems: list[Problem]) -> list[Problem]:
    """One line for each reason: a model of a hundred layers has most of them a hundred times."""
    places: dict[str, list[str]] = {}
    for problem in dict.fromkeys(problems):
        places.setdefault(problem.reason, []).append(problem.where)
    return [
        Problem(where[0] + (f" (and {len(where) - 1} more)" if len(where) > 1 else ""), reason)
        for reason, where in places.items()
    ]
