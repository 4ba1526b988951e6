"""`attnc learn`: its results, its bounds, its files and its refusals."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnc.incontext.losses import loss_named
from attnc.records.fields import at_most
from tests.cli.checks import refused, words
from tests.incontext.exact import descend
from tests.sampled import only

Numbers = NDArray[np.float64]
NAMES = ["age", "weight", "dose"]


def example(loss: str, n: int = 60) -> tuple[Numbers, Numbers]:
    """Badly scaled features, and a target that fits the loss."""
    rng = np.random.default_rng(7)
    z = rng.normal(size=(n, 3))
    x = z * [12.0, 0.5, 300.0] + [40.0, 1.0, -50.0]
    u = z @ [0.6, -0.4, 0.2] + 0.3
    if loss == "logistic":
        return x, (rng.uniform(size=n) < 1 / (1 + np.exp(-u))).astype(float)
    if loss == "poisson":
        return x, rng.poisson(np.exp(u)).astype(float)
    return x, 100 + 20 * (u + 0.3 * rng.normal(size=n))


def by_hand(loss: str, x: Numbers, y: Numbers, steps: int, eta: float) -> Numbers:
    """Exact gradient descent with an intercept, the last coefficient, which no penalty counts."""
    wide = np.column_stack([x, np.ones(len(x))])
    name, _, level = loss.removesuffix(")").partition("(")
    if name not in ("ridge", "lasso"):
        return descend(loss, wide, y, steps, eta).astype(float)
    w, lam = np.zeros(wide.shape[1], np.longdouble), float(level)
    for _ in range(steps):
        r = wide @ w - y
        slopes = w[:-1] - eta * (x.T @ r / len(x) + (lam * w[:-1] if name == "ridge" else 0))
        if name == "lasso":
            slopes = np.sign(slopes) * np.maximum(np.abs(slopes) - eta * lam, 0)
        w = np.array([*slopes, w[-1] - eta * r.mean()])
    return w.astype(float)


def write(path: Path, names: list[str], rows: Any) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([[repr(float(cell)) for cell in row] for row in rows])
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x, y = example("squared")
    return write(tmp_path / "data.csv", [*NAMES, "y"], np.column_stack([x, y]))


@pytest.mark.parametrize("dtype", only(["float64"], ["float64", "float32"]))
@pytest.mark.parametrize(
    "loss", ["squared", "ridge(0.2)", "lasso(0.1)", "logistic", "poisson", "huber(1)", "quantile(0.3)"]
)
def test_the_distance_is_that_to_exact_gradient_descent_and_below_the_bound(
    run: Any, tmp_path: Path, loss: str, dtype: str
) -> None:
    x, y = example(loss)
    file = write(tmp_path / "data.csv", [*NAMES, "y"], np.column_stack([x, y]))
    ran = run("learn", file, "--target", "y", "--loss", loss, "--steps", 20, "--dtype", dtype, "--json")
    record = ran.json
    z = (x - x.mean(0)) / x.std(0)
    t = y if loss in ("logistic", "poisson") else (y - y.mean()) / y.std()
    z, t = (a.astype(dtype).astype(float) for a in (z, t))
    w = np.array(record["learner_units"])
    exact = by_hand(loss, z, t, 20, record["step_size"])
    assert np.abs(exact).max() > 0.1
    assert record["distance"] == pytest.approx(np.linalg.norm(w - exact), rel=1e-3, abs=1e-13)
    if ran.code == 0:
        assert record["status"] == "proved"
        assert np.linalg.norm(w - exact) <= record["bound"]
    assert ran.code == int(record["bound"] is None)
    if dtype == "float64":
        assert record["bound"] < 1e-4
    elif not loss_named(
        loss
    ).local:  # float32 cannot promise to stay on the interval where the curvature is known
        assert record["bound"] < 1


@pytest.mark.parametrize(
    "loss", only(["ridge(0.2)", "logistic"], ["squared", "ridge(0.2)", "lasso(0.1)", "logistic", "poisson"])
)
def test_enough_steps_find_what_scikit_learn_finds(run: Any, tmp_path: Path, loss: str) -> None:
    """scikit-learn is asked here with an intercept of its own, which is penalised nowhere."""
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = example(loss)
    file = write(tmp_path / "data.csv", [*NAMES, "y"], np.column_stack([x, y]))
    record = run("learn", file, "--target", "y", "--loss", loss, "--steps", 700, "--json").json
    z = (x - x.mean(0)) / x.std(0)
    model, scale = {
        "squared": (linear.LinearRegression(), y.std()),
        "ridge(0.2)": (linear.Ridge(alpha=0.2 * len(x), tol=1e-12), y.std()),
        "lasso(0.1)": (linear.Lasso(alpha=0.1 * y.std(), tol=1e-12), y.std()),
        "logistic": (linear.LogisticRegression(C=1e10, tol=1e-12, max_iter=10_000), 1.0),
        "poisson": (linear.PoissonRegressor(alpha=0, tol=1e-12, max_iter=10_000), 1.0),
    }[loss]
    model.fit(z, y)
    wanted = np.ravel(model.coef_)
    found = np.array([record["coefficients"][name] for name in NAMES]) * x.std(0)
    assert np.abs(found - wanted).max() / scale < 1e-5
    constant = float(np.ravel(model.intercept_)[0]) - wanted @ (x.mean(0) / x.std(0))
    assert record["intercept"] == pytest.approx(constant, rel=1e-4)
    assert record["sklearn"]["distance"] < 1e-5
    if loss != "poisson":  # scikit-learn scores it by its deviance
        assert record["accuracy" if loss == "logistic" else "r2"] == pytest.approx(
            model.score(z, y), abs=1e-6
        )


def test_the_table_names_columns_and_says_what_is_proved(run: Any, data: Path) -> None:
    ran = run("learn", data, "--target", "y", "--loss", "ridge(0.1)")
    assert ran.code == 0
    assert ran.err == ""
    said = words(ran.out)
    for fact in (
        *NAMES,
        "(intercept)",
        "ridge(0.1)",
        "100 of size",
        "proved bound",
        "Ridge:",
        "r2",
        "standardised",
    ):
        assert fact in said
    record = run("learn", data, "--target", "y", "--loss", "ridge(0.1)", "--json").json
    assert f"proved bound: {record['bound']:g} " in said
    assert record["radius"].keys() == {"x", "y", "w", "u"}
    assert f"age {record['coefficients']['age']:.6g} " in said


def test_without_an_intercept_predictions_pass_through_the_origin(
    run: Any, tmp_path: Path, data: Path
) -> None:
    new = write(tmp_path / "new.csv", NAMES, [[0, 0, 0], [10, 1, 5], [20, 2, 10]])
    options = ("--no-intercept", "--no-standardise", "--steps", 20, "--query", new, "--json")
    record = run("learn", data, "--target", "y", *options).json
    assert record["intercept"] is None
    assert record["predictions"][0] == 0
    slopes = np.array([record["coefficients"][name] for name in NAMES])
    assert record["predictions"][1] == pytest.approx(slopes @ [10, 1, 5], rel=1e-9)


def test_not_standardised_means_the_numbers_as_they_are(run: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, size=(30, 2))
    y = x @ [0.5, -1.0] + 0.25
    file = write(tmp_path / "data.csv", ["a", "b", "y"], np.column_stack([x, y]))
    record = run(
        "learn", file, "--target", "y", "--no-standardise", "--step-size", 0.5, "--steps", 40, "--json"
    ).json
    exact = descend("squared", np.column_stack([x, np.ones(30)]), y, 40, 0.5).astype(float)
    assert record["step_size"] == 0.5
    found = [record["coefficients"]["a"], record["coefficients"]["b"], record["intercept"]]
    assert found == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("loss", ["ridge(0.5)", "lasso(0.2)"])
def test_no_penalty_counts_the_intercept(run: Any, tmp_path: Path, loss: str) -> None:
    """A target far from 0, not standardised: scikit-learn with an intercept of its own, and steps by hand."""
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, size=(40, 2))
    y = x @ [1.5, -1.0] + 3
    file = write(tmp_path / "data.csv", ["a", "b", "y"], np.column_stack([x, y]))
    options = ("--no-standardise", "--loss", loss, "--step-size", 0.5, "--json")
    ran = run("learn", file, "--target", "y", *options, "--steps", 7)
    w = by_hand(loss, x, y, 7, 0.5)
    off = np.linalg.norm(np.array(ran.json["learner_units"]) - w)
    assert ran.code == 0
    assert ran.json["distance"] == pytest.approx(off, rel=1e-2, abs=1e-14)
    assert off <= ran.json["bound"] < 1e-5
    record = run("learn", file, "--target", "y", *options, "--steps", 400).json
    model = linear.Ridge(alpha=0.5 * 40) if loss == "ridge(0.5)" else linear.Lasso(alpha=0.2, tol=1e-12)
    model.fit(x, y)
    assert record["intercept"] == pytest.approx(model.intercept_, abs=1e-5)
    assert [*record["coefficients"].values()] == pytest.approx(model.coef_, abs=1e-5)
    assert record["sklearn"]["distance"] < 1e-5


def test_a_loss_by_name_alone_says_its_number(run: Any, data: Path) -> None:
    alone, full = (
        run("learn", data, "--target", "y", "--steps", 9, "--loss", loss, "--json").json
        for loss in ("ridge", "ridge(0.01)")
    )
    assert alone["loss"] == "ridge(0.01)"
    assert alone["coefficients"] == full["coefficients"]


def test_predictions_are_written_beside_the_rows_of_the_query(run: Any, tmp_path: Path, data: Path) -> None:
    """Its columns may stand in another order, and others among them, text too."""
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("dose,who,weight,age\n-50,Ann,1.0,40\n100,Bob,1.50,35\n")
    ran = run("learn", data, "--target", "y", "--query", new, "--predictions", out, "--json")
    assert ran.code == 0
    record = ran.json
    lines = out.read_text().splitlines()
    assert lines[0] == "dose,who,weight,age,prediction"
    assert lines[1].startswith("-50,Ann,1.0,40,") and lines[2].startswith("100,Bob,1.50,35,")
    written = [float(line.split(",")[-1]) for line in lines[1:]]
    assert written == record["predictions"]
    c = record["coefficients"]
    expected = [
        40 * c["age"] + c["weight"] - 50 * c["dose"],
        35 * c["age"] + 1.5 * c["weight"] + 100 * c["dose"],
    ]
    assert written == pytest.approx([e + record["intercept"] for e in expected], rel=1e-8)
    assert record["files"] == {"predictions": str(out)}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.csv", "new.csv", "out.csv"]


def test_without_a_query_the_examples_themselves_are_predicted(run: Any, tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out.csv"
    record = run("learn", data, "--target", "y", "--predictions", out, "--json").json
    y, guess = np.loadtxt(out, delimiter=",", skiprows=1)[:, -2:].T
    assert record["r2"] == pytest.approx(1 - ((y - guess) ** 2).sum() / ((y - y.mean()) ** 2).sum(), abs=1e-9)
    assert record["r2"] > 0.8


def test_the_predictions_of_a_logistic_loss_are_probabilities(run: Any, tmp_path: Path) -> None:
    x, y = example("logistic")
    file = write(tmp_path / "data.csv", [*NAMES, "y"], np.column_stack([x, y]))
    record = run("learn", file, "--target", "y", "--loss", "logistic", "--query", file, "--json").json
    slopes = np.array([record["coefficients"][name] for name in NAMES])
    wanted = 1 / (1 + np.exp(-(x @ slopes + record["intercept"])))
    assert np.abs(np.array(record["predictions"]) - wanted).max() < 1e-7
    assert record["accuracy"] == ((wanted > 0.5) == (y > 0.5)).mean()


def test_rows_outside_the_radius(run: Any, tmp_path: Path, data: Path) -> None:
    """An example outside a radius that was given is refused; a query outside it is predicted, but not proved."""
    x, _ = example("squared")
    largest = np.abs((x - x.mean(0)) / x.std(0)).max()
    ran = run("learn", data, "--target", "y", "--radius", 1.5, "--json")
    refused(ran, "InputError", f"{largest:.6g}", "radius 1.5")
    far = write(tmp_path / "far.csv", NAMES, [[40, 1, 0], [4000, 1, 0]])
    ran = run("learn", data, "--target", "y", "--query", far, "--json")
    assert (ran.code, ran.json["status"]) == (1, "not proved")
    assert f"line 3 of {far}" in ran.json["reason"] and len(ran.json["predictions"]) == 2
    assert "proved bound: none: line 3" in words(run("learn", data, "--target", "y", "--query", far).out)


def test_a_constant_column(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a,c,y\n1,3,2\n2,3,4\n3,3,9\n")
    record = run("learn", file, "--target", "y", "--steps", 50, "--json").json
    assert record["coefficients"] == pytest.approx({"a": 3.5, "c": 0})
    file.write_text("a,y\n1,5\n2,5\n3,5\n")
    ran = run("learn", file, "--target", "y", "--query", file, "--json")
    assert ran.code == 0
    assert (ran.json["predictions"], ran.json["r2"]) == ([5, 5, 5], None)


def test_labels_that_are_separable_are_said_to_be(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    file = tmp_path / "data.csv"
    file.write_text("a,y\n1,0\n2,0\n3,1\n4,1\n")
    ran = run("learn", file, "--target", "y", "--loss", "logistic")
    assert ran.code == 0
    assert "separable" in ran.out


def test_without_scikit_learn(run: Any, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "attnc.incontext.estimators", raising=False)
    refused(
        run("learn", data, "--target", "y", "--json"), "MissingExtraError", "pip install 'attnc[sklearn]'"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("a,y\n", "no rows"),
        ("a,y\n1,2\n", "1 row of data"),
        ("a,y\n1,2\nold,4\n", "line 3, column 'a' is 'old'"),
        ("a,y\n\n1,2\n3,\n", "line 4, column 'y' is ''"),
        ("a,y\n1,2\nNaN,4\n", "line 3, column 'a' is 'NaN'"),
        ("a,y\n1,2\n1e999,4\n", "line 3, column 'a' is '1e999'"),
        ("a,y\n1,2\n-1e101,4\n", "line 3, column 'a' is '-1e101'"),
        ("a,y\n1,2\n1.5 2,4\n", "column 'a' is '1.5 2'"),
        ("a,y\n1_0,2\n3,4\n", "'1_0'"),
        ("a,b\n1,2\n3,4\n", "no column 'y'"),
        ("a,y\n1,2\n3,4,5\n", "line 3 has 3 cells"),
        ("a,y\n1,2\n3\n", "line 3 has 1 cell "),
        ("a;y\n1;2\n3;4;5\n", "line 3 has 3 cells"),
        ("a,a,y\n1,2,3\n", "columns 1 and 2 are both named 'a'"),
        ('a,y\n"1\n",2\n\n3,x\n', "line 5, column 'y' is 'x'"),
        ("a,,y\n1,2,3\n", "column 2 is named ''"),
        ("y\n1\n2\n", "0 features"),
        ("1,2\n3,4\n", "column 1 is named '1'"),
        ("a,y\n1e16,1\n10000000000000002,2\n1e16,2\n", "column 'a' varies by 2"),
        ("a,y\n1e-200,1\n2e-200,2\n3e-200,2\n", "column 'a' varies by 2e-200"),
        ("a,y\n1,1e16\n2,10000000000000002\n3,1e16\n", "column 'y' varies by 2"),
    ],
)
def test_a_file_that_cannot_be_taken(run: Any, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    refused(run("learn", file, "--target", "y", "--json"), "InputError", str(file), said)


def test_a_file_that_cannot_be_read(run: Any, tmp_path: Path) -> None:
    refused(run("learn", tmp_path / "none.csv", "--target", "y", "--json"), "FileError", "No such file")
    file = tmp_path / "data.csv"
    file.write_bytes(b"\xff\xfea\x00,\x00y\x00")
    refused(run("learn", file, "--target", "y", "--json"), "FileError", "UTF-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--steps", 0), "--steps 0"),
        (("--step-size", -1), "--step-size -1"),
        (("--step-size", 0), "--step-size 0"),
        (("--step-size", 50), "--step-size 50"),
        (("--loss", "cubic"), "--loss cubic"),
        (("--loss", "logistic"), "0 and 1"),
        (("--loss", "poisson"), "poisson"),
        (("--radius", -2), "--radius -2"),
        (("--dtype", "float16"), "float16"),
        (("--plot", "out.docx"), ".png"),
        (("--no-intercept",), "--no-standardise"),
    ],
)
def test_options_that_are_refused(run: Any, data: Path, options: tuple[Any, ...], said: str) -> None:
    refused(run("learn", data, "--target", "y", *options, "--json"), "InputError", said)


def test_the_largest_step_size_that_is_named_is_taken(run: Any, data: Path) -> None:
    message = run("learn", data, "--target", "y", "--step-size", 50, "--json").json["error"]["message"]
    largest = float(message.rpartition(" ")[2])
    assert run("learn", data, "--target", "y", "--step-size", 0.9999 * largest, "--steps", 5).code == 0
    assert run("learn", data, "--target", "y", "--step-size", 1.0001 * largest, "--steps", 5).code == 2


def test_a_query_without_a_feature_is_refused(run: Any, tmp_path: Path, data: Path) -> None:
    new = write(tmp_path / "new.csv", ["age", "dose"], [[1, 2]])
    refused(run("learn", data, "--target", "y", "--query", new, "--json"), "InputError", str(new), "'weight'")
    new.write_text(",".join(NAMES) + "\n")
    refused(run("learn", data, "--target", "y", "--query", new, "--json"), "InputError", str(new))


@pytest.mark.parametrize("option", ["--predictions", "--plot"])
def test_an_existing_file_is_left_untouched_without_force(
    run: Any, tmp_path: Path, data: Path, option: str
) -> None:
    path = tmp_path / ("mine.png" if option == "--plot" else "mine.csv")
    path.write_bytes(b"mine")
    ran = run("learn", data, "--target", "y", option, path)
    assert ran.code == 2
    assert "--force" in ran.err
    assert path.read_bytes() == b"mine"
    assert run("learn", data, "--target", "y", "--steps", 3, option, path, "--force").code == 0
    assert path.read_bytes().startswith(
        b"\x89PNG" if option == "--plot" else b"age,weight,dose,y,prediction\n"
    )


def test_a_failure_while_writing_leaves_what_was_there(
    run: Any, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out.csv"
    out.write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    refused(
        run("learn", data, "--target", "y", "--steps", 3, "--predictions", out, "--force", "--json"),
        "FileError",
        "No space left",
    )
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.csv", "out.csv"]


def test_predictions_of_two_classes_are_the_class_and_its_probability(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    ran = run("learn", students(tmp_path), "--target", "passed", "--steps", 9, "--predictions", out, "--json")
    with open(out, newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["hours", "sleep", "passed", "prediction", "probability of yes"]
    chances = [float(row[4]) for row in rows]
    assert chances == ran.json["predictions"]
    assert [row[3] for row in rows] == [("no", "yes")[chance > 0.5] for chance in chances]


def test_files_that_are_not_read_or_written(run: Any, tmp_path: Path) -> None:
    """Text of another encoding, and predictions under a name that is not that of a CSV file."""
    file = students(tmp_path)
    out = tmp_path / "out.txt"
    refused(run("learn", file, "--target", "passed", "--predictions", out, "--json"), "InputError", ".csv")
    file.write_bytes("größe,y\n1,2\n2,3\n".encode("latin-1"))
    refused(run("learn", file, "--target", "y", "--json"), "FileError", "save it as UTF-8")


def test_a_shell_is_told_no_objects_of_python(run: Any, tmp_path: Path) -> None:
    ran = run("learn", students(tmp_path), "--target", "passed", "--loss", "rige", "--json")
    refused(ran, "InputError", "--loss rige", "'ridge'")
    assert "attnc." not in ran.json["error"]["message"]


def test_a_target_is_not_to_be_dropped(run: Any, tmp_path: Path) -> None:
    ran = run("learn", students(tmp_path, ("2,6,no", "2,6,4")), "--target", "passed", "--json")
    refused(ran, "InputError", "line 2")
    assert "--drop" not in ran.json["error"]["message"]


def test_a_column_called_prediction_is_refused(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("prediction,y\n1,2\n3,5\n")
    out = tmp_path / "out.csv"
    refused(run("learn", file, "--target", "y", "--predictions", out, "--json"), "InputError", "'prediction'")
    assert not out.exists()


def test_a_target_of_0_and_1_is_learned_by_the_logistic_loss(run: Any, tmp_path: Path, data: Path) -> None:
    x, y = example("logistic")
    file = write(tmp_path / "labels.csv", [*NAMES, "y"], np.column_stack([x, y]))
    record = run("learn", file, "--target", "y", "--steps", 5, "--json").json
    assert (record["loss"], record["chosen"] != "") == ("logistic", True)
    assert record["chosen"] in words(run("learn", file, "--target", "y", "--steps", 5).out)
    asked = run("learn", file, "--target", "y", "--steps", 5, "--loss", "squared", "--json").json
    assert (asked["loss"], asked["chosen"]) == ("squared", "")
    other = run("learn", data, "--target", "y", "--steps", 5, "--json").json
    assert (other["loss"], other["chosen"]) == ("squared", "")


def test_too_few_steps_are_said_with_the_number_that_suffices(run: Any, data: Path) -> None:
    few = run("learn", data, "--target", "y", "--steps", 3, "--json").json
    enough = few["enough_steps"]
    assert not few["converged"] and few["gradient"] > 1e-4 and enough > 3
    assert f"use --steps {enough}" in words(run("learn", data, "--target", "y", "--steps", 3).out)
    assert run("learn", data, "--target", "y", "--steps", enough, "--json").json["converged"]
    assert not run("learn", data, "--target", "y", "--steps", enough - 1, "--json").json["converged"]


@pytest.mark.parametrize("steps", [1, 2, 100, 3000])
def test_a_step_size_that_diverges_gets_its_advice_at_any_number_of_steps(
    run: Any, data: Path, steps: int
) -> None:
    ran = run("learn", data, "--target", "y", "--step-size", 9, "--steps", steps, "--json")
    refused(ran, "InputError", "--step-size 9")
    largest = float(ran.json["error"]["message"].rpartition(" ")[2])
    assert 0 < largest < 2


def test_the_learner_is_saved_and_proved_again(run: Any, tmp_path: Path, data: Path) -> None:
    path = tmp_path / "learner.safetensors"
    assert run("learn", data, "--target", "y", "--steps", 3, "--save", path).code == 0
    assert run("verify", path).code == 0
    refused(
        run("learn", data, "--target", "y", "-o", tmp_path / "out.csv", "--json"),
        "InputError",
        "--predictions",
    )


@pytest.mark.parametrize(
    "zero, one", [("no", "yes"), ("False", "true"), ("1", "2"), ("-1", "1"), ("2", "4"), ("-", "+")]
)
def test_targets_of_two_values(zero: str, one: str, tmp_path: Path, run: Any) -> None:
    """The loss is logistic, and the output says which of the values counts as 1."""
    x, y = example("logistic")
    rows = [
        ",".join([*map(repr, map(float, row)), (zero, one)[int(label)]])
        for row, label in zip(x, y, strict=True)
    ]
    file = tmp_path / "data.csv"
    file.write_text("\n".join([",".join([*NAMES, "y"]), *rows]))
    plain = write(tmp_path / "plain.csv", [*NAMES, "y"], np.column_stack([x, y]))
    record, same = (run("learn", f, "--target", "y", "--steps", 5, "--json").json for f in (file, plain))
    assert (record["loss"], record["classes"]) == ("logistic", [zero, one])
    assert record["learner_units"] == same["learner_units"] and record["accuracy"] == same["accuracy"]
    assert f"{one} counts as 1" in words(run("learn", file, "--target", "y", "--steps", 5).out)
    if zero == "no":
        refused(run("learn", file, "--target", "y", "--loss", "squared", "--json"), "InputError", "'y'")


STUDENTS = "hours,sleep,passed\n1,7,no\n2,6,no\n3,8,yes\n4,5,no\n5,7,yes\n6,8,yes\n"


def students(folder: Path, *changes: tuple[str, str]) -> Path:
    """The file of six students, whose labels a line separates, with some changes."""
    text = STUDENTS
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "students.csv"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ([], ("--target", "pass"), ("'pass'", "'passed'")),
        ([], ("--target", "Passed "), ("'passed'",)),
        ([], ("--loss", "ridg"), ("--loss ridg", "'ridge'")),
        ([("2,6,no", "x,6,no")], ("--loss", "ridg"), ("--loss ridg",)),
        ([], ("--loss", "squared"), ("'no' and 'yes'", "--loss logistic")),
        ([("2,6,no", "2,,no")], (), ("line 3, column 'sleep' is ''", "missing", "--missing drop")),
        ([("2,6,no", "2,6,")], (), ("line 3, column 'passed' is ''", "missing", "--missing drop")),
        ([("2,6,no", "2,6,NA"), ("3,8", "n/a,8")], (), ("'NA'", "2 of 6 rows")),
        (
            [("2,6,no", "2,6,maybe")],
            (),
            ("3 different words", "'maybe', is in line 3", "InContextClassifier"),
        ),
        ([("3,8,yes", "3,8,Yes"), ("5,7,yes", "5,7,YES ")], (), ("'YES', 'Yes', 'yes'",)),
        ([("yes", "no")], (), ("'passed'", "'no' in every row")),
        ([("yes", "1"), ("no", "1")], ("--loss", "logistic"), ("is 1 in every row", "two classes")),
        ([("hours", "city"), ("1,7", "Bonn,7")], (), ("line 2, column 'city' is 'Bonn'", "--drop 'city'")),
        ([("1,7", '"1,5",7')], (), ("line 2, column 'hours' is '1,5'", "1.5", "--decimal ,")),
        ([("yes", '"1,5"'), ("no", '"2,5"')], (), ("line 2, column 'passed' is '2,5'", "2.5")),
        ([("1,7", "1,5,7")], (), ("line 2 has 4 cells", "1.5")),
        ([("2,6,no", "2,6,4")], (), ("line 2, column 'passed' is 'no'",)),
        ([], ("--drop", "slep"), ("'slep'", "'sleep'")),
        ([], ("--drop", "passed"), ("'passed'",)),
        ([], ("--drop", "hours", "--drop", "sleep"), ("0 features",)),
        ([], ("--missing", "fill"), ("--missing fill", "drop")),
        ([], ("--decimal", ";"), ("--decimal",)),
        ([("1,7", "1.5,7")], ("--decimal", ","), ("'1.5'", "--decimal")),
    ],
)
def test_each_mistake_has_a_message_of_its_own(
    run: Any, tmp_path: Path, changes: Any, options: tuple[str, ...], said: tuple[str, ...]
) -> None:
    file = students(tmp_path, *changes)
    target = () if "--target" in options else ("--target", "passed")
    ran = run("learn", file, *target, *options, "--json")
    refused(ran, "InputError", *said)
    assert "1e+100" not in ran.json["error"]["message"]


def test_columns_of_words_are_all_named(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("city,a,home town,y\nBonn,1,x,1.5\nRome,2,y,2.5\nOslo,4,x,3\n")
    ran = run("learn", file, "--target", "y", "--json")
    refused(ran, "InputError", "'city', 'home town'", "'Bonn' in line 2", "--drop city --drop 'home town'")
    options = ("--drop", "city", "--drop", "home town", "--steps", 3, "--json")
    assert [*run("learn", file, "--target", "y", *options).json["coefficients"]] == ["a"]


def test_rows_with_missing_values_are_left_out(run: Any, tmp_path: Path) -> None:
    """Those of the query too; a message about another cell keeps the row of the file."""
    options = ("--target", "passed", "--steps", 3, "--missing", "drop")
    whole = run("learn", students(tmp_path), *options, "--json").json
    file = students(tmp_path, ("3,8,yes", "3,8,yes\n,1,no\n2,3,NaN"))
    out = tmp_path / "out.csv"
    ran = run("learn", file, *options, "--predictions", out, "--json")
    assert (ran.json["examples"], ran.json["left_out"], whole["left_out"]) == (6, 2, 0)
    assert ran.json["coefficients"] == whole["coefficients"]
    assert len(out.read_text().splitlines()) == 7
    assert "2 rows with missing values left out" in words(run("learn", file, *options).out)
    new = tmp_path / "new.csv"
    new.write_text("hours,sleep\n1,7\n,8\n")
    ran = run("learn", students(tmp_path), *options, "--query", new, "--json").json
    assert (len(ran["predictions"]), ran["left_out"], ran["query_left_out"]) == (1, 0, 1)
    file = students(tmp_path, ("1,7,no", ",7,no"), ("5,7", "five,7"))
    refused(run("learn", file, *options, "--json"), "InputError", "line 6, column 'hours' is 'five'")
    file = students(tmp_path, ("sleep", "slept"), *((f"{i},", ",") for i in range(1, 7)))
    refused(run("learn", file, *options, "--json"), "InputError", "0 of 6 rows")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_and_decimal_commas(run: Any, tmp_path: Path, separator: str) -> None:
    options = ("--target", "passed", "--steps", 3)
    plain = run("learn", students(tmp_path), *options, "--json").json
    file = tmp_path / "other.csv"
    file.write_text(STUDENTS.replace(",", separator))
    assert run("learn", file, *options, "--json").json["coefficients"] == plain["coefficients"]
    file.write_text(STUDENTS.replace(",", separator).replace("8", "8,0"))
    refused(run("learn", file, *options, "--json"), "InputError", "'8,0'", "--decimal ,")
    out = tmp_path / "out.csv"
    ran = run("learn", file, *options, "--decimal", ",", "--predictions", out, "--json")
    assert ran.json["coefficients"] == plain["coefficients"]
    last = out.read_text().splitlines()[3].split(separator)
    assert last[:3] == ["3", "8,0", "yes"]
    assert last[3] == "yes" and float(last[4].replace(",", ".")) == plain["predictions"][2]


def test_numbers_with_a_decimal_comma_are_no_classes(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a;y\n1;1,5\n2;2,5\n4;1,5\n5;3,5\n6;4\n")
    options = ("--target", "y", "--steps", 3, "--json")
    assert run("learn", file, *options, "--decimal", ",").json["loss"] == "squared"
    file.write_text("a;y\n1;1,5\n2;2,5\n4;1,5\n")
    assert (
        run("learn", file, "--target", "y", "--decimal", ",", "--steps", 3, "--json").json["loss"]
        == "squared"
    )


def test_the_bound_of_the_file_is_said_beside_that_for_the_examples(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "learner.safetensors"
    options = ("--target", "passed", "--steps", 3, "--force", "-o", path)
    record = run("learn", students(tmp_path), *options, "--json").json
    said = words(run("learn", students(tmp_path), *options).out)
    assert record["bound"] < record["certificate_bound"]
    assert (
        f"{record['bound']:g} (for these 6 examples; {record['certificate_bound']:g} for up to 1,000)" in said
    )
    assert at_most(record["certificate_bound"]) in words(run("verify", path).out)


def test_a_loss_that_is_given_says_which_class_counts_as_1(run: Any, tmp_path: Path) -> None:
    options = ("--target", "passed", "--steps", 3, "--loss", "logistic")
    assert "yes counts as 1" in words(run("learn", students(tmp_path), *options).out)


def test_separable_labels_get_no_advice_about_steps(run: Any, tmp_path: Path) -> None:
    file = students(tmp_path)
    for steps in (2, 100):
        ran = run("learn", file, "--target", "passed", "--steps", steps, "--json").json
        assert (ran["separable"], ran["converged"], ran["enough_steps"]) == (True, False, None)
    said = words(run("learn", file, "--target", "passed").out)
    assert "use --steps" not in said and "separable" in said and "'logistic(0.01)'" in said
    ran = run("learn", file, "--target", "passed", "--loss", "logistic(0.01)", "--json").json
    assert (ran["loss"], ran["separable"]) == ("logistic(0.01)", False)
    mixed = students(tmp_path, ("1,7,no", "1,7,no\n1,7,yes"))
    assert not run("learn", mixed, "--target", "passed", "--json").json["separable"]


def test_a_penalty_of_the_logistic_loss_is_that_of_the_estimator(run: Any, tmp_path: Path) -> None:
    from attnc.incontext import InContextClassifier

    options = ("--target", "passed", "--steps", 200, "--loss", "logistic(0.1)", "--json")
    record = run("learn", students(tmp_path), *options).json
    x = [[float(cell) for cell in line.split(",")[:2]] for line in STUDENTS.splitlines()[1:]]
    model = InContextClassifier(0.1, steps=200).fit(x, [0, 0, 1, 0, 1, 1])
    assert [*record["coefficients"].values()] == pytest.approx(model.coef_[0], rel=1e-9)
    assert (record["converged"], record["status"]) == (True, "proved")
    assert record["sklearn"]["distance"] < 1e-3


def test_a_constant_column_is_said_to_be_ignored(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a,c,y\n1,3,2\n2,3,4\n3,3,9\n")
    assert "c 0 0 (constant, ignored)" in words(run("learn", file, "--target", "y", "--steps", 3).out)
    ran = run("learn", file, "--target", "y", "--steps", 3, "--no-standardise")
    assert "ignored" not in ran.out
