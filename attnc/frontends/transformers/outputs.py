"""What a model returns, as tensors: caches and other objects that torch.export does not know are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from attnc.frontends.capture import Captured

_NAME = "model"


class Tensors(nn.Module):
    """A model that returns the tensors of its outputs, one behind the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(tensors_of(self.model(*args, **kwargs)))


def tensors_of(made: object) -> Iterator[Tensor]:
    """The tensors in what a model returns, in order."""
    if isinstance(made, Tensor):
        yield made
    elif isinstance(made, Mapping):
        for value in made.values():
            yield from tensors_of(value)
    elif isinstance(made, (list, tuple)):
        for value in made:
            yield from tensors_of(value)


def unwrapped(captured: Captured, model: nn.Module) -> Captured:
    """A graph of `Tensors(model)` with the names of the model itself."""
    for node in captured.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            inner = {key: (_own(str(path)), kind) for key, (path, kind) in stack.items() if path != ""}
            node.meta["nn_module_stack"] = inner
    return replace(captured, module=model, names={key: _own(name) for key, name in captured.names.items()})


def _own(name: str) -> str:
    return "" if name == _NAME else name.removeprefix(f"{_NAME}.")
