"""The report of the experiments as Markdown: the runs beside the paper's results, and fitted rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnc.errors import InputError
from attnc.paper.experiments.protocol import FIRST_SEED, METHODS, PROTOCOL, QUICK, TRAINED, Setting
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.sweeps import frame, require

ORDER = tuple(dict.fromkeys(method for methods in METHODS.values() for method in methods))
SIZES = {"heads": "heads H", "range": "width b - a", "anchors": "keys p"}
THEOREM_OF = {"heads": "many-heads", "range": "nearest", "anchors": "nearest"}  # the networks of the proofs
RATES = {"heads": -2.0, "range": None, "anchors": -2.0}  # of the square of the theorem's bound
_VARIED = {"heads": {"heads"}, "range": {"a", "b"}, "anchors": {"p"}}
_EQUAL = 1e-6  # relative: smaller differences are rounding
TITLES = {  # of the sections, by the name of their figure
    "heads": "Truncated linear functions: number of heads",
    "range": "Truncated linear functions: width of the range",
    "anchors": "Truncated linear functions: number of keys",
    "learning-curves": "Does construction help learning?",
    "heat-maps": "Attention heat maps",
    "seq2seq": "Sequence to sequence",
}


class Baseline(NamedTuple):
    """The test MSE of the paper's public code in one setting, on a CPU: the mean of three seeds, in experiment 3 of one."""

    mse: float = math.nan
    low: float = math.nan  # over the seeds, where they differ much
    high: float = math.nan
    variance: float = math.nan  # of all numbers of the target
    least: float = math.nan  # our MSE divided by the paper's must lie between these limits
    most: float = math.nan


_BASE, _FEW, _MANY = PROTOCOL.truncated, PROTOCOL.few, PROTOCOL.many
_HEADS = {1: 0.1438, 2: 0.0601, 4: 0.0308, 8: 0.0193, 16: 0.0149}
_RANGE = {10.0: 0.0087, 20.0: 0.0430, 30.0: 0.0795, 40.0: 0.1166}  # 50 is the first of the heads
_KEYS, _SEQ_KEYS = {100: 0.0059, 120: 0.0043}, {10: 15.4, 14: 15.6, 20: 15.7}
_SEQ_HEADS = {1: 123.5, 8: 35.3, 32: 52.2}
BASELINES = {
    **{replace(_BASE, heads=h): Baseline(mse, least=0.65, most=1.35) for h, mse in _HEADS.items()},
    **{replace(_BASE, a=-w / 2, b=w / 2): Baseline(mse, least=0.65, most=1.35) for w, mse in _RANGE.items()},
    replace(_BASE, p=80): Baseline(0.049, low=0.005, high=0.117),  # unstable: no limits
    **{replace(_BASE, p=p): Baseline(mse, least=0.5, most=2.0) for p, mse in _KEYS.items()},
    **{replace(_FEW, p=p): Baseline(mse, variance=55.3) for p, mse in _SEQ_KEYS.items()},
    **{replace(_MANY, heads=h): Baseline(mse, variance=256.6) for h, mse in _SEQ_HEADS.items()},
}
PAPER = [f"paper_{name}" for name in Baseline._fields]


def checked_frame(records: Iterable[Record]) -> Any:
    """The frame of the records in a fixed order, with `range` = b - a and the paper's results. Raises `InputError` if the records
    are not of one sweep."""
    found, pandas = tuple(records), require("pandas")
    table = frame(found)
    known = [BASELINES.get(replace(one.setting, seed=FIRST_SEED), Baseline()) for one in found]
    table[PAPER] = np.array(known).reshape(-1, len(PAPER))
    table["range"] = table.b - table.a
    table["method"] = pandas.Categorical(table.method, ORDER, ordered=True)
    if table.key.duplicated().any():
        raise InputError(f"two records of {table.key[table.key.duplicated()].iloc[0]}: give each run once")
    amounts = table[["experiment", "d", "samples", "epochs", "batch"]].drop_duplicates()
    if amounts.experiment.duplicated().any():
        raise InputError(f"these records are not of one sweep: their sizes are {amounts.to_dict('records')}")
    return table.sort_values(["experiment", "method", "key"], ignore_index=True)


def sweep_runs(table: Any, experiment: str, against: str) -> Any:
    """The largest set of runs in which only the method, the seed and the named size vary, with that size as `size`; no rows if
    there are fewer than two sizes. A method with one size is kept if the size does not apply to it: a built network with one
    head, or a network of experiment 3 that is built or trained from a built one."""
    fixed = [one for one in Setting.__dataclass_fields__ if one not in _VARIED[against] | {"method", "seed"}]
    runs = table.assign(size=table["p" if against == "anchors" else against])
    families = [family for _, family in runs[runs.experiment == experiment].groupby(fixed)]
    largest = max(families, key=lambda family: family["size"].nunique(), default=runs[:0])
    if largest["size"].nunique() < 2:
        return runs[:0]
    several = largest.groupby("method", observed=True)["size"].transform("nunique") > 1
    return largest if experiment == "seq2seq" or against == "heads" else largest[several]


