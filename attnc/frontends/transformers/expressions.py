"""Which function of `attnc.functions` a run of elementwise operations computes: by what they are, not by what they are called."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from attnc import functions
from attnc.errors import AttncError
from attnc.frontends import aten
from attnc.frontends.capture import CaptureError, capture
from attnc.functions import Function

Expression = tuple[
    Any, ...
]  # an operation and its arguments, nested; the argument of the function is ("s", i)
MARK, PRODUCT = (
    "attnc.mark",
    "attnc.product",
)  # what a converted activation and a converted product are captured as
_UNARY = {
    "relu", "silu", "mish", "tanh", "sigmoid", "exp", "sin", "cos", "erf", "abs", "selu", "hardswish", "hardsigmoid", "sqrt",
    "rsqrt", "log1p", "reciprocal", "log", "sign",
}  # fmt: skip
_PARAMETERS = {
    "gelu": ("approximate",), "leaky_relu": ("negative_slope",), "elu": ("alpha", "scale", "input_scale"), "celu": ("alpha",),
    "softplus": ("beta", "threshold"), "softshrink": ("lambd",),
}  # fmt: skip
_BINARY = {"add", "sub", "mul", "div", "maximum", "minimum"}


class NotElementwiseError(AttncError):
    """An operation that is not understood as elementwise arithmetic."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        super().__init__(aten.name(node) or str(node.name))


@dataclass
class Reading:
    """An expression, the nodes that make its arguments ("s", 0), ("s", 1), …, and the operations in between."""

    leaves: list[fx.Node] = field(default_factory=list)
    nodes: list[fx.Node] = field(default_factory=list)
    expression: Expression = ()


def read(node: fx.Node, is_leaf: Callable[[fx.Node], bool]) -> Reading:
    """The value of a node as an expression of the leaves it is computed from; NotElementwiseError where it is none."""
    found = Reading()
    found.expression = _read(node, is_leaf, found, {})
    return found


def _read(
    node: fx.Node, is_leaf: Callable[[fx.Node], bool], found: Reading, known: dict[fx.Node, Expression]
) -> Expression:
    node = aten.origin(node)
    if node not in known:
        if is_leaf(node):
            known[node] = ("s", len(found.leaves))
            found.leaves.append(node)
        else:
            found.nodes.append(node)

            def inner(x: object) -> Expression:
                if isinstance(x, fx.Node):
                    return _read(x, is_leaf, found, known)
                if isinstance(x, (int, float)) and not isinstance(x, bool):
                    return ("number", float(x))
                raise NotElementwiseError(node)

            known[node] = _operation(node, inner)
    return known[node]


