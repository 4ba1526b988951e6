"""graph_to_steps: a traced forward, node by node, into the steps of a program."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from attnc.frontends.activations import ACTIVATIONS, SPACES, Operation
from attnc.frontends.builder import Builder, Constant, RefusedError, Value
from attnc.frontends.layers import HINTS, LAYERS, Layer
from attnc.frontends.operations import ARITHMETIC, BATCH, FUNCTIONAL, METHODS, SHAPING, size, transpose
from attnc.frontends.problems import called
from attnc.frontends.trace import ROOT

_CHANGING = (
    setattr,
    *(getattr(operator, name) for name in ("setitem", "delitem", "iadd", "isub", "imul", "itruediv", "ipow")),
)
_UNKNOWN = object()  # the result of something that was refused: whatever reads it is not refused again


def _functions() -> dict[object, tuple[Operation, bool]]:
    """torch's functions: what each does, and whether it does so in place."""
    found: dict[object, tuple[Operation, bool]] = {}
    for name, operation in {
        **ACTIVATIONS,
        **ARITHMETIC,
        **SHAPING,
        "transpose": transpose,
        "t": transpose,
    }.items():
        for space in SPACES:
            for suffix in ("", "_"):
                target = getattr(space, name + suffix, None)
                if target is not None:
                    found[target] = operation, bool(suffix)
    found |= {getattr(F, name): (operation, False) for name, operation in FUNCTIONAL.items()}
    by_operator = {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "matmul": "matmul", "neg": "neg", "pow": "pow", "abs": "abs",
    }  # fmt: skip
    known = ACTIVATIONS | ARITHMETIC
    found |= {getattr(operator, name): (known[meant], False) for name, meant in by_operator.items()}
    in_place = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "ipow": "pow"}
    found |= {getattr(operator, name): (known[meant], True) for name, meant in in_place.items()}
    return found | {abs: (known["abs"], False), torch.mm: (METHODS["mm"], False)}


def _methods() -> dict[str, tuple[Operation, bool]]:
    found: dict[str, tuple[Operation, bool]] = {}
    for name, operation in {**ACTIVATIONS, **ARITHMETIC, **SHAPING, **METHODS}.items():
        for suffix in ("", "_"):
            if hasattr(Tensor, name + suffix):
                found[name + suffix] = operation, bool(suffix)
    return found


FUNCTIONS, TENSOR_METHODS = _functions(), _methods()
_INPUT_IS_VALUE = {
    operation
    for operation, _ in [*FUNCTIONS.values(), *TENSOR_METHODS.values()]
    if inspect.signature(operation).parameters["input"].annotation == "Value"
}


