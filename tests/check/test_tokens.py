"""The checker of token networks: mutants, forged certificates, and each rule on its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import attnc
from attnc import tokens, zoo
from attnc.check.tokens import check_tokens, prove_tokens
from attnc.check.values import CheckError
from attnc.domain import Sequences
from attnc.errors import InputError
from attnc.program.tokens import Map
from attnc.records.certificate import Status
from attnc.records.tokens import MATRICES, TokenNumbers
from attnc.tokens import TokenNetwork
from tests.zoo.references import REFERENCES, all_sequences, wrong

SIZES = {
    "histogram": (3, 3),
    "induction": (3, 4),
    "sort": (3, 3),
    "most-frequent": (3, 3),
    "reverse": (3, 4),
    "parity": (2, 5),
}


def small(name: str) -> TokenNetwork:
    size, length = SIZES[name]
    return zoo.load(name, vocabulary=None if name == "parity" else size, length=length)


def accepted(net: TokenNetwork, numbers: TokenNumbers) -> bool:
    try:
        prove_tokens(net.program, numbers)
    except CheckError:
        return False
    return True


def changed(
    numbers: TokenNumbers, layer: int | None, name: str, change: Callable[[Any], None]
) -> TokenNumbers:
    """The numbers with one array changed in place."""
    array = np.array(getattr(numbers if layer is None else numbers.layers[layer], name))
    change(array)
    array = array.astype(numbers.dtype).astype(np.float64)
    if layer is None:
        return replace(numbers, **{name: array})
    layers = list(numbers.layers)
    layers[layer] = replace(layers[layer], **{name: array})
    return replace(numbers, layers=tuple(layers))


@pytest.mark.parametrize("name", SIZES)
def test_no_mutant_that_is_wrong_is_accepted(name: str) -> None:
    net, draw = small(name), random.Random(name)
    numbers, (size, length) = net.numbers(), SIZES[name]
    places: list[tuple[int | None, str]] = [(None, n) for n in ("tokens", "positions", "unembedding")]
    places += [(i, n) for i in range(len(numbers.layers)) for n in MATRICES]
    harmful = taken = 0
    for _ in range(25):
        layer, part = draw.choice(places)
        array = getattr(numbers if layer is None else numbers.layers[layer], part)
        at = tuple(draw.choice(np.argwhere(array).tolist()))
        factor = draw.choice((-1, 0, 0.5, 2, 1.25))

        def scale(array: Any, at: Any = at, factor: float = factor) -> None:
            array[at] *= factor

        other = changed(numbers, layer, part, scale)
        broken = TokenNetwork(other, net.program, None)
        bad = any(wrong(broken, REFERENCES[name], all_sequences(size, n)) for n in range(1, length + 1))
        ok = accepted(net, other)
        harmful, taken = harmful + bad, taken + ok
        assert not (ok and bad), (layer, part, at, factor)
    assert harmful >= 5


def test_harmless_changes_are_accepted() -> None:
    net = small("induction")

    def double(array: Any) -> None:
        array *= 2

    assert accepted(net, changed(net.numbers(), 1, "query", double))
    assert accepted(net, changed(net.numbers(), None, "unembedding", double))


@pytest.mark.parametrize("name", SIZES)
def test_gaps_below_the_assumption_are_not_accepted(name: str) -> None:
    """At half the scores most losing keys do not vanish by assumption, though many would on this machine."""
    net = small(name)

    def halve(array: Any) -> None:
        array *= 0.49

    assert not accepted(net, changed(net.numbers(), 0, "query", halve))


def test_roles_are_claims() -> None:
    net = small("sort")
    numbers = net.numbers()
    first, last = numbers.layers[0], numbers.layers[-1]
    swapped = replace(first, roles=(first.roles[1], first.roles[0]))
    assert not accepted(net, replace(numbers, layers=(swapped, *numbers.layers[1:])))
    with pytest.raises(InputError):
        replace(last.roles[0], node=None)
    for role in (replace(last.roles[0], kind="step", node=None), replace(last.roles[0], node=99)):
        assert not accepted(
            net, replace(numbers, layers=(*numbers.layers[:-1], replace(last, roles=(role,))))
        )


def test_another_program_is_not_accepted() -> None:
    net = small("parity")
    nodes = list(net.program.nodes)
    last = nodes[net.program.output]
    assert isinstance(last, Map)
    nodes[net.program.output] = replace(last, table=tuple(1 - int(v) for v in last.table))  # type: ignore[arg-type]
    other = tokens.TokenProgram((0, 1), 5, True, tuple(nodes), net.program.names, net.program.output)
    with pytest.raises(CheckError):
        prove_tokens(other, net.numbers())


def test_causality_is_part_of_the_program() -> None:
    net = small("induction")
    p = net.program
    other = tokens.TokenProgram(p.vocabulary, p.length, False, p.nodes, p.names, p.output)
    numbers = net.numbers()
    truth = TokenNetwork(numbers, other, None)
    agrees = all(truth.run("abab"[:n]) == net.run("abab"[:n]) for n in (1, 2, 3, 4))
    assert not agrees
    assert accepted(
        TokenNetwork(numbers, other, None), numbers
    )  # the same matrices compute the other program


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: replace(c, holds_for=Sequences(3, 5)),
        lambda c: replace(c, holds_for=None),
        lambda c: replace(c, dtype="float64"),
        lambda c: replace(c, facts={**c.facts, "margin": 2.0}),
        lambda c: replace(c, facts={**c.facts, "states": 10**12}),
        lambda c: replace(c, facts={**c.facts, "layers": [1]}),
        lambda c: replace(c, facts={**c.facts, "program": "0"}),
        lambda c: replace(c, digests={**c.digests, "tokens": "0"}),
        lambda c: replace(c, rounding=0.5, bound=0.5),
        lambda c: replace(c, children=(c,)),
    ],
)
def test_forged_certificates_are_not_confirmed(forge: Callable[[Any], Any]) -> None:
    net = small("induction")
    assert check_tokens(net.program, net.numbers(), net.certificate).status is Status.PROVED
    assert check_tokens(net.program, net.numbers(), forge(net.certificate)).status is Status.UNKNOWN


def test_whole_numbers_beyond_the_dtype_are_refused() -> None:
    p = tokens.program(range(3), max_len=4)
    big = p.tokens.map(lambda t: 20_000 * t)
    output = p.get(True, p.tokens, prefer=big, tie="last")
    with pytest.raises(InputError, match="float64"):
        p.compile(output)
    assert p.compile(output, torch.float64).certificate.proved


def test_settings_of_torch_are_noticed() -> None:
    net = small("histogram")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert net.why_not_certified() is not None
        assert attnc.verify(net).status is Status.UNKNOWN
    finally:
        torch.set_float32_matmul_precision(before)
    assert attnc.verify(net)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e-40])
def test_numbers_that_are_not_allowed(bad: float) -> None:
    net = small("histogram")

    def spoil(array: Any) -> None:
        array.flat[0] = bad

    with pytest.raises(InputError):
        changed(net.numbers(), None, "unembedding", spoil)
