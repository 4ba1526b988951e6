"""Plots of heads, networks, token networks, converted models, learners and models of the zoo.

Every function takes the object first, then keyword arguments, and returns a matplotlib Figure; `path` saves it (.png, .svg or
.pdf). `report` writes an HTML page instead. Requires the extra `plot` (matplotlib), which is imported by the first plot."""

from attnc.plot.activations import anchors_used
from attnc.plot.heads import attention, head, tokens_and_anchors
from attnc.plot.learning import learning
from attnc.plot.network import network, slices
from attnc.plot.rates import rates
from attnc.plot.report import report
from attnc.plot.tokens import token_attention
from attnc.plot.zoo import zoo_model

__all__ = [
    "anchors_used", "attention", "head", "learning", "network", "rates", "report", "slices", "token_attention",
    "tokens_and_anchors", "zoo_model",
]  # fmt: skip
