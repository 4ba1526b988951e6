"""No upward import, and a checker that shares nothing with the prover."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "attnc"
ORDER = [
    {"errors", "domain", "progress"}, {"functions"}, {"program"}, {"certify"}, {"anchors"}, {"network"}, {"lower"},
    {"frontends", "exporters", "incontext"}, {"lower.compile", "pretrained"}, {"paper"}, {"plot"},
    {"cli", "__init__", "__main__"},
]  # fmt: skip
LAYER = {name: i for i, names in enumerate(ORDER) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def layer_name(parts: list[str]) -> str:
    """The part of the package that a module belongs to; `lower.compile` drives the front ends and stands above them."""
    return "lower.compile" if parts[:2] == ["lower", "compile"] else parts[0]


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
    own = layer_name(list(path.relative_to(ROOT).with_suffix("").parts))
    if own in ("__init__", "__main__", "plot", "cli"):
        return
    for module in imports(path):
        other = layer_name(module.split(".")[1:])
        assert other in LAYER, f"{path.name} imports {module}: where does {other} belong?"
        assert LAYER[other] <= LAYER[own], f"{own} imports {module}, which is above it"


def test_the_walk_saw_the_package() -> None:
    assert len(FILES) > 30
    assert any("attnc.certify" in m for m in imports(ROOT / "anchors" / "plan.py"))


def test_checker_shares_no_code_with_construction_or_prover() -> None:
    """Followed through every module it imports: the checkers of heads and networks, of windows and of blocks."""
    seen: set[Path] = set()
    todo = [ROOT / "certify" / name for name in ("verify.py", "check_window.py", "check_block.py")]
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
    names = {str(p.relative_to(ROOT)) for p in seen}
    assert {
        "certify/numbers.py",
        "certify/check.py",
        "certify/check_network.py",
        "certify/check_compose.py",
        "certify/check_rounding.py",
        "certify/check_range.py",
        "certify/window_numbers.py",
    } <= names
    forbidden = (
        "anchors",
        "lower",
        "network",
        "frontends",
        "certify/supnorm",
        "certify/cells",
        "certify/rounding",
        "certify/compose",
        "certify/forms",
        "certify/slopes",
        "certify/outward",
        "certify/exact_affine",
        "certify/window.py",
        "certify/normed",
        "certify/block_bound",
        "pretrained",
    )
    assert not [name for name in names if name.startswith(forbidden)]


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
