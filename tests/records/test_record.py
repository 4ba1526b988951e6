"""Files: written whole or not at all, read with every fault named, nothing executed."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

import attnc
from attnc.errors import AttncError, CertificateError, FileError
from attnc.records.fields import seal


@pytest.fixture(scope="module")
def head() -> attnc.Head:
    return attnc.head("tanh", domain=(-8, 8), eps=1e-5)


@pytest.fixture
def path(head: attnc.Head, tmp_path: Path) -> Path:
    target = tmp_path / "tanh.safetensors"
    head.save(target)
    return target


def rewrite(path: Path, change) -> None:
    """Change the header of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def edit_record(path: Path, change, sealed: bool = False) -> None:
    def inner(header: dict) -> None:
        about = json.loads(header["__metadata__"]["attnc"])
        change(about)
        if sealed:
            about["seal"] = seal({k: v for k, v in about.items() if k != "seal"})
        header["__metadata__"]["attnc"] = json.dumps(about)

    rewrite(path, inner)


@pytest.mark.parametrize(
    "options",
    [{"eps": 1e-5}, {"anchors": 5, "heads": 2, "dtype": torch.float64}, {"anchors": 2, "design": "gated"}],
)
def test_round_trip(tmp_path: Path, options: dict) -> None:
    head = (
        attnc.head("silu", domain=(-2, 3), **options)
        if "eps" not in options
        else attnc.head("tanh", domain=(-8, 8), **options)
    )
    head.save(tmp_path / "h.safetensors")
    loaded = attnc.load(tmp_path / "h.safetensors")
    s = torch.linspace(-2, 3, 50, dtype=head.key.dtype)
    assert torch.equal(loaded(s), head(s))
    assert loaded.certificate == head.certificate
    assert loaded.design == head.design
    assert attnc.verify(tmp_path / "h.safetensors")


def test_measured_heads_round_trip(tmp_path: Path) -> None:
    head = attnc.head(lambda s: torch.lgamma(s + 4), domain=(-1, 1), anchors=4)
    head.save(tmp_path / "h.safetensors")
    loaded = attnc.load(tmp_path / "h.safetensors")
    assert not loaded.certificate.proved
    assert loaded.certificate == head.certificate
    assert loaded.certificate.status == "measured"
    assert attnc.verify(tmp_path / "h.safetensors").status == "unknown"


def test_truncated_anywhere(path: Path) -> None:
    data = path.read_bytes()
    for size in [*range(0, 16), *range(16, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(FileError):
            attnc.load(path)


@settings(max_examples=150, deadline=None, database=None)
@given(data=st.data())
def test_damaged_anywhere_is_an_error_or_noticed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, head: attnc.Head
) -> None:
    """A flipped byte never becomes a proof of something else."""
    path = tmp_path_factory.mktemp("damage") / "h.safetensors"
    head.save(path)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(raw))
    try:
        verdict = attnc.verify(path)
    except AttncError:
        return
    if verdict.status == "proved":
        assert attnc.load(path).certificate == head.certificate
        assert attnc.load(path).numbers().digests() == head.numbers().digests()


def test_foreign_files(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(save({"weight": torch.zeros(3)}))
    with pytest.raises(FileError):
        attnc.load(foreign)
    foreign.write_bytes(b"GIF89a" + bytes(100))
    with pytest.raises(FileError):
        attnc.load(foreign)
    foreign.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(FileError):
        attnc.load(foreign)
    with pytest.raises(FileError):
        attnc.load(tmp_path / "absent.safetensors")
    with pytest.raises(FileError):
        attnc.load(tmp_path)


class Boom:
    def __reduce__(self):
        return (os.mkdir, ("boom",))


def test_a_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.safetensors").write_bytes(pickle.dumps(Boom()))
    with pytest.raises(FileError):
        attnc.load(tmp_path / "p.safetensors")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_certificate_edited_by_hand(path: Path, sealed: bool) -> None:
    edit_record(path, lambda about: about["certificate"].update(bound=1e-9), sealed)
    for read in (attnc.load, attnc.verify):
        with pytest.raises(CertificateError):
            read(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.pop("dtype"),
        lambda about: about.update(extra=1),
        lambda about: about.update(kind="network"),
        lambda about: about.update(format=2),
        lambda about: about.update(dtype="float64"),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_records_of_another_shape(path: Path, change, sealed: bool) -> None:
    edit_record(path, change, sealed)
    with pytest.raises((FileError, CertificateError)):
        attnc.load(path)


@pytest.mark.parametrize("certificate", [None, {}, []])
def test_no_certificate(path: Path, certificate: object) -> None:
    edit_record(path, lambda about: about.update(certificate=certificate), sealed=True)
    with pytest.raises(CertificateError):
        attnc.load(path)


def test_record_that_is_not_json(path: Path) -> None:
    rewrite(path, lambda header: header["__metadata__"].update(attnc="{"))
    with pytest.raises(FileError):
        attnc.load(path)


def with_tensors(path: Path, head: attnc.Head, **changed: torch.Tensor | None) -> None:
    from safetensors import safe_open

    with safe_open(str(path), "pt") as file:
        metadata = file.metadata()
    tensors = {name: getattr(head, name).data for name in ("query", "key", "value", "output")} | changed
    path.write_bytes(save({k: v for k, v in tensors.items() if v is not None}, metadata=metadata))


def test_tensors_of_the_wrong_shape_dtype_or_name(path: Path, head: attnc.Head) -> None:
    wrong = {
        "key of one axis less": {"key": torch.zeros(2, 2)},
        "value with fewer anchors": {"value": torch.zeros(1, 1, 2)},
        "no output": {"output": None},
        "one more": {"bias": torch.zeros(1)},
        "mixed dtypes": {"output": torch.ones(1, dtype=torch.float64)},
        "a NaN": {"output": torch.tensor([float("nan")])},
        "whole numbers": {
            n: getattr(head, n).data.to(torch.int64) for n in ("query", "key", "value", "output")
        },
        "no anchors": {"key": torch.zeros(1, 0, 2), "value": torch.zeros(1, 0, 2)},
    }
    for name, changed in wrong.items():
        with_tensors(path, head, **changed)
        with pytest.raises(FileError):
            attnc.load(path)
            pytest.fail(name)


def test_tensors_changed_in_the_file_are_noticed(path: Path, head: attnc.Head) -> None:
    with_tensors(path, head, value=head.value.data * 1.001)
    verdict = attnc.verify(path)
    assert verdict.status == "unknown"
    assert "value" in verdict.reason


def test_a_failed_write_leaves_what_was_there(
    path: Path, head: attnc.Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def fail(self: Path, data: bytes) -> int:
        os.close(os.open(self, os.O_CREAT))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(FileError):
        head.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_does_not_exist(head: attnc.Head, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        head.save(tmp_path / "no" / "h.safetensors")


def test_numbers_survive_bit_by_bit(tmp_path: Path) -> None:
    head = attnc.head("exp", domain=(-1, 1), anchors=3, dtype=torch.float64)
    head.save(tmp_path / "e.safetensors")
    loaded = attnc.load(tmp_path / "e.safetensors").numbers()
    for name in ("query", "key", "value", "output"):
        assert np.array_equal(getattr(loaded, name), getattr(head.numbers(), name))
