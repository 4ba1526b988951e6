"""`attnc learn`: a statistical model from a CSV file, by gradient descent that fixed attention weights carry out."""

from __future__ import annotations

import csv
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import attnc
from attnc.cli.options import Dtype, Force, Json, Output, Plot, check_files
from attnc.cli.output import (
    NOT_PROVED,
    errors_reported,
    facts_text,
    print_json,
    progress_bar,
    run_facts,
    shortened,
    table,
)
from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.domain import Array
    from attnc.incontext import Loss

Rows = list[dict[str, str]]  # the cells of a CSV file, by column
_PREDICTION = "prediction"  # the column that --predictions adds
_LARGEST = 1e100  # the squares of larger numbers overflow
_LOSSES = "squared, ridge(λ), lasso(λ), logistic, poisson, huber(δ) or quantile(τ); default from the target."
_Target = Annotated[str, typer.Option(metavar="COLUMN", help="What to predict; other columns are features.")]
_StepSize = Annotated[float | None, typer.Option(metavar="η", help="Default 1/L, L the largest curvature.")]
_Query = Annotated[Path | None, typer.Option(metavar="PATH", help="A CSV file whose rows to predict.")]
_Radius = Annotated[float | None, typer.Option(metavar="R", help="Of |x|, |y|, |w|; default from the data.")]
_Predictions = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Write the rows and predictions (.csv).")
]
_Loss = Annotated[str | None, typer.Option(metavar="LOSS", help=_LOSSES)]
_Standardise = Annotated[bool, typer.Option("--standardise/--no-standardise", help="Mean 0, deviation 1.")]


def learn(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A CSV file: a header, then rows of numbers.")],
    target: _Target,
    loss: _Loss = None,
    steps: Annotated[int, typer.Option(metavar="T", help="Of gradient descent, from w = 0.")] = 100,
    step_size: _StepSize = None,
    query: _Query = None,
    radius: _Radius = None,
    dtype: Dtype = "float64",
    intercept: Annotated[bool, typer.Option("--intercept/--no-intercept", help="A constant term.")] = True,
    standardise: _Standardise = True,
    predictions: _Predictions = None,
    plot: Plot = None,
    output: Output = None,
    json: Json = False,
    force: Force = False,
) -> None:
    """Learn from a CSV file by gradient descent in context.

    Softmax attention with fixed weights takes the steps; the distance to exact gradient descent has a proved bound.
    The default loss is logistic if the target has two values, words or whole numbers (no and yes, 0 and 1, 1 and 2),
    else squared. The features are standardised, and for losses other than logistic and poisson the target too: λ, δ
    and η are in those units. Coefficients are printed in the units of the file. -o writes the learner, whose bound
    `attnc verify` proves again. Needs scikit-learn: pip install 'attnc[sklearn]'.

    Exit status: 0 proved, 1 not proved (no finite bound, or a row outside the radius), 2 bad input.

    Example: attnc learn data.csv --target y --loss 'ridge(0.1)' --steps 200 --query new.csv --predictions predictions.csv
    """
    with errors_reported(json):
        files = check_files(output, plot, force, predictions=predictions)
        _check_options(output, intercept, standardise)
        settings = {"steps": steps, "step_size": step_size, "radius": radius, "dtype": dtype}
        settings |= {
            "intercept": intercept,
            "standardise": standardise,
            "strict": False,
        }  # rows outside are reported
        began = time.perf_counter()
        with progress_bar(f"reading {data}") as progress:
            examples, asked = _read_table(data), data if query is None else query
            rows = examples if query is None else _read_table(query)
            if predictions is not None and _PREDICTION in rows[0]:
                raise InputError(f"{asked} has a column {_PREDICTION!r}, which --predictions adds: rename it")
            progress("learning")
            model, record = _learn(loss, settings, target, (data, examples), (asked, rows))
            record["seconds"], record["files"] = round(time.perf_counter() - began, 3), files
            if predictions is not None:
                _write_predictions(predictions, rows, record["predictions"])
            if output is not None:
                model.learner_.save(output)
            if plot is not None:
                progress(f"drawing {plot}")
                context = {"x": model.context_x_, "y": model.context_y_[0]}
                attnc.plot.learning(model.learner_, **context, names=list(record["coefficients"]), path=plot)
    if json:
        print_json(record)
    else:
        _print(record, f"{target} learned from {data} by softmax attention")
    if record["reason"] is not None:
        raise typer.Exit(NOT_PROVED)


