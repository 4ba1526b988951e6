"""Pictures of the models of the zoo, each on its example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnc import zoo
from attnc.errors import InputError
from attnc.incontext.learner import Learner
from attnc.incontext.solver import Solver
from attnc.network.network import Network
from attnc.network.tokens import TokenNetwork
from attnc.plot import canvas
from attnc.plot.canvas import SavePath
from attnc.plot.heads import tokens_and_anchors
from attnc.plot.learning import learning
from attnc.plot.tokens import token_attention
from attnc.zoo import ContinuousModel, TokenTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def zoo_model(model: Any, *, name: str, path: SavePath = None) -> Figure:
    """Plot the attention of a model of the zoo, what `attnc.zoo.load(name, …)` returns, on its example. Returns the Figure, saved
    to `path` if one is given.

    >>> from attnc import plot, zoo
    >>> figure = plot.zoo_model(zoo.load("induction"), name="induction")
    >>> [ax.get_title(loc="left") for ax in figure.axes][:2]
    ['0.0 previous', '1.0 induction']
    """
    kinds = TokenNetwork, Network, Learner, Solver
    canvas.prepare(path, model, kinds, "zoo_model", "give what attnc.zoo.load returns")
    about = zoo.about(name)
    if isinstance(model, TokenNetwork) != isinstance(about, TokenTask):
        raise InputError(f"{name!r} is no {type(model).__name__}: give what attnc.zoo.load({name!r}) returns")
    if isinstance(model, TokenNetwork) and isinstance(about, TokenTask):
        known = [token for token in about.tokens if token in model.vocabulary] or list(model.vocabulary[:1])
        return token_attention(model, sequence=known[: model.program.length], path=path)
    assert isinstance(about, ContinuousModel)
    dtype = getattr(torch, model.certificate.dtype)
    inputs = [torch.tensor(part, dtype=dtype) for part in about.example]
    if isinstance(model, Learner):
        return learning(model, x=inputs[0], y=inputs[1], path=path)
    if isinstance(model, Solver):
        return _solver(model, inputs[0], path)
    return tokens_and_anchors(model, x=inputs[0], path=path)


def _solver(solver: Solver, x: Tensor, path: SavePath) -> Figure:
    """The weights with which the row tokens gather from the examples, for the P before the first and before the last iteration of
    exact arithmetic. They are close to 1/(2n), so the picture shows the difference over the scale e: of x_i, then of -x_i."""
    s, n = solver.settings, len(x)
    e, wide = s.scales[0], x.double()
    a = wide.T @ wide / n + s.ridge * torch.eye(s.features, dtype=torch.float64)
    inverses = [s.start * torch.eye(s.features, dtype=torch.float64)]
    for _ in range(s.iterations - 1):
        inverses.append(2 * inverses[-1] - inverses[-1] @ a @ inverses[-1])
    figure = canvas.new_figure(9, 3.2)
    for column, (title, p) in enumerate((("first iteration", inverses[0]), ("last iteration", inverses[-1]))):
        r = e * p @ wide.T
        weights = torch.softmax(torch.cat([r, -r], 1), 1)
        image = ((weights - 1 / (2 * n)) / e).numpy()
        ax = figure.add_subplot(1, 2, column + 1)
        top = max(float(abs(image).max()), 1e-300)
        drawn = canvas.heat_image(ax, image, -top, top, origin="upper", cmap="RdBu")
        canvas.title(ax, f"gathering, {title}")
        names = [f"{sign}{i + 1}" for sign in "+−" for i in range(n)]
        ax.set_xticks(range(2 * n), names, fontsize=7)
        ax.set_yticks(range(len(image)), [f"row {j + 1}" for j in range(len(image))], fontsize=7)
        ax.set_xlabel("example and its twin", fontsize=8)
        canvas.colour_bar(drawn, ax, "(weight − 1/2n)/e")
    return canvas.finish(figure, path)
