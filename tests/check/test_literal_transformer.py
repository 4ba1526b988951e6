"""The checker of literal transformers: it proves what the matrices encode, and nothing about others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import attnc
from attnc.check.literal import encoding_error
from attnc.check.values import CheckError
from attnc.network.literal import SelfAttentionNetwork
from attnc.records.certificate import Status
from attnc.records.record import LiteralRecord
from tests.network.literal.examples import network

Change = Callable[[dict[str, Any], dict[str, Any]], object]


@cache
def literal(name: str = "tiny") -> SelfAttentionNetwork:
    return network(name).as_self_attention()


def encodes(record: LiteralRecord) -> bool:
    """Whether the matrices are proved to compute what the source computes."""
    assert record.source is not None
    try:
        return encoding_error(record, record.source) <= record.encoding
    except (CheckError, ArithmeticError, LookupError, ValueError):
        return False


@pytest.mark.parametrize("name", ["encoder", "six features"])
def test_transformers_are_proved(name: str) -> None:
    assert encodes(literal(name).record())


def test_the_verdict() -> None:
    net = literal()
    verdict = attnc.verify(net)
    assert verdict.status is Status.PROVED and verdict.bound == net.certificate.approximation
    assert net.certificate.status is Status.UNKNOWN and verdict.children[0].status is Status.PROVED


def step(word: str, letter: str) -> str:
    """A tensor of the first step that has it and whose name starts with a word."""
    tensors, order = literal().state_dict(), [(name, f"steps.{i}.{letter}") for name, i in literal().order]
    return next(tensor for name, tensor in order if name.startswith(word) and tensor in tensors)


def changed(tensor: str, at: tuple[int, ...], to: float | None = None) -> LiteralRecord:
    record = literal().record()
    array = record.tensors[tensor].copy()
    array[at] = np.nextafter(array[at], np.inf, dtype=array.dtype) if to is None else to
    assert not np.array_equal(array, record.tensors[tensor])
    return replace(record, tensors={**record.tensors, tensor: array})


LETTERS = [
    ("norm", "W_Q"),
    ("norm", "W_K"),
    ("norm", "W_V"),
    ("norm", "W_O"),
    ("attend", "W_Q"),
    ("attend", "W_K"),
]
LETTERS += [("attend", "W_V"), ("attend", "W_O"), ("product", "W_Q"), ("product", "W_O"), ("v2", "core")]


@pytest.mark.parametrize(("word", "letter"), LETTERS, ids=str)
def test_a_number_that_is_off_by_one_unit(word: str, letter: str) -> None:
    """The first number of a matrix that reads or writes a value, not one of a gate."""
    tensor, registers = step(word, letter), literal().layout
    array = literal().record().tensors[tensor]
    places = np.argwhere(array != 0)
    if letter in ("W_Q", "W_K"):
        held = range(registers["second key"].stop, registers.width)
        places = places[np.isin(places[:, -2], held)]
    assert not encodes(changed(tensor, tuple(int(i) for i in places[0])))


def test_starts_tables_and_anchors() -> None:
    net, record = literal(), literal().record()
    (embedding,) = (name for name in net.layout if name.endswith("embedding"))
    assert not encodes(changed("embeddings.0.W", (2, net.layout[embedding].start)))
    assert not encodes(changed("embeddings.0.start", (0, net.layout["y"].start), 0.5))
    (slope,) = (name for name in net.layout if name.startswith("product") and name.endswith("slope"))
    anchors = record.tensors["fixed"][:, net.layout[slope].start]
    assert not encodes(changed("fixed", (int(np.flatnonzero(anchors)[0]), net.layout[slope].start)))
    assert not encodes(changed("fixed", (0, net.layout["second key"].start), 0.0))
    assert not encodes(changed("embeddings.0.start", (0, net.layout["position"].start + 1), 1.0))


def bias_of_a_map(s: dict[str, Any], t: dict[str, Any]) -> None:
    t[step("v2", "bias")][literal().layout["y"].start] = 1e-9


def open_gates(word: str) -> Change:
    """All gates of a layer removed."""

    def change(s: dict[str, Any], t: dict[str, Any]) -> None:
        w_q = t[step(word, "W_Q")]
        w_q[np.abs(w_q) > 2.0**60] = 0.0

    return change


def open_one(word: str) -> Change:
    """One gate of the first head opened."""

    def change(s: dict[str, Any], t: dict[str, Any]) -> None:
        w_q = t[step(word, "W_Q")]
        at = np.argwhere(np.abs(w_q[0]) > 2.0**60)
        position = literal().layout["position"]
        chosen = next(i for i in at if position.start <= i[0] < position.stop)
        w_q[0, chosen[0], chosen[1]] = 0.0

    return change


def swapped_steps(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["order"][2], s["order"][3] = s["order"][3], s["order"][2]


def repeated_step(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["order"].append(["again", s["order"][-1][1]])


def other_output(s: dict[str, Any], t: dict[str, Any]) -> None:
    names = [name for name, width in s["layout"]["registers"] if width == 2 and name != "y"]
    s["output"][0] = names[-1]


def moved_register(s: dict[str, Any], t: dict[str, Any]) -> None:
    registers = s["layout"]["registers"]
    i = [name for name, _ in registers].index("y")
    registers[i - 1], registers[i] = registers[i], registers[i - 1]


def fewer_ids(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["inputs"][0]["ids"] = s["inputs"][0]["width"] = 2
    t["embeddings.0.W"] = t["embeddings.0.W"][:2]


def numbers_for_ids(s: dict[str, Any], t: dict[str, Any]) -> None:
    del s["inputs"][0]["ids"]


def other_keys(s: dict[str, Any], t: dict[str, Any]) -> None:
    """The keys of the norm read another register."""
    w_k = t[step("norm", "W_K")]
    w_k[0] = np.roll(w_k[0], 2, axis=0)


FORGERIES: list[Change] = [
    bias_of_a_map, open_gates("attend"), open_one("norm"), swapped_steps, repeated_step, other_output, moved_register, fewer_ids,
    numbers_for_ids, other_keys,
]  # fmt: skip


@pytest.mark.parametrize("change", FORGERIES)
def test_forgeries(change: Change) -> None:
    record = literal().record()
    structure = copy.deepcopy(dict(record.structure))
    tensors = {name: array.copy() for name, array in record.tensors.items()}
    change(structure, tensors)
    assert not encodes(replace(record, structure=structure, tensors=tensors))


def test_gates_that_are_too_weak() -> None:
    """A closed token must score lower by more than exp can represent, for every input: here it does so for most."""
    record = literal().record()
    tensors = {name: array.copy() for name, array in record.tensors.items()}
    w_q = tensors[step("norm", "W_Q")]
    w_q[np.abs(w_q) > 2.0**60] *= 2.0**-92
    assert not encodes(replace(record, tensors=tensors))
