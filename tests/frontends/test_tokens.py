"""Writing token programs: operators, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import attnc
from attnc import tokens, zoo
from attnc.errors import InputError, NotExactError
from attnc.program.tokens import Count, Index, Linear, Map, Predicate, Token, TokenProgram
from attnc.records.certificate import Status
from attnc.records.tokens import program_from_json, program_to_json
from attnc.tokens import ProgramBuilder, Variable


@pytest.fixture
def p() -> ProgramBuilder:
    return tokens.program("abc", max_len=4)


EXPRESSIONS: list[tuple[str, Callable[[ProgramBuilder], Variable], list[Any]]] = [
    ("reflected", lambda p: p.get(p.indices == 3 - p.indices.q, p.tokens, default="-"), ["c", "c", "a", "b"]),
    ("query first", lambda p: p.count(p.indices.q > p.indices), [0, 1, 2, 3]),
    ("conjunction", lambda p: p.count((p.tokens == "a") & (p.indices <= p.indices.q)), [0, 1, 1, 1]),
    ("two at the key", lambda p: p.count((p.tokens == "c") & (p.indices > 0)), [2, 2, 2, 2]),
    ("query alone", lambda p: p.count(p.tokens.q == "c"), [0, 0, 4, 4]),
    ("or", lambda p: p.count((p.tokens < p.tokens.q) | (p.tokens == p.tokens.q)), [2, 1, 4, 4]),
    ("not", lambda p: p.count(~(p.tokens == p.tokens.q)), [3, 3, 2, 2]),
    ("elementwise", lambda p: (p.indices * 2 - 1) % 3, [2, 1, 0, 2]),
    ("two variables", lambda p: p.map(lambda t, i: f"{t}{i}", p.tokens, p.indices), ["b0", "a1", "c2", "c3"]),
    (
        "sum of counts",
        lambda p: p.count(p.tokens == p.tokens.q) + p.count(p.tokens < p.tokens.q),
        [2, 1, 4, 4],
    ),
    ("mean", lambda p: p.mean(True, p.indices).map(lambda m: 2 * m), [3, 3, 3, 3]),
    ("mean as it is", lambda p: p.mean(p.indices < 2, p.indices) - 1, [Fraction(-1, 2)] * 4),
    ("length", lambda p: p.length, [4, 4, 4, 4]),
    ("exists", lambda p: p.exists(p.tokens > p.tokens.q), [True, True, False, False]),
    ("all", lambda p: p.count(True), [4, 4, 4, 4]),
    ("first", lambda p: p.get(p.tokens == p.tokens.q, p.indices, tie="first", default=0), [0, 1, 2, 2]),
    ("prefer", lambda p: p.get(True, p.tokens, prefer=p.indices % 2, tie="first"), ["a"] * 4),
    ("product", lambda p: p.indices * p.indices, [0, 1, 4, 9]),
    ("nothing to compute", lambda p: p.tokens, ["b", "a", "c", "c"]),
    ("negated", lambda p: p.get(p.indices - 3 == -p.indices.q, p.tokens, default="-"), ["c", "c", "a", "b"]),
    ("halved", lambda p: p.get(p.indices == p.indices.q // 2, p.tokens), ["b", "b", "a", "a"]),
    ("constant", lambda p: p.tokens.map(lambda t: 7), [7, 7, 7, 7]),
]


def _chain(p: ProgramBuilder, length: int) -> Variable:
    """1 - (1 - (1 - …)): so many sums in a row."""
    x = p.count(p.tokens == "a") + p.count(p.tokens == p.tokens.q)
    for _ in range(length):
        x = 1 - x
    return x


@pytest.mark.parametrize(("build", "expected"), [e[1:] for e in EXPRESSIONS], ids=[e[0] for e in EXPRESSIONS])
def test_expressions(
    p: ProgramBuilder, build: Callable[[ProgramBuilder], Variable], expected: list[Any]
) -> None:
    output = build(p)
    assert p.interpret(output, "bacc") == expected
    net = p.compile(output)
    assert net.certificate.proved and net.run("bacc") == expected
    again = program_from_json(program_to_json(p.program(output)))
    assert isinstance(again, TokenProgram) and again.domains == p.program(output).domains


def test_shared_arguments_are_evaluated_once() -> None:
    """Each variable is read twice by the next: 2^60 visits, if they were not shared."""
    p = tokens.program("ab", max_len=3)
    x = y = p.tokens == "a"
    z = p.count(p.tokens == "a") + p.count(p.tokens == p.tokens.q)
    for _ in range(60):
        x, y, z = p.map(lambda a, b: a or b, x, x), y & y, (z + z).map(lambda v: v // 2)
    net = p.compile(p.get(x, p.tokens, default="b", tie="last"))
    assert net.run("aba") == ["a"] * 3 and attnc.verify(net)
    assert p.compile(p.count(y)).run("aba") == [2, 2, 2]
    assert p.compile(z).run("aba") == [4, 3, 4]
    assert p.compile(_chain(p, 100)).run("aba") == [4, 3, 4]


def test_true_and_1_are_different_values() -> None:
    """`True == 1` in Python: a variable of 1 and 0 is not one of True and False, in whichever order they are written."""
    for first in (bool, int):
        p = tokens.program("ab", max_len=2)
        made = {kind: p.tokens.map(lambda t, kind=kind: kind(t == "a")) for kind in (first, bool, int)}
        assert p.compile(made[bool].map(str)).run("ab") == ["True", "False"]
        assert p.compile(made[int].map(str)).run("ab") == ["1", "0"]
        assert p.compile(p.count(p.tokens == "a")).run("ab") == [1, 1]
        got = [p.get(p.indices == p.indices.q - 1, made[kind], default=kind(0)) for kind in (bool, int)]
        assert [p.compile(x.map(str)).run("ab")[0] for x in got] == ["False", "0"]


def test_integers_as_tokens_and_causality() -> None:
    p = tokens.program([5, 7], max_len=3, causal=True)
    net = p.compile(p.count(p.tokens == p.tokens.q))
    assert net.run([5, 5, 7]) == [1, 2, 1]
    with pytest.raises(InputError):
        _ = p.length


def test_the_error_of_an_index_names_the_call_that_reads_a_position(p: ProgramBuilder) -> None:
    with pytest.raises(InputError) as caught:
        p.tokens[1]
    assert "p.get(p.indices == 1, p.tokens)" in str(caught.value)
    assert p.compile(p.get(p.indices == 1, p.tokens, default="-")).run("abc") == ["b"] * 3
    with pytest.raises(InputError):
        list(p.indices)


@pytest.mark.parametrize(
    "bad",
    [
        lambda p: tokens.program("", 4), lambda p: tokens.program("aa", 4), lambda p: tokens.program("ab", 0),
        lambda p: tokens.program(["a", 1], 4), lambda p: tokens.program(3, 4), lambda p: tokens.program("ab", 4, causal=1),
        lambda p: tokens.program("ab", 10**6), lambda p: tokens.program([1.5], 2),
        lambda p: tokens.program({"a", "b"}, 4), lambda p: tokens.program([["a"]], 4),
        lambda p: p.interpret(p.tokens, None), lambda p: p.interpret(p.tokens, [["a"]]), lambda p: p.interpret(p.tokens, 5),
        lambda p: p.get(True, p.tokens, tie=["last"]), lambda p: p.count(True, name=5),
        lambda p: p.linear(((1.5, p.indices),)), lambda p: p.linear((p.indices,)), lambda p: p.linear(5),
        lambda p: p.linear(((1, p.indices),), 0.5),
        lambda p: p.compile(p.tokens.map(lambda t: 10**300 * (t == "a")) + p.indices),
        lambda p: p.compile(p.get(True, p.tokens, prefer=p.tokens.map(lambda t: 10**300 * (t == "a")), tie="last")),
        lambda p: tokens.program([10**5000, 1], 2), lambda p: tokens.program("ab", 10**5000),
        lambda p: p.tokens.map(lambda t: 10**5000), lambda p: p.indices * 10**5000, lambda p: p.interpret(p.tokens, [10**5000]),
        lambda p: p.get(p.indices == p.indices.q, p.indices, default=10**5000),
        lambda p: p.compile(_chain(p, 1100)),
        lambda p: TokenProgram(("a", "b"), 2, False, (Token(), Count((Predicate(0, None, ((True,),)),))), ("", ""), 1),
        lambda p: TokenProgram(("a",), 2, False, (Index(), Count((Predicate(0, None, ((True,),)),))), ("", ""), 1),
        lambda p: TokenProgram(("a",), 2, False, (Index(), Linear((0,), (1.5,))), ("", ""), 1),
        lambda p: TokenProgram(("a",), 2, False, (Token(), Map((0,), 5)), ("", ""), 1),
        lambda p: TokenProgram(("a",), 2, False, (Token(), Count((5,))), ("", ""), 1),
        lambda p: TokenProgram(("a",), 2, False, (5,), ("",), 0),
        lambda p: p.tokens.map({"a": 1}.__getitem__),
        lambda p: p.tokens.map(lambda t: None), lambda p: p.tokens.map(lambda t: 1.5),
        lambda p: p.tokens.map(lambda t: 1 if t == "a" else True),
        lambda p: p.select(p.tokens, p.tokens, lambda k, q: 1),
        lambda p: p.select(p.tokens, p.tokens, lambda k, q: {"a": True}[k]),
        lambda p: p.tokens + 1, lambda p: p.indices + 0.5, lambda p: p.indices + "a", lambda p: p.tokens % 2,
        lambda p: p.indices.q + p.indices, lambda p: p.tokens and p.indices, lambda p: bool(p.tokens == p.tokens.q),
        lambda p: p.get(p.indices, p.tokens), lambda p: p.get("a", p.tokens), lambda p: p.get(True, "a"),
        lambda p: p.get(True, p.tokens, default=[]), lambda p: p.get(True, p.tokens, default=1.5),
        lambda p: p.get(True, p.tokens, default=0),
        lambda p: p.get(True, p.indices, default="x"),
        lambda p: p.get(True, p.tokens, tie="middle"), lambda p: p.get(True, p.tokens, prefer=p.tokens),
        lambda p: p.mean(True, p.tokens), lambda p: p.mean(True, p.indices, default=0.5),
        lambda p: p.mean(True, p.mean(True, p.indices)),
        lambda p: p.count(tokens.program("ab", 3).tokens == "a"), lambda p: p.compile("a"),
        lambda p: (p.tokens == p.tokens.q) | (p.indices == p.indices.q),
        lambda p: ~((p.tokens == p.tokens.q) & (p.indices == p.indices.q)),
        lambda p: p.compile(p.tokens, torch.float16), lambda p: p.compile(p.tokens, claim="certain"),
        lambda p: p.interpret(p.tokens, "abd"), lambda p: p.interpret(p.tokens, ""), lambda p: p.interpret(p.tokens, "abcab"),
        lambda p: p.map(lambda *xs: 0, *[p.indices] * 12),
        lambda p: p.get(p.indices == p.indices.q - 1, p.indices),
    ],
)  # fmt: skip
def test_bad_input(p: ProgramBuilder, bad: Callable[[ProgramBuilder], Any]) -> None:
    with pytest.raises(InputError):
        bad(p)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: p.get(p.tokens == p.tokens.q, p.indices, default=0),
        lambda p: p.get(p.tokens == "a", p.tokens.map(str.upper), tie="last"),
        lambda p: p.get(p.tokens == "b", p.indices, prefer=p.tokens.map("abc".index), default=0),
        lambda p: p.get(
            p.tokens == "a", p.tokens.map(lambda t: 1)
        ),  # the value is known, but there may be none
        lambda p: p.map(lambda t, x: t, p.tokens, p.get(p.tokens == p.tokens.q, p.indices, default=0)),
        lambda p: p.get(True, p.tokens, prefer=p.length, default="-", tie="last"),
    ],
)
def test_what_cannot_be_proved_is_refused(
    p: ProgramBuilder, build: Callable[[ProgramBuilder], Variable]
) -> None:
    with pytest.raises(NotExactError):
        p.compile(build(p))


def test_measured_claims(p: ProgramBuilder) -> None:
    """Ranks are different, but that is not proved: without tie= the selection is measured."""
    t, i = p.tokens, p.indices
    rank = p.count(t < t.q) + p.count((t == t.q) & (i < i.q))
    output = p.get(rank == i.q, t, default="-")
    with pytest.raises(NotExactError, match="claim='measured'"):
        p.compile(output)
    net = p.compile(output, claim="measured")
    assert "tested on all 120 sequences of length 1 to 4" in str(net.certificate)
    assert net.certificate.status is Status.MEASURED
    assert net.certificate.facts["points"] == 3 + 9 + 27 + 81 and net.certificate.facts["wrong"] == 0
    assert net.why_not_certified() is not None and attnc.verify(net).status is Status.UNKNOWN
    assert net.run("cab") == ["a", "b", "c"]
    for claim in ("proved", "measured"):  # the program itself has no value for some sequences
        with pytest.raises(NotExactError, match="no value for the sequence") as caught:
            p.compile(p.get(t == t.q, i, default=0), claim=claim)
        assert "claim=" not in str(caught.value)
        assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_measured_certificate_says_how_many_sequences_were_tested() -> None:
    p = tokens.program("abc", max_len=7)
    t, i = p.tokens, p.indices
    rank = p.count(t < t.q) + p.count((t == t.q) & (i < i.q))
    text = str(p.compile(p.get(rank == i.q, t, default="-"), claim="measured").certificate)
    assert "1,000 random ones of the 3,279 sequences" in text and "every sequence" not in text


def test_numbers_of_numpy_are_those_of_python(p: ProgramBuilder) -> None:
    square = p.indices.map(lambda i: np.int64(i) ** 2)
    assert square.domain == (0, 1, 4, 9) and {type(v) for v in square.domain} == {int}
    same = p.select(p.tokens, p.tokens, lambda k, q: np.bool_(k == q))
    assert p.compile(p.count(same)).run("aab") == [2, 2, 1]
    previous = p.get(p.indices == p.indices.q - np.int64(1), p.indices, default=np.int32(0))
    assert p.compile(previous).run("abc") == [0, 0, 1]


@pytest.mark.parametrize(
    "expression",
    [
        lambda i: i / 2,
        lambda i: i**2,
        abs,
        lambda i: 2**i,
        lambda i: 7 % i,
        lambda i: i.q / 2,
        lambda i: abs(i.q),
    ],
)
def test_other_operators_name_map(p: ProgramBuilder, expression: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=r"\.map"):
        expression(p.indices)


def test_texts_of_programs(p: ProgramBuilder) -> None:
    t, i = p.tokens, p.indices
    count = p.count((t == t.q) & (i < i.q), name="before")
    assert repr((t == t.q) & (i < i.q)) == "<Where: token == token.q and index < index.q>"
    assert "all keys" in repr(p.condition(True)) and "predicate" in repr(
        p.select(t, i, lambda k, q: k == "a" and q == 1)
    )
    assert "before" in repr(p) and "3 tokens" in repr(p) and count.node
    assert "order" in repr(zoo.about("sort")) and "0x" not in repr(zoo.about("sort"))


def test_names_are_distinct() -> None:
    """Variables with one name have heads and coordinates with numbers; steps have the name of the variable they are for."""
    p = tokens.program("abc", max_len=4)
    t, i = p.tokens, p.indices
    counts = p.count(t == t.q, name="x"), p.count(t < t.q, name="x")
    previous = p.get(i == i.q - 1, t, default="-", name="token")
    net = p.compile(p.map(lambda a, b, c: (a > 1) + 2 * (b > 1) + 3 * (c == "a"), *counts, previous))
    assert len(set(net.coordinates)) == len(net.coordinates)
    assert {"1/(1+x)", "1/(1+x (2))", "token (2)=a"} <= set(net.coordinates)
    assert {"0.0 x", "0.1 x (2)", "0.2 token (2)"} <= set(net.attention(net.encode("a")))
    depth = [c for c in zoo.load("dyck-2").coordinates if c.startswith("depth")]
    assert depth == [f"depth >= {d}" for d in range(9)]


def test_steps_have_the_name_of_a_variable_that_grows_alone() -> None:
    p = tokens.program("abc", max_len=4)
    t = p.tokens
    total = p.count(t == t.q) + p.count(t < t.q)
    halves, parity = p.named("half", total // 2), p.named("odd", (p.count(t == t.q) + p.count(t > t.q)) % 2)
    for output, shown in ((halves, True), (parity, False)):
        net = p.compile(p.get(output == p.indices.q, t, default="-", tie="last"))
        steps = [c for c in net.coordinates if " >= " in c]
        assert steps and all(c.startswith("half >= ") for c in steps) is shown
    net = p.compile(p.get(halves == p.indices.q, t, default="-", tie="last"))
    stream, values = net.stream(net.encode("abca"))[1:], p.interpret(halves, "abca")
    for at, name in enumerate(net.coordinates):
        if " >= " in name:
            assert stream[:, at].tolist() == [float(v >= int(name.split()[-1])) for v in values]
