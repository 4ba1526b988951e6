"""sites_in: the blocks, norms and activations of a captured graph, each with the place where a module has to be put."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from attnc.errors import AttncError, Problem
from attnc.frontends import aten
from attnc.frontends.activations import ACTIVATIONS
from attnc.frontends.capture import Captured
from attnc.frontends.problems import DTYPES, HALF, part_name, tensor_problem
from attnc.frontends.transformers.blocks import BlockRead, blocks_in
from attnc.frontends.transformers.expressions import MARK, Reading, expression_of
from attnc.frontends.transformers.norms import NORM, NormRead, norms_in
from attnc.frontends.transformers.sites import ActivationSite, NormSite, PartSite, PartUse, Site, Skipped
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise

# operations that count as activations outside of blocks
_ACTIVATIONS = ACTIVATIONS.keys() - {"abs", "absolute", "square", "pow", "sin", "cos", "exp", "clamp", "clip", "clamp_min"} | {
    "log_sigmoid", "erf", "hardshrink",
}  # fmt: skip
_SATURATING = ("tanh", "sigmoid")  # one head of two keys computes them for every input
_PADDING = "torch's nested tensors are switched off: outputs at padded positions, which have no meaning, are no longer 0"
_EXPERTS = (
    "its {} experts share heads; the router, its choice of experts and products of two values run as before"
)
_OUTSIDE = ", in no feed-forward block"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CHANGES = "changes its own numbers when it runs: a forward that only computes is accepted"


def sites_in(model: nn.Module, captured: Captured) -> tuple[list[PartSite], list[Skipped]]:
    """Every block, norm and saturating activation that the graph runs, and the other activations.

    A map, an activation and a map without a norm before them that return another number of features than they take, such as a
    pooler and a classifier, count as a block only if there is no other."""
    blocks = blocks_in(captured)
    groups: dict[object, list[tuple[_Place, BlockRead]]] = {}
    for block in blocks:
        place = _place(model, captured, block)
        held = getattr(place.owner, place.attribute, None)
        key = id(held) if _is_whole(block) else (id(place.owner), place.attribute)
        groups.setdefault(key, []).append((place, block))
    sites, proper, skipped = [], [], []
    used = _used(captured)
    for site in [_site(model, captured, uses, used) for uses in groups.values()]:
        square = site.second.sizes[0] == site.first.sizes[1]  # as in a residual stream
        if not site.places and not (site.problems and square):
            skipped.append(Skipped(site.name, site.remarks[-1]))
            continue
        sites.append(site)
        proper += [site] if site.norm is not None or square else []
    proper = proper or sites
    heads = [site for site in sites if site not in proper]
    skipped += [Skipped(site.name, f"{site.activation or 'an activation'}{_OUTSIDE}") for site in heads]
    taken = {node for block in blocks for node in block.inside}
    outside = [node for node in captured.graph.nodes if node not in taken]
    operations = [
        (captured.path(node), aten.name(node)) for node in outside if aten.name(node) in _ACTIVATIONS
    ]
    skipped += [Skipped(path or "the model", f"{op}{_OUTSIDE}") for path, op in dict.fromkeys(operations)]
    return [*proper, *_norm_sites(model, captured), *_activation_sites(model, captured, outside)], skipped


def _norm_sites(model: nn.Module, captured: Captured) -> Iterator[NormSite]:
    """Every norm that the graph runs, in the order of execution; uses of one module are put together."""
    groups: dict[str, list[tuple[PartUse, NormRead]]] = {}
    for leaving, entering, norm in norms_in(captured):
        groups.setdefault(norm.name, []).append((PartUse(leaving, entering, NORM), norm))
    for name, found in groups.items():
        norm = found[0][1]
        tensors = [tensor for _, tensor in norm.tensors()]
        fields = _fields(model, captured, name, [use for use, _ in found], Norm, tensors)
        problems = [*fields.pop("problems"), *norm.problems(), *_changes(fields["name"], tensors, captured)]
        if norm.one_plus in HALF:
            reason = (
                f"adds 1 to its weight in {norm.one_plus}, so that its gain is rounded: call model.float()"
            )
            problems.append(Problem(fields["name"], reason))
        if any(other.key != norm.key for _, other in found):
            reason = "is used with other weights elsewhere: give each norm a module of its own"
            problems.append(Problem(fields["name"], reason))
        yield NormSite(**fields, problems=tuple(problems), key=(norm.key, len(found)), norm=norm)


def _activation_sites(
    model: nn.Module, captured: Captured, outside: list[fx.Node]
) -> Iterator[ActivationSite]:
    """Every tanh and sigmoid outside of blocks, in the order of execution."""
    groups: dict[tuple[str, str], list[PartUse]] = {}
    for node in outside:
        op, given = aten.name(node), aten.arguments(node)
        if op in (*_SATURATING, MARK):
            name = str(given["name"]) if op == MARK else captured.path(node)
            entering = aten.origin(given["x" if op == MARK else "self"])
            groups.setdefault((name, op), []).append(PartUse(node, entering, MARK))
    for (name, op), uses in groups.items():
        held = captured.parts.get(name)
        if op != MARK and isinstance(held, nn.Module) and any(True for _ in held.parameters()):
            continue  # it is called inside of a part that does more
        activation = "" if op == MARK else op
        fields = _fields(model, captured, name, uses, Pointwise, ())
        yield ActivationSite(**fields, key=(activation, len(uses)), activation=activation)


def _fields(
    model: nn.Module, captured: Captured, name: str, uses: list[PartUse], kind: type[nn.Module], kept: Iterable[Tensor]
) -> dict[str, Any]:  # fmt: skip
    """The fields of the site of a part that is a module of its own, with what is wrong with its place."""
    held, shown = captured.parts.get(name), name or "the model"
    places, dtype = _holders(model, held), aten.dtype(uses[0].leaving) or torch.float32
    problems = []
    if not places:
        advice = "make it a module, e.g. self.norm = nn.LayerNorm(d)"
        problems.append(Problem(shown, f"calls a function inside its forward: {advice}"))
    elif not isinstance(held, kind):
        problems += _lost(name, held, map(id, kept))
    if dtype not in (*DTYPES, *HALF):
        problems.append(Problem(shown, f"runs in {dtype}: call model.float()"))
    return {
        "name": shown, "places": places, "dtype": dtype, "uses": tuple(uses), "problems": tuple(problems),
        "converted": isinstance(held, kind),
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Place:
    """A block's name, and the module and attribute that hold what is replaced; or why there is no such place."""

    name: str
    owner: nn.Module
    attribute: str
    problem: str | None = None


