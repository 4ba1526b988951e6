"""`attnc functions`."""

from __future__ import annotations

from typing import Any

from attnc import functions


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
