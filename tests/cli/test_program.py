"""The program as a user starts it: exit status, streams, progress, help."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnc
from attnc.cli import main
from attnc.cli.output import progress_bar

COMMANDS = ("head", "compile", "convert", "learn", "reproduce", "verify", "show", "functions")


def test_head_then_verify(run_process: Any, tmp_path: Path) -> None:
    path = tmp_path / "tanh.safetensors"
    made = run_process("head", "tanh", "--domain", "-8", "8", "--eps", "1e-5", "--output", path, "--json")
    assert (made.code, made.err) == (0, "")
    assert made.out.count("\n{") == 0
    assert made.json["certificate"]["holds_for"]["lo"] == -8
    verified = run_process("verify", path, "--json")
    assert (verified.code, verified.err) == (0, "")
    assert verified.json["status"] == "proved"
    assert verified.json["bound"] == made.json["certificate"]["bound"]


@pytest.mark.slow
def test_compile_then_verify(run_process: Any, weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    asked = ("--activation", "tanh", "--domain", "-1", "1", "--eps", "1e-3", "--dtype", "float64")
    made = run_process("compile", weights, *asked, "-o", path, "--json")
    assert (made.code, made.err) == (0, "")
    assert made.json["certificate"]["bound"] <= 1e-3
    assert main(["verify", str(path)]) == 0


def test_bad_input_in_a_process(run_process: Any) -> None:
    ran = run_process("head", "tanh", "--domain", "8", "-8", "--eps", "1e-5")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ") and "8.0, -8.0" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.slow
def test_the_status_of_a_refuted_file_in_a_process(
    run_process: Any, tmp_path: Path, tanh: attnc.Head
) -> None:
    assert tanh.certificate.proved
    lie = attnc.Head(tanh.numbers(), tanh.design, replace(tanh.certificate, bound=1e-9))
    lie.save(tmp_path / "lie.safetensors")
    ran = run_process("verify", tmp_path / "lie.safetensors")
    assert ran.code == 1
    assert "refuted" in ran.out


def test_help_does_not_import_torch() -> None:
    heavy = ("torch", "transformers", "sklearn", "matplotlib", "flint")
    calls = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    code = (
        f"import sys\nfrom attnc.cli import main\nassert all(main(call) == 0 for call in {calls})\n"
        f"sys.exit(str([name for name in {heavy} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.count("Usage: attnc") == len(COMMANDS) + 1
    assert done.stderr == "[]\n"


def test_import_attnc_does_not_import_torch() -> None:
    code = "import sys, attnc; attnc.AttncError; dir(attnc); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
    assert attnc.compile is not None and callable(attnc.compile) and set(attnc.__all__) <= set(dir(attnc))
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib", "records"} & set(dir(attnc))
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = attnc.nothing_like_this


def test_help_lists_what_the_library_accepts(run: Any) -> None:
    """The commands repeat these names, because help must not import the library."""
    from attnc.compiler import COMPILED
    from attnc.frontends.black_box import METHODS
    from attnc.heads.designs import DESIGNS
    from attnc.incontext.losses import NAMES
    from attnc.network.engines import CERTIFIED
    from attnc.paper.experiments import SWEEPS
    from attnc.pretrained import config

    accepted = {
        "head": DESIGNS, "compile": (*METHODS, *COMPILED, *CERTIFIED), "learn": NAMES, "reproduce": SWEEPS,
        "convert": (*config.DESIGNS, *config.ENGINES),
    }  # fmt: skip
    for command, names in accepted.items():
        text = run(command, "--help").out
        assert all(name in text for name in names), command


def test_options_have_one_name_everywhere(run: Any) -> None:
    texts = {name: run(name, "--help").out for name in COMMANDS}
    for option, commands in {
        "--json": COMMANDS,
        "--output": ("head", "compile", "convert", "learn", "reproduce"),
        "--domain": ("head", "compile"),
        "--eps": ("head", "compile"),
        "--approximation": ("convert",),
        "--dtype": ("head", "compile", "learn"),
        "--force": ("head", "compile", "learn"),
        "--plot": ("head", "learn"),
    }.items():
        assert [name for name in COMMANDS if option in texts[name]] == [n for n in COMMANDS if n in commands]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"attnc {attnc.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps_with_an_example(run: Any, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"Example: attnc {command}" in ran.out


def test_an_unknown_command(run: Any) -> None:
    ran = run("heads")
    assert (ran.code, ran.out) == (2, "")


def test_formulas_print_where_only_ascii_can(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", narrow)
    assert main(["functions"]) == 0
    assert b"gelu" in narrow.buffer.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_on_a_terminal_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_bar("building tanh") as progress:
        progress("trying [2] anchors")
        progress("layer 1", 3, 12)
    assert "layer 1" in screen.getvalue() and "3/12" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K")  # up a line, and erased


def test_progress_is_silent_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with progress_bar("building tanh") as progress:
        progress("trying 2 anchors")
    assert pipe.getvalue() == ""


def test_the_progress_of_the_compiler_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["head", "tanh", "--domain", "-8", "8", "--eps", "1e-5", "--json"]) == 0
    assert "anchors" in screen.getvalue()
    assert json.loads(capsys.readouterr().out)["status"] == "proved"
