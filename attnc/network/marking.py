"""Marks in the captured graph of a converted model: each converted part is one operation that carries its name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class _Reading(threading.local):
    names: dict[int, str] | None = None  # of the parts of the model, by the ids of their attributes


_reading = _Reading()


@torch.library.custom_op("attnc::mark", mutates_args=())
def mark(x: Tensor, name: str) -> Tensor:
    """An activation that is converted, or will be."""
    return x.clone()


@torch.library.custom_op("attnc::product", mutates_args=())
def product(x: Tensor, y: Tensor, name: str) -> Tensor:
    """The product of a gated block that is converted, or will be."""
    return x * y


@torch.library.custom_op("attnc::norm", mutates_args=())
def norm(x: Tensor, name: str) -> Tensor:
    """A norm that is converted, or will be."""
    return x.clone()


for _operation in (mark, product, norm):
    _operation.register_fake(lambda x, *others: torch.empty_like(x))


@contextmanager
def marking(model: nn.Module) -> Iterator[None]:
    """In this context and thread, converted parts of the model run as marks. `mark_of` gives their names."""
    _reading.names = {id(vars(part)): name for name, part in model.named_modules()}
    try:
        yield
    finally:
        _reading.names = None


def mark_of(part: nn.Module) -> str | None:
    """The name of a part of the model inside `marking`, else None.

    torch.export calls parts that are registered twice through proxies, which share their attributes."""
    if torch.compiler.is_dynamo_compiling() or _reading.names is None:
        return None
    return _reading.names.get(id(vars(part)), type(part).__name__)
