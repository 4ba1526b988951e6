"""The literal network of a learner with T distinct steps, as a transformer has them, instead of one that is repeated."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from attnc.incontext.learner import Learner
from attnc.incontext.literal import LiteralLearner


class UnrolledLearner(LiteralLearner):
    """`unrolled[t]` holds the layers A, B, C (and D) of step t, copies of one another to begin with; `layers` read queries."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.unrolled = nn.ModuleList(copy.deepcopy(self.layers) for _ in range(self.steps))

    def _run(self, x: Tensor, steps: int, strict: bool) -> tuple[Tensor, Tensor]:
        found = [x[0, self.registers["w"]]]
        with torch.autocast(x.device.type, enabled=False):
            for t in range(steps):
                for layer in self.unrolled[t].values():  # type: ignore[operator]
                    x = x + layer(x)
                found.append(x[0, self.registers["w"]])
        w = torch.stack(found)
        if strict:
            self._check_reached(w, x)
        return x, w