def _place(model: nn.Module, captured: Captured, block: BlockRead) -> _Place:
    maps = [m.name for m in (block.first, block.up, block.second) if m is not None]
    around = block.converted[0] if block.converted else _common(maps)
    if _is_whole(block) and not around:
        return _Place("the model", model, "", "is a gated block itself: convert a module that contains it")
    if block.converted or _is_whole(block):
        return _at(model, around)
    path = _common([captured.path(node) for node in block.inside])
    if path and not any(f"{m}.".startswith(f"{path}.") for m in maps):
        return _at(model, path)
    owner = model.get_submodule(path)
    held = [key for key, value in vars(owner).items() if callable(value) and not key.startswith("_")]
    fitting = [key for key in held if _computes(vars(owner)[key], block)]
    if len(fitting) == 1:
        return _Place(_joined(path, fitting[0]), owner, fitting[0])
    reason = (
        f"calls {block.activation or 'its activation'} inside forward of {type(owner).__name__}: make it an attribute, e.g. "
        "self.act = nn.GELU(), so that it can be replaced"
    )
    return _Place(path or "the model", owner, "", reason)


def _is_whole(block: BlockRead) -> bool:
    """Whether the block is replaced as a whole, and not its activation alone."""
    return block.up is not None and not block.first.experts


