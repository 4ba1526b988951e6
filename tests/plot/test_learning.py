"""Plots of a learner: the weights drawn are those of the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnc
from attnc import plot
from attnc.incontext import Learner, gradient_descent
from attnc.incontext.layers import gathered
from attnc.incontext.losses import exact_trajectory, loss_named
from attnc.plot.learning import MOST_EXAMPLES, step_weights
from tests.incontext.exact import descend

LOSSES = ["squared", "ridge(0.2)", "lasso(0.1)", "logistic", "poisson", "huber(1)", "quantile(0.3)"]


def examples(loss: str, n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(5)
    x = np.clip(rng.normal(size=(n, 2)), -2, 2)
    u = x @ [0.8, -0.5]
    y = {"logistic": (u > 0.1).astype(float), "poisson": rng.poisson(np.exp(u)).astype(float)}.get(
        loss, u + 0.2
    )
    return torch.from_numpy(x), torch.from_numpy(y)


def learner(loss: str, steps: int = 6, **options: Any) -> Learner:
    step = 1e-3 if loss == "poisson" else 0.2
    radius = 12.0 if loss == "poisson" else 3.0
    return gradient_descent(
        loss, features=2, steps=steps, step_size=step, radius=radius, **{"dtype": torch.float64, **options}
    )


@pytest.fixture(scope="module")
def logistic() -> Learner:
    return learner("logistic", intercept=True)


@pytest.mark.parametrize("loss", LOSSES)
def test_exact_gradient_descent_is_that_of_extended_precision(loss: str) -> None:
    x, y = (a.numpy() for a in examples(loss))
    found = exact_trajectory(loss_named(loss), x, y, 30, 0.1)
    assert found.shape == (31, 2)
    for steps in (0, 1, 7, 30):
        assert np.abs(found[steps] - descend(loss, x, y, steps, 0.1).astype(float)).max() < 1e-14


@pytest.mark.parametrize("loss", ["ridge(0.5)", "lasso(0.3)"])
def test_the_picture_of_a_penalty_leaves_the_intercept_alone(loss: str) -> None:
    x, y = examples("squared")
    made = learner(loss, intercept=True)
    lines = plot.learning(made, x=x, y=y + 1).axes[0].lines
    off = [line.get_ydata() - exact.get_ydata() for line, exact in zip(lines[:3], lines[3:], strict=True)]
    assert np.abs(off).max() <= made.error_bound(len(x)) < 1e-5
    assert lines[2].get_ydata()[-1] > 0.5


def test_a_step_size_that_diverges_ends_in_no_number() -> None:
    x, y = (a.numpy() for a in examples("poisson"))
    assert not np.isfinite(exact_trajectory(loss_named("poisson"), x, y, 30, 1e3)[-1]).all()


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber(1)"])
def test_the_weights_shown_are_those_of_the_step(loss: str) -> None:
    """From the weights alone: A's values give w·x, B's give ψ, and C's give what `gathered` returns."""
    made = learner(loss)
    x, y = examples(loss)
    w = torch.tensor([0.3, -0.2], dtype=torch.float64)
    seen = step_weights(made, w, x, y)
    value = made.reading.value[:, :, 1].numpy()
    u = (seen.reading * value[:, 0] + (1 - seen.reading) * value[:, 1]) @ made.reading.output.numpy()
    assert np.abs(u - (x @ w).numpy()).max() < 1e-9
    s = u - y.numpy()
    r = s
    if loss == "logistic":
        assert seen.activation is not None
        r = 1 / (1 + np.exp(-u)) - y.numpy()
    if loss == "huber(1)":
        r = np.clip(s, -1, 1)
    if seen.activation is None:
        assert loss == "squared"
    else:
        assert np.abs(seen.activation.sum(1) - made.activation.heads).max() < 1e-12  # type: ignore[union-attr]
    one, _ = gathered(torch.from_numpy(r), x, made.settings.e)
    assert np.abs((seen.twins[0] - seen.twins[1]) @ x.numpy() - one.numpy()).max() < 1e-7 * made.settings.e
    assert seen.twins.sum() == pytest.approx(1, abs=1e-12)


def test_every_part_is_there(logistic: Learner) -> None:
    x, y = examples("logistic")
    figure = plot.learning(logistic, x=x, y=y, names=["age", "$ spent"])
    titles = [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]
    assert titles == [
        "coefficients",
        *(f"{part}, step {k}" for part in ("A: on the weight token", "B: on the anchors", "C: on the twins") for k in (1, 6)),
    ]  # fmt: skip
    assert figure.get_suptitle().startswith("logistic: 40 examples, 6 steps of 0.2, float64")
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [
        "age", r"\$ spent", "intercept", "exact gradient descent"
    ]  # fmt: skip


def test_the_curves_are_the_trajectory_and_exact_gradient_descent(logistic: Learner) -> None:
    x, y = examples("logistic")
    lines = plot.learning(logistic, x=x, y=y).axes[0].lines
    found = np.stack([line.get_ydata() for line in lines[:3]], 1)
    dotted = [line for line in lines if line.get_linestyle() == ":"]
    assert (found == logistic.trajectory(x, y).numpy()).all()
    wide = np.column_stack([x.numpy(), np.ones(len(x))])
    exact = descend("logistic", wide, y.numpy(), 6, 0.2).astype(float)
    assert [line.get_ydata()[-1] for line in dotted] == pytest.approx(exact, abs=1e-14)


def test_the_twins_are_opposite_and_in_order_of_the_prediction(logistic: Learner) -> None:
    x, y = examples("logistic")
    figure = plot.learning(logistic, x=x, y=y)
    (axes,) = [ax for ax in figure.axes if ax.get_title(loc="left") == "C: on the twins, step 1"]
    drawn = np.asarray(axes.images[0].get_array())
    w = logistic.coefficients(x, y)
    order = np.argsort((x @ w[:2] + w[2]).numpy())
    r = 0.5 - y.numpy()[order]
    e = logistic.settings.e
    assert np.abs(drawn - np.stack([e * r, -e * r])).max() < 2 * e * e


def test_a_long_context_and_many_features_are_thinned() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.clip(rng.normal(size=(700, 20)), -3, 3))
    made = gradient_descent("squared", features=20, steps=3, step_size=0.1, dtype=torch.float64)
    figure = plot.learning(made, x=x, y=x[:, 0])
    images = [ax.images[0].get_array() for ax in figure.axes if ax.get_title(loc="left").startswith("C")]
    assert [np.shape(image) for image in images] == [(2, MOST_EXAMPLES)] * 2
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len(names) == 12 and names[0] == "w1" and names[-1] == "exact gradient descent"
    assert not [ax for ax in figure.axes if ax.get_title(loc="left").startswith("B")]


@pytest.mark.parametrize(
    ("change", "words"), [({"names": ["age"]}, "names"), ({"x": [[1.0]]}, "x must"), ({"y": None}, "y must")]
)
def test_bad_arguments_are_refused(logistic: Learner, change: dict[str, Any], words: str) -> None:
    x, y = examples("logistic")
    with pytest.raises(attnc.errors.InputError, match=words):
        plot.learning(logistic, **{"x": x, "y": y, **change})
