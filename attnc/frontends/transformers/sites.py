"""Site: a feed-forward block with its place in the model; sites_in: the blocks of a captured graph as sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor, nn

from attnc import functions
from attnc.domain import Normed
from attnc.errors import AttncError, Problem
from attnc.frontends.capture import Captured
from attnc.frontends.problems import tensor_problem
from attnc.frontends.transformers.blocks import BlockRead, LinearMap, activations_outside, blocks_in
from attnc.frontends.transformers.expressions import expression_of, read
from attnc.frontends.transformers.norms import NormRead, norms_in
from attnc.functions import Function
from attnc.program import Pointwise, Product, Program, Step

_PADDING = "torch's nested tensors are switched off: outputs at padded positions, which have no meaning, are no longer 0"
_OUTSIDE = ", in no feed-forward block"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, eq=False)
class Site:
    """A feed-forward block, and the place where a module has to be put to convert it.

    plain: a module that maps pre-activations to activations, elementwise, takes the place of the activation.
    gated: a module that computes the whole block takes the place of the block; to keep the names of the weights it holds the
    maps `first`, `up`, `second` under their attributes.
    """

    name: str  # dotted path of what is replaced
    family: str
    activation: str  # a name of attnc.functions; '' if the block is converted
    places: tuple[tuple[nn.Module, str], ...]  # (parent, attribute), more than one for a tied block
    first: LinearMap
    second: LinearMap
    up: LinearMap | None = None  # of a gated block
    norm: NormRead | None = None  # computes the block's input, wherever the model runs the block
    settings: tuple[tuple[nn.Module, str, object], ...] = ()  # (module, attribute, value) to set beside
    also: tuple[str, ...] = ()  # other names of the same block
    remarks: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    converted: bool = False
    uses: tuple[BlockRead, ...] = ()  # in the graph that was read

    @property
    def norm_name(self) -> str | None:
        return None if self.norm is None else self.norm.name

    @property
    def gated(self) -> bool:
        return self.up is not None

    @property
    def dtype(self) -> torch.dtype:
        return self.first.dtype

    @property
    def replaced(self) -> object:
        """The activation (a module or a function), or the gated block, that is in the model now."""
        return getattr(*self.places[0])

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for sites that consist of the same tensors, functions and norms."""
        return self.norm and self.norm.key, *(use.key for use in self.uses)

    def maps(self) -> tuple[LinearMap, ...]:
        return (self.first, self.second) if self.up is None else (self.first, self.up, self.second)

    def program(self, function: Function | None = None) -> Program:
        """What the block computes on one token: W2 f(W1 x + b1) + b2, or W2 (f(W1 x + b1)∘(U x + c)) + b2 if it is gated.

        The numbers are copies in the dtype of the model. `function` is f; it is needed only if the block is converted, because
        f is then no longer in the model.

        >>> from attnc.frontends.transformers import find_blocks
        >>> model = nn.TransformerEncoderLayer(4, 1, 8, activation="gelu", norm_first=True).eval()
        >>> block = find_blocks(model).blocks[0]
        >>> [step.kind for step in block.program().steps], block.domain()
        (['affine', 'pointwise', 'affine'], Normed(LayerNorm, d=4))
        """
        f = functions.get(self.activation) if function is None else function
        steps: list[Step] = [self.first.step(0), Pointwise(1, f, name=self.name)]
        if self.up is not None:
            steps += [self.up.step(0), Product((2, 3), name=self.name)]
        return Program((self.first.sizes[1],), (*steps, self.second.step(len(steps))))

    def domain(self) -> Normed | None:
        """Every vector that can enter the block; None if no norm computes its input."""
        return None if self.norm is None else self.norm.domain()

    def replace(self, module: nn.Module) -> Callable[[], None]:
        """Put a module in the place of the activation or gated block; the returned function undoes it.

        >>> from attnc.frontends.transformers import find_blocks
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
        >>> undo = find_blocks(model).blocks[0].replace(nn.Tanh())
        >>> model[1]
        Tanh()
        >>> undo()
        >>> model[1]
        ReLU()
        """
        changes = [*((*place, module) for place in self.places), *self.settings]
        before = [(part, attribute, getattr(part, attribute)) for part, attribute, _ in changes]
        put(changes)
        return lambda: put(before)


def holders(model: nn.Module, held: object) -> tuple[tuple[nn.Module, str], ...]:
    """Every module and attribute under which a part is registered."""
    return tuple((m, key) for m in model.modules() for key, part in m._modules.items() if part is held)


def hooks_of(part: nn.Module) -> list[object]:
    """The hooks of a part that are not transformers' own."""
    hooks = [hook for kind in _HOOKS for hook in getattr(part, kind).values()]
    return [hook for hook in hooks if not str(getattr(hook, "__module__", "")).startswith("transformers.")]


class SkipCause(str, Enum):
    """Why a part of a model is left as it is."""

    OUTSIDE = "outside"  # it is in no feed-forward block, or cannot be replaced
    FILTER = "filter"  # filter_fn returned False
    CONVERTED = "converted"


@dataclass(frozen=True)
class Skipped:
    """A part of the model that is left as it is, and why."""

    name: str
    reason: str
    cause: SkipCause = SkipCause.OUTSIDE

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", SkipCause(self.cause))


