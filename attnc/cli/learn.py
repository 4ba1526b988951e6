"""`attnc learn`: a statistical model from a CSV file, by gradient descent that fixed attention weights carry out."""

from __future__ import annotations

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
from attnc.cli.tables import (
    Table,
    check_added,
    check_classes,
    class_of,
    feature_names,
    number,
    numbers,
    read_table,
    two_classes,
    without_missing,
    write_predictions,
)
from attnc.errors import InputError

if TYPE_CHECKING:
    from attnc.domain import Array
    from attnc.incontext import Loss
    from attnc.incontext.losses import Convergence

_PREDICTION = "prediction"  # the column that --predictions adds
_FEW = 10  # different whole numbers of a target that look like classes
_LOSSES = (
    "squared, ridge(λ), lasso(λ), logistic(λ), poisson, huber(δ) or quantile(τ); default from the target."
)
_Target = Annotated[str, typer.Option(metavar="COLUMN", help="What to predict; other columns are features.")]
_StepSize = Annotated[float | None, typer.Option(metavar="η", help="Default 1/L, L the largest curvature.")]
_Query = Annotated[Path | None, typer.Option(metavar="PATH", help="A CSV file whose rows to predict.")]
_Radius = Annotated[float | None, typer.Option(metavar="R", help="Of |x|, |y|, |w|; default from the data.")]
_Predictions = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Write the rows and predictions (.csv).")
]
_Loss = Annotated[str | None, typer.Option(metavar="LOSS", help=_LOSSES)]
_Drop = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Leave a column out; may be given several times.")
]
_Missing = Annotated[str, typer.Option(metavar="error|drop", help="drop leaves out rows with empty cells.")]
_Decimal = Annotated[str, typer.Option(metavar=".|,", help="What separates the decimals: 1.5 or 1,5.")]
_Standardise = Annotated[bool, typer.Option("--standardise/--no-standardise", help="Mean 0, deviation 1.")]


