"""Run a model on samples: its outputs, and the inputs of its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnc.domain import Array
from attnc.errors import InputError


def calls(samples: object) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Samples as arguments of the model: a tensor, a mapping of names to arguments, a tuple of arguments, or a list of those.

    >>> calls({"x": 1}), calls([torch.zeros(2)])
    ([((), {'x': 1})], [((tensor([0., 0.]),), {})])
    """
    listed = samples if isinstance(samples, list) else [samples]
    if not listed:
        raise InputError("samples is an empty list: give inputs of the model, or leave it out")
    return [_call(one) for one in listed]


def _call(one: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(one, Mapping):
        return (), {str(name): value for name, value in one.items()}
    if isinstance(one, Tensor):
        return (one,), {}
    if isinstance(one, tuple):
        return one, {}
    raise InputError(
        f"a sample is a tensor, a tuple of arguments or a mapping of names to arguments: got {type(one).__name__}"
    )


def outputs(model: nn.Module, samples: object) -> list[dict[str, Tensor]]:
    """Every tensor of real numbers that the model returns for each sample, by its name."""
    found = []
    with torch.no_grad():
        for arguments, named in calls(samples):
            try:
                output = model(*arguments, **named)
            except Exception as problem:
                raise InputError(
                    f"the model fails on a sample: {type(problem).__name__}: {problem}"
                ) from problem
            found.append(dict(_tensors("output", output)))
    return found


def _tensors(name: str, output: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield name, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _tensors(str(key), value)
    elif isinstance(output, Sequence) and not isinstance(output, (str, bytes)):
        for i, value in enumerate(output):
            yield from _tensors(f"{name}[{i}]", value)


@contextmanager
def removed(handles: Sequence[RemovableHandle]) -> Iterator[None]:
    """Remove hooks on exit."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def entering(
    model: nn.Module, maps: Mapping[str, nn.Module], samples: object
) -> dict[str, tuple[Array, Array]]:
    """For each map, by its name, the smallest and the largest input of every feature."""
    seen: dict[str, tuple[Array, Array]] = {}

    def note(name: str, arguments: tuple[Any, ...]) -> None:
        x = arguments[0].detach().to("cpu", torch.float64)
        if x.numel() == 0:
            return
        x = x.reshape(-1, x.shape[-1])
        low, high = x.amin(0).numpy(), x.amax(0).numpy()
        before = seen.get(name, (low, high))
        seen[name] = np.minimum(before[0], low), np.maximum(before[1], high)

    handles = [
        module.register_forward_pre_hook(lambda _, arguments, name=name: note(name, arguments))
        for name, module in maps.items()
    ]
    with removed(handles):
        outputs(model, samples)
    return seen
