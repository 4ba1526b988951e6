"""The exact meaning of a captured graph: every output in ball arithmetic, for the given inputs.

Weights, constants and inputs are exact numbers, and each operation on floats is the operation on real numbers that it stands for:
casts between float types change nothing. Integers, booleans and shapes are those that torch computes, also where a model derives
them from floats that depend on no input and no parameter (the buckets of relative positions)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flint import arb
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from attnc.errors import Problem, UnsupportedError
from attnc.frontends import aten
from attnc.frontends.activations import RefusedError
from attnc.frontends.capture import Captured
from attnc.frontends.exact_operations import run, to_balls
from attnc.functions.balls import working
from attnc.program.step import Balls

Meaning = Callable[..., Balls]
_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")
# operations that move numbers, with the arguments that hold them if that is not `self` alone
_SELF = (
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "t", "permute",
    "movedim", "swapaxes", "numpy_T", "mT", "expand", "expand_as", "view_as", "reshape_as", "slice", "select", "narrow",
    "split", "split_with_sizes", "chunk", "unbind", "repeat", "repeat_interleave", "index", "index_select", "gather",
    "tril", "triu", "roll", "flip", "unfold", "diagonal",
)  # fmt: skip
_MOVES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_SELF, ("self",)),
    "cat": ("tensors",), "stack": ("tensors",), "where": ("self", "other"), "masked_fill": ("self", "value"),
    "embedding": ("weight",), "copy": ("self", "src"), "fill": ("self", "value"), "slice_scatter": ("self", "src"),
    "select_scatter": ("self", "src"), "index_put": ("self", "values"), "constant_pad_nd": ("self", "value"),
    "pad": ("self", "value"),
}  # fmt: skip
_CREATES = (
    "full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "arange",
    "scalar_tensor", "eye",
)  # fmt: skip


def exact_outputs(
    captured: Captured,
    given: Sequence[object],
    precision: int,
    marks: Mapping[str, Meaning] | None = None,
) -> list[Balls | None]:
    """Each output of a graph as balls at `precision` bits; None for outputs that are not floats. `given` are the inputs,
    flattened; `marks` the meaning of marked operations by the names of their marks.

    >>> from attnc.frontends.capture import capture
    >>> layer, x = torch.nn.Softmax(-1), torch.tensor([0.0, 1.0])
    >>> exact_outputs(capture(layer, (x,), grad=False), [x], 64)[0][0].str(18, radius=False)
    '0.268941421369995121'
    """
    with working(precision), torch.no_grad():
        graph = _Graph(captured, given, marks or {})
        wanted = [out if isinstance(out, fx.Node) and _is_real(out) else None for out in captured.outputs]
        graph.run([out for out in wanted if out is not None])
        return [None if out is None else to_balls(graph.values[out]) for out in wanted]


def _is_real(node: fx.Node) -> bool:
    """Whether a node computes floats."""
    return any(
        isinstance(part, Tensor) and part.is_floating_point() for part in tree_leaves(node.meta.get("val"))
    )


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Every argument of an operation by its name, as it was given."""
    listed = node.target._schema.arguments  # type: ignore[union-attr]
    named = {a.name: given for a, given in zip(listed, node.args, strict=False)}
    return {a.name: named.get(a.name, node.kwargs.get(a.name, a.default_value)) for a in listed}


