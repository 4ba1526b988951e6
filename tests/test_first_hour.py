"""Mistakes of a first hour: every error says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.errors import AttncError, FileError, InputError


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"is a directory; .*attnc\.from_pretrained"):
        attnc.load(tmp_path)
    torch.save({"w": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(FileError, match=r"files of torch\.save or joblib are never read"):
        attnc.load(tmp_path / "model.pt")
    with pytest.raises(FileError, match=r"none\.safetensors: No such file or directory$"):
        attnc.load(tmp_path / "none.safetensors")
    head = attnc.head("relu", domain=(-1, 1), eps=1e-2)
    with pytest.raises(FileError, match="does not exist; make it first"):
        head.save(tmp_path / "missing" / "head.safetensors")


def test_functions_of_two_arguments_and_of_numpy() -> None:
    box = attnc.Box(-1, 1, shape=(1, 2))

    def two(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    with pytest.raises(InputError, match="f is called with one tensor"):
        attnc.compile(two, domain=box, eps=1e-2)

    def fails(x: Tensor) -> Tensor:
        raise TypeError("its own")

    with pytest.raises(InputError, match=r"TypeError: its own$"):
        attnc.compile(fails, domain=box, eps=1e-2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numpy_inside_of_a_function() -> None:
    """Its operations cannot be recorded, so its error is measured, and the notes say why."""
    box = attnc.Box(-1, 1, shape=(1, 2))
    net = attnc.compile(lambda x: np.sin(x[..., :1] * x[..., 1:]), domain=box, eps=1e-2, dtype=torch.float64)
    assert net.certificate.status == "measured" and any("outside torch" in note for note in net.notes)


def test_the_box_has_the_wrong_width() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).eval()
    with pytest.raises(AttncError, match=r"takes 4 features, .*give a box of the shape \(4,\)"):
        attnc.compile(model, domain=attnc.Box(-1, 1, shape=(5,)), eps=1e-2)
    inside = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(4, 1)).eval()  # no box mends this one
    with pytest.raises(AttncError, match="takes 4 features") as raised:
        attnc.compile(inside, domain=attnc.Box(-1, 1, shape=(5,)), eps=1e-2)
    assert "give a box" not in str(raised.value)


def test_a_measured_certificate_does_not_speak_of_every_input() -> None:
    text = str(attnc.head(lambda s: s * s, domain=(-1, 1), eps=1e-2).certificate)
    assert "holds for:   the inputs that were tried in [-1, 1]" in text and "every input" not in text


def test_token_ids_that_are_floats() -> None:
    p = attnc.tokens.program("ab", max_len=3)
    net = p.compile(p.get(p.indices == 0, p.tokens))
    with pytest.raises(InputError, match=r"ids\.long\(\)"):
        net(torch.tensor([0.0, 1.0]))
