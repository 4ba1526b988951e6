"""The report of the experiments as Markdown or as one HTML page. Every number comes from the records, or for the paper's code from
`baselines`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from attnc.paper.experiments.analysis import RATES, SIZES, THEOREM_OF, Fit, checked_frame, fit_rate
from attnc.paper.experiments.analysis import has_no_effect, meeting_runs, summarise, sweep_runs
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.settings import TRAINED
from attnc.paper.experiments.store import require

WIDE = 1.0  # a longer interval does not decide between rates
FIGURES = {  # name: title of the section, caption, text
    "heads": (
        "Truncated linear functions: number of heads",
        "Test MSE against the number of heads: mean, smallest and largest over the seeds; a dot is a run",
        "Experiment 1: token i has the target clip(<w_i, x_i> + t_i, a, b). nearest, smooth and graded have one head.",
    ),
    "range": (
        "Truncated linear functions: width of the range",
        "Test MSE against b - a: mean, smallest and largest over the seeds; a dot is a run",
        "Experiment 1 with one head. As b - a grows, the anchors move apart and fewer tokens are clipped; the MSE grows with "
        "both. The theorem covers the first, so its rate is compared with the largest error of nearest.",
    ),
    "anchors": (
        "Truncated linear functions: number of keys",
        "Test MSE against the number of keys: mean, smallest and largest over the seeds; a dot is a run",
        "Experiment 1 with one head. The keys are the tokens of a trained network and the anchors of a built one.",
    ),
    "learning-curves": (
        "Does construction help learning?",
        "Test MSE by epoch: every run, their range and their mean",
        "The runs that the three sweeps share. Epoch 0 is the start.",
    ),
    "heat-maps": (
        "Attention heat maps",
        "Attention weights of test samples over the anchors, trained and built",
        "Experiment 2: picked is the share of test tokens whose largest weight is on the anchor nearest to the target.",
    ),
    "seq2seq": (
        "Sequence to sequence",
        "Test MSE against the number of keys and of heads: mean, smallest and largest over the seeds",
        "Experiment 3: the target is a random two-layer ReLU network of the whole sequence. Built networks, and networks trained "
        "from them, do not depend on p and on the number of heads (any). Each seed draws another target, so the MSE is also "
        "divided by the variance of the target.",
    ),
}
_NOTES = (
    "Numbers are means over the seeds, with the smallest and the largest in brackets. Trained networks are float32, as in the "
    "protocol; built networks, and networks trained from them, are float64. The constant is the MSE of the output that is always "
    "the mean of the training targets. nearest has c = 4, smooth c = 1. The head of placed is proved; the model that contains it "
    "is only measured on the test samples. Times are those of one core."
)
_SLOPES = (
    "Slopes of the logarithms have one intercept per seed, because a seed draws the same data at every size. The theorems bound "
    "the largest error by about C (b - a)/(N - 1), with N = p for one head (nearest) and N = (n - 2)H for many (many-heads). The "
    "square of this bound falls with slope -2; for other methods this slope is only a comparison. consistent: the 95 % interval "
    "contains the theorem's slope; undecided: it does, but is longer than 1. The theorems are upper bounds, so a steeper fall does "
    "not contradict them."
)


def figure_names(records: Iterable[Record]) -> tuple[str, ...]:
    """The figures for which the records suffice.

    >>> figure_names([])
    ()
    """
    found = tuple(records)
    table, learned = checked_frame(found), meeting_runs(found)
    drawn = {against: len(sweep_runs(table, "truncated", against)) for against in SIZES}
    drawn["learning-curves"] = any(one.curve for method in TRAINED for one in learned.get(method, ()))
    drawn["heat-maps"] = any(one.setting.experiment == "heat-map" and one.weights for one in found)
    drawn["seq2seq"] = any(len(sweep_runs(table, "seq2seq", against)) for against in SIZES)
    return tuple(name for name in FIGURES if drawn[name])


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
        return f"![{FIGURES[content][1]}](figures/{content}.svg)"
    if kind != "table":
        return {"h1": "# ", "h2": "## ", "p": ""}[kind] + str(content)
    title, table = content
    rule = ["---" if name in ("method", "fitted", "verdict") else "---:" for name in table.columns]
    rows = ("| " + " | ".join(row) + " |" for row in (table.columns, rule, *table.to_numpy()))
    return f"**{title}**\n\n" + "\n".join(rows)


def _html(kind: str, content: Any) -> str:
    if kind == "img":
        source, caption = f"figures/{content}.svg", escape(FIGURES[content][1])
        return f'<figure><img src="{source}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
    if kind != "table":
        return f"<{kind}>{escape(content)}</{kind}>"
    return f"<h3>{escape(content[0])}</h3>\n<div>{content[1].to_html(index=False, border=0)}</div>"


def _blocks(records: Sequence[Record], note: str) -> Iterator[tuple[str, Any]]:
    """The report in order: (h1 | h2 | p, text), (img, name), (table, (title, DataFrame of strings))."""
    table, drawn = checked_frame(records), figure_names(records)
    yield "h1", "The paper's experiments: trained and built networks"
    yield "p", _lead(table)
    yield from (("p", text) for text in (note, _NOTES, _SLOPES) if text and (records or text is note))
    if records:
        yield "table", ("Seconds of all runs", _seconds(table))
    for name in drawn:
        title, _, text = FIGURES[name]
        yield "h2", title
        yield "p", text
        yield "img", name
        if name == "heat-maps":
            maps = table[table.experiment == "heat-map"]
            yield "table", ("Which anchor is picked", _rows(maps.assign(size=maps["range"]), "width b - a"))
        experiment = "seq2seq" if name == "seq2seq" else "truncated"
        for against in ("anchors", "heads") if name == "seq2seq" else {name} & {*SIZES}:
            runs = sweep_runs(table, experiment, against)
            if len(runs):
                yield "p", _fixed(runs)
                trained = runs.method.isin(TRAINED)
                yield "table", ("Trained networks", _rows(runs, SIZES[against], trained))
                yield "table", ("Built networks", _rows(runs, SIZES[against], ~trained))
            if len(runs) and name != "seq2seq":
                yield "table", ("Slopes", _slope_rows(runs, against))


def _lead(table: Any) -> str:
    """What was run, and how many trainings and bounds are as they should be."""
    seeds, trained = table.seed.nunique(), table[table.method.isin(TRAINED)]
    if table.empty:
        return "0 runs."
    sizes = (
        "The sizes are the protocol's. The paper's MSE is that of its public code on a CPU: the mean of three seeds, in the "
        "sequence-to-sequence experiment one seed."
        if table.baseline.notna().any()
        else "The sizes are not the protocol's, so the paper's results are left out."
    )
    diverged, poor = (~trained.mse.abs().lt(math.inf)).sum(), (trained.mse >= trained.constant).sum()
    proved, theorem = table[table.bound.notna()], table[table.theorem.notna()]
    return (
        f"{len(table)} runs with {seeds} seeds. {sizes} Of {len(trained)} trainings, {diverged} diverged and {poor} ended no better "
        f"than the constant output. The largest error is within the proved bound in {(proved.largest <= proved.bound).sum()} of "
        f"{len(proved)} runs, and within the theorem's bound in {(theorem.largest <= theorem.theorem).sum()} of {len(theorem)}."
    )


def _seconds(table: Any) -> Any:
    times = table.groupby("method", observed=True).seconds.agg(["size", "mean", "min", "max", "sum"])
    names = {"size": "runs", "min": "shortest", "max": "longest", "sum": "total"}
    return times.map("{:.3g}".format).rename(columns=names).reset_index().astype(str)


def _fixed(runs: Any) -> str:
    """The sizes that all runs share."""
    names = [
        name
        for name in ("n", "d", "p", "heads", "width", "a", "b", "samples", "epochs")
        if runs[name].nunique() == 1
    ]
    return ", ".join(f"{name} = {runs[name].iloc[0]:g}" for name in names) + "."


def _rows(runs: Any, size: str, kept: Any = None) -> Any:
    """A row for every method and size, as text; columns without numbers are left out."""
    table = summarise(runs)
    trained = table[table.method == "trained"].set_index("size").mse
    rows = []
    for one in summarise(runs if kept is None else runs[kept]).itertuples():
        level = one.level and one.experiment == "seq2seq"
        paper = one.baseline if one.method == "trained" else None
        rows.append(
            {
                "method": one.method,
                size: "any" if level else _number(one.size),
                "start": _number(one.start),
                "test MSE": _spread(one),
                "median": _number(one.median) if one.method in TRAINED else "—",
                "/ constant": _number(one.mse / one.constant),
                "/ trained": _number(one.mse / (trained.min() if level else trained.get(one.size, math.nan))),
                "/ variance": _number(one.mse / one.spread) if one.experiment == "seq2seq" else "—",
                **_paper(one, paper),
                "largest error": _number(one.largest),
                "proved bound": _number(one.bound) if one.method != "placed" else "measured",
                "theorem's bound": _number(one.theorem),
                "picked, %": _number(100 * one.picked),
                "anchors": one.anchors,
                "parameters": one.parameters,
                "seconds": f"{one.seconds:.2g}",
            }
        )
    text = require("pandas").DataFrame(rows)
    return text.loc[:, (text != "—").any()]


def _paper(one: Any, paper: Any) -> dict[str, str]:
    """The columns of the paper's code, and the limits between which our MSE divided by the paper's is to lie."""
    if paper is None:
        return dict.fromkeys(("paper's MSE", "/ paper's", "limits", "paper's / variance"), "—")
    ends = f" ({paper.low} … {paper.high})" if paper.low is not None else ""
    return {
        "paper's MSE": _number(paper.mse) + ends,
        "/ paper's": _number(one.mse / paper.mse),
        "limits": "{} … {}".format(*paper.limits) if paper.limits else "—",
        "paper's / variance": _number(paper.mse / paper.variance) if paper.variance else "—",
    }


def _slope_rows(runs: Any, against: str) -> Any:
    """Fitted slopes with 95 % intervals, beside the theorem's."""
    wanted = [("test MSE", "mse", method, RATES[against]) for method in runs.method.unique()]
    if against == "range":
        wanted.append(("largest error", "largest", THEOREM_OF["range"], 1.0))
    rows = []
    for name, of, method, theorem in wanted:
        these = runs[runs.method == method]
        fitted = fit_rate(these, against, of)
        if fitted is not None or has_no_effect(these):
            rows.append(
                {
                    "method": method,
                    "fitted": name,
                    "slope": f"{fitted.slope:.2f}" if fitted else "—",
                    "95 % interval": f"{fitted.low:.2f} … {fitted.high:.2f}" if fitted else "—",
                    "theorem's": "—" if theorem is None else f"{theorem:g}",
                    "verdict": verdict(fitted, theorem, against == "range")
                    if fitted
                    else "independent of the size",
                    "runs": str(len(these) - (fitted.left_out if fitted else 0)),
                }
            )
    return require("pandas").DataFrame(rows)


