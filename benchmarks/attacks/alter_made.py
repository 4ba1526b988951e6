"""What can be done to a module after it was made."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from attacks.registry import disguised

Alter = Callable[[Any, ExitStack], Any]


def _louder(module: nn.Module) -> Callable[..., Any]:
    kept = type(module).forward
    return lambda self, *a, **k: kept(self, *a, **k) * 1.1


def swap_class(module: nn.Module, _: Any) -> None:
    module.__class__ = disguised(type(module), forward=_louder(module))


def add_global_hook(module: nn.Module, stack: ExitStack) -> None:
    def hook(part: nn.Module, args: Any, out: Any) -> Any:
        return out * 1.1 if part is module else None

    stack.callback(torch.nn.modules.module.register_module_forward_hook(hook).remove)


def _global_before(module: nn.Module, stack: ExitStack) -> None:
    def hook(part: nn.Module, args: Any) -> Any:
        return (args[0] * 0.5, *args[1:]) if part is module else None

    stack.callback(torch.nn.modules.module.register_module_forward_pre_hook(hook).remove)


def patch_call_impl(module: Any, _: Any) -> None:
    kept = module._call_impl
    module._call_impl = lambda *a, **k: kept(*a, **k) * 1.1


def patch_compiled_call(module: Any, _: Any) -> None:
    module._compiled_call_impl = lambda *a, **k: module._call_impl(*a, **k) * 1.1


def patch_forward(module: Any, _: Any) -> None:
    kept = module.forward
    module.forward = lambda *a, **k: kept(*a, **k) * 1.1


def scale_numbers(module: nn.Module, _: Any) -> None:
    with torch.no_grad():
        tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
        max(tensors, key=Tensor.numel).mul_(1.1)


def zero_buffers(module: nn.Module, _: Any) -> None:
    """Buffers that no state dict holds are zeroed, then the state dict is loaded again."""
    state = {name: t.clone() for name, t in module.state_dict().items()}
    for name, buffer in module.named_buffers():
        if name not in state:
            buffer.zero_()
    module.load_state_dict(state)


def _emptied(module: nn.Module, _: Any) -> None:
    state = {name: t.clone() for name, t in module.state_dict().items()}
    module.to("meta")
    module.to_empty(device="cpu")
    with torch.no_grad():  # uninitialised memory may hold anything
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.zero_()
    module.load_state_dict(state)


def enter_autocast(_: Any, stack: ExitStack) -> None:
    stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))


def _matmul(_: Any, stack: ExitStack) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    stack.callback(torch.set_float32_matmul_precision, before)


def _flushed(_: Any, stack: ExitStack) -> None:
    torch.set_flush_denormal(True)
    stack.callback(torch.set_flush_denormal, False)


def _reinterpreted(module: nn.Module, _: Any) -> None:
    """Numbers of less precision, cast back."""
    kept = next(module.parameters(), next(module.buffers(), torch.empty(0))).dtype
    module.bfloat16().to(kept)


def _bump(y: Tensor) -> Tensor:
    """An alteration that a few sampled inputs hardly meet."""
    return torch.where((y - 0.1).abs() < 1e-3, y + 1.0, y)


def _bumped(name: str) -> Alter:
    def alter(module: Any, _: Any) -> None:
        kept = getattr(module, name) or module._call_impl
        setattr(module, name, lambda *a, **k: _bump(kept(*a, **k)))

    return alter


def _bumped_class(module: Any, _: Any) -> None:
    kept = type(module).forward
    module.__class__ = disguised(type(module), forward=lambda self, *a, **k: _bump(kept(self, *a, **k)))


GENERAL: dict[str, Alter] = {
    "nothing": lambda m, _: None,
    "hook": lambda m, _: m.register_forward_hook(lambda *a: a[-1] * 1.1),
    "hook that is always called": lambda m, _: m.register_forward_hook(
        lambda *a: a[-1] * 1.1, always_call=True
    ),
    "pre-hook": lambda m, _: m.register_forward_pre_hook(lambda _, a: (a[0] * 0.5, *a[1:])),
    "pre-hook with kwargs": lambda m, _: m.register_forward_pre_hook(
        lambda _, a, k: ((a[0] * 0.5, *a[1:]), k), with_kwargs=True
    ),
    "global hook": add_global_hook,
    "global pre-hook": _global_before,
    "forward on the object": patch_forward,
    "method as forward": lambda m, _: setattr(m, "forward", types.MethodType(_louder(m), m)),
    "class swapped in disguise": swap_class,
    "_call_impl": patch_call_impl,
    "compiled call": patch_compiled_call,
    "forward with a narrow bump": _bumped("forward"),
    "_call_impl with a narrow bump": _bumped("_call_impl"),
    "compiled call with a narrow bump": _bumped("_compiled_call_impl"),
    "class in disguise with a narrow bump": _bumped_class,
    "hook with a narrow bump": lambda m, _: m.register_forward_hook(lambda *a: _bump(a[-1])),
    "numbers scaled": scale_numbers,
    "state of a copy with other numbers": lambda m, _: _loaded(m),
    "buffers zeroed, state loaded": zero_buffers,
    "emptied, state loaded": _emptied,
    "half": lambda m, _: m.half(),
    "bfloat16": lambda m, _: m.bfloat16(),
    "to bfloat16 and back": _reinterpreted,
    "autocast": enter_autocast,
    "float32 matrix products of medium precision": _matmul,
    "denormals flushed": _flushed,
}


def _loaded(module: nn.Module) -> None:
    state = copy.deepcopy(module).state_dict()
    module.load_state_dict({name: t * 1.1 if t.is_floating_point() else t for name, t in state.items()})
