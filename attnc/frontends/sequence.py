"""The translator of sequence models: embeddings, norms, attention between tokens, and what stands around them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from attnc import functions
from attnc.errors import Problem, UnsupportedError
from attnc.frontends import aten
from attnc.frontends.activations import ACTIVATIONS, RefusedError, activation
from attnc.frontends.attention import Scores
from attnc.frontends.capture import Captured
from attnc.frontends.operations import HINTS, Value
from attnc.frontends.problems import part_name
from attnc.frontends.sequence_operations import OPERATIONS, normed
from attnc.frontends.transformers.expressions import NotElementwiseError, Reading, function_of
from attnc.frontends.transformers.norms import LAST, NormRead, dtypes_between, norms_in
from attnc.frontends.views import IDS, SequenceBuilder, View, plain
from attnc.functions import Function
from attnc.program import Pointwise, Program
from attnc.program.step import Shape

_UNKNOWN = object()  # the result of something that was refused: whatever reads it is not refused again
# operations that arrange numbers: they are carried out on the positions of a view
ARRANGES = frozenset({
    "view", "_unsafe_view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "unsqueeze", "squeeze", "t",
    "numpy_T", "mT", "transpose", "permute", "movedim", "select", "slice", "narrow", "expand", "expand_as", "repeat",
    "repeat_interleave", "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "index", "index_select", "flip", "roll",
}) | aten.COPIES  # fmt: skip
KNOWN = frozenset({*OPERATIONS, *ACTIVATIONS, *ARRANGES, *aten.CASTS, *aten.DROPOUTS, "sym_size"})
# operations that only sequence models apply to what they compute from the input
_SEQUENCE = frozenset({"layer_norm", "rms_norm", "rsqrt", "scaled_dot_product_attention", "embedding"})
_PRODUCTS = ("matmul", "bmm", "baddbmm", "mm")
_ELEMENTWISE = frozenset({*ACTIVATIONS, "erf", "add", "sub", "mul", "div", "neg"})
_LONGEST = 16  # operations of an activation that is written out
_SHAPES = frozenset({"view_as", "reshape_as", "expand_as"})  # of which the second tensor gives a shape only

_NARROW = "subtracts the mean in float32 inside of a float64 model: leave the cast out"


def is_sequence(captured: Captured) -> bool:
    """Whether a graph has norms, embeddings or products of two values, as attention between tokens has."""
    depends = set(captured.inputs)
    for node in captured.graph.nodes:
        data = [x for x in node.all_input_nodes if x in depends]
        if data and node.op == "call_function":
            depends.add(node)
            if aten.name(node) in _SEQUENCE or (aten.name(node) in _PRODUCTS and len(data) > 1):
                return True
    return any(True for _ in norms_in(captured))


def sequence_program(captured: Captured, shape: Shape, dtype: np.dtype[np.floating], *, ids: bool) -> Program:
    """The program of a graph, which is read for batches of two sizes: both must give the same."""
    size = captured.inputs[0].meta["val"].shape[0]
    programs = []
    for batch in (size,) if type(size) is int else (2, 3):
        builder = SequenceBuilder(shape, dtype, batch, ids=ids)
        output = SequenceTranslator(builder, captured).output()
        if output is None or builder.problems:
            raise UnsupportedError("the module is refused", builder.problems)
        programs.append(builder.program(output))
    if len({program.digest() for program in programs}) > 1:
        reason = "computes with the batch size: a result must not depend on it"
        raise UnsupportedError("the module is refused", [Problem(part_name("", captured.module), reason)])
    return programs[0]


class SequenceTranslator:
    """Walks a captured graph, for `builder.batch` inputs at once. What does not depend on the input is computed by torch."""

    def __init__(self, builder: SequenceBuilder, captured: Captured) -> None:
        self.builder, self._captured = builder, captured
        self._known: dict[fx.Node, Any] = {}
        written = ((aten.origin(node, casts=True, half=True), rest) for node, *rest in norms_in(captured))
        # the last operation of a norm that is written out → the node that enters, and the norm
        self._norms: dict[fx.Node, Any] = {node: rest for node, rest in written if aten.name(node) in LAST}
        self._activations: dict[fx.Node, tuple[fx.Node, str]] = {}  # product → the same, and the function

    def output(self) -> Value | None:
        """The value that the forward returns; None if it was refused."""
        live, returned = self._live(), None
        for node in self._captured.graph.nodes:
            if node not in live:
                continue
            self.builder.name, where = self._captured.path(node), self._captured.where(node)
            schema = getattr(node.target, "_schema", None)
            self.builder.where = where if schema is None else f"{schema.name.replace('::', '.')} in {where}"
            try:
                if node.op == "output":
                    returned = self._returned()
                else:
                    self._known[node] = self._node(node)
            except RefusedError as refusal:
                self._known[node] = self._stand_in(node)
                self.builder.report(str(refusal))
        return returned

    def _stand_in(self, node: fx.Node) -> object:
        """A value of the same shape for an operation that was refused, so that the rest of the graph is read too."""
        batch, *sizes = aten.shape(node) or (0,)
        fixed = all(type(n) is int for n in sizes)
        if self.builder.ids or not sizes or type(batch) is int or not fixed:
            return _UNKNOWN
        return plain(Value(0, tuple(sizes)), self.builder.batch)

    def _live(self) -> set[fx.Node]:
        """The nodes that the output is computed from; what is inside of a norm or of an activation is not."""
        found: set[fx.Node] = set()
        todo = [node for node in self._captured.graph.nodes if node.op == "output"]
        while todo:
            node = todo.pop()
            if node in found:
                continue
            found.add(node)
            if node.op == "output":
                last = self._captured.outputs[-1]  # tensors changed in place stand before it
                todo += [last] if isinstance(last, fx.Node) else []
            elif node in self._norms:
                todo.append(self._norms[node][0])
            elif (written := _written_out(node)) is not None:
                self._activations[node] = written
                todo.append(written[0])
            else:
                todo += node.all_input_nodes
        return found

    def _returned(self) -> Value | None:
        captured, b = self._captured, self.builder
        if not captured.structure.is_leaf():
            kind = captured.structure.type.__name__
            raise RefusedError(f"returns a {kind}: one tensor that depends on the input is accepted")
        last = captured.outputs[-1]
        result = self._known[last] if isinstance(last, fx.Node) else last
        if result is _UNKNOWN:
            return None
        if not isinstance(result, View):
            raise RefusedError("returns no value that is computed from the input")
        found = b.ordered(result)
        in_order = torch.equal(found.index.reshape(-1), torch.arange(found.index.numel()))
        if not in_order or len(found.index) != b.batch:
            raise RefusedError("returns a tensor whose axes are not (batch, tokens, features)")
        return b.reshaped(found.value, tuple(found.index.shape[1:]))

    def _node(self, node: fx.Node) -> object:
        captured = self._captured
        if node.op == "placeholder":
            data = node in captured.inputs
            return plain(self.builder.input, self.builder.batch) if data else captured.tensors[node.name]
        if node.op != "call_function":
            return _UNKNOWN  # the body of a higher-order operation, which is refused where it is called
        if node in self._norms:
            return self._norm(node, *self._norms[node])
        if node in self._activations:
            leaf, name = self._activations[node]
            return self._activated(node, self._known[leaf], functions.get(name))
        given = fx.node.map_arg(aten.arguments(node), self._known.__getitem__)
        leaves, name = tree_leaves(given), aten.name(node)
        if not isinstance(node.target, OpOverload):
            return self._python(node, list(given.values()))
        if any(leaf is _UNKNOWN for leaf in leaves):
            if name not in KNOWN:
                raise RefusedError(HINTS.get(name, "is not supported"))
            return _UNKNOWN
        if not any(isinstance(leaf, View | Scores) for leaf in leaves):
            return self._folded(node, name)
        try:
            return self._operation(node, name, given, leaves)
        except (RuntimeError, TypeError, IndexError) as problem:
            reason = str(problem).partition("\n")[0]
            raise RefusedError(f"is called as {node.target}, which is not supported ({reason})") from None

    def _folded(self, node: fx.Node, name: str) -> object:
        """An operation on numbers that do not depend on the input, as torch carries it out, in the dtype of the model."""
        assert isinstance(node.target, OpOverload)
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise RefusedError("draws random numbers: a result that depends on the input alone is accepted")
        if "empty" in name:
            raise RefusedError("leaves its numbers undefined: give them, as by torch.zeros")
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._known.__getitem__)
        with torch.no_grad():
            return node.target(*args, **kwargs)

    def _python(self, node: fx.Node, given: list[Any]) -> object:
        """Arithmetic of sizes, and parts of tuples."""
        leaves = tree_leaves(given)
        if any(leaf is _UNKNOWN for leaf in leaves):
            return _UNKNOWN
        shown = str(getattr(node.target, "__name__", node.target))
        numbers = all(isinstance(leaf, int | float) for leaf in leaves)
        if callable(node.target) and (node.target is operator.getitem or numbers):
            return node.target(*given)
        if "autocast" in shown:
            raise RefusedError("rounds to a narrower type: leave torch.autocast out of forward")
        raise RefusedError(f"{shown} is not supported")

    def _operation(self, node: fx.Node, name: str, given: dict[str, Any], leaves: list[Any]) -> object:
        (first, *others), b = given.values(), self.builder
        if name == "sym_size":
            return (first.index.shape if isinstance(first, View) else first.shape)[given["dim"]]
        ids = b.ids and any(isinstance(leaf, View) and leaf.value.index == 0 for leaf in leaves)
        if ids and name not in ARRANGES | aten.CASTS | {"embedding"}:
            raise RefusedError(IDS)
        if name in aten.CASTS:
            accepted = {torch.int32, torch.int64} if ids else {torch.float32, torch.float64}
            if not {aten.dtype(node), aten.dtype(_source(node))} <= accepted:
                raise RefusedError(f"casts to {aten.dtype(node)}: float32 and float64 are accepted")
            return first  # the program has the numbers before they are rounded
        if name in aten.DROPOUTS:
            if given["train"] is not False and given["p"] != 0:
                raise RefusedError(
                    "is random with training=True: give training=False, or training=self.training"
                )
            return first
        if name in ARRANGES:
            return self._arranged(node, name, first, tree_leaves(others))
        if name in ACTIVATIONS:
            rest = {k: v for k, v in list(given.items())[1:] if k != "generator"}
            rest = {k: v.item() if isinstance(v, Tensor) and v.numel() == 1 else v for k, v in rest.items()}
            if any(isinstance(v, View | Scores | Tensor) for v in rest.values()):
                raise RefusedError("has a parameter that is not a single number")
            return self._activated(node, first, activation(name, rest))
        if name not in OPERATIONS:
            raise RefusedError(HINTS.get(name, "is not supported"))
        if name == "layer_norm" and b.dtype == np.float64 and aten.dtype(node) != torch.float64:
            raise RefusedError(_NARROW)
        return OPERATIONS[name](b, **{"x" if k in ("self", "input") else k: v for k, v in given.items()})

    def _arranged(self, node: fx.Node, name: str, first: object, others: list[Any]) -> object:
        """The operation, carried out on the positions and signs of a view."""
        results = node.meta["val"] if isinstance(node.meta["val"], list | tuple) else [node.meta["val"]]
        if any(result.dtype is not aten.dtype(_source(node)) for result in results):
            raise RefusedError("reads the bits of numbers as others")
        if name not in _SHAPES and any(isinstance(x, View | Scores) for x in others):
            raise RefusedError("is accepted on one value, with constant positions")
        if not isinstance(first, View | Scores):
            raise RefusedError("takes positions from the input: constant ones are accepted")
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._known.__getitem__)

        def on(part: Callable[[View], Tensor]) -> Any:
            given = tree_map(lambda x: part(x) if isinstance(x, View) else x, (args[1:], kwargs))
            start = part(first) if isinstance(first, View) else torch.empty(first.shape, device="meta")
            return node.target(start, *given[0], **given[1])  # type: ignore[operator]

        if isinstance(first, Scores):
            if name not in aten.COPIES | {
                "view",
                "reshape",
                "_unsafe_view",
                "unsqueeze",
                "squeeze",
                "expand",
                "slice",
            }:
                raise RefusedError("rearranges attention scores")
            return first.reshaped(on(lambda view: view.index).shape)
        index = on(lambda view: view.index)
        sign = on(lambda view: view.signs) if first.sign is not None else None
        if isinstance(index, Tensor):
            return View(first.value, index, sign)
        return [View(first.value, part, None if sign is None else sign[k]) for k, part in enumerate(index)]

    def _activated(self, node: fx.Node, x: object, f: Function | Pointwise) -> object:
        if x is _UNKNOWN:
            return x
        if not isinstance(x, View):
            raise RefusedError("is applied to attention scores: they may be scaled and shifted by constants")
        found = self.builder.whole(x)
        return View(self.builder.apply(found.value, f), self._in_shape(node, found.index))

    def _in_shape(self, node: fx.Node, index: Tensor) -> Tensor:
        """Positions in the shape of a result, which has the numbers of a tensor in the same order."""
        sizes = [n if type(n) is int else -1 for n in aten.shape(node) or ()]
        if sizes.count(-1) > 1:
            raise RefusedError("has more than one size that depends on the batch")
        return index.reshape(sizes)

    def _norm(self, node: fx.Node, entering: fx.Node, norm: NormRead) -> object:
        x = self._known[entering]
        if not isinstance(x, View):
            return _UNKNOWN
        if norm.half:
            raise RefusedError("rounds to half precision inside of a norm: leave the cast out")
        weight, centred = norm.weight, norm.kind == "layer"
        if centred and self.builder.dtype == np.float64 and torch.float32 in dtypes_between(node, entering):
            raise RefusedError(_NARROW)
        if weight is not None and norm.one_plus is not None:
            weight = 1.0 + weight.detach().to(norm.one_plus)
        found = normed(self.builder, x, norm.features, weight, norm.bias, norm.eps, centred=centred)
        return View(found.value, self._in_shape(node, found.index))


def _source(node: fx.Node) -> fx.Node:
    """The tensor that an operation is applied to."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        raise RefusedError("is accepted with a tensor as its first argument")
    return node.args[0]


def _written_out(node: fx.Node) -> tuple[fx.Node, str] | None:
    """A node, and the function of it that a product computes: an activation that is written as several operations."""
    if aten.name(node) not in ("mul", "div") or not isinstance(node.target, OpOverload):
        return None
    inside, leaves = [node], dict[fx.Node, None]()
    for x in inside:
        before = [aten.origin(y) for y in x.all_input_nodes] if aten.name(x) in _ELEMENTWISE else []
        leaves.update(dict.fromkeys(before))
        inside += [y for y in dict.fromkeys(before) if y not in inside] if len(inside) < _LONGEST else []
    for leaf in leaves:
        try:
            found = Reading(node, {leaf}.__contains__)
        except NotElementwiseError:
            continue
        if len(found.nodes) > 1 and (name := function_of(found.expression)) is not None:
            return leaf, name
    return None
