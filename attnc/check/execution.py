"""Heads and networks executed from their stored numbers alone, in their dtype, as torch or numpy run them."""

from __future__ import annotations

import numpy as np
import torch

from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.records.network_numbers import Attention, Linear, NetworkNumbers, Reorder, Scale, Selection, Sum
from attnc.records.numbers import TENSORS, HeadNumbers


def execute(numbers: HeadNumbers, s: torch.Tensor) -> torch.Tensor:
    """The head as torch runs it in its dtype, from the formula of `HeadNumbers`."""
    dtype = getattr(torch, numbers.dtype)
    query, key, value, output = (torch.tensor(getattr(numbers, name), dtype=dtype) for name in TENSORS)
    s = s.to(dtype)
    rows = max(1, (1 << 22) // key[..., 0].numel())
    parts = []
    for part in torch.split(s, rows):
        x = part[:, None] * query[:, 0] + query[:, 1]
        weights = torch.softmax(x[:, :, None] * key[:, :, 0] + key[:, :, 1], -1)
        values = part[:, None, None] * value[:, :, 0] + value[:, :, 1]
        parts.append(((weights * values).sum(-1) * output).sum(-1))
    return torch.cat(parts).double()


def execute_network(program: Program, numbers: NetworkNumbers, x: torch.Tensor) -> torch.Tensor:
    """The stages as torch runs them in their dtype."""
    values = {0: x.reshape(-1, *program.shape)}
    for stage in numbers.stages:
        match stage:
            case Linear():
                bias = None if stage.bias is None else torch.from_numpy(np.array(stage.bias))
                made = torch.nn.functional.linear(
                    values[stage.input], torch.from_numpy(np.array(stage.weight)), bias
                )
            case Scale():
                scale, shift = (torch.from_numpy(np.array(t)) for t in (stage.scale, stage.shift))
                made = values[stage.input] * scale + shift
            case Attention():
                made = _execute_heads(stage, values[stage.input])
            case Selection():
                centre, key, offset, read = (torch.from_numpy(np.array(t)) for t in stage.tensors().values())
                scores = torch.nn.functional.linear(values[stage.input] - centre, key, offset)
                made = torch.softmax(scores, -1) @ read
            case Sum():
                made = torch.stack(
                    [c * values[i] for c, i in zip(stage.coefficients, stage.inputs, strict=True)]
                ).sum(0)
            case Reorder():
                made = values[stage.input].reshape(len(x), *stage.shape)
        values[stage.value] = made
    return values[len(program.steps)].double()


def _execute_heads(stage: Attention, s: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(s)
    for group in stage.groups:
        part = slice(None) if group.neurons is None else torch.from_numpy(np.array(group.neurons))
        given = s[..., part]
        made[..., part] = execute(group.head, given.reshape(-1)).reshape(given.shape).to(s.dtype)
    return made


def execute_one(program: Program, numbers: NetworkNumbers, x: Numbers) -> Numbers:
    """One input of the program's shape, in the dtype, by sums whose order does not depend on threads, batches or memory: another
    run on the same machine returns the same numbers. They are one of the executions that certificates cover."""
    values: dict[int, Numbers] = {0: np.asarray(x, numbers.dtype).reshape(program.shape)}
    for stage in numbers.stages:
        match stage:
            case Linear():
                made = _products(values[stage.input], stage.weight)
                made = made if stage.bias is None else made + stage.bias
            case Scale():
                made = values[stage.input] * stage.scale + stage.shift
            case Attention():
                made = _execute_heads(stage, torch.tensor(values[stage.input])).numpy()
            case Selection():
                scores = _products(values[stage.input] - stage.centre, stage.key) + stage.offset
                weights = torch.softmax(torch.tensor(scores), -1).numpy()
                made = _products(weights, stage.values.T)
            case Sum():
                terms = [
                    np.asarray(c, numbers.dtype) * values[i]
                    for c, i in zip(stage.coefficients, stage.inputs, strict=True)
                ]
                made = sum(terms[1:], terms[0])
            case Reorder():
                made = values[stage.input].reshape(stage.shape)
        values[stage.value] = made
    return values[len(program.steps)].astype(np.float64).ravel()


def _products(x: Numbers, weight: Numbers) -> Numbers:
    """x @ weight.T for x (…, n), a row at a time, without the libraries for products of matrices."""
    rows = [(np.ascontiguousarray(weight) * row).sum(-1) for row in x.reshape(-1, x.shape[-1])]
    return np.stack(rows).reshape(*x.shape[:-1], len(weight))
