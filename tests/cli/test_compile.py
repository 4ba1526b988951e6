"""`attnc compile` on a state dict: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import attnc
from attnc.network.describe import COLUMNS
from attnc.records.certificate import Certificate

from .checks import refused

BOX = ("--domain", -1, 1)
ASKED = (*BOX, "--activation", "tanh", "--eps", 1e-3, "--dtype", "float64")


def test_the_tables_say_what_was_proved(run: Any, weights: Path, network: attnc.Network) -> None:
    ran = run("compile", weights, *ASKED)
    assert (ran.code, ran.err) == (0, "")
    assert str(network.certificate) in ran.out
    assert "written" not in ran.out
    (row,) = network.describe().rows
    assert all(cell in ran.out for cell in (*COLUMNS, *row[1:]))


def test_no_number_is_cut_on_a_narrow_terminal(
    run: Any, weights: Path, network: attnc.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(attnc, "compile", lambda *_, **__: network)
    (row,) = network.describe().rows
    lines = run("compile", weights, *ASKED).out.splitlines()
    assert any(all(cell in line for cell in row) for line in lines)


def test_json_is_one_object_with_the_certificate(run: Any, weights: Path, network: attnc.Network) -> None:
    ran = run("compile", weights, *ASKED, "--json")
    assert (ran.code, ran.err) == (0, "")
    record = ran.json
    certificate = Certificate.from_json(record["certificate"])
    assert certificate.holds_for == attnc.Box(-1, 1, shape=(4,))
    assert (record["status"], record["reason"]) == ("proved", None)
    assert certificate.bound == network.certificate.bound <= 1e-3
    assert (certificate.dtype, record["engine"], record["eps"]) == ("float64", "softmax", 1e-3)
    assert (record["source"], record["files"]) == (str(weights), {})
    (layer,) = certificate.children
    assert (layer.facts["function"], layer.facts["neurons"]) == ("tanh", [8])
    assert record["parameters"] == sum(p.numel() for p in network.parameters())


def test_what_is_written_computes_the_model(
    run: Any, weights: Path, tmp_path: Path, mlp: nn.Sequential
) -> None:
    path = tmp_path / "net.safetensors"
    ran = run("compile", weights, *ASKED, "-o", path, "--json")
    assert (ran.code, ran.json["files"]) == (0, {"output": str(path)})
    net = attnc.load(path)
    assert isinstance(net, attnc.Network)
    x = torch.rand(50, 4, dtype=torch.float64) * 2 - 1
    assert (net(x) - mlp(x)).abs().max() <= 1e-3
    assert attnc.verify(path).status == "proved"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlp.safetensors", "net.safetensors"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, network: attnc.Network) -> dict[str, Any]:
    """What reaches the compiler."""
    wishes: dict[str, Any] = {}

    def spy(model: Any, **given: Any) -> attnc.Network:
        wishes.update(given, model=model)
        return network

    monkeypatch.setattr(attnc, "compile", spy)
    return wishes


def test_every_option_reaches_the_compiler(run: Any, weights: Path, asked: dict[str, Any]) -> None:
    options = ("--activation", "leaky_relu(0.2)", "--output-activation", "sigmoid", "--order", "0, 2")
    more = ("--shape", "3,4", "--domain", "-1,-2,-3,0", "1e0", "--eps", 0.5, "--engine", "sdpa")
    assert run("compile", weights, *options, *more).code == 0
    program = asked.pop("model")
    del asked["progress"]
    box = attnc.Box(torch.tensor([[-1.0, -2.0, -3.0, 0.0]] * 3), 1)
    assert asked == {"domain": box, "eps": 0.5, "dtype": torch.float64, "engine": "sdpa"}
    labels = [step.function.label for step in program.steps if step.kind == "pointwise"]
    assert (program.shape, program.shapes[-1]) == ((3, 4), (3, 2))
    assert labels == ["leaky_relu(0.2)", "sigmoid"]


def test_a_network_that_its_certificate_does_not_fit_is_no_success(
    run: Any, weights: Path, network: attnc.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = copy.deepcopy(network)
    next(changed.parameters()).data += 1
    monkeypatch.setattr(attnc, "compile", lambda *_, **__: changed)
    table, machine = run("compile", weights, *ASKED), run("compile", weights, *ASKED, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "<=" not in table.out and machine.json["reason"] in table.out
    assert machine.json["status"] == "unknown"


@pytest.mark.parametrize(
    ("ends", "lo", "hi"),
    [
        (("-1", "1"), -1.0, 1.0),
        (("-1,-2,-3,-4", "0"), [-1.0, -2.0, -3.0, -4.0], 0.0),
        (("-5", "1,2,3,4"), -5.0, [1.0, 2.0, 3.0, 4.0]),
        (("0.1", "0.1"), 0.1, 0.1),
    ],
)
def test_domains(
    run: Any, weights: Path, asked: dict[str, Any], ends: tuple[str, str], lo: Any, hi: Any
) -> None:
    assert run("compile", weights, "--activation", "tanh", "--eps", 1, "--domain", *ends).code == 0
    assert asked["domain"] == attnc.Box(lo, hi, shape=(4,))


@pytest.mark.usefixtures("no_work")
def test_an_existing_file_is_left_untouched(run: Any, weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(b"mine")
    ran = run("compile", weights, *ASKED, "-o", path)
    assert (ran.code, ran.out) == (2, "")
    assert "--force" in ran.err
    assert path.read_bytes() == b"mine"
    assert run("compile", weights, *ASKED, "-o", weights).code == 2


def test_force_overwrites(run: Any, weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(b"old")
    ran = run("compile", weights, *ASKED, "--output", path, "--force")
    assert ran.code == 0
    assert "written" in ran.out
    assert attnc.load(path).certificate.proved


@pytest.mark.usefixtures("no_work")
def test_where_nothing_can_be_written_is_told_before_any_work(
    run: Any, weights: Path, tmp_path: Path
) -> None:
    for target in (tmp_path / "nowhere" / "net.safetensors", tmp_path, Path("/proc/self/net.safetensors")):
        refused(run("compile", weights, *ASKED, "-o", target, "--json"), "FileError", str(target))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (("--eps", 1), "InputError", "--activation"),
        (("--eps", 1, "--activation", "tahn"), "UnknownFunctionError", "'tanh'"),
        (("--eps", 1, "--activation", "clip(1)"), "InputError", "clip(a, b)"),
        (("--eps", 1, "--activation", "tanh", "--output-activation", "x"), "UnknownFunctionError", "'x'"),
        (("--eps", 1, "--activation", "tanh", "--order", "0,1"), "InputError", "--order 0,1"),
        (("--eps", 1, "--activation", "tanh", "--order", "2"), "InputError", "'0'"),
        (("--eps", 1, "--activation", "tanh", "--order", "2,0"), "InputError", "4"),
        (("--eps", 1, "--activation", "tanh", "--shape", "5"), "InputError", "4"),
        (("--eps", 1, "--activation", "tanh", "--shape", "4,"), "InputError", "--shape"),
        (("--eps", 1, "--activation", "tanh", "--shape", "-4"), "InputError", "--shape"),
        (("--eps", 1, "--activation", "tanh", "--shape", "0,4"), "InputError", "--shape"),
        (("--eps", 1, "--activation", "tanh", "--dtype", "float16"), "InputError", "float64"),
    ],
)
def test_a_request_that_makes_no_sense(
    run: Any, weights: Path, options: tuple[object, ...], kind: str, said: str
) -> None:
    refused(run("compile", weights, *BOX, *options, "--json"), kind, said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--eps", 1, "--engine", "fast"), "--engine fast"),
        (("--eps", 0), "--eps 0"),
        (("--eps", "nan"), "--eps nan"),
    ],
)
def test_what_the_compiler_refuses(run: Any, weights: Path, options: tuple[object, ...], said: str) -> None:
    refused(run("compile", weights, *BOX, "--activation", "tanh", *options, "--json"), "InputError", said)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (("1", "-1"), "-1"),
        (("nan", "1"), "lo"),
        (("-1", "1e999"), "hi"),
        (("-1", "one"), "--domain -1 one"),
        (("-1,,0,0", "1"), "--domain -1,,0,0 1"),
        (("-1,-1,-1", "1"), "4"),
        (("-1", "1,1,1,1,1"), "4"),
        (("0,0,0,2", "1"), "(3,)"),
    ],
)
def test_a_domain_that_is_none(run: Any, weights: Path, ends: tuple[str, str], said: str) -> None:
    ran = run("compile", weights, "--domain", *ends, "--activation", "tanh", "--eps", 1, "--json")
    refused(ran, "InputError", said)


def test_an_error_that_cannot_be_met_says_which_can(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "linear.safetensors"
    save_file({"weight": torch.full((1, 2), 0.3)}, path)
    options = (*BOX, "--activation", "tanh", "--eps", 1e-30)
    ran = run("compile", path, *options, "-o", tmp_path / "net.safetensors", "--json")
    refused(ran, "PrecisionError", "1e-30", "float64")
    assert 1e-30 < ran.json["error"]["reachable"] < 1e-3
    assert [p.name for p in tmp_path.iterdir()] == ["linear.safetensors"]


@pytest.mark.usefixtures("no_work")
def test_every_part_that_is_not_understood_is_listed(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    save_file({"conv.weight": torch.zeros(2, 2, 3), "scale": torch.zeros(2), "a.bias": torch.zeros(2)}, path)
    ran = run("compile", path, *ASKED, "--json")
    refused(ran, "UnsupportedError", "conv.weight", "scale", "a.bias")
    problems = ran.json["error"]["problems"]
    assert {problem["where"] for problem in problems} == {"conv.weight", "scale", "a.bias"}
    assert all(problem["reason"] for problem in problems)
    text = run("compile", path, *ASKED)
    assert (text.code, text.out) == (2, "")
    assert text.err.count("\n  - ") == 3


@pytest.mark.usefixtures("no_work")
def test_files_that_hold_no_state_dict(run: Any, tmp_path: Path, saved: Path, saved_network: Path) -> None:
    refused(run("compile", tmp_path / "none.safetensors", *ASKED, "--json"), "FileError", "none.safetensors")
    refused(run("compile", tmp_path, *ASKED, "--json"), "FileError", str(tmp_path))
    noise = tmp_path / "noise.safetensors"
    noise.write_bytes(bytes(range(256)) * 9)
    refused(run("compile", noise, *ASKED, "--json"), "FileError", str(noise))
    for ours in (saved, saved_network):
        refused(run("compile", ours, *BOX, "--eps", 1, "--json"), "FileError", "attnc show")


class Trap:
    """Whoever unpickles it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    "name", ["model.pt", "model.pth", "pytorch_model.bin", "model.pkl", "model.safetensors"]
)
@pytest.mark.parametrize("activation", [(), ("--activation", "tanh")])
def test_what_could_run_code_is_not_read(
    run: Any, tmp_path: Path, name: str, activation: tuple[str, ...]
) -> None:
    path, sprung = tmp_path / name, tmp_path / "sprung"
    if name == "model.pkl":
        path.write_bytes(pickle.dumps(Trap(sprung)))
    else:
        torch.save({"weight": Trap(sprung)}, path)
    ran = run("compile", path, *BOX, "--eps", 1, *activation, "--json")
    refused(ran, "FileError", "safetensors.torch.save_file")
    assert not sprung.exists()


@pytest.mark.parametrize("missing", [(), ("--eps", 1), ("--domain", -1, "--eps", 1), (*BOX,)])
def test_what_cannot_be_parsed_is_bad_input_too(run: Any, weights: Path, missing: tuple[object, ...]) -> None:
    ran = run("compile", weights, *missing)
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err
