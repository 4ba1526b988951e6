"""Rates, as benchmarks/rates.py measures them: fitted slopes, the theorems' bounds, and the figure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [path for path in (str(ROOT / "benchmarks"),) if path not in sys.path]

import theorem_rates  # noqa: E402

Rates = dict[tuple[str, str], dict[str, Any]]


def named(rows: list[dict[str, Any]]) -> Rates:
    return {(one["construction"], one["design"]): one for one in rows}


def test_slopes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = theorem_rates.rates(anchors=(15, 30, 60), heads=(1, 2, 4), grids=(4, 8), past=False)
    found = named(rows)
    assert [name for name, _ in found] == ["one head", "many heads", "two-layer", "attention-softmax"]
    for one in rows:
        assert one["within"] and len(one["theorem"]) == len(one["sizes"]) == len(one["proved"])
        assert -1.2 < one["slope"] < -0.9
        assert all(error <= proved for error, proved in zip(one["errors"], one["proved"], strict=True))
    both = (found[name, "nearest"]["errors"] for name in ("two-layer", "attention-softmax"))
    assert next(both) == pytest.approx(next(both), rel=1e-9)
    theorem_rates.draw(rows, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 10_000


def test_an_error_above_its_theorem_is_noticed() -> None:
    assert not theorem_rates.row("one head", "nearest", "p", (2, 4), (1.0, 0.5), (1.1, 0.4))["within"]


def test_the_published_rates_meet_what_was_asked() -> None:
    """The stored run of benchmarks/rates.py at full size: slopes within the figures asked, no error above its theorem."""
    stored = named(json.loads((ROOT / "benchmarks" / "results" / "rates.json").read_text())["series"])
    one, many = stored["one head", "nearest"], stored["many heads", "nearest"]
    assert one["sizes"] == [60, 120, 240, 480, 960] and abs(one["slope"] + 1) <= 0.05
    assert many["sizes"] == [10 * h for h in (1, 2, 4, 8, 16, 32, 64)] and abs(many["slope"] + 1) <= 0.1
    assert all(s["within"] for s in stored.values())


@pytest.mark.slow
def test_the_rates_at_full_size() -> None:
    found = named(theorem_rates.rates(past=False))
    assert abs(found["one head", "nearest"]["slope"] + 1) <= 0.05
    assert abs(found["many heads", "nearest"]["slope"] + 1) <= 0.1
    assert all(one["within"] for one in found.values())
