"""Translator: the operations that a module executes, one by one, into the steps of a program."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from attnc.frontends import aten
from attnc.frontends.activations import ACTIVATIONS, RefusedError, activation
from attnc.frontends.capture import Captured
from attnc.frontends.operations import (
    BATCH,
    HINTS,
    OPERATIONS,
    OWN_NUMBERS,
    REARRANGES,
    RESHAPES,
    Builder,
    Constant,
    Value,
)
from attnc.program.step import Shape

KNOWN = frozenset({*ACTIVATIONS, *OPERATIONS, *RESHAPES})
_PARAMETERS = {name: inspect.signature(f).parameters for name, f in {**OPERATIONS, **ACTIVATIONS}.items()}
_ACCEPTED = "one tensor that depends on the input is accepted"
_UNKNOWN = object()  # the result of something that was refused: whatever reads it is not refused again
_TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


class Translator:
    """Walks a captured graph, in which every node is one value, in the order of execution."""

    def __init__(self, builder: Builder, captured: Captured) -> None:
        self.builder, self._captured = builder, captured
        self._known: dict[fx.Node, Any] = {}
        self._batch = str(captured.inputs[0].meta["val"].shape[0])

    def output(self) -> Value | None:
        """The value that the forward returns; None if it was refused."""
        live = _live(self._captured.graph)
        returned: object = _UNKNOWN
        for node in self._captured.graph.nodes:
            self.builder.name, where = self._captured.path(node), self._captured.where(node)
            self.builder.where = f"{_shown(node)} in {where}" if node.op == "call_function" else where
            try:
                if node.op == "output":
                    returned = self._returned()
                else:
                    self._known[node] = self._node(node)
            except RefusedError as refusal:
                self._known[node] = self._stand_in(node)
                if node in live:
                    self.builder.report(str(refusal))
        return returned if isinstance(returned, Value) else None

    def _node(self, node: fx.Node) -> object:
        if node.op == "placeholder" and node in self._captured.inputs:
            return self.builder.input if node is self._captured.inputs[0] else _UNKNOWN
        if node.op == "placeholder":
            return Constant(self._captured.tensors[node.name], self._captured.names[node.name])
        if node.op != "call_function":
            return _UNKNOWN  # the body of a higher-order operation, which is refused where it is called
        given: dict[str, Any] = fx.node.map_arg(aten.arguments(node), self._known.__getitem__)
        if not isinstance(node.target, OpOverload):
            return self._python(node, list(given.values()))
        name, leaves = aten.name(node), tree_leaves(given)
        if any(leaf is _UNKNOWN for leaf in leaves):
            if name not in KNOWN:
                raise RefusedError(HINTS.get(name, "is not supported"))
            return self._stand_in(node)
        changed = aten.written(node)
        if len(changed) > 1 or (changed and changed[0] is not node.args[0]):
            raise RefusedError("writes into a tensor that is given to it, as by out=: use what it returns")
        if not any(isinstance(leaf, Value) for leaf in leaves):
            return self._folded(node.target, name, given, bool(changed))
        result, fake, own = self._operation(node, name, given), node.meta["val"], _TORCH[self.builder.dtype]
        if not isinstance(result, Value):
            return result
        if fake.dtype is not own:
            raise RefusedError(f"turns a value of {own} into {fake.dtype}: leave the cast out")
        if self._features(node) != result.shape:
            raise RefusedError(f"returns the shape {tuple(fake.shape)}, where (batch, …) is expected")
        return result

    def _returned(self) -> object:
        captured = self._captured
        if not captured.structure.is_leaf():
            raise RefusedError(f"returns a {captured.structure.type.__name__}: {_ACCEPTED}")
        last = captured.outputs[-1]  # tensors that an operation in place has changed stand before it
        result = self._known[last] if isinstance(last, fx.Node) else last
        if result is _UNKNOWN or isinstance(result, Value):
            return result
        what = "its own numbers" if isinstance(result, Constant) else f"a {type(result).__name__}"
        raise RefusedError(f"returns {what}: {_ACCEPTED}")

    def _python(self, node: fx.Node, given: list[Any]) -> object:
        """Arithmetic of sizes, parts of tuples, and torch's higher-order operations."""
        leaves = tree_leaves(given)
        if any(leaf is _UNKNOWN for leaf in leaves) and getattr(node.target, "__name__", "") == "getitem":
            return self._stand_in(node)
        if any(leaf is BATCH for leaf in leaves):
            raise RefusedError("computes with the batch size: a result must not depend on it")
        if "autocast" in _shown(node):
            raise RefusedError("rounds to a narrower type: leave torch.autocast out of forward")
        raise RefusedError("is not supported")

    def _operation(self, node: fx.Node, name: str, given: dict[str, Any]) -> object:
        """The operation, called with the arguments that it supports; the others must have their default values."""
        if name not in KNOWN:
            raise RefusedError(HINTS.get(name, "is not supported"))
        (_, first), *rest = given.items()
        if name in RESHAPES and isinstance(first, Value):  # torch has computed the shape
            shape = self._features(node)
            if shape is None:
                raise RefusedError("does not keep the batch axis: use x.flatten(1) or x.reshape(len(x), …)")
            return self.builder.reshaped(first, shape)
        supported = _PARAMETERS[name]
        if not isinstance(first, Value) and (name in ACTIVATIONS or supported["input"].annotation == "Value"):
            raise RefusedError("is applied to the model's own numbers, not to a value of the input")
        everything = any(p.kind is p.VAR_KEYWORD for p in supported.values())
        defaults = aten.defaults(node)
        for key, value in rest:
            if key not in supported and not everything and (key not in defaults or value != defaults[key]):
                raise RefusedError(f"has {key}={value!r}, which is not supported")
        named = {key: value for key, value in rest if key in supported or everything}
        required = [p for p in supported.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        if any(p.name not in ("b", "input", *named) for p in required):
            raise RefusedError(f"is called as {node.target}, which is not supported")
        if name in OPERATIONS:
            return OPERATIONS[name](self.builder, first, **named)
        assert isinstance(first, Value)
        for key, x in named.items():
            named[key] = self.builder.number(x, key) if isinstance(x, Constant) else x
        return self.builder.apply(first, activation(name, named))

    def _folded(self, target: OpOverload, name: str, given: dict[str, Any], changes: bool) -> object:
        """An operation on constants alone. On the model's numbers only those that round nothing are carried out."""
        leaves = tree_leaves(given)
        constants = [leaf for leaf in leaves if isinstance(leaf, Constant)]
        created = all(c.created for c in constants)
        if changes and not created:
            raise RefusedError("changes the model's own numbers: a forward that only computes is accepted")
        if any(leaf is BATCH for leaf in leaves):
            raise RefusedError("creates a tensor of the batch size: a result must not depend on it")
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise RefusedError("draws random numbers: a result that depends on the input alone is accepted")
        if target.namespace != "aten":
            raise RefusedError("is not supported")
        if not created and name not in REARRANGES:
            raise RefusedError(OWN_NUMBERS)
        if "empty" in name:
            raise RefusedError("leaves its numbers undefined: give them, as by torch.zeros")
        with torch.no_grad():
            plain = fx.node.map_aggregate(given, lambda x: x.tensor if isinstance(x, Constant) else x)
            result = target(**plain)
        if not isinstance(result, Tensor):
            raise RefusedError("is not supported on constants")
        fresh = created or name == "lift_fresh_copy"  # python's numbers, which torch.export keeps as a tensor
        return Constant(result, constants[0].name if constants else "a tensor created in forward", fresh)

    def _stand_in(self, node: fx.Node) -> object:
        """In place of something refused, a value of its shape, so that what follows is inspected as well."""
        shape = self._features(node)
        return _UNKNOWN if shape is None else Value(0, shape)

    def _features(self, node: fx.Node) -> Shape | None:
        """The shape of a result without the batch axis; None if its first axis is another one."""
        fake = node.meta.get("val")
        sizes = tuple(fake.shape) if isinstance(fake, Tensor) else ()
        keeps = len(sizes) > 1 and str(sizes[0]) == self._batch and all(type(n) is int for n in sizes[1:])
        return sizes[1:] if keeps else None


def _shown(node: fx.Node) -> str:
    """How messages name an operation: 'aten.relu_'."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.replace("::", ".")
    return str(getattr(node.target, "__name__", node.target))


def _live(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that the output is computed from, and those that write to memory."""
    found: set[fx.Node] = set()
    todo = [node for node in graph.nodes if node.op == "output" or aten.written(node)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found
