"""What every plot does alike: its arguments, its Figure, its files, its errors, and matplotlib on demand."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import attnc
import attnc.incontext
from attnc import plot
from attnc.errors import FileError, InputError, MissingExtraError

X = torch.zeros(2, 1, dtype=torch.float64)
MAGIC = {".PNG": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
# By plot: which of the things it draws, and the keyword arguments that it needs.
PLOTS: dict[str, tuple[set[str], dict[str, Any]]] = {
    "head": ({"head"}, {}),
    "attention": ({"head", "network"}, {}),
    "network": ({"network"}, {}),
    "slices": ({"network"}, {"f": torch.sin}),
    "tokens_and_anchors": ({"network"}, {}),
    "learning": ({"learner"}, {"x": X, "y": X[:, 0]}),
    "anchors_used": ({"converted"}, {"x": torch.randn(2, 4)}),
    "token_attention": ({"tokens"}, {"sequence": "aba"}),
    "zoo_model": ({"tokens"}, {"name": "sort"}),
    "rates": ({"rates"}, {}),
}


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    converted = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 2)).eval()
    attnc.convert_(converted, approximation=1e-2)
    return {
        "head": attnc.head("tanh", domain=(-1, 1), eps=1e-2),
        "network": attnc.compile(
            nn.Sequential(nn.Tanh(), nn.Linear(2, 2)).eval(), domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2
        ),
        "learner": attnc.incontext.gradient_descent(
            "squared", features=1, steps=2, step_size=0.5, dtype=torch.float64
        ),
        "converted": converted,
        "tokens": attnc.zoo.load("sort", vocabulary=2, length=3),
        "rates": attnc.paper.rates(lambda p: attnc.head("tanh", domain=(-1, 1), anchors=p), (2, 3)),
        "model": nn.Linear(1, 1),
        "list": [1, 2],
        "None": None,
        "name": "tanh",
        "class": attnc.Head,
    }


def test_every_public_plot_is_here() -> None:
    assert set(PLOTS) == set(plot.__all__) - {"report"}  # writes a page instead: test_report.py


@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_returns_a_figure_and_saves_it(name: str, things: dict[str, Any], tmp_path: Path) -> None:
    accepted, arguments = PLOTS[name]
    path = tmp_path / "plot.svg"
    for kind in accepted:
        assert isinstance(getattr(plot, name)(things[kind], **arguments, path=path), Figure)
    assert path.read_bytes().startswith(b"<?xml")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", PLOTS)
def test_other_objects_and_suffixes_are_refused(name: str, things: dict[str, Any], tmp_path: Path) -> None:
    (accepted, arguments), draw = PLOTS[name], getattr(plot, name)
    for kind in things.keys() - accepted:
        with pytest.raises(InputError) as refused:
            draw(things[kind], **arguments)
        assert type(things[kind]).__name__ in str(refused.value)
    for path in ("plot.docx", "plot", "png"):
        with pytest.raises(InputError, match="png"):
            draw(things[min(accepted)], **arguments, path=tmp_path / path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PLOTS)
def test_without_matplotlib_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"attnc\[plot\]"):
        getattr(plot, name)(None, **PLOTS[name][1])


@pytest.mark.parametrize("name", PLOTS)
def test_one_signature_style(name: str) -> None:
    first, *others = inspect.signature(getattr(plot, name)).parameters.values()
    assert first.kind is first.POSITIONAL_OR_KEYWORD
    data = others.pop(0) if name == "token_attention" else first  # a network of tokens is drawn on a sequence
    assert data.kind is first.kind and all(one.kind is one.KEYWORD_ONLY for one in others)
    assert others[-1].name == "path"


def test_attention_draws_into_given_axes(things: dict[str, Any]) -> None:
    for figure in (Figure(), Figure().subfigures(1, 1)):
        ax = figure.add_subplot()
        assert plot.attention(things["head"], ax=ax) is ax.get_figure(root=True)
        assert ax.images


@pytest.mark.parametrize("suffix", MAGIC)
def test_the_suffix_selects_the_format(things: dict[str, Any], tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tanh{suffix}"
    plot.head(things["head"], path=path)
    assert path.read_bytes().startswith(MAGIC[suffix])


def test_a_failure_keeps_the_previous_file(
    things: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_half_way(self: Figure, target: Path, **_: Any) -> None:
        Path(target).write_bytes(b"\x89PNG half of it")
        raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="nowhere"):
        plot.head(things["head"], path=tmp_path / "nowhere" / "tanh.png")
    monkeypatch.setattr(Figure, "savefig", fail_half_way)
    path = tmp_path / "tanh.png"
    path.write_bytes(b"old")
    with pytest.raises(FileError, match=r"tanh\.png"):
        plot.head(things["head"], path=path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_matplotlib_is_imported_by_the_first_plot_and_pyplot_never() -> None:
    program = """
import sys, attnc, attnc.plot
assert "matplotlib" not in sys.modules
attnc.plot.head(attnc.head("tanh", domain=(-8, 8), eps=1e-5))
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
