"""How a model is converted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from attnc.domain import Box
from attnc.errors import InputError
from attnc.network.inside import checked_strict

VERSION = 1
ENGINES = ("closed-form", "softmax")
DESIGNS = ("auto", "gate", "lattice", "tuned")


@dataclass(frozen=True)
class ConvertConfig:
    """Settings of `convert_`; unknown fields and values are refused.

    engine: "closed-form" evaluates the anchors near s alone, "softmax" all of them; a head that has no window runs dense.
    design: "auto" takes a token's own key where the activation is s·σ(Bs), a lattice of anchors where it is of the kind of
    gelu, and tuned anchors else; "gate", "lattice" and "tuned" ask for one of these.
    inputs: what enters blocks that have no norm in front, a `Box` for all or a box for each by name.
    calibration: inputs of the model, run to see what enters such blocks; bounds are then called measured, not proved.
    strict: what the activations do with inputs outside the interval of their heads. None warns once for each activation, True
    raises, False does nothing.

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
        for name, accepted in (("engine", ENGINES), ("design", DESIGNS)):
            given = getattr(self, name)
            if given not in accepted:
                raise InputError(f"{name}={given!r}: accepted are {', '.join(map(repr, accepted))}")
        checked_strict(self.strict)
        if self.version != VERSION:
            raise InputError(f"version={self.version!r}: this attnc reads settings of version {VERSION}")
        boxes = [*self.inputs.values()] if isinstance(self.inputs, Mapping) else [self.inputs]
        if self.inputs is not None and not all(isinstance(box, Box) for box in boxes):
            raise InputError(
                f"inputs={self.inputs!r}: give an attnc.Box, or a box for each block by its name"
            )


def checked_config(config: object) -> ConvertConfig:
    """The settings themselves, or made from a mapping, or the default.

    >>> checked_config({"engine": "softmax"}).engine
    'softmax'
    """
    if config is None:
        return ConvertConfig()
    if isinstance(config, ConvertConfig):
        return config
    known = [field.name for field in fields(ConvertConfig)]
    if not isinstance(config, Mapping):
        raise InputError(
            f"config is an attnc.ConvertConfig or a mapping of its fields: got {type(config).__name__}"
        )
    unknown = [name for name in config if name not in known]
    if unknown:
        raise InputError(f"config has no field {unknown[0]!r}: its fields are {', '.join(known)}")
    return ConvertConfig(**config)