class Translator:
    """Walks a graph in the order of execution, with the value of every node so far."""

    def __init__(self, builder: Builder, root: nn.Module, opaque: frozenset[str]) -> None:
        self.builder, self._root, self._opaque = builder, root, opaque
        self._known: dict[fx.Node, object] = {}

    def output(self, graph: fx.Graph) -> Value | None:
        """The value that the forward returns, or None where that was refused."""
        live = _live(graph, self._root)
        returned: object = _UNKNOWN
        for node in graph.nodes:
            self.builder.where, self.builder.name = self._place(node)
            try:
                if node.op == "output":
                    returned = self._returned(self._read(node.args[0]))
                else:
                    self._known[node] = self._node(node)
            except RefusedError as refusal:
                self._known[node] = _UNKNOWN
                if node in live:
                    self.builder.report(str(refusal))
        return returned if isinstance(returned, Value) else None

    def _node(self, node: fx.Node) -> object:
        if node.op == "placeholder":
            return self.builder.input
        if node.op == "get_attr":
            return self._constant(str(node.target))
        args, kwargs = self._read(node.args), self._read(node.kwargs)
        if _holds(_UNKNOWN, (args, kwargs)):
            return self._behind_unknown(node)
        if node.op == "call_module":
            return self._module(node, args, kwargs)
        if node.op == "call_method":
            return self._method(node, args, kwargs)
        return self._function(node, args, kwargs)

    def _read(self, given: Any) -> Any:
        look_up: Any = self._known.__getitem__
        return fx.node.map_arg(given, look_up)

    def _returned(self, result: object) -> object:
        if result is _UNKNOWN or isinstance(result, Value):
            return result
        what = "its own numbers" if isinstance(result, Constant) else f"a {_plain_name(result)}"
        raise RefusedError(f"returns {what}: one tensor that depends on the input is accepted")

    def _constant(self, target: str) -> object:
        name = target.removeprefix(f"{ROOT}.")
        found: Any = self._root
        for attribute in target.split("."):
            found = getattr(found, attribute)
        if not isinstance(found, Tensor):
            raise RefusedError(f"reads {name}, a {type(found).__name__}: tensors and numbers are accepted")
        return Constant(
            found, f"a tensor made in forward ({target})" if name.startswith("_tensor_") else name
        )

    def _behind_unknown(self, node: fx.Node) -> object:
        """What follows something refused is still looked at: all problems are told at once."""
        if node.op == "call_module":
            module = self._root.get_submodule(str(node.target))
            layer = self._layer(module)
            features = getattr(module, "in_features", getattr(module, "num_features", 1))
            if layer is not None and not isinstance(module, (nn.Flatten, nn.Unflatten)):
                layer(self.builder, module, Value(0, (features,), 0), self.builder.name)
            return _UNKNOWN
        known = TENSOR_METHODS if node.op == "call_method" else FUNCTIONS
        if node.target not in known and not _is_python(node.target):
            raise RefusedError("is not supported")
        return _UNKNOWN

    def _layer(self, module: nn.Module) -> Layer | None:
        """What a module does; None where its problem is told already."""
        if self.builder.name in self._opaque:
            return None
        layer = LAYERS.get(type(module))
        if layer is None:
            hint = HINTS.get(type(module).__name__)
            raise RefusedError(f"is not supported{': ' + hint if hint else ''}")
        return layer

    def _module(self, node: fx.Node, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        module = self._root.get_submodule(str(node.target))
        layer = self._layer(module)
        if layer is None:
            return _UNKNOWN
        given = [*args, *kwargs.values()]
        if len(given) != 1 or not isinstance(given[0], Value):
            raise RefusedError("is called on something else than one value that depends on the input")
        result = layer(self.builder, module, given[0], self.builder.name)
        return self._overwritten(given[0], result) if getattr(module, "inplace", False) is True else result

    def _function(self, node: fx.Node, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        target = node.target
        assert callable(target)
        if target is getattr:
            return self._attribute(*args)
        if _is_python(target) and not _tensors((args, kwargs)):
            return _evaluated(target, args, kwargs)
        if target not in FUNCTIONS:
            raise RefusedError("is not supported")
        return self._call(*FUNCTIONS[target], args, kwargs)

    def _method(self, node: fx.Node, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        name = str(node.target)
        if name not in TENSOR_METHODS or not isinstance(args[0], (Value, Constant)):
            raise RefusedError("is not supported")
        return self._call(*TENSOR_METHODS[name], args, kwargs)

    def _call(
        self, operation: Operation, in_place: bool, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        try:
            bound = inspect.signature(operation).bind(self.builder, *args, **kwargs)
        except TypeError as problem:
            raise RefusedError(f"is called in a way that is not supported: {problem}") from None
        given = bound.arguments.get("input")
        in_place = in_place or bound.arguments.get("inplace", False) is not False
        if in_place and not isinstance(given, Value):
            raise RefusedError("changes the model's own numbers: a forward that only computes is accepted")
        if operation in _INPUT_IS_VALUE and not isinstance(given, Value):
            raise RefusedError("works on the model's own numbers, not on a value that depends on the input")
        result = operation(*bound.args, **bound.kwargs)
        if in_place and isinstance(given, Value) and isinstance(result, Value):
            return self._overwritten(given, result)
        return result

    def _overwritten(self, old: Value, new: Value) -> Value:
        """After a change in place, every name of that memory means the new numbers, in its own shape."""
        if new.shape != old.shape:
            raise RefusedError(
                f"changes the shape {old.shape} to {new.shape} in place: leave the trailing _ off"
            )
        for node, value in self._known.items():
            if isinstance(value, Value) and value.storage == old.storage:
                now = self.builder.reshaped(new, value.shape)
                self._known[node] = Value(now.index, now.shape, old.storage)
        return Value(new.index, new.shape, old.storage)

    def _attribute(self, owner: object, name: object, *default: object) -> object:
        if isinstance(owner, (Value, Constant)):
            if name == "shape":
                return size(self.builder, owner)
            if name == "ndim":
                return len(size(self.builder, owner))  # type: ignore[arg-type]
            if name in ("T", "mT"):
                return transpose(self.builder, owner)
        raise RefusedError(f"reads .{name}: .shape, .ndim and a parameter's .T are accepted")

    def _place(self, node: fx.Node) -> tuple[str, str]:
        """How messages name the node, and the name of its steps: the module that it stands in."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(stack[-1][0]) if stack else ROOT
        name = path.removeprefix(ROOT).removeprefix(".")
        part = self._root.get_submodule(path)
        if node.op == "call_module":
            return called(name, part), name
        what = node.target if isinstance(node.target, str) else _title(node.target)
        inside = called(name, part)
        return inside if node.op in ("output", "placeholder") else f"{what} in {inside}", name


def _plain_name(result: object) -> str:
    """fx has lists and dicts of its own."""
    return next(
        (kind.__name__ for kind in (tuple, list, dict) if isinstance(result, kind)), type(result).__name__
    )


def _title(target: Callable[..., Any]) -> str:
    return str(getattr(target, "__name__", target))


def _live(graph: fx.Graph, root: nn.Module) -> set[fx.Node]:
    """The nodes that the output is computed from, or that may change what it is computed from."""
    found: set[fx.Node] = set()
    todo = [node for node in graph.nodes if node.op == "output" or not _is_pure(node, root)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def _is_pure(node: fx.Node, root: nn.Module) -> bool:
    """Whether a node certainly changes nothing: torch marks what works in place by a trailing _, `out` or `inplace`."""
    if node.op == "call_module":
        return getattr(root.get_submodule(str(node.target)), "inplace", False) is False
    if (
        any(arg is True for arg in node.args)
        or node.kwargs.get("inplace", False) is not False
        or "out" in node.kwargs
    ):
        return False
    if isinstance(node.target, str):
        return node.op != "call_method" or not node.target.endswith("_")
    home = getattr(node.target, "__module__", None) or "torch"  # torch's built-in functions have none
    known = home.split(".")[0] in ("torch", "_operator", "builtins", "math")
    return known and not _title(node.target).endswith("_") and node.target not in _CHANGING


def _holds(wanted: object, given: Any) -> bool:
    if isinstance(given, (tuple, list)):
        return any(_holds(wanted, x) for x in given)
    if isinstance(given, dict):
        return _holds(wanted, list(given.values()))
    if isinstance(given, slice):
        return _holds(wanted, (given.start, given.stop, given.step))
    return given is wanted


def _tensors(given: Any) -> bool:
    if isinstance(given, (tuple, list)):
        return any(map(_tensors, given))
    if isinstance(given, dict):
        return any(map(_tensors, given.values()))
    return isinstance(given, (Value, Constant))


def _is_python(target: object) -> bool:
    return target is getattr or getattr(target, "__module__", None) in ("_operator", "math")


def _evaluated(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Sizes are numbers that python computes with, all but the batch's; tuples of sizes are cut and joined."""
    joins = target is operator.add and all(isinstance(arg, tuple) for arg in args)
    if target is not operator.getitem and not joins and _holds(BATCH, args):
        raise RefusedError("computes with the batch size: a result must not depend on it")
    try:
        return target(*args, **kwargs)
    except Exception as problem:
        raise RefusedError(f"fails: {type(problem).__name__}: {problem}") from None
