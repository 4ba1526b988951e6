"""record: the executed graph of a model; misplaced: the blocks whose replacement would change more than the activation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from attnc.errors import Problem, UnsupportedError
from attnc.frontends import aten
from attnc.frontends.capture import Captured, CaptureError, capture
from attnc.frontends.transformers.blocks import BlockRead
from attnc.frontends.transformers.calls import Call
from attnc.frontends.transformers.expressions import MARK, PRODUCT
from attnc.frontends.transformers.sites import Site
from attnc.network.marking import mark, marking, product

_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")
_NAME = "model"


class _TensorOutputs(nn.Module):
    """A model that returns the tensors among its outputs: torch.export does not know caches and other objects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(_tensors(self.model(*args, **kwargs)))


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (Mapping, list, tuple)):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(value)


def record(model: nn.Module, call: Call, *, grad: bool) -> Captured:
    """What the model executes on a call, with the names of the model itself; every converted part is one marked operation."""
    given = call.args, dict(call.kwargs or {})
    try:
        with marking(model):
            captured = capture(_TensorOutputs(model), *given, grad=grad, functional=True)
    except CaptureError as problem:
        what = f"attnc cannot read what {type(model).__name__} executes"
        raise UnsupportedError(
            what, [Problem(_own(problem.path) or "the model", problem.reason)]
        ) from problem
    for node in captured.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            inner = {key: (_own(str(path)), kind) for key, (path, kind) in stack.items() if path != ""}
            node.meta["nn_module_stack"] = inner
    return replace(captured, module=model, names={key: _own(name) for key, name in captured.names.items()})


def _own(name: str) -> str:
    return "" if name == _NAME else name.removeprefix(f"{_NAME}.")


def misplaced(model: nn.Module, call: Call, captured: Captured, sites: Sequence[Site]) -> list[Problem]:
    """The blocks whose replacement would change more than the activation (and product): the recording with gradients, marks in
    place, must equal the first recording with the activations taken for marks."""
    if _same_with_marks(model, call, captured, sites):
        return []
    wrong = [site for site in sites if not _same_with_marks(model, call, captured, [site])]
    reason = "cannot be replaced: another module in its place changes what the model computes elsewhere"
    return [Problem(site.name, reason) for site in wrong or sites]


def _same_with_marks(model: nn.Module, call: Call, captured: Captured, sites: Sequence[Site]) -> bool:
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

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.name, self.roles = site.name, tuple(m.attribute for m in site.maps()) if site.gated else ()
        for linear in site.maps() if site.gated else ():
            self.add_module(linear.attribute, linear.module)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if not self.roles:
            marked: Tensor = mark(x, self.name)
            return marked
        first, up, second = (self.get_submodule(role) for role in self.roles)
        result: Tensor = second(product(mark(first(x), self.name), up(x), self.name))
        return result


def signature(
    captured: Captured, numbering: dict[object, int], marked: Mapping[str, tuple[BlockRead, ...]]
) -> tuple[object, ...]:
    """The outputs as numbers that `numbering` gives to computations, across graphs: equal exactly if the same operations are
    applied to the same tensors.

    Activations and products of the blocks in `marked` count as marks of that name. Operations that change no number are skipped.
    """
    marks = {aten.origin(block.leaving): (name, block) for name, blocks in marked.items() for block in blocks}
    own = {id(t) for t in (*captured.module.parameters(), *captured.module.buffers())}
    numbers: dict[fx.Node, int] = {}
    for node in captured.graph.nodes:
        if node.op == "output" or aten.name(node) in _CHECKS:
            continue
        source = aten.unchanged(node)
        if node in marks:
            name, block = marks[node]
            key: object = (MARK, numbers[block.first.node], name)
            if block.up is not None:
                activation = numbering.setdefault(key, len(numbering))
                key = (PRODUCT, activation, numbers[block.up.node], name)
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
    op = aten.name(node)
    if op in (MARK, PRODUCT):
        given = aten.arguments(node)
        return (op, *(numbers[given[key]] for key in ("x", "y") if key in given), str(given["name"]))
    overload = str(getattr(node.target, "_overloadname", ""))
    return (op, overload, _plain(node.args, numbers), _plain(dict(node.kwargs), numbers))


def _content(tensor: Tensor) -> object:
    data = tensor.detach().cpu().contiguous()
    plain = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(plain).hexdigest()


def _plain(given: Any, numbers: Mapping[fx.Node, int]) -> object:
    if isinstance(given, fx.Node):
        return ("value", numbers.get(given))
    if isinstance(given, (list, tuple)):
        return tuple(_plain(part, numbers) for part in given)
    if isinstance(given, dict):
        return tuple((key, _plain(value, numbers)) for key, value in sorted(given.items()))
    return repr(given)
