"""The report: every number from the records, nothing of the paper's at other sizes, nothing that fails on odd records."""

from __future__ import annotations

import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from attnc.errors import InputError
from attnc.paper.experiments import Record, settings
from attnc.paper.experiments.baselines import baseline
from attnc.paper.experiments.fits import Fit
from attnc.paper.experiments.report import FIGURES, figures, html, markdown
from attnc.paper.experiments.report.slopes import verdict
from attnc.paper.experiments.report.sweeps import base_points, kind, sweep
from tests.paper.synthetic_records import all_records, synthetic

SLOPES = "Slopes of the logarithms"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return all_records()


def rows(text: str, title: str, nth: int = 0) -> list[list[str]]:
    """The body of the nth table of this title."""
    body = text.split(f"**{title}")[nth + 1].split("\n\n")[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]


def test_the_papers_figures_stand_beside_ours_with_the_ratio(records: list[Record]) -> None:
    (row, *others) = rows(markdown(records), "Test MSE of the trained networks")
    ours = [r.mse for r in records if r.setting.key.startswith("truncated-trained-n50-d10-p60-h1-w32-a-25-")]
    mean = sum(ours) / 3
    assert row == [
        "1",
        "0.144",
        f"{mean:.3g} ({min(ours):.3g} … {max(ours):.3g})",
        f"{sorted(ours)[1]:.3g}",
        f"{mean / 0.1438:.3g}",
        "yes (±35 %)",
        f"{mean / 5:.3g}",
    ]
    assert [other[0] for other in others] == ["2", "4", "8", "16"]
    assert rows(markdown(records), "Test MSE of the trained networks", 2)[1][1] == "0.049 (0.005 … 0.117)"


def test_limits_follow_the_numbers(records: list[Record]) -> None:
    def said(times: float) -> list[str]:
        other = [replace(r, mse=times * known.mse) if (known := baseline(r.setting)) else r for r in records]
        return [row[5] for row in rows(markdown(other), "Test MSE of the trained networks", 2)]

    assert said(1.5) == ["no (±35 %)", "no limit (unstable)", "yes (0.5 … 2)", "yes (0.5 … 2)"]
    assert said(0.4) == ["no (±35 %)", "no limit (unstable)", "no (0.5 … 2)", "no (0.5 … 2)"]


def test_seeds_that_lie_apart_are_said(records: list[Record]) -> None:
    assert "Seeds of trained lie apart" not in markdown(records)
    one = next(r for r in records if r.setting.method == "trained" and r.setting.p == 100)
    text = markdown([replace(r, mse=40 * r.mse) if r is one else r for r in records])
    assert "apart by more than a factor of 3 at keys p = 100:" in text


def test_no_better_than_a_constant_is_measured_by_the_constant(records: list[Record]) -> None:
    found = [r for r in records if r.setting.experiment == "truncated"]
    assert "and 0 ended no better than the constant output" in markdown(_set_mse(found, 4.9))
    assert "and 1 ended no better than the constant output" in markdown(_set_mse(found, 5.1))  # variance 6


def test_what_is_built_stands_beside_what_is_trained(records: list[Record]) -> None:
    (row, *_) = [one for one in rows(markdown(records), "Built networks", 2) if one[:2] == ["graded", "120"]]
    ours = [r for r in records if r.setting.method == "graded" and r.setting.p == 120]
    trained = [r.seconds for r in records if r.setting.method == "trained" and r.setting.p == 120]
    assert row[3:9] == [
        f"{max(r.largest for r in ours):.3g}",
        f"{max(r.bound or 0 for r in ours):.3g}",
        "—",
        "120",
        "8,840",
        "8,840",
    ]
    assert float(row[10]) == pytest.approx(sum(trained) / sum(r.seconds for r in ours), rel=1e-2)


def test_of_placed_nothing_is_called_proved(records: list[Record]) -> None:
    text = markdown(records)
    assert {row[4] for row in rows(text, "Built networks") if row[0] == "placed"} == {"measured"}
    assert "of placed the head alone is proved" in text
    assert "of placed" not in markdown([replace(r, bound=1.0) if not r.curve else r for r in records])


