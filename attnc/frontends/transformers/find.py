"""find_blocks: every feed-forward block of a model, with the place where a module has to be put to convert it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends import aten
from attnc.frontends.capture import Captured, CaptureError, capture
from attnc.frontends.problems import global_hooks, training_parts
from attnc.frontends.transformers.calls import Call, example_call
from attnc.frontends.transformers.expressions import MARK, PRODUCT
from attnc.frontends.transformers.norms import NORM
from attnc.frontends.transformers.places import sites_in
from attnc.frontends.transformers.sites import PartSite, PartUse, Site, SkipCause, Skipped
from attnc.network.marking import mark, marking, norm, product

_CONVERTED = "is converted already: convert the original model, or leave this block out by filter_fn"
_GRAD = "computes different results with and without gradients: make forward independent of the grad mode"


@dataclass(frozen=True, eq=False)
class BlockList:
    """The parts of a model to convert, of each kind in the order of execution, the parts that are left as they are, and the call
    that was recorded."""

    sites: tuple[PartSite, ...]
    skipped: tuple[Skipped, ...]
    call: Call

    @property
    def blocks(self) -> tuple[Site, ...]:
        """The feed-forward blocks."""
        return tuple(site for site in self.sites if isinstance(site, Site))


def find_blocks(
    model: nn.Module,
    filter_fn: Callable[[Any], bool] | None = None,
    *,
    call: Call | None = None,
    parts: Collection[str] = ("feed-forward",),
) -> BlockList:
    """Every part of a model in eval mode that is one of `parts` ("feed-forward", "norm", "activation") and for which `filter_fn`,
    if given, returns True. The model is not changed.

    The model runs on `call` (by default on inputs that fit it), and the executed operations are read. Parts that cannot be
    converted raise UnsupportedError with every reason, unless the filter leaves them out. A second reading, with gradients, must
    find the same parts. In a third one, marks stand in their places: it must differ from the first reading in the marks alone.

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
        raise InputError(f"filter_fn={filter_fn!r}: use e.g. lambda site: 'layer.0' in site.name")
    _check(model)
    call = example_call(model) if call is None else call
    captured = record(model, call, grad=False)
    sites, skipped = sites_in(model, captured)
    sites = [site for site in sites if site.part in parts]
    elsewhere = {site.name for site in sites if site.part == "activation"}
    skipped = [part for part in skipped if part.name not in elsewhere]
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
    if not problems:
        again = record(model, call, grad=True)
        problems = _unlike(kept, sites_in(model, again)[0])
    problems = problems or _misplaced(model, call, captured, kept)
    if problems:
        what = f"{type(model).__name__} cannot be converted, and is unchanged"
        raise UnsupportedError(what, _grouped(problems))
    causes = ("left out by filter_fn", SkipCause.FILTER), ("converted before", SkipCause.CONVERTED)
    left = [Skipped(site.name, *causes[site.converted]) for site in sites if site not in kept]
    return BlockList(tuple(kept), (*left, *skipped), call)


def read_sites(model: nn.Module, call: Call | None = None) -> list[PartSite]:
    """Every block, norm and saturating activation that a model runs, converted or not, with its problems, read with gradients
    and without."""
    _check(model)
    call = example_call(model) if call is None else call
    sites, again = (sites_in(model, record(model, call, grad=grad))[0] for grad in (False, True))
    problems = _unlike([site for site in sites if not site.problems], again)
    if problems:
        raise UnsupportedError(f"attnc cannot read what {type(model).__name__} executes", problems)
    return sites


def _unlike(sites: Sequence[PartSite], others: Sequence[PartSite]) -> list[Problem]:
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
        raise InputError(f"{len(absent)} tensors are on the meta device, {absent[0]} first: load the weights")


def _grouped(problems: list[Problem]) -> list[Problem]:
    """One line for each reason: a model of a hundred layers has most of them a hundred times."""
    places: dict[str, list[str]] = {}
    for problem in dict.fromkeys(problems):
        places.setdefault(problem.reason, []).append(problem.where)
    more = {reason: f" (and {len(where) - 1} more)" * (len(where) > 1) for reason, where in places.items()}
    return [Problem(where[0] + more[reason], reason) for reason, where in places.items()]


_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")
_NAME = "model"


