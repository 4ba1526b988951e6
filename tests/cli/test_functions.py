"""`attnc functions`, and its list of kinks."""

from __future__ import annotations

from typing import Any

import pytest

from attnc import functions
from attnc.cli.head import kinks


def test_every_name_is_listed_with_its_formula(run: Any) -> None:
    ran = run("functions", "--json")
    assert (ran.code, ran.err) == (0, "")
    rows = {row["name"]: row for row in ran.json["functions"]}
    assert tuple(sorted(rows)) == functions.names()
    for name, row in rows.items():
        assert row["signature"] == functions.signature(name)
        assert row["formula"] == functions.meaning(name) != ""


def test_the_table_lists_them_too(run: Any) -> None:
    ran = run("functions")
    assert ran.code == 0
    first_words = {line.split()[0] for line in ran.out.splitlines() if line.strip()}
    for name in functions.names():
        assert functions.signature(name).split()[0] in first_words


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gelu", []), ("relu", ["0"]), ("clip", ["a", "b"]), ("hardtanh", ["a", "b"]),
     ("soft_threshold", ["-lam", "lam"]), ("leaky_relu", ["0"]), ("elu", ["0"])],
)  # fmt: skip
def test_kinks_in_terms_of_the_parameters(name: str, expected: list[str]) -> None:
    assert kinks(name) == expected


def test_each_function_has_as_many_kinks_as_are_listed() -> None:
    for name in functions.names():
        spec = name if "(" not in functions.signature(name) or name != "clip" else "clip(-1,1)"
        assert len(kinks(name)) == len(functions.get(spec).kinks), name