def learn(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A CSV file: a header, then rows of numbers.")],
    target: _Target,
    drop: _Drop = None,
    missing: _Missing = "error",
    decimal: _Decimal = ".",
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
    Commas, semicolons or tabs separate the cells of the file. The default loss is logistic if the target has two values,
    words or whole numbers (no and yes, 0 and 1, 1 and 2), else squared; neither has a penalty, logistic(λ) and ridge(λ)
    have one. The features are standardised, and for losses other than logistic and poisson the target too: λ, δ and η are
    in those units. Coefficients are printed in the units of the file. -o writes the learner, whose bound `attnc verify`
    proves again. Needs scikit-learn: pip install 'attnc[sklearn]'.

    Exit status: 0 proved, 1 not proved (no finite bound, or a row outside the radius), 2 bad input.

    Example: attnc learn data.csv --target y --loss 'ridge(0.1)' --steps 200 --query new.csv --predictions predictions.csv
    """
    with errors_reported(json):
        files = check_files(output, plot, force, predictions=predictions)
        _check_options(output, intercept, standardise, missing)
        settings = {"steps": steps, "step_size": step_size, "radius": radius, "dtype": dtype}
        settings |= {"intercept": intercept, "standardise": standardise, "strict": False}
        began = time.perf_counter()
        with progress_bar(f"reading {data}") as progress:
            read = read_table(data, decimal)
            names = feature_names(read, target, drop)
            new = read if query is None else read_table(query, decimal)
            _check_predictions(predictions, new)
            progress("importing torch and scikit-learn")
            kind, dropping = _checked_loss(loss), missing == "drop"
            examples = without_missing(read, [*names, target], dropping, least=2)
            asked = examples if query is None else without_missing(new, names, dropping)
            progress("learning and proving the bound")
            model, record = _learn((loss, kind), settings, target, names, examples, asked)
            record |= {"left_out": read.more_than(examples), "query_left_out": new.more_than(asked)}
            record["seconds"], record["files"] = round(time.perf_counter() - began, 3), files
            progress("writing files" if files else "done")
            write_predictions(predictions, asked, _added(record))
            _write(model, list(record["coefficients"]), output, plot)
    if json:
        print_json(record)
    else:
        _print(record, f"{target} learned from {data} by softmax attention")
    if record["reason"] is not None:
        raise typer.Exit(NOT_PROVED)


def _check_options(output: Path | None, intercept: bool, standardise: bool, missing: str) -> None:
    if missing not in ("error", "drop"):
        raise InputError(f"missing={missing!r}: give error or drop")
    if output is not None and output.suffix == ".csv":
        raise InputError(
            f"-o {output}: -o writes the learner (.safetensors); --predictions writes a CSV file"
        )
    if standardise and not intercept:
        raise InputError("--no-intercept needs --no-standardise: subtracted means act as an intercept")


def _check_predictions(predictions: Path | None, new: Table) -> None:
    if predictions is None:
        return
    if predictions.suffix != ".csv":
        raise InputError(f"--predictions {predictions}: it writes a CSV file; give a name that ends in .csv")
    check_added(new, [_PREDICTION])


def _added(record: dict[str, Any]) -> dict[str, list[Any]]:
    """The columns of --predictions: numbers, or for two classes the class and the probability of the second."""
    found = record["predictions"]
    if record["classes"] is None:
        return {_PREDICTION: found}
    zero, one = record["classes"]
    return {_PREDICTION: [one if p > 0.5 else zero for p in found], f"probability of {one}": found}


def _write(model: Any, names: list[str], output: Path | None, plot: Path | None) -> None:
    """The learner of -o and the picture of --plot."""
    if output is not None:
        model.learner_.save(output)
    if plot is not None:
        context = {"x": model.context_x_, "y": model.context_y_[0]}
        attnc.plot.learning(model.learner_, **context, names=names, path=plot)


def _checked_loss(loss: str | None) -> Loss | None:
    """The loss of --loss; an unknown one is an error before any cell is read."""
    from attnc.incontext.losses import loss_named

    return None if loss is None else loss_named(loss)


def _learn(
    asked_loss: tuple[str | None, Loss | None],
    settings: dict[str, Any],
    target: str,
    names: list[str],
    examples: Table,
    asked: Table,
) -> tuple[Any, dict[str, Any]]:
    """Fit an estimator, predict the rows, and compare with exact gradient descent and with scikit-learn."""
    from attnc.incontext.losses import DEFAULTS, exact_trajectory, loss_named

    check_classes(examples, target)
    classes, (loss, given) = two_classes(examples.column(target)), asked_loss
    chosen = loss is None
    loss = loss or ("squared" if classes is None else "logistic")
    kind = given or loss_named(loss)
    logistic, y = kind.name == "logistic", _targets(examples, target, kind, classes)
    x, new = numbers(examples, names), numbers(asked, names)
    _check_spread(np.column_stack([x, y]), [*names, target], examples.path)
    model = _fitted(kind, settings, x, y)
    learner, context = model.learner_, model.context_x_.double().numpy()
    tokens = np.hstack([context, np.ones((len(x), int(learner.intercept)))])
    labels = model.context_y_[0].double().numpy()
    w = learner.coefficients(model.context_x_, model.context_y_[0], strict=False).double().numpy()
    exact = exact_trajectory(kind, tokens, labels, learner.steps, learner.step_size, learner.intercept)[-1]
    slopes, shift = (np.ravel(part) for part in model.coefficients())
    why, covered = learner.uncertified, model.certified(new)
    reason = None if math.isfinite(model.bound_) else f"no finite bound in {model.dtype}"
    if reason is None and not covered.all():
        outside = (
            f"line {asked.places[int(covered.argmin())]} of {asked.path} is outside the radius: give --radius"
        )
        reason = outside if covered.any() or why is None else why
    return model, {
        "status": "proved" if reason is None else "not proved",
        "reason": reason,
        "loss": f"{loss}({DEFAULTS[loss]:g})" if loss in DEFAULTS else loss,
        "chosen": _why(classes, y, target) if chosen else "",
        "classes": list(classes) if logistic and classes is not None else None,
        "examples": len(x),
        "steps": learner.steps,
        **_convergence(model.convergence_),
        "step_size": learner.step_size,
        "dtype": learner.certificate.dtype,
        "radius": vars(learner.radius),
        "coefficients": dict(zip(names, slopes.tolist(), strict=True)),
        "constant": [name for name, column in zip(names, x.T, strict=True) if (column == column[0]).all()],
        "standardised": settings["standardise"],
        "intercept": float(shift[0]) if learner.intercept else None,
        "learner_units": w.tolist(),
        "distance": float(np.linalg.norm(w - exact)),
        "bound": model.bound_,
        "certificate_bound": learner.certificate.bound,
        "accuracy" if logistic else "r2": float(model.score(x, y)) if (y != y[0]).any() else math.nan,
        "sklearn": _compare(kind, context, labels, w, learner.intercept),
        "note": kind.note,
        "predictions": (model.predict_proba(new)[:, 1] if logistic else model.predict(new)).tolist(),
    }


def _convergence(found: Convergence) -> dict[str, Any]:
    """Whether the steps were enough, for the record."""
    return {
        "converged": found.reached,
        "separable": found.separable,
        "gradient": found.gradient,
        "enough_steps": found.enough,
        "tried_steps": found.tried,
    }


def _fitted(kind: Loss, settings: dict[str, Any], x: Array, y: Array) -> Any:
    """The estimator of the loss, fitted; `_converged` reports too few steps."""
    from attnc.incontext.estimators import InContextClassifier, InContextRegressor

    logistic = kind.name == "logistic"
    model = InContextClassifier(kind.ridge, **settings) if logistic else InContextRegressor(kind, **settings)
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
        "logistic": linear_model.LogisticRegression(C=1 / (len(x) * loss.ridge or 1e-12), **precise),
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
    if name == "logistic" and loss.ridge == 0 and model.score(x, y) == 1:
        note = "(the labels are separable: no coefficients are the best)"
    best = np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)[: int(intercept)]])
    return {"estimator": type(model).__name__, "distance": float(np.linalg.norm(w - best)), "note": note}


def _print(record: dict[str, Any], title: str) -> None:
    constant = {} if record["intercept"] is None else {"(intercept)": record["intercept"]}
    named = zip((record["coefficients"] | constant).items(), record["learner_units"], strict=True)
    ignored = record["constant"] if record["standardised"] else []
    rows = [
        (name, f"{value:.6g}", f"{scaled:.6g}{'  (constant, ignored)' * (name in ignored)}")
        for (name, value), scaled in named
    ]
    coefficients = table(("column", "in its units", "standardised"), rows)
    other, fit = record["sklearn"], "accuracy" if "accuracy" in record else "r2"
    if other["distance"] is not None:
        other["note"] = f"{other['estimator']}: {other['distance']:.3g} away {other['note']}"
    left_out, unpredicted = (
        f" ({record[part]} rows with missing values left out)" if record[part] else ""
        for part in ("left_out", "query_left_out")
    )
    facts = {
        "loss": f"{record['loss']} {record['note']}{record['chosen']}",
        **({} if record["classes"] is None else {"classes": _counted(*record["classes"])}),
        "steps": f"{record['steps']} of size {record['step_size']:.6g}, {record['examples']} examples{left_out}",
        "converged": _converged(record),
        "radius": ", ".join(f"{name} {size:.4g}" for name, size in record["radius"].items()),
        "exact gradient descent": f"{record['distance']:.3g} away (Euclidean distance of the {_units(record)})",
        "proved bound": _bound(record) if record["reason"] is None else f"none: {record['reason']}",
        "scikit-learn": other["note"],
        "fit": f"{fit} {record[fit]:.6g}",
        "predictions": shortened([f"{value:.6g}" for value in record["predictions"]]) + unpredicted,
        **run_facts(record["seconds"], record["files"]),
    }
    typer.echo("\n\n".join((title, coefficients, facts_text(facts))))


def _counted(zero: str, one: str) -> str:
    """Which of two classes is 1."""
    counted = "" if (zero, one) == ("0", "1") else f"{one} counts as 1, {zero} as 0; "
    return f"{counted}predictions are the probability of {one}"


def _units(record: dict[str, Any]) -> str:
    return "standardised coefficients" if record["standardised"] else "coefficients"


def _bound(record: dict[str, Any]) -> str:
    """The bound of this distance for these examples, and that of the certificate, which -o writes."""
    from attnc.incontext.settings import EXAMPLES

    stated = record["certificate_bound"]
    most = f"{stated:g}" if math.isfinite(stated) else "none"
    large = record["bound"] > math.hypot(*record["learner_units"])
    note = f"; it exceeds the {_units(record)} themselves, so it says little about them" if large else ""
    return f"{record['bound']:g} (for these {record['examples']:,} examples; {most} for up to {EXAMPLES:,}){note}"


def _converged(record: dict[str, Any]) -> str:
    """Whether the steps were enough, and what to do if not."""
    if record["separable"]:
        why = "the labels are separable, so larger coefficients always fit better and no number of steps is enough"
        return f"no: {why}; use a penalty, --loss 'logistic(0.01)', and the --steps that it then asks for"
    left = f"the largest entry of the gradient is {record['gradient']:.2g}"
    if record["converged"]:
        return f"yes: {left}"
    if record["enough_steps"] is not None:
        return f"no: {left}; use --steps {record['enough_steps']}"
    penalised = "logistic(0.01)" if "accuracy" in record else "ridge(0.1)"
    why = f"a penalty, as in --loss '{penalised}', needs fewer: the next run says how many"
    return f"no: {left}, and {record['tried_steps']} steps are not enough either; {why}"


def _targets(examples: Table, target: str, kind: Loss, classes: tuple[str, str] | None) -> Array:
    """The target as numbers, which fit the loss; of two classes the second is 1."""
    cells = examples.column(target)
    if kind.name == "logistic":
        if len(same := {*map(class_of, cells)}) == 1:
            where = f"{examples.path}: the target {target!r} is {same.pop()} in every row"
            raise InputError(f"{where}: the logistic loss needs examples of two classes")
        if classes is not None:
            return np.array([float(class_of(cell) == classes[1]) for cell in cells])
    elif classes is not None and math.isnan(number(classes[0])):
        words = f"the words {classes[0]!r} and {classes[1]!r}"
        raise InputError(
            f"{examples.path}: the target {target!r} has {words}, and the {kind.name} loss takes {kind.labels}: use --loss "
            "logistic, or write the words as numbers"
        )
    found: Array = numbers(examples, [target])[:, 0]
    kind.check_labels(found)
    return found


def _why(classes: tuple[str, str] | None, y: Array, target: str) -> str:
    """Why the loss is what it is if --loss is not given; of a target that looks like several classes, what to do for these."""
    if classes is not None:
        other = "" if math.isnan(number(classes[1])) else "; --loss squared is least squares"
        return f"(chosen because every {target} is {classes[0]} or {classes[1]}{other})"
    values = np.unique(y)
    if len(values) > _FEW or len(y) < 4 * len(values) or (values != np.round(values)).any():
        return ""
    listed = ", ".join(f"{value:g}" for value in values)
    return f"(every {target} is one of {listed}: for classes use InContextClassifier of attnc.incontext)"


def _check_spread(x: Array, names: Sequence[str], path: Path) -> None:
    """Refuse a column that varies, but too little for float64 to standardise it."""
    fine = (x == x[0]).all(0) | (x.std(0) > 1e-12 * np.abs(x).max(0))
    if not fine.all():
        j = int(np.argmin(fine))
        spread = f"varies by {np.ptp(x[:, j]):.3g}, too little for float64"
        raise InputError(f"{path}: column {names[j]!r} {spread}")
