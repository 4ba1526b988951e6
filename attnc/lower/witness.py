"""The search for the input with the largest error: corners of the box, random inputs, and gradient ascent."""

from __future__ import annotations

import numpy as np
import torch
from flint import arb
from torch import Tensor, nn

from attnc.check.execution import PRECISION, ROOM, attained, network_errors
from attnc.domain import Array, Box, Tokens
from attnc.errors import CertificateError, page
from attnc.functions.balls import lower, working
from attnc.program.evaluate import differentiable, exact
from attnc.program.program import Program
from attnc.records.certificate import Witness
from attnc.records.layers import NetworkNumbers


def check_refuted(what: str, error: float, bound: float, cause: str = "") -> None:
    """Raise `CertificateError` if an error that was found exceeds the bound that was proved."""
    if error > bound:
        raise CertificateError(
            f"{what} has the error {error:.6g}, above its proved bound {bound:.6g}: {cause}this machine or its libraries violate "
            f"the assumptions of {page('arithmetic')}"
        )


def claimed_error(executed: float, meant: arb, checked: arb) -> float:
    """What a witness claims: the executed error from below, and not more than the error that the checker will find."""
    with working(PRECISION):
        own = max(0.0, lower(abs(arb(executed) - meant)))
    return ROOM * min(own, attained(checked))


def candidates(box: Box, count: int, seed: int = 0) -> Tensor:
    """The middle and the two extreme corners of the box, then random corners and random inputs inside, half each."""
    draw = np.random.default_rng(seed)
    if isinstance(box, Tokens):
        return torch.from_numpy(draw.integers(0, box.vocabulary, (count, *box.shape)).astype(np.float64))
    corners = np.where(draw.random((count // 2, *box.shape)) < 0.5, box.lo, box.hi)
    inside = box.lo + draw.random((count - count // 2, *box.shape)) * (box.hi - box.lo)
    first = np.stack([box.lo / 2 + box.hi / 2, box.lo, box.hi])
    return torch.from_numpy(np.concatenate([first, corners, inside]))


def ascend(network: nn.Module, program: Program, x: Tensor, box: Box, steps: int) -> Tensor:
    """Gradient ascent on the largest |network - program| by signed steps of decreasing size inside the box."""
    lo, hi = torch.from_numpy(box.lo.copy()), torch.from_numpy(box.hi.copy())
    dtype = next(network.parameters()).dtype
    x = x.clone()
    for step in range(steps):
        x.requires_grad_(True)
        executed = network(x.to(dtype), strict=False)  # rounding may leave the box: see `within`
        error = (executed.double() - differentiable(program, x)).abs()
        (uphill,) = torch.autograd.grad(error.flatten(1).amax(1).sum(), x)
        x = torch.clamp(x.detach() + uphill.sign() * (hi - lo) * 0.3 * 0.8**step, lo, hi)
    return x.detach()


def within(x: Tensor, box: Box, dtype: torch.dtype) -> Tensor:
    """The inputs in the dtype, moved to the next number inside the box if rounding left it."""
    lo, hi = torch.from_numpy(box.lo.copy()), torch.from_numpy(box.hi.copy())
    y = x.to(dtype)
    y = torch.where(y.double() < lo, torch.nextafter(y, y.new_tensor(torch.inf)), y)
    y = torch.where(y.double() > hi, torch.nextafter(y, y.new_tensor(-torch.inf)), y)
    return y[box.contains(y)]


def worst(
    network: nn.Module,
    program: Program,
    numbers: NetworkNumbers,
    box: Box,
    effort: int = 512,
    also: Tensor | None = None,
) -> Witness:
    """The input with the largest error found: the executed output against the program in high precision. `also`: further inputs
    to start from."""
    dtype = next(network.parameters()).dtype
    effort = max(16, min(effort, 2**27 // max(program.parameters, 1)))

    def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The inputs with the largest errors in float64, and the outputs there."""
        with torch.no_grad():
            executed = network(x).double()
            error = (executed - differentiable(program, x.double())).abs()
        chosen = error.flatten(1).amax(1).argsort(descending=True)[:count]
        return x[chosen].double(), executed[chosen]

    start = candidates(box, effort)
    start = start if also is None else torch.cat([start, also.reshape(-1, *box.shape)])
    best, _ = largest(within(start, box, dtype), max(2, min(64, effort // 32)))
    points = best.to(dtype)
    if not isinstance(box, Tokens):
        risen = ascend(network, program, best, box, 16 if program.parameters < 2**20 else 5)
        points = within(torch.cat([best, risen]), box, dtype)
    x, executed = largest(points, 8 if program.parameters < 2**18 else 2)
    return proved(program, numbers, x.numpy(), executed.numpy())


def proved(program: Program, numbers: NetworkNumbers, x: Array, executed: Array) -> Witness:
    """The largest error among a few inputs, in high precision."""
    meant = exact(program, x, PRECISION).reshape(len(x), -1)
    errors = np.zeros(meant.shape)
    for i, row in enumerate(executed.reshape(len(x), -1)):
        outputs = zip(row.tolist(), meant[i], network_errors(program, numbers, x[i]), strict=True)
        errors[i] = [claimed_error(*output) for output in outputs]
    at, output = map(int, np.unravel_index(int(errors.argmax()), errors.shape))
    return Witness(tuple(x[at].ravel().tolist()), output, float(errors[at, output]))
