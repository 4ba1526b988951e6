"""Run a model on samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnc.errors import InputError
from attnc.frontends.transformers import Call


def calls(samples: object) -> list[Call]:
    """Samples as calls of the model: a tensor, a mapping of names to arguments, a tuple of arguments, or a list of those.

    >>> calls({"x": 1}), calls([torch.zeros(2)])
    ([Call(args=(), kwargs={'x': 1})], [Call(args=(tensor([0., 0.]),), kwargs=None)])
    """
    listed = samples if isinstance(samples, list) else [samples]
    if not listed:
        raise InputError("samples is an empty list: give inputs of the model, or leave it out")
    found = []
    for one in listed:
        if isinstance(one, Mapping):
            found.append(Call((), {str(name): value for name, value in one.items()}))
        elif isinstance(one, (Tensor, tuple)):
            found.append(Call(one if isinstance(one, tuple) else (one,)))
        else:
            raise InputError(
                f"a sample is a tensor, a tuple of arguments or a mapping of names to arguments: got {type(one).__name__}"
            )
    return found


def outputs(model: nn.Module, samples: Sequence[Call]) -> list[dict[str, Tensor]]:
    """Every tensor of real numbers that the model returns for each sample, by its name."""
    found = []
    with torch.no_grad():
        for call in samples:
            try:
                output = model(*call.args, **(call.kwargs or {}))
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
