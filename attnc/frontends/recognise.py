"""Activations of torch that `attnc.head` is given as they are: nn.GELU(), torch.tanh, torch.nn.functional.silu."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import activation as activations
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode

from attnc.errors import AttncError
from attnc.frontends.activations import ACTIVATIONS, activation
from attnc.functions import Function

_SELU = {
    "alpha": 1.6732632423543772,
    "scale": 1.0507009873554805,
    "input_scale": 1.0,
}  # as torch runs it: elu
_PLACES = (torch, F, torch.special, Tensor)
_HOOKS = tuple(name for name in vars(modules) if name.startswith("_global_") and name.endswith("_hooks"))
_OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def recognised(f: Callable[..., Any]) -> Function | None:
    """The built-in function that a callable of torch computes, or None if that is not certain.

    f is an activation module of torch without hooks and changes, a function of torch, or a `functools.partial` of one. What it
    computes is read from the operation that it executes, with its arguments, and compared with the built-in at points.

    >>> recognised(nn.GELU("tanh")).label, recognised(functools.partial(F.leaky_relu, negative_slope=0.25)).label
    ('gelu_tanh', 'leaky_relu(0.25)')
    >>> recognised(lambda s: torch.tanh(s)) is None
    True
    """
    if not (_is_module(f) or _is_function(f)):
        return None
    s = torch.cat([torch.linspace(-12, 12, 97, dtype=torch.float64), torch.tensor([-500.0, 500.0]).double()])
    try:
        with torch.no_grad():
            calls = [_executed(f, points) for points in (s, s.flip(0)[:3], s.reshape(9, 11))]
        if any(call is None or call != calls[0] for call in calls) or calls[0] is None:
            return None
        found = activation(*calls[0])
    except (AttncError, RuntimeError, TypeError, ValueError):
        return None
    if found.deviation:
        return None
    with torch.no_grad():
        same = torch.allclose(f(s.clone()), found.function(s), rtol=1e-12, atol=1e-12)
    return found.function if same else None


def _is_module(f: object) -> bool:
    """Whether f is a module of torch.nn.modules.activation as torch makes it: no hooks, nothing set on it."""
    if not isinstance(f, nn.Module) or getattr(activations, type(f).__name__, None) is not type(f):
        return False
    hooked = any(getattr(modules, name, None) for name in _HOOKS) or any(
        vars(f).get(name) for name in _OWN_HOOKS
    )
    patched = any(map(callable, vars(f).values()))
    own = type(f).forward.__module__ == activations.__name__ and type(f).__call__ is nn.Module.__call__
    return own and not hooked and not patched and not [*f.children()]


def _is_function(f: object) -> bool:
    """Whether f is a function that torch defines, under its own name, or a partial of one with constants."""
    if type(f) is functools.partial:
        plain = all(isinstance(value, (int, float, str, bool)) for value in f.keywords.values())
        return not f.args and plain and _is_function(f.func)
    if not isinstance(f, (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)):
        return False
    if isinstance(f, types.FunctionType) and not str(f.__globals__.get("__name__")).startswith("torch."):
        return False  # somebody else's, put in the place of torch's
    return any(getattr(place, f.__name__, None) is f for place in _PLACES)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operations that run, with what enters and leaves them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


def _executed(f: Callable[..., Any], s: Tensor) -> tuple[str, dict[str, Any]] | None:
    """The one operation that f executes on s, by its name, and its other arguments; None if there is not exactly one."""
    given = s.clone()
    with _Recorder() as recorder:
        result = f(given)
    if len(recorder.calls) != 1:
        return None
    func, args, kwargs, found = recorder.calls[0]
    name, names = func._schema.name.split("::")[1], [a.name for a in func._schema.arguments]
    if name not in ACTIVATIONS or not args or args[0] is not given or found is not result:
        return None
    defaults = {a.name: a.default_value for a in func._schema.arguments[1:] if a.has_default_value()}
    arguments = defaults | dict(zip(names[1:], args[1:], strict=False)) | kwargs
    if any(isinstance(value, Tensor) for value in arguments.values()):
        return None
    return ("selu", {}) if name == "elu" and arguments == _SELU else (name, arguments)
