"""`attnc learn`: a statistical model from a CSV file, by gradient descent that fixed attention weights carry out."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich import box
from rich.table import Table as RichTable
from rich.text import Text
from torch import Tensor

import attnc.plot
from attnc.cli.csv_data import Context, check_no_prediction, read_context, write_predictions
from attnc.cli.output import (
    NOT_PROVED,
    chosen_dtype,
    errors_reported,
    made_facts,
    number,
    print_facts,
    print_json,
    print_table,
)
from attnc.cli.progress import progress
from attnc.cli.targets import check_targets
from attnc.domain import Array
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.incontext import Learner, Loss, Radius, gradient_descent
from attnc.incontext.exact import exact_trajectory, residuals
from attnc.incontext.losses import DEFAULTS, loss_named
from attnc.incontext.radius import radius_of
from attnc.plot.canvas import picture_format, require_matplotlib

_WIDEST = 64.0  # of |w·x| for a loss whose curvature is known everywhere
_REACHES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)  # of |w·x| that are tried where it grows with w·x
_ROOM = 1.1  # between what exact gradient descent reaches and the radius
_FIRST = 5  # predictions that are printed

_Data = Annotated[Path, typer.Argument(metavar="DATA", help="A CSV file: a header, then rows of numbers.")]
_Target = Annotated[str, typer.Option(metavar="COLUMN", help="What is predicted; all others are features.")]
_LossName = Annotated[
    str,
    typer.Option(
        metavar="LOSS", help="squared, ridge(λ), lasso(λ), logistic, poisson, huber(δ) or quantile(τ)."
    ),
]
_StepSize = Annotated[
    float | None, typer.Option(metavar="η", help="1/L if left out, L the largest curvature on these rows.")
]
_Query = Annotated[Path | None, typer.Option(metavar="PATH", help="A CSV file: predict its rows.")]
_RadiusOption = Annotated[
    float | None,
    typer.Option(metavar="R", help="Bounds features, target and coefficients; from the data if left out."),
]
_Plot = Annotated[Path | None, typer.Option(metavar="PATH", help="Draw it (.png, .svg or .pdf).")]
_Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="PATH", help="Write the rows with their predictions (.csv)."),
]


@dataclass(frozen=True)
class _Rival:
    """What scikit-learn finds for the same objective; where it finds nothing, `note` says why."""

    name: str | None
    note: str = ""
    w: Array | None = None
    distance: float = math.nan
    fit: float = math.nan


@dataclass(frozen=True)
class _Learnt:
    """The result of a run and what is said of it."""

    context: Context
    learner: Learner
    w: Array  # (d,), the intercept last
    distance: float
    bound: float
    why_not: str | None
    fit: float
    rival: _Rival
    predictions: Array  # of the queries, or else of the examples, in the units of the file


def learn(
    data: _Data,
    target: _Target,
    loss: _LossName = "squared",
    steps: Annotated[int, typer.Option(metavar="T", help="Of gradient descent, from w = 0.")] = 100,
    step_size: _StepSize = None,
    query: _Query = None,
    radius: _RadiusOption = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float64",
    intercept: Annotated[bool, typer.Option("--intercept/--no-intercept", help="A constant.")] = True,
    standardise: Annotated[
        bool, typer.Option("--standardise/--no-standardise", help="Mean 0, deviation 1.")
    ] = True,
    plot: _Plot = None,
    output: _Output = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Learn from a CSV file: gradient descent as softmax attention with fixed weights, and the proof of its distance.

    Features are standardised, and for losses other than logistic and poisson the
    target too, so λ, δ and η are in those units; coefficients are given in the
    units of the file.

    Exit status: 0 proved, 1 not proved (no finite bound, or beyond the radius), 2 bad input.

    Example: attnc learn data.csv --target y --loss 'ridge(0.1)' --steps 200 --query new.csv -o predictions.csv
    """
    with errors_reported(json):
        kind, chosen = loss_named(loss), chosen_dtype(dtype)
        loss = f"{loss}({DEFAULTS[loss]:g})" if loss in DEFAULTS else loss
        files = {key: path for key, path in (("output", output), ("plot", plot)) if path is not None}
        check_targets(list(files.values()), force)
        if plot is not None:
            picture_format(plot)
            require_matplotlib()
        began = time.perf_counter()
        with progress(f"reading {data}") as say:
            context = read_context(data, target, query, kind, intercept, standardise)
            if output is not None:
                check_no_prediction(context.rows)
            x, y, asked = (torch.tensor(a).to(chosen) for a in (context.x, context.y, context.query))
            say("building the learner")
            learner = _learner(context, kind, steps, step_size, radius, chosen, x, y)
            learnt = _learnt(context, learner, x, y, asked, say)
            seconds = time.perf_counter() - began
            if output is not None:
                say(f"writing {output}")
                write_predictions(output, context.rows, learnt.predictions)
            if plot is not None:
                say(f"drawing {plot}")
                attnc.plot.learning(learner, x=x, y=y, names=context.names, path=plot)
        written = {key: str(path) for key, path in files.items()}
        if json:
            print_json({**_record(learnt, loss), "seconds": round(seconds, 3), "files": written})
        else:
            _print(learnt, loss, made_facts(seconds, written))
    if learnt.why_not is not None:
        raise typer.Exit(NOT_PROVED)


