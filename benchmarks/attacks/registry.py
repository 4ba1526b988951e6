"""Alterations of a model, by name: what each does to a model, and for which families."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import nn

from attacks.layouts import GATED, LAYOUTS, Model

Alter = Callable[[Model], None]
Around = Callable[[Model, ExitStack], None]
ALL = tuple(LAYOUTS)
PLAIN = tuple(name for name in ALL if name not in GATED)
OWNED = tuple(
    name for name in ALL if name not in ("opt", "encoder", "encoder first", "sequential")
)  # a module is the block
HELD = (
    "bert",
    "gpt2",
    "llama",
    "t5 gated",
    "t5",
    "opt",
    "gpt_neox",
    "distilbert",
    "vit",
    "encoder",
    "encoder first",
)
DROPPED = tuple(name for name, layout in LAYOUTS.items() if layout.inner)
NAMES = {  # the activation of each family
    "bert": "gelu", "gpt2": "gelu_tanh", "llama": "silu", "t5 gated": "gelu_tanh", "t5": "relu", "opt": "relu",
    "gpt_neox": "gelu", "distilbert": "gelu", "vit": "gelu", "encoder first": "gelu", "encoder": "relu", "sequential": "gelu",
    "compiled sequential": "gelu", "compiled module": "gelu", "compiled residual": "gelu",
}  # fmt: skip


@dataclass(frozen=True)
class Alteration:
    """`alter` changes one model; `around` changes classes or global state while the case runs, and undoes it."""

    name: str
    families: tuple[str, ...]
    alter: Alter | None = None
    around: Around | None = None
    gain: float = 1.0  # of the norm, so that pre-activations reach what is altered
    eps: float = 1e-3
    by_dtype: bool = False  # what the model computes depends on its dtype
    narrow: bool = False  # in float32, where a number outside its interval costs most
    wide: bool = False  # in float64, where whole models are compared without hooks
    honest: bool = False  # nothing is altered: has to convert


ALTERATIONS: dict[str, Alteration] = {}


def altered(name: str, families: tuple[str, ...] = ALL, **options: Any) -> Callable[[Alter], Alter]:
    """Register a change of one model."""

    def put(alter: Alter) -> Alter:
        _add(Alteration(name, families, alter, **options))
        return alter

    return put


def surrounded(name: str, families: tuple[str, ...] = ALL, **options: Any) -> Callable[[Around], Around]:
    """Register a change of classes or of global state."""

    def put(around: Around) -> Around:
        _add(Alteration(name, families, None, around, **options))
        return around

    return put


def _add(alteration: Alteration) -> None:
    assert alteration.name not in ALTERATIONS, alteration.name
    ALTERATIONS[alteration.name] = alteration


def act_module(model: Model) -> nn.Module:
    """The activation as a module: encoder layers hold a function, which they take as a module too."""
    if not isinstance(model.act, nn.Module):
        model.act = nn.GELU() if NAMES[model.layout.family] == "gelu" else nn.ReLU()
    found: nn.Module = model.act
    return found


def disguised(cls: type, **members: Any) -> type:
    """A subclass that calls itself as its base does, and says that it comes from the same place."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, **members}
    return type(cls.__name__, (cls,), names)


def _honest() -> None:
    _add(Alteration("nothing", ALL, honest=True))
    _add(Alteration("nothing, large gain", ALL, gain=8.0, eps=1e-2, honest=True))


_honest()
