"""The inverse of a 2 × 2 matrix as softmax attention: rows are tokens.

    python examples/matrix_inverse.py

The box contains the matrices with diagonal entries in [1, 2] and other entries in [-1/2, 1/2]. Their determinants are at
least 3/4, so the inverse is smooth on the box, and a lattice with a few anchors on each of its four axes approximates it.
The error is proved from the operations of torch.linalg.inv, the adjugate over the determinant, without a Lipschitz constant.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import attnc

BOX = attnc.Box([[1, -0.5], [-0.5, 1]], [[2, 0.5], [0.5, 2]])


def inverse(a: Tensor) -> Tensor:
    """(batch, 2, 2): token i is row i of the matrix, and of its inverse."""
    return torch.linalg.inv(a)


def run() -> Iterator[tuple[str, attnc.Network]]:
    """One network: a lattice with four axes."""
    yield "inverse, a lattice within 1e-3", attnc.compile(inverse, domain=BOX, eps=1e-3, dtype=torch.float64)


def drawn(points: int, seed: int = 1) -> Tensor:
    """Random matrices of the box that were not used to build the network."""
    lo, hi = (torch.tensor(end.tolist(), dtype=torch.float64) for end in (BOX.lo, BOX.hi))
    unit = torch.rand(points, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return lo + (hi - lo) * unit


def largest_errors(net: attnc.Network, points: int) -> tuple[float, float]:
    """The largest |net(A) - A⁻¹| and the largest |A·net(A) - 1|."""
    a = drawn(points)
    found, identity = net(a), torch.eye(2, dtype=torch.float64)
    return float((found - inverse(a)).abs().max()), float((a @ found - identity).abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="2 × 2 matrices, inverted by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="number of random inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        error, product = largest_errors(net, points)
        print(f"{title}\n{net.describe()}\nfresh inputs: |network - inverse| <= {error:.3g} at {points:,}")
        print(f"              |A·network(A) - identity| <= {product:.3g}\n")


if __name__ == "__main__":
    main()
