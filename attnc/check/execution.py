"""Heads and networks executed from their stored numbers alone, in their dtype, as torch or numpy run them."""

from __future__ import annotations

import numpy as np
import torch

from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.records.layers import Layer, NetworkNumbers, heads_of
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
    for stage in numbers.layers:
        match stage.kind:
            case "affine":
                bias = (
                    None if "bias" not in stage.tensors else torch.from_numpy(np.array(stage.tensors["bias"]))
                )
                made = torch.nn.functional.linear(
                    values[stage.input], torch.from_numpy(np.array(stage.tensors["weight"])), bias
                )
            case "batch_norm":
                scale, shift = (
                    torch.from_numpy(np.array(t)) for t in (stage.tensors["scale"], stage.tensors["shift"])
                )
                made = values[stage.input] * scale + shift
            case "pointwise":
                made = _execute_heads(stage, values[stage.input])
            case "lookup":
                centre, key, offset, read = (
                    torch.from_numpy(np.array(t))
                    for t in (stage.tensors[n] for n in ("centre", "key", "offset", "values"))
                )
                scores = torch.nn.functional.linear(values[stage.input] - centre, key, offset)
                made = torch.softmax(scores, -1) @ read
            case "combine":
                made = torch.stack(
                    [c * values[i] for c, i in zip(stage.settings["coefficients"], stage.inputs, strict=True)]
                ).sum(0)
            case _:
                made = values[stage.input].reshape(len(x), *stage.settings["to"])
        values[stage.value] = made
    return values[len(program.steps)].double()


def _execute_heads(stage: Layer, s: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(s)
    for neurons, head in heads_of(stage):
        part = slice(None) if neurons is None else torch.from_numpy(np.array(neurons))
        given = s[..., part]
        made[..., part] = execute(head, given.reshape(-1)).reshape(given.shape).to(s.dtype)
    return made


def execute_one(program: Program, numbers: NetworkNumbers, x: Numbers) -> Numbers:
    """One input of the program's shape, in the dtype, by sums whose order does not depend on threads, batches or memory: another
    run on the same machine returns the same numbers. They are one of the executions that certificates cover."""
    values: dict[int, Numbers] = {0: np.asarray(x, numbers.dtype).reshape(program.shape)}
    for stage in numbers.layers:
        match stage.kind:
            case "affine":
                made = _products(values[stage.input], stage.tensors["weight"])
                made = made if "bias" not in stage.tensors else made + stage.tensors["bias"]
            case "batch_norm":
                made = values[stage.input] * stage.tensors["scale"] + stage.tensors["shift"]
            case "pointwise":
                made = _execute_heads(stage, torch.tensor(values[stage.input])).numpy()
            case "lookup":
                scores = (
                    _products(values[stage.input] - stage.tensors["centre"], stage.tensors["key"])
                    + stage.tensors["offset"]
                )
                weights = torch.softmax(torch.tensor(scores), -1).numpy()
                made = _products(weights, stage.tensors["values"].T)
            case "combine":
                terms = [
                    np.asarray(c, numbers.dtype) * values[i]
                    for c, i in zip(stage.settings["coefficients"], stage.inputs, strict=True)
                ]
                made = sum(terms[1:], terms[0])
            case _:
                made = values[stage.input].reshape(stage.settings["to"])
        values[stage.value] = made
    return values[len(program.steps)].astype(np.float64).ravel()


def _products(x: Numbers, weight: Numbers) -> Numbers:
    """x @ weight.T for x (…, n), a row at a time, without the libraries for products of matrices."""
    rows = [(np.ascontiguousarray(weight) * row).sum(-1) for row in x.reshape(-1, x.shape[-1])]
    return np.stack(rows).reshape(*x.shape[:-1], len(weight))
