"""`attnc compile module:object`: the user's own code, what it may be and how it may fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attnc

from .checks import refused

ASKED = ("--domain", -1, 1, "--eps", 1e-2, "--dtype", "float64", "--json")
HEADER = "import functools\nimport torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
NET = f"""{HEADER}
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
training = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Softmax(-1))
class Holder:
    net = net
def make(): return net
def make_by(name, *, other=1): return net
made = functools.partial(make_by, "net")
def make_class(): return nn.Module
def fails(): raise RuntimeError("no weights here")
def leaves(): raise SystemExit(3)
def nothing(): pass
class Net(nn.Module): pass
number = 3
def make_two(name, size): return net
"""
Write = Callable[[str], str]


@pytest.mark.parametrize("name", ["net", "make", "made", "Holder.net"])
def test_a_module_and_what_returns_one(run: Any, module: Write, name: str) -> None:
    ran = run("compile", f"{module(NET)}:{name}", *ASKED)
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["domain"]["shape"] == [3]
    assert ran.json["bound"] <= 1e-2


def test_a_part_of_a_module(run: Any, module: Write) -> None:
    assert run("compile", f"{module(NET)}:net.2", *ASKED).json["domain"]["shape"] == [4]


def test_an_estimator(run: Any, module: Write) -> None:
    pytest.importorskip("sklearn")
    text = """
import numpy as np
from sklearn.neural_network import MLPRegressor
x = np.random.default_rng(0).uniform(-1, 1, (40, 2))
new = MLPRegressor(hidden_layer_sizes=(3,), activation="tanh", solver="lbfgs", max_iter=9, tol=1, random_state=0)
net = MLPRegressor(**new.get_params()).fit(x, x[:, 0])
"""
    name = module(text)
    ran = run("compile", f"{name}:net", *ASKED)
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["domain"]["shape"] == [2]
    refused(run("compile", f"{name}:new", *ASKED), "InputError", "not fitted")


def test_what_the_code_prints_does_not_enter_the_result(run: Any, module: Write) -> None:
    ran = run("compile", f"{module(NET + 'print(6 * 7)')}:net", *ASKED)
    assert (ran.code, ran.err) == (0, "42\n")
    assert ran.json["status"] == "proved"


def test_the_path_is_left_as_it_was(run: Any, module: Write) -> None:
    before = list(sys.path)
    assert run("compile", f"{module(NET)}:net", *ASKED).code == 0
    assert run("compile", f"{module(NET)}:none", *ASKED).code == 2
    assert sys.path == before


def test_a_file_of_weights_opens_no_path_to_code(
    run: Any, weights: Path, module: Write, monkeypatch: pytest.MonkeyPatch, network: attnc.Network
) -> None:
    seen: list[list[str]] = []

    def spy(*_: Any, **__: Any) -> attnc.Network:
        seen.append(list(sys.path))
        return network

    monkeypatch.setattr(attnc, "compile", spy)
    assert run("compile", weights, "--activation", "tanh", *ASKED).code == 0
    assert run("compile", f"{module(NET)}:net", *ASKED).code == 0
    assert [os.getcwd() in path for path in seen] == [False, True]


SHAPES = f"""{HEADER}
class Two(nn.Module):
    def __init__(self, a, b, flat=False):
        super().__init__()
        self.b, self.a, self.flat = nn.Linear(b, a), nn.Linear(a, b), flat
    def forward(self, x):
        return self.b(torch.tanh(self.a(x.flatten(1) if self.flat else x))) + x
backwards = Two(2, 5).eval()
flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).eval()
none = nn.Sequential(nn.Tanh()).eval()
"""


def test_the_shape_is_seen_where_there_is_no_doubt(run: Any, module: Write) -> None:
    """The layers of `backwards` are not named in the order in which they run."""
    name = module(SHAPES)
    assert run("compile", f"{name}:backwards", *ASKED).json["domain"]["shape"] == [2]
    for doubtful in ("flat", "none"):
        refused(run("compile", f"{name}:{doubtful}", *ASKED), "InputError", "--shape")
    assert run("compile", f"{name}:flat", "--shape", "2,2", *ASKED).json["domain"]["shape"] == [2, 2]


def test_lists_of_numbers_tell_the_shape_too(run: Any, module: Write) -> None:
    options = ("--eps", 1e-2, "--dtype", "float64", "--json")
    ran = run("compile", f"{module(SHAPES)}:flat", "--domain", "-1,0,0,0", 1, *options)
    assert ran.json["domain"] == {"lo": [-1.0, 0.0, 0.0, 0.0], "hi": 1.0, "shape": [4]}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nett", ("has no 'nett'", "net,")),
        ("xyz", ("has no 'xyz'", "Holder")),
        ("net.layer", ("net has no 'layer'",)),
        ("make_by", ("is a function", "--shape", "3,1")),
        ("make_two", ("make_two(name, size)", "one tensor")),
        ("make_class", ("what ", "returns is a class")),
        ("fails", ("RuntimeError: no weights here", ".py, line 14")),
        ("leaves", ("SystemExit: 3",)),
        ("nothing", ("torch.nn.Module", "NoneType")),
        ("number", ("torch.nn.Module", "int")),
        ("Net", ("is a class",)),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_work")
def test_an_object_that_is_no_model(run: Any, module: Write, name: str, said: tuple[str, ...]) -> None:
    refused(run("compile", f"{module(NET)}:{name}", *ASKED), "InputError", *said)


def test_all_that_a_model_has_against_it_is_listed(run: Any, module: Write) -> None:
    ran = run("compile", f"{module(NET)}:training", *ASKED)
    refused(ran, "UnsupportedError", "model.eval()", "Softmax")
    assert len(ran.json["error"]["problems"]) == 2


def test_a_shape_that_the_model_does_not_take(run: Any, module: Write) -> None:
    ran = run("compile", f"{module(NET)}:net", "--shape", 7, *ASKED)
    refused(ran, "UnsupportedError", "takes 3 features", "(7,)")


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_package", ("ModuleNotFoundError", "no_such_package", "line 1")),
        ("\nraise ValueError('the disk is full')", ("ValueError: the disk is full", "line 2")),
        ("def (", ("SyntaxError", "line 1")),
        ("import sys\nsys.exit('usage: train')", ("SystemExit: usage: train",)),
    ],
)
def test_a_module_that_fails_to_import(run: Any, module: Write, text: str, said: tuple[str, ...]) -> None:
    name = module(text)
    refused(run("compile", f"{name}:net", *ASKED), "InputError", f"importing {name} raised", *said)


@pytest.mark.usefixtures("no_work")
def test_a_module_that_is_not_there(run: Any, module: Write) -> None:
    name = module(NET)
    for missing in ("no_such_module", "no_such.module", f"{name}.inner"):
        refused(run("compile", f"{missing}:net", *ASKED), "InputError", "there is no module")
    refused(run("compile", f"{name}.py:net", *ASKED), "InputError", f"{name}:net")
    refused(run("compile", f"{name}.py", *ASKED), "InputError", f"{name}:net")
    for nothing in (name, f"{name}:", ":net", "a:b:c", "no/path:net"):
        refused(run("compile", nothing, *ASKED), "FileError", "module:object")


@pytest.mark.usefixtures("no_work")
def test_an_object_needs_no_words(run: Any, module: Write) -> None:
    ran = run("compile", f"{module(NET)}:net", "--activation", "relu", "--order", "a,b", *ASKED)
    refused(ran, "InputError", "--activation and --order")
