"""Sorting three numbers by softmax attention, from the callable alone.

    python examples/sort.py
    python examples/sort.py --points 1000000

Two ways to ask. A layer of neurons is fitted to values of the function and attention stands in for the neurons: small and
close, and its error is measured, not proved. Or a grid of anchors is built that softmax selects from, and its error is
proved by a Lipschitz constant: the k-th smallest of three numbers changes by no more than the number that changes most,
|sort(x) - sort(x')|_max <= |x - x'|_max <= |x - x'|₂, so that constant is 1 for every output.
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
    yield (
        "sort, neurons fitted to within 1e-2",
        attnc.compile(sort, domain=BOX, eps=1e-2, method="fit", dtype=torch.float64),
    )
    yield (
        "sort, a grid proved within 0.1",
        attnc.compile(sort, domain=BOX, eps=0.1, lipschitz=1, dtype=torch.float64),
    )


def largest_error(net: attnc.Network, points: int, seed: int = 1) -> float:
    """At inputs drawn by a seed of our own, which no part of the network has seen."""
    x = torch.rand(points, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return float((net(x) - sort(x)).abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="three numbers, sorted by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="fresh inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        error = largest_error(net, points)
        print(f"{title}\n{net.describe()}\nfresh inputs: |network - sort| <= {error:.3g} at {points:,}\n")


if __name__ == "__main__":
    main()
