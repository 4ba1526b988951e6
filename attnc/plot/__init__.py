"""Pictures of heads, networks and converted models: attention over the anchors, the function with its imitation, the error with
its bound.

Needs the extra `plot` (matplotlib), which is imported when the first picture is drawn.
"""

from attnc.plot.activations import anchors_used
from attnc.plot.curves import error, function
from attnc.plot.figure import head
from attnc.plot.heat_map import attention
from attnc.plot.learning import learning
from attnc.plot.network import network
from attnc.plot.rates import rates
from attnc.plot.slices import slices, tokens_and_anchors

__all__ = [
    "anchors_used",
    "attention",
    "error",
    "function",
    "head",
    "learning",
    "network",
    "rates",
    "slices",
    "tokens_and_anchors",
]
