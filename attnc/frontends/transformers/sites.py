"""The blocks of a captured graph as sites: uses of one block are put together, and its place in the model is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from attnc.errors import AttncError, Problem
from attnc.frontends.capture import Captured
from attnc.frontends.problems import tensor_problem
from attnc.frontends.transformers.blocks import BlockRead, activations_outside, blocks_in
from attnc.frontends.transformers.expressions import expression_of, read
from attnc.frontends.transformers.norms import NormRead
from attnc.frontends.transformers.site import Site, Skipped

_PADDING = "torch's nested tensors are switched off: outputs at padded positions, which have no meaning, are no longer 0"
_OUTSIDE = ", in no feed-forward block"


@dataclass(frozen=True, eq=False)
class _Place:
    """A block's name, and the module and attribute that hold what is replaced; or why there is no such place."""

    name: str
    owner: nn.Module
    attribute: str
    problem: str | None = None


def sites_in(model: nn.Module, captured: Captured) -> tuple[list[Site], list[Skipped]]:
    """Every block that the graph runs, and the activations outside of blocks.

    A map, an activation and a map without a norm before them that return another number of features than they take, such as a
    pooler and a classifier, count as a block only if there is no other.
    """
    groups: dict[object, list[tuple[_Place, BlockRead]]] = {}
    blocks = blocks_in(captured)
    for block in blocks:
        place = _place(model, captured, block)
        held = getattr(place.owner, place.attribute, None)
        key = id(held) if block.up is not None else (id(place.owner), place.attribute)
        groups.setdefault(key, []).append((place, block))
    sites = [_site(model, captured, uses) for uses in groups.values()]
    unplaced = [site for site in sites if not site.places and not (site.problems and site.returns)]
    skipped = [Skipped(site.name, site.remarks[-1]) for site in unplaced]
    sites = [site for site in sites if site not in unplaced]
    proper = [site for site in sites if site.norm is not None or site.returns] or sites
    heads = [site for site in sites if site not in proper]
    skipped += [Skipped(site.name, f"{site.activation or 'an activation'}{_OUTSIDE}") for site in heads]
    outside = dict.fromkeys(activations_outside(captured, blocks))
    return proper, [*skipped, *(Skipped(path or "the model", f"{op}{_OUTSIDE}") for path, op in outside)]


def _place(model: nn.Module, captured: Captured, block: BlockRead) -> _Place:
    if block.converted:
        return _at(model, block.converted[0])
    maps = [m.name for m in (block.first, block.up, block.second) if m is not None]
    around = _common(maps)
    if block.up is not None:
        if not around:
            return _Place(
                "the model", model, "", "is a gated block itself: convert a module that contains it"
            )
        return _at(model, around)
    paths = [captured.place(node).path for node in block.inside]
    path = _common(paths)
    inside = all(not _is_inside(m, path) for m in maps)
    if path and inside:
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


def _computes(value: Callable[[Tensor], Tensor], block: BlockRead) -> bool:
    """Whether an attribute is a function that consists of the operations of the block's activation."""
    try:
        return expression_of(value) == read(block.leaving, lambda node: node is block.first.node).expression
    except AttncError:
        return False


def _at(model: nn.Module, path: str) -> _Place:
    parent, _, attribute = path.rpartition(".")
    return _Place(path, model.get_submodule(parent), attribute)


def _site(model: nn.Module, captured: Captured, uses: list[tuple[_Place, BlockRead]]) -> Site:
    (place, block), *others = uses
    names = dict.fromkeys(p.name for p, _ in uses)
    problems = [Problem(place.name, block.reason)] if block.reason else []
    different = [p.name for p, b in others if not b.same(block)]
    if different:
        reason = f"is used at {different[0]} too, with other maps: give each place its own, by copy.deepcopy"
        problems.append(Problem(place.name, reason))
    norm, remarks = _common_norm(model, captured, place, [b.norm for _, b in uses])
    settings, padding = _settings(model, place, block)
    held = getattr(place.owner, place.attribute, None)
    places = _holders(model, held) if block.up is not None else ((place.owner, place.attribute),)
    if place.problem is not None:
        places, remarks = (), (*remarks, place.problem)
    site = Site(
        place.name, _family(model, place), block.activation or "", places, block.first, block.second, block.up, norm, settings,
        tuple(names)[1:], (*remarks, *padding), (), bool(block.converted), tuple(b for _, b in uses),
    )  # fmt: skip
    return replace(site, problems=(*problems, *_tensor_problems(site, captured), *_lost(site)))


