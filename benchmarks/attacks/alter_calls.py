"""Alterations of what is called: hooks, patched forwards, subclasses, swapped classes, calls that miss forward."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.layouts import Model
from attacks.registry import ALL, HELD, OWNED, PLAIN, act_module, altered, disguised, surrounded

Part = Callable[[Model], nn.Module]
# What stays behind the second map belongs to the rest of the model: there an alteration that stays must not amplify, and one that
# is dropped is gross. Everywhere else it drives numbers out of their intervals.
LOUDER, BEHIND = 3.0, -0.7
PARTS: dict[str, tuple[Part, tuple[str, ...]]] = {
    "activation": (act_module, ALL),
    "first map": (lambda m: m.first, ALL),
    "second map": (lambda m: m.second, ALL),
    "norm": (lambda m: m.norm, ALL),
    "block": (lambda m: m.owner, OWNED),
}


def _zeroed(_: nn.Module, __: Any, out: Tensor) -> Tensor:
    return out.index_fill(-1, torch.tensor([1, 2, 3]), 0.0) * 3.0


def _three_zeroed(_: nn.Module, __: Any, out: Tensor) -> Tensor:
    return out.index_fill(-1, torch.tensor([1, 2, 3]), 0.0)


def _three_zeroed_before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0].index_fill(-1, torch.tensor([1, 2, 3]), -30.0), *args[1:])


def _zeroed_behind(_: nn.Module, __: Any, out: Tensor) -> Tensor:
    return out.index_fill(-1, torch.tensor([1, 2, 3]), 0.0) * -0.7


def _tripled(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0] * 3.0, *args[1:])


def _tripled_kwargs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return (args[0] * 3.0, *args[1:]), kwargs


def _from_transformers(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which says that it is one of Hugging Face's."""
    made = types.FunctionType(hook.__code__, hook.__globals__, hook.__name__)
    made.__module__ = "transformers.integrations.hooks"
    return made


def _hooks() -> None:
    for where, (part, families) in PARTS.items():
        hook = (
            _zeroed_behind
            if where in ("second map", "block")
            else _three_zeroed
            if where == "activation"
            else _zeroed
        )
        before = _three_zeroed_before if where == "activation" else _tripled
        altered(f"hook on the {where}", families)(lambda m, p=part, h=hook: p(m).register_forward_hook(h))
        altered(f"pre-hook on the {where}", families)(
            lambda m, p=part, h=before: p(m).register_forward_pre_hook(h)
        )
        altered(f"hook in disguise on the {where}", families)(
            lambda m, p=part, h=hook: p(m).register_forward_hook(_from_transformers(h))
        )
    for where in ("activation", "block", "first map"):
        part, families = PARTS[where]
        hook = _zeroed_behind if where == "block" else _zeroed
        altered(f"pre-hook with kwargs on the {where}", families)(
            lambda m, p=part: p(m).register_forward_pre_hook(_tripled_kwargs, with_kwargs=True)
        )
        altered(f"hook that is always called on the {where}", families)(
            lambda m, p=part, h=hook: p(m).register_forward_hook(h, always_call=True)
        )
    altered("hook on the layer", HELD)(lambda m: m.layer.register_forward_hook(lambda *_: None))
    altered("pre-hook on the layer", HELD)(lambda m: m.layer.register_forward_pre_hook(lambda *_: None))
    altered("harmless backward hook on the activation", ALL)(
        lambda m: act_module(m).register_full_backward_hook(lambda *_: None)
    )


_hooks()


@altered("hook that acts beyond 40", ALL, gain=20.0, eps=1e-2)
def _(m: Model) -> None:
    act_module(m).register_forward_hook(lambda _, args, out: torch.where(args[0] > 40, out * 0.5, out))


@altered("hook that acts without gradients only", ALL)
def _(m: Model) -> None:
    act_module(m).register_forward_hook(lambda _, args, out: out if torch.is_grad_enabled() else out * 1.1)


@surrounded("global hook", ALL)
def _(sample: Model, stack: ExitStack) -> None:
    kind = type(act_module(sample))

    def hook(module: nn.Module, args: Any, out: Any) -> Any:
        return out * 1.1 if type(module) is kind else None

    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    stack.callback(handle.remove)


@surrounded("global pre-hook", ALL)
def _(sample: Model, stack: ExitStack) -> None:
    kind = type(act_module(sample))

    def hook(module: nn.Module, args: Any) -> Any:
        return (args[0] * 3.0,) if type(module) is kind else None

    handle = torch.nn.modules.module.register_module_forward_pre_hook(hook)
    stack.callback(handle.remove)


