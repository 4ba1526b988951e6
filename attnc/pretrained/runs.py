"""What a converted part executes, as JSON: the modelling file in a directory builds its modules from it and from the tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from attnc.frontends.transformers import PartSite, Site
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.records.window_numbers import ClosedForm, Gate, TailForm, Window

_KINDS = {Gate: "gate", TailForm: "tail", Window: "window"}


def runs_of(model: nn.Module, site: Site | PartSite, module: nn.Module) -> dict[str, Any]:
    """The places of a part in the model, what is set beside it, and what it runs with its present engine: for each head its
    closed form, or None for softmax."""
    names = {id(part): name for name, part in model.named_modules()}
    places = [_joined(names[id(owner)], attribute) for owner, attribute in site.places]
    beside = [[names[id(owner)], attribute, value] for owner, attribute, value in site.settings]
    return {"places": places, "settings": beside, **executed(module)}


def _joined(path: str, attribute: str) -> str:
    return f"{path}.{attribute}" if path else attribute


def executed(module: nn.Module) -> dict[str, Any]:
    """What a module runs, apart from its places."""
    if isinstance(module, GatedBlock):
        rows = None if module.rows is None else [list(ends) for ends in module.rows]
        multiplied = module.product.runs == "closed-form"
        forms = executed(module.activation)["forms"]
        return {
            "kind": "gated", "maps": list(module.roles), "rows": rows, "forms": forms, "multiplied": multiplied,
        }  # fmt: skip
    if isinstance(module, Norm):
        one_plus = None if module.one_plus is None else str(module.one_plus).removeprefix("torch.")
        epsilon = module.heads.offset if module.engine == "closed-form" else None
        dim, centred = module.heads.dim, module.centred
        return {"kind": "norm", "dim": dim, "epsilon": epsilon, "centred": centred, "one_plus": one_plus}
    assert isinstance(module, Pointwise)
    return {"kind": "activation", "forms": [_form(window) for window in module.windows()]}


def _form(window: ClosedForm | None) -> dict[str, Any] | None:
    if window is None:
        return None
    numbers = {name: value for name, value in asdict(window).items() if name != "dtype"}
    lists = {name: list(value) for name, value in numbers.items() if isinstance(value, tuple)}
    return {"kind": _KINDS[type(window)], **numbers, **lists}


def inside(part: str, runs: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the names that a part of the model uses."""
    places = [place.removeprefix(part) for place in runs["places"]]
    beside = [[path.removeprefix(part), *value] for path, *value in runs["settings"]]
    return {**runs, "places": places, "settings": beside}


def why_runs_differ(now: Mapping[str, Any], recorded: Mapping[str, Any], prefix: str) -> str | None:
    """Why the modelling file would run something else than the module that was built, or None. A base model may be saved without
    the prefix of its names, or with it."""
    keys = sorted({*now, *recorded} - {"places", "settings"})
    changed = [key for key in keys if now.get(key) != recorded.get(key)]
    for key in ("places", "settings"):
        pairs = list(zip(now[key], recorded.get(key, ()), strict=False))
        same = len(now[key]) == len(recorded.get(key, ())) == len(pairs)
        if not same or not all(_same(one, other, prefix) for one, other in pairs):
            changed.append(key)
    return f"what it runs is not what was recorded: {', '.join(changed)}" if changed else None


def _same(one: Any, other: Any, prefix: str) -> bool:
    if isinstance(one, list):  # a path, an attribute and its value
        return isinstance(other, list) and one[1:] == other[1:] and _same(one[0], other[0], prefix)
    return isinstance(other, str) and bool({*_names(one, prefix)} & {*_names(other, prefix)})


def _names(name: str, prefix: str) -> Iterator[str]:
    yield from (name, name.removeprefix(f"{prefix}.")) if prefix else (name,)
