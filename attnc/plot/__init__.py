"""Pictures of heads and networks: attention over the anchors, the function with its imitation, the error with its bound.

Needs the extra `plot` (matplotlib), which is imported when the first picture is drawn.
"""

from attnc.plot.curves import error, function
from attnc.plot.figure import head
from attnc.plot.heat_map import attention
from attnc.plot.learning import learning
from attnc.plot.network import network
from attnc.plot.rates import rates
from attnc.plot.slices import slices, tokens_and_anchors

__all__ = [
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
