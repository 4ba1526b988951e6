"""Sorting three numbers with softmax attention, from the callable alone.

    python examples/sort.py                      a measured network within 1e-2 and a proved one within 0.1
    python examples/sort.py --points 1000000     the same, measured at 10^6 fresh inputs (a minute)

The k-th smallest of three numbers changes by no more than the number that changes most: |sort(x) - sort(x')|_max <=
|x - x'|_max <= |x - x'|₂. So 1 is a Lipschitz constant of every output, and with it a grid of anchors *proves* its error. Without
the constant the values of the anchors are solved for: fewer digits are lost, and the error is measured, not proved.
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
    """A network for each way to ask."""
    yield "sort, asked for 1e-2", attnc.compile(sort, domain=BOX, eps=1e-2, dtype=torch.float64)
    yield (
        "sort, to be proved within 0.1",
        attnc.compile(sort, domain=BOX, eps=0.1, lipschitz=1, dtype=torch.float64),
    )


def largest_error(net: attnc.Network, points: int, seed: int = 1) -> float:
    """At inputs drawn by a seed of our own, which no part of the network has seen."""
    x = torch.rand(points, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return max(float((net(part) - sort(part)).abs().max()) for part in x.split(10_000))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="three numbers, sorted by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="fresh inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        print(
            f"{title}\n{net.describe()}\nfresh inputs: |network - sort| <= {largest_error(net, points):.3g} at {points:,}\n"
        )


if __name__ == "__main__":
    main()
