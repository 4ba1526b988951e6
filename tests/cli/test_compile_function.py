"""`attnc compile` of functions, and what `show` and `verify` say where the error is measured, or proved of a lookup."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnc
from attnc.records.certificate import Certificate
from attnc.records.fields import at_most
from tests.plot.unproved_networks import fitted_network, grid_network, lattice_network

from .checks import flip, refused, words

ASKED = ("--domain", -1, 1, "--eps", 1e-2, "--json")
FUNCTIONS = """
import functools
import torch
from torch import nn
def wave(x): return torch.exp(torch.sin(2 * x))
def waves(x, scale=2.0): return scale * x
def make(): return wave
def make_later(loud=False): return lambda x: x
def make_builtin(): return torch.sin
part = functools.partial(torch.clamp, min=0.0)
builtin = torch.tanh
def needs_word(x, *, word): return x
class Callable:
    def __call__(self, x): return x
thing = Callable()
def make_number(): return 3
def make_two(): return lambda x, y: x
def fails(x): raise RuntimeError("no such wave")
def slow(x): return x.sin()
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
"""
Write = Callable[[str], str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What reaches the compiler, which returns a measured network."""
    wishes: dict[str, Any] = {}

    def spy(model: Any, **given: Any) -> attnc.Network:
        wishes.clear()
        wishes.update(given, model=model)
        return lattice_network()

    monkeypatch.setattr(attnc, "compile", spy)
    return wishes


@pytest.mark.parametrize(
    ("name", "value"),
    [("wave", 2.479), ("waves", 1.0), ("make", 2.479), ("make_later", 0.5), ("make_builtin", 0.479), ("part", 0.5),
     ("builtin", 0.462), ("thing", 0.5)],
)  # fmt: skip
def test_a_function_and_what_returns_one(
    run: Any, module: Write, asked: dict[str, Any], name: str, value: float
) -> None:
    """What needs an argument is the function; what needs none is called for it."""
    if name in ("wave", "make"):
        value = float(torch.exp(torch.sin(torch.tensor(1.0))))
    assert run("compile", f"{module(FUNCTIONS)}:{name}", "--shape", "3,1", *ASKED).code == 1
    assert asked["domain"] == attnc.Box(-1, 1, shape=(3, 1))
    assert float(asked["model"](torch.tensor(0.5))) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("needs_word", ("needs_word(x, *, word)",)),
        ("make_two", ("make_two(x, y)",)),
        ("make_number", ("torch.nn.Module", "int")),
        ("Callable", (":Callable",)),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_what_is_no_function_of_a_tensor(run: Any, module: Write, name: str, said: tuple[str, ...]) -> None:
    refused(run("compile", f"{module(FUNCTIONS)}:{name}", *ASKED), "InputError", *said)


@pytest.mark.usefixtures("no_work")
def test_a_function_needs_a_shape(run: Any, module: Write) -> None:
    name = module(FUNCTIONS)
    for wanted in ("wave", "make", "builtin"):
        refused(run("compile", f"{name}:{wanted}", *ASKED), "InputError", "--shape", "3,1")
    lists = ("--domain", "0,0", "1,1", "--eps", 1, "--json")
    refused(run("compile", f"{name}:wave", *lists), "InputError", "--shape", "3,1")


