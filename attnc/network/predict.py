"""Predictions of a compiled scikit-learn estimator: its classes, numbers and probabilities, from arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from attnc.domain import real_numbers
from attnc.errors import InputError

if TYPE_CHECKING:
    from attnc.network.network import Network


def predictions(net: Network, X: ArrayLike) -> NDArray[Any]:
    """See `Network.predict`. As scikit-learn does: the class with the largest logit, the second of two classes if its logit is
    positive, and every label whose logit is positive."""
    outputs = _outputs(net, X)
    if net.task in ("", "regression"):
        return outputs[:, 0] if net.task and outputs.shape[1:] == (1,) else outputs
    if net.task == "multilabel":
        return (outputs > 0).astype(np.int64)
    index = outputs.argmax(1) if net.task == "multiclass" else (outputs[:, 0] > 0).astype(np.int64)
    classes: NDArray[Any] = np.array(net.classes)[index]
    return classes


def probabilities(net: Network, X: ArrayLike) -> NDArray[np.float64]:
    """See `Network.predict_proba`."""
    if net.task in ("", "regression"):
        raise InputError("predict_proba is for networks compiled from a scikit-learn classifier: use predict")
    logits = torch.from_numpy(_outputs(net, X)).double()
    if net.task == "multiclass":
        return torch.softmax(logits, -1).numpy()
    chances = torch.sigmoid(logits).numpy()
    return np.hstack([1 - chances, chances]) if net.task == "binary" else chances


def _outputs(net: Network, X: ArrayLike) -> NDArray[Any]:
    """The outputs for the rows of an array."""
    array = real_numbers(X if isinstance(X, torch.Tensor) else np.asarray(X), "X")
    dtype = next(net.parameters()).dtype
    with torch.no_grad():
        found: NDArray[Any] = net(torch.from_numpy(array).to(dtype)).numpy()
    if array.ndim != len(net.program.shape) + 1:
        sizes = ", ".join(("rows", *map(str, net.program.shape)))
        raise InputError(f"X must have the shape ({sizes}): got {array.shape}")
    return found