def _common_norm(
    model: nn.Module, captured: Captured, place: _Place, norms: list[NormRead | None]
) -> tuple[NormRead | None, tuple[str, ...]]:
    """The norm before every use of a block, or None and why nothing is proved of the block's input."""
    norm = norms[0]
    if norm is None or any(not norm.same(n) for n in norms):
        mixed = f"runs {len(norms)} times, not always after the same norm: nothing is proved of its input"
        return None, (mixed,) if any(n is not None for n in norms) else ()
    idle = _idle(model, captured, _common([norm.name, place.name]))
    if idle is None:
        return norm, ()
    reason = f"{idle} did not run in the recorded call, and may come between {norm.name} and the block"
    return None, (f"nothing is proved of its input: {reason}; give samples that run it",)


def _idle(model: nn.Module, captured: Captured, around: str) -> str | None:
    """A part around norm and block with parameters that the call did not use."""
    used = {
        id(captured.tensors[n.name]) for n in captured.graph.nodes if n.users and n.name in captured.tensors
    }
    layer = model.get_submodule(around)
    for name, parameter in layer.named_parameters():
        if id(parameter) not in used:
            return _joined(around, name.rpartition(".")[0])
    return None


def _holders(model: nn.Module, held: object) -> tuple[tuple[nn.Module, str], ...]:
    """Every module and attribute under which a part is registered."""
    return tuple(
        (part, attribute)
        for part in model.modules()
        for attribute, value in part._modules.items()
        if value is held
    )


def _settings(
    model: nn.Module, place: _Place, block: BlockRead
) -> tuple[tuple[tuple[nn.Module, str, object], ...], tuple[str, ...]]:
    """Attributes that keep torch from running an encoder layer as one fused operation, activation included; nested tensors are
    for that operation only."""
    layer = place.owner
    if (
        block.up is not None
        or not isinstance(layer, nn.TransformerEncoderLayer)
        or place.attribute != "activation"
    ):
        return (), ()
    settings: list[tuple[nn.Module, str, object]] = []
    if hasattr(layer, "activation_relu_or_gelu"):
        settings.append((layer, "activation_relu_or_gelu", 0))
    around = [
        m for m in model.modules()
        if isinstance(m, nn.TransformerEncoder) and any(inner is layer for inner in m.layers)
    ]  # fmt: skip
    nested = [m for m in around if m.use_nested_tensor]
    settings += [(m, "use_nested_tensor", False) for m in around]
    return tuple(settings), (_PADDING,) if nested else ()


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
            yield Problem(
                m.name or "the model",
                f"({type(m.module).__name__}) uses a weight that belongs to another part",
            )
    refused = [Problem(name, reason) for name, tensor in tensors if (reason := tensor_problem(tensor))]
    if site.norm is not None:
        refused += site.norm.problems()
        tensors += site.norm.tensors()
    yield from refused
    dtypes = sorted({str(tensor.dtype) for _, tensor in tensors})
    if len(dtypes) > 1 and not refused:
        yield Problem(
            site.first.name,
            f"has another dtype than its neighbours ({', '.join(dtypes)}): call model.float()",
        )
    changed = {id(captured.tensors[name]) for name in captured.changed if name in captured.tensors}
    if any(id(tensor) in changed for _, tensor in tensors):
        yield Problem(
            site.name, "changes its own numbers when it runs: a forward that only computes is accepted"
        )


def _lost(site: Site) -> Iterator[Problem]:
    """Hooks and tensors of the parts that are replaced: the conversion would drop them silently."""
    replaced = getattr(site.parent, site.attribute, None) if site.places else None
    if site.converted or not isinstance(replaced, nn.Module):
        return
    kept = {id(part) for m in site.maps() for part in m.module.modules()} if site.gated else set()
    for name, part in replaced.named_modules():
        if id(part) in kept:
            continue
        where = _joined(site.name, name)
        if _hooks(part):
            yield Problem(where, "has hooks, which would be lost: remove them by handle.remove()")
        if any(True for _ in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
            yield Problem(where, "holds tensors of its own, which would be lost")


def _hooks(part: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [hook for kind in kinds for hook in getattr(part, kind).values()]
    return any(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)


def _common(paths: list[str]) -> str:
    """The innermost part that holds all of them."""
    split = [path.split(".") if path else [] for path in paths]
    depth = 0
    while all(len(s) > depth for s in split) and len({s[depth] for s in split}) == 1:
        depth += 1
    return ".".join(split[0][:depth]) if split else ""


def _is_inside(path: str, around: str) -> bool:
    return not around or path == around or path.startswith(f"{around}.")


def _joined(name: str, path: str) -> str:
    return ".".join(filter(None, (name, path))) or "the model"
