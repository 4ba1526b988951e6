"""IN: models as programs."""

from __future__ import annotations

from torch import nn

from attnc.domain import Box
from attnc.errors import InputError
from attnc.frontends.module import module_to_program
from attnc.frontends.sklearn import estimator_to_program, is_estimator
from attnc.frontends.state_dict import mlp, read_state_dict
from attnc.functions import names
from attnc.program import Program

__all__ = ["estimator_to_program", "mlp", "module_to_program", "read_state_dict", "to_program"]


def to_program(
    model: object, shape: tuple[int, ...], box: Box | None = None, output: str | None = None
) -> Program:
    """The program of a model, for inputs of a shape (tokens …, features), without the batch axis.

    A model is a torch module in eval mode, a fitted scikit-learn network, or a program. A module is also compared with its
    program at points of the box, if it is given. If the box is a `Tokens`, the inputs are token ids. `output` names one output of
    a module that returns several; by default the first tensor is taken.

    >>> from torch import nn
    >>> to_program(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).eval(), (3,)).shapes
    ((3,), (5,), (5,), (2,))
    """
    if not isinstance(shape, (tuple, list)) or not shape or not all(type(n) is int and n > 0 for n in shape):
        raise InputError(f"shape={shape!r}: give the shape of one input, positive numbers, e.g. shape=(16,)")
    if isinstance(model, Program):
        if model.shape != tuple(shape):
            raise InputError(f"the program takes inputs of shape {model.shape}: got shape={tuple(shape)}")
        return model
    if isinstance(model, nn.Module):
        return module_to_program(model, tuple(shape), box, output)
    if is_estimator(model):
        return estimator_to_program(model, tuple(shape))
    shown = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
    if isinstance(model, dict):
        shown += "; a state dict is read by attnc.frontends.mlp(tensors, activation)"
    if isinstance(model, (str, bytes)) or hasattr(model, "__fspath__"):
        shown += "; a file of weights is read by attnc.frontends.read_state_dict(path)"
        if str(model).partition("(")[0] in names():
            shown = f"the name of a function: call attnc.head({model!r}, domain=(lo, hi), eps=1e-4)"
    accepted = "a torch.nn.Module, a scikit-learn network, a Program, or a function of a tensor (batch, n, d)"
    raise InputError(f"a model is {accepted}: got {shown}")
