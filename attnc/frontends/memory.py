"""Memory in a captured graph: which values share it, and which are read after an operation in place has changed them."""

from __future__ import annotations

import torch
from torch import fx

from attnc.frontends.aten import name, written

# results that share the memory of the input or are copies, depending on its strides
_SHARED_OR_COPIED = frozenset({"flatten", "reshape", "reshape_as", "contiguous", "to", "type_as"})
# composite operations whose results are always new tensors
_FRESH = frozenset({
    "linear", "matmul", "layer_norm", "rms_norm", "group_norm", "batch_norm", "softmax", "log_softmax", "selu", "square", "diff",
    "scaled_dot_product_attention", "conv1d", "conv2d", "absolute", "subtract", "multiply", "divide", "true_divide", "negative",
    "special_expit", "clip", "rrelu", "log_sigmoid",
})  # fmt: skip


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
            return (
                f"reads {read.name} after a change in place that reaches it or not, depending on the strides of the input: "
                "leave the trailing _ (or inplace=True) off"
            )
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
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        f"{schema.name}.{schema.overload_name}".removesuffix("."), "CompositeImplicitAutograd"
    )
    return node.all_input_nodes if maybe and composite and known not in _FRESH else []


def without_dropout(graph: fx.Graph) -> None:
    """In eval mode, dropout returns its input itself; torch's functionalization would treat the result as a copy."""
    for node in graph.nodes:
        if name(node).endswith("dropout") and node.args[2:3] == (False,):
            node.target, node.args, node.kwargs = torch.ops.aten.alias.default, node.args[:1], {}


def changed_tensors(graph: fx.Graph, *, maybe: bool = False) -> tuple[str, ...]:
    """The placeholders (tensors of the module, or inputs) that an operation in place writes to, or with `maybe` may write to."""
    memory = _memory(graph, maybe=maybe)
    targets = {memory[target] for node in graph.nodes for target in written(node)}
    return tuple(node.name for node in graph.nodes if node.op == "placeholder" and memory[node] in targets)
