"""attnc.verify: prove a certificate anew, from a file or from a module."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import torch

from attnc.check.head import check
from attnc.check.literal import check_literal
from attnc.check.network import check_network
from attnc.errors import InputError
from attnc.functions import Function, get
from attnc.program.program import Program
from attnc.records.certificate import Certificate, Status
from attnc.records.layers import NetworkNumbers
from attnc.records.literal import LiteralRecord, read_any
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.verdict import Verdict


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
    record = read_any(what, f)
    if isinstance(record, LiteralRecord):
        return check_literal(record, f)
    if not record.certificate.proved:
        return _not_proved(record.certificate)
    if record.kind == "network":
        program, numbers = record.network
        return check_network(program, numbers, record.certificate)
    return check(record.head, record.certificate, f)


def _module(module: Any, f: Function | None) -> Verdict:
    certificate = getattr(module, "certificate", None)
    if isinstance(certificate, Certificate) and certificate.subject == "literal":
        literal = module.record()
        if not isinstance(literal, LiteralRecord):
            raise _not_verified(module)
        if literal.certificate.digests != certificate.digests:
            return Verdict(
                Status.UNKNOWN, "the certificate does not apply: the matrices changed since it was made"
            )
        return _as_executed(module, check_literal(literal, f))
    if not isinstance(certificate, Certificate) or certificate.subject not in ("head", "network"):
        raise _not_verified(module)
    if not certificate.proved:
        return _not_proved(certificate)
    if certificate.subject == "network":
        try:
            numbers, program = module.numbers(), module.program
        except InputError as problem:
            return Verdict(Status.UNKNOWN, f"the certificate does not apply: {problem}")
        if not isinstance(numbers, NetworkNumbers) or not isinstance(program, Program):
            raise InputError("verify takes an attnc network, with its numbers and its program")
        with torch.autocast("cpu", enabled=False):  # under which every module of attnc runs
            verdict = check_network(program, numbers, certificate, module)
        return _as_executed(module, verdict)
    if not all(isinstance(getattr(module, name, None), torch.Tensor) for name in TENSORS):
        raise _not_verified(module)
    changed = _dtype_changed(module, certificate)
    if changed is not None:
        return Verdict(Status.UNKNOWN, changed)
    with torch.autocast("cpu", enabled=False):
        verdict = check(_numbers(module), certificate, f, module)
    return _as_executed(module, verdict)


def _not_verified(what: object) -> InputError:
    """Says what was given and what can be verified instead."""
    made = "a head (attnc.head), a network (attnc.compile), their literal forms, a converted model (attnc.convert_)"
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
        return replace(verdict, status=Status.UNKNOWN, reason=f"the certificate does not apply: {reason}")
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return replace(
            verdict, status=Status.UNKNOWN, reason="a global forward hook may change what is executed"
        )
    for name, part in module.named_modules():
        own = _is_attncs(type(part)) or type(part) is torch.nn.ModuleList
        patched = any(callable(getattr(type(part), name, None)) for name in vars(part))
        if not own or patched or part._forward_hooks or part._forward_pre_hooks:
            where = name or type(part).__name__
            return replace(
                verdict,
                status=Status.UNKNOWN,
                reason=f"{where} runs other code than attnc's: a hook or another forward",
            )
    return verdict


def _is_attncs(kind: type) -> bool:
    """Whether a class is one of attnc.network itself, and not one that only says so."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__.startswith("attnc.network.") and getattr(module, kind.__qualname__, None) is kind


def _not_proved(certificate: Certificate) -> Verdict:
    seen = (
        f" ({certificate.error:.3g} at {certificate.facts['points']} points)"
        if certificate.error is not None
        else ""
    )
    return Verdict(Status.UNKNOWN, f"the error is {certificate.status}{seen}, not proved")


def _numbers(module: Any) -> HeadNumbers:
    arrays = {name: getattr(module, name).detach().to("cpu", torch.float64).numpy() for name in TENSORS}
    return HeadNumbers(**arrays, dtype=str(module.key.dtype).removeprefix("torch."))


def _dtype_changed(module: Any, certificate: Certificate) -> str | None:
    found = {str(getattr(module, name).dtype).removeprefix("torch.") for name in TENSORS}
    if found == {certificate.dtype}:
        return None
    return f"the certificate does not apply: it is for {certificate.dtype}, the head is {', '.join(sorted(found))}"
