"""Problems of a module that are found by inspection, before it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.utils.parametrize as parametrize
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.nn.modules import module as calls
from torch.nn.parameter import is_lazy

from attnc.errors import Problem

DTYPES = (torch.float32, torch.float64)
HALF = (torch.bfloat16, torch.float16)
_PLAIN = (Tensor, nn.Parameter)
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule")
_WRAPS = "is a wrapper: give model.module, or the module that torch.compile was called with"
_SCRIPTED = "is compiled by torch.jit: give the original nn.Module"
_QUANTISED = "is a quantised layer, which is not supported: use the model as it was before quantisation"
_REMOVERS = {
    "torch.nn.utils.weight_norm": "torch.nn.utils.remove_weight_norm(module)",
    "torch.nn.utils.spectral_norm": "torch.nn.utils.remove_spectral_norm(module)",
    "torch.nn.utils.prune": "torch.nn.utils.prune.remove(module, name)",
}


def part_name(path: str, part: object) -> str:
    """How messages name a part: 'net.0 (Linear)'."""
    return f"{path or 'the model'} ({type(part).__name__})"


def like(model: nn.Module) -> Tensor:
    """An empty tensor of the dtype and device of the model's first floating-point tensor; `inspected` reports mixtures."""
    tensors = (*model.parameters(), *model.buffers())
    return next((t.detach() for t in tensors if t.dtype in DTYPES), torch.zeros(0)).new_empty(0)


def inspected(model: nn.Module, *, own_calls: bool = False) -> tuple[list[Problem], bool]:
    """Every reason, over all parts, why calling the model may compute something else than its `forward`; and whether the model
    can be recorded in spite of them. With `own_calls`, classes may define `__call__`, which a recording of a caller contains."""
    problems = [*global_hooks(), *training_parts(model), *_tensors(model)]
    readable = True
    for name, part in model.named_modules():
        scripted = isinstance(part, torch.jit.ScriptModule)
        wraps = type(part).__module__.startswith("torch.") and type(part).__name__ in _WRAPPERS
        quantised = is_quantised(part)
        if quantised and any(map(is_quantised, _parents(model, name))):
            continue
        reasons = [_SCRIPTED] if scripted else [_WRAPS] if wraps else list(_interference(part, own_calls))
        reasons = [_QUANTISED] if quantised else reasons
        problems += [Problem(part_name(name, part), reason) for reason in reasons]
        foreign = {a: t for a, t in vars(part).items() if isinstance(t, Tensor) and type(t) not in _PLAIN}
        problems += [Problem(f"{name}.{a}".lstrip("."), str(tensor_problem(t))) for a, t in foreign.items()]
        sparse = any(t is not None and t.layout is not torch.strided for t in part._parameters.values())
        computed = parametrize.is_parametrized(part) or _is_lazy(part)
        readable = readable and not (scripted or wraps or quantised or foreign or sparse or computed)
    return problems, readable


