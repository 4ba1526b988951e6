"""The translator of sequence models: embeddings, norms, attention between tokens, and what stands around them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from attnc import functions
from attnc.frontends import aten
from attnc.frontends.activations import ACTIVATIONS, Activation, RefusedError, activation
from attnc.frontends.attention import MASKED, Scores, attend, fused, scores
from attnc.frontends.capture import Captured
from attnc.frontends.operations import HINTS, Value
from attnc.frontends.transformers.expressions import NotElementwiseError, function_of, read
from attnc.frontends.transformers.norms import NORM, NormRead, norms_in
from attnc.frontends.views import IDS, SequenceBuilder, View, plain
from attnc.functions import square
from attnc.program import Affine, Embed, Mix, Norm, Product

_UNKNOWN = object()  # the result of something that was refused: whatever reads it is not refused again
# operations that arrange numbers: they are carried out on the positions of a view
ARRANGES = frozenset({
    "view", "_unsafe_view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "unsqueeze", "squeeze", "t", "numpy_T", "mT",
    "transpose", "permute", "movedim", "select", "slice", "narrow", "expand", "expand_as", "repeat", "repeat_interleave", "tile",
    "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "index", "index_select", "gather", "flip", "roll", "swapaxes",
}) | aten.COPIES  # fmt: skip
# operations that only sequence models have: what executes one of them is read by this translator
SEQUENCE = frozenset({
    "layer_norm", "rms_norm", "rsqrt", "scaled_dot_product_attention", "bmm", "baddbmm", "embedding",
})  # fmt: skip
_ELEMENTWISE = frozenset({*ACTIVATIONS, "erf", "add", "sub", "mul", "div", "neg"})
_LONGEST = 16  # operations of an activation that is written out
_SAME_SHAPE = aten.COPIES | aten.CASTS | {"expand", "slice"}


def is_sequence(captured: Captured) -> bool:
    """Whether a graph has norms, embeddings or products of values, as attention between tokens has."""
    return any(aten.name(node) in SEQUENCE for node in captured.graph.nodes)


class SequenceTranslator:
    """Walks a captured graph, for `builder.batch` inputs at once. What does not depend on the input is computed by torch."""

    def __init__(self, builder: SequenceBuilder, captured: Captured, output: int = 0) -> None:
        self.builder, self._captured, self._output = builder, captured, output
        self._known: dict[fx.Node, Any] = {}
        self._norms = {
            node: (entering, norm) for node, entering, norm in norms_in(captured) if aten.name(node) in ("mul",)
        }
        self._written: dict[fx.Node, tuple[fx.Node, str]] = {}

    def output(self) -> Value | None:
        """The value that the forward returns; None if it was refused."""
        live = self._live()
        returned: Value | None = None
        for node in self._captured.graph.nodes:
            if node not in live:
                continue
            self.builder.name, where = self._captured.path(node), self._captured.where(node)
            called = isinstance(node.target, OpOverload)
            self.builder.where = f"{str(node.target._schema.name).replace('::', '.')} in {where}" if called else where
            try:
                if node.op == "output":
                    returned = self._returned()
                else:
                    self._known[node] = self._node(node)
            except RefusedError as refusal:
                self._known[node] = _UNKNOWN
                self.builder.report(str(refusal))
        return returned

    def _live(self) -> set[fx.Node]:
        """The nodes that the output is computed from; what is inside of a norm or an activation is not."""
        found: set[fx.Node] = set()
        todo = [node for node in self._captured.graph.nodes if node.op == "output"]
        while todo:
            node = todo.pop()
            if node in found:
                continue
            found.add(node)
            if node.op == "output":
                last = self._captured.outputs[-1]
                todo += [last] if isinstance(last, fx.Node) else []
            elif node in self._norms:
                todo.append(self._norms[node][0])
            elif (written := _written_out(node)) is not None:
                self._written[node] = written
                todo.append(written[0])
            else:
                todo += node.all_input_nodes
        return found

    def _returned(self) -> Value | None:
        captured, b = self._captured, self.builder
        if not captured.structure.is_leaf():
            raise RefusedError(f"returns a {captured.structure.type.__name__}: one tensor that depends on the input is accepted")
        last = captured.outputs[-1]
        result = self._known[last] if isinstance(last, fx.Node) else last
        if result is _UNKNOWN:
            return None
        if not isinstance(result, View):
            raise RefusedError("returns no value that is computed from the input")
        found = b.ordered(result)
        if not torch.equal(found.index.reshape(-1), torch.arange(found.index.numel())) or len(found.index) != b.batch:
            raise RefusedError("returns a tensor whose axes are not (batch, tokens, features)")
        return b.reshaped(found.value, tuple(found.index.shape[1:]))

    def _node(self, node: fx.Node) -> object:
        b, captured = self.builder, self._captured
        if node.op == "placeholder":
            if node in captured.inputs:
                return plain(b.input, b.batch)
            return captured.tensors[node.name]
        if node.op != "call_function":
            return _UNKNOWN
        if node in self._norms:
            return self._norm(node, *self._norms[node])
        if node in self._written:
            leaf, name = self._written[node]
            return self._activated(self._known[leaf], Activation(functions.get(name)), node)
        given = fx.node.map_arg(aten.arguments(node), self._known.__getitem__)
        leaves = tree_leaves(given)
        if not isinstance(node.target, OpOverload):
            return self._python(node, list(given.values()))
        name = aten.name(node)
        depends = any(isinstance(leaf, View | Scores) for leaf in leaves)
        if any(leaf is _UNKNOWN for leaf in leaves):
            if name not in KNOWN:
                raise RefusedError(HINTS.get(name, "is not supported"))
            return _UNKNOWN
        if not depends:
            return self._folded(node, name, leaves)
        return self._operation(node, name, given)

    def _folded(self, node: fx.Node, name: str, leaves: list[Any]) -> object:
        """An operation on numbers that do not depend on the input, as torch carries it out."""
        if torch.Tag.nondeterministic_seeded in node.target.tags:  # type: ignore[union-attr]
            raise RefusedError("draws random numbers: a result that depends on the input alone is accepted")
        if "empty" in name:
            raise RefusedError("leaves its numbers undefined: give them, as by torch.zeros")
        real = any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves)
        self.builder.rounds |= real and name not in ARRANGES | aten.CASTS | {"embedding", "cat", "stack"}
        args, kwargs = (fx.node.map_arg(part, self._known.__getitem__) for part in (node.args, node.kwargs))
        with torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _python(self, node: fx.Node, given: list[Any]) -> object:
        """Arithmetic of sizes and parts of tuples."""
        leaves = tree_leaves(given)
        if any(leaf is _UNKNOWN for leaf in leaves):
            return _UNKNOWN
        shown = str(getattr(node.target, "__name__", node.target))
        numbers = all(isinstance(leaf, int | float) for leaf in leaves)
        if node.target is operator.getitem or (numbers and callable(node.target)):
            return node.target(*given)  # type: ignore[operator]
        if "autocast" in shown:
            raise RefusedError("rounds to a narrower type: leave torch.autocast out of forward")
        raise RefusedError(f"{shown} is not supported")

    def _operation(self, node: fx.Node, name: str, given: dict[str, Any]) -> object:
        b, (first, *_) = self.builder, given.values()
        if name == "sym_size":
            return (first.index.shape if isinstance(first, View) else first.shape)[given["dim"]]
        if b.ids and any(isinstance(leaf, View) and leaf.value.index == 0 for leaf in tree_leaves(given)):
            if name not in ARRANGES | aten.CASTS | {"embedding"}:
                raise RefusedError(IDS)
        if name in aten.CASTS:
            return self._cast(node, first)
        if name in aten.DROPOUTS:
            if given["train"] is not False and given["p"] != 0:
                raise RefusedError("is random with training=True: give training=False, or training=self.training")
            return first
        if name in ARRANGES:
            return self._arranged(node, name, first)
        if name in ACTIVATIONS and isinstance(first, Scores):
            self._refuse_scores()
        if name in ACTIVATIONS and isinstance(first, View):
            rest = {key: x.item() if isinstance(x, Tensor) and x.numel() == 1 else x for key, x in list(given.items())[1:]}
            if any(isinstance(x, View | Scores | Tensor) for x in rest.values()):
                raise RefusedError("has parameters that are no single numbers")
            return self._activated(first, activation(name, {k: v for k, v in rest.items() if k != "generator"}), node)
        if name not in OPERATIONS:
            raise RefusedError(HINTS.get(name, "is not supported"))
        try:
            return OPERATIONS[name](b, **{"x" if k in ("self", "input") else k: v for k, v in given.items()})
        except TypeError as problem:
            raise RefusedError(f"is called as {node.target}, which is not supported ({problem})") from None

    def _cast(self, node: fx.Node, x: object) -> object:
        """float32 and float64 may be cast into each other: the program has the numbers before rounding."""
        kinds = {aten.dtype(node), aten.dtype(node.args[0])}
        exact = self.builder.ids and isinstance(x, View) and x.value.index == 0
        accepted = {torch.int32, torch.int64} if exact else {torch.float32, torch.float64}
        if not kinds <= accepted:
            raise RefusedError(f"casts to {aten.dtype(node)}: float32 and float64 are accepted")
        self.builder.rounds |= len(kinds) > 1
        return x

    def _arranged(self, node: fx.Node, name: str, first: object) -> object:
        if aten.dtype(node) not in (None, aten.dtype(node.args[0])):
            raise RefusedError("reads the bits of numbers as others")
        if isinstance(first, Scores):
            sizes = [self._known.get(n, n) if isinstance(n, fx.Node) else n for n in aten.shape(node) or ()]
            if name in _SAME_SHAPE and str(tuple(sizes)) == str(aten.shape(node.args[0])):
                return first
            if name in ("view", "reshape", "_unsafe_view"):
                given = fx.node.map_arg(node.args[1], self._known.__getitem__)
                return first.reshaped(torch.empty(first.shape, device="meta").reshape(given).shape)
        if not isinstance(first, View):
            raise RefusedError("is accepted on a value, with constant positions")
        return self._each(node, lambda x: x)

    def _each(self, node: fx.Node, of: Callable[[Any], Any]) -> Any:
        """An operation carried out on the positions and signs of views of one value."""
        given = fx.node.map_arg((node.args, node.kwargs), self._known.__getitem__)
        views = [leaf for leaf in tree_leaves(given, is_leaf=_is_view) if isinstance(leaf, View)]
        if any(v.value.index != views[0].value.index for v in views):
            raise RefusedError("is accepted on one value")

        def carried_out(part: Callable[[View], Tensor]) -> Any:
            args, kwargs = tree_map(lambda x: part(x) if isinstance(x, View) else x, given, is_leaf=_is_view)
            return node.target(*args, **kwargs)  # type: ignore[operator]

        index = carried_out(lambda v: v.index)
        signed = any(v.sign is not None for v in views)
        sign = carried_out(lambda v: torch.ones_like(v.index) if v.sign is None else v.sign) if signed else None
        if isinstance(index, Tensor):
            return View(views[0].value, index, sign)
        return [View(views[0].value, i, None if sign is None else sign[k]) for k, i in enumerate(index)]

    def _activated(self, x: object, f: Activation, node: fx.Node) -> object:
        if not isinstance(x, View):
            return _UNKNOWN if x is _UNKNOWN else self._refuse_scores()
        found = self.builder.whole(x)
        value = self.builder.apply(found.value, f)
        return View(value, found.index.reshape([*self._sizes(node, found.index)]))

    def _refuse_scores(self) -> object:
        raise RefusedError("is applied to attention scores, or to numbers that do not depend on the input")

    def _sizes(self, node: fx.Node, index: Tensor) -> list[int]:
        """The shape of a result that has the numbers of a tensor, which may have another shape."""
        sizes = [n if type(n) is int else -1 for n in aten.shape(node) or ()]
        return sizes if sizes.count(-1) <= 1 else list(index.shape)

    def _norm(self, node: fx.Node, entering: fx.Node, norm: NormRead) -> object:
        x = self._known[entering]
        if not isinstance(x, View):
            return _UNKNOWN if x is _UNKNOWN else self._refuse_scores()
        weight = norm.weight
        if weight is not None and norm.one_plus is not None:
            weight = 1.0 + weight.detach().to(norm.one_plus)
            self.builder.rounds = True
        found = _normed(self.builder, x, norm.features, weight, None, norm.eps, centred=False)
        return View(found.value, found.index.reshape(self._sizes(node, found.index)))


def _is_view(x: object) -> bool:
    return isinstance(x, View | Scores)


def _written_out(node: fx.Node) -> tuple[fx.Node, str] | None:
    """The node and the function of it that a product computes: an activation that is written as several operations."""
    if aten.name(node) not in ("mul", "div") or not isinstance(node.target, OpOverload):
        return None
    inside, leaves = [node], dict[fx.Node, None]()
    for x in inside:
        before = [aten.origin(y) for y in x.all_input_nodes] if aten.name(x) in _ELEMENTWISE else []
        leaves.update(dict.fromkeys(before))
        inside += [y for y in dict.fromkeys(before) if y not in inside] if len(inside) < _LONGEST else []
    for leaf in leaves:
        try:
            found = read(node, lambda x, leaf=leaf: x is leaf)  # type: ignore[misc]
        except NotElementwiseError:
            continue
        if len(found.nodes) > 1 and (name := function_of(found.expression)) is not None:
            return leaf, name
    return None


def _normed(
    b: SequenceBuilder, x: View, features: int, weight: Tensor | None, bias: Tensor | None, eps: float | None, *, centred: bool
) -> View:  # fmt: skip
    gain = np.ones(features, b.dtype) if weight is None else b.finite(weight)
    shift = np.zeros(features, b.dtype) if bias is None else b.finite(bias)
    epsilon = float(np.finfo(b.dtype).eps) if eps is None else eps
    fields = {"gain": gain, "shift": shift, "epsilon": epsilon, "centred": centred}
    return b.by_vector(x, lambda value: b.add(Norm, value, **fields))


def layer_norm(
    b: SequenceBuilder, x: View, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float,
    cudnn_enable: bool = True,
) -> View:  # fmt: skip
    _one_axis(x, normalized_shape, weight, bias)
    return _normed(b, x, normalized_shape[0], weight, bias, eps, centred=True)


def rms_norm(b: SequenceBuilder, x: View, normalized_shape: list[int], weight: Tensor | None, eps: float | None) -> View:
    _one_axis(x, normalized_shape, weight)
    return _normed(b, x, normalized_shape[0], weight, None, eps, centred=False)


def _one_axis(x: object, sizes: list[int], *constants: object) -> None:
    if not isinstance(x, View) or any(isinstance(c, View) for c in constants):
        raise RefusedError("is accepted on a value, with constant gain and shift")
    if len(sizes) != 1:
        raise RefusedError(f"normalises {len(sizes)} axes at once: one is accepted")


def embedding(b: SequenceBuilder, weight: object, indices: object, **_: object) -> View:
    if not isinstance(weight, Tensor) or not isinstance(indices, View):
        raise RefusedError("is accepted with a constant table")
    if not (b.ids and indices.value.index == 0 and indices.sign is None):
        raise RefusedError("looks up positions that are computed from the input: token ids are accepted")
    value = b.add(Embed, b.input, table=b.finite(weight))
    return View(value, indices.index[..., None] * value.shape[-1] + torch.arange(value.shape[-1]))


def linear(b: SequenceBuilder, x: object, weight: object, bias: object = None) -> View:
    if not isinstance(x, View) or not isinstance(weight, Tensor) or isinstance(bias, View | Scores):
        raise RefusedError("is accepted on a value, with constant weight and bias")
    added = None if bias is None else b.finite(bias)  # type: ignore[arg-type]
    return b.by_vector(x, lambda value: b.add(Affine, value, weight=b.finite(weight), bias=added))


def matmul(b: SequenceBuilder, x: object, other: object = None, mat2: object = None) -> View | Scores:
    right = mat2 if other is None else other
    if isinstance(x, View) and isinstance(right, View):
        return scores(x, right)
    if isinstance(x, Scores) and isinstance(right, View):
        return attend(b, x, right)
    if isinstance(x, View) and isinstance(right, Tensor) and right.ndim == 2:
        return linear(b, x, right.T)
    raise RefusedError("multiplies matrices that are neither attention nor a linear map")


def addmm(b: SequenceBuilder, x: object, mat1: object, mat2: object, beta: float = 1, alpha: float = 1) -> View:
    """bias + x W, the bias first."""
    if beta != 1 or alpha != 1 or not isinstance(mat2, Tensor) or mat2.ndim != 2:
        raise RefusedError("is accepted as bias + x W, with constant W")
    return linear(b, mat1, mat2.T, x)


def baddbmm(b: SequenceBuilder, x: object, batch1: object, batch2: object, beta: float = 1, alpha: float = 1) -> Scores:
    """beta·constant + alpha·QKᵀ."""
    if not isinstance(x, Tensor) or not isinstance(batch1, View) or not isinstance(batch2, View):
        raise RefusedError("is accepted as constant + QKᵀ")
    found = scores(batch1, batch2).times(float(alpha))
    return found.plus(x.to(torch.float64) * beta) if beta else found


def softmax(b: SequenceBuilder, x: object, dim: int, dtype: object = None, half_to_float: bool = False) -> Scores:
    if not isinstance(x, Scores):
        raise RefusedError(HINTS["softmax"])
    return x.softmax(dim)


def masked_fill(b: SequenceBuilder, x: object, mask: object, value: object) -> Scores:
    if not isinstance(x, Scores) or not isinstance(mask, Tensor) or not isinstance(value, int | float | Tensor):
        raise RefusedError("is accepted on attention scores, with a constant mask")
    return x.masked(mask, float(value))


def where(b: SequenceBuilder, condition: object, x: object, other: object) -> Scores:
    if not isinstance(condition, Tensor):
        raise RefusedError("has a condition that depends on the input")
    if isinstance(x, Scores) and isinstance(other, int | float | Tensor):
        return x.masked(~condition, _largest(other))
    if isinstance(other, Scores) and isinstance(x, int | float | Tensor):
        return other.masked(condition, _largest(x))
    raise RefusedError("is accepted on attention scores, with a constant mask")


def _largest(x: float | Tensor) -> float:
    return float(x.max()) if isinstance(x, Tensor) else float(x)


def add(b: SequenceBuilder, x: object, other: object, alpha: float = 1, *, sign: float = 1.0) -> View | Scores:
    """x + sign·alpha·other."""
    factor = sign * alpha
    if isinstance(x, View) and isinstance(other, View):
        left, right, index = b.pair(x, other)
        return View(b.combine([left, right], [1.0, factor]), index)
    if abs(factor) != 1:
        raise RefusedError("has an alpha and a constant: alpha is accepted between two values")
    if isinstance(x, Scores) and isinstance(other, int | float | Tensor):
        return x.plus(factor * torch.as_tensor(other))
    if isinstance(other, Scores) and isinstance(x, int | float | Tensor):
        return other.times(factor).plus(torch.as_tensor(x))
    if isinstance(x, View) and isinstance(other, int | float | Tensor):
        return b.scale(x, None, factor * _constant(b, other))
    if isinstance(other, View) and isinstance(x, int | float | Tensor):
        return b.scale(other, None, _constant(b, x), sign=factor)
    raise RefusedError("adds attention scores and values")


def sub(b: SequenceBuilder, x: object, other: object, alpha: float = 1) -> View | Scores:
    return add(b, x, other, alpha, sign=-1.0)


def rsub(b: SequenceBuilder, x: object, other: object, alpha: float = 1) -> View | Scores:
    return add(b, other, x, alpha, sign=-1.0)


def _constant(b: SequenceBuilder, c: float | Tensor) -> Tensor:
    """A number in the source's dtype if that holds it, else in float64."""
    return c if isinstance(c, Tensor) else torch.as_tensor(b.in_dtype(b.number(c)))


