"""Every way a record can be damaged is noticed, and whatever a run can give comes back."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

import attnc.paper.experiments.store as store_module
from attnc.errors import FileError, InputError
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.results import Results
from attnc.paper.experiments.settings import QUICK
from attnc.paper.experiments.store import Store, Unusable, _seal, versions

SETTING = QUICK.heat_map
WEIGHTS = (((0.25, 0.75), (1.0, 0.0)),)
RECORD = Record(
    SETTING,
    0.12345678901234567,
    1.5,
    0.5,
    (0.3, 0.2),
    1e-9,
    None,
    12,
    6,
    2.0,
    1.0,
    WEIGHTS,
    0.5,
    "AVX2",
    0.25,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "out")
    made.write(RECORD)
    return made


def _reason(store: Store) -> str:
    found = store.read(SETTING)
    assert isinstance(found, Unusable), found
    return found.reason


def _sealed(store: Store, **changes: object) -> str:
    """The file's text with other contents and a seal that fits."""
    body = json.loads(store.path(SETTING).read_text())
    del body["sha256"]
    body.update(changes)
    return json.dumps({**body, "sha256": _seal(body)})


def test_a_record_comes_back(store: Store) -> None:
    assert store.read(SETTING) == RECORD
    assert store.read(replace(SETTING, seed=1)) is None
    assert [path.name for path in store.path(SETTING).parent.iterdir()] == [f"{SETTING.key}.json"]


def test_a_diverged_run_comes_back(store: Store) -> None:
    wild = replace(
        RECORD, mse=math.nan, largest=math.inf, start=math.inf, curve=(1.0, math.nan), picked=math.nan
    )
    store.write(wild)
    json.loads(store.path(SETTING).read_text(), parse_constant=lambda name: pytest.fail(name))
    found = store.read(SETTING)
    assert isinstance(found, Record) and math.isnan(found.mse) and math.isnan(found.curve[1])
    assert (found.largest, found.start, found.weights) == (math.inf, math.inf, WEIGHTS)


def test_cut_off_anywhere(store: Store) -> None:
    text = store.path(SETTING).read_text()
    for length in range(len(text) - 1):  # the last character is the end of the line
        store.path(SETTING).write_text(text[:length])
        assert "not JSON" in _reason(store)


def test_any_digit_changed(store: Store) -> None:
    text = store.path(SETTING).read_text()
    digits = [at for at, letter in enumerate(text) if letter.isdigit()]
    assert len(digits) > 100
    for at in digits:
        store.path(SETTING).write_text(text[:at] + str((int(text[at]) + 5) % 10) + text[at + 1 :])
        _reason(store)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[]", "not a record"),
        (b"null", "not a record"),
        (b'{"format": 1}', "seal"),
        (b'{"format": true}', "format True"),
        (b'{"format": 2}', "format 2"),
        (b'{"format": NaN}', "NaN"),
        (b"[" * 100_000, "recursion"),
        (b"\0" * 500, "not JSON"),
    ],
)
def test_something_else_in_its_place(store: Store, content: bytes, reason: str) -> None:
    store.path(SETTING).write_bytes(content)
    assert reason in _reason(store)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mse", None), ("mse", "0.1"), ("mse", [0.1]), ("largest", True), ("curve", 0.1), ("curve", ["x"]), ("bound", "nan"),
        ("theorem", "nan"), ("parameters", "nan"), ("parameters", 1.5), ("anchors", -1), ("spread", "inf"),
        ("weights", [[0.5]]), ("picked", []), ("seconds", "nan"), ("setting", None), ("setting", {}), ("more", 1),
    ],
)  # fmt: skip
def test_a_sealed_record_of_wrong_type(store: Store, field: str, value: object) -> None:
    record = json.loads(store.path(SETTING).read_text())["record"]
    store.path(SETTING).write_text(_sealed(store, record={**record, field: value}))
    assert _reason(store)


def test_other_versions(store: Store) -> None:
    store.path(SETTING).write_text(_sealed(store, versions={**versions(), "torch": "1.0"}))
    assert "made with torch 1.0" in _reason(store)
    store.path(SETTING).write_text(_sealed(store, versions={"torch": "1.0"}))
    assert "other versions" in _reason(store)


def test_the_record_of_another_run(store: Store) -> None:
    other = replace(SETTING, seed=7)
    os.replace(store.path(SETTING), store.path(other))
    found = store.read(other)
    assert isinstance(found, Unusable) and f"another run: {SETTING.key}" in found.reason


