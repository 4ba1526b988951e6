"""A softmax-weighted average of tokens, compiled to attention over anchors.

    python examples/softmax_average.py

y_i = Σ_j softmax_j(4 x_i x_j) x_j is one head of self-attention whose queries, keys and values are the tokens: tokens attend
to tokens, and scores are products of two inputs. attnc compiles the function from its values and operations. In the compiled
network the softmax runs over anchors, and scores are affine in the input. It has the paper's second form: one layer of
attention (with scores 0), then one softmax. The function is smooth: an eps that is 100 times smaller needs a few times as
many anchors.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import attnc

BOX = attnc.Box(0, 1, shape=(3, 1))


def softmax_average(x: Tensor) -> Tensor:
    """(batch, 3, 1): every token becomes the mean of all tokens, weighted by softmax_j(4 x_i x_j)."""
    return torch.softmax(4 * x @ x.transpose(1, 2), dim=-1) @ x


def run() -> Iterator[tuple[str, attnc.Network]]:
    """Two networks, the second with an eps that is 100 times smaller."""
    for eps in (1e-3, 1e-5):
        yield (
            f"softmax average, a lattice within {eps:g}",
            attnc.compile(
                softmax_average, domain=BOX, eps=eps, form="attention-softmax", dtype=torch.float64
            ),
        )


def largest_error(net: attnc.Network, points: int, seed: int = 1) -> float:
    """The largest error at random inputs that were not used to build the network."""
    x = torch.rand(points, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return float((net(x) - softmax_average(x)).abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a softmax-weighted average by attention to anchors")
    parser.add_argument(
        "--points", type=int, default=100_000, help="number of random inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        error = largest_error(net, points)
        print(
            f"{title}\n{net.describe()}\nfresh inputs: |network - softmax_average| <= {error:.3g} at {points:,}\n"
        )


if __name__ == "__main__":
    main()
