"""Changes of a module that make it execute other code than the certificate is about: hooks, replaced methods, subclasses,
parametrizations, casts and other devices change what is executed and leave the numbers as they are."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from attnc.errors import CertificateWarning
from attnc.network.running import PreciseModule, autocast_is_on
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import DAMAGE
from attnc.records.numbers import listed

_T = TypeVar("_T", bound=type[nn.Module])
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_made: dict[type, dict[str, object]] = {}  # the attributes of attnc's classes at their definition


def as_made(cls: _T) -> _T:
    """A class decorator that records the attributes of a module's class, so that `why_altered` detects replaced ones."""
    _made[cls] = dict(vars(cls))
    return cls


@as_made
class CertifiedModule(PreciseModule):
    """A module with a certificate, which says when it is printed whether it applies to the module as it is now."""

    _certificate: Certificate

    @property
    def certificate(self) -> Certificate:
        return self._certificate

    @certificate.setter
    def certificate(self, issued: Certificate) -> None:
        self._certificate = issued.held_by(self, why_lapsed)

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.certificate = self._certificate


def why_lapsed(module: Any) -> str | None:
    """Why the certificate of a module does not apply to it as it is now, whether the error was proved or measured; None if it
    does, or if nothing is known of the error. The methods of the class are called: one of the instance does not hide them."""
    kind, known = cast(Any, type(module)), module.certificate
    if known.proved or known.subject == "literal":
        return cast("str | None", kind.why_not_certified(module))
    if known.status is Status.UNKNOWN:
        return None
    if known.subject == "network":
        return cast("str | None", kind.why_changed(module))
    return why_changed(module, known, {name: d for name, d in known.digests.items() if name != "program"})


def why_altered(module: nn.Module, foreign: Collection[nn.Module] = ()) -> str | None:
    """Why a module may execute something other than attnc's code on a CPU in full precision; None if nothing was found.

    In `foreign` parts, whose classes are not attnc's, only hooks and replaced methods are detected."""
    if (surrounding := _surroundings_altered()) is not None:
        return surrounding
    for name, part in module.named_modules():
        reason = _class_altered(part) if part not in foreign else None
        reason = reason or _instance_altered(part) or _tensors_altered(part)
        if reason is not None:
            return f"{name or type(part).__name__} {reason}"
    kinds = {t.device.type for t in (*module.parameters(), *module.buffers())} | {"cpu"}
    if any(autocast_is_on(kind) for kind in kinds):
        return "torch.autocast is on: certificates are for code that runs without it"
    return None


def why_changed(
    module: nn.Module, certificate: Certificate, known: Mapping[str, str] | None = None
) -> str | None:
    """Why a certificate is not about what the module executes and the numbers that it holds now; None if it is. `known` are the
    digests of the numbers, if the certificate has others too."""
    return why_altered(module) or _numbers_changed(module, certificate, known)


def warn_if_changed(module: nn.Module, certificate: Certificate) -> None:
    """Warn before a module is saved whose numbers are not those of its certificate. Hooks and devices are not part of a file."""
    known = {name: found for name, found in certificate.digests.items() if name != "program"}
    if known and (reason := _numbers_changed(module, certificate, known)) is not None:
        warnings.warn(
            f"the certificate does not apply to what is saved ({reason}): `attnc verify` will not prove its bound. "
            f"Build the {certificate.subject} again from the new weights to get a certificate for them.",
            CertificateWarning,
            stacklevel=3,
        )


def _numbers_changed(
    module: nn.Module, certificate: Certificate, known: Mapping[str, str] | None = None
) -> str | None:
    try:
        numbers = cast(Any, module).numbers()
        digests = numbers.digests()
    except DAMAGE as problem:  # an InputError too
        return str(problem)
    if numbers.dtype != certificate.dtype:
        return f"the certificate is for {certificate.dtype}, the numbers are {numbers.dtype}"
    return why_others(digests, certificate, known)


def why_others(
    digests: Mapping[str, str], certificate: Certificate, known: Mapping[str, str] | None = None
) -> str | None:
    """The tensors that are not those of a certificate; None if all are."""
    known = certificate.digests if known is None else known
    changed = sorted(name for name in digests.keys() | known.keys() if digests.get(name) != known.get(name))
    return f"changed since it was certified: {listed(changed, len(digests))}" if changed else None


def why_parts(parts: Mapping[str, nn.Module]) -> str | None:
    """Why the certificate of one of several certified parts does not apply, with its name; None if all do."""
    reasons = ((name, cast(Any, part).why_not_certified()) for name, part in parts.items())
    return next((f"{name}: {reason}" for name, reason in reasons if reason is not None), None)


def _surroundings_altered() -> str | None:
    """Global hooks, and modes that intercept every operation."""
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "a global forward hook may change what is executed"
    modes = [m for m in _get_current_function_mode_stack() if not isinstance(m, DeviceContext)]  # type: ignore[no-untyped-call]
    if modes or torch._C._len_torch_dispatch_stack():
        return "a torch function mode or dispatch mode may change what is executed"
    return None


def _class_altered(part: nn.Module) -> str | None:
    if type(part) in _CONTAINERS:
        return None
    if type(part) not in _made:
        return f"is a {type(part).__name__}, which is not a class of attnc: it was replaced, subclassed or parametrized"
    for cls in type(part).__mro__:
        before, now = _made.get(cls, {}), vars(cls) if cls in _made else {}
        for name in before.keys() | now.keys():
            old, new = before.get(name), now.get(name)
            if old is not new and (_is_code(old) or _is_code(new)):
                return f"runs other code: {cls.__name__}.{name} was replaced"
    return None


def _instance_altered(part: nn.Module) -> str | None:
    if part._forward_pre_hooks or part._forward_hooks:
        return "has a forward hook"
    if part._compiled_call_impl is not None:
        return "was compiled in place: certificates are for code that runs without torch.compile"
    for name, value in vars(part).items():
        if _is_code(getattr(type(part), name, None)):
            return f"runs other code: its method {name} was replaced"
        registered = {*part._modules, *part._parameters, *part._buffers}
        if isinstance(value, nn.Module) or name in registered:
            return f"has an attribute {name} in the place of a registered part"
    return None


def _tensors_altered(part: nn.Module) -> str | None:
    for name, tensor in (*part._parameters.items(), *part._buffers.items()):
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"holds {name} as a {type(tensor).__name__}: certificates are for plain tensors"
        if tensor.device.type != "cpu":
            return f"is on {tensor.device}: certificates are for the arithmetic of CPUs"
    if isinstance(part, PreciseModule) and part._cast_to is not None:
        kept = str(part._full_dtype()).removeprefix("torch.")
        return f"was cast to {part._cast_to}: it runs in {kept} and rounds its result"
    return None


def _is_code(attribute: object) -> bool:
    return callable(attribute) or isinstance(attribute, (property, classmethod, staticmethod))


as_made(PreciseModule)
