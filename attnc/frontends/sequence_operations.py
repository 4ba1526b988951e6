"""Operations of sequence models on views and attention scores, as steps of a program: the table `OPERATIONS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from attnc.frontends.activations import RefusedError
from attnc.frontends.attention import Scores, attend, fused, scores
from attnc.frontends.operations import HINTS
from attnc.frontends.problems import DTYPES
from attnc.frontends.transformers.norms import LEAST_EPS
from attnc.frontends.views import SequenceBuilder, View
from attnc.functions import square
from attnc.program import Affine, Embed, Mix, Norm, Product

Number = int | float | Tensor  # what does not depend on the input


def normed(
    b: SequenceBuilder, x: View, features: int, weight: Tensor | None, bias: Tensor | None, eps: float | None, *, centred: bool
) -> View:  # fmt: skip
    gain = np.ones(features, b.dtype) if weight is None else b.finite(weight)
    shift = np.zeros(features, b.dtype) if bias is None else b.finite(bias)
    epsilon = float(np.finfo(b.dtype).eps) if eps is None else eps
    if 0 <= epsilon < LEAST_EPS:
        why = "so that rounding does not matter for tiny inputs"
        raise RefusedError(f"has eps={epsilon:g}: give at least {LEAST_EPS:g}, {why}")
    fields = {"gain": gain, "shift": shift, "epsilon": epsilon, "centred": centred}
    return b.by_vector(x, lambda value: b.add(Norm, value, **fields))


def layer_norm(
    b: SequenceBuilder, x: View, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float,
    cudnn_enable: bool = True,
) -> View:  # fmt: skip
    _one_axis(x, normalized_shape, weight, bias)
    return normed(b, x, normalized_shape[0], weight, bias, eps, centred=True)


def rms_norm(
    b: SequenceBuilder, x: View, normalized_shape: list[int], weight: Tensor | None, eps: float | None
) -> View:
    _one_axis(x, normalized_shape, weight)
    return normed(b, x, normalized_shape[0], weight, None, eps, centred=False)


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


def addmm(
    b: SequenceBuilder, x: object, mat1: object, mat2: object, beta: float = 1, alpha: float = 1
) -> View:
    """bias + x W, the bias first."""
    if beta != 1 or alpha != 1 or not isinstance(mat2, Tensor) or mat2.ndim != 2:
        raise RefusedError("is accepted as bias + x W, with constant W")
    return linear(b, mat1, mat2.T, x)


def baddbmm(
    b: SequenceBuilder, x: object, batch1: object, batch2: object, beta: float = 1, alpha: float = 1
) -> Scores:
    """beta·constant + alpha·QKᵀ."""
    if not isinstance(x, Tensor) or not isinstance(batch1, View) or not isinstance(batch2, View):
        raise RefusedError("is accepted as constant + QKᵀ")
    found = scores(batch1, batch2).times(float(alpha))
    return found.plus(x.to(torch.float64) * beta) if beta else found


def softmax(
    b: SequenceBuilder, x: object, dim: int, dtype: torch.dtype | None = None, half_to_float: bool = False
) -> Scores:
    if not isinstance(x, Scores):
        raise RefusedError(HINTS["softmax"])
    if half_to_float or dtype not in (None, *DTYPES):
        raise RefusedError(f"is taken in {dtype}: float32 and float64 are accepted")
    return x.softmax(dim)


def masked_fill(b: SequenceBuilder, x: object, mask: object, value: object) -> Scores:
    if not isinstance(x, Scores) or not isinstance(mask, Tensor) or not isinstance(value, Number):
        raise RefusedError("is accepted on attention scores, with a constant mask")
    return x.masked(mask, float(value))


def where(b: SequenceBuilder, condition: object, x: object, other: object) -> Scores:
    if not isinstance(condition, Tensor):
        raise RefusedError("has a condition that depends on the input")
    if isinstance(x, Scores) and isinstance(other, Number):
        return x.masked(~condition, _largest(other))
    if isinstance(other, Scores) and isinstance(x, Number):
        return other.masked(condition, _largest(x))
    raise RefusedError("is accepted on attention scores, with a constant mask")


def _largest(x: float | Tensor) -> float:
    return float(x.max()) if isinstance(x, Tensor) else float(x)


def add(
    b: SequenceBuilder, x: object, other: object, alpha: float = 1, *, sign: float = 1.0
) -> View | Scores:
    """x + sign·alpha·other."""
    factor = sign * alpha
    if isinstance(x, View) and isinstance(other, View):
        left, right, index = b.pair(x, other)
        return View(b.combine([left, right], [1.0, factor]), index)
    if abs(factor) != 1:
        raise RefusedError("has an alpha and a constant: alpha is accepted between two values")
    if isinstance(x, Scores) and isinstance(other, Number):
        return x.plus(factor * torch.as_tensor(other))
    if isinstance(other, Scores) and isinstance(x, Number):
        return other.times(factor).plus(torch.as_tensor(x))
    if isinstance(x, View) and isinstance(other, Number):
        return b.scale(x, None, factor * _constant(b, other))
    if isinstance(other, View) and isinstance(x, Number):
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
            return View(b.apply(left, square()), index)
        return View(b.add(Product, left, right), index)
    data, c = (x, other) if isinstance(x, View | Scores) else (other, x)
    number = float(c) if isinstance(c, int | float) or (isinstance(c, Tensor) and c.numel() == 1) else None
    if isinstance(data, Scores) and number is not None:
        return data.times(b.number(number))
    if (
        isinstance(data, View)
        and number is not None
        and not (isinstance(c, Tensor) and c.ndim > data.index.ndim)
    ):
        if number == -1:
            return neg(b, data)
        found = b.whole(data)
        return View(b.scaled(found.value, b.number(number)), found.index)
    if isinstance(data, View) and isinstance(c, Tensor):
        return b.scale(data, c, None)
    raise RefusedError("multiplies attention scores by a value or by a tensor")


def div(b: SequenceBuilder, x: object, other: object, rounding_mode: str | None = None) -> View | Scores:
    if rounding_mode is not None or not isinstance(x, View | Scores) or not isinstance(other, Number):
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
    return View(x.value, x.index, -x.signs)


def cat(b: SequenceBuilder, tensors: list[object], dim: int = 0) -> View:
    views = [x for x in tensors if isinstance(x, View) and x.index.numel()]
    if any(isinstance(x, Scores) or (isinstance(x, Tensor) and x.numel()) for x in tensors):
        raise RefusedError("joins values and constants: values are accepted")
    if all(v.value.index == views[0].value.index for v in views):
        index, signs = (
            torch.cat(parts, dim) for parts in ([v.index for v in views], [v.signs for v in views])
        )
        return View(views[0].value, index, signs if any(v.sign is not None for v in views) else None)
    return b.joined(views, dim)


def stack(b: SequenceBuilder, tensors: list[object], dim: int = 0) -> View:
    if not all(isinstance(x, View) for x in tensors):
        raise RefusedError("joins values and constants: values are accepted")
    views = [x for x in tensors if isinstance(x, View)]
    at = dim % (views[0].index.ndim + 1)
    grown = [
        View(v.value, v.index.unsqueeze(at), None if v.sign is None else v.sign.unsqueeze(at)) for v in views
    ]
    return cat(b, list(grown), at)


def total(
    b: SequenceBuilder, x: object, dim: list[int] | None, keepdim: bool = False, dtype: object = None
) -> View:
    """The sum over the tokens."""
    if not isinstance(x, View) or dim is None or len(dim) != 1 or dtype is not None:
        raise RefusedError("is accepted over the tokens of a value")
    found = b.ordered(
        View(x.value, x.index.movedim(dim[0], 1), None if x.sign is None else x.sign.movedim(dim[0], 1))
    )
    shape, value = found.index.shape, found.value
    ordered = torch.equal(found.index.reshape(-1), torch.arange(found.index.numel()))
    if not ordered or len(value.shape) != 2 or value.shape[0] != shape[1] or len(shape) < 3:
        raise RefusedError("is accepted over the tokens of a value")
    result = b.add(Mix, value, matrix=np.ones((1, shape[1]), b.dtype))
    index = torch.arange(b.batch * value.shape[1]).reshape(shape[0], *shape[2:])
    return View(result, index.unsqueeze(dim[0]) if keepdim else index)


def mean(
    b: SequenceBuilder, x: object, dim: list[int] | None = None, keepdim: bool = False, dtype: object = None
) -> View:
    found = total(b, x, dim, keepdim, dtype)
    assert isinstance(x, View) and dim is not None
    return View(b.divided(found.value, np.float64(x.index.shape[dim[0]])), found.index)


# by the name of the ATen operation
OPERATIONS: Mapping[str, Callable[..., object]] = {
    "layer_norm": layer_norm, "rms_norm": rms_norm, "embedding": embedding, "linear": linear, "matmul": matmul, "mm": matmul,
    "bmm": matmul, "addmm": addmm, "baddbmm": baddbmm, "softmax": softmax, "_softmax": softmax, "masked_fill": masked_fill,
    "where": where, "add": add, "sub": sub, "rsub": rsub, "mul": mul, "multiply": mul, "div": div, "divide": div,
    "true_divide": div, "neg": neg, "negative": neg, "cat": cat, "concat": cat, "stack": stack, "sum": total, "mean": mean,
    "scaled_dot_product_attention": fused,
}  # fmt: skip
