"""The examples do what they say."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from attnc.cli.app import app
from tests.test_readme import skeleton

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def test_digits_are_decided_alike() -> None:
    pytest.importorskip("sklearn")
    example = runpy.run_path(str(EXAMPLES / "digits.py"))
    results = list(example["run"]())
    assert len(results) == 4
    for result in results:
        found = result.agreement
        assert found.accuracy > 0.96, result
        assert found.bound == result.net.certificate.bound <= example["EPS"][result.dtype]
        assert found.ratio < 1 / 10
        assert found.decided_alike == found.decided > 0.9 * found.images
        assert found.different <= found.images - found.decided
        for word in ("size", "accuracy", "bound", "margin", "agreement"):
            assert f"  {word} " in str(result)


def test_the_command_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "networks.md").read_text()
    block = re.search(
        r"```console\n\$ attnc (compile .*)\n((?:.*\n)*?)\n\$ attnc (verify .*)\n\$ attnc (show .*)\n```",
        page,
    )
    assert block is not None
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    save_file(model.state_dict(), "model.safetensors")
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, shlex.split(block.group(1)))
    assert result.exit_code == 0, result.output
    assert skeleton(result.output) == skeleton(block.group(2))
    for command in block.group(3, 4):
        assert CliRunner().invoke(app, shlex.split(command)).exit_code == 0, command
