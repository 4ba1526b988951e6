"""The base of the layers of a network: a module that is made from stored numbers and returns them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.altered import as_made
from attnc.network.running import PreciseModule
from attnc.program.step import Numbers
from attnc.records.layers import Layer


@as_made
class LayerModule(PreciseModule):
    """The tensors of a layer as parameters of the same names, which require no gradient.

    The layer reads the values `inputs` of the program and computes the value `value`."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.kind, self.inputs, self.value = layer.kind, layer.inputs, layer.value
        self.settings = dict(layer.settings)
        for name, array in layer.tensors.items():
            self.register_parameter(
                name, nn.Parameter(torch.from_numpy(np.array(array)), requires_grad=False)
            )

    def numbers(self) -> Layer:
        """The numbers as they are stored now."""
        if self._buffers or self._modules:
            raise InputError(f"the {self.kind} layer has parts that it was not made with")
        tensors = {name: to_array(p) for name, p in self._parameters.items() if p is not None}
        return Layer(self.kind, self.inputs, self.value, tensors, dict(self.settings))


def to_array(tensor: Tensor) -> Numbers:
    """A copy of a tensor's numbers."""
    found: Numbers = tensor.detach().cpu().numpy().copy()
    return found
