"""ATen operations as scalar operations of a tape. A tensor that depends on the input is a tensor of values (`Symbols`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnc.frontends.activations import RefusedError
from attnc.frontends.tape import Symbols
from attnc.frontends.tape_writer import Real, Writer
from attnc.frontends.trace_piecewise import PIECEWISE

# torch moves the numbers of values as it would move the values
MOVES = frozenset({
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice", "select", "narrow",
    "index", "index_select", "gather", "take", "cat", "stack", "flip", "roll", "repeat", "clone", "alias", "detach", "split",
    "split_with_sizes", "chunk", "unbind", "diagonal", "unfold", "select_scatter", "slice_scatter", "diagonal_scatter",
    "index_put", "lift_fresh_copy", "lift_fresh", "contiguous", "view_as", "copy", "movedim", "as_strided", "_to_copy",
    "view_copy", "expand_copy", "permute_copy", "select_copy", "slice_copy", "unsqueeze_copy", "squeeze_copy", "t_copy",
    "transpose_copy", "diagonal_copy", "_reshape_alias",
})  # fmt: skip


# only the shape of the argument matters
SHAPED = frozenset({"full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full"})


def _matrices(w: Writer, x: Real) -> tuple[Tensor, list[list[list[int]]]]:
    at = w.symbols(x)
    if at.ndim < 2 or at.shape[-1] != at.shape[-2] or at.shape[-1] > 3:
        raise RefusedError(f"takes a matrix of shape {tuple(at.shape)}: 2×2 and 3×3 are traced")
    return at, at.reshape(-1, *at.shape[-2:]).tolist()


def _inverse(w: Writer, A: Real, **_: object) -> tuple[Symbols, None]:
    at, every = _matrices(w, A)
    return Symbols(torch.tensor([w.inverse(m) for m in every]).reshape(at.shape)), None


def _determinant(w: Writer, A: Real, **_: object) -> tuple[Symbols, None, None]:
    at, every = _matrices(w, A)
    return Symbols(torch.tensor([w.determinant(m) for m in every]).reshape(at.shape[:-2])), None, None


def _solve(w: Writer, A: Real, B: Real, left: bool = True, **_: object) -> tuple[Symbols, None, None, None]:
    inverse, right = _inverse(w, A)[0], w.symbols(B)
    if not left:
        raise RefusedError("solves from the right")
    vector = right.ndim == inverse.at.ndim - 1
    found = matmul(w, inverse, Symbols(right.unsqueeze(-1) if vector else right)).at
    return Symbols(found.squeeze(-1) if vector else found), None, None, None


def matmul(w: Writer, x: Real, y: Real) -> Symbols:
    """Products of matrices or stacks of them."""
    a, b = w.symbols(x), w.symbols(y)
    rows = a.unsqueeze(0) if a.ndim == 1 else a
    columns = (b.unsqueeze(1) if b.ndim == 1 else b).mT
    lead = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    left = rows.expand(*lead, *rows.shape[-2:]).reshape(-1, *rows.shape[-2:]).tolist()
    right = columns.expand(*lead, *columns.shape[-2:]).reshape(-1, *columns.shape[-2:]).tolist()
    made = [[[w.dot(r, c) for c in q] for r in p] for p, q in zip(left, right, strict=True)]
    found = torch.tensor(made, dtype=torch.int64).reshape(*lead, rows.shape[-2], columns.shape[-2])
    found = found.squeeze(-1) if b.ndim == 1 else found
    return Symbols(found.squeeze(-2 if b.ndim > 1 else -1) if a.ndim == 1 else found)


def _add(w: Writer, self: Real, other: Real, alpha: float = 1) -> Symbols:
    return w.apply("add", self, other if alpha == 1 else w.apply("multiply", other, float(alpha)))


def _sub(w: Writer, self: Real, other: Real, alpha: float = 1) -> Symbols:
    return w.apply("subtract", self, other if alpha == 1 else w.apply("multiply", other, float(alpha)))


def _div(w: Writer, self: Real, other: Real, rounding_mode: str | None = None) -> Symbols:
    if rounding_mode is not None:
        raise RefusedError(f"rounds its quotients: rounding_mode={rounding_mode!r}")
    return w.apply("divide", self, other)


def _pow(w: Writer, self: Real, exponent: Real) -> Symbols:
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        exponent = float(exponent)
    if isinstance(exponent, (int, float)):
        return w.each(lambda a: w.power(a, float(exponent)), self)
    return w.apply("exp", w.apply("multiply", exponent, w.apply("log", self)))


def _addmm(w: Writer, self: Real, x: Real, y: Real, beta: float = 1, alpha: float = 1) -> Symbols:
    return _add(w, w.apply("multiply", self, float(beta)), matmul(w, x, y), alpha)


def _mean(w: Writer, self: Real, dim: Any = None, keepdim: bool = False, **_: object) -> Symbols:
    total = w.fold(self, dim, keepdim, w.total)
    count = w.symbols(self).numel() // max(1, total.at.numel())
    return w.apply("divide", total, float(count))


def _variance(
    w: Writer, self: Real, dim: Any = None, correction: float | None = 1, keepdim: bool = False
) -> Symbols:
    """Σ (x - mean)²/(n - correction)."""
    middle = _mean(w, self, dim, True)
    off = w.apply("subtract", self, middle)
    squares = w.each(lambda a: w.power(a, 2), off)
    count = off.at.numel() // max(1, middle.at.numel()) - (1 if correction is None else correction)
    if count <= 0:
        raise RefusedError("divides by zero: it has too few values")
    return w.apply("divide", w.fold(squares, dim, keepdim, w.total), float(count))


def _layer_norm(
    w: Writer, input: Real, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Any, ...]:
    dims = list(range(-len(normalized_shape), 0))
    off = w.apply("subtract", input, _mean(w, input, dims, True))
    spread = w.apply("add", _mean(w, w.each(lambda a: w.power(a, 2), off), dims, True), eps)
    found = w.apply("divide", off, w.apply("sqrt", spread))
    found = found if weight is None else w.apply("multiply", found, weight)
    return (found if bias is None else w.apply("add", found, bias)), None, None


def _vector_norm(
    w: Writer, self: Real, ord: float = 2, dim: Any = None, keepdim: bool = False, **_: object
) -> Symbols:
    write = w.tape.write

    def one(row: list[int]) -> int:
        if ord == 2:
            return write("sqrt", w.total([w.power(a, 2) for a in row]))
        sizes = [write("absolute", a) for a in row]
        if ord == 1:
            return w.total(sizes)
        if ord == math.inf:
            return reduce(lambda a, b: write("maximum", a, b), sizes)
        raise RefusedError(f"is a norm of order {ord}: 1, 2 and infinity are traced")

    return w.fold(self, dim, keepdim, one)


def _clamp(w: Writer, self: Real, min: Any = None, max: Any = None) -> Symbols:
    found = self if min is None else w.apply("maximum", self, min)
    return w.apply("minimum", found, max) if max is not None else Symbols(w.symbols(found))


def _softplus(w: Writer, self: Real, beta: float = 1, threshold: float = 20) -> Symbols:
    """log(1 + e^βx)/β, where βx stays below the threshold above which torch returns x."""
    scaled = w.apply("multiply", self, float(beta))
    if max(w.reach(a)[1] for a in scaled.at.flatten().tolist()) > threshold:
        raise RefusedError(f"may exceed its threshold {threshold:g}, where it jumps: give threshold=math.inf")
    return w.apply("divide", w.each(w.softplus, scaled), float(beta))


def _gelu(w: Writer, self: Real, approximate: str = "none") -> Symbols:
    """x(1 + erf(x/√2))/2, or with tanh and the constants of torch."""
    write, constant = w.tape.write, w.tape.constant

    def one(a: int) -> int:
        if approximate == "none":
            inner = write("erf", write("divide", a, write("sqrt", constant(2.0))))
        else:
            cubic = write("add", a, write("multiply", constant(0.044715), w.power(a, 3)))
            inner = w.tanh(write("multiply", constant(math.sqrt(2 / math.pi)), cubic))
        return write("multiply", write("multiply", constant(0.5), a), write("add", constant(1.0), inner))

    return w.each(one, self)


def _elu(w: Writer, self: Real, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Symbols:
    """scale·(max(x, 0) + α(e^min(x, 0) - 1))."""
    write, constant = w.tape.write, w.tape.constant

    def one(a: int) -> int:
        low = write(
            "exp", write("multiply", write("minimum", a, constant(0.0)), constant(float(input_scale)))
        )
        below = write("multiply", constant(float(alpha)), write("subtract", low, constant(1.0)))
        return write(
            "multiply", constant(float(scale)), write("add", write("maximum", a, constant(0.0)), below)
        )

    return w.each(one, self)


def _leaky(w: Writer, self: Real, negative_slope: float = 0.01) -> Symbols:
    low = w.apply("multiply", w.apply("minimum", self, 0.0), float(negative_slope))
    return w.apply("add", w.apply("maximum", self, 0.0), low)


def _extreme(name: str) -> Callable[..., Symbols]:
    def fold(w: Writer, self: Real, dim: Any = None, keepdim: bool = False) -> Symbols:
        return w.fold(self, dim, keepdim, lambda row: reduce(lambda a, b: w.tape.write(name, a, b), row))

    return fold


def _extreme_or_pair(name: str) -> Callable[..., Any]:
    def run(w: Writer, self: Real, dim: Any = None, keepdim: bool = False, other: Any = None) -> Any:
        if other is not None:
            return w.apply(name, self, other)
        found = _extreme(name)(w, self, dim, keepdim)
        return found if dim is None else (found, None)

    return run


def _sort(
    w: Writer, self: Real, dim: int = -1, descending: bool = False, **_: object
) -> tuple[Symbols, None]:
    return w.along(self, dim, lambda row: w.ordered(row)[:: -1 if descending else 1]), None


def _topk(
    w: Writer, self: Real, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Symbols, None]:
    if not sorted:
        raise RefusedError("returns values in any order: give sorted=True")
    return w.along(self, dim, lambda row: (w.ordered(row)[::-1] if largest else w.ordered(row))[:k]), None


def _running(w: Writer, self: Real, dim: int, **_: object) -> Symbols:
    return w.along(self, dim, lambda row: [w.total(row[: i + 1]) for i in range(len(row))])


def _running_extreme(name: str) -> Callable[..., tuple[Symbols, None]]:
    def run(w: Writer, self: Real, dim: int) -> tuple[Symbols, None]:
        return w.along(
            self, dim, lambda row: list(accumulate(row, lambda a, b: w.tape.write(name, a, b)))
        ), None

    return run


def _pad(w: Writer, self: Real, pad: Sequence[int], value: float = 0) -> Symbols:
    return Symbols(torch.constant_pad_nd(w.symbols(self), list(pad), w.tape.constant(float(value))))


def _hypot(w: Writer, self: Real, other: Real) -> Symbols:
    return w.each(lambda a, b: w.tape.write("sqrt", w.dot([a, b], [a, b])), self, other)


def _cross(w: Writer, self: Real, other: Real, dim: int = -1) -> Symbols:
    a, b = (t.movedim(dim, -1) for t in w.broadcast(self, other))
    made = []
    for p, q in zip(a.reshape(-1, 3).tolist(), b.reshape(-1, 3).tolist(), strict=True):
        rest = [(1, 2), (2, 0), (0, 1)]
        made.append([w.cofactor([[0, 0, 0], [0, p[i], p[j]], [0, q[i], q[j]]], 0, 0) for i, j in rest])
    return Symbols(torch.tensor(made).reshape(a.shape).movedim(-1, dim))


def _unary(name: str) -> Callable[..., Symbols]:
    return lambda w, self: w.apply(name, self)


def _formula(write: Callable[[Writer, int], int]) -> Callable[..., Symbols]:
    return lambda w, self: w.each(lambda a: write(w, a), self)


def _hyperbolic(sign: str) -> Callable[[Writer, int], int]:
    def one(w: Writer, a: int) -> int:
        e = w.tape.write("exp", a)
        return w.tape.write("multiply", w.tape.constant(0.5), w.tape.write(sign, e, w.reciprocal(e)))

    return one


def _c(w: Writer, name: str, number: float, a: int) -> int:
    return w.tape.write(name, w.tape.constant(number), a)


def _log_of(base: float) -> Callable[[Writer, int], int]:
    return lambda w, a: w.tape.write(
        "divide", w.tape.write("log", a), w.tape.write("log", w.tape.constant(base))
    )


def _log_softmax(w: Writer, row: list[int]) -> list[int]:
    total = w.logsumexp(row)
    return [w.tape.write("subtract", a, total) for a in row]


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _unary(name) for name in ("exp", "log", "sin", "cos", "sqrt", "erf")},
    "neg": _unary("negate"), "abs": _unary("absolute"), "add": _add, "sub": _sub, "div": _div, "pow": _pow, "true_divide": _div,
    "rsub": lambda w, self, other, alpha=1: _sub(w, other, self, alpha),
    "mul": lambda w, self, other: w.apply("multiply", self, other),
    "square": _formula(lambda w, a: w.power(a, 2)), "reciprocal": _formula(lambda w, a: w.reciprocal(a)),
    "rsqrt": _formula(lambda w, a: w.power(a, -0.5)), "tanh": _formula(lambda w, a: w.tanh(a)),
    "sigmoid": _formula(lambda w, a: w.sigmoid(a)), "silu": _formula(lambda w, a: w.tape.write("multiply", a, w.sigmoid(a))),
    "tan": _formula(lambda w, a: w.tape.write("divide", w.tape.write("sin", a), w.tape.write("cos", a))),
    "expm1": _formula(lambda w, a: w.tape.write("subtract", w.tape.write("exp", a), w.tape.constant(1.0))),
    "log1p": _formula(lambda w, a: w.tape.write("log", _c(w, "add", 1.0, a))), "log2": _formula(_log_of(2.0)),
    "log10": _formula(_log_of(10.0)),
    "exp2": _formula(lambda w, a: w.tape.write("exp", w.tape.write("multiply", a, w.tape.write("log", w.tape.constant(2.0))))),
    "erfc": _formula(lambda w, a: _c(w, "subtract", 1.0, w.tape.write("erf", a))), "sinh": _formula(_hyperbolic("subtract")),
    "cosh": _formula(_hyperbolic("add")), "relu": _formula(lambda w, a: w.tape.write("maximum", a, w.tape.constant(0.0))),
    "log_sigmoid_forward": lambda w, self: (w.each(lambda a: w.tape.write("log", w.sigmoid(a)), self), None),
    "softplus": _softplus, "gelu": _gelu, "elu": _elu, "leaky_relu": _leaky, "clamp": _clamp,
    "clamp_min": lambda w, self, min: _clamp(w, self, min), "clamp_max": lambda w, self, max: _clamp(w, self, None, max),
    "hardtanh": lambda w, self, min_val=-1, max_val=1: _clamp(w, self, float(min_val), float(max_val)),
    "maximum": lambda w, self, other: w.apply("maximum", self, other),
    "fmax": lambda w, self, other: w.apply("maximum", self, other),
    "minimum": lambda w, self, other: w.apply("minimum", self, other),
    "fmin": lambda w, self, other: w.apply("minimum", self, other),
    "amax": _extreme("maximum"), "amin": _extreme("minimum"),
    "max": _extreme_or_pair("maximum"), "min": _extreme_or_pair("minimum"),
    "logaddexp": lambda w, self, other: w.each(lambda a, b: w.logsumexp([a, b]), self, other),
    "sum": lambda w, self, dim=None, keepdim=False, **_: w.fold(self, dim, keepdim, w.total), "mean": _mean,
    "prod": lambda w, self, dim=None, keepdim=False, **_: w.fold(
        self, dim, keepdim, lambda row: reduce(lambda a, b: w.tape.write("multiply", a, b), row)),
    "var": _variance, "std": lambda w, *given, **k: w.apply("sqrt", _variance(w, *given, **k)), "cumsum": _running,
    "cummax": _running_extreme("maximum"), "cummin": _running_extreme("minimum"),
    "linalg_vector_norm": _vector_norm, "native_layer_norm": _layer_norm, "sort": _sort, "topk": _topk,
    "mm": lambda w, self, mat2: matmul(w, self, mat2), "bmm": lambda w, self, mat2: matmul(w, self, mat2), "matmul": matmul,
    "mv": lambda w, self, vec: matmul(w, self, vec), "dot": lambda w, self, tensor: matmul(w, self, tensor),
    "addmm": lambda w, self, mat1, mat2, **k: _addmm(w, self, mat1, mat2, **k),
    "baddbmm": lambda w, self, batch1, batch2, **k: _addmm(w, self, batch1, batch2, **k),
    "_softmax": lambda w, self, dim, **_: w.along(self, dim, w.softmax),
    "_safe_softmax": lambda w, self, dim, **_: w.along(self, dim, w.softmax),
    "_log_softmax": lambda w, self, dim, **_: w.along(self, dim, lambda row: _log_softmax(w, row)),
    "logsumexp": lambda w, self, dim, keepdim=False: w.fold(self, dim, keepdim, w.logsumexp),
    "linalg_inv_ex": _inverse, "_linalg_det": _determinant, "_linalg_solve_ex": _solve, "linalg_cross": _cross,
    "constant_pad_nd": _pad,
    "hypot": _hypot, **PIECEWISE,
}  # fmt: skip
