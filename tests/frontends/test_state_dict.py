"""Plain state dicts: order, pairs, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attnc import functions
from attnc.errors import FileError, InputError, UnknownFunctionError, UnsupportedError
from attnc.frontends import mlp, read_state_dict, to_program
from attnc.program import Affine, Program
from tests.frontends.comparison import layer


def names(program: Program) -> list[str]:
    return [s.name for s in program.steps if isinstance(s, Affine)]


def square_layers(*prefixes: str) -> dict[str, Any]:
    return {f"{p}.weight": torch.full((2, 2), float(i)) for i, p in enumerate(prefixes)}


def test_the_state_dict_of_a_sequential_is_that_sequential() -> None:
    model = nn.Sequential(
        layer(3, 5), nn.ELU(0.5), nn.Linear(5, 4, bias=False), nn.ELU(0.5), layer(4, 2)
    ).eval()
    program = mlp(model.state_dict(), "elu(0.5)")
    assert program.digest() == to_program(model, (3,)).digest()
    with_last = mlp(model.state_dict(), functions.elu(0.5), output_activation="tanh")
    assert with_last.digest() == to_program(nn.Sequential(model, nn.Tanh()).eval(), (3,)).digest()
    arrays = {k: v.numpy() for k, v in model.state_dict().items()}
    assert mlp(arrays, "elu(0.5)").digest() == program.digest()


def test_natural_order() -> None:
    assert names(mlp(square_layers("net.10", "net.2", "net.0"), "relu")) == ["net.0", "net.2", "net.10"]
    assert names(mlp(square_layers("fc10", "fc9"), "relu")) == ["fc9", "fc10"]
    assert names(mlp(square_layers("b.1.a.2.x", "b.1.a.10.x"), "relu")) == ["b.1.a.2.x", "b.1.a.10.x"]


def test_order_as_asked() -> None:
    layers = square_layers("out", "hidden", "first")
    program = mlp(layers, "relu", order=["first", "hidden", "out"])
    assert names(program) == ["first", "hidden", "out"]
    assert float(program.steps[0].tensors()["weight"][0, 0]) == 2.0
    assert names(mlp(layers, "relu", order=("out", "hidden", "first", "hidden"))) == [
        "out",
        "hidden",
        "first",
        "hidden",
    ]
    with pytest.raises(InputError, match="'hidden'"):
        mlp(layers, "relu", order=["first", "hidden", "out", "last"])
    with pytest.raises(InputError, match="'hidden'"):
        mlp(layers, "relu", order=["first", "out"])
    for order in ("first", 3):
        with pytest.raises(InputError):
            mlp(layers, "relu", order=order)  # type: ignore[arg-type]


def test_a_single_layer_without_a_prefix() -> None:
    program = mlp(nn.Linear(3, 2).state_dict(), "relu")
    assert program.shapes == ((3,), (2,)) and names(program) == [""]


def test_every_problem_is_told() -> None:
    tensors = {
        "0.weight": torch.ones(2, 3),
        "1.weight": torch.ones(2),
        "1.bias": torch.ones(2),
        "1.running_mean": torch.ones(2),
        "1.num_batches_tracked": torch.tensor(3),
        "2.weight": torch.ones(2, 2, 3),
        "3.bias": torch.ones(2),
        "4.weight": torch.ones(2, 2).half(),
        "5.weight": torch.full((2, 2), torch.nan),
        "6.weight": [[1.0]],
        "7.weight": torch.ones(2, 2).double(),
        "8.scale": torch.ones(2),
    }
    with pytest.raises(UnsupportedError) as raised:
        mlp(tensors, "relu")
    told = [str(p) for p in raised.value.problems]
    for expected in (
        "1: is a BatchNorm",
        "8.scale: is neither weight nor bias",
        "2.weight: has the shape (2, 2, 3)",
        "3.bias: has no 3.weight beside it",
        "4.weight: is of torch.float16",
        "5.weight: holds NaN",
        "6.weight: is of type list",
        "the state dict: mixes dtypes: 0.weight is of float32, 7.weight is of float64",
    ):
        assert any(t.startswith(expected) for t in told), (expected, told)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False), nn.LayerNorm(4), nn.PReLU(4)], ids=str
)
def test_a_norm_is_named_and_never_left_out(norm: nn.Module) -> None:
    """Without its tensors the file is that of another network, and its bound would be about that one."""
    model = nn.Sequential(layer(3, 4), norm, nn.GELU(), layer(4, 2)).eval()
    with pytest.raises(UnsupportedError) as raised:
        mlp(model.state_dict(), "gelu")
    assert [problem.where for problem in raised.value.problems] == ["1"]
    assert "leave it out" not in str(raised.value) and "attnc.compile(model" in str(raised.value)
    named = {"fc1.weight": torch.ones(2, 2), "bn1.weight": torch.ones(2), "bn1.running_var": torch.ones(2)}
    with pytest.raises(UnsupportedError):  # not: give the order of the layers
        mlp(named, "gelu")


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        (
            {"0.weight": torch.ones(4, 3), "1.weight": torch.ones(2, 5)},
            r"\(1\) does not fit: .* 5 features.*\(4,\)",
        ),
        (
            {"0.weight": torch.ones(4, 3), "0.bias": torch.ones(3)},
            r"0: .*\(4, 3\).*\(3,\)",
        ),
        ({"0.weight": torch.ones(4, 0)}, r"0: .*\(4, 0\)"),
        ({}, "holds no weight"),
        ({"a.weight": np.ones((2, 2), dtype=np.int64)}, "a.weight: is of int64"),
        ({"a.weight": np.ones((2, 2), dtype=np.float16)}, "a.weight: is of float16"),
    ],
)
def test_refused(tensors: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        mlp(tensors, "relu")


def test_arguments() -> None:
    layers = square_layers("a", "b")
    with pytest.raises(UnknownFunctionError, match="'rellu'"):
        mlp(layers, "rellu")
    with pytest.raises(InputError, match="'gelu'"):
        mlp(layers, torch.relu)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="state_dict"):
        mlp(nn.Linear(1, 1), "relu")  # type: ignore[arg-type]
    with pytest.raises(InputError):
        mlp({0: torch.ones(1, 1)}, "relu")  # type: ignore[dict-item]


def test_files(tmp_path: Path) -> None:
    model = nn.Sequential(layer(3, 4), nn.ReLU(), layer(4, 1)).eval()
    path = tmp_path / "model.safetensors"
    save_file(model.state_dict(), path)
    assert mlp(read_state_dict(path), "relu").digest() == to_program(model, (3,)).digest()
    assert read_state_dict(str(path)).keys() == model.state_dict().keys()
    data = path.read_bytes()
    for cut in (0, 4, 40, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(FileError):
            read_state_dict(path)


def test_files_that_could_run_code(tmp_path: Path) -> None:
    advice = r"safetensors\.torch\.save_file\(model\.state_dict\(\)"
    for name, new in (("a.pt", True), ("b.safetensors", True), ("c.bin", False), ("d.safetensors", False)):
        torch.save({"weight": torch.ones(1)}, tmp_path / name, _use_new_zipfile_serialization=new)
        with pytest.raises(FileError, match=advice):
            read_state_dict(tmp_path / name)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nothing\.safetensors"):
        read_state_dict(tmp_path / "nothing.safetensors")
    with pytest.raises(FileError):
        read_state_dict(tmp_path)
    with pytest.raises(InputError):
        read_state_dict(3)  # type: ignore[arg-type]
