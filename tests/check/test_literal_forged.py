"""Literal networks whose matrices or structure do not encode their source: the checker proves none of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnc
from attnc.check.literal import check_literal
from attnc.check.symbolic import ONE, Exact
from attnc.errors import AttncError
from attnc.network.literal import SelfAttentionNetwork
from attnc.records.certificate import Status, Verdict
from attnc.records.fields import seal
from attnc.records.files import read_file, write_file
from attnc.records.record import LiteralRecord
from tests.check.test_literal import literal

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def forged(name: str, change: Change) -> LiteralRecord:
    """The record of a literal network after `change(structure, tensors)`."""
    record = literal(name).record()
    structure, tensors = (
        copy.deepcopy(dict(record.structure)),
        {k: a.copy() for k, a in record.tensors.items()},
    )
    change(structure, tensors)
    return replace(record, structure=structure, tensors=tensors)


def joined_twice(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["embeddings"][0]["reads"] = [0, 0]
    extra = np.zeros_like(t["embeddings.0.W"])
    extra[0, literal("tanh").layout["y"]] = 1000.0
    t["embeddings.0.W"] = np.concatenate([t["embeddings.0.W"], extra])


def read_twice(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["embeddings"][0]["reads"] = [0, 0]


def more_rows(s: dict[str, Any], t: dict[str, Any]) -> None:
    t["embeddings.0.W"] = np.repeat(t["embeddings.0.W"], 2, 0)


def broadcast_start(s: dict[str, Any], t: dict[str, Any]) -> None:
    t["embeddings.0.start"] = np.repeat(t["embeddings.0.start"][:1], 3, 0)


def zero_column(s: dict[str, Any], t: dict[str, Any]) -> None:
    """A coordinate that is 0 in all tokens: softmax makes it 1/m, and the last map adds 1000 times that."""
    (first, second), (m, e) = (2, 4), s["steps"][2]["out_shape"]
    s["steps"][first]["out_shape"], s["steps"][second]["in_shape"] = [m, e + 1], [m, e + 1]
    for name in (f"steps.{first}.rows", f"steps.{second}.columns"):
        t[name] = t[name] // e * (e + 1) + t[name] % e
    t[f"steps.{first}.bias"] = np.pad(t[f"steps.{first}.bias"].reshape(m, e), ((0, 0), (0, 1))).ravel()
    core = t[f"steps.{second}.core"]
    t[f"steps.{second}.columns"] = np.append(t[f"steps.{second}.columns"], e)
    t[f"steps.{second}.core"] = np.concatenate([core, np.full((len(core), 1), 1000.0)], 1)


def register_of_another_layout(s: dict[str, Any], t: dict[str, Any]) -> None:
    last, (m, e) = 4, s["steps"][4]["out_shape"]
    s["steps"][last]["out_shape"] = [m, e + 1]
    t[f"steps.{last}.rows"] = t[f"steps.{last}.rows"] // e * (e + 1) + t[f"steps.{last}.rows"] % e + 1
    bias = np.pad(t[f"steps.{last}.bias"].reshape(m, e), ((0, 0), (1, 0)), constant_values=1000.0)
    t[f"steps.{last}.bias"] = bias.ravel()
    s["steps"][last]["layout"]["registers"] = [["junk", 1], ["r", e]]
    s["output"][0] = "r"


def name_twice(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["layout"]["registers"][-1][0] = "y"


def unknown_register(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["output"][0] = "z"


def narrow_registers(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["layout"]["registers"] = [r for r in s["layout"]["registers"] if r[0] == "y"]


def narrow_values(s: dict[str, Any], t: dict[str, Any]) -> None:
    """einsum broadcasts an axis of size 1."""
    t["steps.0.W_O"] = np.repeat(t["steps.0.W_O"], 2, 1)


def other_axis(s: dict[str, Any], t: dict[str, Any]) -> None:
    s["steps"][0]["axis"] = -2


def row_twice(s: dict[str, Any], t: dict[str, Any]) -> None:
    t["steps.0.rows"] = np.append(t["steps.0.rows"], t["steps.0.rows"][-1:])
    t["steps.0.core"] = np.append(t["steps.0.core"], t["steps.0.core"][-1:], 0)


def other_width(s: dict[str, Any], t: dict[str, Any]) -> None:
    n, d = s["steps"][2]["in_shape"]
    s["steps"][2]["in_shape"] = [n, d + 1]


FORGED: list[tuple[str, Change]] = [
    *(
        ("tanh", f)
        for f in (joined_twice, read_twice, more_rows, broadcast_start, name_twice, unknown_register)
    ),
    *(("tanh", f) for f in (narrow_registers, narrow_values, other_axis)),
    *(("attention-softmax", f) for f in (zero_column, register_of_another_layout, row_twice, other_width)),
]


@pytest.mark.parametrize(("name", "change"), FORGED, ids=lambda x: getattr(x, "__name__", x))
def test_what_does_not_encode_the_source_is_not_proved(name: str, change: Change) -> None:
    assert check_literal(forged(name, lambda s, t: None)).status is Status.PROVED
    assert check_literal(forged(name, change)).status is Status.UNKNOWN


def test_weights_times_different_inputs_add_up() -> None:
    """|w(a + b)| may be 2 if |a|, |b| <= 1; weights of one softmax share a sum of 1."""
    exact, one = Exact([Fraction(-1)] * 2, [Fraction(1)] * 2, "float64"), Fraction(1)
    u, v = exact.softmax([{("input", 0): one}, {ONE: one}], None)
    a, b = ({("input", i): one} for i in range(2))
    assert exact.size(exact.product(u, exact.sum([(one, a), (one, b)]))) == 2
    assert exact.size(exact.sum([(one, exact.product(u, a)), (one, exact.product(v, a))])) == 1
    assert exact.size(exact.sum([(one, u), (one, v)])) == 1


HOSTILE: list[Any] = [None, True, 0, -1, 1e308, "x", [], {}, [[]], [3, 5], {"a": 1}, 10**400]
PLACES = [
    *(
        ("inputs",),
        ("inputs", 0),
        ("inputs", 0, "shape"),
        ("inputs", 0, "width"),
        ("embeddings",),
        ("output",),
    ),
    *(
        ("output", 0),
        ("output", 1),
        ("order",),
        ("order", 0),
        ("order", 0, 1),
        ("layout",),
        ("layout", "registers"),
    ),
    *(
        ("layout", "registers", 0),
        ("layout", "registers", 0, 1),
        ("steps",),
        ("steps", 0),
        ("steps", 0, "kind"),
    ),
    *(("steps", 0, "shared"), ("steps", 0, "axis"), ("form",)),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda p: ".".join(map(str, p)))
def test_a_structure_of_other_types_is_refused(
    place: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnc.check.literal.check_alone", lambda *given: Verdict(Status.PROVED, ""))
    path = tmp_path / "net.safetensors"
    literal("tanh").save(path)
    about, tensors = read_file(path)
    for value in HOSTILE:
        body = copy.deepcopy({k: v for k, v in about.items() if k != "seal"})
        inside = body["structure"]
        for key in place[:-1]:
            inside = inside[key]
        if inside[place[-1]] == value:
            continue
        inside[place[-1]] = value
        write_file(path, tensors, {**body, "seal": seal(body)})
        for read in (attnc.load, attnc.verify):
            try:
                found: Any = read(path)
            except AttncError:
                continue
            named = place == ("form",) or read is attnc.load
            assert named or found.status is Status.UNKNOWN, value


def live() -> SelfAttentionNetwork:
    return attnc.head("relu", domain=(-8, 8), eps=1e-3).as_self_attention(2)


def test_a_live_change_is_noticed() -> None:
    net = live()
    net.layers[0].pattern.axis = -2
    assert net.why_not_certified() is not None and not attnc.verify(net)
    net = live()
    net.certificate = replace(net.certificate, approximation=1e-30)
    assert net.why_not_certified() is not None and not attnc.verify(net)
    net = live()
    net.strict = torch.float16  # type: ignore[assignment]
    assert net.why_not_certified() is not None and not attnc.verify(net)
