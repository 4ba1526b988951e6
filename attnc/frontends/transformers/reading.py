"""The feed-forward blocks in a captured graph: a map, elementwise operations and a map, and the norm in front of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, fx

from attnc.frontends import aten
from attnc.frontends.capture import Captured
from attnc.frontends.transformers.expressions import (
    MARK,
    PRODUCT,
    Expression,
    NotElementwiseError,
    Reading,
    function_of,
    is_nonlinear,
    read,
)
from attnc.frontends.transformers.norms import NormRead, read_norm

ACTIVATIONS = {
    "relu", "gelu", "silu", "mish", "tanh", "sigmoid", "leaky_relu", "elu", "celu", "selu", "hardtanh", "relu6", "hardswish",
    "hardsigmoid", "softplus", "softshrink", "prelu", "log_sigmoid", "erf", "hardshrink", "threshold",
}  # fmt: skip
_NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True, eq=False)
class MapRead:
    """An affine map as it is executed: x W^T + b, or x W + b where it is `transposed` (Conv1D)."""

    node: fx.Node
    input: fx.Node
    path: str  # the module that runs it
    weight: Tensor
    bias: Tensor | None
    transposed: bool

    def same(self, other: MapRead) -> bool:
        return self.weight is other.weight and self.bias is other.bias and self.transposed == other.transposed

    @property
    def sizes(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        rows, columns = self.weight.shape
        return (columns, rows) if self.transposed else (rows, columns)


@dataclass(frozen=True, eq=False)
class BlockRead:
    """One use of a block. What stands between its maps is `activation`, or was not understood: `reason`."""

    first: MapRead
    second: MapRead
    up: MapRead | None
    activation: str | None
    reason: str | None
    converted: tuple[str, ...]  # the names under which its parts are captured, where it is converted
    inside: tuple[fx.Node, ...]  # the operations of the activation
    leaving: fx.Node  # what enters the second map
    norm: NormRead | None

    def same(self, other: BlockRead) -> bool:
        """Whether two uses are of one block: the same tensors and the same function."""
        ups = (self.up, other.up)
        alike = ups == (None, None) or (ups[0] is not None and ups[1] is not None and ups[0].same(ups[1]))
        maps = self.first.same(other.first) and self.second.same(other.second)
        return maps and alike and self.activation == other.activation and self.reason == other.reason


def blocks_in(captured: Captured) -> list[BlockRead]:
    """Every use of a block, in the order of execution."""
    maps = {node: found for node in captured.graph.nodes if (found := _map(node, captured)) is not None}
    return [block for second in maps.values() if (block := _block(second, maps, captured)) is not None]


def activations_outside(captured: Captured, blocks: list[BlockRead]) -> Iterator[tuple[str, str]]:
    """The part and the operation of every activation that is in no block."""
    taken = {node for block in blocks for node in block.inside}
    for node in captured.graph.nodes:
        if aten.name(node) in ACTIVATIONS and node not in taken:
            yield captured.place(node).path, aten.name(node)


def _map(node: fx.Node, captured: Captured) -> MapRead | None:
    known, given = aten.name(node), aten.arguments(node)
    if known == "linear":
        x, weight, bias, transposed = given["input"], given["weight"], given["bias"], False
    elif known == "addmm" and given["beta"] == given["alpha"] == 1:
        x, weight, bias, transposed = given["mat1"], given["mat2"], given["self"], True
    else:
        return None
    tensors = [captured.tensors.get(t.name) if isinstance(t, fx.Node) else None for t in (weight, bias)]
    if not isinstance(x, fx.Node) or tensors[0] is None or (bias is not None and tensors[1] is None):
        return None
    return MapRead(node, x, captured.place(node).path, tensors[0], tensors[1], transposed)


def _block(second: MapRead, maps: dict[fx.Node, MapRead], captured: Captured) -> BlockRead | None:
    """What enters a map, read back to the map or the two maps that it is computed from."""
    leaving = second.input
    try:
        found = read(leaving, maps.__contains__)
    except NotElementwiseError as problem:
        return _not_understood(second, maps, captured, problem)
    used = [maps[leaf] for leaf in found.leaves]
    if not is_nonlinear(found.expression) or len(used) not in (1, 2):
        return None
    if len(used) == 1:
        return _made(second, (used[0], None), found.expression, found, captured)
    return _gated(second, used, found, captured)


def _gated(second: MapRead, used: list[MapRead], found: Reading, captured: Captured) -> BlockRead | None:
    """f(s)·t: a product of two factors, one of them a map's output as it is."""
    e = found.expression
    converted = e[0] == PRODUCT
    sides: list[Expression] = list(e[2:]) if converted else _two_factors(e)
    bare = [side for side in sides if side[0] == "s"]
    if aten.origin(used[0].input) is not aten.origin(used[1].input):
        return None
    swapped = None
    if len(sides) == 2 and len(bare) == 1:
        inner = next(side for side in sides if side is not bare[0])
        used = used if bare[0][1] == 1 else used[::-1]  # the map of the activation comes first
        swapped = _renamed(inner, {bare[0]: None, ("s", 1 - bare[0][1]): ("s", 0)})
    if swapped is None and used[0].sizes != used[1].sizes:
        return None
    marks = (str(e[1]),) if converted else ()
    return _made(second, (used[0], used[1]), swapped or e, found, captured, marks)


