"""Is a module attention only? Walk the graph of the operations it really executes.

Attention is softmax over scores, and products of weights with values. So the graph may hold affine maps, moves of data,
products, sums and softmax; anything else (an exp, a relu, a maximum, a division) is reported.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

SOFTMAX = frozenset(
    {"_softmax", "softmax", "_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention"}
)
LINEAR = frozenset(
    {"add", "sub", "neg", "mul", "sum", "mm", "mv", "dot", "bmm", "addmm", "matmul", "baddbmm"}
)
MOVES = frozenset((
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "squeeze_",
    "select", "slice", "cat", "stack", "split", "split_with_sizes", "clone", "copy_", "detach", "alias",
    "lift_fresh_copy", "zeros", "ones", "eye", "fill", "fill_", "full", "_to_copy", "index", "index_select", "getitem",
    "ones_like", "zeros_like", "empty_like", "index_copy", "flip",
))  # fmt: skip


def operations(module: nn.Module, *example: Tensor) -> list[str]:
    """The names of the operations that `module` executes on the example, in order.

    >>> import torch
    >>> operations(nn.Softmax(-1), torch.zeros(2))
    ['_softmax']
    """
    graph = make_fx(module)(*example).graph
    return [_name(node.target) for node in graph.nodes if node.op == "call_function"]


def impurities(module: nn.Module, *example: Tensor) -> list[str]:
    """Operations that are neither affine maps nor softmax attention; empty for a network of attention only.

    >>> import torch
    >>> impurities(nn.Sequential(nn.Linear(2, 2), nn.GELU()), torch.zeros(1, 2))
    ['gelu']
    """
    return [name for name in operations(module, *example) if name not in SOFTMAX | LINEAR | MOVES]


def _name(target: object) -> str:
    schema = getattr(target, "_schema", None)
    return (
        str(schema.name).removeprefix("aten::")
        if schema is not None
        else str(getattr(target, "__name__", target))
    )
