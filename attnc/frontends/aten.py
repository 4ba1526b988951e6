"""The ATen operations of a captured graph: names, arguments, shapes, the memory they share, and which change no number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

HALF = frozenset({torch.bfloat16, torch.float16})
_WIDE = frozenset({torch.float32, torch.float64})
COPIES = frozenset({"clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh"})
CASTS = frozenset({"to", "_to_copy", "type_as"})
DROPOUTS = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})
# the same numbers, row by row
RESHAPES = frozenset(
    {"view", "_unsafe_view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "unsqueeze"}
)
_SPLITS = frozenset({"chunk", "split", "split_with_sizes", "tensor_split"})
_ROWS = frozenset({"transpose", "permute", "expand", "slice", "select", "narrow", "index", "index_select"})
# results that share the memory of the input or are copies, depending on its strides
_SHARED_OR_COPIED = frozenset({"flatten", "reshape", "reshape_as", "contiguous", "to", "type_as"})
# composite operations whose results are always new tensors
_FRESH = frozenset({
    "linear", "matmul", "layer_norm", "rms_norm", "group_norm", "batch_norm", "softmax", "log_softmax", "selu", "square", "diff",
    "scaled_dot_product_attention", "conv1d", "conv2d", "absolute", "subtract", "multiply", "divide", "true_divide", "negative",
    "special_expit", "clip", "rrelu", "log_sigmoid",
})  # fmt: skip


def name(node: fx.Node) -> str:
    """The operation without its overload, also where it works in place: 'mul' for aten.mul_.Tensor; '' for inputs and tensors."""
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(getattr(node.target, "__name__", node.target))
    space, _, bare = str(schema.name).partition("::")
    bare = bare.removesuffix("_") if schema.is_mutable else bare
    return bare if space == "aten" else f"{space}.{bare}"


def arguments(node: fx.Node) -> dict[str, Any]:
    """Every argument of an operation by its name, defaults included."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {**{str(i): arg for i, arg in enumerate(node.args)}, **node.kwargs}
    found = {}
    for i, argument in enumerate(schema.arguments):
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        real = type(given) is int and str(argument.type) in ("float", "number")
        found[argument.name] = float(given) if real else given  # type: ignore[arg-type]
    return found


