"""Figures of the experiments: what is drawn is what the records say."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnc.errors import InputError
from attnc.paper.experiments import Record, settings
from attnc.paper.experiments.report import FIGURES
from attnc.plot.experiments import DRAWINGS, draw, heat_maps, learning_curves, seq2seq, truncated
from tests.paper.synthetic_records import all_records, synthetic


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return all_records()


def lines(ax: Any) -> dict[str, Any]:
    """By the first words of their labels."""
    return {
        re.split(r",| \d", line.get_label())[0]: line
        for line in ax.lines
        if not line.get_label().startswith("_")
    }


def test_a_sweep_shows_means_slopes_the_theorem_and_the_paper(records: list[Record]) -> None:
    (ax,) = truncated(records, "heads").axes
    found = lines(ax)
    assert list(found["trained"].get_xdata()) == [1, 2, 4, 8, 16]
    ours = [r.mse for r in records if r.setting.method == "many-heads" and r.setting.heads == 4]
    assert found["many-heads"].get_ydata()[2] == pytest.approx(sum(ours) / 3)
    assert re.search(r"slope −(1\.9|2\.0)\d ± 0\.0\d$", found["many-heads"].get_label())
    bounds = [r.theorem for r in records if r.setting.method == "many-heads" and r.setting.heads == 4]
    theorem = found["theorem's bound of many-heads"]
    assert theorem.get_ydata()[2] == pytest.approx(max(b for b in bounds if b) ** 2 / 32)
    assert theorem.get_label().endswith("slope −2")
    assert list(found["constant"].get_ydata()) == [5.0] * 5
    assert list(found["trained by the paper's code"].get_ydata()) == [0.1438, 0.0601, 0.0308, 0.0193, 0.0149]
    assert list(found["graded"].get_xdata()) == [1]
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_bars_reach_from_the_smallest_to_the_largest(records: list[Record]) -> None:
    (ax,) = truncated(records, "anchors").axes
    ours = [r.mse for r in records if r.setting.method == "trained" and r.setting.p == 100]
    ends = [(s[0][1], s[1][1]) for c in ax.collections for s in c.get_segments() if s[0][0] == 100]
    assert any(np.allclose(pair, (min(ours), max(ours))) for pair in ends)
    paper = [(s[0][1], s[1][1]) for c in ax.collections for s in c.get_segments() if s[0][0] == 80]
    assert any(np.allclose(pair, (0.005, 0.117)) for pair in paper)


def test_every_run_is_a_dot(records: list[Record]) -> None:
    (ax,) = truncated(records, "anchors").axes
    (dots,) = [line for line in ax.lines if line.get_label() == "_runs of trained"]
    runs = [r for r in records if r.setting.method == "trained" and r.setting.experiment == "truncated"]
    ours = [r.mse for r in runs if r.setting.heads == 1 and r.setting.b == 25]
    assert sorted(dots.get_ydata()) == sorted(ours)
    assert len(ours) == 12


def test_against_the_range_the_bound_has_no_slope(records: list[Record]) -> None:
    found = lines(truncated(records, "range").axes[0])
    assert found["theorem's bound of nearest"].get_label() == "theorem's bound of nearest"


def test_what_does_not_depend_on_the_size_is_level(records: list[Record]) -> None:
    for ax in seq2seq(records).axes:
        ends = {line.get_color(): list(line.get_xdata()) for line in ax.lines if line.get_linestyle() == "-."}
        assert len(ends) == 5
        sizes = list(lines(ax)["trained"].get_xdata())
        assert all(span == [sizes[0], sizes[-1]] for span in ends.values())
    assert "slope" not in lines(truncated(records, "heads").axes[0])["placed"].get_label()


def test_other_sizes_have_no_marks_of_the_paper() -> None:
    quick = all_records(seeds=1, quick=True)
    assert "trained by the paper's code" not in lines(truncated(quick, "heads").axes[0])
    assert "trained by the paper's code" not in lines(seq2seq(quick).axes[0])


def test_sequences_have_a_panel_for_keys_and_one_for_heads(records: list[Record]) -> None:
    figure = seq2seq(records)
    assert [ax.get_xlabel() for ax in figure.axes] == ["keys p", "heads H"]
    assert [ax.get_title() for ax in figure.axes] == ["n = 10, 8 heads", "n = 20, p = 20"]
    assert list(lines(figure.axes[1])["trained by the paper's code"].get_ydata()) == [123.5, 35.3, 52.2]
    assert set(lines(figure.axes[0])) >= {
        "trained",
        "fine-tuned",
        "from-anchors",
        "tokens",
        "heads",
        "softmax",
    }


def test_lines_that_coincide_are_one(records: list[Record]) -> None:
    built = ("tokens", "heads", "softmax")
    same = [replace(r, mse=1e-12 * r.setting.seed) if r.setting.method in built else r for r in records]
    assert "tokens = heads = softmax" in lines(seq2seq(same).axes[0])
    assert not {"tokens", "heads", "softmax"} & set(lines(seq2seq(same).axes[0]))


def test_curves_begin_with_the_start(records: list[Record]) -> None:
    (ax,) = learning_curves(records).axes
    found = lines(ax)
    assert list(found["trained"].get_xdata()) == list(range(51))
    assert found["fine-tuned"].get_ydata()[0] == pytest.approx(2e-12)
    ends = [r.mse for r in synthetic(settings("heads", seeds=3)[:3])]
    assert found["trained"].get_ydata()[-1] == pytest.approx(sum(ends) / 3)
    assert "placed" in found


def test_heat_maps_show_the_weights_in_one_order_of_tokens(records: list[Record]) -> None:
    figure = heat_maps(records)
    images = [np.asarray(ax.images[0].get_array()) for ax in figure.axes if ax.images]
    assert len(images) == 2 * 3 * 3
    maps = {
        (r.setting.method, r.setting.b): r.weights for r in records if r.weights and r.setting.seed == 1234
    }
    built, trained = np.asarray(maps["nearest", 0.25]), np.asarray(maps["trained", 0.25])
    order = np.argsort(built[0] @ np.arange(30), kind="stable")
    assert any(np.array_equal(image, built[0][order]) for image in images)
    assert any(np.array_equal(image, trained[0][order]) for image in images)
    titles = [part.get_suptitle() for half in figure.subfigs for part in half.subfigs]
    assert "built, b − a = 0.5, nearest picked 100.0 %" in titles


def test_diverged_and_zero_runs_are_said_and_the_rest_is_drawn(records: list[Record]) -> None:
    odd = [
        replace(r, mse=math.nan, curve=(math.nan,) * len(r.curve))
        if r.setting.method == "trained" and (r.setting.seed == 1234 or r.setting.heads == 2)
        else replace(r, mse=0.0)
        if r.setting.method == "placed"
        else r
        for r in records
    ]
    found = lines(truncated(odd, "heads").axes[0])
    assert list(found["trained"].get_xdata()) == [1, 4, 8, 16]
    assert found["trained"].get_label().endswith("7 diverged")
    assert found["placed"].get_label() == "placed, 5 sizes at 0"
    assert lines(learning_curves(odd).axes[0])["trained"].get_label() == "trained, 1 diverged"
    for name in FIGURES:
        draw(name, odd).canvas.draw()


def test_every_figure_of_the_report_can_be_drawn_and_written_twice_the_same(tmp_path: Path) -> None:
    assert list(DRAWINGS) == list(FIGURES)
    found = all_records(seeds=2, quick=True)
    for name in ("heads", "heat-maps"):
        texts = []
        for path in (tmp_path / "a.svg", tmp_path / "b.svg"):
            draw(name, found, path)
            texts.append(re.sub("<dc:date>.*</dc:date>", "", path.read_text(encoding="utf-8")))
        assert texts[0] == texts[1]
    draw("seq2seq", found, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg", "c.png"]


def test_what_cannot_be_drawn_is_refused(records: list[Record], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a sweep goes over"):
        truncated(records, "depth")
    with pytest.raises(InputError, match=r"\.png"):
        learning_curves(records, tmp_path / "curves.txt")
    with pytest.raises(InputError, match="run `attnc reproduce anchors`"):
        truncated(synthetic(settings("heads", seeds=1)), "anchors")