def _two_factors(e: Expression) -> list[Expression]:
    """A product as (one bare leaf, the rest); the rest keeps its own factors, as in s·σ(s)·t."""
    if e[0] != "mul":
        return []
    for i, side in enumerate(e[1:], 1):
        rest = (*e[1:i], *e[i + 1 :])
        if side[0] == "s" and not any(_mentions(r, side) for r in rest):
            return [side, rest[0] if len(rest) == 1 else ("mul", *rest)]
    return []


def _mentions(e: object, leaf: Expression) -> bool:
    return e == leaf or (isinstance(e, tuple) and any(_mentions(part, leaf) for part in e))


def _renamed(e: Expression, names: dict[Expression, Expression | None]) -> Expression | None:
    """The expression with other leaves; None where one of them must not be there. Products are put in order again."""
    if e in names:
        return names[e]
    parts: list[object] = []
    for part in e:
        new = _renamed(part, names) if isinstance(part, tuple) else part
        if isinstance(part, tuple) and new is None:
            return None
        parts.append(new)
    ordered = sorted(parts[1:], key=repr) if e[0] in ("mul", "add", "maximum", "minimum") else parts[1:]
    return (e[0], *ordered)


def _made(
    second: MapRead,
    maps: tuple[MapRead, MapRead | None],
    expression: Expression,
    found: Reading,
    captured: Captured,
    marks: tuple[str, ...] = (),
) -> BlockRead:
    first, up = maps
    norm = read_norm(first.input, captured)
    if expression[0] == MARK and expression[2:] == (("s", 0),):
        marks, activation, reason = (*marks, str(expression[1])), None, None
    else:
        activation = None if _mentions(expression, ("s", 1)) else function_of(expression)
        reason = None if activation is not None else _unknown(expression, found)
    inside = tuple(found.nodes)
    return BlockRead(first, second, up, activation, reason, marks, inside, second.input, norm)


def _unknown(expression: Expression, found: Reading) -> str:
    if expression[0] == "softplus":
        return (
            f"has softplus with threshold={expression[3]:g}, beyond which torch returns its input: "
            "use threshold=float('inf')"
        )
    operations = ", ".join(dict.fromkeys(f"aten.{aten.name(node)}" for node in reversed(found.nodes)))
    return (
        f"has an activation that attnc does not know ({operations}): if it acts on each number alone, register it by "
        "attnc.functions.register(attnc.function(f, name=…, enclosure=…))"
    )


def _not_understood(
    second: MapRead, maps: dict[fx.Node, MapRead], captured: Captured, problem: NotElementwiseError
) -> BlockRead | None:
    """A block by its shape, with something between its maps that is not elementwise: one map or two lead to the second
    through operations that keep the shape, and the second leads back to the size of the first."""
    leaves, nodes, todo = [], [], [second.input]
    while todo:
        node = todo.pop()
        if node in maps:
            leaves += [node] if node not in leaves else []
        elif node.op == "placeholder":
            if node in captured.inputs:
                return None
        elif node not in nodes:
            if aten.shape(node) is None:
                return None
            nodes.append(node)
            todo += node.all_input_nodes
    used = sorted((maps[leaf] for leaf in leaves), key=lambda m: list(maps).index(m.node))
    sizes = {m.sizes for m in used}
    if len(used) not in (1, 2) or len(sizes) != 1 or {m.sizes[::-1] for m in used} != {second.sizes}:
        return None
    if len(used) == 2 and aten.origin(used[0].input) is not aten.origin(used[1].input):
        return None
    if all(aten.name(node) in _NORMS or aten.unchanged(node) is not None for node in nodes):
        return None
    what = aten.name(problem.node) or f"the tensor {captured.names.get(problem.node.name, problem.node.name)}"
    where = captured.place(problem.node)
    reason = f"has {f'aten.{what}' if aten.name(problem.node) else what} in {where} between its maps, which is not understood"
    up = used[1] if len(used) == 2 else None
    norm = read_norm(used[0].input, captured)
    inside = tuple(node for node in nodes if aten.unchanged(node) is None and node.all_input_nodes)
    return BlockRead(used[0], second, up, None, reason, (), inside, second.input, norm)
