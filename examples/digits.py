"""Handwritten digits: two trained classifiers as softmax attention, and what the proved bound implies for their decisions.

    python examples/digits.py

The script trains an MLP 64-128-10 in torch and scikit-learn's MLPClassifier on 8 × 8 images (a few seconds), compiles both for
all images with pixels between 0 and 1, and compares their decisions. It needs scikit-learn. The error of a logit is at most
the bound. So if the two largest logits differ by more than twice the bound, the network provably decides like the original does
in exact arithmetic. The script also counts on how many images the executed network and the executed original agree.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

import attnc
from attnc.program.evaluate import approximate

EPS = {"float32": 1e-2, "float64": 1e-4}
BOX = attnc.Box(0, 1, shape=(64,))


@dataclass(frozen=True)
class Digits:
    """Images (n, 64) with pixels in [0, 1], multiples of 1/16, and their digits."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Agreement:
    """Original and network on the test images; a margin is the largest logit minus the next, in the original."""

    images: int
    accuracy: float  # of the original
    bound: float
    margin: float  # the median
    smallest_margin: float
    decided: int  # images whose margin exceeds twice the bound
    decided_alike: int  # those of them on which both decide alike
    different: int  # images, of all, on which the decisions differ

    @property
    def ratio(self) -> float:
        return self.bound / self.margin


def read() -> Digits:
    x, y = load_digits(return_X_y=True)
    parts = train_test_split((x / 16).astype(np.float32), y, test_size=0.25, random_state=0, stratify=y)
    train_x, test_x, train_y, test_y = map(torch.from_numpy, parts)
    return Digits(train_x, train_y, test_x, test_y)


def trained(data: Digits) -> nn.Sequential:
    """An MLP 64-128-10 with ReLU, trained in about a second."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(30):
        for batch in torch.randperm(len(data.train_x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.train_x[batch]), data.train_y[batch]).backward()
            optimizer.step()
    return model.eval()


def fitted(data: Digits) -> MLPClassifier:
    """An MLP of the same shape, trained by scikit-learn in float64."""
    model = MLPClassifier((128,), alpha=1e-2, learning_rate_init=3e-3, max_iter=500, tol=1e-3, random_state=0)
    return model.fit(data.train_x.double().numpy(), data.train_y.numpy())


def decisions(model: Any) -> Callable[[Tensor], Tensor]:
    """The decisions of the original model, executed by its own library."""
    if isinstance(model, nn.Module):
        return lambda x: model(x).argmax(-1)
    return lambda x: torch.from_numpy(model.predict(x.double().numpy()))


def compare(model: Any, net: attnc.Network, data: Digits) -> Agreement:
    x = data.test_x.to(next(net.parameters()).dtype)
    assert net.certificate.covers(x)
    largest = torch.from_numpy(approximate(net.program, data.test_x.numpy())).topk(2).values
    margin, bound = largest[:, 0] - largest[:, 1], net.certificate.bound
    with torch.no_grad():
        theirs, ours = decisions(model)(data.test_x), net(x).argmax(-1)
    decided, alike = margin > 2 * bound, theirs == ours
    return Agreement(
        images=len(x),
        accuracy=float((theirs == data.test_y).double().mean()),
        bound=bound,
        margin=float(margin.median()),
        smallest_margin=float(margin.min()),
        decided=int(decided.sum()),
        decided_alike=int((decided & alike).sum()),
        different=int((~alike).sum()),
    )


@dataclass(frozen=True)
class Result:
    name: str
    dtype: str
    net: attnc.Network
    agreement: Agreement
    seconds: float  # to compile

    def __str__(self) -> str:
        a, (layer,) = self.agreement, self.net.layers
        parameters = sum(p.numel() for p in self.net.parameters())
        anchors = sum(len(head.anchors) for head in layer)
        return f"""{self.name}, {self.dtype}: compiled in {self.seconds:.1f} s
  size        {parameters:,} parameters; 128 heads that share {anchors} anchors
  accuracy    {a.accuracy:.1%} of {a.images} test images
  bound       {a.bound:.3g} on every logit, proved for every image of [0, 1]^64
  margin      {a.margin:.3g} (median), {a.smallest_margin:.3g} (least): the bound is 1/{1 / a.ratio:,.0f} of the median
  agreement   {a.decided_alike} of {a.decided} images whose margin exceeds twice the bound
              {a.different} of all {a.images} images are decided differently
"""


def run() -> Iterator[Result]:
    """Both classifiers in both dtypes."""
    data = read()
    for name, model in (("torch 64-128-10", trained(data)), ("scikit-learn MLPClassifier", fitted(data))):
        for dtype, eps in EPS.items():
            began = time.perf_counter()
            net = attnc.compile(model, domain=BOX, eps=eps, dtype=getattr(torch, dtype))
            seconds = time.perf_counter() - began
            yield Result(name, dtype, net, compare(model, net, data), seconds)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    for result in run():
        print(result)
