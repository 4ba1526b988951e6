"""Networks that are measured, fitted, or proved as a lookup, made by hand: none of the compiler's ways to find values is used."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

import attnc
from attnc.network.network import Network
from attnc.network.rebuild import rebuilt
from attnc.program import BlackBox, Lookup, Program, Reshape
from attnc.records.certificate import versions
from attnc.records.measured import NetworkMeasured
from attnc.records.network_certificate import LookupClaim, NetworkCertificate, NetworkWitness
from attnc.records.network_numbers import NetworkNumbers, Reorder, Selection
from attnc.records.network_record import NetworkRecord, Shown
from attnc.records.presentation import Theorem

BOX = attnc.Box(-1, 1, shape=(2, 1))
SHARP = 60.0  # b of the grid's scores
ANCHORS = np.linspace(-1.5, 1.5, 11), np.linspace(-1.4, 1.4, 9)  # of the lattice, by axis
CENTRE = np.array([0.25, -0.125])
POINTS, SEED = 5000, 7


def wave(x: Tensor) -> Tensor:
    """(batch, 2, 1) → (batch, 2, 1)."""
    u, v = x[:, :1], x[:, 1:]
    return torch.cat([torch.exp(torch.sin(2 * u) * torch.cos(v)), u * v], 1)


def slow(x: Tensor) -> Tensor:
    """Lipschitz constant at most 1 in both outputs."""
    return torch.cat([torch.sin(x[:, :1]), x[:, 1:].abs() / 2], 1)


def random_inputs(count: int, seed: int = SEED, dtype: torch.dtype = torch.float64) -> Tensor:
    return (
        torch.rand(count, 2, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    ).to(dtype)


def _stages(points: np.ndarray, sharp: float, values: np.ndarray) -> NetworkNumbers:  # type: ignore[type-arg]
    """Scores -b|x - L|², but for a function of x alone; the input is taken from a centre that is not the box's."""
    near = points - CENTRE
    selection = Selection(1, 2, CENTRE, 2 * sharp * near, -sharp * (near**2).sum(1), values)
    stages = (Reorder(0, 1, (2,)), selection, Reorder(2, 3, (2, 1)))
    return NetworkNumbers(stages, "float64")


def _measured(
    net: Network, f: object, method: str, fitted: NetworkCertificate | None = None
) -> NetworkMeasured:
    """What a sample shows, worked out here."""
    dtype = next(net.parameters()).dtype
    x = random_inputs(POINTS, dtype=dtype)
    error = (net(x) - f(x)).abs().reshape(POINTS, -1).double()  # type: ignore[operator]
    row, column = divmod(int(error.argmax()), error.shape[1])
    return NetworkMeasured(
        method, net.domain, str(dtype).removeprefix("torch."), float(error.max()), float(error.square().mean()),
        tuple(x[row].double().reshape(-1).tolist()), column, POINTS, SEED, net.numbers().digests(), fitted,
    )  # fmt: skip


@cache
def lattice_network() -> Network:
    """`wave` on 11 × 9 anchors, values by least squares; stored in another order than that of the lattice."""
    points = np.stack(np.meshgrid(*ANCHORS, indexing="ij"), -1).reshape(-1, 2)
    points = points[np.random.default_rng(0).permutation(len(points))]
    sharp = 0.35 / (0.3 * 0.35)
    x = random_inputs(4000, seed=1)
    distances = (x.reshape(-1, 1, 2) - torch.from_numpy(points)).square().sum(-1)
    weights = torch.softmax(-sharp * distances, -1)
    values = np.linalg.lstsq(weights.numpy(), wave(x).reshape(-1, 2).numpy(), rcond=1e-12)[0]
    program = Program((2, 1), (Reshape(0, (2,)), BlackBox(1, 2, name="wave"), Reshape(2, (2, 1))))
    numbers = _stages(points, sharp, values)
    shown = Shown("two-layer", "heads", None, ("lattice: 11 × 9 anchors", "to prove it, give lipschitz=K"))
    empty = NetworkMeasured("lattice", BOX, "float64", 0.0, 0.0, (0.0, 0.0), 0, 1, 0, numbers.digests())
    net = rebuilt(NetworkRecord(program, numbers, None, empty, shown))
    net.measured = _measured(net, wave, "lattice")
    return net


@cache
def grid_network() -> Network:
    """`slow` on a grid of 21 × 21 points at a distance of 0.1: off by less than the diagonal of a cell."""
    axis = np.linspace(-1, 1, 21)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    values = slow(torch.from_numpy(points).reshape(-1, 2, 1)).reshape(-1, 2).numpy()
    sharp = SHARP / 0.1**2
    numbers = _stages(points, sharp, values)
    program = Program((2, 1), (Reshape(0, (2,)), Lookup(1, points, values, 1.0), Reshape(2, (2, 1))))
    bound = 0.1 * 2**0.5
    certificate = NetworkCertificate(
        BOX, "float64", bound, bound, 0.0, (), NetworkWitness((0.05, 0.05), 0, 0.04), program.digest(), numbers.digests(),
        versions(),
        lookups=(LookupClaim("lookup", 2, 441, bound),),
    )  # fmt: skip
    theorem = Theorem("attention_softmax", "|Attn - f| <= K·radius + leak", 0.2)
    shown = Shown("attention-softmax", "", theorem, ("grid: 21 × 21 points",))
    return rebuilt(NetworkRecord(program, numbers, certificate, None, shown))


@cache
def fitted_network() -> Network:
    """A network with one hidden layer that stands in for `wave`: proved against that network alone."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2), nn.Unflatten(1, (2, 1))
    ).eval()
    made = attnc.compile(model, domain=BOX, eps=1e-3)
    certificate, made.certificate = made.certificate, None
    made.measured = _measured_after(made, certificate)
    made.form, made.layout, made.notes = "two-layer", "heads", ("fit: 6 neurons",)
    return made


def _measured_after(net: Network, certificate: NetworkCertificate | None) -> NetworkMeasured:
    assert certificate.proved
    net.measured = NetworkMeasured("fit", BOX, "float32", 0.0, 0.0, (0.0, 0.0), 0, 1, 0, certificate.digests)
    return _measured(net, wave, "fit", certificate)
