"""The report: every number comes from the records, and unusual records do not break it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnc.errors import InputError
from attnc.paper.experiments import Record, settings
from attnc.paper.experiments.report import (
    TITLES,
    Fit,
    checked_frame,
    figure_names,
    learning_runs,
    markdown,
    sweep_runs,
    verdict,
)
from tests.paper.synthetic_records import all_records, synthetic

pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return all_records()


@pytest.fixture(scope="module")
def text(records: list[Record]) -> str:
    return markdown(records)


def rows(text: str, title: str, nth: int = 0) -> list[dict[str, str]]:
    """The nth table of this title, a dictionary for each row."""
    head, _, *body = text.split(f"**{title}**\n\n")[nth + 1].split("\n\n")[0].splitlines()
    names, *cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in (head, *body))
    return [dict(zip(names, row, strict=True)) for row in cells]


def test_the_papers_results_are_beside_ours(records: list[Record], text: str) -> None:
    row = rows(text, "Trained networks")[0]
    ours = [r.mse for r in records if r.setting.key.startswith("truncated-trained-n50-d10-p60-h1-w32-a-25-")]
    mean = sum(ours) / 3
    assert row["test MSE"] == f"{mean:.3g} ({min(ours):.3g} … {max(ours):.3g})"
    assert (row["heads H"], row["median"]) == ("1", f"{sorted(ours)[1]:.3g}")
    assert (row["paper's MSE"], row["/ paper's"], row["limits"]) == (
        "0.144",
        f"{mean / 0.1438:.3g}",
        "0.65 … 1.35",
    )
    assert row["/ constant"] == f"{mean / 5:.3g}"
    keys = [one for one in rows(text, "Trained networks", 2) if one["method"] == "trained"]
    assert [one["limits"] for one in keys] == ["0.65 … 1.35", "—", "0.5 … 2", "0.5 … 2"]
    assert keys[1]["paper's MSE"] == "0.049 (0.005 … 0.117)"
    assert "limits" not in rows(text, "Trained networks", 3)[0]
    assert rows(text, "Trained networks", 3)[0]["paper's / variance"] == f"{15.4 / 55.3:.3g}"


def test_built_networks_are_compared_with_trained_ones(records: list[Record], text: str) -> None:
    (row,) = (r for r in rows(text, "Built networks", 2) if (r["method"], r["keys p"]) == ("graded", "120"))
    ours = [r for r in records if r.setting.method == "graded" and r.setting.p == 120]
    trained = [r.mse for r in records if r.setting.method == "trained" and r.setting.p == 120]
    assert row["largest error"] == f"{max(r.largest for r in ours):.3g}"
    assert row["proved bound"] == f"{max(r.bound or 0 for r in ours):.3g}"
    assert (row["theorem's bound"], row["anchors"], row["parameters"]) == ("—", "120", "8,840")
    assert row["/ trained"] == f"{sum(r.mse for r in ours) / sum(trained):.3g}"
    placed = [r for r in rows(text, "Built networks") if r["method"] == "placed"]
    assert {row["proved bound"] for row in placed} == {"measured"}


def test_slopes_are_compared_with_the_theorems(text: str) -> None:
    heads, widths, keys = ({r["method"]: r for r in rows(text, "Slopes", n)} for n in range(3))
    assert float(heads["many-heads"]["slope"]) == pytest.approx(-2, abs=0.03)
    assert (heads["many-heads"]["theorem's"], heads["many-heads"]["runs"]) == ("-2", "15 of 15")
    assert (
        heads["many-heads"]["verdict"] == "falls; consistent"
        and heads["trained"]["verdict"] == "falls; flatter"
    )
    assert (heads["placed"]["slope"], heads["placed"]["verdict"]) == ("—", "independent of the size")
    assert "nearest" not in heads  # one size
    assert float(keys["nearest"]["slope"]) == pytest.approx(-2, abs=0.1)
    assert keys["graded"]["verdict"] == "falls; steeper"
    last = rows(text, "Slopes", 1)[-1]
    assert (last["method"], last["fitted"], last["theorem's"]) == ("nearest", "largest error", "1")
    assert last["verdict"] == "grows; consistent" and widths["trained"]["theorem's"] == "—"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-2.1, -1.9, "falls; consistent"), (-3.1, -2.2, "falls; steeper"), (-1.9, -1.0, "falls; flatter"),
        (-0.5, 0.0, "does not clearly fall; flatter"), (-3.0, -1.9, "falls; undecided"),
        (-4.0, 0.5, "does not clearly fall; undecided"), (math.nan, math.nan, "—"),
    ],
)  # fmt: skip
def test_verdicts_use_the_whole_interval(low: float, high: float, expected: str) -> None:
    assert verdict(Fit((low + high) / 2, low, high, 9), -2.0) == expected


def test_bounds_and_trainings_are_counted(records: list[Record], text: str) -> None:
    proved, theorem = (sum(getattr(r, name) is not None for r in records) for name in ("bound", "theorem"))
    assert (
        f"proved bound in {proved} of {proved} runs" in text and f"bound in {theorem} of {theorem}." in text
    )
    graded = sum(r.setting.method == "graded" for r in records)
    broken = [replace(r, bound=r.largest / 2) if r.setting.method == "graded" else r for r in records]
    assert f"proved bound in {proved - graded} of {proved} runs" in markdown(broken)
    one = next(r for r in records if r.curve)  # the constant output has 5, the variance is 6
    for mse, poor in ((4.9, 0), (5.1, 1)):
        found = [
            replace(r, mse=mse) if r is one else r for r in records if r.setting.experiment == "truncated"
        ]
        assert f"0 diverged and {poor} ended no better" in markdown(found)


def test_networks_that_do_not_depend_on_the_size_have_one_row(text: str) -> None:
    trained, built = (rows(text, title, 3) for title in ("Trained networks", "Built networks"))
    assert [(r["method"], r["keys p"]) for r in built] == [(m, "any") for m in ("tokens", "heads", "softmax")]
    sizes = [
        ("trained", "10"),
        ("trained", "14"),
        ("trained", "20"),
        ("fine-tuned", "any"),
        ("from-anchors", "any"),
    ]
    assert [(r["method"], r["keys p"]) for r in trained] == sizes
    best = min(float(r["test MSE"].split()[0]) for r in trained[:3])
    ours = float(trained[3]["test MSE"].split()[0])
    assert float(trained[3]["/ trained"]) == pytest.approx(ours / best, rel=0.01)


def test_other_sizes_have_no_results_of_the_paper(records: list[Record]) -> None:
    other = [replace(r, setting=replace(r.setting, epochs=7)) for r in records]
    for found in (all_records(seeds=1, quick=True), other):
        text = markdown(found)
        assert "not the protocol's" in text and "paper's MSE |" not in text


@pytest.mark.parametrize("name", ["heads", "range", "anchors", "heatmaps", "seq2seq"])
def test_sections_are_those_of_the_records(name: str) -> None:
    found = synthetic(settings(name, seeds=1))
    extra = ("learning-curves",) if name in ("heads", "range", "anchors") else ()
    drawn = ({"heatmaps": "heat-maps"}.get(name, name), *extra)
    text = markdown(found)
    assert figure_names(found) == drawn and text.count("\n## ") == len(drawn)
    assert [f"figures/{one}.svg" in text for one in TITLES] == [one in drawn for one in TITLES]


def test_diverged_runs_are_counted_and_not_averaged(records: list[Record]) -> None:
    lost = [
        replace(r, mse=math.nan, largest=math.nan)
        if r.curve and (r.setting.seed == 1234 or r.setting.heads == 2)
        else r
        for r in records
    ]
    text = markdown(lost)
    found = rows(text, "Trained networks")
    assert found[0]["test MSE"].endswith(", 1 diverged") and found[1]["test MSE"] == "—, 3 diverged"
    assert f"{sum(not math.isfinite(r.mse) for r in lost)} diverged" in text
    assert {row["method"]: row for row in rows(text, "Slopes")}["trained"]["runs"] == "8 of 15"
    assert rows(text, "Which anchor is picked")[0]["largest error"] == "—"


def test_zeros_and_missing_numbers_are_dashes(records: list[Record]) -> None:
    none = dict.fromkeys(("bound", "theorem", "anchors", "start", "picked"))
    zero = dict.fromkeys(("mse", "largest", "seconds", "spread", "constant"), 0.0)
    text = markdown([replace(r, **none, **zero) for r in records])  # type: ignore[arg-type]
    assert rows(text, "Built networks")[0]["test MSE"] == "0 (0 … 0)"
    assert "theorem's bound |" not in text and "/ constant |" not in text


def test_mixed_and_repeated_records_are_refused(records: list[Record]) -> None:
    with pytest.raises(InputError, match="truncated-trained"):
        markdown([*records, records[0]])
    with pytest.raises(InputError, match="1000"):
        markdown([*records, *all_records(quick=True)])


def test_the_order_of_the_records_does_not_matter(records: list[Record], text: str) -> None:
    assert markdown(records[::-1]) == text


def test_the_sweeps_share_the_base_setting(records: list[Record]) -> None:
    base = settings("heads", seeds=1)[0]
    shared = {
        replace(r.setting, method="trained", seed=1234)
        for runs in learning_runs(records).values()
        for r in runs
    }
    assert shared == {base}
    found = sweep_runs(checked_frame(records), "truncated", "anchors")
    assert sorted(found["size"].unique()) == [60, 80, 100, 120]
    assert "many-heads" not in set(found.method)  # run at p = 60 only