def _learner(
    context: Context,
    loss: Loss,
    steps: int,
    step_size: float | None,
    radius: float | None,
    dtype: torch.dtype,
    x: Tensor,
    y: Tensor,
) -> Learner:
    """The step size is 1/L, and the radius what exact gradient descent reaches and a little more, where they are not given.

    The curvature of poisson depends on the reach of w·x, and the reach on the step size: the smallest reach is taken
    that exact gradient descent, with the step size that belongs to it, does not leave."""
    if steps < 1:
        raise InputError(f"--steps {steps}: a positive whole number is accepted")
    if step_size is not None and not 0 < step_size < math.inf:
        raise InputError(f"--step-size {step_size:g}: a positive finite number is accepted")
    wide, labels = context.wide(x.double().numpy()), y.double().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        square = wide.T @ wide / len(wide)
    if not np.isfinite(square).all():
        raise InputError(
            f"{context.table.path} holds numbers up to {np.abs(context.x).max():.3g}: standardise them"
        )
    largest = float(np.linalg.eigvalsh(square)[-1]) * (1 + 1e-6)
    given = None if radius is None else radius_of(radius, wide.shape[1], loss.name)
    steeper = loss.local and not loss.of_residual
    reaches = (given.u,) if given is not None else _REACHES if steeper else (_WIDEST,)
    for reach in reaches:
        eta = step_size or 1 / (loss.steepest(-1.03 * reach, 1.03 * reach) * largest + loss.ridge)
        if given is not None:
            sizes = given
            break
        w = exact_trajectory(loss, wide, labels, steps, eta, context.intercept)
        rows = np.vstack([wide, context.wide(context.query)])
        sizes, fits = _sizes(w, rows, labels, eta * loss.lasso, reach if steeper else None)
        if fits:
            break
    wishes = {"features": len(context.names), "steps": steps, "step_size": eta, "radius": sizes}
    return _built(loss, {**wishes, "intercept": context.intercept, "dtype": dtype})


def _built(loss: Loss, wishes: dict[str, Any]) -> Learner:
    """With the activation as near as usual, or else as near as it can be proved: the bound is that of what is built."""
    try:
        return gradient_descent(loss, **wishes)
    except (ConvergenceError, PrecisionError) as problem:
        if problem.reachable is None or loss.function is None:
            raise
        return gradient_descent(loss, **wishes, eps=1.1 * problem.reachable)


def _sizes(w: Array, rows: Array, y: Array, level: float, reach: float | None) -> tuple[Radius, bool]:
    """A little more than the largest numbers that occur, to two digits; and whether w·x stays within the reach, if any.

    Before the soft threshold |w| is larger by its level, and twice the radius is served there."""
    with np.errstate(all="ignore"):
        u = max(float(np.abs(rows @ one).max()) for one in w)
    x, labels, reached = (float(np.abs(a).max()) for a in (rows, y, w))
    x, labels, reached = map(_two_digits, (x, labels, max(reached, (reached + level) / 2)))
    if reach is None:
        return Radius(x, labels, reached, _two_digits(u)), True
    return Radius(x, labels, reached, reach), u * _ROOM <= reach


def _two_digits(size: float) -> float:
    """
    >>> _two_digits(2.0), _two_digits(0.0), _two_digits(123.4)
    (2.2, 0.1, 140.0)
    """
    if not math.isfinite(size):
        return _WIDEST
    size = max(size * _ROOM, 0.1)
    unit = 10.0 ** (math.floor(math.log10(size)) - 1)
    return float(f"{math.ceil(size / unit - 1e-9) * unit:.2g}")