def test_a_directory_in_its_place_is_set_aside(store: Store) -> None:
    for count in (1, 2):
        store.path(SETTING).unlink()
        store.path(SETTING).mkdir()
        (store.path(SETTING) / "notes.txt").write_text("mine")
        assert "cannot be read" in _reason(store)
        store.write(RECORD)
        assert store.read(SETTING) == RECORD
        aside = store.path(SETTING).with_name(f"{SETTING.key}.json.set-aside-{count}")
        assert (aside / "notes.txt").read_text() == "mine"


def test_leftovers_are_swept_away_and_never_read(store: Store) -> None:
    leftover = store.path(SETTING).with_name(f".{SETTING.key}.json.123.part")
    store.path(SETTING).rename(leftover)
    assert store.read(SETTING) is None
    again = Store(store.directory)
    assert not leftover.exists() and again.read(SETTING) is None


def test_a_write_that_fails_leaves_what_was_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError):
        store.write(replace(RECORD, mse=9.0))
    assert store.read(SETTING) == RECORD
    assert len(list(store.path(SETTING).parent.iterdir())) == 1


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "below"):
        with pytest.raises(FileError):
            Store(place)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "records").write_text("mine")
    with pytest.raises(FileError):
        Store(tmp_path / "out")
    for wrong in (None, 3, ""):
        with pytest.raises(InputError):
            Store(wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere"
)
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(FileError):
            Store(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_results_there_and_back(tmp_path: Path) -> None:
    wild = replace(
        RECORD, setting=QUICK.truncated, mse=math.inf, curve=(math.nan,), weights=None, picked=None
    )
    results = Results((RECORD, wild, replace(RECORD, setting=replace(SETTING, method="nearest"))))
    results.write(tmp_path)
    again = Results.read(tmp_path)
    assert again.records[0] == RECORD and again.versions == versions() and len(again) == 3
    assert again.records[1].mse == math.inf and math.isnan(again.records[1].curve[0])
    json.loads((tmp_path / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    head, first, second, _ = (tmp_path / "results.csv").read_text().splitlines()
    row = dict(zip(head.split(","), first.split(","), strict=True))
    assert float(row["mse"]) == RECORD.mse and row["theorem"] == "" and row["python"] == versions()["python"]
    assert dict(zip(head.split(","), second.split(","), strict=True))["mse"] == "inf"
    assert "seconds" not in head and '"seconds"' not in (tmp_path / "results.json").read_text()
    assert (tmp_path / "times.csv").read_text().splitlines()[:2] == ["key,seconds", f"{SETTING.key},0.25"]


def test_results_selected() -> None:
    records = [replace(RECORD, setting=replace(SETTING, heads=h, seed=s)) for h in (1, 2, 4) for s in (1, 2)]
    results = Results(tuple(records))
    assert [r.setting.heads for r in results.where(heads=(2, 4), seed=1)] == [2, 4]
    assert len(results.where()) == 6 and len(results.where(method="nearest")) == 0
    with pytest.raises(InputError):
        results.where(head=1)


def test_results_damaged(tmp_path: Path) -> None:
    Results((RECORD,)).write(tmp_path)
    (tmp_path / "times.csv").write_text("key,seconds\n")
    with pytest.raises(FileError):
        Results.read(tmp_path)
    for times in ("", "key,seconds\na,b\n", "key,seconds\na\n", "key,time\n"):
        (tmp_path / "times.csv").write_text(times)
        with pytest.raises(FileError):
            Results.read(tmp_path)
    Results((RECORD,)).write(tmp_path)
    whole = (tmp_path / "results.json").read_text()
    for text in (whole[:-9], "[]", whole.replace("0.75", "NaN"), whole.replace('"mse"', '"mess"'), "{}"):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(FileError):
            Results.read(tmp_path)
    (tmp_path / "results.json").unlink()
    with pytest.raises(FileError):
        Results.read(tmp_path)


def test_another_source_is_another_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of one version of the sources are not taken for those of another."""
    folder = tmp_path / "attnc" / "prove"
    folder.mkdir(parents=True)
    monkeypatch.setattr(store_module.certificate, "__file__", str(folder / "certificate.py"))
    found = []
    for text in ("a = 1", "a = 2", "a = 1"):
        (folder / "certificate.py").write_text(text)
        store_module._code.cache_clear()
        found.append(versions()["code"])
    store_module._code.cache_clear()
    assert found[0] == found[2] != found[1]
