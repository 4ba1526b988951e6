"""The running maximum of a sequence, y_i = max(x_1, …, x_i), as softmax attention.

    python examples/running_maximum.py

attnc builds a lattice of anchors with broad weights, finds their values by least squares, and proves the error from the
operations of the function. The error is largest at the edges x_i = x_j of the maximum; for smooth functions (softmax_average.py)
a lattice is far more accurate. Every y_i changes by at most the largest change of an x_j, so 1 is a Lipschitz constant. With it,
the error of a grid of anchors is proved for every function with the same values and this constant.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import attnc

BOX = attnc.Box(0, 1, shape=(3, 1))


def running_maximum(x: Tensor) -> Tensor:
    """(batch, 3, 1): token i becomes the largest of the tokens up to i."""
    return x.cummax(dim=1).values


def run() -> Iterator[tuple[str, attnc.Network]]:
    """A lattice, proved from the operations of the function, and a grid, proved from its Lipschitz constant."""
    yield (
        "running maximum, a lattice within 0.03",
        attnc.compile(running_maximum, domain=BOX, eps=0.03, dtype=torch.float64),
    )
    yield (
        "running maximum, a grid proved within 0.1",
        attnc.compile(running_maximum, domain=BOX, eps=0.1, lipschitz=1, dtype=torch.float64),
    )


def largest_error(net: attnc.Network, points: int, seed: int = 1) -> float:
    """The largest error at random inputs that were not used to build the network."""
    x = torch.rand(points, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return float((net(x) - running_maximum(x)).abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a running maximum by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="number of random inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        error = largest_error(net, points)
        print(
            f"{title}\n{net.describe()}\nfresh inputs: |network - running_maximum| <= {error:.3g} at {points:,}\n"
        )


if __name__ == "__main__":
    main()
