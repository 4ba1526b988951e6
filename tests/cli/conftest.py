"""A cheap head and a cheap network in files, and ways to run the program."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import attnc
from attnc.cli import app


@dataclass(frozen=True)
class Ran:
    """What a run left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run() -> Run:
    """The program inside this process."""

    def call(*arguments: object) -> Ran:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def run_process() -> Run:
    """The program as a user runs it."""

    def call(*arguments: object) -> Ran:
        command = [sys.executable, "-W", "error", "-m", "attnc", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
        return Ran(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def tanh() -> attnc.Head:
    return attnc.head("tanh", domain=(-8, 8), eps=1e-5)


@pytest.fixture
def saved(tanh: attnc.Head, tmp_path: Path) -> Path:
    path = tmp_path / "tanh.safetensors"
    tanh.save(path)
    return path


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins to build a head or a network fails the test."""

    def begun(*_: object, **__: object) -> None:
        pytest.fail("the work began")

    monkeypatch.setattr(attnc, "head", begun)
    monkeypatch.setattr(attnc, "compile", begun)


@pytest.fixture(scope="session")
def mlp() -> nn.Sequential:
    """4 features, 8 neurons, 2 outputs."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double().eval()


@pytest.fixture
def weights(mlp: nn.Sequential, tmp_path: Path) -> Path:
    """A plain state dict."""
    path = tmp_path / "mlp.safetensors"
    save_file(mlp.state_dict(), path)
    return path


@pytest.fixture(scope="session")
def network(mlp: nn.Sequential) -> attnc.Network:
    return attnc.compile(mlp, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-3, dtype=torch.float64)


@pytest.fixture
def saved_network(network: attnc.Network, tmp_path: Path) -> Path:
    path = tmp_path / "net.safetensors"
    network.save(path)
    return path


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a Python module into the current directory and get its name; forgotten after the test."""
    here = tmp_path / "code"
    here.mkdir()
    monkeypatch.chdir(here)
    before = set(sys.modules)

    def written(text: str) -> str:
        name = f"users_{uuid.uuid4().hex}"
        (here / f"{name}.py").write_text(text)
        return name

    yield written
    for name in set(sys.modules) - before:
        if name.startswith("users_"):
            del sys.modules[name]
