"""What `attnc compile` can be given: a file of weights, or a model or a function in a Python module."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from attnc.cli.user_code import found_object, is_function
from attnc.errors import FileError, InputError
from attnc.frontends import mlp, read_state_dict, to_program
from attnc.frontends.sklearn import is_estimator
from attnc.program import Program

_OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.\w+)*")


@dataclass(frozen=True)
class Source:
    """A model that `attnc.compile` takes, and the shape of its inputs, where that can be seen."""

    model: Any
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Words:
    """What a file of weights does not say of its network."""

    activation: str | None
    output_activation: str | None
    order: str | None

    @property
    def given(self) -> list[str]:
        named = {
            "--activation": self.activation,
            "--output-activation": self.output_activation,
            "--order": self.order,
        }
        return [name for name, word in named.items() if word is not None]


def is_object(source: str) -> bool:
    """Whether it names an object in a module rather than a file.

    >>> is_object("package.module:net"), is_object("/")
    (True, False)
    """
    if source.endswith(".py"):
        raise InputError(
            f"{source} is Python code: give module:object, {source.removesuffix('.py')}:net for its net"
        )
    if os.path.lexists(source):
        return False
    if not _OBJECT.fullmatch(source):
        raise FileError(
            f"cannot read {source}: there is no such file; give the path of a model.safetensors, or module:object as in "
            "package.module:net"
        )
    module, _, name = source.partition(":")
    if module.endswith(".py"):
        better = f"{module.removesuffix('.py')}:{name}"
        raise InputError(f"{source}: a module is named as it is imported, without .py: give {better}")
    return True


def read_source(source: str, words: Words, shape: tuple[int, ...] | None) -> Source:
    """The model, and the shape of its inputs: the one asked for, else the one that the model shows."""
    if is_object(source):
        if words.given:
            raise InputError(
                f"{' and '.join(words.given)}: only for a file of weights; {source} says itself what it computes"
            )
        model = found_object(source)
        return Source(model, shape or _shape(model, source))
    program = _network(source, words)
    return Source(program if shape is None else replace(program, shape=shape), shape or program.shape)


def _network(source: str, words: Words) -> Program:
    if _is_ours(source):
        raise FileError(
            f"{source} is a head or a network that attnc wrote, and attention already: `attnc show {source}` describes it, "
            f"`attnc verify {source}` proves it anew; what is compiled is a model's state dict"
        )
    tensors = read_state_dict(source)
    if words.activation is None:
        raise InputError(
            f"{source} holds weights, and not what stands between them: give --activation, e.g. --activation relu or "
            "--activation 'leaky_relu(0.2)'; `attnc functions` lists the names"
        )
    order = None if words.order is None else [prefix.strip() for prefix in words.order.split(",")]
    return mlp(tensors, words.activation, order=order, output_activation=words.output_activation)


def _is_ours(path: str) -> bool:
    try:
        with safe_open(path, framework="numpy") as file:
            return "attnc" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def _shape(model: Any, source: str) -> tuple[int, ...] | None:
    """The shape of an input, where the model leaves no doubt."""
    if is_function(model):
        raise InputError(
            f"{source} is a function, which does not show what it takes: give --shape 3,1 for sequences of 3 tokens with 1 "
            "feature each"
        )
    if isinstance(model, Program):
        return model.shape
    if is_estimator(model):
        features = getattr(model, "n_features_in_", None)
        if features is None:
            raise InputError(f"this {type(model).__name__} is not fitted: call fit(X, y) first")
        return (int(features),)
    if not isinstance(model, nn.Module):
        to_program(model, (1,))  # which says what a model is
    return _features(model)


def _features(model: nn.Module) -> tuple[int, ...] | None:
    """The features of the one linear layer that the input can enter; where the model fits none, those of its first, and
    the front end says what is wrong. What reshapes its input may mean tokens, and leaves doubt."""
    parts = list(model.modules())
    widths = list(dict.fromkeys(part.in_features for part in parts if isinstance(part, nn.Linear)))
    if not widths or any(isinstance(part, (nn.Flatten, nn.Unflatten)) for part in parts):
        return None
    fitting = [width for width in widths if _takes(model, (width,))]
    return None if len(fitting) > 1 else ((fitting or widths)[0],)


def _takes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    try:
        to_program(model, shape)
    except InputError:
        return False
    return True