class _TensorOutputs(nn.Module):
    """A model that returns the tensors among its outputs: torch.export does not know caches and other objects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(_outputs(self.model(*args, **kwargs)))


def _outputs(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (Mapping, list, tuple)):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from _outputs(value)


def record(model: nn.Module, call: Call, *, grad: bool) -> Captured:
    """What the model executes on a call, with the names of the model itself; every converted part is one marked operation."""
    given = call.args, dict(call.kwargs or {})
    try:
        with marking(model):
            captured = capture(_TensorOutputs(model), *given, grad=grad)
    except CaptureError as problem:
        what = f"attnc cannot read what {type(model).__name__} executes"
        where = _own(problem.path) or "the model"
        raise UnsupportedError(what, [Problem(where, problem.reason)]) from problem
    for node in captured.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        inner = {key: (_own(str(path)), kind) for key, (path, kind) in stack.items() if path != ""}
        node.meta["nn_module_stack"] = inner
    return replace(captured, module=model, names={key: _own(name) for key, name in captured.names.items()})


def _own(name: str) -> str:
    return "" if name == _NAME else name.removeprefix(f"{_NAME}.")


def _misplaced(model: nn.Module, call: Call, captured: Captured, sites: Sequence[PartSite]) -> list[Problem]:
    """The blocks whose replacement would change more than the activation (and product): the recording with gradients, marks in
    place, must equal the first recording with the activations taken for marks."""
    if _same_with_marks(model, call, captured, sites):
        return []
    wrong = [site for site in sites if not _same_with_marks(model, call, captured, [site])]
    reason = "cannot be replaced: another module in its place changes what the model computes elsewhere"
    return [Problem(site.name, reason) for site in wrong or sites]


def _same_with_marks(model: nn.Module, call: Call, captured: Captured, sites: Sequence[PartSite]) -> bool:
    numbering: dict[object, int] = {}
    expected = signature(captured, numbering, {site.name: site.uses for site in sites})
    try:
        with ExitStack() as undo:
            for site in sites:
                undo.callback(site.replace(_Mark(site)))
            return signature(record(model, call, grad=True), numbering, {}) == expected
    except UnsupportedError:
        return False


class _Mark(nn.Module):
    """In the place of an activation, one operation that carries the name of the block; in the place of a gated block, the same
    maps under the same names, with a marked activation and product."""

    def __init__(self, site: PartSite) -> None:
        super().__init__()
        self.name, self.operation = site.name, norm if site.part == "norm" else mark
        maps = site.maps() if isinstance(site, Site) and site.gated else ()
        self.roles = tuple(linear.attribute for linear in maps)
        self.rows = site.rows if isinstance(site, Site) else None
        for linear in maps:
            self.add_module(linear.attribute, linear.module)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if not self.roles:
            marked: Tensor = self.operation(x, self.name)
            return marked
        first, up, second = (self.get_submodule(role) for role in self.roles)
        if self.rows is None:
            s, t = first(x), up(x)
        else:
            s, t = (first(x)[..., start:stop] for start, stop in self.rows)
        result: Tensor = second(product(mark(s, self.name), t, self.name))
        return result


def signature(
    captured: Captured, numbering: dict[object, int], marked: Mapping[str, tuple[PartUse, ...]]
) -> tuple[object, ...]:
    """The outputs as numbers that `numbering` gives to computations, across graphs: equal exactly if the same operations are
    applied to the same tensors. The uses of parts in `marked` count as marks of that name; what changes no number is skipped."""
    marks = {aten.origin(use.leaving): (name, use) for name, uses in marked.items() for use in uses}
    own = {id(t) for t in (*captured.module.parameters(), *captured.module.buffers())}
    numbers: dict[fx.Node, int] = {}
    for node in captured.graph.nodes:
        if node.op == "output" or aten.name(node) in _CHECKS:
            continue
        source = aten.unchanged(node)
        if node in marks:
            name, use = marks[node]
            key: object = (use.mark, numbers[use.entering], name)
            if use.factor is not None:
                activation = numbering.setdefault(key, len(numbering))
                key = (PRODUCT, activation, numbers[use.factor], name)
        elif source is not None:
            numbers[node] = numbers[source]
            continue
        else:
            key = _key(node, captured, own, numbers)
        numbers[node] = numbering.setdefault(key, len(numbering))
    return tuple(_plain(out, numbers) for out in captured.outputs)


def _key(node: fx.Node, captured: Captured, own: set[int], numbers: Mapping[fx.Node, int]) -> object:
    if node.op == "placeholder":
        tensor = captured.tensors.get(node.name)
        if tensor is None:
            return ("input", captured.inputs.index(node))
        return ("tensor", id(tensor)) if id(tensor) in own else ("constant", _content(tensor))
    if node.op == "get_attr":
        return ("part", str(node.target), str(getattr(node.graph.owning_module, str(node.target), None)))
    op, part = aten.name(node), aten.part_of(node)
    if part is not None:  # by chunk, by split or by slices
        return ("rows", numbers[aten.origin(part[0])], part[1])
    if op in (MARK, PRODUCT, NORM):
        given = aten.arguments(node)
        return (op, *(numbers[given[key]] for key in ("x", "y") if key in given), str(given["name"]))
    overload = str(getattr(node.target, "_overloadname", ""))
    return (op, overload, _plain(node.args, numbers), _plain(dict(node.kwargs), numbers))


def _content(tensor: Tensor) -> object:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), tuple(tensor.shape), data.numpy().tobytes()


def _plain(given: Any, numbers: Mapping[fx.Node, int]) -> object:
    if isinstance(given, fx.Node):
        return ("value", numbers.get(given))
    if isinstance(given, (list, tuple)):
        return tuple(_plain(part, numbers) for part in given)
    if isinstance(given, dict):
        return tuple((key, _plain(value, numbers)) for key, value in sorted(given.items()))
    return repr(given)