def test_every_option_reaches_the_compiler(run: Any, module: Write, asked: dict[str, Any]) -> None:
    name = module(FUNCTIONS)
    options = (
        "--form",
        "attention-softmax",
        "--method",
        "grid",
        "--lipschitz",
        2.5,
        "--tokens",
        2,
        "--seed",
        9,
    )
    assert run("compile", f"{name}:wave", "--shape", "3,1", *options, *ASKED).code == 1
    passed = {"form": "attention-softmax", "method": "grid", "lipschitz": 2.5, "tokens": 2, "seed": 9}
    assert {key: asked[key] for key in passed} == passed
    assert run("compile", f"{name}:wave", "--shape", "3,1", *ASKED).code == 1
    assert not set(passed) & set(asked), "what is not given is left to the compiler"
    assert run("compile", f"{name}:net", "--form", "two-layer", *ASKED).code == 1
    assert asked["form"] == "two-layer"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--form", "three-layer"), "--form three-layer"),
        (("--method", "guess"), "--method guess"),
        (("--lipschitz", "-1"), "--lipschitz -1"),
        (("--lipschitz", "nan"), "--lipschitz nan"),
        (("--lipschitz", "inf"), "--lipschitz inf"),
        (("--lipschitz", "1", "--noise", "-1"), "--noise -1"),
        (("--tokens", "0"), "--tokens 0"),
        (("--seed", "-1"), "--seed -1"),
    ],
)
def test_options_that_make_no_sense(run: Any, module: Write, options: tuple[str, ...], said: str) -> None:
    source = f"{module(FUNCTIONS)}:wave"
    refused(run("compile", source, "--shape", "3,1", *options, *ASKED), "InputError", said)


@pytest.mark.usefixtures("no_work")
def test_the_values_of_a_file_of_weights_need_not_be_found(run: Any, weights: Path) -> None:
    options = ("--activation", "tanh", "--method", "fit", "--seed", 3)
    refused(run("compile", weights, *options, *ASKED), "InputError", "--method", "--seed")


def never_proved(text: str) -> None:
    """Nothing in it calls |network - f| proved: every 'proved' is denied, or of a fitted network."""
    for found in re.finditer(r"proved", text):
        around = text[max(0, found.start() - 60) : found.end() + 60]
        assert "not proved" in around or "fitted" in around, around


@pytest.mark.parametrize("make", [lattice_network, fitted_network])
def test_what_is_only_measured_is_told_and_no_success(
    run: Any, module: Write, monkeypatch: pytest.MonkeyPatch, make: Any, tmp_path: Path
) -> None:
    net, path = make(), tmp_path / "net.safetensors"
    monkeypatch.setattr(attnc, "compile", lambda *_, **__: net)
    source = (f"{module(FUNCTIONS)}:wave", "--shape", "2,1", "--domain", -1, 1, "--eps", 1)
    table = run("compile", *source, "-o", path)
    machine = run("compile", *source, "--json")
    assert (table.code, table.err, machine.code, machine.err) == (1, "", 1, "")
    text = words(table.out)
    assert str(net.certificate) in table.out and "measured" in str(net.certificate)
    assert all(note in text for note in net.notes)
    never_proved(text)
    record = machine.json
    assert record["status"] == "measured"
    assert Certificate.from_json(record["certificate"]) == net.certificate
    assert (record["form"], record["layout"]) == (net.form, net.layout)
    assert (record["theorem"], record["notes"]) == (None, list(net.notes))
    assert attnc.load(path).certificate == net.certificate, "it is written all the same"


def test_the_layers_of_a_fitted_network_say_against_what(run: Any, tmp_path: Path) -> None:
    path, net = tmp_path / "net.safetensors", fitted_network()
    net.save(path)
    ran = run("show", path, "--json")
    assert ran.code == 1
    known = Certificate.from_json(ran.json["certificate"]).claims
    assert known is not None and known == net.certificate.claims
    assert at_most(known.children[0].bound) in run("show", path).out


