"""Heads and networks executed from their stored numbers alone, in their dtype; the errors, and what a witness may claim of them.

The numbers of one input are executed by sums in a fixed order, and the same code states the witness of a new certificate. So a
witness of this machine is met exactly, and one that claims more is false. On a machine whose exp rounds otherwise, an error that
is all rounding may differ: the verdict is then "unknown"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.functions import Function
from attnc.functions.balls import lower, upper, working
from attnc.program.evaluate import exact
from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.records.layers import Layer, NetworkNumbers, heads_of, square_of
from attnc.records.numbers import TENSORS, HeadNumbers

Tensors = Sequence[Tensor]
Products = Callable[[Tensor, Tensor], Tensor]  # x (…, n) and W (…, m, n) ↦ x Wᵀ
PRECISION = 192
ROOM = 1 - 2.0**-10  # of an error that is not rounding: last bits of another machine do not matter


def execute(numbers: HeadNumbers, s: Tensor) -> Tensor:
    """The head as torch runs it in its dtype, from the formula of `HeadNumbers`."""
    dtype = getattr(torch, numbers.dtype)
    query, key, value, output = (torch.tensor(getattr(numbers, name), dtype=dtype) for name in TENSORS)
    s = s.to(dtype)
    rows = max(1, (1 << 22) // key[..., 0].numel())
    parts = []
    for part in torch.split(s, rows):
        x = torch.addcmul(query[:, 1], part[:, None], query[:, 0])
        weights = torch.softmax(torch.addcmul(key[:, :, 1], x[:, :, None], key[:, :, 0]), -1)
        values = part[:, None, None] * value[:, :, 0] + value[:, :, 1]
        parts.append(((weights * values).sum(-1) * output).sum(-1))
    return torch.cat(parts).double()


def execute_network(program: Program, numbers: NetworkNumbers, x: Tensor) -> Tensor:
    """The layers as torch runs them on a batch, in their dtype."""
    return _run(program, numbers, x.reshape(-1, *program.shape), lambda v, W: v @ W.mT)


def execute_one(program: Program, numbers: NetworkNumbers, x: Numbers) -> Numbers:
    """One input of the program's shape, in the dtype, by sums whose order does not depend on threads, batches or memory: another
    run on the same machine returns the same numbers. They are one of the executions that certificates cover."""
    given = torch.from_numpy(np.array(x, numbers.dtype)).reshape(1, *program.shape)
    found: Numbers = _run(program, numbers, given, _in_order).numpy().ravel()
    return found


def _run(program: Program, numbers: NetworkNumbers, x: Tensor, products: Products) -> Tensor:
    values = {0: x}
    for layer in numbers.layers:
        inputs = [values[i] for i in layer.inputs]
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in layer.tensors.items()}
        values[layer.value] = KINDS[layer.kind](layer, inputs, tensors, products)
    return values[
        numbers.layers[-1].value
    ].double()  # the program may be another: what a fitted network means


def _pointwise(layer: Layer, s: Tensor) -> Tensor:
    y = torch.empty_like(s)
    for neurons, head in heads_of(layer):
        part: Any = slice(None) if neurons is None else torch.from_numpy(np.array(neurons))
        given = s[..., part]
        y[..., part] = execute(head, given.reshape(-1)).reshape(given.shape).to(s.dtype)
    return y


def _combine(layer: Layer, inputs: Tensors) -> Tensor:
    c = torch.tensor(layer.settings["coefficients"], dtype=inputs[0].dtype)
    y = c[0] * inputs[0]
    for factor, x in zip(c[1:], inputs[1:], strict=True):
        y = y + factor * x
    return y


def _attend(layer: Layer, inputs: Tensors, t: Mapping[str, Tensor], dot: Products) -> Tensor:
    heads, slices, scale = layer.settings["split"]
    q, *parts = (torch.stack(x.chunk(c, -1), 1) for x, c in zip(inputs, (heads, slices, slices), strict=True))
    k, v = (part.repeat_interleave(heads // slices, 1) for part in parts)
    scores = dot(q, k) * scale
    if "bias" in t:
        scores = scores + t["bias"]
    if "mask" in t:
        scores = scores.masked_fill(t["mask"] == 0, -torch.inf)
    y = dot(torch.softmax(scores, -1), v.mT.contiguous())
    return torch.cat(tuple(y.unbind(1)), -1)


def _norm(layer: Layer, x: Tensor, t: Mapping[str, Tensor]) -> Tensor:
    z = x - x.sum(-1, keepdim=True) / x.shape[-1] if layer.settings["centred"] else x
    score = t["intercept"] - t["slope"] * (z * z).sum(-1, keepdim=True)
    weights = torch.softmax(torch.stack([score, torch.zeros_like(score)], -1), -1)[..., 0]
    return (weights * t["output"]).sum(-1, keepdim=True) * z * t["gain"] + t["shift"]


def _product(layer: Layer, inputs: Tensors, t: Mapping[str, Tensor]) -> Tensor:
    x, y = inputs
    scale, radius = (torch.exp2(t[name].double()).to(x.dtype) for name in ("scale", "radius"))
    head, squares = square_of(layer), []
    for zeta in (x / scale + y * scale, x / scale - y * scale):
        found = execute(head, (zeta / radius).reshape(-1)).reshape(x.shape).to(x.dtype)
        squares.append(found * (radius * radius))
    return (squares[0] - squares[1]) / 4


KINDS: dict[str, Callable[[Layer, Tensors, Mapping[str, Tensor], Products], Tensor]] = {
    "affine": lambda layer, x, t, dot: dot(x[0], t["weight"]) + t.get("bias", 0.0),
    "attend": _attend,
    "batch_norm": lambda layer, x, t, dot: x[0] * t["scale"] + t["shift"],
    "combine": lambda layer, x, t, dot: _combine(layer, x),
    "embed": lambda layer, x, t, dot: t["table"][x[0].long()],
    "lookup": lambda layer, x, t, dot: dot(
        torch.softmax(dot(x[0] - t["centre"], t["key"]) + t["offset"], -1), t["values"].T
    ),
    "mix": lambda layer, x, t, dot: dot(x[0].mT.contiguous(), t["matrix"]).mT,
    "norm": lambda layer, x, t, dot: _norm(layer, x[0], t),
    "pointwise": lambda layer, x, t, dot: _pointwise(layer, x[0]),
    "product": lambda layer, x, t, dot: _product(layer, x, t),
    "reshape": lambda layer, x, t, dot: x[0].reshape(len(x[0]), *layer.settings["to"]),
    "scale": lambda layer, x, t, dot: x[0] * t["scale"] + t["shift"],
}


def _in_order(x: Tensor, W: Tensor) -> Tensor:
    """A row at a time, without the libraries for products of matrices."""
    if W.ndim > 2:
        return torch.stack([_in_order(*pair) for pair in zip(x, W, strict=True)])
    weight, rows = np.ascontiguousarray(W.numpy()), x.numpy().reshape(-1, x.shape[-1])
    made = np.stack([(weight * row).sum(-1) for row in rows])
    return torch.from_numpy(made.reshape(*x.shape[:-1], len(weight)))


def error_of(y: float, meant: arb) -> arb:
    """|y - meant|; infinite if y is not finite."""
    return abs(arb(y) - meant) if np.isfinite(y) else arb("inf")


def refutes(error: arb, bound: arb) -> bool:
    """Whether an error is above the bound for certain."""
    return not error <= bound and (error > bound or not error.is_finite())


def head_error(numbers: HeadNumbers, f: Function, s: float) -> arb:
    """|executed - f| at s, a number of the dtype."""
    (y,) = execute(numbers, torch.tensor([s], dtype=torch.float64)).tolist()
    with working(PRECISION):
        return error_of(y, f.value(s))


def network_errors(program: Program, numbers: NetworkNumbers, x: Array) -> list[arb]:
    """|executed - program| at one input, output by output."""
    meant = exact(program, np.asarray(x, np.float64).reshape(program.shape), PRECISION).ravel()
    executed = execute_one(program, numbers, x).tolist()
    with working(PRECISION):
        return [error_of(y, ball) for y, ball in zip(executed, meant, strict=True)]


def attained(error: arb, known: bool = True) -> float:
    """What a witness may claim of an error. If the function is not `known`, but for values and a Lipschitz constant, some such
    function has this error: the upper end."""
    with working(PRECISION):
        return max(0.0, lower(error)) if known else upper(error)


def check_claim(claimed: float, error: arb, rounding: float, known: bool = True) -> None:
    """Raise `CheckError` if the claim of a witness is false: it may not exceed the error, and fall below it only by the room and
    by what rounding may differ elsewhere."""
    with working(PRECISION):
        understated = error.lower() * arb(ROOM) - 2 * arb(rounding) > arb(claimed)
    if understated or not claimed <= attained(error, known):
        executed = float(error.mid())
        raise CheckError(f"the witness claims an error of {claimed:.6g}, but its error is {executed:.6g}")
