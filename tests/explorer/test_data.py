"""docs/explorer/data.json is what benchmarks/explorer.py writes; the page and the site's parts are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import bundle
import explorer_parts
import pytest
import torch

import attnc

ROOT = Path(__file__).resolve().parents[2]


def same(made: Any, stored: Any) -> bool:
    """Equal, but for the last digits of floats: they come from the linear algebra of the processor that made the data."""
    if isinstance(stored, dict):
        return made.keys() == stored.keys() and all(same(made[key], stored[key]) for key in stored)
    if isinstance(stored, list):
        return len(made) == len(stored) and all(map(same, made, stored))
    if isinstance(stored, float):
        return isinstance(made, (int, float)) and made == pytest.approx(stored, rel=1e-6, abs=1e-5)
    return bool(made == stored)


@pytest.mark.parametrize("part", ["two_tokens", "learners", "token_programs"])
def test_parts_are_reproducible(data: Any, part: str) -> None:
    assert same(json.loads(json.dumps(getattr(explorer_parts, part)())), data[part])


def test_how_a_network_of_two_tokens_is_proved(data: Any) -> None:
    """A grid from the Lipschitz constant that was given, a lattice without one."""
    nets = [net for stored in data["two_tokens"] for net in stored["networks"]]
    assert {net["method"] for net in nets} == {"grid", "lattice"} and {net["status"] for net in nets} == {
        "proved"
    }
    assert all((net["lipschitz"] is None) == (net["method"] == "lattice") for net in nets)


@pytest.mark.parametrize(
    ("name", "design", "size"), [("gelu", "smooth", 12), ("clip(-1,1)", "graded", 8), ("silu", "gated", 2)]
)
def test_heads_are_reproducible(data: Any, name: str, design: str, size: int) -> None:
    stored = next(f for f in data["heads"] if f["name"] == name)
    head = attnc.head(
        name, domain=(stored["lo"], stored["hi"]), anchors=size, design=design, dtype=torch.float64
    )
    assert same(explorer_parts.head_numbers(head), stored["designs"][design][str(size)])


@pytest.mark.slow
def test_all_is_reproducible(data: Any) -> None:
    from explorer_transformer import transformer

    assert json.loads(json.dumps(explorer_parts.heads())) == data["heads"]
    assert json.loads(json.dumps(transformer())) == data["transformer"]


def test_page_is_small() -> None:
    assert len(bundle.standalone().encode()) < 700_000


def test_sources_are_complete() -> None:
    """Every script is part of the bundle, every panel has a place on the page, and nothing is loaded from elsewhere."""
    assert {path.stem for path in (ROOT / "docs/explorer/js").glob("*.js")} == set(bundle.SOURCES)
    text = (ROOT / "docs" / "explorer.md").read_text(encoding="utf-8")
    assert re.findall(r'data-panel="(\w+)"', text) == list(bundle.PANELS)
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/explorer/js").glob("*.js"))
    assert "http" not in sources and "fetch(" not in sources and "import " not in sources


def test_reference_has_every_public_name() -> None:
    """The API reference documents all of attnc.__all__; submodules have a page or a section."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.rst"))
    documented = set(re.findall(r"auto(?:function|class|module):: attnc\.([\w.]+)", text))
    first = {name.split(".")[0] for name in documented}
    errors = {"AttncError", "DomainWarning"}  # of attnc.errors
    assert set(attnc.__all__) - documented - first - errors == set()
    assert "errors" in documented
    for module in ("incontext", "paper", "plot", "zoo"):
        names = set(getattr(attnc, module).__all__)
        missing = names - {name.split(".")[-1] for name in documented if name.startswith(f"{module}.")}
        assert missing <= {"ContinuousModel", "TokenTask"}


def test_site_has_every_page() -> None:
    """Every page of docs is in a table of contents of the index."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}(.*?)```", index, re.DOTALL)
    listed = {re.sub(r".*<(.*)>", r"\1", line.strip()) for tree in trees for line in tree.splitlines()}
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    assert pages - listed == {"index"}