def _learnt(
    context: Context, learner: Learner, x: Tensor, y: Tensor, query: Tensor, say: Callable[[str], None]
) -> _Learnt:
    """The learner's result and what it is compared with: exact gradient descent on the numbers that the learner has."""
    say(f"learning from {len(x)} examples in {learner.steps} steps")
    found, why_not = _run(learner, x, y)
    w, loss = found[-1].double().numpy(), learner.loss
    wide, labels = context.wide(x.double().numpy()), y.double().numpy()
    exact = exact_trajectory(loss, wide, labels, learner.steps, learner.step_size, learner.intercept)[-1]
    bound = learner.certificate.bound(len(x), learner.curvature(torch.from_numpy(wide)))
    say(f"predicting {len(x) + len(query)} rows")
    predicted = learner(x, y, torch.cat([x, query]), strict=False).double().numpy()
    if not math.isfinite(bound):
        why_not = why_not or f"no finite bound in {learner.certificate.dtype}"
    for rows, values in ((context.table, wide), (context.asked, context.wide(query.double().numpy()))):
        if rows is not None:
            why_not = _beyond(rows.path, values, w, learner.radius) or why_not
    say("asking scikit-learn")
    distance, fit = float(np.linalg.norm(w - exact)), _fit(loss, predicted[: len(x)], labels)
    rival = _rival(loss, x.double().numpy(), labels, w, learner.intercept)
    own = context.y_scale.back(predicted[len(x) :] if len(query) else predicted)
    return _Learnt(context, learner, w, distance, bound, why_not, fit, rival, own)


def _run(learner: Learner, x: Tensor, y: Tensor) -> tuple[Tensor, str | None]:
    """The trajectory, and what left the radius, if anything did."""
    try:
        return learner.trajectory(x, y, strict=True), None
    except InputError as problem:
        found = learner.trajectory(x, y, strict=False)  # what is wrong besides the radius is raised again
        return found, str(problem).partition(": nothing is promised")[0]


def _beyond(path: str, x: Array, w: Array, radius: Radius) -> str | None:
    """Which row of a file is outside the radius, where nothing is promised."""
    for name, sizes, limit in (("x", np.abs(x).max(1), radius.x), ("w·x", np.abs(x @ w), radius.u)):
        i = int(np.argmax(sizes))
        if sizes[i] > limit:
            return f"|{name}| is {sizes[i]:.4g} in row {i + 1} of {path}, beyond the radius {limit:g}"
    return None


def _fit(loss: Loss, predicted: Array, y: Array) -> float:
    """R² = 1 - Σ(y - ŷ)²/Σ(y - ȳ)²; of the logistic loss the share of labels that are right."""
    if loss.name == "logistic":
        return float(((predicted > 0.5) == (y > 0.5)).mean())
    spread = float(((y - y.mean()) ** 2).sum())
    return 1 - float(((predicted - y) ** 2).sum()) / spread if spread > 0 else math.nan


def _rival(loss: Loss, x: Array, y: Array, w: Array, intercept: bool) -> _Rival:
    """scikit-learn's minimum of the same objective: none of its penalties counts the intercept either."""
    try:
        from sklearn import linear_model
    except ImportError:
        return _Rival(None, "needs the extra sklearn: pip install 'attnc[sklearn]'")
    plain: dict[str, Any] = {"fit_intercept": intercept}
    careful = {"tol": 1e-10, "max_iter": 10_000}
    models: dict[str, Callable[[], Any]] = {
        "squared": lambda: linear_model.LinearRegression(**plain),
        "ridge": lambda: linear_model.Ridge(alpha=len(x) * loss.ridge, **plain),
        "lasso": lambda: linear_model.Lasso(alpha=loss.lasso, **plain, **careful),
        "logistic": lambda: linear_model.LogisticRegression(C=1e12, **plain, **careful),
        "poisson": lambda: linear_model.PoissonRegressor(alpha=0, **plain, **careful),
    }
    # Without a penalty both others are least squares.
    name = "squared" if loss.function is None and not loss.ridge + loss.lasso > 0 else loss.name
    if name not in models:
        return _Rival(None, f"has no estimator with the objective of {loss.name}")
    kind = type(model := models[name]()).__name__
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            slopes, constant = np.ravel(model.fit(x, y).coef_), np.ravel(model.intercept_)[:1]
            u = x @ slopes + constant
            fit = _fit(loss, u if loss.of_residual else residuals(loss, u, np.zeros(len(u))), y)
    except ValueError as problem:
        return _Rival(kind, f"{kind} refuses: {' '.join(str(problem).split())}")
    note = "it did not converge" if said else ""
    if loss.name == "logistic" and fit == 1:
        note = "the labels are separable: no coefficients are the best"
    best = np.concatenate([slopes, constant]) if intercept else slopes
    return _Rival(kind, note, best, float(np.linalg.norm(w - best)), fit)


