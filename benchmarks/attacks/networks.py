"""Networks under attack: random programs and random modules, compiled, against the program in ball arithmetic."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from flint import arb
from torch import Tensor, nn

import attnc
from attacks.tally import Outcome
from attnc.errors import AttncError, PrecisionError
from attnc.functions.balls import upper, working
from attnc.lower.witness import ascend, candidates, within
from attnc.network.network import Network
from attnc.program.evaluate import differentiable, exact
from tests.soundness.networks import case

BITS = 192
LARGEST = 3000  # numbers of a program: larger ones are for the tests of networks
ENGINES = ("softmax", "sdpa")
ACTIVATIONS: tuple[Any, ...] = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU, nn.Mish, nn.Hardtanh, nn.ReLU6, nn.LeakyReLU,
    nn.Hardswish, nn.Softsign, nn.SELU, nn.CELU, nn.Softshrink, nn.Hardsigmoid,
)  # fmt: skip


class Around(nn.Module):
    """A residual connection."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(x)
        return y


def random_module(rng: np.random.Generator) -> tuple[nn.Module, int]:
    """Linear layers and activations, some with BatchNorm or Dropout, some within a residual connection; and its width."""
    width, depth = int(rng.integers(1, 24)), int(rng.integers(1, 4))
    act, parts = ACTIVATIONS[int(rng.integers(len(ACTIVATIONS)))], []
    torch.manual_seed(int(rng.integers(2**31)))
    for _ in range(depth):
        inner: list[nn.Module] = [nn.Linear(width, width, bias=bool(rng.integers(2)))]
        if rng.random() < 0.3:
            inner.append(_batch_norm(width))
        inner += [act(), *([nn.Dropout(0.3)] if rng.random() < 0.3 else [])]
        parts.append(Around(nn.Sequential(*inner)) if rng.random() < 0.3 else nn.Sequential(*inner))
    return nn.Sequential(*parts, nn.Linear(width, int(rng.integers(1, 4)))).eval(), width


def _batch_norm(width: int) -> nn.Module:
    norm = nn.BatchNorm1d(width)
    with torch.no_grad():
        norm.running_mean.normal_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.1, 2)  # type: ignore[union-attr]
        norm.weight.normal_()
    return norm


def attack(seed: int, points: int = 12_000) -> Outcome:
    """The network of a seed: of a program, or, of every other seed, of a module, which is run beside it in float64."""
    began, rng = time.perf_counter(), np.random.default_rng([2, seed])
    model: nn.Module | None = None
    dtype = (torch.float32, torch.float64)[int(rng.integers(2))]
    if seed % 2:
        model, width = random_module(rng)
        model = model.to(dtype)
        source, box, eps = (
            model,
            attnc.Box(-1, float(rng.uniform(0.5, 3)), shape=(width,)),
            float(10 ** rng.uniform(-3, -1)),
        )
    else:
        c = next(
            c for c in map(case, range(seed // 2 * 7, seed // 2 * 7 + 200)) if c.program.parameters < LARGEST
        )
        source, box, dtype, eps = c.program, c.box, c.dtype, c.eps  # type: ignore[assignment]
    outcome = Outcome("networks", f"{seed}: {'module' if seed % 2 else 'program'}, {dtype}", "refused")
    try:
        net = compiled(source, box, dtype, eps)
    except AttncError as problem:
        outcome.note = str(problem)[:200]
    else:
        _judge(net, box, dtype, seed, points, outcome)
        if model is not None and outcome.verdict != "false":
            _beside(net, model, box, dtype, seed, outcome)
    outcome.seconds = time.perf_counter() - began
    return outcome


def compiled(source: Any, box: attnc.Box, dtype: torch.dtype, eps: float) -> Network:
    """Within eps, or within what the dtype can hold."""
    try:
        return attnc.compile(source, domain=box, eps=eps, dtype=dtype)
    except PrecisionError as problem:
        if problem.reachable is None:
            raise
        return attnc.compile(source, domain=box, eps=1.2 * problem.reachable, dtype=dtype)


def _points(net: Network, box: attnc.Box, dtype: torch.dtype, seed: int, points: int) -> Tensor:
    small = max(64, min(points, 2**27 // max(1, net.program.parameters)))
    x = candidates(box, small, seed)
    pick = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    return within(torch.cat([x, torch.where(pick, x, x.roll(1, 0))]), box, dtype)


def _judge(
    net: Network, box: attnc.Box, dtype: torch.dtype, seed: int, points: int, outcome: Outcome
) -> None:
    """Screen in float64, climb from the worst, and evaluate the worst in balls."""
    assert net.certificate.proved
    x, bound = _points(net, box, dtype, seed, points), net.certificate.bound
    error = _rough(net, x)
    worst = x[error.argsort(descending=True)[:12]]
    risen = ascend(net, net.program, worst.double(), box, 20)
    x = within(torch.cat([worst.double(), risen]), box, dtype)
    chosen = x[_rough(net, x).argsort(descending=True)[:10]]
    meant = exact(net.program, chosen.double().numpy(), BITS)
    outcome.verdict, outcome.claimed, outcome.inputs = "converted", bound, len(error) + 12 * 20 + len(x)
    for engine in ENGINES:
        net.engine = engine
        with torch.no_grad():
            executed = net(chosen).double().numpy()
        with working(BITS):
            for y, ball in zip(executed.ravel().tolist(), meant.ravel(), strict=True):
                gap = abs(arb(y) - ball) if math.isfinite(y) else arb("inf")
                if upper(gap) / bound > outcome.ratio:
                    outcome.ratio, outcome.measured, outcome.note = upper(gap) / bound, upper(gap), engine
                if not gap <= arb(bound):
                    outcome.verdict = "false"
    net.engine = "softmax"


def _rough(net: Network, x: Tensor) -> Tensor:
    with torch.no_grad():
        gap = net(x).double() - differentiable(net.program, x.double())
    return gap.abs().flatten(1).amax(1).nan_to_num(math.inf)


def _beside(
    net: Network, model: nn.Module, box: attnc.Box, dtype: torch.dtype, seed: int, outcome: Outcome
) -> None:
    """The module itself, in float64: what was read is what runs."""
    assert net.certificate.proved
    x = _points(net, box, dtype, seed + 1, 2000)
    with torch.no_grad():
        meant = model.double()(x.double())
        gap = float((net(x).double() - meant).abs().max()) - 1e-13 * (1 + float(meant.abs().max()))
    outcome.inputs += len(x)
    if gap > outcome.ratio * outcome.claimed:
        outcome.ratio, outcome.measured, outcome.note = gap / outcome.claimed, gap, "the module in float64"
    if gap > outcome.claimed:
        outcome.verdict = "false"