@pytest.mark.parametrize("make", [lattice_network, fitted_network])
def test_verify_does_not_prove_what_was_measured(run: Any, make: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    make().save(path)
    table, machine = run("verify", path), run("verify", path, "--json")
    assert (table.code, table.err, machine.code, machine.err) == (1, "", 1, "")
    assert machine.json["status"] == "unknown" and "measured" in machine.json["reason"]
    never_proved(words(table.out))


def test_show_of_what_was_measured(run: Any, tmp_path: Path) -> None:
    path, net = tmp_path / "net.safetensors", lattice_network()
    net.save(path)
    table, machine = run("show", path), run("show", path, "--json")
    assert (table.code, machine.code) == (1, 1)
    record = machine.json
    assert record["status"] == "measured" and "measured" in record["reason"]
    assert Certificate.from_json(record["certificate"]) == net.certificate
    assert "99 lattice 11 × 9" in table.out
    never_proved(words(table.out))


def test_a_measured_file_that_was_changed(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    lattice_network().save(path)
    flip(path, "stages.1.values")
    table, machine = run("show", path), run("show", path, "--json")
    assert "stages.1.values" in table.out and "<=" not in table.out
    assert machine.json["status"] == "unknown" and "stages.1.values" in machine.json["reason"]


def test_a_proved_lookup(run: Any, tmp_path: Path) -> None:
    path, net = tmp_path / "net.safetensors", grid_network()
    net.save(path)
    table, machine = run("show", path), run("show", path, "--json")
    assert (table.code, machine.code) == (0, 0)
    text = words(table.out)
    assert all(word in text for word in ("441 points", "attention_softmax", "0.2"))
    record = machine.json
    assert Certificate.from_json(record["certificate"]) == net.certificate
    assert record["theorem"] == {
        "name": "attention_softmax", "statement": "|Attn - f| <= K·radius + leak", "bound": 0.2,
    }  # fmt: skip
    assert record["certificate"]["bound"] == 0.1 * 2**0.5 and at_most(0.1 * 2**0.5) in table.out
    assert record["form"] == "attention-softmax"


def test_a_changed_measured_network_is_not_called_measured(
    run: Any, module: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = copy.deepcopy(lattice_network())
    net.selections[0].values.data[0, 0] += 1
    monkeypatch.setattr(attnc, "compile", lambda *_, **__: net)
    ran = run("compile", f"{module(FUNCTIONS)}:wave", "--shape", "2,1", *ASKED)
    assert (ran.code, ran.json["status"]) == (1, "unknown")


def test_a_smooth_function_from_the_shell(run: Any, module: Write, tmp_path: Path) -> None:
    """Nothing stands in for the compiler here."""
    path, source = tmp_path / "wave.safetensors", f"{module(FUNCTIONS)}:wave"
    ran = run("compile", source, "--shape", "1,1", *ASKED, "--method", "lattice", "-o", path)
    assert (ran.code, ran.err) == (0, "")
    assert (ran.json["status"], ran.json["certificate"]["facts"]["method"]) == ("proved", "lattice")
    net = attnc.load(path)
    x = torch.linspace(-1, 1, 300).reshape(-1, 1, 1)
    assert float((net(x) - torch.exp(torch.sin(2 * x))).abs().max()) <= net.certificate.bound <= 1e-2
    assert run("verify", path).code == 0


def test_a_lipschitz_constant_makes_it_a_proof(run: Any, module: Write, tmp_path: Path) -> None:
    path, source = tmp_path / "slow.safetensors", f"{module(FUNCTIONS)}:slow"
    options = ("--domain", -1, 1, "--eps", 0.05, "--lipschitz", 1, "--shape", "1,1", "-o", path, "--json")
    ran = run("compile", source, *options)
    assert (ran.code, ran.err, ran.json["status"]) == (0, "", "proved")
    assert ran.json["certificate"]["bound"] <= 0.05
    net = attnc.load(path)
    x = torch.linspace(-1, 1, 999).reshape(-1, 1, 1)
    assert float((net(x) - x.sin()).abs().max()) <= ran.json["certificate"]["bound"]
    assert run("verify", path).code == 0


def test_a_function_that_fails_is_told(run: Any, module: Write) -> None:
    ran = run("compile", f"{module(FUNCTIONS)}:fails", "--shape", "2,1", *ASKED)
    assert ran.code == 2
    assert "RuntimeError: no such wave" in json.loads(ran.out)["error"]["message"]
