"""attnc reproduce: the whole in small, interrupted and not, and what it refuses."""

from __future__ import annotations

import csv
import importlib
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from attnc.cli import main
from attnc.paper.experiments import Record, Results, Setting, settings, sweep

command = importlib.import_module("attnc.cli.reproduce")
FIGURES = ("heads", "range", "anchors", "learning-curves", "heat-maps", "seq2seq")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce")
    assert main(["reproduce", "all", "--quick", "--seeds", "1", "--jobs", "1", "-o", str(folder)]) == 0
    return folder


def test_the_whole_in_small(quick: Path) -> None:
    found = Results.read(quick)
    assert {record.setting for record in found} == set(settings("all", 1, quick=True))
    with open(quick / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found) and {row["torch"] for row in rows} == {found.versions["torch"]}
    assert "seconds" in (quick / "times.csv").read_text()
    for name in FIGURES:
        assert (quick / "figures" / f"{name}.png").stat().st_size > 10_000
        assert (quick / "figures" / f"{name}.svg").read_text().startswith("<?xml")
        assert f"figures/{name}.svg" in (quick / "report.md").read_text()
        assert f"figures/{name}.svg" in (quick / "report.html").read_text()


def test_built_beats_trained_in_small(quick: Path) -> None:
    found = Results.read(quick)
    for name in ("truncated", "seq2seq"):
        trained = [record.mse for record in found.where(experiment=name, method="trained")]
        built = [record.mse for record in found.where(experiment=name, method=("placed", "heads"))]
        assert max(built) < 1e-10 and min(trained) > 1e-2


def test_again_runs_nothing_and_a_damaged_record_alone(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of the sweep, of records that are there."""
    part = ["reproduce", "heatmaps", "--quick", "--seeds", "1", "--jobs", "1", "-o", str(quick)]
    assert main(part) == 0
    out = capsys.readouterr().out
    assert "heat-map" in out and "seq2seq" not in out
    before = [(quick / name).read_bytes() for name in ("results.json", "results.csv", "times.csv")]
    victim = next(path for path in (quick / "records").iterdir() if path.name.startswith("heat-map-nearest"))
    victim.write_text(victim.read_text().replace('"mse": ', '"mse": 1', 1))
    assert main([*part, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["redone"]) == 1 and victim.name in said["redone"][0] and "seal" in said["redone"][0]
    after = [(quick / name).read_bytes() for name in ("results.json", "results.csv", "times.csv")]
    assert after[:2] == before[:2]
    changed = [
        a for a, b in zip(*(text.splitlines() for text in (after[2], before[2])), strict=True) if a != b
    ]
    assert len(changed) == 1 and changed[0].startswith(victim.stem.encode())


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["everything"], "there is no sweep 'everything'"),
        (["heads", "--seeds", "0"], "whole number from 1 to 1000"),
        (["heads", "--jobs", "0"], "whole number from 1 to 1024"),
        (["heads", "--backend", "slurm"], "there is no backend 'slurm'"),
        (["heads", "--backend", "threading"], "share the precision"),
        (["heads", "--address", "tcp://x"], "the backend loky has none"),
    ],
)
def test_bad_input(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main(["reproduce", *arguments, "--quick", "-o", str(folder)]) == 2
    assert said in capsys.readouterr().err
    assert not folder.exists()


def test_a_file_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("mine")
    assert main(["reproduce", "heads", "--quick", "-o", str(tmp_path / "out")]) == 2
    assert "cannot keep records" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


def test_files_that_no_sweep_has_left_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.csv").write_text("mine")
    assert main(["reproduce", "heads", "--quick", "-o", str(tmp_path)]) == 2
    assert "results.csv and no records" in capsys.readouterr().err
    assert (tmp_path / "results.csv").read_text() == "mine"
    assert main(["reproduce", "heads", "--quick", "-o", ""]) == 2


def test_failing_runs_end_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(setting: Setting) -> Record:
        raise ArithmeticError(setting.method)

    monkeypatch.setattr("attnc.paper.experiments.sweep", partial(sweep, run=fail))
    assert (
        main(
            ["reproduce", "heatmaps", "--quick", "--seeds", "1", "--jobs", "1", "-o", str(tmp_path), "--json"]
        )
        == 1
    )
    printed = capsys.readouterr()
    assert "4 of 4 runs failed" in printed.err
    assert len(json.loads(printed.out)["error"]["failures"]) == 4


def test_a_training_that_diverged_is_counted() -> None:
    setting = settings("heads", 2, quick=True)[0]
    record = Record(setting, 1.0, 1.0, None, (), None, None, 1, None, 1.0, 1.0, None, None, "", 1.0)
    (row,) = command._rows(
        Results((record, replace(record, setting=replace(setting, seed=1235), mse=math.nan)))
    )
    assert (row["mse"], row["highest"], row["diverged"]) == (1.0, 1.0, 1)