def mul(b: SequenceBuilder, x: object, other: object) -> View | Scores:
    if isinstance(x, View) and isinstance(other, View):
        left, right, index = b.pair(x, other)
        if left.index == right.index:
            return View(b.apply(left, Activation(square())), index)
        return View(b.add(Product, left, right), index)
    data, c = (x, other) if isinstance(x, View | Scores) else (other, x)
    number = float(c) if isinstance(c, int | float) or (isinstance(c, Tensor) and c.numel() == 1) else None
    if isinstance(data, Scores) and number is not None:
        return data.times(b.number(number))
    if isinstance(data, View) and number is not None and not (isinstance(c, Tensor) and c.ndim > data.index.ndim):
        if number == -1:
            return neg(b, data)
        found = b.whole(data)
        return View(b.scaled(found.value, b.number(number)), found.index)
    if isinstance(data, View) and isinstance(c, Tensor):
        return b.scale(data, c, None)
    raise RefusedError("multiplies attention scores by a value or by a tensor")


def div(b: SequenceBuilder, x: object, other: object, rounding_mode: str | None = None) -> View | Scores:
    if rounding_mode is not None or not isinstance(x, View | Scores) or not isinstance(other, int | float | Tensor):
        raise RefusedError("divides by a value, or rounds: division by a number is accepted")
    if isinstance(x, Scores):
        c = b.number(float(other)) if not isinstance(other, Tensor) or other.numel() == 1 else 0.0
        if c == 0:
            raise RefusedError("divides attention scores by zero or by a tensor")
        return x.times(1 / c)
    found, numbers = b.around(x, _constant(b, other))
    same = numbers.reshape(-1)[0]
    whole = b.matrix(found.value)
    return View(b.divided(whole, same if bool((numbers == same).all()) else numbers), found.index)