def _record(learnt: _Learnt, loss: str) -> dict[str, Any]:
    context, learner, rival = learnt.context, learnt.learner, learnt.rival
    slopes, constant = context.original(learnt.w)
    fit = "accuracy" if learner.loss.name == "logistic" else "r2"
    return {
        "status": "proved" if learnt.why_not is None else "not proved",
        "reason": learnt.why_not,
        "loss": loss,
        "examples": len(context.x),
        "features": len(context.names),
        "steps": learner.steps,
        "step_size": learner.step_size,
        "dtype": learner.certificate.dtype,
        "radius": vars(learner.radius),
        "coefficients": dict(zip(context.names, slopes.tolist(), strict=True)),
        "intercept": constant,
        "learner_units": learnt.w.tolist(),
        "distance": learnt.distance,
        "bound": learnt.bound,
        fit: learnt.fit,
        "sklearn": {
            "estimator": rival.name,
            "note": rival.note,
            "distance": rival.distance,
            fit: rival.fit,
        },
        "notes": list(context.notes),
        "predictions": learnt.predictions.tolist() if context.asked is not None else None,
    }


def _print(learnt: _Learnt, loss: str, made: Mapping[str, str]) -> None:
    context, learner = learnt.context, learnt.learner
    slopes, constant = context.original(learnt.w)
    ends = [*slopes.tolist(), *([] if constant is None else [constant])]
    names = [*context.names, *([] if constant is None else ["(intercept)"])]
    _print_columns("coefficients", ("column", "in its units", "as learnt"), names, ends, learnt.w.tolist())
    if context.asked is not None:
        m = len(learnt.predictions)
        title = f"predictions of {context.target}" + (f", the first {_FIRST} of {m}" if m > _FIRST else "")
        rows = [str(i + 1) for i in range(min(m, _FIRST))]
        _print_columns(title, ("row", "prediction"), rows, learnt.predictions[:_FIRST].tolist())
    sizes = ", ".join(f"|{name}| <= {number(size)}" for name, size in vars(learner.radius).items())
    facts = {
        "loss": loss,
        "examples": str(len(context.x)),
        "features": f"{len(context.names)}{', and an intercept' if context.intercept else ''}",
        "steps": f"{learner.steps} of size {learner.step_size:.6g}",
        "radius": f"{sizes.replace('|u|', '|w·x|')}, {learner.certificate.dtype}",
        "exact gradient descent": f"{learnt.distance:.3g} away",
        "proved bound": number(learnt.bound) if learnt.why_not is None else f"none: {learnt.why_not}",
        "scikit-learn": _rival_text(learnt.rival),
        "fit": _fit_text(learnt),
        "note": "\n".join(context.notes),
    }
    title = f"{context.target} learnt from {context.table.path} by softmax attention"
    print_facts(title, {**{name: fact for name, fact in facts.items() if fact}, **made})


def _print_columns(title: str, heads: Sequence[str], names: Sequence[str], *columns: Sequence[float]) -> None:
    table = RichTable(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold")
    for row in zip(names, *columns, strict=True):
        table.add_row(Text(row[0]), *(f"{value:.6g}" for value in row[1:]))
    print_table(table)


def _rival_text(rival: _Rival) -> str:
    if rival.w is None:
        return rival.note
    return f"{rival.name}: {rival.distance:.3g} away" + (f" ({rival.note})" if rival.note else "")


def _fit_text(learnt: _Learnt) -> str:
    name = "accuracy" if learnt.learner.loss.name == "logistic" else "R²"
    if math.isnan(learnt.fit):
        return f"{name} undefined: the target is constant"
    beside = "" if learnt.rival.w is None else f", {learnt.rival.fit:.6g} by scikit-learn"
    return f"{name} {learnt.fit:.6g}{beside}"