def _computes(value: Callable[[Tensor], Tensor], block: BlockRead) -> bool:
    """Whether an attribute is a function that consists of the operations of the block's activation."""
    try:
        found = Reading(block.result, lambda node: node is block.first.node)
        return expression_of(value) == found.expression
    except AttncError:
        return False


def _at(model: nn.Module, path: str) -> _Place:
    parent, _, attribute = path.rpartition(".")
    return _Place(path, model.get_submodule(parent), attribute)


def _site(model: nn.Module, captured: Captured, uses: list[tuple[_Place, BlockRead]], used: set[int]) -> Site:
    (place, block), *others = uses
    problems = [Problem(place.name, block.reason)] if block.reason else []
    different = [p.name for p, b in others if b.key != block.key]
    if different:
        reason = f"is used at {different[0]} too, with other maps: give each place its own, by copy.deepcopy"
        problems.append(Problem(place.name, reason))
    norm, remarks = _common_norm(model, used, place, [b.norm for _, b in uses])
    settings = () if _is_whole(block) else tuple(_settings(model, place))
    if block.first.experts:
        remarks += (_EXPERTS.format(block.first.experts),)
    if any(attribute == "use_nested_tensor" and getattr(m, attribute) for m, attribute, _ in settings):
        remarks += (_PADDING,)
    places: tuple[tuple[nn.Module, str], ...] = ((place.owner, place.attribute),)
    if _is_whole(block):
        places = _holders(model, getattr(place.owner, place.attribute, None))
    if place.problem is not None:
        places, remarks = (), (*remarks, place.problem)
    runs = [
        PartUse(b.result, b.first.node, MARK, b.up.node if b.up and _is_whole(b) else None) for _, b in uses
    ]
    site = Site(
        name=place.name, places=places, dtype=block.first.weight.dtype, uses=tuple(runs), settings=settings,
        key=(norm and norm.key, *(b.key for _, b in uses)), converted=bool(block.converted),
        family=_family(model, place), activation=block.activation or "", first=block.first, second=block.second, up=block.up,
        norm=norm, also=tuple(dict.fromkeys(p.name for p, _ in uses))[1:], remarks=remarks,
    )  # fmt: skip
    if site.up is not None and site.rows is None and any(m.rows is not None for m in site.maps()):
        reason = "multiplies a part of the outputs of a map with outputs of another: give each factor a map of its own"
        problems.append(Problem(place.name, reason))
    if places and not block.converted:
        kept = [part for m in site.maps() for part in m.module.modules()] if site.gated else []
        problems += _lost(site.name, site.replaced, map(id, kept))
    return replace(site, problems=(*problems, *_tensor_problems(site, captured)))


def _common_norm(
    model: nn.Module, used: set[int], place: _Place, norms: list[NormRead | None]
) -> tuple[NormRead | None, tuple[str, ...]]:
    """The norm before every use of a block, or None and why nothing is proved of the block's input."""
    norm = norms[0]
    if norm is None or any(n is None or n.key != norm.key for n in norms):
        mixed = f"runs {len(norms)} times, not always after the same norm: nothing is proved of its input"
        return None, (mixed,) if any(n is not None for n in norms) else ()
    around = _common([norm.name, place.name])
    for name, parameter in model.get_submodule(around).named_parameters():
        if id(parameter) not in used:
            idle = _joined(around, name.rpartition(".")[0])
            reason = f"{idle} did not run in the recorded call; it may come between {norm.name} and the block"
            return None, (f"nothing is proved of its input: {reason}: give samples that run it",)
    return norm, ()


def _used(captured: Captured) -> set[int]:
    """The tensors that the graph reads, by their ids."""
    tensors = captured.tensors
    used = {id(tensors[n.name]) for n in captured.graph.nodes if n.users and n.name in tensors}
    return used | {id(tensor) for _, _, found in norms_in(captured) for _, tensor in found.tensors()}


