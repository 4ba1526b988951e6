"""A learner at work: its coefficients step by step beside exact gradient descent, and what layers A, B and C attend to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnc.domain import Array
from attnc.errors import InputError
from attnc.incontext import Learner
from attnc.incontext.exact import exact_trajectory
from attnc.plot.canvas import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    WEIGHTS,
    expect_kind,
    new_figure,
    picture_format,
    plain,
    require_matplotlib,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Indices = NDArray[np.intp]

MOST_EXAMPLES = 200  # shown of a longer context, evenly from their order
_MOST_NAMES = 12
_FAINT = 1e-3  # an anchor whose weight stays below this in every example is left out


@dataclass(frozen=True)
class StepAttention:
    """The attention weights of one step, example by example."""

    reading: Array  # (n, heads): layer A, on the weight token; the rest is on BOS
    activation: Array | None  # (n, anchors): layer B, of all its heads one after another
    twins: Array  # (2, n): layer C, head e, of the weight token; row 0 is τ = +1, row 1 is τ = -1


def step_attention(learner: Learner, w: Tensor, x: Tensor, y: Tensor) -> StepAttention:
    """What the three layers attend to in the step from w; x has the intercept's column of ones where there is one.

    Layer C is softmax over the 2n twins with scores ±e r_i, the same that the step carries out."""
    u = learner.reading(x @ w)
    on_weight = learner.reading.weights(x @ w)[..., 0]
    anchors, r = None, u - y
    if learner.activation is not None:
        s = u - y if learner.loss.of_residual else u
        anchors = learner.activation.weights(s).reshape(len(s), -1).double().numpy()
        r = learner.activation(s) - (0 if learner.loss.of_residual else y)
    twins = torch.softmax(learner.certificate.e * torch.cat([r, -r]), 0).reshape(2, -1)
    return StepAttention(on_weight.double().numpy(), anchors, twins.double().numpy())


def learning(
    learner: Learner,
    x: Tensor,
    y: Tensor,
    path: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """The coefficients after every step, exact gradient descent dotted, and the attention of layers A, B, C at the first
    and at the last step.

    Examples stand in order of w·x after all steps, at most 200 of them. Weights of A and C differ little from 1/2 and
    1/(2n), so their departure is shown: that is what the scores e·s make of s. `names` are those of the features. With `path`
    the figure is also written there, as .png, .svg or .pdf.

    >>> import attnc.incontext, attnc.plot, torch
    >>> learner = attnc.incontext.gradient_descent("squared", features=1, steps=5, step_size=0.5)
    >>> x = torch.tensor([[1.0], [-1.0], [0.5]], dtype=torch.float64)
    >>> figure = attnc.plot.learning(learner, x, 2 * x[:, 0])
    >>> [ax.get_title(loc="left") for ax in figure.axes[:3]]
    ['coefficients', 'A: on the weight token, step 1', 'A: on the weight token, step 5']
    """
    require_matplotlib()
    if path is not None:
        picture_format(path)
    expect_kind(learner, (Learner,), "learning", "give what attnc.incontext.gradient_descent makes")
    for name, given in (("x", x), ("y", y)):
        if not isinstance(given, Tensor):
            raise InputError(
                f"{name} is a tensor of examples: got {type(given).__name__}; write torch.tensor(...)"
            )
    labels = _labels(learner, names)
    found = learner.trajectory(x, y, strict=False)
    wide = torch.cat([x, x.new_ones(len(x), 1)], 1) if learner.intercept else x
    wide_x, labels_y = wide.double().numpy(), y.double().numpy()
    exact = exact_trajectory(
        learner.loss, wide_x, labels_y, learner.steps, learner.step_size, learner.intercept
    )
    shown = _shown((wide @ found[-1]).double().numpy())
    steps = (1, learner.steps)
    seen = [step_attention(learner, found[k - 1], wide, y) for k in steps]
    rows = 3 + (learner.activation is not None)
    figure = new_figure(9, 2.6 * rows)
    grid = figure.add_gridspec(rows, 2, height_ratios=(1.6, *[1.0] * (rows - 1)))
    _draw_trajectory(figure.add_subplot(grid[0, :]), found.double().numpy(), exact, labels)
    drawn = [_draw_reading, *[_draw_anchors] * (rows - 3), _draw_twins]
    for row, draw in enumerate(drawn, 1):
        for column, k in enumerate(steps):
            draw(figure.add_subplot(grid[row, column]), seen, column, shown, k)
    distance = float(np.linalg.norm(found[-1].double().numpy() - exact[-1]))
    figure.suptitle(plain(_title(learner, len(x), distance)), fontsize=11, color=INK)
    if path is not None:
        save(figure, path)
    return figure


def _labels(learner: Learner, names: Sequence[str] | None) -> list[str]:
    d = learner.features
    if names is not None and len(names) != d:
        raise InputError(
            f"names has {len(names)} entries, where the learner has {d} features: one for each is accepted"
        )
    return [
        *(names if names is not None else [f"w{j + 1}" for j in range(d)]),
        *["intercept"] * learner.intercept,
    ]


def _title(learner: Learner, n: int, distance: float) -> str:
    sizes = f"{n} examples, {learner.steps} steps of {learner.step_size:.4g}, {learner.certificate.dtype}"
    return f"{learner.loss.name}: {sizes}\ndistance to exact gradient descent after the last step: {distance:.2g}"


def _shown(last: Array) -> Indices:
    order: Indices = np.argsort(last, kind="stable")
    if len(order) <= MOST_EXAMPLES:
        return order
    some: Indices = order[np.linspace(0, len(order) - 1, MOST_EXAMPLES).round().astype(np.intp)]
    return some


def _kept(seen: Sequence[StepAttention], shown: Indices) -> Indices:
    """The anchors, in their order, that any example shown attends to at either step."""
    most = np.max([one.activation[shown].max(0) for one in seen if one.activation is not None], 0)
    return np.flatnonzero(most >= _FAINT)


def _draw_trajectory(ax: Axes, found: Array, exact: Array, labels: Sequence[str]) -> None:
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0, 0.9, max(2, len(labels))))
    steps = np.arange(len(found))
    for j, label in enumerate(labels):
        # A name that begins with an underscore would be left out of the legend.
        ax.plot(
            steps,
            found[:, j],
            color=colours[j],
            linewidth=2,
            alpha=0.75,
            label=plain(label.lstrip("_") or "?"),
        )
    for j in range(len(labels)):
        ax.plot(
            steps,
            exact[:, j],
            color=INK,
            linewidth=1,
            linestyle=":",
            label="exact gradient descent" if not j else "_",
        )
    ax.set_xlabel("steps", fontsize=9)
    handles, texts = ax.get_legend_handles_labels()
    if len(labels) > _MOST_NAMES:  # the dotted line, and the names of the largest
        largest = sorted(np.argsort(-np.abs(found[-1]), kind="stable")[: _MOST_NAMES - 1].tolist())
        handles = [*(handles[j] for j in largest), handles[-1]]
        texts = [*(texts[j] for j in largest), texts[-1]]
    ax.legend(
        handles, texts, fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=6
    )
    ax.set_xlim(0, len(found) - 1)
    _finish(ax, "coefficients")


def _draw_reading(ax: Axes, seen: Sequence[StepAttention], at: int, shown: Indices, step: int) -> None:
    for head, (name, colour) in enumerate((("score e w·x", BLUE), ("score 2e w·x", VERMILION))):
        ax.plot(seen[at].reading[shown, head] - 0.5, ".", markersize=3, color=colour, label=name)
    most = max(float(np.abs(one.reading[shown] - 0.5).max()) for one in seen) or 1.0
    ax.set_ylim(-1.1 * most, 1.1 * most)
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set_ylabel("weight − 1/2", fontsize=8)
    ax.set_xlabel("example", fontsize=8)
    ax.legend(fontsize=7, frameon=False, loc="upper left")
    _finish(ax, f"A: on the weight token, step {step}")


def _draw_anchors(ax: Axes, seen: Sequence[StepAttention], at: int, shown: Indices, step: int) -> None:
    from matplotlib.ticker import MaxNLocator

    kept = _kept(seen, shown)
    every = seen[at].activation
    assert every is not None
    image = ax.imshow(
        every[np.ix_(shown, kept)].T, aspect="auto", origin="lower", cmap=WEIGHTS, vmin=0, vmax=1, interpolation="nearest"
    )  # fmt: skip
    ax.figure.colorbar(image, ax=ax).ax.tick_params(labelsize=7)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel(f"anchor ({len(kept)} of {every.shape[1]})", fontsize=8)
    ax.set_xlabel("example", fontsize=8)
    _finish(ax, f"B: on the anchors, step {step}")


def _draw_twins(ax: Axes, seen: Sequence[StepAttention], at: int, shown: Indices, step: int) -> None:
    """2n p - 1 ≈ ±e r_i: by how much a twin is attended to more than the mean."""
    excess = [2 * one.twins.shape[1] * one.twins[:, shown] - 1 for one in seen]
    most = float(np.abs(excess).max()) or 1.0
    image = ax.imshow(
        excess[at], aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest"
    )
    ax.figure.colorbar(image, ax=ax).ax.tick_params(labelsize=7)
    ax.set_yticks([0, 1], ["τ = +1", "τ = −1"])
    ax.set_xlabel("example (colour: 2n · weight − 1)", fontsize=8)
    _finish(ax, f"C: on the twins, step {step}")


def _finish(ax: Axes, title: str) -> None:
    ax.set_title(title, fontsize=9, loc="left", color=INK)
    ax.tick_params(labelsize=7)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
