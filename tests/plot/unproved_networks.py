"""Networks that are measured, fitted, or proved as a lookup, made by hand: none of the compiler's ways to find values is used."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

import attnc
from attnc.network.network import Network, rebuilt
from attnc.program import BlackBox, Lookup, Program, Reshape
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.layers import NetworkNumbers
from attnc.records.presentation import Presentation, Theorem
from attnc.records.record import Record
from tests.parts import lookup, network_certificate, reshape

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
    selection = lookup(1, 2, CENTRE, 2 * sharp * near, -sharp * (near**2).sum(1), values)
    stages = (reshape(0, 1, (2,)), selection, reshape(2, 3, (2, 1)))
    return NetworkNumbers(stages, "float64")


def _measured(net: Network, f: object, method: str, children: tuple[Certificate, ...] = ()) -> Certificate:
    """What a sample shows, worked out here."""
    dtype = next(net.parameters()).dtype
    x = random_inputs(POINTS, dtype=dtype)
    error = (net(x) - f(x)).abs().reshape(POINTS, -1).double()  # type: ignore[operator]
    row, column = divmod(int(error.argmax()), error.shape[1])
    worst = float(error.max())
    facts = {"method": method, "points": POINTS, "seed": SEED, "mean_square": float(error.square().mean())}
    return network_certificate(
        Status.MEASURED, BOX, str(dtype).removeprefix("torch."), worst, digests=net.numbers().digests(), facts=facts,
        witness=Witness(tuple(x[row].double().reshape(-1).tolist()), column, worst), children=children,
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
    notes = ("lattice: 11 × 9 anchors", "to prove it, give lipschitz=K")
    empty = Certificate.unknown("network", "float64")
    net = rebuilt(Record(numbers, empty, program, Presentation("two-layer", "heads", None, notes)))
    net.certificate = _measured(net, wave, "lattice")
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
    claim = Certificate(
        subject="lookup", name="lookup", status=Status.PROVED, approximation=bound, rounding=0.0, bound=bound, dtype="float64",
        facts={"value": 2, "anchors": 441, "assumed": {"lipschitz": 1.0, "noise": 0.0}},
    )  # fmt: skip
    certificate = network_certificate(
        Status.PROVED, BOX, "float64", bound, witness=Witness((0.05, 0.05), 0, 0.04), digests=numbers.digests(),
        facts={"program": program.digest()}, children=(claim,),
    )  # fmt: skip
    theorem = Theorem("attention_softmax", "|Attn - f| <= K·radius + leak", 0.2)
    shown = Presentation("attention-softmax", "", theorem, ("grid: 21 × 21 points",))
    return rebuilt(Record(numbers, certificate, program, shown))


@cache
def fitted_network() -> Network:
    """A network with one hidden layer that stands in for `wave`: proved against that network alone."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2), nn.Unflatten(1, (2, 1))
    ).eval()
    made = attnc.compile(model, domain=BOX, eps=1e-3)
    made.certificate = _measured(made, wave, "fit", (made.certificate,))
    made.form, made.layout, made.notes = "two-layer", "heads", ("fit: 6 neurons",)
    return made