def _check_options(output: Path | None, intercept: bool, standardise: bool) -> None:
    if output is not None and output.suffix == ".csv":
        raise InputError(
            f"-o {output}: -o writes the learner (.safetensors); --predictions writes a CSV file"
        )
    if standardise and not intercept:
        raise InputError("--no-intercept needs --no-standardise: subtracted means act as an intercept")


def _learn(
    loss: str | None,
    settings: dict[str, Any],
    target: str,
    examples: tuple[Path, Rows],
    asked: tuple[Path, Rows],
) -> tuple[Any, dict[str, Any]]:
    """Fit an estimator, predict the rows, and compare with exact gradient descent and with scikit-learn."""
    from attnc.incontext.losses import DEFAULTS, exact_trajectory, loss_named

    data, rows = examples
    names = [name for name in rows[0] if name != target]
    if not names or len(rows) < 2:
        raise InputError(f"{data} has {len(rows)} rows and {len(names)} features: give 2 and 1 at least")
    x, new, classes = _numbers(*examples, names), _numbers(*asked, names), two_classes(rows, target)
    loss, why_loss = _chosen(classes, target) if loss is None else (loss, "")
    y = _targets(examples, target, classes if loss.strip() == "logistic" else None)
    kind, logistic = loss_named(loss), loss_named(loss).name == "logistic"
    kind.check_labels(y)
    _check_spread(np.column_stack([x, y]), [*names, target], data)
    model = _fitted(loss, settings, x, y)
    learner, context = model.learner_, model.context_x_.double().numpy()
    tokens = np.hstack([context, np.ones((len(x), int(learner.intercept)))])
    labels = model.context_y_[0].double().numpy()
    w = learner.coefficients(model.context_x_, model.context_y_[0], strict=False).double().numpy()
    exact = exact_trajectory(kind, tokens, labels, learner.steps, learner.step_size, learner.intercept)[-1]
    slopes, shift = (np.ravel(part) for part in model.coefficients())
    why, covered = learner.uncertified, model.certified(new)
    reason = None if math.isfinite(model.bound_) else f"no finite bound in {model.dtype}"
    if reason is None and not covered.all():
        outside = f"row {int(covered.argmin()) + 1} of {asked[0]} is outside the radius: give --radius"
        reason = outside if covered.any() or why is None else why
    return model, {
        "status": "proved" if reason is None else "not proved",
        "reason": reason,
        "loss": f"{loss}({DEFAULTS[loss]:g})" if loss in DEFAULTS else loss,
        "chosen": why_loss,
        "classes": list(classes) if logistic and classes is not None else None,
        "examples": len(x),
        "steps": learner.steps,
        "converged": model.convergence_.reached,
        "gradient": model.convergence_.gradient,
        "enough_steps": model.convergence_.enough,
        "tried_steps": model.convergence_.tried,
        "step_size": learner.step_size,
        "dtype": learner.certificate.dtype,
        "radius": vars(learner.radius),
        "coefficients": dict(zip(names, slopes.tolist(), strict=True)),
        "intercept": float(shift[0]) if learner.intercept else None,
        "learner_units": w.tolist(),
        "distance": float(np.linalg.norm(w - exact)),
        "bound": model.bound_,
        "accuracy" if logistic else "r2": float(model.score(x, y)) if (y != y[0]).any() else math.nan,
        "sklearn": _compare(kind, context, labels, w, learner.intercept),
        "note": kind.note,
        "predictions": (model.predict_proba(new)[:, 1] if logistic else model.predict(new)).tolist(),
    }


def _fitted(loss: str, settings: dict[str, Any], x: Array, y: Array) -> Any:
    """The estimator of the loss, fitted; `_converged` reports too few steps."""
    from attnc.incontext.estimators import InContextClassifier, InContextRegressor

    logistic = loss.strip() == "logistic"
    model = InContextClassifier(0.0, **settings) if logistic else InContextRegressor(loss, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=_convergence_warning())
        return model.fit(x, y)


