"""ATen operations of a captured graph, by name and with all their arguments; and those that change no number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

_COPIES = {"clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh"}
_CASTS = {"to", "_to_copy", "type_as"}
_DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
_RESHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze"}
_ROWS = {"transpose", "permute", "expand", "slice", "select", "narrow"}


def name(node: fx.Node) -> str:
    """The operation without its overload, also where it works in place: 'mul' for aten.mul_.Tensor; '' for inputs and tensors.

    >>> from attnc.frontends.capture import capture
    >>> graph = capture(torch.nn.ReLU(), (torch.zeros(2),)).graph
    >>> [name(node) for node in graph.nodes]
    ['', 'relu', '']
    """
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(getattr(node.target, "__name__", node.target))
    space, _, bare = str(schema.name).partition("::")
    bare = bare.removesuffix("_") if schema.is_mutable else bare
    return bare if space == "aten" else f"{space}.{bare}"


def arguments(node: fx.Node) -> dict[str, Any]:
    """Every argument of an operation by its name, defaults included.

    >>> from attnc.frontends.capture import capture
    >>> graph = capture(torch.nn.Softplus(threshold=9), (torch.zeros(2),)).graph
    >>> {key: value for key, value in arguments(list(graph.nodes)[1]).items() if key != "self"}
    {'beta': 1.0, 'threshold': 9.0}
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {**{str(i): arg for i, arg in enumerate(node.args)}, **node.kwargs}
    found = {}
    for i, argument in enumerate(schema.arguments):
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        real = type(given) is int and str(argument.type) in ("float", "number")
        found[argument.name] = float(given) if real else given  # type: ignore[arg-type]
    return found


def shape(node: object) -> tuple[int, ...] | None:
    """The shape of the tensor that a node makes, or None."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, Tensor) else None


def dtype(node: object) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.dtype if isinstance(value, Tensor) else None


def unchanged(node: fx.Node, *, rows: bool = False, casts: bool = False) -> fx.Node | None:
    """The node whose numbers this one hands on, vector by vector of the last axis, in the same order; None where it computes.

    Dropout outside of training, copies, casts to the dtype that is there already, and reshapes that keep the last axis change
    nothing. With `rows` the vectors may be reordered, repeated or left out; with `casts` float32 and float64 may be cast
    into each other.
    """
    known = name(node)
    source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    if source is None or shape(source) is None or shape(node) is None:
        return None
    if known in _DROPOUTS:
        return source if arguments(node).get("train") is False else None
    same = dtype(node) == dtype(source)
    if known in _CASTS:
        wide = {dtype(node), dtype(source)} <= {torch.float32, torch.float64}
        return source if same or (casts and wide) else None
    if not same:  # x.view(dtype) reads the bits of x as other numbers
        return None
    if known in _COPIES:
        return source
    if known in _RESHAPES or (rows and known in _ROWS):
        return source if _keeps_last(node, source, known) else None
    return None


def origin(node: fx.Node, *, rows: bool = False, casts: bool = False) -> fx.Node:
    """The node that made the numbers: `unchanged`, as far back as it goes."""
    source = unchanged(node, rows=rows, casts=casts)
    return node if source is None else origin(source, rows=rows, casts=casts)


def _keeps_last(node: fx.Node, source: fx.Node, known: str) -> bool:
    before, after = shape(source), shape(node)
    if not before or not after or before[-1] != after[-1]:
        return False
    last, given = len(before) - 1, arguments(node)
    if known == "transpose":
        return last not in {int(given["dim0"]) % (last + 1), int(given["dim1"]) % (last + 1)}
    if known == "permute":
        return int(given["dims"][-1]) % (last + 1) == last
    if known in ("slice", "select", "narrow"):
        return int(given["dim"]) % (last + 1) != last
    if known in ("unsqueeze", "squeeze", "expand"):
        return known == "expand" or after[-1] != 1
    return True
