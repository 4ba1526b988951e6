"""Certificates for given inputs: a bound for each number that a module returned, much smaller than one that holds on a domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from flint import arb
from numpy.typing import NDArray
from torch import Tensor

from attnc.domain import real_numbers
from attnc.errors import InputError
from attnc.functions import Function, get
from attnc.functions.balls import upper, working
from attnc.network.running import outside_domain
from attnc.program.evaluate import exact
from attnc.program.step import Balls
from attnc.prove.traced_function import stated_function_of
from attnc.records.fitted import meaning

if TYPE_CHECKING:
    from attnc.network.head import Head
    from attnc.network.network import Network

_PRECISION = 128
_PER_THREAD = 1 << 16  # numbers: more than torch converts without a second thread


class Certified(NamedTuple):
    """What a module returned for an input, and a proved bound: |value - original| <= bound, number by number, the original in
    exact arithmetic. `bound` is float64 and rounded up."""

    value: Tensor
    bound: Tensor

    @property
    def largest(self) -> float:
        """The largest bound."""
        return float(self.bound.max()) if self.bound.numel() else 0.0


def distance(value: Tensor, original: Balls) -> Tensor:
    """|value - y| for the worst y of each ball, rounded up to float64; infinity where a value or a ball is not finite."""
    numbers = value.detach().double().numpy()
    if numbers.shape != original.shape:
        raise InputError(
            f"a value of shape {numbers.shape} is not comparable with one of shape {original.shape}"
        )
    found = np.frompyfunc(lambda y, z: upper(abs(arb(y) - z)), 2, 1)(numbers, original)
    return torch.from_numpy(np.asarray(found, dtype=np.float64))


def check_subnormals() -> None:
    """Raise an error if torch takes subnormal numbers for 0: the numbers that it is given would not be those that it reads.

    Each of torch's threads has a mode of its own, which it keeps, so that every thread is given numbers to convert."""
    smallest = torch.ones(torch.get_num_threads() * _PER_THREAD, dtype=torch.int32).view(torch.float32)
    if not bool(smallest.double().all()):
        raise InputError(
            "torch takes subnormal numbers for 0, so that inputs and weights are not the given ones: "
            "call torch.set_flush_denormal(False) before the first computation, or torch.set_num_threads(1)"
        )


def certified_head(head: Head, s: Tensor, function: Function | str | None) -> Certified:
    """See `Head.certified`."""
    check_subnormals()
    if (reason := head.why_not_certified()) is not None:
        raise InputError(f"the head has no proved certificate, so its function is unknown: {reason}")
    label = head.certificate.facts["function"]
    stated = stated_function_of(head.certificate)
    if stated is not None and function is not None:
        raise InputError(f"the certificate states {label!r} by its operations: leave out function=…")
    named = function if isinstance(function, Function) else None
    f = stated or named or get(label if function is None else str(function))
    if f.label != label or not f.provable:
        raise InputError(
            f"the head was built for {label!r}: give that function, with its enclosure, and not {f.label!r}"
        )
    head._check_input(s)
    domain = head.certificate.interval
    if s.numel() and (outside := outside_domain(s.detach(), domain)) is not None:
        raise InputError(f"{outside}: a certificate for an input needs inputs inside")
    with torch.no_grad():
        value = head(s, strict=True)
    with working(_PRECISION, 1):
        original = np.asarray(np.frompyfunc(f.value, 1, 1)(s.detach().double().numpy()), dtype=object)
        return Certified(value, distance(value, original))


def certified_network(network: Network, x: Tensor | NDArray[Any]) -> Certified:
    """See `Network.certified`. The bound is the distance to the balls alone: that of the certificate may come from a file."""
    check_subnormals()
    if (reason := network.why_not_certified()) is not None:
        raise InputError(
            f"the network has no proved certificate, which a certificate for an input needs: {reason}"
        )
    if isinstance(x, np.ndarray):
        x = _exactly(x, next(network.parameters()).dtype)
    network._check_input(x)
    if x.numel() and (outside := outside_domain(x.detach(), network.domain)) is not None:
        raise InputError(f"{outside}: a certificate for an input needs inputs inside")
    with torch.no_grad():
        value = network(x, strict=True)
    original = exact(meaning(network.program, network.certificate), x.detach().double().numpy(), _PRECISION)
    with working(_PRECISION):
        return Certified(value, distance(value, original))


def _exactly(x: NDArray[Any], dtype: torch.dtype) -> Tensor:
    """The same numbers as a tensor of the dtype; raises if it would round them: the bound would be for other inputs."""
    found = torch.from_numpy(real_numbers(x, "x")).to(dtype)
    if not np.array_equal(found.double().numpy(), x):
        name = str(dtype).removeprefix("torch.")
        raise InputError(
            f"x holds numbers of {x.dtype} that {name}, the dtype of the network, rounds: the bound would be for the rounded "
            f"x. Give x.astype(np.{name}) to certify those inputs, or compile the network with dtype=torch.float64"
        )
    return found
