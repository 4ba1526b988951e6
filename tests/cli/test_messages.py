"""Errors speak of options, and -o and --save are the same in every command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from attnc.cli import app, main
from attnc.cli.messages import in_options

OPTIONS = {
    "steps": "--steps",
    "dtype": "--dtype",
    "step_size": "--step-size",
    "radius": "--radius",
    "domain": "--domain",
}
OPTIONS |= {"standardise": "--standardise", "engine": "--engine"}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("steps=0: give an integer", "--steps 0: give an integer"),
        ("step_size=0.5 may diverge", "--step-size 0.5 may diverge"),
        ("use dtype=torch.float64.", "use --dtype float64."),
        ("engine='fast': accepted", "--engine fast: accepted"),
        ("give domain=(-8, 8)", "give --domain -8 8"),
        ("or use radius=None", "or leave out --radius"),
        ("got radius=None", "got no --radius"),
        ("use standardise=True; standardise=False", "use --standardise; --no-standardise"),
        ("call f(x, steps=3)", "call f(x, steps=3)"),
        ("unsteps=3 and x.steps=3", "unsteps=3 and x.steps=3"),
    ],
)
def test_arguments_become_options(said: str, wanted: str) -> None:
    assert in_options(said, OPTIONS) == wanted


def commands() -> dict[str, Any]:
    group = typer.main.get_command(app)
    found = dict(group.commands)
    zoo = found.pop("zoo")
    return found | {f"zoo {name}": command for name, command in zoo.commands.items()}


def test_the_option_that_writes_has_the_same_names_everywhere() -> None:
    written = {
        name: param.opts
        for name, command in commands().items()
        for param in command.params
        if param.name == "output"
    }
    assert len(written) >= 7
    assert all(set(names) == {"-o", "--save", "--output"} for names in written.values())


@pytest.mark.parametrize(
    "arguments",
    [
        ("head", "gelu", "--domain", "-8", "8", "--eps", "-1"),
        ("head", "gelu", "--domain", "8", "-8", "--eps", "1e-3"),
        ("head", "tanh", "--domain", "-8", "8", "--eps", "1e-20"),
        ("head", "gelu", "--domain", "-8", "8", "--anchors", "1"),
        ("head", "gelu", "--domain", "-8", "8", "--eps", "1e-3", "--design", "best"),
        ("head", "gelu", "--domain", "-8", "8", "--eps", "1e-3", "--design", "gated", "--heads", "2"),
        ("head", "gelu", "--domain", "-8", "8", "--eps", "1e-3", "--heads", "0"),
        ("compile", "FILE", "--activation", "relu", "--domain", "-1", "1", "--eps", "0"),
        ("compile", "FILE", "--activation", "tanh", "--domain", "-1", "1", "--eps", "1e-17"),
        (
            "compile",
            "FILE",
            "--activation",
            "relu",
            "--domain",
            "-1",
            "1",
            "--eps",
            "1e-3",
            "--engine",
            "fast",
        ),
        (
            "compile",
            "FILE",
            "--activation",
            "relu",
            "--domain",
            "-1",
            "1",
            "--eps",
            "1e-3",
            "--form",
            "three",
        ),
        ("compile", "FILE", "--activation", "relu", "--domain", "-1", "1", "--eps", "1e-3", "--order", "x"),
        ("convert", "FILE", "-o", "OUT", "--approximation", "0"),
        ("convert", "FILE", "-o", "OUT", "--engine", "fast"),
        ("convert", "FILE", "-o", "OUT", "--design", "fast"),
        ("reproduce", "heads", "-o", "OUT", "--seeds", "0"),
        ("zoo", "show", "histogram", "--length", "0"),
        ("zoo", "show", "nothing"),
    ],
)
def test_errors_have_no_arguments_of_python(
    run: Any, tmp_path: Path, weights: Path, arguments: tuple[str, ...]
) -> None:
    names = {"FILE": str(weights), "OUT": str(tmp_path / "out")}
    ran = run(*(names.get(argument, argument) for argument in arguments))
    assert ran.code == 2
    assert re.findall(r"(?<![\w(./-])[a-z_]+=", ran.err) == [], ran.err


@pytest.mark.parametrize(
    "domain",
    [("--domain=-1,1",), ("--domain=-1,1", "--eps", "1e-3"), ("--domain", "-1,1"), ("--domain", "(-1, 1)")],
)
def test_a_domain_of_one_word(capsys: pytest.CaptureFixture[str], domain: tuple[str, ...]) -> None:
    for command in (["compile", "net.safetensors"], ["head", "gelu"]):
        assert main([*command, *domain]) == 2
        assert "--domain -1 1" in capsys.readouterr().err


def test_an_interval_without_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["head", "gelu", "-8", "8", "--eps", "1e-3"]) == 2
    assert "--domain -8 8" in capsys.readouterr().err


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    printed = capsys.readouterr()
    assert "Commands:" in printed.out + printed.err