def _convergence_warning() -> type[Warning]:
    from sklearn.exceptions import ConvergenceWarning

    warning: type[Warning] = ConvergenceWarning
    return warning


def _compare(loss: Loss, x: Array, y: Array, w: Array, intercept: bool) -> dict[str, Any]:
    """The distance to scikit-learn's minimum of the same objective, which does not penalise the intercept either."""
    from sklearn import linear_model

    options: dict[str, Any] = {"fit_intercept": intercept}
    precise = {**options, "tol": 1e-10, "max_iter": 10_000}
    name = "squared" if loss.function is None and loss.ridge + loss.lasso == 0 else loss.name
    models = {
        "squared": linear_model.LinearRegression(**options),
        "ridge": linear_model.Ridge(alpha=len(x) * loss.ridge, **options),
        "lasso": linear_model.Lasso(alpha=loss.lasso, **precise),
        "logistic": linear_model.LogisticRegression(C=1e12, **precise),
        "poisson": linear_model.PoissonRegressor(alpha=0, **precise),
    }
    if (model := models.get(name)) is None:
        return {"estimator": None, "distance": None, "note": f"no estimator has the loss {name}"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(x, y)
        except ValueError as problem:
            return {"estimator": type(model).__name__, "distance": None, "note": str(problem)}
    note = "(it did not converge)" if caught else ""
    if name == "logistic" and model.score(x, y) == 1:
        note = "(the labels are separable: no coefficients are the best)"
    best = np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)[: int(intercept)]])
    return {"estimator": type(model).__name__, "distance": float(np.linalg.norm(w - best)), "note": note}


def _print(record: dict[str, Any], title: str) -> None:
    from attnc.records.fields import at_most

    constant = {} if record["intercept"] is None else {"(intercept)": record["intercept"]}
    named = zip((record["coefficients"] | constant).items(), record["learner_units"], strict=True)
    rows = [(name, f"{value:.6g}", f"{scaled:.6g}") for (name, value), scaled in named]
    coefficients = table(("column", "in its units", "standardised"), rows)
    other, fit = record["sklearn"], "accuracy" if "accuracy" in record else "r2"
    if other["distance"] is not None:
        other["note"] = f"{other['estimator']}: {other['distance']:.3g} away {other['note']}"
    facts = {
        "loss": f"{record['loss']} {record['note']}{record['chosen']}",
        "steps": f"{record['steps']} of size {record['step_size']:.6g}, {record['examples']} examples",
        "converged": _converged(record),
        "radius": ", ".join(f"{name} {size:.4g}" for name, size in record["radius"].items()),
        "exact gradient descent": f"{record['distance']:.3g} away",
        "proved bound": at_most(record["bound"]) if record["reason"] is None else f"none: {record['reason']}",
        "scikit-learn": other["note"],
        "fit": f"{fit} {record[fit]:.6g}",
        "predictions": shortened([f"{value:.6g}" for value in record["predictions"]]),
        **run_facts(record["seconds"], record["files"]),
    }
    typer.echo("\n\n".join((title, coefficients, facts_text(facts))))


def _converged(record: dict[str, Any]) -> str:
    """Whether the steps were enough, and what to do if not."""
    left = f"the largest entry of the gradient is {record['gradient']:.2g}"
    if record["converged"]:
        return f"yes: {left}"
    if record["enough_steps"] is not None:
        return f"no: {left}; use --steps {record['enough_steps']}"
    tried = record["tried_steps"]
    why = "a penalty, as in --loss 'ridge(0.1)', needs fewer"
    if record["loss"] == "logistic":
        why = "if a line separates the labels, coefficients grow without end"
    return f"no: {left}, and {tried} steps are not enough either; {why}"


