"""No upward import, and a checker that shares no code of the proof with the prover."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "attnc"
ORDER = [
    {"effort", "errors", "domain", "extras", "parallel", "progress"},
    {"functions"}, {"arithmetic", "program"}, {"arguments", "records"}, {"prove", "check"},
    {"heads"}, {"network"}, {"lower"}, {"frontends", "incontext"},
    {"compiler", "pretrained", "tokens", "zoo"}, {"exporters"}, {"paper"}, {"plot"},
    {"cli", "__init__", "__main__"},
]  # fmt: skip
LAYER = {name: i for i, names in enumerate(ORDER) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted attnc modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("attnc"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("attnc")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_upward_import(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__", "plot", "cli"):
        return
    for module in imports(path):
        other = module.split(".")[1]
        assert other in LAYER, f"{path.name} imports {module}: where does {other} belong?"
        assert LAYER[other] <= LAYER[own], f"{own} imports {module}, which is above it"


def test_the_walk_saw_the_package() -> None:
    assert len(FILES) > 30
    assert any("attnc.prove" in m for m in imports(ROOT / "heads" / "plan.py"))


CHECKER_USES = {"errors", "domain", "functions", "arithmetic", "program", "records", "check"}


def test_checker_shares_no_code_with_construction_or_prover() -> None:
    """Every module that a file of `check` imports, followed through: none belongs to the prover or the compiler."""
    seen: set[Path] = set()
    todo = [*(ROOT / "check").glob("*.py")]
    assert len(todo) > 10
    while todo:
        path = todo.pop()
        seen.add(path)
        for module in imports(path):
            parts = module.split(".")[1:]
            for depth in (len(parts), len(parts) - 1):
                file = ROOT.joinpath(*parts[:depth]).with_suffix(".py")
                package = ROOT.joinpath(*parts[:depth], "__init__.py")
                todo += [
                    p for p in (file, package) if p.exists() and p not in seen and p != ROOT / "__init__.py"
                ]
    folders = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in seen}
    assert {"records", "program", "functions"} <= folders <= CHECKER_USES


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno <= 60, f"{path.name}: {node.name}"


def test_loading_never_unpickles() -> None:
    for path in FILES:
        text = path.read_text()
        assert "pickle" not in text and "torch.load" not in text, path
