"""The token tasks of the zoo against references by numpy, and against their programs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import attnc
from attnc import zoo
from attnc.errors import InputError
from attnc.records.fields import round_up
from attnc.tokens import TokenNetwork
from tests.network.executed import impurities
from tests.zoo.references import REFERENCES, batches, wrong

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "zoo.md").read_text(encoding="utf-8")
SHORT = {"dyck-1": 8, "parity": 8, "dyck-2": 4, "random-table": 3, "add-mod-113": 1}
LAYERS = {
    "copy-previous": [1], "reverse": [1, 1], "histogram": [1], "double-histogram": [1, 1, 1], "sort": [2, 2, 8, 1],
    "induction": [1, 1], "dyck-1": [2, 3, 1], "dyck-2": [3, 4, 9, 1, 5, 1], "add-mod-7": [1, 1], "add-mod-113": [1, 1],
    "parity": [1, 1], "most-frequent": [1, 1, 1], "random-table": [1, 29],
}  # fmt: skip


@pytest.fixture(scope="module")
def nets() -> dict[str, TokenNetwork]:
    return {name: zoo.load(name) for name in zoo.names("tokens")}


def test_every_task_has_a_reference() -> None:
    assert set(REFERENCES) == set(zoo.names("tokens")) == set(LAYERS)


@pytest.mark.parametrize("name", zoo.names("tokens"))
def test_all_short_sequences_are_right(name: str, nets: dict[str, TokenNetwork]) -> None:
    net, task = nets[name], zoo.about(name)
    assert net.certificate.proved and net.certificate.facts["layers"] == LAYERS[name]
    assert net.why_not_certified() is None
    longest = min(task.length, SHORT.get(name, 5))
    assert sum(wrong(net, REFERENCES[name], X) for X in batches(task.vocabulary, longest)) == 0
    X = np.random.default_rng(0).integers(0, task.vocabulary, (200, task.length))
    assert wrong(net, REFERENCES[name], X) == 0


@pytest.mark.parametrize("name", zoo.names("tokens"))
def test_examples_are_those_of_the_interpreter(name: str, nets: dict[str, TokenNetwork]) -> None:
    task, (p, output) = zoo.about(name), zoo.program(name)
    assert nets[name].run(task.tokens) == p.interpret(output, task.tokens)


def test_only_softmax_is_nonlinear(nets: dict[str, TokenNetwork]) -> None:
    net = nets["reverse"]
    assert impurities(net, net.encode("abc")) == []


@pytest.mark.parametrize("name", [n for n in zoo.names("tokens") if n != "add-mod-113"])
def test_float64_is_proved_too(name: str) -> None:
    net = zoo.load(name, torch.float64)
    assert net.certificate.proved and net.certificate.dtype == "float64"
    X = np.random.default_rng(1).integers(0, len(net.vocabulary), (100, net.program.length))
    assert wrong(net, REFERENCES[name], X) == 0


def test_other_sizes() -> None:
    net = zoo.load("sort", vocabulary=3, length=5)
    assert (len(net.vocabulary), net.program.length) == (3, 5)
    assert sum(wrong(net, REFERENCES["sort"], X) for X in batches(3, 5)) == 0


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("induktion", {}), (3, {}), ("sort", {"vocabulary": 27}), ("parity", {"vocabulary": 3}), ("sort", {"length": 0}),
        ("add-mod-7", {"vocabulary": 5}), ("add-mod-113", {"vocabulary": 114}),
        ("sort", {"length": 2.0}),
    ],
)  # fmt: skip
def test_bad_requests(name: str, sizes: dict[str, int]) -> None:
    with pytest.raises(InputError):
        zoo.load(name, **sizes)


@pytest.mark.parametrize(
    ("name", "sizes", "written"),
    [
        ("add-mod-7", {"vocabulary": 97}, "zoo.about('add-mod-7').build(range(97), 2)"),
        ("add-mod-97", {}, "zoo.about('add-mod-7').build(range(97), 2)"),
        ("sort", {"vocabulary": 40, "length": 5}, "zoo.about('sort').build([…], 5)"),
    ],
)
def test_other_tokens_are_possible_by_the_program(name: str, sizes: dict[str, int], written: str) -> None:
    with pytest.raises(InputError) as raised:
        zoo.load(name, **sizes)
    assert written in str(raised.value)
    p, output = zoo.about("add-mod-7").build(range(5), 2)
    assert p.compile(output).run([4, 3]) == [4, 2]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[] if name.endswith(("context", "newton", "convolution")) else [pytest.mark.slow]
        )
        for name in zoo.names("continuous")
    ],
)
def test_continuous_models_are_certified(name: str) -> None:
    model = zoo.load(name)
    assert model.certificate.status == "proved"
    assert zoo.about(name).mechanism
    (shown,) = re.findall(rf"\| \[{name}\].* \| proved \| (\S+) \|", PAGE)
    assert float(shown) == round_up(model.certificate.bound, 3)
    with pytest.raises(InputError):
        zoo.load(name, length=3)
    with pytest.raises(InputError):
        zoo.program(name)


def test_convolution_convolves() -> None:
    x = torch.tensor([0.5, -1, 0, 0, 1, 0, 0.25, 1], dtype=torch.float64).reshape(1, 8, 1)
    net = zoo.load("convolution")
    ends = torch.nn.functional.pad(x.flatten(), (1, 1))
    expected = ends[:-2] / 4 + ends[1:-1] / 2 + ends[2:] / 4
    assert (net(x).flatten() - expected).abs().max() <= net.certificate.bound <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", zoo.names("tokens"))
def test_all_sequences(name: str, dtype: torch.dtype) -> None:
    net, task = zoo.load(name, dtype), zoo.about(name)
    assert sum(wrong(net, REFERENCES[name], X) for X in batches(task.vocabulary, task.length)) == 0


@pytest.mark.parametrize(
    ("name", "size", "length"),
    [("histogram", 8, 32), ("parity", 2, 64), ("induction", 8, 16), ("sort", 4, 16)],
)
def test_certificates_at_length(name: str, size: int, length: int) -> None:
    net = zoo.load(name, vocabulary=None if name == "parity" else size, length=length)
    assert attnc.verify(net)
    X = np.random.default_rng(2).integers(0, size, (64, length))
    assert wrong(net, REFERENCES[name], X) == 0


def test_texts_have_no_markup() -> None:
    """The command line and the explorer show them as they are."""
    for name in zoo.names():
        about = zoo.about(name)
        assert not set("*_`") & set(about.computes + about.mechanism), name