def two_classes(rows: Rows, target: str) -> tuple[str, str] | None:
    """The two values of a target that has two: words, or whole numbers. The second one counts as 1.

    >>> two_classes([{"y": "yes"}, {"y": "no"}, {"y": "yes"}], "y"), two_classes([{"y": "2"}, {"y": "1"}, {"y": "1.0"}], "y")
    (('no', 'yes'), ('1', '2'))
    >>> two_classes([{"y": "2"}, {"y": "1.5"}], "y") is None
    True
    """
    cells = {_class(row.get(target, "")) for row in rows}
    numbers = [_number(cell) for cell in cells]
    words = all(map(math.isnan, numbers)) and not cells & {"", "nan", "NaN", "NA", "-nan"}
    if len(cells) != 2 or not (words or all(number.is_integer() and abs(number) < 100 for number in numbers)):
        return None
    zero, one = sorted(
        cells, key=lambda cell: (cell == "+", cell.casefold()) if words else (False, _number(cell))
    )
    return zero, one


def _class(text: str) -> str:
    """A cell without spaces; equal numbers are equal."""
    number = _number(text)
    return text.strip() if math.isnan(number) else f"{number:.17g}"


def _targets(examples: tuple[Path, Rows], target: str, classes: tuple[str, str] | None) -> Array:
    """The target as numbers; of two classes the second is 1."""
    if classes is None:
        return _numbers(*examples, [target])[:, 0]
    return np.array([float(_class(row[target]) == classes[1]) for row in examples[1]])


def _chosen(classes: tuple[str, str] | None, target: str) -> tuple[str, str]:
    """The loss for a target, and why."""
    if classes is None:
        return "squared", ""
    zero, one = classes
    means = "" if classes == ("0", "1") else f": {one} counts as 1, and predictions are its probability"
    other = "" if math.isnan(_number(one)) else "; --loss squared is least squares"
    return "logistic", f"(chosen because every {target} is {zero} or {one}{means}{other})"


def _read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file in UTF-8, separated by commas, whose first line names the columns. Blank lines are skipped."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [row for row in csv.reader(file, strict=True) if len(row) > 1 or "".join(row).strip()]
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (csv.Error, UnicodeDecodeError) as problem:
        raise FileError(f"{path} is not a CSV file in UTF-8: {problem}") from problem
    if len(lines) < 2:
        raise InputError(f"{path} has no rows: give a line of column names, then rows of numbers")
    names = [name.strip() for name in lines[0]]
    for i, name in enumerate(names):
        if not name or name in names[:i] or np.isfinite([*map(_number, names)]).all():
            raise InputError(f"{path}: column {i + 1} is named {name!r}: the first line names every column")
    for i, row in enumerate(lines[1:], 1):
        if len(row) != len(names):
            raise InputError(f"{path}: row {i} has {len(row)} cells, not {len(names)}")
    return [dict(zip(names, row, strict=True)) for row in lines[1:]]


def _numbers(path: Path, rows: Rows, names: Sequence[str]) -> Array:
    """The named columns as float64, (rows, names). A cell that is not a number is refused."""
    missing = [name for name in names if name not in rows[0]]
    if missing:
        known = ", ".join(map(repr, rows[0]))
        raise InputError(f"{path} has no column {missing[0]!r}: its columns are {known}")
    found = np.array([[_number(row[name]) for name in names] for row in rows])
    for i, j in np.argwhere(~(np.abs(found) <= _LARGEST)).tolist():
        where, text = f"{path}: row {i + 1}, column {names[j]!r}", rows[i][names[j]].strip()
        raise InputError(f"{where} is {text!r}: give a number of at most {_LARGEST:g} in size")
    return found


def _number(text: str) -> float:
    """NaN if the text is not a number; only Python reads 1_0 as 10."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def _check_spread(x: Array, names: Sequence[str], path: Path) -> None:
    """Refuse a column that varies, but too little for float64 to standardise it."""
    fine = (x == x[0]).all(0) | (x.std(0) > 1e-12 * np.abs(x).max(0))
    if not fine.all():
        j = int(np.argmin(fine))
        spread = f"varies by {np.ptp(x[:, j]):.3g}, too little for float64"
        raise InputError(f"{path}: column {names[j]!r} {spread}")


def _write_predictions(path: Path, rows: Rows, predictions: Sequence[float]) -> None:
    from attnc.records.files import replacing

    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*rows[0], _PREDICTION])
        writer.writerows([*row.values(), repr(value)] for row, value in zip(rows, predictions, strict=True))