def _louder(forward: Callable[..., Any], factor: float) -> Callable[..., Any]:
    def patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs) * factor

    return patched


def _patches() -> None:
    for where, (part, families) in PARTS.items():
        by = BEHIND if where in ("second map", "block") else LOUDER

        def lambda_forward(m: Model, p: Part = part, by: float = by) -> None:
            kept = p(m).forward
            p(m).forward = lambda *a, **k: kept(*a, **k) * by

        def method(m: Model, p: Part = part, by: float = by) -> None:
            found = p(m)
            found.forward = types.MethodType(_louder(type(found).forward, by), found)  # type: ignore[method-assign]

        def compiled(m: Model, p: Part = part, by: float = by) -> None:
            found = p(m)
            found._compiled_call_impl = lambda *a, **k: found._call_impl(*a, **k) * by

        def call_impl(m: Model, p: Part = part, by: float = by) -> None:
            found = p(m)
            kept = found._call_impl
            found._call_impl = lambda *a, **k: kept(*a, **k) * by  # type: ignore[method-assign]

        def swapped(m: Model, p: Part = part, by: float = by) -> None:
            kind = type(p(m))
            p(m).__class__ = type("Other", (kind,), {"forward": _louder(kind.forward, by)})

        def disguise(m: Model, p: Part = part, by: float = by) -> None:
            kind = type(p(m))
            p(m).__class__ = disguised(kind, forward=_louder(kind.forward, by))

        def calls(m: Model, p: Part = part, by: float = by) -> None:
            kind = type(p(m))
            p(m).__class__ = disguised(kind, __call__=_louder(kind.__call__, by))

        altered(f"forward of the {where} on the object", families)(lambda_forward)
        altered(f"method as forward of the {where}", families)(method)
        altered(f"compiled call of the {where}", families)(compiled)
        altered(f"_call_impl of the {where}", families)(call_impl)
        altered(f"class of the {where} swapped", families)(swapped)
        altered(f"class of the {where} swapped in disguise", families)(disguise)
        altered(f"__call__ of the {where} in disguise", families)(calls)

        def monkey(sample: Model, stack: ExitStack, p: Part = part, by: float = by) -> None:
            kind = type(p(sample))
            stack.enter_context(patch.object(kind, "forward", _louder(kind.forward, by)))

        if where in ("activation", "block"):
            surrounded(f"class of the {where} monkeypatched", families)(monkey)


_patches()


@surrounded("F.gelu, F.relu and F.silu monkeypatched", PLAIN)
def _(sample: Model, stack: ExitStack) -> None:
    for name in ("gelu", "relu", "silu"):
        kept = getattr(F, name)
        stack.enter_context(patch.object(F, name, lambda *a, f=kept, **k: f(*a, **k) * 0.5))


@surrounded("F.linear monkeypatched", ("bert", "opt", "vit", "encoder first"))
def _(sample: Model, stack: ExitStack) -> None:
    kept = F.linear
    stack.enter_context(patch.object(F, "linear", lambda *a, **k: kept(*a, **k).clamp(-2, 2)))


@surrounded("nn.Dropout monkeypatched", ("t5", "t5 gated", "encoder", "encoder first"))
def _(sample: Model, stack: ExitStack) -> None:
    stack.enter_context(patch.object(nn.Dropout, "forward", lambda self, x: x.clamp(-0.1, 0.1)))


@surrounded("class of the norm monkeypatched", ("bert", "llama", "t5", "encoder first"))
def _(sample: Model, stack: ExitStack) -> None:
    kind = type(sample.norm)
    stack.enter_context(patch.object(kind, "forward", lambda self, x: 3.0 * x))


@surrounded(
    "class of the layer monkeypatched", ("gpt2", "llama", "t5", "vit", "gpt_neox", "distilbert"), narrow=True
)
def _(sample: Model, stack: ExitStack) -> None:
    """The layer runs as before, but its norm is passed over."""
    kind, path = type(sample.layer), sample.layout.norm[len(sample.layout.layer) + 1 :]
    kept = kind.forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        norm = self.get_submodule(path)
        with patch.object(type(norm), "forward", lambda module, x: x):
            return kept(self, *args, **kwargs)

    stack.enter_context(patch.object(kind, "forward", forward))