def _settings(model: nn.Module, place: _Place) -> Iterator[tuple[nn.Module, str, object]]:
    """Attributes that keep torch from running an encoder layer as one fused operation, activation included; nested tensors are
    for that operation only."""
    layer = place.owner
    if isinstance(layer, nn.TransformerEncoderLayer) and place.attribute == "activation":
        if hasattr(layer, "activation_relu_or_gelu"):
            yield layer, "activation_relu_or_gelu", 0
        for part in model.modules():
            if isinstance(part, nn.TransformerEncoder) and any(inner is layer for inner in part.layers):
                yield part, "use_nested_tensor", False


def _family(model: nn.Module, place: _Place) -> str:
    """The model type of transformers, or the class that holds the block."""
    steps = place.name.split(".")
    for depth in range(len(steps) - 1, -1, -1):
        config = getattr(model.get_submodule(".".join(steps[:depth])), "config", None)
        if isinstance(kind := getattr(config, "model_type", None), str) and kind:
            return kind
    return type(place.owner).__name__


def _tensor_problems(site: Site, captured: Captured) -> Iterator[Problem]:
    """Tensors that are not accepted, weights of other modules, mixed dtypes, and tensors that the model changes."""
    tensors = [named for m in site.maps() for named in m.tensors()]
    for m in site.maps():
        own = {id(t) for t in (*m.module.parameters(recurse=False), *m.module.buffers(recurse=False))}
        if any(id(tensor) not in own for _, tensor in m.tensors()):
            yield Problem(part_name(m.name, m.module), "uses a weight that belongs to another part")
    refused = [
        Problem(name, reason) for name, tensor in tensors if (reason := tensor_problem(tensor, half=True))
    ]
    if site.norm is not None:
        refused += site.norm.problems()
        tensors += site.norm.tensors()
    yield from refused
    dtypes = sorted({str(tensor.dtype) for _, tensor in tensors})
    if len(dtypes) > 1 and not refused:
        reason = f"has another dtype than its neighbours ({', '.join(dtypes)}): call model.float()"
        yield Problem(site.first.name, reason)
    yield from _changes(site.name, [tensor for _, tensor in tensors], captured)


def _changes(name: str, tensors: Iterable[Tensor], captured: Captured) -> Iterator[Problem]:
    changed = {id(captured.tensors[name]) for name in captured.changed if name in captured.tensors}
    if any(id(tensor) in changed for tensor in tensors):
        yield Problem(name, _CHANGES)


def _lost(name: str, replaced: object, kept: Iterable[int]) -> Iterator[Problem]:
    """Hooks and tensors of the parts that are replaced, except for those that are kept (by their ids): the conversion would drop
    them silently. Hooks of transformers itself do not matter."""
    known = set(kept)
    for path, part in replaced.named_modules() if isinstance(replaced, nn.Module) else ():
        if id(part) in known:
            continue
        hooks = [hook for kind in _HOOKS for hook in getattr(part, kind).values()]
        if any(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks):
            yield Problem(
                _joined(name, path), "has hooks, which would be lost: remove them by handle.remove()"
            )
        tensors = (*part.parameters(recurse=False), *part.buffers(recurse=False))
        if any(id(tensor) not in known for tensor in tensors):
            yield Problem(_joined(name, path), "holds tensors of its own, which would be lost")


def _holders(model: nn.Module, held: object) -> tuple[tuple[nn.Module, str], ...]:
    """Every module and attribute under which a part is registered."""
    every = ((m, key, part) for m in model.modules() for key, part in m._modules.items())
    return tuple((m, key) for m, key, part in every if held is not None and part is held)


def _common(paths: list[str]) -> str:
    """The innermost part that holds all of them."""
    split = [path.split(".") if path else [] for path in paths]
    depth = 0
    while all(len(s) > depth for s in split) and len({s[depth] for s in split}) == 1:
        depth += 1
    return ".".join(split[0][:depth]) if split else ""


def _joined(name: str, path: str) -> str:
    return ".".join(filter(None, (name, path))) or "the model"
