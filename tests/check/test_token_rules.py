"""Each rule of the checker of token networks on its own: a network that breaks this rule only is not proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from attnc import tokens
from attnc.arithmetic import ARITHMETIC
from attnc.check.token_states import Meaning, Stream
from attnc.check.tokens import prove_tokens
from attnc.check.values import CheckError
from attnc.errors import InputError
from attnc.program.tokens import Get, Index, Map, Predicate, Token, TokenProgram
from attnc.records.tokens import HeadRole, TokenNumbers
from attnc.tokens import ProgramBuilder, TokenNetwork, Variable
from tests.check.test_tokens import changed

Build = Callable[[ProgramBuilder], Variable]
MEAN: Build = lambda p: p.mean(p.tokens == "b", p.indices, default=2).map(lambda m: m > 1)  # noqa: E731
COUNT: Build = lambda p: p.count(p.tokens == "a")  # noqa: E731
STEP: Build = lambda p: p.count(p.tokens == "a").map(lambda c: "yn"[c != 1])  # noqa: E731
ANCHOR: Build = lambda p: p.count(p.tokens == "a").map(lambda c: c % 2)  # noqa: E731
GET: Build = lambda p: p.get(p.indices == p.indices.q - 1, p.tokens, default="-")  # noqa: E731
LAST: Build = lambda p: p.get(p.tokens == "a", p.indices, default=0, tie="last")  # noqa: E731


def compiled(build: Build, causal: bool = False, size: int = 2) -> TokenNetwork:
    p = tokens.program("abc"[:size], 3, causal)
    return p.compile(build(p))


def refused(net: TokenNetwork, numbers: TokenNumbers, program: TokenProgram | None = None) -> str:
    with pytest.raises(CheckError) as problem:
        prove_tokens(program or net.program, numbers)
    return str(problem.value)


def coordinate(net: TokenNetwork, name: str) -> int:
    return net.coordinates.index(name)


def change(
    net: TokenNetwork, layer: int | None, name: str, at: tuple[int, ...], value: float, times: bool = False
) -> TokenNumbers:
    def put(array: Any) -> None:
        array[at] = array[at] * value if times else value

    return changed(net.numbers(), layer, name, put)


@pytest.mark.parametrize("build", [MEAN, COUNT, STEP, ANCHOR, GET, LAST])
def test_bos_must_attend_to_itself_unless_a_mask_makes_it(build: Build) -> None:
    """Its query at BOS is 0: BOS mixes with other keys."""
    for causal in (False, True):
        net = compiled(build, causal)
        query = net.numbers().layers[0].query[0]
        at, bos = coordinate(net, "bos"), net.numbers().tokens[-1] + net.numbers().positions[0]
        rest = bos @ query - query[at]

        def clear(array: Any, at: int = at, rest: Any = rest) -> None:
            array[0, at] = -rest

        other = changed(net.numbers(), 0, "query", clear)
        if causal:
            prove_tokens(net.program, other)
        else:
            assert "BOS" in refused(net, other)


@pytest.mark.parametrize(("dtype", "large"), [(torch.float32, 3e38), (torch.float64, 1.7e308)])
def test_the_score_of_bos_is_finite_in_causal_programs_too(dtype: torch.dtype, large: float) -> None:
    """Its query is finite, its score overflows: the weight of BOS to itself is NaN, and so is all that reads BOS later."""
    p = tokens.program("abc", 4, causal=True)
    previous = p.get(p.indices == p.indices.q - 1, p.tokens, default="-")
    net = p.compile(p.get(previous == p.tokens.q, p.tokens, default="-", tie="last"), dtype)
    bos = coordinate(net, "bos")

    def grow(query: Any) -> None:
        query[0, :, -1] /= 2
        query[0, bos, -1] = large

    def double(key: Any) -> None:
        key[0, bos, -1] = 2

    numbers = changed(changed(net.numbers(), 0, "key", double), 0, "query", grow)
    assert torch.isnan(TokenNetwork(numbers, net.program, None)(net.encode("abca"))).any()
    assert "overflow" in refused(net, numbers)


def test_a_vocabulary_of_numbers_need_not_be_sorted() -> None:
    """`prefer` takes the largest value, not the last place in the vocabulary."""
    p, q = (tokens.program([2, 0, 1], 3) for _ in range(2))
    by_value = p.compile(p.get(True, p.tokens, prefer=p.tokens, default=0, tie="last"))
    assert (
        by_value.run([2, 0])
        == p.interpret(p.get(True, p.tokens, prefer=p.tokens, tie="last"), [2, 0])
        == [2, 2]
    )
    by_place = q.compile(
        q.get(True, q.tokens, prefer=q.tokens.map([2, 0, 1].index), default=0, tie="last", name="place")
    )
    layer = by_place.numbers().layers[0]
    role = replace(layer.roles[0], node=by_value.program.output)
    numbers = replace(by_place.numbers(), layers=(replace(layer, roles=(role,)),))
    assert by_place.run([2, 0]) == [0, 0]
    assert "preferred" in refused(by_value, numbers)


def test_a_step_proves_nothing_of_a_node() -> None:
    """The program is undefined for sequences without a; a step that claims its selection does not make it defined."""
    p = tokens.program("ab", 3)
    other = p.compile(p.map(lambda t, i: t == "a" and i == 1, p.tokens, p.indices))
    nodes = (Token(), Index(), Get((Predicate(0, None, ((True, False),)),), 1), Map((2,), (7, 7, 7)))
    program = TokenProgram(("a", "b"), 3, False, nodes, ("token", "index", "", "out"), 3)
    numbers = other.numbers()
    numbers = replace(numbers, unembedding=np.ones((len(numbers.unembedding), 1)))
    assert "no head" in refused(other, numbers, program)
    with pytest.raises(InputError):
        HeadRole("a step", "step", 2)
    role = HeadRole("a step", "step")
    object.__setattr__(role, "node", 2)
    layers = tuple(replace(layer, roles=(role,) * len(layer.roles)) for layer in numbers.layers)
    assert "step" in refused(other, replace(numbers, layers=layers), program)


def test_a_coordinate_is_written_once() -> None:
    net = compiled(LAST)
    at = coordinate(net, "index=1")
    assert "twice" in refused(net, change(net, 0, "output", (0, 0, at), 1.0))


@pytest.mark.parametrize("side", [-1, 1])
def test_scores_of_a_step_keep_their_distance(side: int) -> None:
    """The threshold is moved towards one of its neighbours: the score there is too near 0, the other far away."""
    net = compiled(STEP, causal=True)
    one, query = coordinate(net, "one"), net.numbers().layers[1].query[0]
    sharpness = query[coordinate(net, "1/(1+count3)"), 0]
    middle = -query[one, 0] / sharpness
    counts = np.array([1 / (1 + c) for c in range(4)])
    near = counts[counts > middle].min() if side > 0 else counts[counts < middle].max()
    other = change(net, 1, "query", (0, one, 0), -sharpness * near + side * 60)
    assert "step" in refused(net, other)


def test_values_of_a_step_and_of_a_count_are_0_at_data() -> None:
    net = compiled(STEP, causal=True)
    at = coordinate(net, "token=a")
    assert "step" in refused(net, change(net, 1, "value", (0, at, 0), 1.0))
    assert "count" in refused(net, change(net, 0, "value", (0, at, 0), 1.0))
    assert "step" in refused(net, change(net, 1, "key", (0, at, 0), 1.0))


def test_ties_of_a_count_are_exact() -> None:
    net = compiled(COUNT)
    one = coordinate(net, "one")
    query = net.numbers().layers[0].query[0]
    column = int(np.flatnonzero(query[one])[0])
    assert "BOS" in refused(net, change(net, 0, "query", (0, one, column), float(query[one, column]) + 1))


def test_means_have_their_default_and_their_values() -> None:
    net = compiled(MEAN)
    bos, index = coordinate(net, "bos"), coordinate(net, "index=1")
    assert "default" in refused(net, change(net, 0, "value", (0, bos, 0), 3.0))
    assert "values" in refused(net, change(net, 0, "value", (0, index, 0), 3.0))


def test_selected_keys_tie_in_a_mean() -> None:
    """A key scores more at index 1: all distances hold, but the mean is not even."""
    net = compiled(lambda p: p.mean(True, p.indices).map(lambda m: m > 0))
    numbers = net.numbers()
    index, one = coordinate(net, "index=1"), coordinate(net, "one")
    layer = numbers.layers[0]
    wide = [np.concatenate([m, np.zeros((*m.shape[:2], 1))], 2) for m in (layer.query, layer.key)]
    wide[0][0, one, -1], wide[1][0, index, -1] = 128.0, 1.0
    wide[0][0, coordinate(net, "bos"), -1] = -128.0
    other = replace(numbers, layers=(replace(layer, query=wide[0], key=wide[1]), *numbers.layers[1:]))
    assert "same score" in refused(net, other)


def test_the_order_of_ties_is_that_of_the_program() -> None:
    net = compiled(LAST)
    nodes = list(net.program.nodes)
    node = nodes[net.program.output]
    assert isinstance(node, Get)
    for other, word in ((replace(node, tie="first"), "preferred"), (replace(node, tie=None), "two keys")):
        nodes[net.program.output] = other
        p = net.program
        assert word in refused(
            net, net.numbers(), TokenProgram(p.vocabulary, 3, False, tuple(nodes), p.names, p.output)
        )


def test_a_default_is_needed_unless_there_is_always_a_key() -> None:
    net = compiled(LAST)
    nodes = list(net.program.nodes)
    node = nodes[net.program.output]
    assert isinstance(node, Get)
    nodes[net.program.output] = replace(node, default=None)
    p = net.program
    assert "default" in refused(
        net, net.numbers(), TokenProgram(p.vocabulary, 3, False, tuple(nodes), p.names, p.output)
    )


def test_values_are_those_of_the_node() -> None:
    """The value also depends on the index: it is not a function of the token."""
    net = compiled(GET)
    at = coordinate(net, "index=0")
    assert "function" in refused(net, change(net, 0, "value", (0, at, 0), 1.0))


def test_logits_that_tie_are_refused() -> None:
    net = compiled(GET)
    at = coordinate(net, net.coordinates[-1])
    assert "logit" in refused(net, change(net, None, "unembedding", (at, 0), 1.0))


def test_whole_numbers_stay_below_the_limit() -> None:
    net = compiled(GET)

    def grow(array: Any) -> None:
        array *= 2.0**17

    assert "1/u" in refused(net, changed(net.numbers(), 0, "query", grow))
    p = tokens.program("ab", 3)
    stream = Stream(Meaning(p.program(p.tokens)), np.eye(3), np.zeros((4, 3)), ARITHMETIC["float32"])
    x = np.array([[2**12, 1]])
    assert stream.product(x, None, np.array([[2.0**12 - 1], [1.0]])).errors is None
    with pytest.raises(CheckError):
        stream.product(
            x, None, np.array([[2.0**12 - 1], [-(2.0**12)]])
        )  # the sum is small, its terms are not


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_of_products_contain_what_runs_and_are_not_wide(dtype: str) -> None:
    """x + e times a matrix, as torch computes it, against the error that the checker derives; zero slack."""
    p = tokens.program("ab", 3)
    stream = Stream(Meaning(p.program(p.tokens)), np.eye(3), np.zeros((4, 3)), ARITHMETIC[dtype])
    draw = np.random.default_rng(0)
    worst = 0.0
    for n in (1, 3, 17, 60):
        x, w = (draw.standard_normal(s).astype(dtype).astype(np.float64) for s in ((40, n), (n, 5)))
        moved = (x * (1 + stream.arithmetic.unit * 8 * draw.uniform(-1, 1, x.shape))).astype(dtype)
        exact = np.array([[Fraction(v) for v in row] for row in x.tolist()], dtype=object)
        errors = abs(
            np.array([[Fraction(v) for v in row] for row in moved.astype(np.float64).tolist()], dtype=object)
            - exact
        )
        forms = stream.product(exact, errors, w)
        run = (torch.from_numpy(moved) @ torch.from_numpy(w.astype(dtype))).double().numpy()
        assert forms.errors is not None
        off = abs(np.array([[Fraction(v) for v in row] for row in run.tolist()], dtype=object) - forms.values)
        assert (off <= forms.errors).all()
        worst = max(worst, max(float(a / b) for a, b in zip(off.ravel(), forms.errors.ravel(), strict=True)))
    assert worst > 0.3


def test_underflow_and_overflow_are_counted() -> None:
    p = tokens.program("ab", 3)
    stream = Stream(Meaning(p.program(p.tokens)), np.eye(3), np.zeros((4, 3)), ARITHMETIC["float32"])
    third = np.array([[Fraction(1, 3)]], dtype=object)
    tiny = stream.product(third, third * 0, np.array([[2.0**-126]]))
    assert tiny.errors is not None and tiny.errors[0, 0] >= Fraction(2.0**-126)
    with pytest.raises(CheckError, match="overflow"):
        stream.product(third, third * 0, np.array([[2.0**127]]) * 4)
