"""The report of the experiments as Markdown or as one HTML page. Its numbers come from the records and from `baselines`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from attnc.paper.experiments import analysis
from attnc.paper.experiments.analysis import SIZES, Fit, checked_frame, sweep_runs
from attnc.paper.experiments.protocol import TRAINED
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.sweeps import require

TITLES = {  # of the sections, by the name of their figure
    "heads": "Truncated linear functions: number of heads",
    "range": "Truncated linear functions: width of the range",
    "anchors": "Truncated linear functions: number of keys",
    "learning-curves": "Does construction help learning?",
    "heat-maps": "Attention heat maps",
    "seq2seq": "Sequence to sequence",
}
_TEXTS = {
    "heads": "Experiment 1: token i has the target clip(<w_i, x_i> + t_i, a, b). nearest, smooth and graded have one head.",
    "range": "Experiment 1 with one head. As b - a grows, the anchors move apart and fewer tokens are clipped; the MSE grows "
    "with both. The theorem covers the first, so its rate is compared with the largest error of nearest.",
    "anchors": "Experiment 1 with one head. The keys are the tokens of a trained network and the anchors of a built one.",
    "learning-curves": "Test MSE by epoch of the runs that the three sweeps share. Epoch 0 is the start.",
    "heat-maps": "Experiment 2: attention weights of test samples over the anchors. picked is the share of test tokens whose "
    "largest weight is on the anchor nearest to the target.",
    "seq2seq": "Experiment 3: the target is a random two-layer ReLU network of the whole sequence. Built networks, and networks "
    "trained from them, do not depend on p and on the number of heads (any). Each seed draws another target, so the MSE is also "
    "divided by the variance of the target.",
}
_NOTES = (
    "Numbers are means over the seeds, with the smallest and the largest in brackets. Trained networks are float32, as in the "
    "protocol; built networks, and networks trained from them, are float64. The constant is the MSE of the output that is always "
    "the mean of the training targets. nearest has c = 4, smooth c = 1. The head of placed is proved; the model that contains it "
    "is only measured on the test samples. Times are those of one core.",
    "Slopes of the logarithms have one intercept per seed, because a seed draws the same data at every size. The theorems bound "
    "the largest error by about C (b - a)/(N - 1), with N = p for one head (nearest) and N = (n - 2)H for many (many-heads). The "
    "square of this bound falls with slope -2; for other methods this slope is only a comparison. consistent: the 95 % interval "
    "contains the theorem's slope; undecided: it does, but is longer than 1. The theorems are upper bounds, so a steeper fall "
    "does not contradict them.",
)


def figure_names(records: Iterable[Record]) -> tuple[str, ...]:
    """The figures for which the records suffice.

    >>> figure_names([])
    ()
    """
    found = tuple(records)
    table, learned = checked_frame(found), analysis.learning_runs(found)
    drawn = {against: len(sweep_runs(table, "truncated", against)) for against in SIZES}
    drawn["learning-curves"] = any(one.curve for method in TRAINED for one in learned.get(method, ()))
    drawn["heat-maps"] = any(one.weights for one in found)
    drawn["seq2seq"] = any(len(sweep_runs(table, "seq2seq", against)) for against in ("anchors", "heads"))
    return tuple(name for name in TITLES if drawn[name])


def markdown(records: Iterable[Record], note: str = "") -> str:
    """The report as Markdown, with the figures `figures/<name>.svg`. `note` is a paragraph at the top.

    >>> markdown([]).splitlines()[2]
    '0 runs.'
    """
    return "\n\n".join(_markdown(*block) for block in _blocks(tuple(records), note)) + "\n"


def html(records: Iterable[Record], note: str = "") -> str:
    """The same report as one HTML page that loads nothing except its figures."""
    return _PAGE.format("\n".join(_html(*block) for block in _blocks(tuple(records), note)))


def _markdown(kind: str, content: Any) -> str:
    if kind == "img":
        return f"![{TITLES[content]}](figures/{content}.svg)"
    if kind != "table":
        return {"h1": "# ", "h2": "## ", "p": ""}[kind] + str(content)
    title, table = content
    rule = ["---" if name in ("method", "fitted", "verdict") else "---:" for name in table.columns]
    rows = ("| " + " | ".join(row) + " |" for row in (table.columns, rule, *table.to_numpy()))
    return f"**{title}**\n\n" + "\n".join(rows)


def _html(kind: str, content: Any) -> str:
    if kind == "img":
        return f'<img src="figures/{content}.svg" alt="{escape(TITLES[content])}">'
    if kind != "table":
        return f"<{kind}>{escape(content)}</{kind}>"
    return f"<h3>{escape(content[0])}</h3>\n<div>{content[1].to_html(index=False, border=0)}</div>"


def _blocks(records: Sequence[Record], note: str) -> Iterator[tuple[str, Any]]:
    """The report in order: (h1 | h2 | p, text), (img, name), (table, (title, DataFrame of strings))."""
    table = checked_frame(records)
    yield "h1", "The paper's experiments: trained and built networks"
    yield "p", _lead(table) if records else "0 runs."
    if note:
        yield "p", note
    if records:
        yield from (("p", text) for text in _NOTES)
        yield "table", ("Seconds of all runs", _seconds(table))
    for name in figure_names(records):
        yield "h2", TITLES[name]
        yield "p", _TEXTS[name]
        yield "img", name
        if name == "heat-maps":
            maps = table[table.experiment == "heat-map"]
            yield "table", ("Which anchor is picked", _rows(maps.assign(size=maps["range"]), SIZES["range"]))
        elif name == "seq2seq":
            yield from _sweep(sweep_runs(table, "seq2seq", "anchors"), "anchors")
            yield from _sweep(sweep_runs(table, "seq2seq", "heads"), "heads")
        elif name in SIZES:
            runs = sweep_runs(table, "truncated", name)
            yield from _sweep(runs, name)
            yield "table", ("Slopes", _slopes(runs, name))


def _sweep(runs: Any, against: str) -> Iterator[tuple[str, Any]]:
    if runs.empty:
        return
    names = ("n", "d", "p", "heads", "width", "a", "b", "samples", "epochs")
    fixed = [f"{name} = {runs[name].iloc[0]:g}" for name in names if runs[name].nunique() == 1]
    rows, trained = _rows(runs, SIZES[against]), analysis.summarise(runs).method.isin(TRAINED)
    yield "p", ", ".join(fixed) + "."
    for title, these in (("Trained networks", rows[trained]), ("Built networks", rows[~trained])):
        if len(these):
            yield "table", (title, these.loc[:, (these != "—").any()])


def _lead(table: Any) -> str:
    """What was run, how many trainings failed, and how many errors are within their bounds."""
    protocol = (
        "The sizes are the protocol's. The paper's MSE is that of its public code on a CPU: the mean of three seeds, in the "
        "sequence-to-sequence experiment one seed."
    )
    other = "The sizes are not the protocol's, so the paper's results are left out."
    sizes = protocol if table.paper_mse.notna().any() else other
    trained = table[table.method.isin(TRAINED)]
    diverged, poor = (~np.isfinite(trained.mse)).sum(), (trained.mse >= trained.constant).sum()
    bounds = table[["bound", "theorem"]]
    (proved, kept), (bounded, theorems) = bounds.ge(table.largest, axis=0).sum(), bounds.notna().sum()
    return (
        f"{len(table)} runs with {table.seed.nunique()} seeds. {sizes} Of {len(trained)} trainings, {diverged} diverged and "
        f"{poor} ended no better than the constant output. The largest error is within the proved bound in {proved} of {bounded} "
        f"runs, and within the theorem's bound in {kept} of {theorems}."
    )


def _seconds(table: Any) -> Any:
    times = table.groupby("method", observed=True).seconds.agg(["size", "mean", "min", "max", "sum"])
    names = {"size": "runs", "min": "shortest", "max": "longest", "sum": "total"}
    times = times.map(lambda value: f"{value:.3g}" if value < 100 else f"{value:.0f}")
    return times.rename(columns=names).reset_index().astype(str)


def _rows(runs: Any, size: str) -> Any:
    """A row of text for every method and size; columns without a number are left out."""
    table, seq2seq = analysis.summarise(runs), runs.experiment.iloc[0] == "seq2seq"
    trained = table[table.method == "trained"].set_index("size").mse
    everywhere = table.level & seq2seq
    beside = table["size"].map(trained).where(~everywhere, trained.min())
    numbers = {
        size: table["size"],
        "start": table.start,
        "test MSE": table.mse,
        "median": table["median"].where(table.method.isin(TRAINED)),
        "/ constant": table.mse / table.constant,
        "/ trained": table.mse / beside,
        "/ variance": table.mse / table.spread if seq2seq else math.nan,
        "paper's MSE": table.paper_mse,
        "/ paper's": table.mse / table.paper_mse,
        "limits": table.paper_least,
        "paper's / variance": table.paper_mse / table.paper_variance,
        "largest error": table.largest,
        "proved bound": table.bound,
        "theorem's bound": table.theorem,
        "picked, %": 100 * table.picked,
    }
    text = require("pandas").DataFrame({"method": table.method.astype(str), **numbers})
    text[[*numbers]] = text[[*numbers]].map(lambda value: f"{value:.3g}" if math.isfinite(value) else "—")
    seconds = table.seconds.map("{:.2g}".format)
    text = text.assign(anchors=table.anchors, parameters=table.parameters, seconds=seconds)
    text.loc[everywhere, size] = "any"
    text.loc[table.method == "placed", "proved bound"] = "measured"
    text["test MSE"] += _ends(table.low, table.high).where(table.runs - table.diverged > 1, "")
    text["test MSE"] += table.diverged.map(lambda lost: f", {lost} diverged" if lost else "")
    text["paper's MSE"] += _ends(table.paper_low, table.paper_high).where(table.paper_low.notna(), "")
    text["limits"] += table.paper_most.map(lambda most: f" … {most:g}" if math.isfinite(most) else "")
    return text.loc[:, (text != "—").any()]


def _ends(low: Any, high: Any) -> Any:
    return " (" + low.map("{:.3g}".format) + " … " + high.map("{:.3g}".format) + ")"


def _slopes(runs: Any, against: str) -> Any:
    """Fitted slopes with 95 % intervals, beside the theorem's."""
    wanted = [("test MSE", "mse", method, analysis.RATES[against]) for method in runs.method.unique()]
    if against == "range":
        wanted.append(("largest error", "largest", analysis.THEOREM_OF["range"], 1.0))
    rows = []
    for name, of, method, theorem in wanted:
        these = runs[runs.method == method]
        fitted, rate = analysis.fit_rate(these, against, of), "—" if theorem is None else f"{theorem:g}"
        slope, interval, shown, used = "—", "—", "independent of the size", len(these)
        if fitted is not None:
            ends = (fitted.slope, fitted.low, fitted.high)
            slope, low, high = (f"{round(one, 2) + 0.0:.2f}" for one in ends)
            interval, used = f"{low} … {high}", fitted.runs
            shown = verdict(fitted, theorem, grows=against == "range")
        if fitted is not None or analysis.has_no_effect(these):
            rows.append((method, name, slope, interval, rate, shown, f"{used} of {len(these)}"))
    head = ("method", "fitted", "slope", "95 % interval", "theorem's", "verdict", "runs")
    return require("pandas").DataFrame(rows, columns=head)


def verdict(fitted: Fit, theorem: float | None, grows: bool = False) -> str:
    """What the whole interval shows about the direction and about the theorem's slope.

    >>> verdict(Fit(-2.1, -2.3, -1.9, 12), -2.0)
    'falls; consistent'
    """
    sign, verb = (1, "grow") if grows else (-1, "fall")
    direction = f"{verb}s" if sign * fitted.low > 0 and sign * fitted.high > 0 else f"does not clearly {verb}"
    if theorem is None or math.isnan(fitted.low):
        return "—" if math.isnan(fitted.low) else direction
    if fitted.low <= theorem <= fitted.high:
        return f"{direction}; {'undecided' if fitted.high - fitted.low > 1 else 'consistent'}"
    return f"{direction}; {'steeper' if sign * (fitted.slope - theorem) > 0 else 'flatter'}"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>The paper's experiments</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 66rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.55 system-ui, sans-serif; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.875rem; }}
th, td {{ padding: 0.3rem 0.7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8886; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; background: #fff; }}
</style></head>
<body>
{}
</body></html>
"""