def put(changes: list[tuple[nn.Module, str, object]]) -> None:
    """setattr, also where a function takes the place of a module."""
    for part, attribute, value in changes:
        if attribute in part._modules and not isinstance(value, nn.Module):
            delattr(part, attribute)
        setattr(part, attribute, value)


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
    sites, proper, skipped = [], [], []
    for site in [_site(model, captured, uses) for uses in groups.values()]:
        square = site.second.sizes[0] == site.first.sizes[1]  # as in a residual stream
        if not site.places and not (site.problems and square):
            skipped.append(Skipped(site.name, site.remarks[-1]))
            continue
        sites.append(site)
        proper += [site] if site.norm is not None or square else []
    proper = proper or sites
    heads = [site for site in sites if site not in proper]
    skipped += [Skipped(site.name, f"{site.activation or 'an activation'}{_OUTSIDE}") for site in heads]
    outside = dict.fromkeys(activations_outside(captured, blocks))
    return proper, [*skipped, *(Skipped(path or "the model", f"{op}{_OUTSIDE}") for path, op in outside)]


def _place(model: nn.Module, captured: Captured, block: BlockRead) -> _Place:
    if block.converted:
        return _at(model, block.converted[0])
    maps = [m.name for m in (block.first, block.up, block.second) if m is not None]
    around = _common(maps)
    if block.up is not None and not around:
        return _Place("the model", model, "", "is a gated block itself: convert a module that contains it")
    if block.up is not None:
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
    different = [p.name for p, b in others if b.key != block.key]
    if different:
        reason = f"is used at {different[0]} too, with other maps: give each place its own, by copy.deepcopy"
        problems.append(Problem(place.name, reason))
    norm, remarks = _common_norm(model, captured, place, [b.norm for _, b in uses])
    settings = () if block.up is not None else tuple(_settings(model, place))
    if any(attribute == "use_nested_tensor" and getattr(m, attribute) for m, attribute, _ in settings):
        remarks += (_PADDING,)
    places: tuple[tuple[nn.Module, str], ...] = ((place.owner, place.attribute),)
    if block.up is not None:
        held = getattr(place.owner, place.attribute, None)
        places = holders(model, held)
    if place.problem is not None:
        places, remarks = (), (*remarks, place.problem)
    site = Site(
        place.name, _family(model, place), block.activation or "", places, block.first, block.second, block.up, norm, settings,
        tuple(names)[1:], remarks, (), bool(block.converted), tuple(b for _, b in uses),
    )  # fmt: skip
    return replace(site, problems=(*problems, *_tensor_problems(site, captured), *_lost(site)))


def _common_norm(
    model: nn.Module, captured: Captured, place: _Place, norms: list[NormRead | None]
) -> tuple[NormRead | None, tuple[str, ...]]:
    """The norm before every use of a block, or None and why nothing is proved of the block's input."""
    norm = norms[0]
    if norm is None or any(n is None or n.key != norm.key for n in norms):
        mixed = f"runs {len(norms)} times, not always after the same norm: nothing is proved of its input"
        return None, (mixed,) if any(n is not None for n in norms) else ()
    around = _common([norm.name, place.name])
    tensors = captured.tensors
    used = {id(tensors[n.name]) for n in captured.graph.nodes if n.users and n.name in tensors}
    used |= {id(tensor) for _, _, found in norms_in(captured) for _, tensor in found.tensors()}
    for name, parameter in model.get_submodule(around).named_parameters():
        if id(parameter) not in used:
            idle = _joined(around, name.rpartition(".")[0])
            reason = f"{idle} did not run in the recorded call; it may come between {norm.name} and the block"
            return None, (f"nothing is proved of its input: {reason}: give samples that run it",)
    return norm, ()


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
            where = f"{m.name or 'the model'} ({type(m.module).__name__})"
            yield Problem(where, "uses a weight that belongs to another part")
    refused = [Problem(name, reason) for name, tensor in tensors if (reason := tensor_problem(tensor))]
    if site.norm is not None:
        refused += site.norm.problems()
        tensors += site.norm.tensors()
    yield from refused
    dtypes = sorted({str(tensor.dtype) for _, tensor in tensors})
    if len(dtypes) > 1 and not refused:
        reason = f"has another dtype than its neighbours ({', '.join(dtypes)}): call model.float()"
        yield Problem(site.first.name, reason)
    changed = {id(captured.tensors[name]) for name in captured.changed if name in captured.tensors}
    if any(id(tensor) in changed for _, tensor in tensors):
        reason = "changes its own numbers when it runs: a forward that only computes is accepted"
        yield Problem(site.name, reason)


def _lost(site: Site) -> Iterator[Problem]:
    """Hooks and tensors of the parts that are replaced: the conversion would drop them silently."""
    replaced = site.replaced if site.places else None
    if site.converted or not isinstance(replaced, nn.Module):
        return
    kept = {id(part) for m in site.maps() for part in m.module.modules()} if site.gated else set()
    for name, part in replaced.named_modules():
        if id(part) in kept:
            continue
        where = _joined(site.name, name)
        if hooks_of(part):
            yield Problem(where, "has hooks, which would be lost: remove them by handle.remove()")
        if any(True for _ in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
            yield Problem(where, "holds tensors of its own, which would be lost")


def _common(paths: list[str]) -> str:
    """The innermost part that holds all of them."""
    split = [path.split(".") if path else [] for path in paths]
    depth = 0
    while all(len(s) > depth for s in split) and len({s[depth] for s in split}) == 1:
        depth += 1
    return ".".join(split[0][:depth]) if split else ""


def _joined(name: str, path: str) -> str:
    return ".".join(filter(None, (name, path))) or "the model"
