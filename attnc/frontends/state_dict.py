"""mlp: the program of a state dict whose layers are linear; read_state_dict: the tensors of a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from torch import Tensor

from attnc import functions
from attnc.errors import FileError, InputError, Problem, UnsupportedError
from attnc.frontends.problems import tensor_problem, to_numpy
from attnc.functions import Function
from attnc.program import Affine, Pointwise, Program, Step

_STATISTICS = ("running_mean", "running_var")
_MODULE = "compile the module instead: attnc.compile(model, …), or `attnc compile mymodule:build …`"
_ADVICE = "save the weights by safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"


def mlp(
    tensors: Mapping[str, Any],
    activation: str | Function,
    *,
    order: Sequence[str] | None = None,
    output_activation: str | Function | None = None,
) -> Program:
    """The network whose layers are the pairs `<prefix>.weight` (out, in) and `<prefix>.bias`, which may be missing.

    Layers are in the natural order of their prefixes ("net.2" before "net.10"), or in the given `order`. The activation is
    applied between layers, `output_activation` after the last one. What is proved of the result is about these weights with this
    activation; nothing compares it with the model that the weights come from.

    >>> import torch
    >>> w = {"0.weight": torch.ones(3, 2), "0.bias": torch.zeros(3), "2.weight": torch.ones(1, 3)}
    >>> [step.name or step.function.label for step in mlp(w, "leaky_relu(0.2)").steps]
    ['0', 'leaky_relu(0.2)', '2']
    """
    if not isinstance(tensors, Mapping) or not all(isinstance(name, str) for name in tensors):
        raise InputError(f"tensors is a {type(tensors).__name__}: pass a state dict, model.state_dict()")
    between, last = _function(activation), None if output_activation is None else _function(output_activation)
    problems = list(_problems(tensors))
    layers = [prefix for prefix, _, part in (name.rpartition(".") for name in tensors) if part == "weight"]
    if not layers and not problems:
        problems.append(Problem("the state dict", "holds no weight: give <prefix>.weight, and <prefix>.bias"))
    if problems:
        raise UnsupportedError("the state dict is not that of a network of linear layers", problems)
    prefixes = _ordered(layers, order)
    steps: list[Step] = []
    for prefix in prefixes:
        named = {part: tensors.get(_joined(prefix, part)) for part in ("weight", "bias")}
        numbers: Any = {part: to_numpy(a) if isinstance(a, Tensor) else a for part, a in named.items()}
        steps += [Pointwise(len(steps), between)] if steps else []
        steps.append(Affine(len(steps), **numbers, name=prefix))
    inputs = steps[0].tensors()["weight"].shape[1]
    return Program((inputs,), (*steps, *([] if last is None else [Pointwise(len(steps), last)])))


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Nothing in the file is executed.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> save_file(torch.nn.Linear(2, 1).state_dict(), path)
    >>> sorted(read_state_dict(path))
    ['bias', 'weight']
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"path is a str or a Path: got {type(path).__name__}")
    source = Path(path)
    try:
        data = source.read_bytes()
    except (OSError, ValueError) as problem:
        raise FileError(f"cannot read {source}: {getattr(problem, 'strerror', None) or problem}") from problem
    if data[:4] == b"PK\x03\x04" or data[:1] == b"\x80" or source.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise FileError(f"{source} is in torch's own format, which can run code when it is read: {_ADVICE}")
    try:
        return load_bytes(data)
    except (SafetensorError, ValueError, RuntimeError, KeyError, TypeError) as problem:
        raise FileError(f"{source} is not a safetensors file, or it is damaged: {problem}") from problem


def _function(given: object) -> Function:
    if isinstance(given, Function):
        return given
    if isinstance(given, str):
        return functions.get(given)
    raise InputError(f"an activation is a name, e.g. 'gelu', or a Function: got {given!r}")


def _joined(prefix: str, part: str) -> str:
    return f"{prefix}.{part}" if prefix else part


def _problems(tensors: Mapping[str, Any]) -> Iterator[Problem]:
    """Layers that are not linear, tensors that are no weight or bias, and tensors whose numbers are not accepted."""
    dtypes: dict[str, str] = {}
    norms = _norms(tensors)
    for prefix, what in norms.items():
        where = "a file of weights does not say where it acts, and without it the network is another one"
        fold = "or fold it into the linear layer beside it"
        yield Problem(prefix or "the state dict", f"is {what}: {where}; {_MODULE}, {fold}")
    for name, given in tensors.items():
        prefix, _, part = name.rpartition(".")
        if prefix in norms:
            continue
        axes = {"weight": 2, "bias": 1}.get(part)
        reason = tensor_problem(given)
        if axes is None:
            yield Problem(
                name,
                f"is neither weight nor bias of a linear layer, and may change what the model computes; {_MODULE}",
            )
        elif reason is None and np.ndim(given) != axes:
            yield Problem(name, f"has the shape {tuple(given.shape)}: a {part} has {axes} axes")
        elif part == "bias" and _joined(prefix, "weight") not in tensors:
            yield Problem(name, f"has no {_joined(prefix, 'weight')} beside it")
        if reason is not None:
            yield Problem(name, reason)
        else:
            dtypes.setdefault(str(given.dtype).removeprefix("torch."), name)
    if len(dtypes) > 1:
        listed = ", ".join(f"{name} is of {dtype}" for dtype, name in dtypes.items())
        yield Problem("the state dict", f"mixes dtypes: {listed}; give all in one")


def _norms(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Prefixes of layers that normalise or scale, and what they look like."""
    found: dict[str, str] = {}
    for name, given in tensors.items():
        prefix, _, part = name.rpartition(".")
        if part in _STATISTICS:
            found[prefix] = "a BatchNorm, or another norm with running statistics"
        elif part == "weight" and tensor_problem(given) is None and np.ndim(given) == 1:
            found.setdefault(
                prefix, "a norm (LayerNorm, RMSNorm, BatchNorm) or a PReLU, by its weight of one axis"
            )
    return found


def _ordered(prefixes: list[str], order: Sequence[str] | None) -> list[str]:
    listed = ", ".join(map(repr, sorted(prefixes, key=_natural)))
    if order is None:
        numbers = [re.findall(r"\d+", p) for p in prefixes]
        patterns = {re.sub(r"\d+", "#", p) for p in prefixes}
        if len(patterns) > 1 or sum(len(set(column)) > 1 for column in zip(*numbers, strict=True)) > 1:
            raise InputError(f"the order of the layers is not clear from the names {listed}: give order=[…]")
        return sorted(prefixes, key=_natural)
    named = isinstance(order, Sequence) and all(isinstance(prefix, str) for prefix in order)
    if isinstance(order, str) or not named or set(order) != set(prefixes):
        raise InputError(f"order={order!r}: list the layers in their order; there are {listed}")
    return list(order)


def _natural(prefix: str) -> list[tuple[bool, int, str]]:
    """Digits by value, before letters."""
    pieces = re.findall(r"\d+|\D+", prefix)
    return [(False, int(p), "") if p.isdigit() else (True, 0, p) for p in pieces]
