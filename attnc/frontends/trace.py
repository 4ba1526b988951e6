"""What a module's forward does, written down by torch.fx, with the module left as it was."""

from __future__ import annotations

import copy
import inspect
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError

from attnc.errors import Problem
from attnc.frontends.problems import called

ROOT = "model"  # the name under which the traced module holds the user's
SEED = 1  # a forward that draws numbers draws others when it is run for comparison


class _Root(nn.Module):
    """The user's module inside another: constants that tracing has to store are stored outside of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class _UnregisteredError(Exception):
    """A module that is called, but is no part of the model."""


class _Proxy(fx.Proxy):
    """fx writes h += x down as h = h + x, and loses that other readers of h see it."""

    def _in_place(self, how: Callable[..., Any], other: object) -> Any:
        return self.tracer.create_proxy("call_function", how, (self, other), {})

    def __iadd__(self, other: object) -> Any:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: object) -> Any:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: object) -> Any:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: object) -> Any:
        return self._in_place(operator.itruediv, other)

    def __ipow__(self, other: object) -> Any:
        return self._in_place(operator.ipow, other)


class _Tracer(fx.Tracer):
    """Stops at torch's own modules, goes through everyone else's, runs no hooks."""

    proxy_buffer_attributes = True
    autocast = False  # whether any node was made under it

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        self.autocast |= any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        through = type(m) is nn.Sequential or isinstance(m, fx.GraphModule)
        return not through and type(m).__module__.split(".")[0] == "torch"

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return super().call_module(m, m.forward, args, kwargs)

    def path_of_module(self, mod: nn.Module) -> str:
        try:
            return super().path_of_module(mod)
        except NameError:
            raise _UnregisteredError(type(mod).__name__) from None

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def traced(model: nn.Module) -> tuple[nn.Module, fx.Graph] | Problem:
    """The root that the graph's names start from, and the graph; or why there is none."""
    where = f"forward of {type(model).__name__}"
    several = _several_inputs(model)
    if several:
        return Problem(where, several)
    root = _Root(model)
    root.training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            tracer = _Tracer()
            graph = tracer.trace(root)
    except TraceError as problem:
        return Problem(
            where,
            "lets the input decide what is computed (a branch, a loop or a length that depends on it), which cannot be "
            f"written down as one program: {problem}",
        )
    except _UnregisteredError as unknown:
        return Problem(
            where,
            f"calls a {unknown} that is no registered part of the model: make it an attribute, as in "
            f"self.layer = nn.{unknown}(…)",
        )
    except Exception as problem:
        return Problem(where, f"cannot be traced: {type(problem).__name__}: {problem}")
    if tracer.autocast:
        return Problem(where, "runs under torch.autocast, which rounds to a narrower type: leave it out")
    return root, graph


def _several_inputs(model: nn.Module) -> str | None:
    signature = inspect.signature(model.forward)
    try:
        signature.bind(None)
    except TypeError:
        names = [p.name for p in signature.parameters.values() if p.default is p.empty]
        taken = f"the inputs {', '.join(names)}" if names else "no input"
        return f"takes {taken}: one input is accepted; wrap the module in one that fixes the others"
    return None


@contextmanager
def preserved(model: nn.Module, problems: list[Problem]) -> Iterator[None]:
    """Put back every attribute that running the forward changes, and report each: a function keeps no state."""
    before = [(name, part, dict(vars(part)), _inside(part)) for name, part in model.named_modules()]
    try:
        yield
    finally:
        for name, part, attributes, inside in before:
            changed = {
                a for a in vars(part).keys() | attributes.keys() if vars(part).get(a) is not attributes.get(a)
            }
            for a in changed:
                vars(part).pop(a, None)
            vars(part).update({a: attributes[a] for a in changed & attributes.keys()})
            changed |= {a for a, content in inside.items() if _put_back(attributes[a], content)}
            if changed:
                listed = ", ".join(sorted(changed))
                reason = f"changes {listed} when it runs: a forward that only computes is accepted"
                problems.append(Problem(called(name, part), reason))


def _inside(part: nn.Module) -> dict[str, Any]:
    """Copies of the attributes that can change while they stay the same object."""
    kinds = (list, dict, OrderedDict, set)
    found: dict[str, Any] = {a: copy.copy(v) for a, v in vars(part).items() if type(v) in kinds}
    plain = {a: v.detach().clone() for a, v in vars(part).items() if type(v) is Tensor and not v.is_meta}
    return found | plain


def _put_back(current: Any, content: Any) -> bool:
    """Whether it had changed."""
    if isinstance(content, Tensor):
        if torch.equal(current, content) or bool(torch.isnan(content).any()):
            return False
        with torch.no_grad():
            current.copy_(content)
        return True
    if isinstance(content, set):
        same = current == content
    elif isinstance(content, dict):
        same = current.keys() == content.keys() and all(current[k] is v for k, v in content.items())
    else:
        same = len(current) == len(content) and all(a is b for a, b in zip(current, content, strict=True))
    if not same:
        current.clear()
        current.extend(content) if isinstance(content, list) else current.update(content)
    return not same
