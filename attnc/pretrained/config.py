"""Settings of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnc.arguments import checked_choice, checked_engine, checked_strict
from attnc.domain import Box
from attnc.errors import InputError
from attnc.heads.exact_term import DESIGNS

VERSION = 1
ENGINES = ("closed-form", "softmax")
PARTS = ("feed-forward", "norm", "activation")


@dataclass(frozen=True)
class ConvertConfig:
    """Settings of `convert_`; unknown fields and values raise `InputError`.

    engine: "closed-form" evaluates only the anchors near s, "softmax" all of them. A head without a closed form runs softmax.
    design: "gated" (a token attends to itself, for s·σ(Bs) and relu), "lattice" (gelu and similar functions), "tuned", or
    "auto", the first of these that applies to the activation.
    inputs: the inputs of blocks without a norm in front, one `Box` for all of them or one for each by name.
    calibration: samples on which the model runs to see the inputs of such blocks; their bounds are measured, not proved.
    strict: inputs outside the interval of a head warn once for each activation (None), raise (True) or do nothing (False).

    >>> ConvertConfig(engine="softmax").design
    'auto'
    >>> ConvertConfig(engine="sparse")
    Traceback (most recent call last):
    attnc.errors.InputError: engine='sparse': accepted are 'closed-form', 'softmax'
    """

    engine: str = "closed-form"
    design: str = "auto"
    inputs: Box | Mapping[str, Box] | None = None
    calibration: Any = None
    strict: bool | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        checked_engine(self.engine, ENGINES)
        checked_choice("design", self.design, DESIGNS)
        checked_strict(self.strict)
        if self.version != VERSION:
            raise InputError(f"version={self.version!r}: accepted is {VERSION}")
        boxes = [*self.inputs.values()] if isinstance(self.inputs, Mapping) else [self.inputs]
        if self.inputs is not None and not all(isinstance(box, Box) for box in boxes):
            accepted = "give an attnc.Box, or a mapping from names of blocks to boxes"
            raise InputError(f"inputs={self.inputs!r}: {accepted}")


def checked_config(config: object) -> ConvertConfig:
    """Settings from a `ConvertConfig`, a mapping of its fields, or None for the defaults."""
    if config is None:
        return ConvertConfig()
    if isinstance(config, ConvertConfig):
        return config
    known = [*ConvertConfig.__dataclass_fields__]
    if not isinstance(config, Mapping) or not set(config) <= set(known):
        given = [*config] if isinstance(config, Mapping) else type(config).__name__
        accepted = f"a ConvertConfig or a mapping of its fields ({', '.join(known)})"
        raise InputError(f"config is {accepted}: got {given}")
    return ConvertConfig(**config)


def checked_parts(parts: object) -> tuple[str, ...]:
    """The kinds of parts to convert: "all", the name of one, or several names."""
    given = PARTS if parts == "all" else (parts,) if isinstance(parts, str) else parts
    if not isinstance(given, (tuple, list, set, frozenset)) or not given or not set(given) <= set(PARTS):
        accepted = f"'all', {', '.join(map(repr, PARTS))}, or a tuple of them"
        raise InputError(f"parts={parts!r}: accepted are {accepted}")
    return tuple(part for part in PARTS if part in given)
