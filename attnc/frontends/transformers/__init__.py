"""The feed-forward blocks of pretrained transformers: where they stand, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn

from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.transformers.activations import CONVERTED, known
from attnc.frontends.transformers.bert import find_bert, find_distilbert
from attnc.frontends.transformers.encoder_layer import find_encoder_layer, without_nesting
from attnc.frontends.transformers.found import Found, Map, Site, Skipped, joined
from attnc.frontends.transformers.gpt2 import find_gpt2
from attnc.frontends.transformers.llama import find_llama
from attnc.frontends.transformers.neox import find_neox
from attnc.frontends.transformers.opt import find_opt
from attnc.frontends.transformers.pattern import find_pattern
from attnc.frontends.transformers.t5 import find_t5
from attnc.frontends.transformers.vit import find_vit

__all__ = ["CONVERTED_BEFORE", "Found", "Map", "Site", "Skipped", "collected", "find_blocks"]

_ADAPTERS: tuple[Callable[[str, nn.Module], Site | None], ...] = (
    find_bert, find_distilbert, find_gpt2, find_neox, find_opt, find_t5, find_llama, find_vit, find_encoder_layer,
)  # fmt: skip
CONVERTED_BEFORE = "converted before"
_FAMILIES = (
    "BERT-like, DistilBERT, GPT-2, GPT-Neo, GPT-NeoX, OPT, T5, Llama-like, ViT, nn.TransformerEncoderLayer"
)


def find_blocks(model: nn.Module, filter_fn: Callable[[Site], bool] | None = None) -> Found:
    """Every feed-forward block of a model in eval mode, for which `filter_fn`, where given, says True. Nothing is changed.

    A block that cannot be converted is refused, with the full list of reasons, unless the filter leaves it out.

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
    sites, skipped = collected(model)
    if not sites:
        what = f"{type(model).__name__} has no feed-forward block that is known (families: {_FAMILIES}; else a Linear, "
        what += "an activation and a Linear in one nn.Sequential or in one module)"
        raise (
            UnsupportedError(what, [Problem(s.name, s.reason) for s in skipped])
            if skipped
            else InputError(what)
        )
    kept = [site for site in sites if filter_fn is None or filter_fn(site)]
    if not kept:
        names = ", ".join(site.name for site in sites[:3]) + (", …" if len(sites) > 3 else "")
        raise InputError(f"filter_fn says False for each of the {len(sites)} blocks: their names are {names}")
    problems = _grouped([problem for site in kept for problem in site.problems])
    if problems:
        raise UnsupportedError(f"{type(model).__name__} cannot be converted, and is left as it was", problems)
    left = [Skipped(site.name, _why_left(site)) for site in sites if site not in kept]
    return Found(tuple(kept), (*left, *skipped, *_elsewhere(model, sites)))


def _why_left(site: Site) -> str:
    return CONVERTED_BEFORE if type(site.replaced).__name__ in CONVERTED else "left out by filter_fn"


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


def collected(model: nn.Module) -> tuple[list[Site], list[Skipped]]:
    """Adapters first, as they know the norm; then the pattern, where no adapter found the same."""
    parts = list(model.named_modules(remove_duplicate=False))
    found: dict[object, Site] = {}
    read: set[nn.Module] = set()
    for name, part in parts:
        for site in filter(None, (find(name, part) for find in _ADAPTERS)):
            tied = site.key in found
            found[site.key] = _tied(found[site.key], site) if tied else without_nesting(site, model)
            read |= {part, site.parent}
    skipped = []
    for name, part in parts:
        for made in find_pattern(name, part) if part not in read else ():
            if isinstance(made, Skipped):
                skipped.append(made)
            else:
                found[made.key] = _tied(found[made.key], made) if made.key in found else made
    order = {name: i for i, (name, _) in enumerate(parts)}
    return sorted(found.values(), key=lambda site: order[site.name.rpartition(".")[0]]), skipped


def _tied(first: Site, second: Site) -> Site:
    """One block that is met under a second name: the same, if its maps and its norm are."""
    places = first.places + tuple(p for p in second.places if p not in first.places)
    tied = replace(first, also=(*first.also, second.name), places=places)
    same = [m.module for m in first.maps()] == [m.module for m in second.maps()] and first.norm is second.norm
    if same:
        return tied
    reason = f"is used at {second.name} too, with another norm or other maps: give each place its own, by copy.deepcopy"
    return replace(tied, problems=(*first.problems, Problem(first.name, reason)))


def _elsewhere(model: nn.Module, sites: list[Site]) -> Iterator[Skipped]:
    """Activations that stand in no block: of poolers, of heads."""
    taken = {(id(parent), attribute) for site in sites for parent, attribute in site.places}
    inside = {id(part) for site in sites if site.gated for part in _modules(site.replaced)}
    for name, part in model.named_modules():
        if known(part) is not None or id(part) in inside:
            continue
        for attribute, value in (*part._modules.items(), *vars(part).items()):
            function = known(value) if callable(value) else None
            if function not in (None, "identity") and (id(part), attribute) not in taken:
                yield Skipped(joined(name, attribute), f"{function}, in no feed-forward block")


def _modules(block: object) -> Iterator[nn.Module]:
    if isinstance(block, nn.Module):
        yield from block.modules()


def _grouped(problems: list[Problem]) -> list[Problem]:
    """One line for each reason: a model of a hundred layers has most of them a hundred times."""
    places: dict[str, list[str]] = {}
    for problem in dict.fromkeys(problems):
        places.setdefault(problem.reason, []).append(problem.where)
    return [
        Problem(where[0] + (f" (and {len(where) - 1} more)" if len(where) > 1 else ""), reason)
        for reason, where in places.items()
    ]
