"""States are counted before a rule is applied: the counts are those of the rules, and what is too large is refused at once."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnc import tokens, zoo
from attnc.check import token_pairs, token_sizes, token_states
from attnc.check.token_heads import HeadChecker
from attnc.check.token_pairs import Pairs, check_order
from attnc.check.token_states import Forms, States
from attnc.check.tokens import prove_tokens
from attnc.check.values import CheckError
from attnc.errors import InputError
from attnc.lower.token_reads import StreamPlan
from attnc.lower.tokens import lower_tokens
from attnc.program.tokens import TokenProgram

SIZES = {"dyck-2": 6, "dyck-1": 8, "parity": 8, "sort": 5, "add-mod-113": 2, "random-table": 3}


@pytest.mark.parametrize("name", zoo.names("tokens"))
def test_the_counts_are_those_of_the_rules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p, output = zoo.program(name, length=SIZES.get(name, 6))
    program = p.program(output)
    numbers = lower_tokens(program, "float32")
    counted, listed = [0], [0]
    columns: dict[int, frozenset[token_states.Variable]] = {}
    head, pairs_of, check = token_sizes._Count.head, HeadChecker._pairs_of, HeadChecker.check

    def count(self, *given):  # type: ignore[no-untyped-def]
        found = head(self, *given)
        counted[0] = self.pairs
        columns.update(self.columns)
        return found

    def listing(self, *given):  # type: ignore[no-untyped-def]
        for pairs in pairs_of(self, *given):
            listed[0] += pairs.query.count * pairs.key.count
            yield pairs

    def checking(self, role, matrices):  # type: ignore[no-untyped-def]
        """The variables that were counted with are those of the columns."""
        for c, column in self.stream.columns.items():
            assert columns.get(c, frozenset(column.variables)) == set(column.variables)
        return check(self, role, matrices)

    monkeypatch.setattr(token_sizes._Count, "head", count)
    monkeypatch.setattr(HeadChecker, "_pairs_of", listing)
    monkeypatch.setattr(HeadChecker, "check", checking)
    prove_tokens(program, numbers)
    assert counted == listed


def refused_at_once(program: TokenProgram, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The figures of the refusal; no rule is applied before."""
    numbers = lower_tokens(program, "float32")
    monkeypatch.setattr(HeadChecker, "check", lambda *_: pytest.fail("a head was checked"))
    with pytest.raises(CheckError) as problem:
        prove_tokens(program, numbers)
    return [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]{6,}", str(problem.value))]


def test_too_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    p, output = zoo.program("dyck-2", length=28)
    assert refused_at_once(p.program(output), monkeypatch) == [2218039489, token_pairs.MOST_PAIRS]


def test_too_many_states_of_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    p, output = zoo.program("most-frequent", vocabulary=26, length=96)
    assert refused_at_once(p.program(output), monkeypatch) == [
        26 * 96 * 96 * 97,
        4 * token_states.MOST_STATES,
    ]


def test_too_many_states_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    p = tokens.program(range(64), 8, causal=True)
    before = [p.get(p.indices == p.indices.q - k, p.tokens, default=0) for k in range(1, 5)]
    total = before[0] + before[1] + before[2] + before[3] + p.tokens
    assert refused_at_once(p.program(total), monkeypatch) == [64**5, 4 * token_states.MOST_STATES]


def test_too_many_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of two tokens changes at almost every pair: the heads are counted before one is made."""
    p = tokens.program(range(113), 4, causal=True)
    before = p.get(p.indices == p.indices.q - 1, p.tokens, default=0)
    monkeypatch.setattr(StreamPlan, "step", lambda *_: pytest.fail("a head was made"))
    with pytest.raises(InputError, match="12,656 heads"):
        p.compile(before * p.tokens)


def slow_order(pairs: Pairs, rank: np.ndarray, gap: int) -> bool:
    """Each selected key against each that is preferred to it."""
    scores = pairs.scores
    return all(
        scores.lo[q, j] - scores.hi[q, i] >= gap
        for q, i, j in np.ndindex(len(pairs.hits), len(rank), len(rank))
        if pairs.hits[q, i] and pairs.hits[q, j] and rank[i] < rank[j]
    )


@given(st.data())
def test_the_order_of_selected_keys(data: st.DataObject) -> None:
    queries, keys, gap = (data.draw(st.integers(1, most)) for most in (3, 6, 4))
    rank = np.unique(
        data.draw(st.lists(st.integers(0, 3), min_size=keys, max_size=keys)), return_inverse=True
    )[1]

    def table(least: int, most: int) -> np.ndarray:
        size = queries * keys
        drawn = data.draw(st.lists(st.integers(least, most), min_size=size, max_size=size))
        return np.array(drawn, np.int64).reshape(queries, keys)

    values, errors = table(-1, 1) + rank * gap, table(0, 1) if data.draw(st.booleans()) else None
    hits, kind = table(0, 1).astype(bool), data.draw(st.sampled_from([np.int64, object]))
    forms = Forms(values.astype(kind), errors)
    pairs = Pairs(States({}, queries), States({}, keys), forms, forms, hits, hits)
    if slow_order(pairs, rank, gap):
        check_order(pairs, rank, gap)
    else:
        with pytest.raises(CheckError):
            check_order(pairs, rank, gap)