class _Graph:
    """Values by node: balls, or tensors whose numbers are exact, or what else an operation takes."""

    def __init__(self, captured: Captured, given: Sequence[object], marks: Mapping[str, Meaning]) -> None:
        self.captured, self.marks = captured, marks
        if len(given) != len(captured.inputs):
            raise _refusal(captured, f"is recorded with {len(captured.inputs)} inputs, not {len(given)}")
        self.values: dict[fx.Node, Any] = dict(zip(captured.inputs, given, strict=True))
        for node in captured.graph.nodes:
            if node.op == "placeholder" and node.name in captured.tensors:
                self.values[node] = captured.tensors[node.name].detach()
        self.stored = set(self.values)
        self.executed: dict[fx.Node, Any] = {}
        self.given = set(captured.inputs)  # and what depends on them, shapes apart
        for node in captured.graph.nodes:
            if not self.given.isdisjoint(node.all_input_nodes):
                self.given.add(node)
        if captured.changed:
            raise _refusal(captured, f"changes {captured.changed[0]} in place when it runs")
        for node, value in self.values.items():
            if isinstance(value, Tensor) and value.is_complex():
                raise _refusal(captured, f"has a complex tensor, {node.name}")

    def run(self, wanted: Sequence[fx.Node]) -> None:
        """Compute the wanted values; values that nothing reads any more are freed."""
        needed, todo = set(), list(wanted)
        while todo:
            node = todo.pop()
            if node not in needed:
                needed.add(node)
                todo += node.all_input_nodes
        order = [node for node in self.captured.graph.nodes if node in needed and node not in self.stored]
        last = {read: node for node in order for read in node.all_input_nodes}
        for node in order:
            try:
                self.values[node] = self._value(node)
            except RefusedError as problem:
                operation = aten.name(node) or node.op
                raise _refusal(
                    self.captured, f"{operation} {problem}", self.captured.where(node)
                ) from problem
            for read in node.all_input_nodes:
                if last[read] is node and read not in wanted and read not in self.stored:
                    del self.values[read]

    def _value(self, node: fx.Node) -> Any:
        operation = aten.name(node)
        if operation in _CHECKS:
            return None
        if operation == "getitem":
            return self._read(node.args[0])[node.args[1]]
        if node.op != "call_function" or getattr(node.target, "_schema", None) is None:
            raise RefusedError("is not an operation of torch")
        given = {key: self._read(value) for key, value in _arguments(node).items()}
        if operation.startswith("attnc."):
            mark = str(given.pop("name"))
            if mark not in self.marks:
                raise RefusedError(f"is {mark}, which no report covers")
            return self.marks[mark](*given.values())
        if operation in aten.COPIES or (operation in aten.DROPOUTS and given.get("train") is False):
            return next(iter(given.values()))
        if operation in aten.CASTS:
            return self._cast(node, given["self"])
        if not _is_real(node):
            return self._integers(node)
        if operation in _MOVES:
            return self._moved(node, given, _MOVES[operation])
        if operation in _CREATES:
            return self._created(node)
        return run(
            operation, {key: value for key, value in given.items() if key not in ("dtype", "half_to_float")}
        )

    def _read(self, given: Any) -> Any:
        return tree_map(lambda part: self.values[part] if isinstance(part, fx.Node) else part, given)

    def _cast(self, node: fx.Node, x: Any) -> Any:
        if not _is_real(node):
            return self._integers(node)
        if isinstance(x, np.ndarray) or x.is_floating_point():
            return x
        if not bool((x.double().to(x.dtype) == x).all()):
            raise RefusedError("casts integers that float64 cannot represent")
        return x.double()

    def _moved(self, node: fx.Node, given: dict[str, Any], data: tuple[str, ...]) -> Any:
        """Run the operation on the places of the numbers in one list, whose entry 0 is the number 0."""
        if "dtype" in given or given.get("accumulate"):
            raise RefusedError("reads the bits of numbers as another dtype, or adds numbers up")
        pool: list[Balls] = [np.array([arb(0)], dtype=object)]

        def places(x: Any) -> Any:
            if x is None:
                return x
            numbers, start = to_balls(x), sum(part.size for part in pool)
            pool.append(numbers.reshape(-1))
            found = torch.arange(start, start + numbers.size).reshape(numbers.shape)
            return int(found) if isinstance(x, (int, float)) else found

        held = [
            value
            for key in data
            for value in (given[key] if isinstance(given[key], (list, tuple)) else [given[key]])
        ]
        exact = all(isinstance(x, Tensor) and x.is_floating_point() for x in held)
        if exact and len({x.dtype for x in held}) == 1:  # else torch rounds to the dtype of `self`
            return _call(
                node, {key: x.contiguous() if key == "self" else x for key, x in given.items()}
            )  # strides for view
        moved = {key: tree_map(places, value) if key in data else value for key, value in given.items()}
        moved = {key: tree_map(_stand_in, value) for key, value in moved.items()}
        numbers = np.concatenate(pool)
        return tree_map(lambda found: np.asarray(numbers[found.numpy()], dtype=object), _call(node, moved))

    def _created(self, node: fx.Node) -> Tensor:
        """Constants in float64: python's numbers are float64."""
        given = {key: tree_map(_stand_in, self._read(value)) for key, value in _arguments(node).items()}
        found: Tensor = _call(node, given | {"dtype": torch.float64})
        if aten.name(node) == "arange" and not bool((found == found.round()).all()):
            raise RefusedError("creates fractions, which are rounded")
        return found

    def _integers(self, node: fx.Node) -> Any:
        """Integers and booleans, as torch computes them; floats among them would be rounded."""
        found = self._as_executed(node)
        for part in tree_leaves(found):
            real = isinstance(part, Tensor) and (part.is_floating_point() or part.is_complex())
            if real or isinstance(part, (float, complex)):
                raise RefusedError("takes a float out of a tensor, or is complex")
        return found

    def _as_executed(self, node: fx.Node) -> Any:
        """What torch computes: floats in it must not depend on parameters, or on what the model is given."""
        if node in self.executed:
            return self.executed[node]
        if _is_real(node) and node in self.given:
            raise RefusedError("takes integers from values of the model")
        if node in self.stored:
            found = self.values[node]
            trained = isinstance(self.captured.tensors.get(node.name), nn.Parameter)
            if trained and found.is_floating_point():
                raise RefusedError("takes integers from values of the model")
        elif aten.name(node) == "getitem":
            found = self._as_executed(node.args[0])[node.args[1]]  # type: ignore[arg-type]
        elif node.op != "call_function" or aten.name(node).startswith("attnc."):
            raise RefusedError("takes integers from values of the model")
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise RefusedError("takes integers from random numbers")
        else:
            read: dict[str, Any] = {
                key: tree_map(
                    lambda part: self._as_executed(part) if isinstance(part, fx.Node) else part, value
                )
                for key, value in _arguments(node).items()
            }
            found = _call(node, read)
        self.executed[node] = found
        return found


def _call(node: fx.Node, given: Mapping[str, Any]) -> Any:
    """torch's result for these arguments; an operation in place works on a copy."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    copied = {
        a.name: value.clone() if a.alias_info is not None and a.alias_info.is_write else value
        for a, value in ((a, given[a.name]) for a in schema.arguments)
    }
    listed = [copied.pop(a.name) for a in schema.arguments if not a.kwarg_only]
    return node.target(*listed, **copied)  # type: ignore[operator]


def _stand_in(x: Any) -> Any:
    """A tensor of the shape of an array, for operations that read the shape alone."""
    return torch.zeros(x.shape) if isinstance(x, np.ndarray) else x


def _refusal(captured: Captured, reason: str, where: str = "the model") -> UnsupportedError:
    what = f"{type(captured.module).__name__} cannot be evaluated in exact arithmetic"
    return UnsupportedError(what, [Problem(where, reason)])
