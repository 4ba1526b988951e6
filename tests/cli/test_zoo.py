"""`attnc zoo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import attnc
from attnc import zoo


def test_list(run: Any) -> None:
    assert [row["name"] for row in run("zoo", "list", "--json").json["models"]] == list(zoo.names())
    shown = run("zoo", "list").out
    assert all(name in shown for name in zoo.names()) and shown.count("(takes about ") == 2


def test_show(run: Any, tmp_path: Path) -> None:
    picture = tmp_path / "sort.png"
    ran = run("zoo", "show", "sort", "--vocabulary", 3, "--length", 4, "--plot", picture)
    assert ran.code == 0 and "status:      proved" in ran.out and zoo.about("sort").mechanism in ran.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    record = run("zoo", "show", "parity", "--dtype", "float64", "--json").json
    assert (record["status"], record["layers"], record["certificate"]["dtype"]) == (
        "proved",
        [1, 1],
        "float64",
    )


def test_models_of_numbers(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "learner.safetensors"
    ran = run("zoo", "save", "regression-in-context", "-o", path)
    assert ran.code == 0 and "status:      proved" in ran.out
    assert run("verify", path).code == 0
    picture = tmp_path / "learner.png"
    assert run("zoo", "show", "ridge-by-newton", "--plot", picture).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run("zoo", "show", "regression-in-context", "--json").json["status"] == "proved"


def test_save_then_verify_and_show(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    assert run("zoo", "save", "induction", "-o", path).code == 0
    assert attnc.load(path).certificate.proved
    assert run("verify", path).code == 0 and run("show", path).code == 0
    assert run("show", path, "--json").json["kind"] == "tokens"
    assert run("zoo", "save", "induction", "-o", path).code == 2  # it exists


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "induktion"),
        ("show", "sort", "--vocabulary", "99"),
        ("show", "sort", "--dtype", "half"),
        ("show", "sort", "--length", "0"),
    ],
)
def test_bad_input(run: Any, arguments: tuple[str, ...]) -> None:
    ran = run("zoo", *arguments)
    assert ran.code == 2 and ran.err.startswith("error: ")
