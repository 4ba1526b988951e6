"""The feed-forward blocks in a captured graph: a linear map, elementwise operations, a linear map, and the norm before them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from attnc.domain import Array
from attnc.frontends import aten
from attnc.frontends.capture import Captured
from attnc.frontends.problems import to_numpy
from attnc.frontends.transformers.expressions import (
    COMMUTATIVE,
    MARK,
    PRODUCT,
    Expression,
    NotElementwiseError,
    Reading,
    function_of,
    is_nonlinear,
)
from attnc.frontends.transformers.norms import NORMS, NormRead, normed_by, read_norm
from attnc.program import Affine


@dataclass(frozen=True, eq=False)
class LinearMap:
    """An affine map as it is executed: x W^T + b, or x W + b if it is `transposed`, as in transformers' Conv1D. A map that is a
    part of a larger one, as the two halves of a fused gate, has the `rows` [start, stop) of its outputs. The maps of experts are
    stored as one tensor (experts, …): `experts` is their number, and `numbers(e)` are those of one. Which expert a token goes to
    is computed by the node `routes`."""

    node: fx.Node
    input: fx.Node
    name: str  # dotted path of the module that runs it
    module: nn.Module
    weight: Tensor
    bias: Tensor | None
    transposed: bool
    rows: tuple[int, int] | None = None
    routes: fx.Node | None = None

    @property
    def experts(self) -> int:
        """The number of experts; 0 if the map is one of its own."""
        return int(self.weight.shape[0]) if self.weight.ndim == 3 else 0

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for maps of the same tensors."""
        return id(self.weight), id(self.bias), self.transposed, self.rows

    @property
    def attribute(self) -> str:
        """Its name in the module that holds it."""
        return self.name.rpartition(".")[2]

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def sizes(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        matrix = self.weight.shape[-2:]
        rows, columns = matrix[::-1] if self.transposed else matrix
        return (rows if self.rows is None else self.rows[1] - self.rows[0], columns)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """W and b, with their names in the model."""
        yield f"{self.name}.weight", self.weight
        if self.bias is not None:
            yield f"{self.name}.bias", self.bias

    def step(self, value: int, expert: int = 0) -> Affine:
        """The map of a value of a program, with copies of the stored numbers."""
        weight = self.weight[expert] if self.experts else self.weight
        W, b = to_numpy(weight), None if self.bias is None else to_numpy(self.bias)
        own = slice(*self.rows) if self.rows is not None else slice(None)
        return Affine(
            value, (W.T if self.transposed else W)[own], None if b is None else b[own], name=self.name
        )

    def numbers(self, expert: int = 0) -> tuple[Array, Array]:
        """W (outputs, inputs) and b (outputs,), copies in float64."""
        step = self.step(0, expert)
        b = np.zeros(self.sizes[0]) if step.bias is None else step.bias
        return step.weight.astype(np.float64), b.astype(np.float64)


@dataclass(frozen=True, eq=False)
class BlockRead:
    """One use of a block. Between its maps is `activation`, or operations that are not supported: `reason`."""

    first: LinearMap
    second: LinearMap
    up: LinearMap | None
    activation: str | None
    reason: str | None
    converted: tuple[str, ...]  # the names of its marks, if it is converted
    inside: tuple[fx.Node, ...]  # the operations of the activation
    norm: NormRead | None
    result: fx.Node  # what is converted computes it

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for uses of one block: the same tensors and the same function."""
        return self.first.key, self.up and self.up.key, self.second.key, self.activation, self.reason


def blocks_in(captured: Captured) -> list[BlockRead]:
    """Every use of a block, in the order of execution."""
    maps = _maps(captured)
    whole = [found for found in maps.values() if found.rows is None]
    return [block for second in whole if (block := _block(second, maps, captured)) is not None]


def _maps(captured: Captured) -> dict[fx.Node, LinearMap]:
    """The maps that the graph runs, by the nodes that they compute, and the parts in which outputs of maps are used."""
    nodes = captured.graph.nodes
    maps = {node: found for node in nodes if (found := _map(node, captured)) is not None}
    for node in nodes:
        biased = _with_bias(node, maps, captured)
        if biased is not None:
            maps[node] = biased
    inner = {_sides(node)[0] for node, found in maps.items() if aten.name(node) == "add"}
    maps = {node: found for node, found in maps.items() if node not in inner}
    for node in nodes:
        part = aten.part_of(node)
        source = None if part is None else maps.get(aten.origin(part[0]))
        if part is not None and source is not None and source.rows is None:
            maps[node] = replace(source, node=node, rows=part[1])
    return maps


def _map(node: fx.Node, captured: Captured) -> LinearMap | None:
    known, given = aten.name(node), aten.arguments(node)
    if known == "linear":
        x, weight, bias, transposed = given["input"], given["weight"], given["bias"], False
    elif known == "addmm" and given["beta"] == given["alpha"] == 1:
        x, weight, bias, transposed = given["mat1"], given["mat2"], given["self"], True
    elif (
        known == "matmul"
        and isinstance(given["other"], fx.Node)
        and len(aten.shape(given["other"]) or ()) == 2
    ):
        turned = aten.transposed(given["other"])
        x, weight, bias, transposed = given["self"], turned or given["other"], None, turned is None
    elif known in _GROUPED:
        return _grouped(node, captured)
    else:
        return None
    tensors = [captured.tensors.get(t.name) if isinstance(t, fx.Node) else None for t in (weight, bias)]
    if not isinstance(x, fx.Node) or tensors[0] is None or (bias is not None and tensors[1] is None):
        return None
    path = captured.path(node)
    return LinearMap(node, x, path, captured.parts[path], tensors[0], tensors[1], transposed)


# rows of the first argument, in groups that end at the third, times one matrix each of the second
_GROUPED = ("transformers.grouped_mm_fallback", "transformers.grouped_mm", "_grouped_mm")


def _grouped(node: fx.Node, captured: Captured) -> LinearMap | None:
    x, matrices, ends, *others = aten.arguments(node).values()
    if not isinstance(x, fx.Node) or not isinstance(matrices, fx.Node) or not isinstance(ends, fx.Node):
        return None
    turned = aten.transposed(matrices)
    weight = captured.tensors.get((turned or matrices).name)
    if any(other is not None for other in others) or weight is None or weight.ndim != 3:
        return None
    path = captured.path(node)
    return LinearMap(node, x, path, captured.parts[path], weight, None, turned is None, None, ends)


def _sides(node: fx.Node) -> tuple[fx.Node | None, fx.Node | None]:
    """What a sum adds up, if these are two tensors: the one of more axes first."""
    given = aten.arguments(node)
    sides = [side for key in ("self", "other") if isinstance(side := given.get(key), fx.Node)]
    if aten.name(node) != "add" or len(sides) != 2 or given.get("alpha", 1) != 1:
        return None, None
    first, second = sorted(sides, key=lambda side: -len(aten.shape(side) or ()))
    return first, second


def _with_bias(node: fx.Node, maps: dict[fx.Node, LinearMap], captured: Captured) -> LinearMap | None:
    """x W^T + b, where the sum is an operation of its own in the module of the product."""
    product, shift = _sides(node)
    found = None if product is None else maps.get(product)
    bias = None if shift is None else captured.tensors.get(shift.name)
    if found is None or bias is None or found.bias is not None or aten.name(found.node) != "matmul":
        return None
    fits = tuple(bias.shape) == found.sizes[:1] and bias.dtype == found.weight.dtype
    alone = len(found.node.users) == 1 and captured.path(node) == found.name
    return replace(found, node=node, bias=bias) if fits and alone else None


def _block(second: LinearMap, maps: dict[fx.Node, LinearMap], captured: Captured) -> BlockRead | None:
    """What enters a map, read back to the one or two maps that it is computed from."""
    try:
        found = Reading(second.input, maps.__contains__)
    except NotElementwiseError as problem:
        return _not_understood(second, maps, captured, problem)
    used, e, marks = [maps[leaf] for leaf in found.leaves], found.expression, list[str]()
    if not is_nonlinear(e) or len(used) not in (1, 2):
        return None
    if any((m.routes, m.experts) != (second.routes, second.experts) for m in used):
        return None
    result, inside = second.input, found.nodes
    if second.experts and len(used) == 2:  # the activation alone is replaced, the product stays
        factor = _factor(second.input, maps)
        if factor is None:
            return None
        result, inside = factor, Reading(factor, maps.__contains__).nodes
    if len(used) == 2:  # f(s)·t: a product of two factors, one of them a map's output itself
        if aten.origin(used[0].input) is not aten.origin(used[1].input):
            return None
        split = _split(e)
        if split is None and used[0].sizes != used[1].sizes:
            return None
        marks += [str(e[1])] if e[0] == PRODUCT else []
        if split is not None:
            (_, index), e = split
            used = used if index == 1 else used[::-1]  # the map of the activation comes first
            e = _renamed(e, ("s", 1 - index), ("s", 0))
    activation = reason = None
    if e[0] == MARK and e[2:] == (("s", 0),):
        marks.append(str(e[1]))
    else:
        activation = None if _contains(e, ("s", 1)) else function_of(e)
        reason = None if activation is not None else _unknown(found)
    norm, up = read_norm(used[0].input, captured), used[1] if len(used) == 2 else None
    return BlockRead(used[0], second, up, activation, reason, tuple(marks), tuple(inside), norm, result)


def _factor(product: fx.Node, maps: dict[fx.Node, LinearMap]) -> fx.Node | None:
    """What a product multiplies with the output of a map."""
    node = aten.origin(product)
    sides = [aten.arguments(node).get(key) for key in ("self", "other")] if aten.name(node) == "mul" else []
    nodes = [aten.origin(side) for side in sides if isinstance(side, fx.Node)]
    others = [side for side in nodes if side not in maps]
    return others[0] if len(nodes) == 2 and len(others) == 1 else None


def _split(e: Expression) -> tuple[Expression, Expression] | None:
    """A product as a leaf and the other factors, as t and s·σ(s), which do not contain the leaf; None for anything else."""
    factors = e[2:] if e[0] == PRODUCT else e[1:] if e[0] == "mul" else ()
    for i, leaf in enumerate(factors):
        rest = (*factors[:i], *factors[i + 1 :])
        if leaf[0] == "s" and not any(_contains(factor, leaf) for factor in rest):
            return leaf, rest[0] if len(rest) == 1 else ("mul", *rest)
    return None


def _contains(e: object, leaf: Expression) -> bool:
    return e == leaf or (isinstance(e, tuple) and any(_contains(part, leaf) for part in e))


def _renamed(e: Any, old: Expression, new: Expression) -> Any:
    """The expression with another leaf; the order of products and sums is restored."""
    if e == old or not isinstance(e, tuple):
        return new if e == old else e
    parts = [_renamed(part, old, new) for part in e[1:]]
    return (e[0], *(sorted(parts, key=repr) if e[0] in COMMUTATIVE else parts))


def _unknown(found: Reading) -> str:
    operations = [f"aten.{aten.name(node)}" for node in reversed(found.nodes)]
    what = "; ".join([", ".join(dict.fromkeys(operations)), *dict.fromkeys(found.refusals)])
    advice = "if it is a function of each number alone, register it by attnc.functions.register(attnc.function(f, …))"
    return f"has an activation that is not supported ({what}): {advice}"


def _not_understood(
    second: LinearMap, maps: dict[fx.Node, LinearMap], captured: Captured, problem: NotElementwiseError
) -> BlockRead | None:
    """A block by its shape, with operations between its maps that are not elementwise: one or two maps lead to the second one,
    which returns as many features as they take."""
    leaves, nodes, todo = set(), [], [second.input]
    while todo:
        node = todo.pop()
        if node in maps:
            leaves.add(node)
        elif node in captured.inputs or (node.op != "placeholder" and aten.shape(node) is None):
            return None
        elif node.op != "placeholder" and node not in nodes:
            nodes.append(node)
            todo += node.all_input_nodes
    used = [found for node, found in maps.items() if node in leaves]
    if len(used) not in (1, 2) or {m.sizes[::-1] for m in used} != {second.sizes}:
        return None
    if len(used) == 2 and aten.origin(used[0].input) is not aten.origin(used[1].input):
        return None
    if second.experts or any(m.experts for m in used) or normed_by(second.input, captured) in maps:
        return None
    if all(aten.name(node) in NORMS or aten.unchanged(node) is not None for node in nodes):
        return None
    op, name = aten.name(problem.node), problem.node.name
    what = f"aten.{op}" if op else f"the tensor {captured.names.get(name, name)}"
    reason = f"has {what} in {captured.where(problem.node)} between its maps, which is not supported"
    inside = tuple(node for node in nodes if aten.unchanged(node) is None and node.all_input_nodes)
    norm, up = read_norm(used[0].input, captured), used[1] if len(used) == 2 else None
    return BlockRead(used[0], second, up, None, reason, (), inside, norm, second.input)
