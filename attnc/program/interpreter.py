"""What a program says, executed: exactly, in ball arithmetic (the oracle), or in float64 (a guide)."""

from __future__ import annotations

import numpy as np
import torch
from flint import arb, arb_mat
from numpy.typing import NDArray
from torch import Tensor

from attnc.domain import Array
from attnc.errors import InputError
from attnc.functions.balls import upper, working
from attnc.program.lookup import enclosed, envelopes
from attnc.program.program import Program
from attnc.program.steps import Affine, Combine, Lookup, Normalise, Numbers, Opaque, Pointwise, Reshape, Step

Balls = NDArray[np.object_]
LARGE = 2**20  # numbers of a weight beyond which long doubles stand in for balls


def exact(program: Program, x: Array, precision: int = 192) -> Balls:
    """The program at inputs (…, *shape), enclosed: an array of balls, each of which holds the exact value.

    >>> from attnc import functions
    >>> step = Pointwise(0, functions.square())
    >>> exact(Program((2,), (step,)), np.array([3.0, 0.5]))[0] == 9
    True
    """
    given = np.asarray(x, dtype=np.float64)
    lead = _lead(program, given.shape)
    with working(precision):
        values: list[Balls] = [_balls(given.reshape(-1, *program.shape))]
        for step in program.steps:
            values.append(_exact_step(step, [values[i] for i in step.inputs]))
        return values[-1].reshape(*lead, *program.shapes[-1])


def _lead(program: Program, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of the batch."""
    cut = len(shape) - len(program.shape)
    if cut < 0 or shape[cut:] != program.shape:
        raise InputError(
            f"the program takes inputs of the shape (…, {', '.join(map(str, program.shape))}): got {shape}"
        )
    return shape[:cut]


def _exact_step(step: Step, x: list[Balls]) -> Balls:
    match step:
        case Affine():
            return _affine(step, x[0])
        case Normalise():
            scale = [
                arb(float(g)) / (arb(float(v)) + arb(step.epsilon)).sqrt()
                for g, v in zip(step.gain, step.variance, strict=True)
            ]
            y: Balls = (x[0] - _balls(step.mean)) * np.array(scale, dtype=object) + _balls(step.shift)
            return y
        case Pointwise():
            return _mapped(x[0], step)
        case Lookup():
            return enclosed(step, x[0])
        case Opaque():
            raise _not_stored(step)
        case Combine():
            terms = [v * arb(c) for v, c in zip(x, step.coefficients, strict=True)]
            return np.asarray(sum(terms[1:], terms[0]), dtype=object)
        case Reshape():
            return x[0].reshape(len(x[0]), *step.to)


def _affine(step: Affine, x: Balls) -> Balls:
    rows = x.reshape(-1, x.shape[-1])
    y = _long_product(step, rows) if step.weight.size > LARGE else _product(step, rows)
    if step.bias is not None:
        y = y + _balls(step.bias)
    return y.reshape(*x.shape[:-1], -1)


def _product(step: Affine, rows: Balls) -> Balls:
    product = arb_mat(step.weight.astype(np.float64).tolist()) * arb_mat(rows.T.tolist())
    y = np.empty((len(rows), len(step.weight)), dtype=object)
    for i, j in np.ndindex(y.shape):
        y[i, j] = product[j, i]
    return y


def _long_product(step: Affine, rows: Balls) -> Balls:
    """W x for a large W: x = high + low ± rest, the sum in long doubles, its rounding bounded by γ_n |W||x|."""
    weight = step.weight.astype(np.longdouble)
    high = np.array([[float(b.mid()) for b in row] for row in rows])
    low = np.array(
        [
            [float((b - arb(h)).mid()) for b, h in zip(*pair, strict=True)]
            for pair in zip(rows, high, strict=True)
        ]
    )
    rest = [
        [upper(abs(b - arb(h) - arb(t))) for b, h, t in zip(*triple, strict=True)]
        for triple in zip(rows, high, low, strict=True)
    ]
    x = high.astype(np.longdouble) + low
    y = x @ weight.T
    size, n = np.abs(step.weight.astype(np.float64)), step.weight.shape[1]
    unit = float(np.finfo(np.longdouble).eps)
    lost = (2 * (n + 4) * unit * (np.abs(high) + np.abs(low)) + np.array(rest)) @ size.T
    lost = lost * (1 + n * 2.0**-50) + n * 2.0**-1000
    found = np.empty(y.shape, dtype=object)
    for i, j in np.ndindex(y.shape):
        top = float(y[i, j])
        found[i, j] = (
            arb(top) + arb(float(y[i, j] - top)) + arb(0, float(lost[i, j]) + 2 * abs(top) * 2.0**-100)
        )
    return found


def _mapped(x: Balls, step: Pointwise) -> Balls:
    y = np.empty(x.shape, dtype=object)
    for i, s in np.ndenumerate(x):
        y[i] = step.function.over(s)
        if step.deviation and not s <= arb(step.beyond):
            y[i] = y[i] + arb(0, step.deviation)
    return y


def _balls(numbers: NDArray[np.float64]) -> Balls:
    found = np.empty(numbers.shape, dtype=object)
    for i, number in np.ndenumerate(numbers):
        found[i] = arb(float(number))
    return found


def approximate(program: Program, x: Array) -> Array:
    """The program in float64, for a batch (…, *shape): fast, and nothing is proved of it."""
    found: Array = differentiable(program, torch.from_numpy(np.array(x, dtype=np.float64))).numpy()
    return found


def differentiable(program: Program, x: Tensor) -> Tensor:
    """The program in float64 by torch, for a batch (…, *shape)."""
    lead = _lead(program, tuple(x.shape))
    return values(program, x.reshape(-1, *program.shape))[-1].reshape(*lead, *program.shapes[-1])


def values(program: Program, x: Tensor) -> list[Tensor]:
    """Every value of the program in float64 by torch, for a batch (n, *shape): the input first, the output last."""
    found = [x]
    for step in program.steps:
        found.append(_torch_step(step, [found[i] for i in step.inputs]))
    return found


def _torch_step(step: Step, x: list[Tensor]) -> Tensor:
    match step:
        case Affine():
            y = x[0] @ _wide(step.weight).T
            return y if step.bias is None else y + _wide(step.bias)
        case Normalise():
            scale = _wide(step.gain) / torch.sqrt(_wide(step.variance) + step.epsilon)
            return (x[0] - _wide(step.mean)) * scale + _wide(step.shift)
        case Pointwise():
            return step.function.torch_form(x[0])
        case Lookup():
            low, high = envelopes(step, x[0])
            return (low + high) / 2
        case Opaque():
            raise _not_stored(step)
        case Combine():
            terms = [c * v for c, v in zip(step.coefficients, x, strict=True)]
            return torch.stack(terms).sum(0)
        case Reshape():
            return x[0].reshape(len(x[0]), *step.to)


def _not_stored(step: Opaque) -> InputError:
    return InputError(f"nothing of {step.name or 'the function'} is stored: what is known of it was measured")


def _wide(numbers: Numbers) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float64))