def _operation(node: fx.Node, inner: Callable[[object], Expression]) -> Expression:
    """The operation in a form that does not depend on how it is spelled: relu for clamp(min=0), square for x·x and x²."""
    op, given = aten.name(node), aten.arguments(node)
    x = given.get("self", given.get("input"))
    if op in (MARK, PRODUCT):
        return (op, str(given["name"]), *(inner(given[key]) for key in ("x", "y") if key in given))
    if op in _UNARY:
        return (op, inner(x))
    if op in _PARAMETERS:
        return (op, inner(x), *(given[key] for key in _PARAMETERS[op]))
    if op in ("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "clip"):
        ends = (given.get("min", given.get("min_val")), given.get("max", given.get("max_val")))
        return _clipped(inner(x), (0.0, 6.0) if op == "relu6" else ends, node)
    if op == "threshold" and given["threshold"] == 0 == given["value"]:
        return ("relu", inner(x))
    if op in ("square", "pow"):
        power = 2.0 if op == "square" else given["exponent"]
        if isinstance(power, (int, float)):
            return ("square", inner(x)) if power == 2 else ("pow", inner(x), float(power))
    if op == "neg":
        return _product([("number", -1.0), inner(x)])
    if op in _BINARY and _is_plain(node, given):
        return _binary(op, inner(x), inner(given["other"]))
    raise NotElementwiseError(node)


def _is_plain(node: fx.Node, given: dict[str, Any]) -> bool:
    """Whether both sides have the shape of the result, or one is a number: nothing is broadcast or scaled beside."""
    sides = [s for s in (given["self"], given["other"]) if isinstance(s, fx.Node)]
    same = all(
        aten.shape(side) == aten.shape(node) and aten.dtype(side) == aten.dtype(node) for side in sides
    )
    return same and given.get("alpha", 1) == 1 and given.get("rounding_mode") is None


def _binary(op: str, a: Expression, b: Expression) -> Expression:
    if op == "mul":
        return ("square", a) if a == b else _product([a, b])
    if op in ("add", "maximum", "minimum"):
        return (op, *sorted((a, b), key=repr))
    return (op, a, b)


def _product(factors: Iterable[Expression]) -> Expression:
    """Products of products are one product: neither order nor brackets matter."""
    flat = [inner for f in factors for inner in (f[1:] if f[0] == "mul" else (f,))]
    return ("mul", *sorted(flat, key=repr))


def _clipped(x: Expression, ends: tuple[object, object], node: fx.Node) -> Expression:
    lo, hi = (None if end is None else end for end in ends)
    if any(end is not None and not isinstance(end, (int, float)) for end in (lo, hi)):
        raise NotElementwiseError(node)
    if lo == 0 and hi is None:
        return ("relu", x)
    return ("clip", x, None if lo is None else float(lo), None if hi is None else float(hi))  # type: ignore[arg-type]


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
    """The name of the function of `attnc.functions` that an expression of ("s", 0) is, or None.

    >>> s = ("s", 0)
    >>> function_of(("gelu", s, "tanh")), function_of(("clip", s, 0.0, 8.0)), function_of(("softplus", s, 1.0, 20.0))
    ('gelu_tanh', 'clip(0,8)', None)
    >>> function_of(("mul", s, ("sigmoid", ("mul", ("number", 1.702), s))))
    'quick_gelu'
    """
    named = _by_parameters(expression)
    if named is None:
        named = _spelled().get(expression) or _registered(expression)
    try:
        return None if named is None else functions.get(named).label
    except AttncError:
        return None


def _by_parameters(e: Expression) -> str | None:
    op, simple = e[0], len(e) > 1 and e[1] == ("s", 0)
    if not simple:
        return None
    plain = (
        "relu",
        "silu",
        "mish",
        "tanh",
        "sigmoid",
        "exp",
        "sin",
        "cos",
        "abs",
        "selu",
        "hardswish",
        "hardsigmoid",
        "square",
    )
    if op in plain and len(e) == 2:
        return str(op)
    if op == "gelu":
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(e[2])
    if op == "softplus":
        return f"softplus({e[2]!r})" if e[3] == math.inf else None
    if op == "elu":
        return f"elu({e[2]!r})" if e[3:] == (1.0, 1.0) else None
    if op == "clip":
        return None if None in e[2:] else f"clip({e[2]!r},{e[3]!r})"
    single = {"leaky_relu": "leaky_relu", "celu": "celu", "softshrink": "soft_threshold"}
    return f"{single[op]}({e[2]!r})" if op in single else None


_ROOT = math.sqrt(2 / math.pi)  # as python computes it: the constant is meant to be √(2/π)
_SPELLINGS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("gelu_tanh", lambda s: 0.5 * s * (1.0 + torch.tanh(_ROOT * (s + 0.044715 * torch.pow(s, 3.0))))),
    ("gelu", lambda s: s * 0.5 * (1.0 + torch.erf(s / math.sqrt(2.0)))),
    ("quick_gelu", lambda s: s * torch.sigmoid(1.702 * s)),
    ("gelu_fast", lambda s: 0.5 * s * (1.0 + torch.tanh(s * 0.7978845608 * (1.0 + 0.044715 * s * s)))),
    ("gelu_10", lambda s: torch.clip(nn.functional.gelu(s), -10, 10)),
    ("relu2", lambda s: torch.square(nn.functional.relu(s))),
    ("silu", lambda s: s * torch.sigmoid(s)),
    ("softsign", lambda s: s / (1 + s.abs())),
)


@functools.cache
def _spelled() -> dict[Expression, str]:
    """Activations that transformers and others write out in several operations."""
    return {expression_of(form): named for named, form in _SPELLINGS}


def _registered(expression: Expression) -> str | None:
    """A function of the user's own whose torch form consists of the same operations."""
    for named in functions.names():
        known = _without_parameters(named)
        if known is None or not known.provable:
            continue
        try:
            if expression_of(known.torch_form) == expression:
                return named
        except (AttncError, CaptureError):
            continue
    return None


def _without_parameters(named: str) -> Function | None:
    if named in _BUILT_IN:
        return None
    try:
        return functions.get(named)
    except AttncError:
        return None


_BUILT_IN = frozenset(functions.names())  # as they are when attnc is imported, before anything is registered


class _Form(nn.Module):
    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._form = form

    def forward(self, s: Tensor) -> Tensor:
        return self._form(s)


def expression_of(form: Callable[[Tensor], Tensor]) -> Expression:
    """What a function of a tensor computes, as an expression of ("s", 0).

    >>> expression_of(lambda s: 2 * s * s.sigmoid())
    ('mul', ('number', 2.0), ('s', 0), ('sigmoid', ('s', 0)))
    """
    found = capture(_Form(form).eval(), (torch.zeros(3, 4, dtype=torch.float64),))
    (returned,) = found.outputs
    if not isinstance(returned, fx.Node):
        raise CaptureError("", type(form).__name__, "does not return a tensor that it computes")
    return read(returned, lambda node: node in found.inputs).expression
