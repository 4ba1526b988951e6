"""A cheap head in a file, and ways to run the program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
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
    return attnc.head("tanh", on=(-8, 8), eps=1e-5)


@pytest.fixture
def saved(tanh: attnc.Head, tmp_path: Path) -> Path:
    path = tmp_path / "tanh.safetensors"
    tanh.save(path)
    return path


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins to build a head fails the test."""

    def begun(*_: object, **__: object) -> None:
        pytest.fail("the work began")

    monkeypatch.setattr(attnc, "head", begun)
