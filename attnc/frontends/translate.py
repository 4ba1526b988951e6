"""graph_to_steps: the operations that a module executes, one by one, into the steps of a program."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from attnc.frontends.activations import ACTIVATIONS
from attnc.frontends.builder import Builder, Constant, RefusedError, Value
from attnc.frontends.capture import Captured
from attnc.frontends.memory import written
from attnc.frontends.operations import BATCH, COPIES_OR_NOT, HINTS, OPERATIONS, REARRANGES

KNOWN = ACTIVATIONS | OPERATIONS
_PARAMETERS = {operation: inspect.signature(operation).parameters for operation in KNOWN.values()}
_UNKNOWN = object()  # the result of something that was refused: whatever reads it is not refused again
_STALE = object()  # memory that was written to if the layout of the input makes it shared, and else was not
_TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


class Translator:
    """Walks a captured graph in the order of execution, with the value of every node so far."""

    def __init__(self, builder: Builder, captured: Captured) -> None:
        self.builder, self._captured = builder, captured
        self._known: dict[fx.Node, object] = {}
        self._families: dict[int, int] = {}  # storage → the oldest storage that it may share memory with
        self._batch = str(captured.inputs[0].meta["val"].shape[0])

    def output(self) -> Value | None:
        """The value that the forward returns, or None where that was refused."""
        live = _live(self._captured)
        returned: object = _UNKNOWN
        for node in self._captured.graph.nodes:
            place = self._captured.place(node)
            self.builder.name = place.path
            self.builder.where = (
                f"{_name(node)} in {place}" if node.op == "call_function" else f"the model ({place.kind})"
            )
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
        if node.op == "placeholder":
            return self._placeholder(node)
        if node.op != "call_function":
            return _UNKNOWN  # the body of a higher-order operation, which is refused where it is called
        args, kwargs = self._read(node.args), self._read(node.kwargs)
        if not isinstance(node.target, OpOverload):
            return self._python(node, args)
        given = _bound(node.target, args, kwargs)
        if _holds(_UNKNOWN, list(given.values())):
            if _base(node.target) not in KNOWN:
                raise RefusedError(_unsupported(node.target))
            return self._stand_in(node)
        result = self._operation(node, node.target, given)
        return self._checked(node, result) if isinstance(result, Value) else result

    def _placeholder(self, node: fx.Node) -> object:
        if node in self._captured.inputs:
            return self.builder.input if node is self._captured.inputs[0] else _UNKNOWN
        return Constant(self._captured.tensors[node.name], self._captured.names[node.name])

    def _read(self, given: Any) -> Any:
        def look_up(node: fx.Node) -> Any:
            if self._known[node] is _STALE:
                raise RefusedError(
                    f"reads {node.name} after a change in place that reaches it or not, depending on the strides of "
                    "the input: leave the trailing _ (or inplace=True) off"
                )
            return self._known[node]

        return fx.node.map_arg(given, look_up)

    def _returned(self) -> object:
        captured = self._captured
        if not captured.structure.is_leaf():
            raise RefusedError(
                f"returns a {captured.structure.type.__name__}: one tensor that depends on the input is accepted"
            )
        result = self._read(captured.outputs[0])
        if result is _UNKNOWN or isinstance(result, Value):
            return result
        what = "its own numbers" if isinstance(result, Constant) else f"a {type(result).__name__}"
        raise RefusedError(f"returns {what}: one tensor that depends on the input is accepted")

    def _python(self, node: fx.Node, args: Any) -> object:
        """Arithmetic of sizes, parts of tuples, and torch's higher-order operations."""
        if _holds(_UNKNOWN, args) and getattr(node.target, "__name__", "") == "getitem":
            return self._stand_in(node)
        if _holds(BATCH, args):
            raise RefusedError("computes with the batch size: a result must not depend on it")
        if "autocast" in _name(node):
            raise RefusedError("rounds to a narrower type: leave torch.autocast out of forward")
        raise RefusedError("is not supported")

    def _operation(self, node: fx.Node, target: OpOverload, given: dict[str, Any]) -> object:
        name, changed = _base(target), written(node)
        first = next(iter(given.values()), None)
        if len(changed) > 1 or (changed and changed[0] is not node.args[0]):
            raise RefusedError("writes into a tensor that is given to it, as by out=: use what it returns")
        if not _holds_value(list(given.values())):
            return self._folded(target, given, bool(changed))
        if changed and name != "detach":
            if not isinstance(first, Value):
                raise RefusedError(
                    "changes the model's own numbers: a forward that only computes is accepted"
                )
            if self._family(first) == 0:
                raise RefusedError("changes the input in place: leave the trailing _ (or inplace=True) off")
        result = self._called(target, given)
        if changed and name != "detach" and isinstance(first, Value) and isinstance(result, Value):
            return self._overwritten(first, result)
        if name in COPIES_OR_NOT and isinstance(first, Value) and isinstance(result, Value):
            apart = self.builder.copy(result)
            self._families[apart.storage] = self._family(first)
            return apart
        return result

    def _called(self, target: OpOverload, given: dict[str, Any]) -> object:
        """The operation with those arguments that it knows; the others must have the values that torch gives them."""
        operation = KNOWN.get(_base(target))
        if operation is None:
            raise RefusedError(_unsupported(target))
        first, *rest = given.items()
        takes = _PARAMETERS[operation]
        if takes["input"].annotation == "Value" and not isinstance(first[1], Value):
            raise RefusedError("works on the model's own numbers, not on a value that depends on the input")
        everything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
        defaults = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
        for name, value in rest:
            if name not in takes and not everything and (name not in defaults or value != defaults[name]):
                raise RefusedError(f"has {name}={value!r}, which is not supported")
        named = {name: value for name, value in rest if name in takes or everything}
        if any(p.default is p.empty and n not in named for n, p in list(takes.items())[2:] if not everything):
            raise RefusedError(f"is called as {target}, which is not supported")
        return operation(self.builder, first[1], **named)

    def _folded(self, target: OpOverload, given: dict[str, Any], changes: bool) -> object:
        """An operation on constants alone. On the model's numbers only those that round nothing are carried out."""
        constants = [x for x in _leaves(list(given.values())) if isinstance(x, Constant)]
        made = all(c.made for c in constants)
        if changes and not made:
            raise RefusedError("changes the model's own numbers: a forward that only computes is accepted")
        if _holds(BATCH, list(given.values())):
            raise RefusedError("makes a tensor of the batch size: a result must not depend on it")
        name = _base(target)
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise RefusedError("draws random numbers: a result that depends on the input alone is accepted")
        if target.namespace != "aten":
            raise RefusedError("is not supported")
        if not made and name not in REARRANGES:
            raise RefusedError(
                "computes with the model's own numbers alone: store the result as a parameter or a buffer"
            )
        if "empty" in name:
            raise RefusedError("leaves its numbers undefined: give them, as by torch.zeros")
        with torch.no_grad():
            result = target(**_plain(given))
        if not isinstance(result, Tensor):
            raise RefusedError("is not supported on constants")
        fresh = made or name == "lift_fresh_copy"  # python's numbers, which torch.export keeps as a tensor
        names = [c.name for c in constants] or ["a tensor made in forward"]
        return Constant(result, names[0], made=fresh)

    def _family(self, x: Value) -> int:
        return self._families.get(x.storage, x.storage)

    def _overwritten(self, old: Value, new: Value) -> Value:
        """After a change in place, every name of that memory means the new numbers, in its own shape."""
        if new.shape != old.shape:
            raise RefusedError(
                f"changes the shape {old.shape} to {new.shape} in place: leave the trailing _ off"
            )
        for node, value in self._known.items():
            if not isinstance(value, Value):
                continue
            if value.storage == old.storage:
                now = self.builder.reshaped(new, value.shape)
                self._known[node] = Value(now.index, now.shape, old.storage)
            elif self._family(value) == self._family(old):
                self._known[node] = _STALE
        return Value(new.index, new.shape, old.storage)

    def _checked(self, node: fx.Node, result: Value) -> Value:
        """A value has the shape and the dtype that torch says the node has."""
        fake = node.meta["val"]
        own = _TORCH[self.builder.dtype]
        if fake.dtype is not own:
            raise RefusedError(f"turns a value of {own} into {fake.dtype}: leave the cast out")
        if str(fake.shape[0]) != self._batch or tuple(fake.shape[1:]) != result.shape:
            raise RefusedError(f"returns the shape {tuple(fake.shape)}, where (batch, …) is expected")
        return result

    def _stand_in(self, node: fx.Node) -> object:
        """In place of something refused, a value of its shape: what follows is looked at as well."""
        fake = node.meta.get("val")
        sizes = tuple(fake.shape) if isinstance(fake, Tensor) else ()
        if len(sizes) < 2 or str(sizes[0]) != self._batch or not all(type(n) is int for n in sizes[1:]):
            return _UNKNOWN
        return self.builder.copy(Value(0, sizes[1:], 0))


