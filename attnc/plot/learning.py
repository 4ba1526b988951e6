"""Plots of an in-context learner: the coefficients after every step, and the attention weights of its layers A, B and C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnc.domain import Array
from attnc.errors import InputError
from attnc.incontext import Learner
from attnc.incontext.losses import exact_trajectory
from attnc.plot import canvas
from attnc.plot.canvas import BLUE, GREY, INK, VERMILION, SavePath

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_EXAMPLES = 200  # of a longer context, evenly spaced in their order
_MOST_NAMES = 12
_FAINT = 1e-3  # anchors with smaller weights in every example are omitted


def learning(
    learner: Learner, *, x: Tensor, y: Tensor, names: Sequence[str] | None = None, path: SavePath = None
) -> Figure:
    """Plot the coefficients after every step, exact gradient descent dotted, and the attention weights of the layers A, B and C
    at the first and at the last step, for the context `x`, `y`.

    The examples are ordered by the final w·x; at most 200 are shown. The weights of A and C are close to 1/2 and 1/(2n), so the
    plots show the difference. `names` are those of the features. Returns the Figure, saved to `path` if one is given.

    >>> import attnc.incontext, attnc.plot
    >>> learner = attnc.incontext.gradient_descent("squared", features=1, steps=5, step_size=0.5, dtype=torch.float64)
    >>> x = torch.tensor([[1.0], [-1.0], [0.5]], dtype=torch.float64)
    >>> figure = attnc.plot.learning(learner, x=x, y=2 * x[:, 0])
    >>> [ax.get_title(loc="left") for ax in figure.axes[:3]]
    ['coefficients', 'A: on the weight token, step 1', 'A: on the weight token, step 5']
    """
    instead = "give what attnc.incontext.gradient_descent returns"
    canvas.prepare(path, learner, (Learner,), "learning", instead)
    for name, given in (("x", x), ("y", y)):
        if not isinstance(given, Tensor):
            raise InputError(f"{name} must be a torch.Tensor: got {type(given).__name__}")
    if names is not None and len(names) != learner.features:
        raise InputError(f"names has {len(names)} entries: expected {learner.features}, one for each feature")
    features = names or [f"w{j + 1}" for j in range(learner.features)]
    # matplotlib omits labels with a leading underscore from the legend.
    labels = [canvas.plain(name.lstrip("_") or "?") for name in features]
    labels += ["intercept"] * learner.intercept
    found = learner.trajectory(x, y, strict=False)
    wide = torch.cat([x, x.new_ones(len(x), 1)], 1) if learner.intercept else x
    exact = exact_trajectory(
        learner.loss, wide.double().numpy(), y.double().numpy(), learner.steps, learner.step_size, learner.intercept
    )  # fmt: skip
    order = np.argsort((wide @ found[-1]).double().numpy(), kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, MOST_EXAMPLES).round().astype(np.intp))]
    steps = (1, learner.steps)
    weights = [step_weights(learner, found[k - 1], wide, y) for k in steps]
    layers = [_draw_reading, *[_draw_anchors] * (learner.activation is not None), _draw_twins]
    figure = canvas.new_figure(9, 2.6 * (1 + len(layers)))
    grid = figure.add_gridspec(1 + len(layers), 2, height_ratios=(1.6, *[1.0] * len(layers)))
    _draw_trajectory(figure.add_subplot(grid[0, :]), found.double().numpy(), exact, labels)
    for row, draw in enumerate(layers, 1):
        for column, k in enumerate(steps):
            ax = figure.add_subplot(grid[row, column])
            canvas.title(ax, f"{draw(ax, weights, column, shown)}, step {k}")
            ax.set_xlabel("example", fontsize=9)
            canvas.style(ax, grid=None)
    distance = float(np.linalg.norm(found[-1].double().numpy() - exact[-1]))
    sizes = f"{learner.loss.name}: {len(x)} examples, {learner.steps} steps of {learner.step_size:.4g}"
    reached = f"distance to exact gradient descent after the last step: {distance:.2g}"
    canvas.heading(figure, f"{sizes}, {learner.certificate.dtype}\n{reached}")
    return canvas.finish(figure, path)


class StepWeights(NamedTuple):
    """The attention weights of one step, example by example."""

    reading: Array  # (n, heads): layer A, on the weight token; the rest is on BOS
    activation: Array | None  # (n, anchors): layer B, head after head
    twins: Array  # (2, n): layer C, head e, of the weight token; row 0 is τ = +1, row 1 is τ = -1


def step_weights(learner: Learner, w: Tensor, x: Tensor, y: Tensor) -> StepWeights:
    """The weights of the three layers in the step from w; x includes the column of ones of the intercept.

    Layer C is softmax over the 2n twins with scores ±e r_i, as in the step itself."""
    u = learner.reading(x @ w)
    on_weight = learner.reading.weights(x @ w)[..., 0]
    anchors, r = None, u - y
    if learner.activation is not None:
        s = u - y if learner.loss.of_residual else u
        anchors = learner.activation.weights(s).reshape(len(s), -1).double().numpy()
        r = learner.activation(s) - (0 if learner.loss.of_residual else y)
    twins = torch.softmax(learner.settings.e * torch.cat([r, -r]), 0).reshape(2, -1)
    return StepWeights(on_weight.double().numpy(), anchors, twins.double().numpy())


def _draw_trajectory(ax: Axes, found: Array, exact: Array, labels: Sequence[str]) -> None:
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0, 0.9, max(2, len(labels))))
    named = np.sort(np.argsort(-np.abs(found[-1]), kind="stable")[: _MOST_NAMES - 1])  # the largest
    if len(labels) <= _MOST_NAMES:
        named = np.arange(len(labels))
    for j, label in enumerate(labels):
        ax.plot(found[:, j], color=colours[j], linewidth=2, alpha=0.75, label=label if j in named else "_")
    for j in range(len(labels)):
        label = "_" if j else "exact gradient descent"
        ax.plot(exact[:, j], color=INK, linewidth=1, linestyle=":", label=label)
    ax.set_xlabel("steps", fontsize=9)
    ax.set_xlim(0, len(found) - 1)
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=6)
    canvas.title(ax, "coefficients")
    canvas.style(ax, grid=None)


def _draw_reading(ax: Axes, steps: Sequence[StepWeights], at: int, shown: NDArray[np.intp]) -> str:
    for head, (name, colour) in enumerate((("score e w·x", BLUE), ("score 2e w·x", VERMILION))):
        ax.plot(steps[at].reading[shown, head] - 0.5, ".", markersize=3, color=colour, label=name)
    most = max(float(np.abs(one.reading[shown] - 0.5).max()) for one in steps) or 1.0
    ax.set_ylim(-1.1 * most, 1.1 * most)
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set_ylabel("weight − 1/2", fontsize=9)
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    return "A: on the weight token"


def _draw_anchors(ax: Axes, steps: Sequence[StepWeights], at: int, shown: NDArray[np.intp]) -> str:
    from matplotlib.ticker import MaxNLocator

    weights = np.stack([one.activation[shown] for one in steps if one.activation is not None])
    kept = np.flatnonzero(weights.max((0, 1)) >= _FAINT)
    canvas.colour_bar(canvas.heat_image(ax, weights[at][:, kept].T), ax)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel(f"anchor ({len(kept)} of {weights.shape[2]})", fontsize=9)
    return "B: on the anchors"


def _draw_twins(ax: Axes, steps: Sequence[StepWeights], at: int, shown: NDArray[np.intp]) -> str:
    """2n p - 1 ≈ ±e r_i: how much the weight p of a twin exceeds the mean, relative to the mean."""
    excess = [2 * one.twins.shape[1] * one.twins[:, shown] - 1 for one in steps]
    most = float(np.abs(excess).max()) or 1.0
    image = canvas.heat_image(ax, excess[at], -most, most, cmap="RdBu_r", origin="upper")
    canvas.colour_bar(image, ax)
    ax.set_ylabel("2n · weight − 1", fontsize=9)
    ax.set_yticks([0, 1], ["τ = +1", "τ = −1"])
    return "C: on the twins"
