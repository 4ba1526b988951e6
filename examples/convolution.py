"""A convolution over 8 tokens with a kernel of size 3 as softmax attention: from its values, and from its weights.

    python examples/convolution.py

Eight numbers are too many for a lattice of anchors, so attnc fits a layer of neurons to values of the function, and
replaces the neurons by attention. The fit starts with pairs of neurons that are linear up to a term of fifth order. A
convolution is linear, so it needs no other neurons. The error is measured.

The kernel makes a proof possible. With |x| <= 1 and Σ|kernel| = 1, every output u is in [-1, 1], where
u = relu(u + 1) - 1: a ReLU that is always active is linear. So the convolution *is* a network with one hidden layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

import attnc

TOKENS = 8
BOX = attnc.Box(-1, 1, shape=(TOKENS, 1))
KERNEL = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)


def convolve(x: Tensor) -> Tensor:
    """(batch, 8, 1): y_i = x_{i-1}/4 + x_i/2 + x_{i+1}/4, and 0 beyond the ends."""
    return nn.functional.conv1d(x.transpose(1, 2), KERNEL.view(1, 1, 3), padding=1).transpose(1, 2)


def as_neurons() -> nn.Sequential:
    """relu(Cx + 1) - 1. Column j of C is the convolution of the j-th unit vector."""
    enter, leave = nn.Linear(TOKENS, TOKENS).double(), nn.Linear(TOKENS, TOKENS).double()
    identity = torch.eye(TOKENS, dtype=torch.float64)
    with torch.no_grad():
        enter.weight.copy_(convolve(identity.unsqueeze(-1)).squeeze(-1).T)
        enter.bias.fill_(1)
        leave.weight.copy_(identity)
        leave.bias.fill_(-1)
    return nn.Sequential(nn.Flatten(), enter, nn.ReLU(), leave, nn.Unflatten(1, (TOKENS, 1))).eval()


def run() -> Iterator[tuple[str, attnc.Network]]:
    """A network from values of the function, and one from the weights."""
    yield (
        "convolution, neurons fitted to its values",
        attnc.compile(convolve, domain=BOX, eps=1e-5, dtype=torch.float64),
    )
    yield (
        "convolution, neurons built from its weights",
        attnc.compile(as_neurons(), domain=BOX, eps=1e-6, form="two-layer", dtype=torch.float64),
    )


def largest_error(net: attnc.Network, points: int, seed: int = 1) -> float:
    """The largest error at random inputs that were not used to build the network."""
    unit = torch.rand(points, TOKENS, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = 2 * unit - 1
    return float((net(x) - convolve(x)).abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a convolution by softmax attention")
    parser.add_argument(
        "--points", type=int, default=100_000, help="number of random inputs at which errors are measured"
    )
    points = parser.parse_args(arguments).points
    for title, net in run():
        error = largest_error(net, points)
        print(f"{title}\n{net.describe()}\nfresh inputs: |network - convolve| <= {error:.3g} at {points:,}\n")


if __name__ == "__main__":
    main()
