"""Caller: a model of several outputs or options as a module from one tensor to one tensor."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from attnc.errors import InputError, Problem
from attnc.program import Program

_NAME = "called__"


class Caller(nn.Module):
    """Calls a model with fixed options, and returns one of its outputs: the named one, or the first tensor."""

    def __init__(self, model: nn.Module, options: dict[str, object], output: str | None) -> None:
        super().__init__()
        self.add_module(_NAME, model)
        self.options, self.output = options, output
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        return _picked(self.get_submodule(_NAME)(x, **self.options), self.output)


def _picked(result: Any, output: str | None) -> Tensor:
    if isinstance(result, Tensor) and output is None:
        return result
    named = result if isinstance(result, Mapping) else {}
    found = named.get(output) if output is not None else None
    if output is None:
        parts = named.values() if named else result if isinstance(result, tuple | list) else ()
        found = next((part for part in parts if isinstance(part, Tensor)), None)
    if not isinstance(found, Tensor):
        names = ", ".join(str(k) for k, v in named.items() if isinstance(v, Tensor)) or "none with a name"
        raise InputError(
            f"output={output!r}: the model returns a {type(result).__name__}, with these tensors: {names}"
        )
    return found


def with_one_output(model: nn.Module, ids: bool, output: str | None) -> nn.Module:
    """The module itself, or a caller of it: for token ids, a chosen output, and models of transformers."""
    config: Any = getattr(model, "config", None)
    if not ids and output is None and not isinstance(getattr(config, "model_type", None), str):
        return model
    accepted = inspect.signature(model.forward).parameters
    options: dict[str, object] = {"use_cache": False} if "use_cache" in accepted else {}
    return Caller(model, options, output)


def unwrapped(program: Program) -> Program:
    """The names of the model's own parts."""
    return replace(program, steps=tuple(replace(s, name=_shown(s.name)) for s in program.steps))


def unwrapped_problems(caller: nn.Module, problems: list[Problem]) -> list[Problem]:
    if not isinstance(caller, Caller):
        return problems
    name = type(caller.get_submodule(_NAME)).__name__
    return [
        Problem(_shown(p.where.replace("the model (Caller)", f"the model ({name})")), p.reason)
        for p in problems
    ]


def _shown(where: str) -> str:
    return where.replace(f"{_NAME}.", "").replace(f"{_NAME} (", "the model (").replace(_NAME, "")