def summarise(runs: Any, by: Sequence[str] = ("method", "size")) -> Any:
    """One row per method and size. `mse`, `low`, `high`, `median`, `start`, `constant` and `spread` are taken over the seeds that
    did not diverge; `largest`, `bound` and `theorem` are the largest of all seeds, NaN if one is missing."""
    groups = runs.groupby([*by], observed=True)
    finite = runs[np.isfinite(runs.mse)].groupby([*by], observed=True)
    table = groups.agg(
        runs=("mse", "size"),
        seconds=("seconds", "mean"),
        **{name: (name, "first") for name in PAPER},
        **{name: (name, lambda values: values.max(skipna=False)) for name in ("largest", "bound", "theorem")},
        **{name: (name, _low_to_high) for name in ("anchors", "parameters")},
    )
    means = {name: (name, "mean") for name in ("mse", "start", "constant", "spread", "picked")}
    table = table.join(finite.agg(low=("mse", "min"), high=("mse", "max"), median=("mse", "median"), **means))
    table["diverged"] = table.runs - finite.size().reindex(table.index, fill_value=0)
    counts = table.groupby("method", observed=True).runs.transform("size")
    table["level"] = counts == 1  # the size does not apply
    return table.reset_index()


def _low_to_high(values: Any) -> str:
    known = sorted(set(values.dropna()))
    return " … ".join(f"{value:,}" for value in (*known[:1], *known[1:][-1:])) or "—"


def learning_runs(records: Iterable[Record]) -> dict[str, list[Record]]:
    """By method, the runs that the sweeps of experiment 1 share: one head, the fewest keys, the widest range."""
    bases = (PROTOCOL.truncated, QUICK.truncated)
    shared = [r for r in records if replace(r.setting, method="trained", seed=FIRST_SEED) in bases]
    return {method: these for method in ORDER if (these := [r for r in shared if r.setting.method == method])}


class Fit(NamedTuple):
    """value ≈ C_seed · size^slope. The 95 % interval is [low, high]; its ends are NaN where no degrees of freedom are left."""

    slope: float
    low: float
    high: float
    runs: int  # values that have a logarithm


def fit(sizes: Sequence[float], values: Sequence[float], seeds: Sequence[int]) -> Fit | None:
    """The slope of log value against log size by least squares, with one intercept per seed; None if no seed has two sizes.
    Values without a logarithm are left out.

    A seed draws the same data at every size: log v_i = α_{seed(i)} + σ log s_i + e_i with independent normal e_i of one variance.
    With N runs of S seeds, the interval is slope ± t_{0.975, N-S-1} · standard error."""
    table = require("pandas").DataFrame({"x": sizes, "y": values, "seed": seeds})
    runs = table.astype({"x": float, "y": float})
    runs = runs[np.isfinite(runs.y) & (runs.y > 0) & (runs.x > 0)]
    if not (runs.groupby("seed").x.nunique() > 1).any():
        return None
    logs = np.log(runs[["x", "y"]])
    x, y = (logs[name] - logs[name].groupby(runs.seed).transform("mean") for name in "xy")
    across, freedom = float(x @ x), len(runs) - runs.seed.nunique() - 1
    slope, reach = float(x @ y) / across, math.nan
    if freedom > 0:
        error = math.sqrt(float(((y - slope * x) ** 2).sum()) / freedom / across)
        reach = float(require("scipy.stats").t.ppf(0.975, freedom)) * error
    return Fit(slope, slope - reach, slope + reach, len(runs))


def fit_rate(runs: Any, against: str, of: str = "mse") -> Fit | None:
    """The rate of one method. The theorems bound the largest error by about C(b - a)/(N - 1), with N = p for one head and
    N = (n - 2)H for many. None if the size has no effect."""
    sizes = {"heads": (runs.n - 2) * runs.heads - 1, "range": runs["range"], "anchors": runs.p - 1}[against]
    return None if has_no_effect(runs) else fit(sizes, runs[of], runs.seed)


def has_no_effect(runs: Any) -> bool:
    """Whether each seed gives the same test MSE at several sizes, except for rounding."""
    by_seed = runs.groupby("seed").mse
    equal = (by_seed.max() - by_seed.min() <= _EQUAL * by_seed.max()).all()
    usable = (runs.mse > 0).all() and np.isfinite(runs.mse).all()
    return bool(equal and usable and len(runs) > by_seed.ngroups)


def figure_names(records: Iterable[Record]) -> tuple[str, ...]:
    """The figures for which the records suffice."""
    found = tuple(records)
    table, learned = checked_frame(found), learning_runs(found)
    drawn = {against: len(sweep_runs(table, "truncated", against)) for against in SIZES}
    drawn["learning-curves"] = any(one.curve for method in TRAINED for one in learned.get(method, ()))
    drawn["heat-maps"] = any(one.weights for one in found)
    drawn["seq2seq"] = any(len(sweep_runs(table, "seq2seq", against)) for against in ("anchors", "heads"))
    return tuple(name for name in TITLES if drawn[name])


