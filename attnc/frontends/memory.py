"""Memory in a captured graph: which operations write to it, and which values share it."""

from __future__ import annotations

import torch
from torch import fx


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose memory an operation writes to: the first argument of `aten.relu_`, the `out` of another.

    >>> from attnc.frontends.capture import capture
    >>> found = capture(torch.nn.ReLU(inplace=True), (torch.zeros(3),))
    >>> [(node.name, written(node)) for node in found.graph.nodes if node.op == "call_function"]
    [('relu_', (input,))]
    """
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return ()
    found = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            found += [part for part in _flat(given) if isinstance(part, fx.Node)]
    return tuple(found)


def _flat(given: object) -> list[object]:
    return [x for part in given for x in _flat(part)] if isinstance(given, (list, tuple)) else [given]


def overwrites(graph: fx.Graph) -> bool:
    """Whether anything reads memory, under another name, after an operation in place has changed it."""
    memory = _memory(graph, maybe=True)
    changed: dict[fx.Node, set[fx.Node]] = {}
    known: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        if any(read in changed.get(memory[read], ()) for read in node.all_input_nodes):
            return True
        for target in written(node):  # the names that the memory had until now no longer say what it holds
            changed[memory[target]] = set(known.get(memory[target], ()))
        known.setdefault(memory[node], set()).add(node)
    return False


def _memory(graph: fx.Graph, *, maybe: bool) -> dict[fx.Node, fx.Node]:
    """For each node one that shares its memory: views and operations in place; with `maybe`, whatever may return an input."""
    found: dict[fx.Node, fx.Node] = {}

    def first(node: fx.Node) -> fx.Node:
        while found[node] is not node:
            node = found[node]
        return node

    for node in graph.nodes:
        found[node] = node
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
    name = str(schema.name)
    first = [node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else []
    if any(result.alias_info is not None for result in schema.returns) or name.endswith("dropout"):
        return first
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        f"{name}.{schema.overload_name}".removesuffix("."), "CompositeImplicitAutograd"
    )
    return node.all_input_nodes if maybe and composite and name.removeprefix("aten::") not in _FRESH else []


_FRESH = {
    "linear", "matmul", "layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax", "scaled_dot_product_attention",
    "conv1d", "conv2d", "selu", "square", "diff",
}  # fmt: skip


def without_dropout(graph: fx.Graph) -> None:
    """Outside of training, dropout returns its input itself: torch's functionalization takes it for a copy."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and str(schema.name).endswith("dropout") and node.args[2:3] == (False,):
            node.target, node.args, node.kwargs = torch.ops.aten.alias.default, node.args[:1], {}


def changed_tensors(graph: fx.Graph) -> tuple[str, ...]:
    """The tensors of the module, or inputs, that an operation in place writes to."""
    memory = _memory(graph, maybe=False)
    targets = {memory[target] for node in graph.nodes for target in written(node)}
    return tuple(node.name for node in graph.nodes if node.op == "placeholder" and memory[node] in targets)