def test_slopes_stand_beside_the_theorems(records: list[Record]) -> None:
    text = markdown(records)
    found = {row[0]: row for row in rows(text, SLOPES)}
    assert found["many-heads"][1] == "test MSE against (n - 2)H - 1"
    assert float(found["many-heads"][2]) == pytest.approx(-2, abs=0.03)
    assert found["many-heads"][4:7] == ["-2", "falls; consistent with the theorem's rate", "15"]
    assert found["trained"][5] == "falls; flatter"
    assert found["placed"][2:6] == ["—", "—", "-2", "does not depend on heads H"]
    assert "nearest" not in found  # one size
    keys = {row[0]: row for row in rows(text, SLOPES, 2)}
    assert keys["nearest"][1] == "test MSE against p - 1"
    assert float(keys["nearest"][2]) == pytest.approx(-2, abs=0.1)
    assert keys["graded"][5] == "falls; steeper"
    assert text.count("a steeper fall contradicts nothing") == 1


def test_against_the_range_the_theorem_speaks_of_the_largest_error(records: list[Record]) -> None:
    found = rows(markdown(records), SLOPES, 1)
    assert {row[4] for row in found[:-1]} == {"—"}
    assert found[-1][:2] == ["nearest", "largest error against b - a"]
    assert found[-1][4:6] == ["1", "grows; consistent with the theorem's rate"]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-2.1, -1.9, "falls; consistent with the theorem's rate"),
        (-3.1, -2.2, "falls; steeper"),
        (-19.5, -16.5, "falls; steeper"),
        (-1.9, -1.0, "falls; flatter"),
        (-0.5, 0.0, "not seen to fall; flatter"),
        (-3.0, -1.9, "falls; undecided"),
        (-4.0, 0.5, "not seen to fall; undecided"),
        (None, None, "—"),
    ],
)
def test_verdicts_speak_of_the_whole_interval(low: float | None, high: float | None, said: str) -> None:
    assert verdict(Fit(-1.0, low, high, 0.0, 9, 3), -2.0) == said


def test_words_follow_the_numbers(records: list[Record]) -> None:
    said = "fine-tuned ends with a smaller mean test MSE than trained in {} of 5 comparisons, and below its own start in {} of 5."
    assert said.format(5, 0) in markdown(records)
    worse = [
        replace(r, mse=1e9 * r.mse, start=1e6) if r.setting.method == "fine-tuned" else r for r in records
    ]
    assert said.format(0, 5) in markdown(worse)
    broken = [replace(r, bound=r.largest / 2) if r.setting.method == "graded" else r for r in records]
    proved = sum(r.bound is not None for r in records)
    graded = sum(r.setting.method == "graded" for r in records)
    assert f"within the proved bound in {proved - graded} of {proved} runs" in markdown(broken)
    assert f"within the proved bound in {proved} of {proved} runs" in markdown(records)
    over = [replace(r, theorem=r.largest / 2) if r.theorem else r for r in records]
    assert (
        f"within the theorem's bound in 0 of {sum(r.theorem is not None for r in records)} runs"
        in markdown(over)
    )


def test_a_result_that_is_the_same_at_several_sizes_counts_once(records: list[Record]) -> None:
    same = [replace(r, mse=1e-5, start=1.0) if r.setting.method == "fine-tuned" else r for r in records]
    once = "fine-tuned ends with a smaller mean test MSE than trained in 1 of 1 comparison, and below its own start in 1 of 1."
    assert markdown(same).count(once) == 5  # heads, range, anchors, and both panels of experiment 3
    assert "comparison, and below its own start in 0 of 1." in markdown(records).split("## Sequence")[1]


def test_what_does_not_depend_on_the_size_has_one_row(records: list[Record]) -> None:
    text = markdown(records).split("## Sequence")[1]
    assert [row[:2] for row in rows(text, "Built networks")] == [
        [m, "any"] for m in ("tokens", "heads", "softmax")
    ]
    learnt = [row[:2] for row in rows(text, "Training from what was built")]
    assert learnt == [
        ["trained", "10"],
        ["trained", "14"],
        ["trained", "20"],
        ["fine-tuned", "any"],
        ["from-anchors", "any"],
    ]
    assert "variance of all numbers of the target" in text


def test_quick_sizes_are_said_and_the_papers_columns_left_out() -> None:
    text = markdown(all_records(seeds=1, quick=True))
    assert text.splitlines()[2].startswith("--quick: small sizes, the paper's figures do not apply")
    assert "paper's code |" not in text
    assert "0.144" not in text
    assert rows(text, "Test MSE of the trained networks")[0][0] == "1"


