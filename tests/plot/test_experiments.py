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
from attnc.paper.experiments.report import TITLES
from attnc.plot.experiments import draw
from tests.paper.synthetic_records import all_records, synthetic

pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return all_records()


def labelled(ax: Any) -> dict[str, Any]:
    """The artists of the legend by their labels."""
    return dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))


def lines(ax: Any) -> dict[str, Any]:
    """The lines of the legend by the first words of their labels; of error bars the line of the means."""
    named = {re.split(r",| \d", label)[0]: one for label, one in labelled(ax).items()}
    return {name: one[0] if isinstance(one, tuple) else one for name, one in named.items()}


def bars(ax: Any, size: float) -> list[tuple[float, float]]:
    """The lower and upper ends of all error bars at a size."""
    segments = [s for c in ax.collections for s in c.get_segments() if len(s) and s[0][0] == size]
    return [(s[0][1], s[1][1]) for s in segments]


def test_a_sweep_shows_means_slopes_the_theorem_and_the_paper(records: list[Record]) -> None:
    (ax,) = draw("heads", records).axes
    found = lines(ax)
    assert list(found["trained"].get_xdata()) == [1, 2, 4, 8, 16]
    ours = [r.mse for r in records if r.setting.method == "many-heads" and r.setting.heads == 4]
    assert found["many-heads"].get_ydata()[2] == pytest.approx(sum(ours) / 3)
    assert any(re.fullmatch(r"many-heads, slope -(1\.9|2\.0)\d ± 0\.0\d", label) for label in labelled(ax))
    bounds = [r.theorem for r in records if r.setting.method == "many-heads" and r.setting.heads == 4]
    theorem = found["theorem's bound of many-heads"]
    assert theorem.get_ydata()[2] == pytest.approx(max(b for b in bounds if b) ** 2 / 32)
    assert theorem.get_label().endswith("slope -2")
    assert list(found["constant"].get_ydata()) == [5.0] * 5
    assert list(found["trained by the paper's code"].get_ydata()) == [0.1438, 0.0601, 0.0308, 0.0193, 0.0149]
    assert list(found["graded"].get_xdata()) == [1]
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_bars_reach_from_the_smallest_to_the_largest(records: list[Record]) -> None:
    (ax,) = draw("anchors", records).axes
    ours = [r.mse for r in records if r.setting.method == "trained" and r.setting.p == 100]
    assert any(np.allclose(pair, (min(ours), max(ours))) for pair in bars(ax, 100))
    assert any(np.allclose(pair, (0.005, 0.117)) for pair in bars(ax, 80))


def test_every_run_is_a_dot(records: list[Record]) -> None:
    (ax,) = draw("anchors", records).axes
    (dots,) = [line for line in ax.lines if line.get_label() == "_runs of trained"]
    runs = [r for r in records if r.setting.method == "trained" and r.setting.experiment == "truncated"]
    ours = [r.mse for r in runs if r.setting.heads == 1 and r.setting.b == 25]
    assert sorted(dots.get_ydata()) == sorted(ours)
    assert len(ours) == 12


def test_against_the_range_the_bound_has_no_slope(records: list[Record]) -> None:
    found = lines(draw("range", records).axes[0])
    assert found["theorem's bound of nearest"].get_label() == "theorem's bound of nearest"


def test_what_does_not_depend_on_the_size_is_level(records: list[Record]) -> None:
    for ax in draw("seq2seq", records).axes:
        ends = {line.get_color(): list(line.get_xdata()) for line in ax.lines if line.get_linestyle() == "-."}
        assert len(ends) == 5
        sizes = list(lines(ax)["trained"].get_xdata())
        assert all(span == [sizes[0], sizes[-1]] for span in ends.values())
    assert "placed" in labelled(draw("heads", records).axes[0])  # without a slope


def test_other_sizes_have_no_marks_of_the_paper() -> None:
    quick = all_records(seeds=1, quick=True)
    assert "trained by the paper's code" not in lines(draw("heads", quick).axes[0])
    assert "trained by the paper's code" not in lines(draw("seq2seq", quick).axes[0])


def test_sequences_have_a_panel_for_keys_and_one_for_heads(records: list[Record]) -> None:
    figure = draw("seq2seq", records)
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
    assert "tokens = heads = softmax" in lines(draw("seq2seq", same).axes[0])
    assert not {"tokens", "heads", "softmax"} & set(lines(draw("seq2seq", same).axes[0]))


def test_curves_begin_with_the_start(records: list[Record]) -> None:
    (ax,) = draw("learning-curves", records).axes
    found = lines(ax)
    assert list(found["trained"].get_xdata()) == list(range(51))
    assert found["fine-tuned"].get_ydata()[0] == pytest.approx(2e-12)
    ends = [r.mse for r in synthetic(settings("heads", seeds=3)[:3])]
    assert found["trained"].get_ydata()[-1] == pytest.approx(sum(ends) / 3)
    assert "placed" in found


def test_heat_maps_show_the_weights_in_one_order_of_tokens(records: list[Record]) -> None:
    figure = draw("heat-maps", records)
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
        replace(r, mse=math.nan, curve=[math.nan] * len(r.curve))
        if r.setting.method == "trained" and (r.setting.seed == 1234 or r.setting.heads == 2)
        else replace(r, mse=0.0)
        if r.setting.method == "placed"
        else r
        for r in records
    ]
    found = lines(draw("heads", odd).axes[0])
    assert list(found["trained"].get_xdata()) == [1, 4, 8, 16]
    assert any(re.fullmatch("trained,.*, 7 diverged", one) for one in labelled(draw("heads", odd).axes[0]))
    assert len(found["placed"].get_xdata()) == 0  # a logarithmic axis has no place for 0
    assert lines(draw("learning-curves", odd).axes[0])["trained"].get_label() == "trained, 1 diverged"
    for name in TITLES:
        draw(name, odd).canvas.draw()


def test_every_figure_of_the_report_can_be_drawn_and_written_twice_the_same(tmp_path: Path) -> None:
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
    with pytest.raises(InputError, match="depth"):
        draw("depth", records)
    with pytest.raises(InputError, match=r"curves\.txt"):
        draw("learning-curves", records, tmp_path / "curves.txt")
    with pytest.raises(InputError, match="attnc reproduce anchors"):
        draw("anchors", synthetic(settings("heads", seeds=1)))
    for name in TITLES:
        with pytest.raises(InputError, match=name):
            draw(name, [])