def markdown(records: Iterable[Record], note: str = "") -> str:
    """The report, with the figures `figures/<name>.svg`. `note` is a paragraph at the top. docs/experiments.md explains the
    experiments, the tables and the figures."""
    found = tuple(records)
    table = checked_frame(found)
    parts = ["# The paper's experiments: trained and built networks", _lead(table) if found else "0 runs."]
    parts += [note] if note else []
    parts += [_table("Seconds of all runs", _seconds(table))] if found else []
    for name in figure_names(found):
        parts += [f"## {TITLES[name]}", f"![{TITLES[name]}](figures/{name}.svg)"]
        if name == "heat-maps":
            maps = table[table.experiment == "heat-map"]
            parts.append(_table("Which anchor is picked", _rows(maps.assign(size=maps["range"]), "range")))
        elif name == "seq2seq":
            parts += [text for size in ("anchors", "heads") for text in _sweep(table, "seq2seq", size)]
        elif name in SIZES:
            slopes = _slopes(sweep_runs(table, "truncated", name), name)
            parts += [*_sweep(table, "truncated", name), _table("Slopes", slopes)]
    return "\n\n".join(parts) + "\n"


def _table(title: str, table: Any) -> str:
    rule = ["---" if name in ("method", "fitted", "verdict") else "---:" for name in table.columns]
    rows = ("| " + " | ".join(row) + " |" for row in (table.columns, rule, *table.to_numpy()))
    return f"**{title}**\n\n" + "\n".join(rows)


def _sweep(table: Any, experiment: str, against: str) -> list[str]:
    """The sizes that are fixed, a table of the trained networks and one of those that are built."""
    runs = sweep_runs(table, experiment, against)
    if runs.empty:
        return []
    names = ("n", "d", "p", "heads", "width", "a", "b", "samples", "epochs")
    fixed = [f"{name} = {runs[name].iloc[0]:g}" for name in names if runs[name].nunique() == 1]
    rows, trained = _rows(runs, against), summarise(runs).method.isin(TRAINED)
    kinds = {"Trained networks": rows[trained], "Built networks": rows[~trained]}
    tables = [_table(title, t.loc[:, (t != "—").any()]) for title, t in kinds.items() if len(t)]
    return [", ".join(fixed) + ".", *tables]


def _lead(table: Any) -> str:
    """What was run, how many trainings failed, and how many errors are within their bounds."""
    sizes = "The sizes are not the protocol's, so the paper's results are left out."
    if table.paper_mse.notna().any():
        sizes = (
            "The sizes are the protocol's. The paper's MSE is that of its public code on a CPU: the mean of three seeds, in the "
            "sequence-to-sequence experiment one seed."
        )
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


def _rows(runs: Any, against: str) -> Any:
    """A row of text for every method and size; columns without a number are left out."""
    table, size, seq2seq = summarise(runs), SIZES[against], runs.experiment.iloc[0] == "seq2seq"
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
    wanted = [("test MSE", "mse", method, RATES[against]) for method in runs.method.unique()]
    if against == "range":
        wanted.append(("largest error", "largest", THEOREM_OF["range"], 1.0))
    rows = []
    for name, of, method, theorem in wanted:
        these = runs[runs.method == method]
        fitted, rate = fit_rate(these, against, of), "—" if theorem is None else f"{theorem:g}"
        slope, interval, shown, used = "—", "—", "independent of the size", len(these)
        if fitted is not None:
            ends = (fitted.slope, fitted.low, fitted.high)
            slope, low, high = (f"{round(one, 2) + 0.0:.2f}" for one in ends)
            interval, used = f"{low} … {high}", fitted.runs
            shown = verdict(fitted, theorem, grows=against == "range")
        if fitted is not None or has_no_effect(these):
            rows.append((method, name, slope, interval, rate, shown, f"{used} of {len(these)}"))
    head = ("method", "fitted", "slope", "95 % interval", "theorem's", "verdict", "runs")
    return require("pandas").DataFrame(rows, columns=head)


def verdict(fitted: Fit, theorem: float | None, grows: bool = False) -> str:
    """What the whole interval shows about the direction and about the theorem's slope."""
    sign, verb = (1, "grow") if grows else (-1, "fall")
    direction = f"{verb}s" if sign * fitted.low > 0 and sign * fitted.high > 0 else f"does not clearly {verb}"
    if theorem is None or math.isnan(fitted.low):
        return "—" if math.isnan(fitted.low) else direction
    if fitted.low <= theorem <= fitted.high:
        return f"{direction}; {'undecided' if fitted.high - fitted.low > 1 else 'consistent'}"
    return f"{direction}; {'steeper' if sign * (fitted.slope - theorem) > 0 else 'flatter'}"