def neg(b: SequenceBuilder, x: object) -> View | Scores:
    if isinstance(x, Scores):
        return x.times(-1.0)
    assert isinstance(x, View)
    b.check(x)
    return View(x.value, x.index, -(torch.ones_like(x.index) if x.sign is None else x.sign))


def cat(b: SequenceBuilder, tensors: list[object], dim: int = 0) -> View:
    """Tensors along an axis. Constants are numbers added to a part that is zero."""
    given = [x for x in tensors if not (x.index if isinstance(x, View) else torch.as_tensor(x)).numel() == 0]
    views = [x for x in given if isinstance(x, View)]
    if len(views) < len(given):
        raise RefusedError("joins values and constants: values are accepted")
    if all(v.value.index == views[0].value.index for v in views):
        signed = any(v.sign is not None for v in views)
        signs = [torch.ones_like(v.index) if v.sign is None else v.sign for v in views]
        return View(views[0].value, torch.cat([v.index for v in views], dim), torch.cat(signs, dim) if signed else None)
    return b.joined(views, dim)


def stack(b: SequenceBuilder, tensors: list[object], dim: int = 0) -> View:
    if not all(isinstance(x, View) for x in tensors):
        raise RefusedError("joins values and constants: values are accepted")
    views = [x for x in tensors if isinstance(x, View)]
    at = dim % (views[0].index.ndim + 1)
    grown = [View(v.value, v.index.unsqueeze(at), None if v.sign is None else v.sign.unsqueeze(at)) for v in views]
    return cat(b, list(grown), at)


