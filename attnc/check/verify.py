"""attnc.verify: prove a certificate anew, from a file or from a module."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import torch

from attnc.check.head import Verdict, check
from attnc.check.network import check_network
from attnc.errors import InputError
from attnc.functions import Function, get
from attnc.program.program import Program
from attnc.records.files import read_file
from attnc.records.head_certificate import Certificate
from attnc.records.measured import NetworkMeasured
from attnc.records.network_certificate import NetworkCertificate
from attnc.records.network_numbers import NetworkNumbers
from attnc.records.network_record import read_network
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.record import head_record


def verify(what: str | os.PathLike[str] | torch.nn.Module, function: Function | str | None = None) -> Verdict:
    """Prove anew, from the stored numbers alone, what the certificate of a head or a network claims.

    Takes a file or a module. `function` is needed only where the certificate speaks of a function of your own
    that is not registered.

    >>> import attnc
    >>> attnc.verify(attnc.head("tanh", domain=(-8, 8), eps=1e-5)).status
    'proved'
    """
    f = get(function) if isinstance(function, str) else function
    if f is not None and not isinstance(f, Function):
        raise InputError(f"function is an attnc.Function or its name: got {type(f).__name__}")
    if isinstance(what, torch.nn.Module):
        return _module(what, f)
    if not isinstance(what, (str, os.PathLike)):
        raise _not_verified(what)
    about, tensors = read_file(what)
    if about.get("kind") == "network":
        network = read_network(what, about, tensors, f)
        if network.certificate is None:
            return _only_measured(network.measured)
        return check_network(network.program, network.numbers, network.certificate)
    head = head_record(what, about, tensors)
    return check(head.numbers, head.certificate, f) if head.certificate else _only_measured(head.measured)


def _module(module: Any, f: Function | None) -> Verdict:
    certificate = getattr(module, "certificate", None)
    if isinstance(certificate, NetworkCertificate):
        try:
            numbers, program = module.numbers(), module.program
        except InputError as problem:
            return Verdict("unknown", f"the certificate does not apply: {problem}")
        if not isinstance(numbers, NetworkNumbers) or not isinstance(program, Program):
            raise InputError("verify takes an attnc network, with its numbers and its program")
        with torch.autocast("cpu", enabled=False):  # under which every module of attnc runs
            verdict = check_network(program, numbers, certificate, module)
        return _as_executed(module, verdict)
    if certificate is None and isinstance(getattr(module, "measured", None), NetworkMeasured):
        return _only_measured(module.measured)
    tensors = all(isinstance(getattr(module, name, None), torch.Tensor) for name in TENSORS)
    if not tensors or not (certificate is None or isinstance(certificate, Certificate)):
        raise _not_verified(module)
    changed = _dtype_changed(module, certificate)
    if changed is not None:
        return Verdict("unknown", changed)
    numbers = _numbers(module)
    if certificate is None:
        return _only_measured(getattr(module, "measured", None))
    with torch.autocast("cpu", enabled=False):
        verdict = check(numbers, certificate, f, module)
    return _as_executed(module, verdict)


def _not_verified(what: object) -> InputError:
    """Says what was given and what can be verified instead."""
    made = "a head (attnc.head), a network (attnc.compile), a converted model (attnc.convert_)"
    accepted = f"{made}, or the file or directory of one"
    if type(what).__module__.startswith("attnc.incontext"):
        return InputError(
            f"a {type(what).__name__} cannot be verified independently yet: learners and solvers are proved when they are made, "
            f"see its `certificate`. attnc.verify takes {accepted}"
        )
    return InputError(f"attnc.verify takes {accepted}: got {type(what).__name__}")


def _as_executed(module: torch.nn.Module, verdict: Verdict) -> Verdict:
    """What is proved is proved of the numbers: a module that runs other code than attnc's is not covered.

    The module is asked by the method of its class, which an attribute of the instance does not hide."""
    hooks = torch.nn.modules.module
    if not verdict:
        return verdict
    ask = getattr(type(module), "why_not_certified", None)
    reason = ask(module) if ask is not None else f"{type(module).__name__} is not a module of attnc"
    if reason is not None:
        return replace(verdict, status="unknown", reason=f"the certificate does not apply: {reason}")
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return replace(verdict, status="unknown", reason="a global forward hook may change what is executed")
    for name, part in module.named_modules():
        own = _is_attncs(type(part)) or type(part) is torch.nn.ModuleList
        patched = any(callable(getattr(type(part), name, None)) for name in vars(part))
        if not own or patched or part._forward_hooks or part._forward_pre_hooks:
            where = name or type(part).__name__
            return replace(
                verdict,
                status="unknown",
                reason=f"{where} runs other code than attnc's: a hook or another forward",
            )
    return verdict


def _is_attncs(kind: type) -> bool:
    """Whether a class is one of attnc.network itself, and not one that only says so."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__.startswith("attnc.network.") and getattr(module, kind.__qualname__, None) is kind


def _only_measured(measured: Any) -> Verdict:
    seen = f" ({measured.error:.3g} at {measured.points} points)" if measured is not None else ""
    return Verdict("unknown", f"there is no certificate: the error was measured{seen}, not proved")


def _numbers(module: Any) -> HeadNumbers:
    arrays = {name: getattr(module, name).detach().to("cpu", torch.float64).numpy() for name in TENSORS}
    return HeadNumbers(**arrays, dtype=str(module.key.dtype).removeprefix("torch."))


def _dtype_changed(module: Any, certificate: Certificate | None) -> str | None:
    if certificate is None:
        return None
    found = {str(getattr(module, name).dtype).removeprefix("torch.") for name in TENSORS}
    if found == {certificate.dtype}:
        return None
    return f"the certificate does not apply: it is for {certificate.dtype}, the head is {', '.join(sorted(found))}"
