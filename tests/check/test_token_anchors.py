"""Heads over anchors: what the checker proves of them, and each of its conditions broken alone."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from attnc import tokens, zoo
from attnc.check.token_anchors import seen_at_least, winners
from attnc.check.token_states import Forms, Meaning, Stream
from attnc.check.tokens import prove_tokens
from attnc.check.values import CheckError
from attnc.records.tokens import HeadRole, TokenNumbers
from attnc.tokens import TokenNetwork
from tests.check.test_tokens import changed
from tests.zoo.references import REFERENCES, batches, wrong


@pytest.fixture(scope="module", params=[False, True], ids=["all", "causal"])
def parity(request: Any) -> TokenNetwork:
    p = tokens.program([0, 1], 4, causal=request.param)
    return p.compile(p.count(p.tokens == 1, name="ones") % 2)


def wrongs(net: TokenNetwork, numbers: TokenNumbers) -> int:
    """How many sequences a network with other numbers gets wrong."""
    other = TokenNetwork(numbers, net.program, None)
    found = 0
    for X in batches(2, net.program.length):
        expected = torch.tensor(
            (np.cumsum(X, 1) if net.program.causal else X.sum(1, keepdims=True) + 0 * X) % 2
        )
        found += int((other(torch.tensor(X)).argmax(-1) != expected).any(1).sum())
    return found


def index_rows(net: TokenNetwork) -> list[int]:
    return [net.coordinates.index(f"index={i}") for i in range(net.program.length)]


def test_one_head_takes_the_place_of_the_steps(parity: TokenNetwork) -> None:
    assert parity.certificate.facts["layers"] == [1, 1]
    assert parity.numbers().layers[1].roles[0].kind == "anchor"
    assert parity.layers[1].query.shape[-1] == 2
    assert wrongs(parity, parity.numbers()) == 0


def test_a_query_attends_to_the_position_of_its_count() -> None:
    net = zoo.load("parity", length=6)
    weights = net.attention(net.encode([1, 0, 1, 1]))["1.0 parity"]
    assert weights.argmax(-1).tolist() == [
        0,
        1,
        1,
        2,
        3,
    ]  # BOS is 0; a count of c is at the position with index c - 1
    assert set(weights.flatten().tolist()) == {0.0, 1.0}


def _shift(array: Any, rows: list[int]) -> None:
    array[0, rows] = np.roll(array[0, rows], 1, axis=0)


def test_an_anchor_that_may_be_absent_is_refused(parity: TokenNetwork) -> None:
    """The anchor of each count is one position later: that of the count of all positions is not there."""
    rows = index_rows(parity)
    other = changed(parity.numbers(), 1, "key", lambda a: _shift(a, rows))
    other = changed(other, 1, "value", lambda a: _shift(a, rows))
    assert wrongs(parity, other) > 0
    with pytest.raises(CheckError, match="see"):
        prove_tokens(parity.program, other)


CHANGES: dict[str, tuple[str, Callable[[Any, TokenNetwork], None]]] = {
    "keys of tokens": ("key", lambda a, net: a.__setitem__((0, net.coordinates.index("token=0"), 0), 0.5)),
    "keys of two terms": ("key", lambda a, net: a.__setitem__((0, 0, 0), 0.5)),
    "keys of a count": ("key", lambda a, net: a.__setitem__((0, net.coordinates.index("1/(1+ones)"), 0), 0.5)),
    "values of tokens": ("value", lambda a, net: a.__setitem__((0, net.coordinates.index("token=0"), 0), 1.0)),
    "values that are not whole": ("value", lambda a, net: a.__setitem__((0, index_rows(net)[0], 0), 0.3)),
    "scores too near": ("query", lambda a, net: a.__imul__(2.0**-12)),
    "BOS looks elsewhere": ("query", lambda a, net: a.__setitem__((0, 1, 0), -a[0, :, 0].max())),
    "scores overflow": ("query", lambda a, net: a.__imul__(2.0**105)),
    "queries of tokens": ("query", lambda a, net: a.__setitem__((0, net.coordinates.index("token=1"), 0), -1e6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_conditions(name: str, parity: TokenNetwork) -> None:
    where, change = CHANGES[name]
    with pytest.raises(CheckError):
        prove_tokens(parity.program, changed(parity.numbers(), 1, where, lambda a: change(a, parity)))


def test_a_wrong_value_is_seen_in_the_logits(parity: TokenNetwork) -> None:
    other = changed(parity.numbers(), 1, "value", lambda a: a.__setitem__((0, index_rows(parity)[1], 0), 1.0))
    assert wrongs(parity, other) > 0
    with pytest.raises(CheckError, match="logit"):
        prove_tokens(parity.program, other)


def test_an_anchor_proves_nothing_of_a_node(parity: TokenNetwork) -> None:
    role = HeadRole("parity", "anchor")
    object.__setattr__(role, "node", 2)
    numbers = parity.numbers()
    object.__setattr__(numbers.layers[1], "roles", (role,))
    with pytest.raises(CheckError, match="names node"):
        prove_tokens(parity.program, numbers)


def test_winners_by_fractions(parity: TokenNetwork) -> None:
    """Against Fractions of each pair: the lead of the winner, with the errors of the query and of rounding."""
    numbers = parity.numbers()
    stream = Stream(Meaning(parity.program), numbers.tokens, numbers.positions, _arithmetic("float32"))
    draw = np.random.default_rng(0)
    found = {True: 0, False: 0}
    for _ in range(200):
        k = np.array(
            [[Fraction(int(x), 64) for x in draw.integers(-99, 99, 2)] for _ in range(3)], dtype=object
        )
        q = np.array([[Fraction(int(x), 3) for x in draw.integers(-999, 999, 2)]], dtype=object)
        e = np.array([[Fraction(int(x), 7) for x in draw.integers(0, 40, 2)]], dtype=object)
        scores = [sum(a * b for a, b in zip(q[0], row, strict=True)) for row in k]
        best = max(range(3), key=scores.__getitem__)
        sizes = [sum((abs(a) + c) * abs(b) for a, c, b in zip(q[0], e[0], row, strict=True)) for row in k]
        rounding = stream.rounding(np.array(sizes, dtype=object), 2)
        leads = [
            scores[best] - scores[j] - rounding[best] - rounding[j]
            - sum(c * abs(x - y) for c, x, y in zip(e[0], k[best], k[j], strict=True))
            for j in range(3) if j != best
        ]  # fmt: skip
        proved = min(leads) >= 128
        found[proved] += 1
        if proved:
            assert winners(stream, Forms(q, e), k).tolist() == [best]
        else:
            with pytest.raises(CheckError):
                winners(stream, Forms(q, e), k)
    assert min(found.values()) > 40


def test_rounding_of_scores_counts(parity: TokenNetwork) -> None:
    """A lead of 129 between scores near 2^24: rounding in float32 may move them by several units."""
    numbers = parity.numbers()
    stream = Stream(Meaning(parity.program), numbers.tokens, numbers.positions, _arithmetic("float32"))
    q, k = np.array([[1, 1]], dtype=object), np.array([[2**24, 129], [2**24, 0]], dtype=object)
    with pytest.raises(CheckError):
        winners(stream, Forms(q), k)
    k[0, 1] = 200
    assert winners(stream, Forms(q), k).tolist() == [0]


def _arithmetic(dtype: str) -> Any:
    from attnc.arithmetic import ARITHMETIC

    return ARITHMETIC[dtype]


def test_what_a_query_sees() -> None:
    p = tokens.program("ab", 5)
    meaning = Meaning(p.program(p.count(p.tokens == "a")))
    states = meaning.states([2, "index"])
    counts, index = states.places[2], states.places["index"]
    assert (seen_at_least(meaning, states) == np.maximum(np.maximum(counts, index + 1), 1)).all()
    assert seen_at_least(meaning, meaning.states(["token"])).tolist() == [1, 1]


@pytest.mark.parametrize(("length", "dtype"), [(256, torch.float32), (512, torch.float64)])
def test_long_counts(length: int, dtype: torch.dtype) -> None:
    net = zoo.load("parity", dtype, length=length)
    assert net.certificate.proved and net.certificate.facts["layers"] == [1, 1]
    X = np.random.default_rng(0).integers(0, 2, (8, length))
    X[0], X[1] = 1, 0
    assert wrong(net, REFERENCES["parity"], X) == 0
