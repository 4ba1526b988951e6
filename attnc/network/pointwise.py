"""A head for every neuron."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.altered import as_made
from attnc.network.head import Head
from attnc.network.layer import LayerModule, to_array
from attnc.network.running import PreciseModule, precise
from attnc.records.layers import Index, Layer, pointwise_layer


@as_made
class AttentionLayer(PreciseModule, nn.ModuleList):
    """x_j ↦ head(x_j): a head for every neuron j; the heads of a group share their keys and values.

    The module is the list of its groups, each an `attnc.Head`. If there are several, `neurons_0`, `neurons_1`, … are the
    indices of their neurons."""

    def __init__(
        self, input: int, value: int, groups: Sequence[tuple[Index | None, Head]], name: str
    ) -> None:
        super().__init__([head for _, head in groups])
        self.inputs, self.value, self.name = (input,), value, name
        for g, (neurons, _) in enumerate(groups):
            if neurons is not None:
                self.register_buffer(f"neurons_{g}", torch.from_numpy(np.array(neurons)))

    @property
    def groups(self) -> list[tuple[Tensor | None, Head]]:
        """The neurons of each group (None: all), and their head."""
        found: list[tuple[Tensor | None, Head]] = []
        for g, head in enumerate(self):
            neurons = self._buffers.get(f"neurons_{g}")
            if not isinstance(head, Head) or (neurons is None) != (len(self) == 1):
                raise InputError(
                    f"group {g} of {len(self)} is a {type(head).__name__} with {'no' if neurons is None else 'a'} list of "
                    "neurons: each group is an attnc.Head, and each of several has its list neurons_0, …"
                )
            found.append((neurons, head))
        return found

    @precise
    def forward(self, x: Tensor, engine: str = "softmax") -> Tensor:
        """head(x_j) for every neuron. Only the domain of the network is checked."""
        groups = self.groups
        parts = [
            head.run(x if neurons is None else x.index_select(-1, neurons), engine, strict=False)
            for neurons, head in groups
        ]
        return joined(groups, parts)

    def numbers(self) -> Layer:
        """The numbers as they are stored now."""
        groups = [(None if n is None else to_array(n), head.numbers()) for n, head in self.groups]
        return pointwise_layer(self.inputs[0], self.value, groups)


Stage = LayerModule | AttentionLayer


def joined(groups: Sequence[tuple[Tensor | None, Head]], parts: Sequence[Tensor]) -> Tensor:
    """The outputs of the groups, each neuron in its place."""
    if len(groups) == 1:
        return parts[0]
    order = torch.cat([neurons for neurons, _ in groups if neurons is not None])
    together = torch.cat(list(parts), -1)
    return torch.empty_like(together).index_copy(-1, order, together)
