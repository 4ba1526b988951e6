"""Heads, networks and converted models that are altered after they were made: what is no longer true must not be claimed."""

from __future__ import annotations

import copy
import functools
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import attnc
from attacks.alter_made import (
    GENERAL,
    Alter,
    add_global_hook,
    enter_autocast,
    patch_call_impl,
    patch_compiled_call,
    patch_forward,
    scale_numbers,
    swap_class,
    zero_buffers,
)  # fmt: skip
from attacks.altered import said, settle
from attacks.claims import Judged, Rivals, judge_report
from attacks.layouts import LAYOUTS, Model
from attacks.registry import disguised
from attacks.tally import Outcome
from attnc import functions
from attnc.errors import AttncError
from attnc.network.head import Head

WIDE = torch.float64


@dataclass
class Subject:
    """Something with a certificate: how to run it, what it should compute, on which inputs."""

    module: Any
    run: Callable[[Tensor], Tensor]
    meant: Callable[[Tensor], Tensor]
    x: Tensor
    bound: float


@functools.cache
def _head(spec: str, dtype: torch.dtype) -> Head:
    return attnc.head(spec, domain=(-8, 8), eps=1e-3, dtype=dtype)


def head_subject(spec: str, dtype: torch.dtype, engine: str = "softmax") -> Subject:
    head = copy.deepcopy(_head(spec, dtype))
    assert head.certificate.proved
    f, x = functions.get(spec), torch.linspace(-8, 8, 20_001, dtype=WIDE).to(dtype)
    return Subject(head, lambda s: head.run(s, engine), lambda s: f(s.double()), x, head.certificate.bound)


@functools.cache
def _network(dtype: torch.dtype) -> tuple[nn.Module, attnc.Network]:
    torch.manual_seed(5)
    model = (
        nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
        .to(dtype)
        .eval()
    )
    with torch.no_grad():
        model[0].weight[0].mul_(30)  # neurons of different reach: a layer of several groups
    return model, attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-2, dtype=dtype)


def network_subject(dtype: torch.dtype, engine: str) -> Subject:
    model, net = copy.deepcopy(_network(dtype))
    net.engine = engine
    assert net.certificate.proved
    wide = model.double()
    x = 2 * torch.rand(2000, 4, generator=torch.Generator().manual_seed(1), dtype=WIDE).to(dtype) - 1
    return Subject(net, net, lambda s: wide(s.double()), x, net.certificate.bound)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "head of gelu": lambda: head_subject("gelu", torch.float32),
    "dense head of gelu": lambda: head_subject("gelu", torch.float32, "sdpa"),
    "dense head of sigmoid": lambda: head_subject("sigmoid", torch.float32, "sdpa"),
    "head of silu": lambda: head_subject("silu", WIDE),
    "head of tanh": lambda: head_subject("tanh", WIDE),
    "network": lambda: network_subject(torch.float32, "softmax"),
    "dense network": lambda: network_subject(torch.float32, "sdpa"),
    "wide network": lambda: network_subject(WIDE, "softmax"),
}


def _stage(alter: Alter, kind: str) -> Alter:
    """The same alteration, of a part of a network."""
    return lambda m, stack: alter(next(p for p in m.modules() if type(p).__name__ == kind), stack)


def _special() -> dict[str, dict[str, Alter]]:
    inner = (
        "hook",
        "forward on the object",
        "class swapped in disguise",
        "_call_impl",
        "compiled call",
        "global hook",
    )
    parts = {
        f"{name} of a {kind}": _stage(GENERAL[name], kind)
        for kind in ("AttentionLayer", "Head")
        for name in inner
    }
    forged = {"a bound that is a thousandth": lambda m, _: _forged(m, bound=m.certificate.bound / 1000)}
    networks = {**GENERAL, **parts}
    return {name: networks if "network" in name else {**GENERAL, **forged} for name in SUBJECTS}


def _forged(module: Any, **values: Any) -> None:
    module.certificate = replace(module.certificate, **values)


