"""Whether two captured graphs compute the same thing from the same tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from attnc.frontends import aten
from attnc.frontends.capture import Captured
from attnc.frontends.transformers.expressions import MARK, PRODUCT
from attnc.frontends.transformers.reading import BlockRead

_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")


class Numbering:
    """Gives equal computations the same number, across graphs."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}

    def of(self, key: object) -> int:
        return self._known.setdefault(key, len(self._known))


def signature(
    captured: Captured, numbering: Numbering, marked: Mapping[str, tuple[BlockRead, ...]]
) -> tuple[object, ...]:
    """What the outputs are, as numbers of a `Numbering`: equal exactly where the same operations are applied to the same tensors.

    Activations and products of the blocks in `marked` count as marks of that name. What changes no number is passed over.
    """
    marks = {aten.origin(block.leaving): (name, block) for name, blocks in marked.items() for block in blocks}
    own = {id(t) for t in (*captured.module.parameters(), *captured.module.buffers())}
    numbers: dict[fx.Node, int] = {}
    for node in captured.graph.nodes:
        if node.op == "output" or aten.name(node) in _CHECKS:
            continue
        source = aten.unchanged(node)
        if node in marks:
            numbers[node] = _marked(*marks[node], numbering, numbers)
        elif source is not None:
            numbers[node] = numbers[source]
        else:
            numbers[node] = numbering.of(_key(node, captured, own, numbers))
    return tuple(_plain(out, numbers) for out in captured.outputs)


def _marked(name: str, block: BlockRead, numbering: Numbering, numbers: Mapping[fx.Node, int]) -> int:
    activation = numbering.of((f"{MARK}", numbers[block.first.node], name))
    if block.up is None:
        return activation
    return numbering.of((f"{PRODUCT}", activation, numbers[block.up.node], name))


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