def defaults(node: fx.Node) -> dict[str, Any]:
    """The arguments that have a default value, with that value."""
    schema: Any = getattr(node.target, "_schema", None)
    return {a.name: a.default_value for a in getattr(schema, "arguments", ()) if a.has_default_value()}


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose memory an operation writes to: the first argument of `aten.relu_`, the `out` of another."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return ()
    given = arguments(node)
    changed = [given[a.name] for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tuple(part for part in tree_leaves(changed) if isinstance(part, fx.Node))


def shape(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of the tensor that a node computes, or None."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else None


def dtype(node: fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else None


def unchanged(
    node: fx.Node, *, rows: bool = False, casts: bool = False, half: bool = False
) -> fx.Node | None:
    """The node whose vectors of the last axis this node returns, in the same order; None if the node computes something.

    Dropout in eval mode, copies, casts to the same dtype, and reshapes that keep the last axis change nothing. With `rows` the
    vectors may be reordered, repeated or left out; with `casts` float32 and float64 may be cast into each other, with
    `half` also into bfloat16 and float16, and back."""
    known = name(node)
    source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    if source is None or shape(source) is None or shape(node) is None:
        return None
    if known in DROPOUTS:
        return source if arguments(node).get("train") is False else None
    same = dtype(node) == dtype(source)
    if known in CASTS:
        wide = {dtype(node), dtype(source)} <= {*_WIDE, *(HALF if half else ())}
        return source if same or (casts and wide) else None
    if not same:  # x.view(dtype) reads the bits of x as other numbers
        return None
    if known in COPIES:
        return source
    kept = known in RESHAPES or known == "squeeze" or (rows and known in _ROWS)
    return source if kept and _keeps_last(node, source, known) else None


def origin(node: fx.Node, *, rows: bool = False, casts: bool = False, half: bool = False) -> fx.Node:
    """The node that computed the numbers: `unchanged`, as far back as it goes."""
    source = unchanged(node, rows=rows, casts=casts, half=half)
    return node if source is None else origin(source, rows=rows, casts=casts, half=half)


def part_of(node: fx.Node) -> tuple[fx.Node, tuple[int, int]] | None:
    """The node whose vectors of the last axis a node returns a part of, and which part, [start, stop); None if it is no such
    part."""
    known, given = name(node), arguments(node)
    if known == "getitem":
        several, index = node.args[0], node.args[1]
        if not isinstance(several, fx.Node) or name(several) not in _SPLITS or not isinstance(index, int):
            return None
        source, (dim, values) = several.args[0], (arguments(several).get("dim"), several.meta.get("val"))
        if not isinstance(values, (list, tuple)) or not all(isinstance(v, Tensor) for v in values):
            return None
        ends = [0]
        for value in values:
            ends.append(ends[-1] + int(value.shape[-1]))
        index %= len(values)
        part = ends[index], ends[index + 1]
    elif known in ("slice", "narrow"):
        source, dim = node.args[0], given.get("dim")
        if known == "slice" and given.get("step", 1) != 1:
            return None
        start, size = given.get("start") or 0, (shape(node) or (0,))[-1]
        before = shape(source) if isinstance(source, fx.Node) else None
        if not isinstance(start, int) or not before:
            return None
        start = start + before[-1] if start < 0 else start
        part = start, start + size
    else:
        return None
    whole = shape(source) if isinstance(source, fx.Node) else None
    if not isinstance(source, fx.Node) or not whole or not isinstance(dim, int):
        return None
    last = dim % len(whole) == len(whole) - 1
    return (source, part) if last and 0 <= part[0] < part[1] <= whole[-1] else None


def transposed(node: fx.Node) -> fx.Node | None:
    """The matrix, or the list of matrices, of which a node is the transposed; None if it is not."""
    known, given = name(node), arguments(node)
    source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    axes = 0 if source is None else len(shape(source) or ())
    if source is None or axes not in (2, 3):
        return None
    if known == "transpose":
        turned = {int(given[key]) % axes for key in ("dim0", "dim1")} == {axes - 2, axes - 1}
    elif known == "permute":
        turned = [int(d) % axes for d in given["dims"]] == [*range(axes - 2), axes - 1, axes - 2]
    else:
        turned = known in ("mT", "matrix_transpose") or (axes == 2 and known in ("t", "numpy_T"))
    return source if turned else None


def _keeps_last(node: fx.Node, source: fx.Node, known: str) -> bool:
    before, after = shape(source), shape(node)
    if not before or not after or before[-1] != after[-1]:
        return False
    last, given = len(before) - 1, arguments(node)
    if known == "transpose":
        return last not in {int(given["dim0"]) % (last + 1), int(given["dim1"]) % (last + 1)}
    if known == "permute":
        return int(given["dims"][-1]) % (last + 1) == last
    if known in ("slice", "select", "narrow", "index_select"):
        return int(given["dim"]) % (last + 1) != last
    if known == "index":  # x[i] takes rows
        return last > 0 and len(given["indices"]) == 1
    return known not in ("unsqueeze", "squeeze") or after[-1] != 1


def overwrites(graph: fx.Graph) -> bool:
    """Whether anything reads memory, under another name, after an operation in place has changed it."""
    return bool(_stale_reads(graph, _memory(graph, maybe=True)))


def impurity(graph: fx.Graph) -> str | None:
    """Why a forward is not a function of its input: it changes tensors, or depends on strides; None if neither is possible."""
    for changed in changed_tensors(graph, maybe=True):
        return f"changes {changed} in place when it runs: leave the trailing _ (or inplace=True) off"
    always = _stale_reads(graph, _memory(graph, maybe=True, copied=True))
    for reader, read in _stale_reads(graph, _memory(graph, maybe=True)):
        if (reader, read) not in always:
            reason = f"reads {read.name} after a change in place that reaches it only for some strides of the input"
            return f"{reason}: leave the trailing _ (or inplace=True) off"
    return None


def _stale_reads(graph: fx.Graph, memory: dict[fx.Node, fx.Node]) -> set[tuple[fx.Node, fx.Node]]:
    """Nodes, and names of memory that they read although an operation in place has changed it under another name."""
    found: set[tuple[fx.Node, fx.Node]] = set()
    changed: dict[fx.Node, set[fx.Node]] = {}
    known: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        found |= {(node, read) for read in node.all_input_nodes if read in changed.get(memory[read], ())}
        for target in written(node):  # the names that the memory had until now no longer say what it holds
            changed[memory[target]] = set(known.get(memory[target], ()))
        known.setdefault(memory[node], set()).add(node)
    return found


def _memory(graph: fx.Graph, *, maybe: bool, copied: bool = False) -> dict[fx.Node, fx.Node]:
    """For each node one that shares its memory: views and operations in place; with `maybe`, whatever may return an input;
    without what may be a copy, if `copied`."""
    found: dict[fx.Node, fx.Node] = {}

    def first(node: fx.Node) -> fx.Node:
        while found[node] is not node:
            node = found[node]
        return node

    for node in graph.nodes:
        found[node] = node
        if copied and name(node) in _SHARED_OR_COPIED:
            continue
        for read in _shared(node, maybe):
            found[first(read)] = node
    return {node: first(node) for node in graph.nodes}


def _shared(node: fx.Node, maybe: bool) -> list[fx.Node]:
    """The arguments of an operation whose memory its result has, or may have."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function":
        return []
    if schema is None:
        return node.all_input_nodes
    known = name(node)
    first = [node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else []
    if any(result.alias_info is not None for result in schema.returns) or known.endswith("dropout"):
        return first
    full = f"{schema.name}.{schema.overload_name}".removesuffix(".")
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
    return node.all_input_nodes if maybe and composite and known not in _FRESH else []


def without_dropout(graph: fx.Graph) -> None:
    """In eval mode, dropout returns its input itself; torch's functionalization would treat the result as a copy."""
    for node in graph.nodes:
        if name(node).endswith("dropout") and node.args[2:3] == (False,):
            node.target, node.args, node.kwargs = torch.ops.aten.alias.default, node.args[:1], {}


def changed_tensors(graph: fx.Graph, *, maybe: bool = False) -> tuple[str, ...]:
    """The placeholders (tensors of the module, or inputs) that an operation in place writes to, or may write to."""
    memory = _memory(graph, maybe=maybe)
    targets = {memory[target] for node in graph.nodes for target in written(node)}
    return tuple(node.name for node in graph.nodes if node.op == "placeholder" and memory[node] in targets)
