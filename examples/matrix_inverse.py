"""The inverse of a 2 × 2 matrix as softmax attention: rows are tokens.

    python examples/matrix_inverse.py

The box holds the matrices with diagonal entries in [1, 2] and the others in [-1/2, 1/2]. Their determinants are at least
3/4, so the inverse is smooth there, and a lattice with a few anchors on each of its four axes comes close. The error is
measured. To prove it, ‖A⁻¹ - B⁻¹‖ <= ‖A⁻¹‖ ‖A - B‖ ‖B⁻¹‖ gives a Lipschitz constant, but a grid of four axes that is fine
enough would be far too large: `describe` says how large.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import attnc

BOX = attnc.Box([[1, -0.5], [-0.5, 1]], [[2, 0.5], [0.5, 2]])


def inverse(a: Tensor) -> Tensor:
    """(batch, 2, 2): token i is row i, of the matrix and of its inverse."""
    return torch.linalg.inv(a)


def run() -> Iterator[tuple[str, attnc.Network]]:
    """One way to ask: the input has four numbers, which a lattice can serve."""
    yield "inverse, a lattice within 1e-3", attnc.compile(inverse, domain=BOX, eps=1e-3, dtype=torch.float64)


def drawn(points: int, seed: int = 1) -> Tensor:
    """Matrices of the box, by a seed of our own, which no part of a network has seen."""
    lo, hi = (torch.tensor(end.tolist(), dtype=torch.float64) for end in (BOX.lo, BOX.hi))
    unit = torch.rand(points, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return lo + (hi - lo) * unit


def largest_errors(net: attnc.Network, points: int) -> tuple[float, float]:
    """Of the inverse itself, and of what it is for: |A·net(A) - 1|."""
    a = drawn(points)
    made, identity = net(a), torch.eye(2, dtype=torch.float64)
    return float((made - inverse(a)).abs().max()), float((a @ made - identity).abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="2 × 2 matrices, inverted by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="fresh inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        error, product = largest_errors(net, points)
        print(f"{title}\n{net.describe()}\nfresh inputs: |network - inverse| <= {error:.3g} at {points:,}")
        print(f"              |A·network(A) - identity| <= {product:.3g}\n")


if __name__ == "__main__":
    main()