def total(b: SequenceBuilder, x: object, dim: list[int] | None, keepdim: bool = False, dtype: object = None) -> View:
    """The sum over the tokens."""
    if not isinstance(x, View) or dim is None or len(dim) != 1 or dtype is not None:
        raise RefusedError("is accepted over the tokens of a value")
    found = b.ordered(View(x.value, x.index.movedim(dim[0], 1), None if x.sign is None else x.sign.movedim(dim[0], 1)))
    shape, value = found.index.shape, found.value
    ordered = torch.equal(found.index.reshape(-1), torch.arange(found.index.numel()))
    if not ordered or len(value.shape) != 2 or value.shape[0] != shape[1] or len(shape) < 3:
        raise RefusedError("is accepted over the tokens of a value")
    result = b.add(Mix, value, matrix=np.ones((1, shape[1]), b.dtype))
    index = torch.arange(b.batch * value.shape[1]).reshape(shape[0], *shape[2:])
    return View(result, index.unsqueeze(dim[0]) if keepdim else index)


def mean(b: SequenceBuilder, x: object, dim: list[int] | None = None, keepdim: bool = False, dtype: object = None) -> View:
    found = total(b, x, dim, keepdim, dtype)
    assert isinstance(x, View) and dim is not None
    return View(b.divided(found.value, np.float64(x.index.shape[dim[0]])), found.index)


# by the name of the ATen operation
OPERATIONS: Mapping[str, Callable[..., object]] = {
    "layer_norm": layer_norm, "rms_norm": rms_norm, "embedding": embedding, "linear": linear, "matmul": matmul, "mm": matmul,
    "bmm": matmul, "addmm": addmm, "baddbmm": baddbmm, "softmax": softmax, "_softmax": softmax, "masked_fill": masked_fill,
    "where": where, "add": add, "sub": sub, "rsub": rsub, "mul": mul, "multiply": mul, "div": div, "divide": div, "true_divide": div,
    "neg": neg, "negative": neg, "cat": cat, "concat": cat, "stack": stack, "sum": total, "mean": mean,
    "scaled_dot_product_attention": lambda b, **given: fused(b, **given),
}  # fmt: skip
KNOWN = frozenset({*OPERATIONS, *ACTIVATIONS, *ARRANGES, *aten.CASTS, *aten.DROPOUTS, "sym_size"})
