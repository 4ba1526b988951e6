"""attnc.verify: check a certificate again, from a file or from a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attnc.check.head import check_alone
from attnc.check.learner import check_learner
from attnc.check.literal import check_literal
from attnc.check.model import check_directory
from attnc.check.network import check_network
from attnc.check.norm import check_quadratic
from attnc.check.tokens import check_tokens
from attnc.errors import AttncError, InputError
from attnc.functions import Function, get
from attnc.records.certificate import Certificate, Status, Verdict
from attnc.records.fields import DAMAGE
from attnc.records.record import LiteralRecord, read
from attnc.records.tokens import rebuilt

Checker = Callable[[Any, Function | None], Verdict]


def verify(what: str | os.PathLike[str] | torch.nn.Module, function: Function | str | None = None) -> Verdict:
    """Prove again, from the stored numbers alone, what the certificate of an object or a file states.

    Takes a module; the file of a head, a network, a learner, a literal or a token network; or the directory of a converted model.
    `function` is needed only if a head was built for a function of your own that is not registered.

    >>> import attnc
    >>> print(attnc.verify(attnc.head("tanh", domain=(-8, 8), eps=1e-5)).status)
    proved
    """
    f = get(function) if isinstance(function, str) else function
    if f is not None and not isinstance(f, Function):
        raise InputError(f"function={f!r}: pass an attnc.Function or the name of one")
    if isinstance(what, (str, os.PathLike)):
        return CHECKERS["directory"](what, f) if Path(what).is_dir() else _file(what, f)
    if type(what).__module__.startswith("torch._dynamo"):  # it has the attributes of the module that it wraps
        reason = "torch.compile executes other code; verify the module that it was called with"
        return Verdict(Status.UNKNOWN, f"the certificate does not apply: {reason}")
    certificate = getattr(what, "certificate", None) if isinstance(what, torch.nn.Module) else None
    subject = "model" if hasattr(what, MODEL) else getattr(certificate, "subject", None)
    if subject not in CHECKERS:
        kind = type(what).__name__
        raise InputError(f"attnc.verify takes a module of attnc, or its file or directory: got {kind}")
    if isinstance(certificate, Certificate) and not certificate.proved and subject != "literal":
        return _not_proved(certificate)
    if subject == "model":
        return CHECKERS[subject](what, f)
    try:
        with torch.autocast("cpu", enabled=False):  # as all modules of attnc run
            verdict = CHECKERS[subject](what, f)
    except DAMAGE as problem:  # an InputError too
        reason = str(problem) if isinstance(problem, AttncError) else f"{type(problem).__name__}: {problem}"
        return Verdict(Status.UNKNOWN, f"the certificate does not apply: {reason}")
    return _as_executed(what, verdict)


def _file(path: str | os.PathLike[str], f: Function | None) -> Verdict:
    record = read(path, f)
    if isinstance(record, LiteralRecord):
        return check_literal(record, f)
    if not record.certificate.proved:
        return _not_proved(record.certificate)
    if record.kind == "head":
        return check_alone(record.head, record.certificate, f)
    if record.kind == "learner":
        return check_learner(record.heads, record.certificate, f)
    if record.kind == "quadratic":
        return check_quadratic(record.quadratic, record.certificate)
    if record.kind == "tokens":
        return check_tokens(*record.tokens, record.certificate)
    return check_network(*record.network, record.certificate)


def _learner(module: Any, f: Function | None) -> Verdict:
    heads = dict(module.named_children())
    names = [name for name in module.certificate.facts["heads"] if hasattr(heads.get(name), "certificate")]
    return check_learner({name: heads[name].numbers() for name in names}, module.certificate, f)


def _literal(module: Any, f: Function | None) -> Verdict:
    record = module.record()
    if not isinstance(record, LiteralRecord) or record.certificate != module.certificate:
        raise InputError("the matrices or the certificate changed since it was issued")
    return check_literal(record, f)


def _as_executed(module: Any, verdict: Verdict) -> Verdict:
    """What is proved is proved of the numbers: a module that runs other code than attnc's is not covered.

    The method of the class is called: an attribute of the instance does not hide it."""
    if not verdict:
        return verdict
    ask = getattr(type(module), "why_not_certified", None)
    reason = ask(module) if ask is not None else f"{type(module).__name__} is not a module of attnc"
    reason = reason or _other_code(module)
    if reason is None:
        return verdict
    return replace(verdict, status=Status.UNKNOWN, reason=f"the certificate does not apply: {reason}")


def _other_code(module: torch.nn.Module) -> str | None:
    """The part of a module that runs other code than attnc's, or None."""
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "a global forward hook may change what is executed"
    for name, part in module.named_modules():
        kind = type(part)
        real = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind  # not only by name
        attncs = real and kind.__module__.startswith(("attnc.network.", "attnc.incontext."))
        own = attncs or kind is torch.nn.ModuleList
        patched = any(callable(getattr(type(part), name, None)) for name in vars(part))
        if not own or patched or part._forward_hooks or part._forward_pre_hooks:
            return f"{name or type(part).__name__} has a hook, or a forward that is not attnc's"
    return None


def _not_proved(certificate: Certificate) -> Verdict:
    points = certificate.facts.get("points")
    seen = "" if certificate.error is None else f" ({certificate.error:.3g} at {points} inputs)"
    reason = f": {certificate.facts['reason']}" if "reason" in certificate.facts else ""
    return Verdict(Status.UNKNOWN, f"the error is {certificate.status}{seen}, not proved{reason}")


MODEL = "_attnc_report"  # attribute of a converted model
CHECKERS: dict[str, Checker] = {
    "head": lambda head, f: check_alone(head.numbers(), head.certificate, f, head),
    "network": lambda net, f: check_network(net.program, net.numbers(), net.certificate, net),
    "learner": _learner,
    "quadratic": lambda head, f: check_quadratic(head.numbers(), head.certificate),
    "literal": _literal,
    "tokens": lambda net, f: check_tokens(rebuilt(net.program), net.numbers(), net.certificate),
    "directory": lambda path, f: check_directory(path),
}
