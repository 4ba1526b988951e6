"""record: the executed graph of a model, in which every converted part is one marked operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from attnc.errors import Problem, UnsupportedError
from attnc.frontends.capture import Captured, CaptureError, capture
from attnc.frontends.transformers.calls import Call
from attnc.network.marking import marking

_NAME = "model"


class _TensorOutputs(nn.Module):
    """A model that returns the tensors among its outputs: torch.export does not know caches and other objects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(_tensors(self.model(*args, **kwargs)))


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (Mapping, list, tuple)):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(value)


def record(model: nn.Module, call: Call, *, grad: bool) -> Captured:
    """What the model executes on a call, with the names of the model itself."""
    try:
        with marking(model):
            captured = capture(
                _TensorOutputs(model), call.args, dict(call.kwargs or {}), grad=grad, functional=True
            )
    except CaptureError as problem:
        raise UnsupportedError(
            f"attnc cannot read what {type(model).__name__} executes",
            [Problem(_own(problem.path) or "the model", problem.reason)],
        ) from problem
    for node in captured.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            inner = {key: (_own(str(path)), kind) for key, (path, kind) in stack.items() if path != ""}
            node.meta["nn_module_stack"] = inner
    return replace(captured, module=model, names={key: _own(name) for key, name in captured.names.items()})


def _own(name: str) -> str:
    return "" if name == _NAME else name.removeprefix(f"{_NAME}.")