def test_other_sizes_are_said(records: list[Record]) -> None:
    other = [replace(r, setting=replace(r.setting, epochs=7)) for r in records]
    assert (kind(records), kind(other)) == ("protocol", "other")
    assert "Sizes other than the protocol's" in markdown(other)
    assert "paper's code |" not in markdown(other)


@pytest.mark.parametrize("name", ["heads", "range", "anchors", "heatmaps", "seq2seq"])
def test_what_was_not_run_has_no_section(name: str) -> None:
    found = synthetic(settings(name, seeds=1))
    drawn = {"heatmaps": ("heat-maps",), "seq2seq": ("seq2seq",)}.get(name, (name, "learning-curves"))
    assert figures(found) == drawn
    text = markdown(found)
    assert text.count("\n## ") == len(drawn)
    assert [f"figures/{one}.svg" in text for one in FIGURES] == [one in drawn for one in FIGURES]


def test_figures_that_were_not_drawn_are_not_shown(records: list[Record]) -> None:
    assert "figures/" not in markdown(records, drawn=())
    assert "figures/heads.svg" in html(records, drawn=("heads",))
    assert "figures/range.svg" not in html(records, drawn=("heads",))


def test_diverged_runs_are_counted_and_not_averaged(records: list[Record]) -> None:
    lost = [_diverge(r) if r.setting.seed == 1234 or r.setting.heads == 2 else r for r in records]
    text = markdown(lost)
    found = rows(text, "Test MSE of the trained networks")
    assert found[0][2].endswith("1 of 3 diverged")
    assert found[1][2:] == ["3 runs, diverged", "—", "—", "—", "—"]
    several = sum(not math.isfinite(r.mse) for r in lost)
    assert f"{several} diverged" in text
    slopes = {row[0]: row for row in rows(text, SLOPES)}
    assert slopes["trained"][6:] == ["8", "7"]
    assert [row[3] for row in rows(text, "Which anchor is picked")][::2] == ["no number"] * 3


def test_zeros_and_missing_numbers_are_dashes(records: list[Record]) -> None:
    odd = [
        replace(
            r,
            mse=0.0,
            largest=0.0,
            seconds=0.0,
            bound=None,
            theorem=None,
            anchors=None,
            start=None,
            picked=None,
            spread=0.0,
            constant=0.0,
        )
        for r in records
    ]
    text = markdown(odd)
    assert rows(text, "Built networks")[0][:3] == ["nearest", "1", "0 (0 … 0)"]
    assert rows(text, "Built networks")[0][4:7] == ["—"] * 3
    assert rows(text, "Built networks")[0][10] == "—"
    assert "**Slopes" not in text


def test_the_page_is_whole_and_loads_nothing_from_outside(records: list[Record]) -> None:
    page = html(records, note="<script>alert(1)</script>")
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    assert "<script" not in page
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    assert parser.images == [f"figures/{name}.svg" for name in FIGURES]


def test_mixed_and_doubled_records_are_refused(records: list[Record]) -> None:
    with pytest.raises(InputError):
        markdown([*records, records[0]])
    with pytest.raises(InputError):
        markdown([*records, *all_records(quick=True)])


def test_the_order_of_the_records_does_not_matter(records: list[Record]) -> None:
    assert markdown(records[::-1]) == markdown(records)


def test_sweeps_meet_at_the_base(records: list[Record]) -> None:
    base = settings("heads", seeds=1)[0]
    assert {replace(p.records[0].setting, method="trained") for p in base_points(records).values()} == {base}
    found = sweep(records, "truncated", "anchors")
    assert found is not None
    assert found.sizes == (60, 80, 100, 120)
    assert found.line("many-heads") is None  # run at p = 60 only


def _set_mse(records: list[Record], mse: float) -> list[Record]:
    """One training of experiment 1 ends there."""
    one = next(r for r in records if r.curve)
    return [replace(r, mse=mse) if r is one else r for r in records]


def _diverge(record: Record) -> Record:
    return replace(record, mse=math.nan, largest=math.nan) if record.curve else record


class _Balance(HTMLParser):
    """Tags that are open, and the images seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
