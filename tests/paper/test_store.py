"""Damaged records are noticed, and everything that a run can give is read back."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnc.paper.experiments.sweeps as store
from attnc.errors import FileError
from attnc.paper.experiments.protocol import QUICK
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.sweeps import frame, load_record, prepare, record_path, save_record, versions

SETTING = QUICK.heat_map
RECORD = Record(
    SETTING,
    mse=0.12345678901234567,
    largest=1.5,
    parameters=12,
    spread=2.0,
    constant=1.0,
    cpu="AVX2",
    seconds=0.25,
    start=0.5,
    curve=[0.3, 0.2],
    bound=1e-9,
    anchors=6,
    weights=[[[0.25, 0.75], [1.0, 0.0]]],
    picked=0.5,
)
WILD = replace(RECORD, mse=math.nan, largest=math.inf, start=math.inf, curve=[1.0, math.nan], picked=math.nan)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(tmp_path / "out")
    save_record(tmp_path / "out", RECORD)
    return tmp_path / "out"


def test_records_are_read_back(folder: Path) -> None:
    assert load_record(folder, SETTING) == RECORD
    assert load_record(folder, replace(SETTING, seed=1)) is None
    assert [path.name for path in (folder / "records").iterdir()] == [f"{SETTING.key}.json"]
    save_record(folder, WILD)
    found = load_record(folder, SETTING)
    assert found is not None and math.isnan(found.mse) and math.isnan(found.curve[1])
    assert (found.largest, found.start, found.weights) == (math.inf, math.inf, RECORD.weights)


def test_every_cut_and_every_changed_digit_is_noticed(folder: Path) -> None:
    path = record_path(folder, SETTING)
    text = path.read_text()
    digits = [at for at, letter in enumerate(text) if letter.isdigit()]
    changed = [text[:at] + str((int(text[at]) + 5) % 10) + text[at + 1 :] for at in digits]
    for damaged in (*(text[:length] for length in range(0, len(text) - 1, 7)), *changed):
        path.write_text(damaged)
        with pytest.raises(FileError, match=SETTING.key):
            load_record(folder, SETTING)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"[]", b"null", b'{"record": 1}', b"[" * 100_000, b"\0" * 500]
)
def test_other_content_is_refused(folder: Path, content: bytes) -> None:
    record_path(folder, SETTING).write_bytes(content)
    with pytest.raises(FileError, match=SETTING.key):
        load_record(folder, SETTING)


def _rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the stored record, with a checksum that matches."""
    body = json.loads(record_path(folder, SETTING).read_text())
    del body["sha256"]
    change(body)
    record_path(folder, SETTING).write_text(json.dumps({**body, "sha256": store._checksum(body)}))


def test_records_of_other_versions_and_fields_are_refused(folder: Path) -> None:
    _rewrite(folder, lambda body: body["record"].update(more=1))
    with pytest.raises(FileError, match="more"):
        load_record(folder, SETTING)
    _rewrite(folder, lambda body: body["versions"].update(torch="1.0"))
    with pytest.raises(FileError, match=r"'torch': '1\.0'"):
        load_record(folder, SETTING)
    other = replace(SETTING, seed=7)
    save_record(folder, RECORD)
    os.replace(record_path(folder, SETTING), record_path(folder, other))
    with pytest.raises(FileError, match="1234"):
        load_record(folder, other)


def test_a_failed_write_keeps_the_old_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FileError, match="No space left"):
        save_record(folder, replace(RECORD, mse=9.0))
    assert load_record(folder, SETTING) == RECORD


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileError, match="file"):
            prepare(place)


def test_results_as_csv(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    other = replace(WILD, setting=QUICK.truncated, mse=math.inf, weights=None, picked=None, anchors=None)
    store.write_results((RECORD, other), tmp_path)
    with open(tmp_path / "results.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["mse"]) == RECORD.mse and first["python"] == versions()["python"]
    assert (first["theorem"], first["anchors"], second["anchors"], second["mse"]) == ("", "6", "", "inf")
    assert "seconds" not in first
    assert (tmp_path / "times.csv").read_text().splitlines()[:2] == ["key,seconds", f"{SETTING.key},0.25"]


def test_the_frame_has_one_row_per_run() -> None:
    pytest.importorskip("pandas")
    table = frame(
        [replace(RECORD, setting=replace(SETTING, heads=h, seed=s)) for h in (1, 2) for s in (1, 2)]
    )
    assert table[table.heads == 2].seed.tolist() == [1, 2] and table.mse.unique().tolist() == [RECORD.mse]


def test_other_sources_are_other_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the code that builds, trains or measures makes stored records unusable; a change of the report does not."""
    place = tmp_path / "attnc" / "paper" / "experiments"
    place.mkdir(parents=True)
    monkeypatch.setattr(store, "__file__", str(place / "store.py"))
    codes = []
    for name, text in (("run.py", "a = 1"), ("run.py", "a = 2"), ("report.py", "b = 1"), ("run.py", "a = 1")):
        (place / name).write_text(text)
        versions.cache_clear()
        codes.append(versions()["code"])
    versions.cache_clear()
    assert codes[0] == codes[3] != codes[1] == codes[2]
