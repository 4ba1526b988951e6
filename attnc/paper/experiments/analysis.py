"""The runs of one sweep as a DataFrame, their statistics over the seeds, and fitted rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnc.errors import InputError
from attnc.paper.experiments.baselines import baseline
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.settings import METHODS, Setting
from attnc.paper.experiments.store import frame, require

ORDER = tuple(dict.fromkeys(method for methods in METHODS.values() for method in methods))
SIZES = {"heads": "heads H", "range": "width b - a", "anchors": "keys p"}
THEOREM_OF = {"heads": "many-heads", "range": "nearest", "anchors": "nearest"}  # the networks of the proofs
RATES = {"heads": -2.0, "range": None, "anchors": -2.0}  # of the square of the theorem's bound
_EQUAL = 1e-6  # relative: smaller differences are rounding
_VARIED = {"heads": {"heads"}, "range": {"a", "b"}, "anchors": {"p"}}


def checked_frame(records: Iterable[Record]) -> Any:
    """The frame of the records in a fixed order, with `range` = b - a and the paper's `baseline`. Raises `InputError` if a run
    occurs twice, or if an experiment has records with different amounts of data."""
    found = tuple(records)
    table = frame(found).assign(baseline=[baseline(one.setting) for one in found])
    table["range"] = table.b - table.a
    table["method"] = require("pandas").Categorical(table.method, ORDER, ordered=True)
    if table.key.duplicated().any():
        raise InputError(f"two records of {table.key[table.key.duplicated()].iloc[0]}: give each run once")
    for experiment, runs in table.groupby("experiment"):
        columns = ["d", "samples", "epochs", "batch", *([] if experiment == "seq2seq" else ["n", "width"])]
        if len(amounts := runs[columns].drop_duplicates()) > 1:
            raise InputError(
                f"records of {experiment} with different sizes: {amounts.to_dict('records')}; give the records of one sweep"
            )
    return table.sort_values(["experiment", "method", "key"], ignore_index=True)


def sweep_runs(table: Any, experiment: str, against: str) -> Any:
    """The largest set of runs in which only the method, the seed and the named size vary, with that size as `size`; no rows if
    there are fewer than two sizes. A method with one size is kept if the size does not apply to it: a built network with one
    head, or any network of experiment 3 that is not trained from random weights."""
    if against not in SIZES:
        raise InputError(f"against={against!r}: accepted are {', '.join(SIZES)}")
    fixed = [one for one in Setting.__dataclass_fields__ if one not in _VARIED[against] | {"method", "seed"}]
    runs = table.assign(size=table[{"anchors": "p"}.get(against, against)]).query("experiment == @experiment")
    families = [family for _, family in runs.groupby(fixed)]
    largest = max(families, key=lambda family: family["size"].nunique(), default=runs[:0])
    if largest["size"].nunique() < 2:
        return runs[:0]
    if experiment == "truncated" and against != "heads":
        sizes = largest.groupby("method", observed=True)["size"].transform("nunique")
        largest = largest[sizes > 1]
    return largest


def summarise(runs: Any) -> Any:
    """One row per method and size. `mse`, `low`, `high`, `median`, `start`, `constant` and `spread` are taken over the seeds that
    did not diverge; `largest`, `bound` and `theorem` are the largest of all seeds, NaN if one is missing."""
    groups = runs.groupby(["method", "size"], observed=True)
    finite = runs[np.isfinite(runs.mse)].groupby(["method", "size"], observed=True)
    table = groups.agg(
        experiment=("experiment", "first"),
        runs=("mse", "size"),
        seconds=("seconds", "mean"),
        baseline=("baseline", lambda values: values.iloc[0]),
        **{name: (name, lambda values: values.max(skipna=False)) for name in ("largest", "bound", "theorem")},
        **{name: (name, _low_to_high) for name in ("anchors", "parameters")},
    )
    means = {name: (name, "mean") for name in ("mse", "start", "constant", "spread", "picked")}
    table = table.join(finite.agg(low=("mse", "min"), high=("mse", "max"), median=("mse", "median"), **means))
    table["diverged"] = table.runs - finite.size().reindex(table.index, fill_value=0)
    table["level"] = (
        table.groupby("method", observed=True).mse.transform("size") == 1
    )  # the size does not apply
    return table.reset_index()


def _low_to_high(values: Any) -> str:
    known = values.dropna()
    if known.empty:
        return "—"
    return f"{known.min():,}" if known.min() == known.max() else f"{known.min():,} … {known.max():,}"


def meeting_runs(records: Iterable[Record]) -> dict[str, list[Record]]:
    """By method, the runs of experiment "truncated" that its sweeps share: fewest heads, fewest keys, widest range."""

    def position(one: Setting) -> tuple[int, int, float]:
        return one.heads, one.p, one.a - one.b

    found = [one for one in records if one.setting.experiment == "truncated"]
    first = min((position(one.setting) for one in found), default=None)
    runs = sorted((one for one in found if position(one.setting) == first), key=lambda one: one.setting.seed)
    return {m: these for m in ORDER if (these := [one for one in runs if one.setting.method == m])}


@dataclass(frozen=True)
class Fit:
    """value ≈ C_seed · size^slope. The 95 % interval is [low, high]; its ends are NaN where no degrees of freedom are left."""

    slope: float
    low: float
    high: float
    runs: int
    left_out: int = 0  # values without a logarithm: zero, negative, infinite, NaN


def fit(sizes: Sequence[float], values: Sequence[float], seeds: Sequence[int]) -> Fit | None:
    """The slope of log value against log size by least squares, with one intercept per seed; None if no seed has two sizes.

    A seed draws the same data at every size. The model is log v_i = α_{seed(i)} + σ log s_i + e_i with independent normal e_i of
    one variance, so least squares works on the logarithms centred within each seed. With N runs of S seeds, the interval is
    slope ± t_{0.975, N-S-1} · standard error.

    >>> fit((10, 20, 10, 20), (1.0, 0.25, 3.0, 0.75), (0, 0, 1, 1)).slope  # another level, the same slope
    -2.0
    """
    runs = (
        require("pandas").DataFrame({"x": sizes, "y": values, "seed": seeds}).astype({"x": float, "y": float})
    )
    kept = runs[np.isfinite(runs.y) & (runs.y > 0)]
    if (runs.x <= 0).any() or not (kept.groupby("seed").x.nunique() > 1).any():
        return None
    logs = np.log(kept[["x", "y"]])
    x, y = (logs[name] - logs[name].groupby(kept.seed).transform("mean") for name in "xy")
    across, freedom = float(x @ x), len(kept) - kept.seed.nunique() - 1
    slope, reach = float(x @ y) / across, math.nan
    if freedom > 0:
        error = math.sqrt(float(((y - slope * x) ** 2).sum()) / freedom / across)
        reach = float(require("scipy.stats").t.ppf(0.975, freedom)) * error
    return Fit(slope, slope - reach, slope + reach, len(kept), len(runs) - len(kept))


def fit_rate(runs: Any, against: str, of: str = "mse") -> Fit | None:
    """The rate of one method. The theorems bound the largest error by about C(b - a)/(N - 1), with N = p for one head and
    N = (n - 2)H for many. None if the size has no effect."""
    sizes = {"heads": (runs.n - 2) * runs.heads - 1, "range": runs["range"], "anchors": runs.p - 1}[against]
    return None if has_no_effect(runs) else fit(sizes, runs[of], runs.seed)


def has_no_effect(runs: Any) -> bool:
    """Whether each seed gives the same test MSE at several sizes, except for rounding."""
    by_seed = runs.groupby("seed").mse
    equal = (by_seed.max() - by_seed.min() <= _EQUAL * by_seed.max()).all()
    return bool(
        len(runs) > by_seed.ngroups and equal and (runs.mse > 0).all() and np.isfinite(runs.mse).all()
    )