class StaleError(Exception):
    """The altered object cannot be run at all: nothing is claimed of what it returns."""


def claims(module: Any) -> list[str]:
    """In which ways an object still claims its bound."""
    found = []
    if module.why_not_certified() is None:
        found.append("why_not_certified() is None")
    if attnc.verify(module).status == "proved":
        found.append("verify says proved")
    return found


def judge(subject: Subject) -> Judged:
    """The largest error of what is executed, where the object still claims its bound."""
    judged = Judged()
    said_so = claims(subject.module)
    if said_so == ["why_not_certified() is None"] and subject.bound != subject.module.certificate.bound:
        said_so = []  # a certificate that was written anew: only verify can tell
    try:
        with torch.no_grad():
            gap = (
                (subject.run(subject.x).double() - subject.meant(subject.x).double())
                .abs()
                .nan_to_num(torch.inf)
            )
    except (AttncError, RuntimeError, TypeError) as problem:
        raise StaleError(str(problem)[:100]) from problem
    own = 1e-13
    judged.see(float(gap.max()) - own, subject.module.certificate.bound, len(subject.x), ", ".join(said_so))
    judged.proved = bool(said_so)
    return judged


def cases() -> list[tuple[str, Callable[[ExitStack], Judged]]]:
    """(name, how to judge it), for heads and networks, for converted models, and for functions under a borrowed name."""
    found = []
    for what, alterations in _special().items():
        for name, alter in alterations.items():
            found.append((f"made {what}: {name}", _case(SUBJECTS[what], alter)))
    for family in ("encoder first", "llama", "gpt2"):
        for name, change in CONVERTED.items():
            found.append((f"made {family}: {name}", _converted(family, change)))
    return [*found, *((f"made {name}", case) for name, case in NAMED.items())]


def _case(make: Callable[[], Subject], alter: Alter) -> Callable[[ExitStack], Judged]:
    def run(stack: ExitStack) -> Judged:
        subject = make()
        alter(subject.module, stack)
        return judge(subject)

    return run


CONVERTED: dict[str, Callable[[Model, ExitStack], Any]] = {
    "nothing": lambda m, _: None,
    "hook on the activation": lambda m, _: _inner(m).register_forward_hook(lambda *a: a[-1] * 1.1),
    "hook on the first map": lambda m, _: m.first.register_forward_hook(lambda *a: a[-1] * 3.0),
    "hook on the second map": lambda m, _: m.second.register_forward_hook(lambda *a: a[-1] * -0.7),
    "hook on the norm": lambda m, _: m.norm.register_forward_hook(lambda *a: a[-1] * 5.0),
    "global hook": lambda m, stack: add_global_hook(_inner(m), stack),
    "forward of the activation": lambda m, _: patch_forward(_inner(m), None),
    "class of the activation": lambda m, _: swap_class(_inner(m), None),
    "_call_impl of the activation": lambda m, _: patch_call_impl(_inner(m), None),
    "compiled call of the activation": lambda m, _: patch_compiled_call(_inner(m), None),
    "compiled call of the norm": lambda m, _: setattr(
        m.norm, "_compiled_call_impl", lambda x: m.norm._call_impl(x) * 5.0
    ),
    "numbers of the activation": lambda m, _: scale_numbers(_inner(m), None),
    "numbers of the first map": lambda m, _: m.first.weight.data.mul_(3.0),
    "numbers of the norm": lambda m, _: m.norm.weight.data.mul_(10.0),
    "norm replaced by Identity": lambda m, _: m.put(m.layout.norm, nn.Identity()),
    "norm in front is passed over": lambda m, _: setattr(m.norm, "forward", lambda x: x * 5.0),
    "class of the first map": lambda m, _: setattr(
        m.first, "__class__", disguised(type(m.first), forward=_tripled(m.first))
    ),
    "buffers zeroed, state loaded": lambda m, _: zero_buffers(m.module, None),
    "autocast": lambda m, stack: enter_autocast(None, stack),
}


