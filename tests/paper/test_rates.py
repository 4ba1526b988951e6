"""Rates: fitted slopes, the theorems' bounds, and the figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnc
import attnc.paper
from attnc.paper import Rates, Series

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "rates.json"


@pytest.fixture(scope="module")
def found() -> Rates:
    return attnc.paper.rates(anchors=(15, 30, 60), heads=(1, 2, 4), grids=(4, 8), past=False)


def test_slopes(found: Rates) -> None:
    assert [s.construction for s in found.series] == [
        "one head",
        "many heads",
        "two-layer",
        "attention-softmax",
    ]
    for series in found.series:
        assert series.within and len(series.theorem) == len(series.sizes) == len(series.proved)
        assert -1.2 < series.slope < -0.9
        assert all(error <= proved for error, proved in zip(series.errors, series.proved, strict=True))


def test_both_forms_of_a_grid_have_the_same_errors(found: Rates) -> None:
    one, two = found["two-layer", "nearest"], found["attention-softmax", "nearest"]
    assert one.errors == pytest.approx(two.errors, rel=1e-9)


def test_a_series_that_exceeds_its_theorem_says_so() -> None:
    series = Series("one head", "nearest", "p", (2, 4), (1.0, 0.5), (1.1, 0.4))
    assert not series.within and "above the theorem's bound" in str(Rates((series,), 0))
    with pytest.raises(attnc.errors.InputError):
        Rates((series,), 0)["two heads", "nearest"]


def test_the_figure(found: Rates, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = attnc.plot.rates(found, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 10_000
    texts = [text.get_text() for ax in figure.axes for text in ax.get_legend().get_texts()]
    assert sum("theorem's bound" in text for text in texts) == 3
    assert any(f"one head, slope {found['one head', 'nearest'].slope:.2f}" == text for text in texts)


def test_the_published_rates_meet_what_was_asked() -> None:
    """The stored run of benchmarks/rates.py at full size: slopes within the figures asked, no error above its theorem."""
    stored = {(s["construction"], s["design"]): s for s in json.loads(STORED.read_text())["series"]}
    one, many = stored["one head", "nearest"], stored["many heads", "nearest"]
    assert one["sizes"] == [60, 120, 240, 480, 960] and abs(one["slope"] + 1) <= 0.05
    assert many["sizes"] == [10 * h for h in (1, 2, 4, 8, 16, 32, 64)] and abs(many["slope"] + 1) <= 0.1
    assert all(s["within"] for s in stored.values())


@pytest.mark.slow
def test_the_rates_at_full_size() -> None:
    found = attnc.paper.rates(past=False)
    assert abs(found["one head", "nearest"].slope + 1) <= 0.05
    assert abs(found["many heads", "nearest"].slope + 1) <= 0.1
    assert all(series.within for series in found.series)