def _parents(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """The modules that contain the one with this name."""
    while name:
        name = name.rpartition(".")[0]
        yield model.get_submodule(name)


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """The stored numbers, which the array may share; those of half precision in float32."""
    stored = tensor.detach().cpu().resolve_neg()
    found: NDArray[Any] = (stored.float() if stored.dtype in HALF else stored).numpy()
    return found


def tensor_problem(tensor: object, *, half: bool = False) -> str | None:
    """Why the numbers of a tensor or of a numpy array are not accepted, or None. With `half`, bfloat16 and float16 are."""
    if isinstance(tensor, np.ndarray) and tensor.dtype in (np.float32, np.float64):
        tensor = torch.from_numpy(np.array(tensor))
    if not isinstance(tensor, Tensor):
        kind = getattr(tensor, "dtype", f"type {type(tensor).__name__}")
        return f"is of {kind}: tensors and arrays of float32 or float64 are accepted"
    if is_lazy(tensor):
        return "is not initialised: run one input through the model first"
    if type(tensor) not in _PLAIN:
        return f"is a {type(tensor).__name__}: plain tensors are accepted"
    if tensor.is_quantized or tensor.layout is not torch.strided:
        return f"is {'quantized' if tensor.is_quantized else tensor.layout}: dense floating-point tensors are accepted"
    if tensor.dtype not in (*DTYPES, *(HALF if half else ())):
        widen = tensor.dtype in HALF
        advice = "; model.float() keeps the numbers and widens their type" if widen else ""
        return f"is of {tensor.dtype}: float32 and float64 are accepted{advice}"
    if tensor.is_meta:
        return "is on the meta device and holds no numbers: load the weights first"
    bad = int((~torch.isfinite(tensor.detach())).sum())
    if bad:
        return f"holds NaN or infinite numbers ({bad} of {tensor.numel()}): finite ones are accepted"
    return None


def global_hooks() -> Iterator[Problem]:
    if calls._global_forward_hooks or calls._global_forward_pre_hooks:
        yield Problem("torch", "has global forward hooks, which may change every result: remove them")


def training_parts(model: nn.Module) -> Iterator[Problem]:
    """The outermost parts that are in training mode."""
    outermost: list[str] = []
    for name, part in model.named_modules():
        if part.training and not any(name.startswith(outer) for outer in outermost):
            outermost.append(f"{name}." if name else "")
            if not is_quantised(part):
                yield Problem(part_name(name, part), "is in training mode: call model.eval()")


def is_quantised(part: nn.Module) -> bool:
    """Whether a layer is one of torch's quantised ones, which stay in training mode after eval()."""
    return re.match(r"torch\.(ao\.)?nn\.(intrinsic\.)?quantized", type(part).__module__) is not None


def quantised_parts(model: nn.Module) -> list[Problem]:
    """The outermost quantised parts."""
    return [
        Problem(part_name(name, part), _QUANTISED)
        for name, part in model.named_modules()
        if is_quantised(part) and not any(map(is_quantised, _parents(model, name)))
    ]


def _tensors(model: nn.Module) -> Iterator[Problem]:
    """The parameters, and the buffers of floating point (counters do not enter a result by themselves)."""
    named: dict[torch.dtype, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        counts = isinstance(tensor, Tensor) and not tensor.requires_grad and not is_lazy(tensor)
        if counts and not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized):
            continue
        reason = tensor_problem(tensor)
        if reason is not None:
            yield Problem(name, reason)
        elif tensor.dtype in DTYPES:
            named.setdefault(tensor.dtype, name)
    if len(named) > 1:
        first, second = (f"{name} is of {dtype}" for dtype, name in named.items())
        yield Problem("the model", f"mixes dtypes: {first}, {second}; call model.float() or model.double()")


def _interference(part: nn.Module, own_calls: bool) -> Iterator[str]:
    """What runs beside, or instead of, the `forward` of the class."""
    if _is_lazy(part):
        return  # its hooks are those that initialise it; the tensors themselves are reported
    if parametrize.is_parametrized(part):
        names = ", ".join(part.parametrizations.keys())  # type: ignore[operator, union-attr]
        how = "torch.nn.utils.parametrize.remove_parametrizations(module, name)"
        yield f"has a parametrization of {names}: apply it permanently by {how}"
    hooks = [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
    if hooks:
        kinds = sorted({getattr(h, "__name__", type(h).__name__) for h in hooks})
        known = [_REMOVERS[type(h).__module__] for h in hooks if type(h).__module__ in _REMOVERS]
        how = known[0] if known else "handle.remove()"
        yield f"has forward hooks ({', '.join(kinds)}), which may change its result: remove them by {how}"
    if "forward" in vars(part):
        yield "has a forward that was assigned to the object: define forward in a class"
    patched = "_call_impl" in vars(part) or type(part)._call_impl is not nn.Module._call_impl
    own_call = type(part).__call__ is not nn.Module.__call__ and not isinstance(part, fx.GraphModule)
    if patched or (own_call and not own_calls):
        yield "has a __call__ of its own: put what it does into forward"
    if part._compiled_call_impl is not None:
        yield "was compiled in place by module.compile(): give the original module"


def _is_lazy(part: nn.Module) -> bool:
    return any(p is not None and is_lazy(p) for p in part._parameters.values())
