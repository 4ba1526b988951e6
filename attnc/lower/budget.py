"""Who may err by how much: the error allowed at the output, shared over the layers of attention.

An error of 1 in every neuron of layer l becomes at most M_l at the output. A head within δ costs about log(1/δ)
anchors, so that the total is least where every M_l δ_l is the same share of what is allowed; what a layer leaves
over is shared by those behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnc.domain import Array
from attnc.prove.compose import Known
from attnc.prove.outward import product, times, total
from attnc.records.layers import Layer


def carried(
    stages: Sequence[Layer], known: Mapping[int, Known], own: Mapping[int, Array | float]
) -> dict[int, Array]:
    """What errors `own` of the values become in exact arithmetic, value by value (upper bounds)."""
    error: dict[int, Array] = {0: np.zeros(known[0].lo.shape)}
    for stage in stages:
        match stage.kind:
            case "affine":
                made = product(np.abs(stage.tensors["weight"].astype(np.float64)), error[stage.input])
            case "batch_norm":
                made = times(np.abs(stage.tensors["scale"].astype(np.float64)), error[stage.input])
            case "pointwise":
                slope = known[stage.value].lipschitz
                entering = error[stage.input]
                made = entering if slope is None else np.where(entering > 0, times(slope, entering), 0.0)
            case "lookup":
                made = np.zeros(stage.tensors["values"].shape[1])  # its input has no error
            case "combine":
                parts = [
                    times(abs(c), error[i])
                    for c, i in zip(stage.settings["coefficients"], stage.inputs, strict=True)
                ]
                made = total(*parts)
            case _:
                made = error[stage.input].reshape(stage.settings["to"])
        error[stage.value] = total(made, np.broadcast_to(own.get(stage.value, 0.0), made.shape))
    return error


def amplification(stages: Sequence[Layer], known: Mapping[int, Known], layer: Layer) -> float:
    """M: the output's error where every neuron of the layer errs by 1."""
    return float(carried(stages, known, {layer.value: 1.0})[stages[-1].value].max())
