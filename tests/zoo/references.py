"""What the token tasks of the zoo compute, by numpy: independent of programs, of their interpreter and of the networks.

X is an array (sequences, positions) of places in the vocabulary. '-' is -1."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnc.tokens import TokenNetwork

Places = NDArray[np.int64]


def copy_previous(X: Places) -> Places:
    return np.concatenate([np.full((len(X), 1), -1), X[:, :-1]], 1)


def reverse(X: Places) -> Places:
    return X[:, ::-1].copy()


def histogram(X: Places) -> Places:
    return (X[:, :, None] == X[:, None, :]).sum(2)


def double_histogram(X: Places) -> Places:
    return histogram(histogram(X))


def sort(X: Places) -> Places:
    return np.sort(X, 1)


def induction(X: Places) -> Places:
    out = np.full(X.shape, -1)
    for i in range(X.shape[1]):
        for j in range(i):
            found = X[:, j] == X[:, i]
            out[found, i] = X[found, j + 1]
    return out


def dyck_1(X: Places) -> Places:
    height = np.cumsum(1 - 2 * X, 1)
    balanced = (height >= 0).all(1) & (height[:, -1] == 0)
    return np.repeat(balanced[:, None], X.shape[1], 1).astype(np.int64)


def dyck_2(X: Places) -> Places:
    """With a stack; the places are those of '()[]'."""
    out = np.zeros(X.shape, np.int64)
    for row, sequence in enumerate(X.tolist()):
        stack: list[int] = []
        balanced = True
        for token in sequence:
            if token in (0, 2):
                stack.append(token)
            elif not stack or stack.pop() != token - 1:
                balanced = False
                break
        out[row] = balanced and not stack
    return out


def modular_addition(size: int) -> Callable[[Places], Places]:
    def add(X: Places) -> Places:
        return (X + np.concatenate([np.zeros((len(X), 1), np.int64), X[:, :-1]], 1)) % size

    return add


def parity(X: Places) -> Places:
    return np.cumsum(X, 1) % 2


def most_frequent(X: Places) -> Places:
    counts = np.stack([(v == X).sum(1) for v in range(int(X.max()) + 1)], 1)
    return np.repeat(counts.argmax(1)[:, None], X.shape[1], 1)


def random_table(X: Places) -> Places:
    draw = random.Random(0)
    table = np.array([["abcdef".index(draw.choice("abcdef")) for _ in range(6)] for _ in range(6)])
    return table[np.concatenate([np.zeros((len(X), 1), np.int64), X[:, :-1]], 1), X]


REFERENCES: dict[str, Callable[[Places], Places]] = {
    "copy-previous": copy_previous,
    "reverse": reverse,
    "histogram": histogram,
    "double-histogram": double_histogram,
    "sort": sort,
    "induction": induction,
    "dyck-1": dyck_1,
    "dyck-2": dyck_2,
    "add-mod-7": modular_addition(7),
    "add-mod-113": modular_addition(113),
    "parity": parity,
    "most-frequent": most_frequent,
    "random-table": random_table,
}


def all_sequences(size: int, length: int) -> Places:
    """Every sequence of this length."""
    return np.indices((size,) * length, np.int64).reshape(length, -1).T.copy()


def answers(net: TokenNetwork, X: Places) -> Places:
    """The outputs of the network in the convention of the references."""
    codes = {token: i for i, token in enumerate(net.vocabulary) if isinstance(token, str)} | {"-": -1}
    values = np.array([codes[v] if isinstance(v, str) else int(v) for v in net.outputs])
    with torch.no_grad():
        return np.asarray(values[net(torch.from_numpy(X)).argmax(-1).numpy()])


def wrong(net: TokenNetwork, reference: Callable[[Places], Places], X: Places) -> int:
    """How many sequences have a wrong output somewhere."""
    return int((answers(net, X) != reference(X)).any(1).sum())


def batches(size: int, longest: int, rows: int = 1 << 14) -> Iterator[Any]:
    """All sequences of 1 to `longest` tokens, in batches."""
    for length in range(1, longest + 1):
        X = all_sequences(size, length)
        yield from (X[a : a + rows] for a in range(0, len(X), rows))
