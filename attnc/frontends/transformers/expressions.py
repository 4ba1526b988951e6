"""Elementwise operations of a captured graph as expressions, and the function of `attnc.functions` that an expression is."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn

from attnc import functions
from attnc.errors import AttncError
from attnc.frontends import aten
from attnc.frontends.activations import ACTIVATIONS, RefusedError, activation
from attnc.frontends.capture import CaptureError, capture

Expression = tuple[Any, ...]  # an operation or a label, and its arguments, nested; ("s", i) is the i-th leaf
MARK, PRODUCT = "attnc.mark", "attnc.product"  # a converted activation or product in a captured graph
# beside those of ACTIVATIONS
_UNARY = ("erf", "sqrt", "rsqrt", "log1p", "reciprocal", "log", "sign", "clamp_max")
COMMUTATIVE = ("add", "mul", "maximum", "minimum")
_BINARY = (*COMMUTATIVE, "sub", "div")


class NotElementwiseError(AttncError):
    """An operation that is not understood as elementwise arithmetic."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        super().__init__(aten.name(node) or str(node.name))


class Reading:
    """The value of a node as an expression of leaves ("s", 0), ("s", 1), …, the operations in between, and why some of these are
    no function of `attnc.functions`. Raises NotElementwiseError."""

    def __init__(self, node: fx.Node, is_leaf: Callable[[fx.Node], bool]) -> None:
        self.leaves: list[fx.Node] = []
        self.nodes: list[fx.Node] = []
        self.refusals: list[str] = []
        self._known: dict[fx.Node, Expression] = {}
        self._is_leaf = is_leaf
        self.expression = self._read(node, node)

    def _read(self, x: object, reader: fx.Node) -> Expression:
        if isinstance(x, (int, float)) and not isinstance(x, bool):
            return ("number", float(x))
        if not isinstance(x, fx.Node):
            raise NotElementwiseError(reader)
        x = aten.origin(x)
        if x not in self._known and self._is_leaf(x):
            self._known[x] = ("s", len(self.leaves))
            self.leaves.append(x)
        elif x not in self._known:
            self.nodes.append(x)
            self._known[x] = self._operation(x)
        return self._known[x]

    def _operation(self, node: fx.Node) -> Expression:
        """The operation in a form that does not depend on how it is written: relu for clamp(min=0), square for x·x and x²."""
        op, given = aten.name(node), aten.arguments(node)
        if op in (MARK, PRODUCT):
            return (
                op,
                str(given["name"]),
                *(self._read(given[key], node) for key in ("x", "y") if key in given),
            )
        if op == "neg":
            return _binary("mul", ("number", -1.0), self._read(given["self"], node))
        if op in _BINARY and _is_plain(node, given):
            return _binary(op, self._read(given["self"], node), self._read(given["other"], node))
        rest = {key: value for key, value in given.items() if key not in ("self", "input", "generator")}
        plain = all(value is None or isinstance(value, (int, float, str)) for value in rest.values())
        if op not in (*ACTIVATIONS, *_UNARY) or not plain:
            raise NotElementwiseError(node)
        x = self._read(given.get("self", given.get("input")), node)
        if op in ACTIVATIONS:
            try:
                found = activation(op, rest)
                if found.deviation == 0:
                    return (found.function.label, x)
                self.refusals.append(f"{op} has threshold={rest['threshold']:g}: use threshold=float('inf')")
            except RefusedError as refusal:
                self.refusals.append(f"{op} {refusal}")
        return (op, x, *rest.values())


def _is_plain(node: fx.Node, given: dict[str, Any]) -> bool:
    """Whether both sides have the shape of the result, or one is a number: nothing is broadcast or scaled."""
    sides = [s for s in (given["self"], given["other"]) if isinstance(s, fx.Node)]
    same = all((aten.shape(s), aten.dtype(s)) == (aten.shape(node), aten.dtype(node)) for s in sides)
    return same and given.get("alpha", 1) == 1 and given.get("rounding_mode") is None


def _binary(op: str, a: Expression, b: Expression) -> Expression:
    """Products of products are one product: neither order nor brackets matter."""
    if op == "mul" and a == b:
        return ("square", a)
    parts = [inner for e in (a, b) for inner in (e[1:] if op == e[0] == "mul" else (e,))]
    return (op, *(sorted(parts, key=repr) if op in COMMUTATIVE else parts))


def is_nonlinear(expression: Expression) -> bool:
    """Whether anything but sums, multiples and differences is in it."""
    if expression[0] in ("s", "number"):
        return False
    inner = [e for e in expression[1:] if isinstance(e, tuple)]
    if expression[0] in ("add", "sub"):
        return any(map(is_nonlinear, inner))
    if expression[0] in ("mul", "div"):
        return any(map(is_nonlinear, inner)) or sum(e[0] != "number" for e in inner) > 1
    return True


def function_of(expression: Expression) -> str | None:
    """The name of the function of `attnc.functions` that an expression of ("s", 0) is, or None."""
    name = str(expression[0]) if expression[1:] == (("s", 0),) else None
    if name is None or name in _UNARY:
        name = _written_out().get(expression) or _registered(expression)
    try:
        return None if name is None else functions.get(name).label
    except AttncError:
        return None


_ROOT = math.sqrt(2 / math.pi)  # as python computes it
# activations that transformers and others write out in several operations
_WRITTEN_OUT: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda s: 0.5 * s * (1.0 + torch.tanh(_ROOT * (s + 0.044715 * torch.pow(s, 3.0)))),
    "gelu": lambda s: s * 0.5 * (1.0 + torch.erf(s / math.sqrt(2.0))),
    "quick_gelu": lambda s: s * torch.sigmoid(1.702 * s),
    "gelu_fast": lambda s: 0.5 * s * (1.0 + torch.tanh(s * 0.7978845608 * (1.0 + 0.044715 * s * s))),
    "gelu_bloom": lambda s: s * 0.5 * (1.0 + torch.tanh(0.79788456 * s * (1 + 0.044715 * s * s))),
    "gelu_10": lambda s: torch.clip(nn.functional.gelu(s), -10, 10),
    "relu2": lambda s: torch.square(nn.functional.relu(s)),
    "silu": lambda s: s * torch.sigmoid(s),
    "softsign": lambda s: s / (1 + s.abs()),
}
_BUILT_IN = frozenset(functions.names())  # when attnc is imported, before anything is registered


@cache
def _written_out() -> dict[Expression, str]:
    return {expression_of(form): name for name, form in _WRITTEN_OUT.items()}


def _registered(expression: Expression) -> str | None:
    """A function that the user has registered, whose torch form consists of the same operations."""
    for name in set(functions.names()) - _BUILT_IN:
        try:
            known = functions.get(name)
            if known.provable and expression_of(known.torch_form) == expression:
                return name
        except AttncError:
            continue
    return None


def expression_of(form: Callable[[Tensor], Tensor]) -> Expression:
    """What a function of a tensor computes: 2 s σ(s) is ("mul", ("number", 2.0), ("s", 0), ("sigmoid", ("s", 0)))."""
    module = nn.Module().eval()
    module.forward = lambda s: form(s)  # torch's own functions have no signature
    found = capture(module, (torch.zeros(3, 4, dtype=torch.float64),))
    (returned,) = found.outputs
    if not isinstance(returned, fx.Node):
        raise CaptureError("", form, "returns no tensor that it computes")
    return Reading(returned, lambda node: node in found.inputs).expression
