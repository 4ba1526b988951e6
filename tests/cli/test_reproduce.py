"""attnc reproduce: the whole in small, interrupted and not, and what it refuses."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from attnc.cli import main
from attnc.cli.reproduce import summary
from attnc.paper import experiments
from attnc.paper.experiments import Record, Setting, frame, settings, sweep

pytest.importorskip("pandas")
FIGURES = ("heads", "range", "anchors", "learning-curves", "heat-maps", "seq2seq")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce")
    assert main(["reproduce", "all", "--quick", "--seeds", "1", "--jobs", "1", "-o", str(folder)]) == 0
    return folder


def test_the_whole_in_small(quick: Path) -> None:
    with open(quick / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["key"] for row in rows} == {one.key for one in settings("all", 1, quick=True)}
    assert "seconds" in (quick / "times.csv").read_text()
    for name in FIGURES:
        assert (quick / "figures" / f"{name}.png").stat().st_size > 10_000
        assert (quick / "figures" / f"{name}.svg").read_text().startswith("<?xml")
        assert f"figures/{name}.svg" in (quick / "report.md").read_text()


def test_built_beats_trained_in_small(quick: Path) -> None:
    table = frame(sweep(settings("all", 1, quick=True), quick, jobs=1))
    for name in ("truncated", "seq2seq"):
        runs = table[table.experiment == name]
        assert runs[runs.method.isin(["placed", "heads"])].mse.max() < 1e-10
        assert runs[runs.method == "trained"].mse.min() > 1e-2


def test_again_runs_nothing_and_a_damaged_record_alone(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of the sweep, of records that are there."""
    part = ["reproduce", "heatmaps", "--quick", "--seeds", "1", "--jobs", "1", "-o", str(quick)]
    assert main(part) == 0
    out = capsys.readouterr().out
    assert "heat-map" in out and "seq2seq" not in out
    before = [(quick / name).read_bytes() for name in ("results.csv", "times.csv")]
    victim = next(path for path in (quick / "records").iterdir() if path.name.startswith("heat-map-nearest"))
    victim.write_text(victim.read_text().replace('"mse": ', '"mse": 1', 1))
    with pytest.warns(UserWarning, match=victim.name):
        assert main([*part, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == sum(row["diverged"] == 0 for row in printed["rows"]) == 4
    after = [(quick / name).read_bytes() for name in ("results.csv", "times.csv")]
    assert after[0] == before[0]
    changed = [
        a for a, b in zip(*(text.splitlines() for text in (after[1], before[1])), strict=True) if a != b
    ]
    assert len(changed) == 1 and changed[0].startswith(victim.stem.encode())


@pytest.mark.parametrize(
    "arguments, name",
    [
        (["everything"], "sweep='everything'"),
        (["heads", "--seeds", "0"], "--seeds 0"),
        (["heads", "--jobs", "0"], "--jobs 0"),
    ],
)
def test_bad_input(
    arguments: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main(["reproduce", *arguments, "--quick", "-o", str(folder)]) == 2
    assert name in capsys.readouterr().err
    assert not folder.exists()


def test_a_file_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("mine")
    assert main(["reproduce", "heads", "--quick", "-o", str(tmp_path / "out")]) == 2
    assert str(tmp_path / "out") in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


def test_files_that_no_sweep_has_left_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.csv").write_text("mine")
    assert main(["reproduce", "heads", "--quick", "-o", str(tmp_path)]) == 2
    assert "results.csv" in capsys.readouterr().err
    assert (tmp_path / "results.csv").read_text() == "mine"
    assert main(["reproduce", "heads", "--quick", "-o", ""]) == 2


def test_failing_runs_end_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(setting: Setting) -> Record:
        raise ArithmeticError(setting.method)

    monkeypatch.setattr(experiments, "sweep", partial(sweep, run=fail))
    assert (
        main(
            ["reproduce", "heatmaps", "--quick", "--seeds", "1", "--jobs", "1", "-o", str(tmp_path), "--json"]
        )
        == 1
    )
    printed = capsys.readouterr()
    assert "4 of 4" in printed.err
    assert len(json.loads(printed.out)["error"]["failures"]) == 4


def test_a_training_that_diverged_is_counted() -> None:
    setting = settings("heads", 2, quick=True)[0]
    record = Record(setting, 1.0, 1.0, 1, 1.0, 1.0, "", 1.0)
    other = replace(record, setting=replace(setting, seed=1235), mse=math.nan)
    (row,) = summary([record, other]).to_dict("records")
    assert (row["mse"], row["highest"], row["diverged"]) == (1.0, 1.0, 1)
