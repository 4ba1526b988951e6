"""How modules run: in the dtype of their numbers (float32 or float64), on inputs inside the domain of their certificate.

`torch.autocast` would compute products in bfloat16 or float16, and `module.half()` would round anchors and scores to 11 bits.
Tracing (torch.compile, torch.export, torch.jit.trace, make_fx, torch.func) records one path for all inputs.

Outside the domain `strict=None` warns once for each module, `strict=True` raises, `strict=False` does nothing. In a traced graph
nothing is checked. On devices other than the CPU, where reading values would wait for the device, only `strict=True` checks."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from attnc.domain import Box, Interval, Tokens
from attnc.errors import DomainWarning, InputError, Problem, UnsupportedError

_F = TypeVar("_F", bound=Callable[..., Any])
Outside = Callable[[Tensor], "str | None"]  # the reason why an input lies outside a domain
FULL = (torch.float32, torch.float64)
_MOST = 2.0**64  # of a number of half precision: far outside of every domain, its square is finite in float32
_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_in_rows = False


class PreciseModule(nn.Module):
    """A module whose numbers stay float32 or float64. After `half()` it converts inputs of that precision to their dtype, and
    results back."""

    _cast_to: torch.dtype | None = None  # the half precision that the module was cast to
    _takes_half = False  # whether it converts inputs of half precision without having been cast

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PreciseModule:
        own = next((t for t in (*self.parameters(), *self.buffers()) if t.is_floating_point()), None)
        if own is None:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            return self
        like = fn(own.detach().new_empty(0))
        less = is_less(like.dtype)
        super()._apply((lambda t: t.to(like.device)) if less else fn, recurse)  # type: ignore[no-untyped-call]
        if less:
            self._cast_to = like.dtype
        elif self._cast_to is not None:  # .float() ends it, .cpu() does not
            still = fn(torch.empty(0, dtype=self._cast_to, device=own.device)).dtype
            self._cast_to = still if is_less(still) else None
        return self

    @property
    def parameters_added(self) -> int:
        """The number of numbers that it stores, beside those of the model that it is a part of."""
        return sum(int(tensor.numel()) for tensor in self.state_dict().values())

    def to_transformer_lens(self) -> Any:
        """Raise, in modules that are not attention with fixed matrices: their literal form is."""
        kind, reason = type(self).__name__, "has no literal form"
        if hasattr(self, "as_self_attention"):
            reason = "use its literal form: as_self_attention().to_transformer_lens()"
        raise UnsupportedError(
            "TransformerLens takes literal forms and token networks", [Problem(f"the {kind}", reason)]
        )

    def _full_dtype(self) -> torch.dtype:
        return next(t.dtype for t in (*self.parameters(), *self.buffers()) if t.is_floating_point())


def is_less(dtype: torch.dtype) -> bool:
    """Whether a dtype is a floating-point type of less precision than float32."""
    return dtype.is_floating_point and dtype not in FULL


def precise(method: _F) -> _F:
    """Run a method of a `PreciseModule` with autocast off and in the dtype of its numbers."""

    @wraps(method)
    def run(self: PreciseModule, *args: Any, **kwargs: Any) -> Any:
        kind = next((x.device.type for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), "cpu")
        if not autocast_is_on(kind):
            return _in_full(method, self, args, kwargs)
        with torch.autocast(kind, enabled=False):
            return _in_full(method, self, args, kwargs)

    return cast(_F, run)


def _in_full(method: Any, module: PreciseModule, args: Any, kwargs: Any) -> Any:
    given = [x.dtype for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    half = next((d for d in given if d == module._cast_to or (module._takes_half and is_less(d))), None)
    if half is None:
        return method(module, *args, **kwargs)
    full = module._full_dtype()
    args = [_widened(x, half, full) for x in args]
    kwargs = {name: _widened(x, half, full) for name, x in kwargs.items()}
    return _converted(method(module, *args, **kwargs), full, half)


def _converted(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """Tensors of one dtype in another; a mapping is converted value by value."""
    if isinstance(value, dict):
        return type(value)({name: _converted(entry, old, new) for name, entry in value.items()})
    return value.to(new) if isinstance(value, Tensor) and value.dtype == old else value


def _widened(value: Any, half: torch.dtype, full: torch.dtype) -> Any:
    """As `_converted`, without infinite numbers, which products of half precision return where they overflow: scores of anchors
    must be finite, or the result is NaN where the original has none."""
    if isinstance(value, dict):
        return {name: _widened(entry, half, full) for name, entry in value.items()}
    wide = _converted(value, half, full)
    if wide is value:
        return value
    most = min(torch.finfo(half).max, _MOST)
    return wide.clamp(-most, most)


def autocast_is_on(kind: str) -> bool:
    """Whether torch.autocast is enabled for a type of device."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def is_traced() -> bool:
    """Whether the operations that run now are recorded in a graph, or intercepted."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return True
    return bool(torch._C._len_torch_dispatch_stack() or torch._ops._len_torch_dispatch_stack_pre_dispatch())  # type: ignore[no-untyped-call]


def can_look(*tensors: Tensor) -> bool:
    """Whether the values of the tensors may be read: they are known, and reading them leaves no trace in a graph."""
    return not is_traced() and all(is_plain(t) and not t.is_meta for t in tensors)


def in_place(*tensors: Tensor) -> bool:
    """Whether results may be written in place: plain tensors on the CPU that need no gradient."""
    if not can_look(*tensors) or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return False
    return all(t.device.type == "cpu" for t in tensors)


def in_chunks(run: Callable[..., Tensor], rows: int, *tensors: Tensor) -> Tensor:
    """run(*tensors), on `rows` rows of the tensors at a time, which bounds the memory. A graph has no chunks: their number would
    be that of the input it was traced with."""
    if is_traced():
        return run(*tensors)
    parts = [run(*part) for part in zip(*(torch.split(t, max(1, rows)) for t in tensors), strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@contextmanager
def in_rows() -> Iterator[None]:
    """Heads that are traced now run softmax along the last axis: for graphs that leave torch. Elsewhere a graph has the
    operations of the module, and returns the same bits."""
    global _in_rows
    before, _in_rows = _in_rows, True
    try:
        yield
    finally:
        _in_rows = before


def is_in_rows() -> bool:
    """Whether `in_rows` holds."""
    return _in_rows


def constant(number: float, like: Tensor) -> Any:
    """A factor or a summand of a tensor. In a graph it is a stored tensor with an axis: torch.onnx rounds Python's numbers to
    float32, and its optimiser drops numbers without axes that are below 1e-8 (as 0) or within 1e-5 of 1.

    In float64 the axis has the length of the tensor's last one, where that is known: onnxruntime moves a single number into the
    product of matrices before or after it, and rounds it to float32."""
    if not is_traced():
        return number
    last = like.shape[-1] if like.ndim and like.dtype == torch.float64 else 1
    one = torch.tensor([number] * (last if type(last) is int else 1), dtype=like.dtype, device=like.device)
    return one.reshape(*(1,) * (like.ndim - 1), -1)


def is_plain(t: Tensor) -> bool:
    """Whether a tensor is no subclass, has no tangent, and is not differentiated or vectorised by torch.func."""
    if type(t) not in (Tensor, nn.Parameter) or torch._C._functorch.is_functorch_wrapped_tensor(t):
        return False
    return forward_ad._current_level < 0 or forward_ad.unpack_dual(t).tangent is None  # type: ignore[no-untyped-call]


def check_tensor(
    name: str, x: object, dtype: torch.dtype, shape: tuple[int | None, ...] = (), lead: bool = True
) -> None:
    """Raise unless x is a tensor of the dtype in which a module runs, and its last axes have these sizes (None: any size); with
    lead=False, it has no other axes."""
    if not isinstance(x, Tensor) or x.dtype != dtype:
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} must be a torch.Tensor of {dtype}: got {got}. {_conversion(x, dtype)}")
    if dtype not in FULL:
        raise InputError(f"{name}: the numbers of the module are {dtype}, it runs in float32 or float64")
    last = x.shape[max(0, x.ndim - len(shape)) :]
    fits = len(last) == len(shape) and all(n in (None, got) for n, got in zip(shape, last, strict=True))
    if not fits or not (lead or x.ndim == len(shape)):
        sizes = ", ".join(["…"] * lead + ["n" if n is None else str(n) for n in shape])
        comma = "," * (lead + len(shape) == 1)
        raise InputError(f"{name} must have the shape ({sizes}{comma}): got {tuple(x.shape)}")


def _conversion(x: object, dtype: torch.dtype) -> str:
    """How to convert an input: nothing is converted silently, because rounding would change what is computed."""
    call = {torch.float32: "float", torch.float64: "double"}.get(dtype, f"to({dtype}).to")
    if isinstance(x, np.ndarray):
        return f"Convert it: torch.from_numpy(x).{call}()"
    if not isinstance(x, Tensor):
        return f"Convert it: torch.tensor(x, dtype={dtype})"
    if x.dtype in FULL:
        return f"Convert it, x.{call}(), or build the module with dtype={x.dtype}"
    return f"Convert it: x.{call}()"


def check_domain(
    module: nn.Module, x: Tensor, strict: bool | None, domain: Interval | Box | Outside | None
) -> None:
    """Warn or raise if x lies outside the domain, or if `domain(x)` returns a reason. `strict` overrides the module's own."""
    strict = cast("bool | None", module.strict) if strict is None else strict
    if strict is None and (module in _warned or x.device.type != "cpu"):
        return
    if domain is None or strict is False:
        return
    outside = domain if callable(domain) else lambda x: outside_domain(x, domain)
    if not x.numel() or not can_look(x) or (reason := outside(x.detach())) is None:
        return
    text = f"{reason}: no error bound holds there. Keep inputs inside, build the module for a larger domain"
    if strict:
        raise InputError(f"{text}, or call with strict=False")
    _warned.add(module)
    text += "; strict=False disables this warning, strict=True raises an error"
    warnings.warn(text, DomainWarning, stacklevel=_caller())


def _caller() -> int:
    """The stack level of the code that called a module, outside attnc and torch."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("attnc.", "torch.")):
        frame, level = frame.f_back, level + 1
    return level


def outside_domain(x: Tensor, domain: Interval | Box) -> str | None:
    """None if every number, or every input of a batch, lies in the domain, else the reason; NaN does not lie in it."""
    least, most = (float(end) for end in torch.aminmax(x))
    if isinstance(domain, Interval):
        if domain.lo <= least and most <= domain.hi:
            return None
        worst = least if least < domain.lo or least != least else most
        return f"an input of {worst:g} lies outside [{domain.lo:g}, {domain.hi:g}]"
    small = float(domain.lo.max()) <= least and most <= float(domain.hi.min())
    if small and not isinstance(domain, Tokens):  # ids must also be whole numbers
        return None
    inside = domain.contains(x).reshape(-1)
    return (
        None
        if bool(inside.all())
        else f"input {int((~inside).nonzero()[0])} of the batch lies outside {domain}"
    )
