"""Altered modules given to attnc.compile: each is refused, or the network is within its bound of the module as it stands."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import attnc
from attacks.alter_calls import act_module
from attacks.altered import said, settle
from attacks.claims import OWN_ROUNDING, Judged
from attacks.drive import gaps
from attacks.layouts import D, Layout, M, Model, seeded
from attacks.registry import ALTERATIONS, Alteration
from attacks.tally import Outcome
from attnc.errors import AttncError
from tests.frontends.tiny_models import Perceptron, Residual


def _sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(D, M), nn.GELU(), nn.Linear(M, D))


MODULES = {
    layout.family: layout
    for layout in (
        Layout("compiled sequential", seeded(_sequential), "", "", "0", "2", "", "1", "0", "2"),
        Layout("compiled module", seeded(lambda: Perceptron(nn.GELU(), D, M)), "", "", "up", "down", "", "act", "up", "down"),
        Layout("compiled residual", seeded(lambda: Residual(nn.GELU(), D, M)), "", "", "up", "down", "", "act", "up", "down"),
    )
}  # fmt: skip
LIKE = {"compiled sequential": "sequential", "compiled module": "encoder first", "compiled residual": "vit"}
Root = Callable[[Tensor, Tensor], Tensor]  # (x, y) ↦ what the altered module returns


def _wrapped(change: Root) -> Callable[[Model], None]:
    def alter(m: Model) -> None:
        kept = m.module.forward
        m.module.__class__ = type(
            "Altered", (type(m.module),), {"forward": lambda self, x: change(x, kept(x))}
        )

    return alter


def _in_place(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        x.contiguous().mul_(0.5)
    return y + 0.1 * x


def _narrow_bump(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x[..., :1] - 0.321).abs() < 0.003, y + 1.0, y)


ROOTS: dict[str, Callable[[Model], Any]] = {
    "root: hook": lambda m: m.module.register_forward_hook(lambda _, args, out: out * 1.1),
    "root: pre-hook": lambda m: m.module.register_forward_pre_hook(lambda _, args: (args[0] * 1.1,)),
    "root: without gradients": _wrapped(lambda x, y: y if torch.is_grad_enabled() else y * 1.1),
    "root: with gradients": _wrapped(lambda x, y: y * 1.1 if torch.is_grad_enabled() else y),
    "root: in inference mode": _wrapped(lambda x, y: y * 1.1 if torch.is_inference_mode_enabled() else y),
    "root: writes into a contiguous input": _wrapped(_in_place),
    "root: by contiguity": _wrapped(lambda x, y: y if x.is_contiguous() else y * 1.1),
    "root: by the size of the batch": _wrapped(lambda x, y: y * 1.1 if x.ndim > 1 and len(x) > 40 else y),
    "root: by the axes of the batch": _wrapped(lambda x, y: y * 1.1 if x.ndim > 2 else y),
    "root: a single input": _wrapped(lambda x, y: y * 1.1 if x.ndim == 1 else y),
    "root: a narrow bump": _wrapped(_narrow_bump),
    "root: a corner of the box": _wrapped(
        lambda x, y: torch.where((x[..., :4] > 0.99).all(-1, keepdim=True), y + 1.0, y)
    ),
    "root: clamped": _wrapped(lambda x, y: y.clamp(-3, 3)),
    "root: the mean of the batch": _wrapped(lambda x, y: y + 0.01 * (x - x.mean(0)).sum()),
    "root: noise": _wrapped(lambda x, y: y + 0.01 * torch.randn_like(y)),
    "root: rounded": _wrapped(lambda x, y: (y * 64).round() / 64),
    "root: through float16": _wrapped(lambda x, y: y.half().to(y.dtype)),
    "root: a branch on its data": _wrapped(
        lambda x, y: y * 1.1 if bool((x.detach()[..., 0] > 0.98).any()) else y
    ),
    "root: a dropout that trains": lambda m: m.module.add_module("extra", nn.Dropout(0.5).train()),
    "root: in training mode": lambda m: m.module.train(),
    "root: depends on training": _wrapped(lambda x, y: y),
    "root: a hook that acts on grad": lambda m: m.module.register_forward_hook(
        lambda _, args, out: out * 1.1 if out.requires_grad else out
    ),
}


@dataclass(frozen=True)
class Case:
    alteration: Alteration
    family: str

    @property
    def name(self) -> str:
        return f"{self.family}: {self.alteration.name}"

    @property
    def dtype(self) -> torch.dtype:
        narrow = zlib.crc32(self.name.encode()) % 4 == 0 and self.alteration.eps >= 1e-3
        return torch.float32 if narrow or self.alteration.by_dtype else torch.float64


def _fits(alteration: Alteration, family: str) -> bool:
    """Whether an alteration makes sense where there is no norm and no dropout."""
    name = alteration.name.replace("weight_norm", "")
    if "norm" in name or "Dropout" in name:
        return False
    shared = "sequential" in alteration.families and LIKE[family] in alteration.families
    return shared or name.startswith("activation is")


def cases() -> list[Case]:
    """The alterations that need neither a norm nor a module around the block, and those of a whole module."""
    found = []
    for family in MODULES:
        shared = [a for a in ALTERATIONS.values() if _fits(a, family)]
        found += [Case(a, family) for a in shared]
        found += [Case(Alteration(name, (family,), alter), family) for name, alter in ROOTS.items()]
    return found


def attack(case: Case, seed: int, count: int = 600) -> Outcome:
    """Compile the altered module, and compare the network with the module, in every circumstance."""
    began = time.perf_counter()
    outcome = Outcome("altered", case.name, "crashed", control=case.alteration.honest)
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _attack(case, seed, count, outcome, stack)
        except AttncError as problem:
            outcome.verdict, outcome.note = "refused", f"{type(problem).__name__}: {str(problem)[:200]}"
        except Exception as problem:
            outcome.verdict, outcome.note = "crashed", said(problem)
    outcome.seconds = time.perf_counter() - began
    return outcome


def _attack(case: Case, seed: int, count: int, outcome: Outcome, stack: ExitStack) -> None:
    alteration = case.alteration
    original, wide, source = (MODULES[case.family].build(case.dtype) for _ in range(3))
    for model in (original, wide, source):
        if alteration.alter is not None:
            alteration.alter(model)
            if "trai" not in alteration.name:
                model.module.eval()
    if alteration.around is not None:
        alteration.around(source, stack)
        act_module(source)
    reach = max(1.0, alteration.gain)
    box = attnc.Box(-reach, reach, shape=(D,))
    eps = max(alteration.eps, 1e-9) * reach
    try:
        net = attnc.compile(source.module, domain=box, eps=eps, dtype=case.dtype)
    except attnc.PrecisionError as problem:
        if problem.reachable is None:
            raise
        net = attnc.compile(source.module, domain=box, eps=1.2 * problem.reachable, dtype=case.dtype)
    if not net.certificate.proved:
        outcome.verdict = "measured"
        return
    wide.module.double()
    reference = original if alteration.by_dtype or not _runs(wide) else wide
    rng = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    judged = Judged()
    for name, x, mode in circumstances(box, rng, count, case.dtype):
        with mode():
            error, size = gaps([net(x.clone())], [reference.module(as_dtype(x, reference.dtype))])
        own = OWN_ROUNDING if reference.dtype == torch.float64 else 1e-5
        judged.see(error - own * (1 + size), net.certificate.bound, max(1, x.numel() // D), name)
    settle(outcome, judged)


def _runs(model: Model) -> bool:
    try:
        model.module(torch.zeros(3, D, dtype=model.dtype))
    except RuntimeError:
        return False
    return True


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in a dtype, of the same memory layout."""
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x)


def circumstances(box: attnc.Box, rng: np.random.Generator, count: int, dtype: torch.dtype) -> Any:
    """(name, inputs of the box, mode): corners, random and mixed ones; with and without gradients; strided; in batches of
    any size. A module is read, and compiled, as it is called on a batch (n, *shape)."""
    inside = box.lo + rng.random((count, *box.shape)) * (box.hi - box.lo)
    corners = np.where(rng.random((count, *box.shape)) < 0.5, box.lo, box.hi)
    mixed = np.where(rng.random(inside.shape) < 0.5, inside, corners)
    x = torch.from_numpy(np.concatenate([corners, inside, mixed, box.lo[None], box.hi[None]])).to(dtype)
    x = x[box.contains(x)]
    strided = x.T.contiguous().T
    return (
        ("plain", x, torch.no_grad), ("grad", x, torch.enable_grad), ("inference", x, torch.inference_mode),
        ("strided", strided, torch.no_grad), ("strided, grad", strided, torch.enable_grad),
        ("one", x[-1:], torch.no_grad), ("few", x[:3], torch.no_grad),
    )  # fmt: skip
