"""input_shape: the shape of one input of a model, where the model determines it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import nn

from attnc.errors import InputError
from attnc.frontends import to_program
from attnc.frontends.sklearn import is_estimator
from attnc.program import Program


def input_shape(model: Any) -> tuple[int, ...] | None:
    """The shape of one input of a program, an estimator or a module; None if it could be several. Raises for what is no model.

    >>> input_shape(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).eval())
    (4,)
    """
    if isinstance(model, Program):
        return model.shape
    if is_estimator(model) and hasattr(model, "n_features_in_"):
        return (int(model.n_features_in_),)
    if not isinstance(model, nn.Module):
        to_program(model, (1,))  # raises, and says why
    parts = list(model.modules())
    widths = list(dict.fromkeys(part.in_features for part in parts if isinstance(part, nn.Linear)))
    if not widths or any(isinstance(part, (nn.Flatten, nn.Unflatten)) for part in parts):
        return None  # a model that reshapes its input may expect tokens
    fitting = []
    for width in widths:
        with suppress(InputError):
            to_program(model, (width,))
            fitting.append(width)
    return None if len(fitting) > 1 else ((fitting or widths)[0],)  # if none fits, the front end says why
