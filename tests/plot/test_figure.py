"""The whole figure: written whole or not at all, and without a trace in matplotlib's global state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import attnc
from attnc import plot

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def test_three_pictures_over_one_axis(relu: attnc.Head) -> None:
    figure = plot.head(relu)
    top, middle, bottom, scale = figure.axes
    assert top.get_xlim() == middle.get_xlim() == bottom.get_xlim() == (-1, 1)
    assert (len(top.images), len(middle.images), len(bottom.images)) == (0, 0, 1)
    assert scale.get_ylim() == (0, 1)
    assert figure.get_suptitle().startswith("relu on [-1, 1]: 12 anchors, graded, float64")
    assert "proved" in figure.get_suptitle()


@pytest.mark.parametrize("suffix", [".PNG", ".svg", ".pdf"])
def test_the_suffix_chooses_the_format(tanh: attnc.Head, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tanh{suffix}"
    plot.head(tanh, path)
    assert path.read_bytes().startswith(MAGIC[suffix.lower()])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["tanh.docx", "tanh", "png"])
def test_an_unknown_suffix_is_refused(tanh: attnc.Head, tmp_path: Path, name: str) -> None:
    with pytest.raises(attnc.InputError):
        plot.head(tanh, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_what_was_there(
    tanh: attnc.Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    def half(self: Figure, target: Path, **_: Any) -> None:
        Path(target).write_bytes(b"\x89PNG half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    path = tmp_path / "tanh.png"
    path.write_bytes(b"old")
    with pytest.raises(attnc.FileError):
        plot.head(tanh, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_directory_is_told(tanh: attnc.Head, tmp_path: Path) -> None:
    with pytest.raises(attnc.FileError):
        plot.head(tanh, tmp_path / "nowhere" / "tanh.png")


@pytest.mark.parametrize("draw", [plot.attention, plot.function, plot.error, plot.head])
def test_without_matplotlib_it_says_what_to_install(
    tanh: attnc.Head, monkeypatch: pytest.MonkeyPatch, draw: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(attnc.MissingExtraError, match=r"'attnc\[plot\]'"):
        draw(tanh)


def test_nothing_of_matplotlib_is_imported_early_or_left_behind() -> None:
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
