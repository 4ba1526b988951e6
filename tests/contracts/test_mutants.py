"""The list of mutations is up to date: each still applies, still compiles, and names tests that exist."""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutations() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("mutations")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_every_mutation_applies_and_compiles(mutations: Any) -> None:
    stale = []
    for m in mutations.MUTATIONS:
        try:
            compile(m.apply((ROOT / m.file).read_text()), m.file, "exec")
        except (mutations.StaleMutationError, SyntaxError) as problem:
            stale.append(f"{m.name}: {problem}")
    assert stale == []


def test_every_mutation_names_tests_that_exist(mutations: Any) -> None:
    known: dict[str, set[str]] = {}
    for m in mutations.MUTATIONS:
        assert m.tests, m.name
        for test in m.tests:
            file, _, rest = test.partition("::")
            assert (ROOT / file).is_file(), f"{m.name}: {file}"
            if file not in known:
                tree = ast.parse((ROOT / file).read_text())
                known[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            function = rest.partition("[")[0]
            assert not rest or function in known[file], f"{m.name}: {test}"


def test_names_are_unique_and_there_are_enough(mutations: Any) -> None:
    names = Counter(m.name for m in mutations.MUTATIONS)
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) >= 50
    assert len({m.file for m in mutations.MUTATIONS}) >= 20


def test_a_stale_mutation_is_named(mutations: Any) -> None:
    m = mutations.Mutation("a name", "attnc/domain.py", "once", "twice", "nothing", ("tests/test_box.py",))
    assert m.apply("say it once") == "say it twice"
    for text in ("not there", "once and once more"):
        with pytest.raises(mutations.StaleMutationError):
            m.apply(text)
