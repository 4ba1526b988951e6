"""Plots of heads, networks, converted models, learners and error rates.

Every function takes the object first, then keyword arguments, and returns a matplotlib Figure. `x` is the input to draw,
`f` the exact function, `layers` a selection of layers, `path` a file to save the figure to (.png, .svg or .pdf). Functions
that draw one panel also take `ax`, the Axes to draw into.

Requires the extra `plot` (matplotlib), which is imported by the first plot.
"""

from attnc.plot.activations import anchors_used
from attnc.plot.heads import error, function, head
from attnc.plot.heat_map import attention
from attnc.plot.learning import learning
from attnc.plot.literal import tokens_and_anchors
from attnc.plot.network import network, slices
from attnc.plot.rates import rates

__all__ = [
    "anchors_used", "attention", "error", "function", "head", "learning", "network", "rates", "slices", "tokens_and_anchors",
]  # fmt: skip
