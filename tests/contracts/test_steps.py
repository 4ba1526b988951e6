"""Every kind of step that `compile` lowers is complete: an entry in every table, a proof, a file, a literal form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import attnc
from attnc import functions, program
from attnc.check import compose as checker
from attnc.check import execution
from attnc.lower.layers import COMPILED, LOWERINGS
from attnc.network import network
from attnc.network.pointwise import Pointwise as PointwiseModule
from attnc.program import (
    Affine,
    Attend,
    BatchNorm,
    Combine,
    Embed,
    Mix,
    Norm,
    Pointwise,
    Product,
    Program,
    Reshape,
    Scale,
    Step,
)  # fmt: skip
from attnc.prove import compose as prover
from attnc.records import layers, structure
from tests.sampled import every

TABLES: dict[str, Mapping[str, object]] = {
    "KINDS of program/__init__.py": program.KINDS,
    "KINDS of records/layers.py": layers.KINDS,
    "_STEPS of records/structure.py": structure._STEPS,
    "LOWERINGS of lower/layers.py": LOWERINGS,
    "KINDS of prove/compose.py": prover.KINDS,
    "KINDS of check/compose.py": checker.KINDS,
    "KINDS of check/execution.py": execution.KINDS,
    "_MODULES of network/network.py": {
        **network._MODULES,
        "pointwise": PointwiseModule,
        "product": network.ProductLayer,
    },
}
WEIGHT = np.array([[0.5, -0.25], [0.125, 1.0]])
ONE = np.ones(2)
STEPS = (
    Affine(0, WEIGHT),
    Pointwise(1, functions.tanh()),
    BatchNorm(2, 0.1 * ONE, 2.0 * ONE, ONE, -ONE, 1e-5),
    Combine((3, 0), (0.5, 1.0)),
    Reshape(4, (2, 1)),
    Reshape(5, (2,)),
)
TRANSFORMER = (
    Embed(0, np.array([[0.5, -0.25], [0.125, 1.0], [1.0, 0.75]])),
    Scale(1, np.ones((2, 2)), np.array([[0.0, 0.5], [0.25, 0.0]])),
    Norm(2, ONE, 0 * ONE, 0.1, False),
    Attend((3, 3, 3), 1, 0.5, np.tril(np.ones((2, 2)))),
    Product((3, 4)),
    Affine(5, WEIGHT),
    Mix(6, np.full((1, 2), 0.5)),
)
BOX, IDS = attnc.Box(-1, 1, shape=(2,)), attnc.Tokens(3, 2)
PROGRAMS = {"mlp": (Program((2,), STEPS), BOX), "transformer": (Program((2,), TRANSFORMER), IDS)}


@pytest.mark.parametrize("kind", COMPILED)
@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_the_kind(table: str, kind: str) -> None:
    assert kind in TABLES[table], f"{kind!r} is missing in {table}"


@pytest.mark.parametrize("kind", COMPILED)
def test_the_guard_of_the_front_end_knows_the_kind(kind: str) -> None:
    assert program.KINDS[kind].magnitude is not Step.magnitude


def test_every_kind_is_in_a_network() -> None:
    known = {step.kind for given, _ in PROGRAMS.values() for step in given.steps}
    assert known == set(COMPILED), "add the new kind of step to STEPS"


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", every(2, [torch.float32, torch.float64]), ids=str)
def test_a_network_of_all_kinds(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    given, domain = PROGRAMS[name]
    net = attnc.compile(given, domain=domain, eps=1e-3, dtype=dtype)
    assert {layer.kind for layer in net.numbers().layers} == {step.kind for step in given.steps}
    assert attnc.verify(net).status == "proved"
    net.save(tmp_path / "net.safetensors")
    loaded = attnc.load(tmp_path / "net.safetensors")
    x = torch.randint(0, 3, (64, 2)) if domain is IDS else 2 * torch.rand(64, 2, dtype=dtype) - 1
    assert attnc.verify(loaded).status == "proved" and torch.equal(loaded(x), net(x))
    literal = net.as_self_attention()
    assert attnc.verify(literal).status == "proved"
    assert torch.allclose(literal(x), net(x), atol=1e-5)
