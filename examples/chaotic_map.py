"""Two steps of the Hénon map as softmax attention, and what chaos makes of a small error.

    python examples/chaotic_map.py

(x, y) ↦ (1 - 1.4 x² + y, 0.3 x), on a box that holds its strange attractor. Two steps are a polynomial of degree four: a lattice of some dozens
of anchors is within 1e-6 of it everywhere. But nearby orbits of the map part exponentially, about e^{0.42} for each step, so
an error of 1e-7 is one of order one after some forty steps, whoever made it: of a bound on two steps, little follows for many.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import attnc

BOX = attnc.Box([[-1.3, -0.4]], [[1.3, 0.4]])  # one token of two numbers


def henon(state: Tensor) -> Tensor:
    x, y = state.unbind(-1)
    return torch.stack([1 - 1.4 * x**2 + y, 0.3 * x], dim=-1)


def twice(state: Tensor) -> Tensor:
    """(batch, 1, 2): two steps of the map."""
    return henon(henon(state))


def run() -> Iterator[tuple[str, attnc.Network]]:
    for eps in (1e-2, 1e-6):
        yield (
            f"Hénon map, two steps, asked for {eps:g}",
            attnc.compile(twice, domain=BOX, eps=eps, dtype=torch.float64),
        )


def largest_error(net: attnc.Network, points: int, seed: int = 1) -> float:
    """At inputs drawn by a seed of our own, which no part of the network has seen."""
    lo, hi = (torch.tensor(end.tolist(), dtype=torch.float64) for end in (BOX.lo, BOX.hi))
    unit = torch.rand(points, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return max(float((net(part) - twice(part)).abs().max()) for part in (lo + (hi - lo) * unit).split(10_000))


def distances(net: attnc.Network, steps: int) -> list[float]:
    """How far the network's orbit is from the map's after 2, 4, … steps, both begun at the same point of the attractor."""
    start = torch.zeros(1, 1, 2, dtype=torch.float64)
    for _ in range(100):
        start = henon(start)
    ours, theirs, found = start, start, []
    for _ in range(steps // 2):
        ours, theirs = net(ours), twice(theirs)
        found.append(float((ours - theirs).abs().max()))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="two steps of the Hénon map by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="fresh inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        print(
            f"{title}\n{net.describe()}\nfresh inputs: |network - twice| <= {largest_error(net, points):.3g} at {points:,}"
        )
        apart = [2 * (i + 1) for i, distance in enumerate(distances(net, 200)) if distance > 0.1]
        print(
            f"orbits: more than 0.1 apart after {apart[0]} steps\n"
            if apart
            else "orbits: within 0.1 for 200 steps\n"
        )


if __name__ == "__main__":
    main()
