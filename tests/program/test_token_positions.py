"""Nodes that depend on positions alone: their values by arrays are those of the interpreter."""

from __future__ import annotations

import random

import pytest

from attnc import tokens
from attnc.errors import InputError
from attnc.program.tokens import TokenProgram, run
from attnc.tokens import ProgramBuilder, Variable


def positional(seed: int) -> tuple[ProgramBuilder, Variable]:
    """A random program that does not read its tokens."""
    draw = random.Random(seed)
    p = tokens.program("ab", draw.choice((1, 3, 6)), causal=draw.random() < 0.4)
    found = [p.indices]
    for _ in range(draw.randint(2, 6)):
        x, y, z = (draw.choice(found) for _ in range(3))
        table = {(k, q): draw.random() < 0.4 for k in y.domain for q in z.domain}
        where = p.select(y, z, lambda k, q, table=table: table[k, q])
        if draw.random() < 0.3:
            where &= p.indices <= p.indices.q
        kind = draw.choice(("get", "get", "count", "mean", "map", "sum", "exists"))
        try:
            if kind == "get":
                tie, prefer = draw.choice(("first", "last", None)), draw.choice((None, z))
                found.append(p.get(where, x, draw.choice((None, 3, 3)), tie, prefer))
            elif kind == "count":
                found.append(p.count(where))
            elif kind == "mean":
                found.append(p.mean(where, x, default=draw.randint(-1, 2)).map(lambda m: m > 1) + 0)
            elif kind == "map":
                values = {pair: draw.randint(-2, 2) for pair in table}
                found.append(p.map(lambda a, b, values=values: values[a, b], y, z))
            elif kind == "sum":
                found.append(draw.randint(-2, 2) * x - y + 1)
            else:
                found.append(p.exists(where) + 0)
        except InputError:
            continue
    return p, found[-1]


def _compared(program: TokenProgram) -> None:
    at = program.output
    places, domain = program.position_places(at), program.domains[at]
    for length in range(1, program.length + 1):
        expected = run(program, "b" * length)
        assert [repr(domain[j]) for j in places[:length, length - 1]] == [repr(v) for v in expected]
        assert (places[length:, length - 1] == -1).all()


@pytest.mark.filterwarnings("ignore::attnc.errors.ConditionWarning")
def test_random_programs_are_those_of_the_interpreter() -> None:
    for seed in range(150):
        p, output = positional(seed)
        _compared(p.program(output))


def test_a_sum_of_nothing_is_its_constant() -> None:
    p = tokens.program("ab", 3)
    _compared(p.program(p.linear((), 5)))
    assert p.compile(p.linear((), 5)).run("ab") == [5, 5]


def test_large_numbers_are_exact() -> None:
    p = tokens.program("ab", 4)
    _compared(p.program(p.mean(p.indices <= p.indices.q, (2**70 + 1) * p.indices).map(lambda m: m > 2**69)))


def test_a_node_without_a_value_names_itself() -> None:
    p = tokens.program("ab", 4)
    with pytest.raises(InputError, match=r"nowhere.*default"):
        p.get(p.indices == p.indices.q + 1, p.indices, name="nowhere")
    with pytest.raises(InputError, match=r"several.*tie"):
        p.get(p.indices <= p.indices.q, p.indices, name="several")


def test_the_largest_length() -> None:
    """Twelve selections after another at 512 positions: by the interpreter this took minutes."""
    p = tokens.program("ab", 512, causal=True)
    x = p.indices
    for _ in range(12):
        x = p.get(p.indices == p.indices.q - 1, x, default=0)
    assert p.program(x).domains[-1] == tuple(range(500))
