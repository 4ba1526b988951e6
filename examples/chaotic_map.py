"""Two steps of the Hénon map as softmax attention, and how a small error grows under iteration.

    python examples/chaotic_map.py

The map is (x, y) ↦ (1 - 1.4 x² + y, 0.3 x), on a box that contains its attractor. Two steps are a polynomial of degree four,
for which a few anchors are enough. The map is chaotic: nearby orbits diverge by a factor of e^0.42 per step on average. The
orbit of the network diverges from the orbit of the map in the same way, so a bound for two steps does not bound many steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import attnc

BOX = attnc.Box([[-1.3, -0.4]], [[1.3, 0.4]])  # one token of two numbers


def henon(state: Tensor) -> Tensor:
    """(…, 2): one step of the map."""
    x, y = state.unbind(-1)
    return torch.stack([1 - 1.4 * x**2 + y, 0.3 * x], dim=-1)


def twice(state: Tensor) -> Tensor:
    """(batch, 1, 2): two steps of the map."""
    return henon(henon(state))


def run() -> Iterator[tuple[str, attnc.Network]]:
    """Two networks, the second with an eps that is 10,000 times smaller."""
    for eps in (1e-2, 1e-6):
        yield (
            f"Hénon map, two steps, a lattice within {eps:g}",
            attnc.compile(twice, domain=BOX, eps=eps, dtype=torch.float64),
        )


def largest_error(net: attnc.Network, points: int, seed: int = 1) -> float:
    """The largest error at random inputs that were not used to build the network."""
    lo, hi = (torch.tensor(end.tolist(), dtype=torch.float64) for end in (BOX.lo, BOX.hi))
    unit = torch.rand(points, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = lo + (hi - lo) * unit
    return float((net(x) - twice(x)).abs().max())


def parted(net: attnc.Network, distance: float = 0.1, most: int = 200) -> int | None:
    """The number of steps after which the orbits of network and map are more than `distance` apart, from one start."""
    start = torch.zeros(1, 1, 2, dtype=torch.float64)
    for _ in range(100):
        start = henon(start)
    ours = theirs = start
    for steps in range(2, most + 1, 2):
        ours, theirs = net(ours), twice(theirs)
        if float((ours - theirs).abs().max()) > distance:
            return steps
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="two steps of the Hénon map by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="number of random inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        error = largest_error(net, points)
        print(f"{title}\n{net.describe()}\nfresh inputs: |network - twice| <= {error:.3g} at {points:,}")
        steps = parted(net)
        print(f"orbits: {'not' if steps is None else 'more than'} 0.1 apart after {steps or 200} steps\n")


if __name__ == "__main__":
    main()