def _bound(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name, in torch's order, with torch's defaults filled in."""
    schema = target._schema.arguments
    given = dict(zip((a.name for a in schema), args, strict=False)) | kwargs
    return {
        a.name: given.get(a.name, a.default_value if a.has_default_value() else None)
        for a in schema
        if a.name in given or a.has_default_value()
    }


def _base(target: OpOverload) -> str:
    """'relu' for aten.relu.default and for aten.relu_.default; what is not ATen's keeps its namespace."""
    name = target._schema.name
    plain = name.removeprefix("aten::")
    return plain.removesuffix("_") if any(_writes(a) for a in target._schema.arguments) else plain


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _name(node: fx.Node) -> str:
    """How messages name an operation: 'aten.relu_'."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.replace("::", ".")
    return str(getattr(node.target, "__name__", node.target))


def _unsupported(target: OpOverload) -> str:
    hint = HINTS.get(_base(target))
    return f"is not supported{': ' + hint if hint else ''}"


def _live(captured: Captured) -> set[fx.Node]:
    """The nodes that the output is computed from, or that may change what it is computed from."""
    found: set[fx.Node] = set()
    todo = [
        node
        for node in captured.graph.nodes
        if node.op == "output"
        or written(node)
        or "higher_order" in str(getattr(node.target, "namespace", ""))
    ]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def _leaves(given: Any) -> list[Any]:
    if isinstance(given, (list, tuple)):
        return [leaf for part in given for leaf in _leaves(part)]
    return [given]


def _holds(wanted: object, given: Any) -> bool:
    return any(leaf is wanted for leaf in _leaves(given))


def _holds_value(given: Any) -> bool:
    return any(isinstance(leaf, Value) for leaf in _leaves(given))


def _plain(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _plain(value) for name, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [_plain(value) for value in given]
    return given.tensor if isinstance(given, Constant) else given