def verdict(fitted: Fit, theorem: float | None, grows: bool = False) -> str:
    """What the whole interval shows about the direction and about the theorem's slope.

    >>> verdict(Fit(-2.1, -2.3, -1.9, 12), -2.0)
    'falls; consistent'
    >>> verdict(Fit(-2.1, -4.3, 0.1, 12), -2.0)
    'undecided'
    """
    if math.isnan(fitted.low):
        return "—"
    sign = 1 if grows else -1
    direction = ("grows" if grows else "falls") if min(sign * fitted.low, sign * fitted.high) > 0 else ""
    if theorem is None:
        return direction or "undecided"
    if fitted.low <= theorem <= fitted.high:
        against = "undecided" if fitted.high - fitted.low > WIDE else "consistent"
    else:
        against = "steeper" if sign * (fitted.slope - theorem) > 0 else "flatter"
    return f"{direction}; {against}".removeprefix("; ")


def _number(value: float) -> str:
    """Three digits; "—" for a missing number."""
    return f"{value:.3g}" if math.isfinite(value) else "—"


def _spread(one: Any) -> str:
    """The mean, and the smallest and largest of several seeds; how many diverged."""
    ends = f" ({one.low:.3g} … {one.high:.3g})" if one.runs - one.diverged > 1 else ""
    diverged = f", {one.diverged} of {one.runs} diverged" if one.diverged else ""
    return _number(one.mse) + ends + diverged


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The paper's experiments</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 66rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.55 system-ui, sans-serif; }}
p {{ max-width: 46rem; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.875rem; }}
th, td {{ padding: 0.3rem 0.7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8886; }}
th:first-child, td:first-child {{ text-align: left; }}
figure {{ margin: 1.5rem 0; }}
img {{ max-width: 100%; background: #fff; }}
</style>
</head>
<body>
{}
</body>
</html>
"""
