"""Three numbers, sorted by softmax attention, from values of the function alone.

    python examples/sort.py
    python examples/sort.py --points 1000000

The script builds two networks. For the first, attnc fits a layer of neurons to values of the function, and replaces the
neurons by attention: the network is small and accurate, and its error is measured, not proved. The second is a grid of
anchors, from which softmax selects. A Lipschitz constant proves its error: the k-th smallest of three numbers changes by at
most the largest change of a number, |sort(x) - sort(x')|_max <= |x - x'|_max <= |x - x'|₂, so the constant is 1 for every
output.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import attnc

BOX = attnc.Box(0, 1, shape=(3, 1))  # three tokens of one number each


def sort(x: Tensor) -> Tensor:
    """(batch, 3, 1): the tokens in increasing order."""
    return x.sort(dim=1).values


def run() -> Iterator[tuple[str, attnc.Network]]:
    """A network with a measured error, and one with a proved error."""
    yield (
        "sort, neurons fitted to within 1e-2",
        attnc.compile(sort, domain=BOX, eps=1e-2, method="fit", dtype=torch.float64),
    )
    yield (
        "sort, a grid proved within 0.1",
        attnc.compile(sort, domain=BOX, eps=0.1, lipschitz=1, dtype=torch.float64),
    )


def largest_error(net: attnc.Network, points: int, seed: int = 1) -> float:
    """The largest error at random inputs that were not used to build the network."""
    x = torch.rand(points, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return float((net(x) - sort(x)).abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="three numbers, sorted by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="number of random inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        error = largest_error(net, points)
        print(f"{title}\n{net.describe()}\nfresh inputs: |network - sort| <= {error:.3g} at {points:,}\n")


if __name__ == "__main__":
    main()
