"""The literal network of a learner with T distinct steps, as a transformer has them, instead of one that is repeated."""

from __future__ import annotations

import copy
from typing import cast

from torch import nn

from attnc.incontext.learner import Learner
from attnc.incontext.literal import LiteralLearner
from attnc.network.altered import as_made


@as_made
class UnrolledLearner(LiteralLearner):
    """`unrolled[t]` holds the layers A, B, C (and D) of step t, copies of one another to begin with; `layers` read queries."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.unrolled = nn.ModuleList(copy.deepcopy(self.layers) for _ in range(self.steps))

    def layers_of(self, t: int) -> nn.ModuleDict:
        """The layers of step t, its own."""
        return cast(nn.ModuleDict, self.unrolled[t])