def _tripled(module: nn.Module) -> Callable[..., Any]:
    kept = type(module).forward
    return lambda self, x: kept(self, x) * 3.0


def _inner(model: Model) -> nn.Module:
    """What stands for the activation in a converted model."""
    return next(p for p in model.module.modules() if type(p).__name__ == "AnchorActivation")


def _converted(family: str, change: Callable[[Model, ExitStack], Any]) -> Callable[[ExitStack], Judged]:
    def run(stack: ExitStack) -> Judged:
        original, wide, converted = (LAYOUTS[family].build(torch.float32) for _ in range(3))
        wide.module.double()
        report = attnc.convert_(converted.module, approximation=1e-2)
        change(converted, stack)
        proved = attnc.verify(converted.module).status == "proved"
        judged = judge_report(Rivals(original, wide, converted), report, np.random.default_rng(0), 120)
        judged.proved = proved
        return judged

    return run


def _borrowed(stack: ExitStack) -> Judged:
    """A function of one's own, under the name of a built-in one: the certificate must not speak of the built-in one."""
    fake = attnc.Function("relu", torch.abs, (lambda x: -x, lambda x: x), (0.0,))
    head = attnc.head(fake, domain=(-1, 1), eps=1e-2)
    assert head.certificate.proved
    x = torch.linspace(-1, 1, 1001)
    judged = Judged(proved=head.certificate.facts["function"] == "relu" and head.why_not_certified() is None)
    judged.see(float((head(x) - x.relu()).abs().max()), head.certificate.bound, len(x), "named relu")
    return judged


def _witness(stack: ExitStack) -> Judged:
    """A witness is an error that is attained: verify must not confirm one that is not."""
    head = copy.deepcopy(_head("sigmoid", torch.float32))
    assert head.certificate.proved
    claimed = head.certificate.witness
    head.certificate = replace(
        head.certificate,
        witness=replace(claimed, error=min(35 * claimed.error, 0.99 * head.certificate.bound)),
    )
    judged = Judged(proved=attnc.verify(head).status == "proved")
    judged.see(head.certificate.witness.error, claimed.error * 1.0001, 1, "a witness that is not attained")
    return judged


def _copied(stack: ExitStack) -> Judged:
    """The numbers and the certificate of one head in the module of another."""
    target, source = copy.deepcopy(_head("tanh", WIDE)), copy.deepcopy(_head("silu", WIDE))
    module = (
        Head(target.numbers(), target.design)
        if target.key.shape == source.key.shape
        else copy.deepcopy(source)
    )
    with torch.no_grad():
        for name in ("query", "key", "value", "output"):
            getattr(module, name).copy_(getattr(source, name))
    module.certificate = source.certificate
    assert module.certificate.proved
    x = torch.linspace(-8, 8, 2001, dtype=WIDE)
    return judge(Subject(module, module, torch.nn.functional.silu, x, module.certificate.bound))


NAMED: dict[str, Callable[[ExitStack], Judged]] = {
    "function: a borrowed name": _borrowed,
    "head: a witness that was raised": _witness,
    "head: numbers of another": _copied,
}


def attack(name: str, case: Callable[[ExitStack], Judged]) -> Outcome:
    """Judge one case."""
    began, outcome = (
        time.perf_counter(),
        Outcome("altered", name, "crashed", control=name.endswith(": nothing")),
    )
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            judged = case(stack)
            settle(outcome, judged)
            if not judged.proved:
                outcome.verdict = "refused"  # whatever it does, it does not claim its bound any longer
                outcome.ratio = 0.0
        except (AttncError, StaleError) as problem:
            outcome.verdict, outcome.note = "refused", f"{type(problem).__name__}: {str(problem)[:160]}"
        except Exception as problem:
            outcome.verdict, outcome.note = "crashed", said(problem)
    outcome.seconds = time.perf_counter() - began
    return outcome
