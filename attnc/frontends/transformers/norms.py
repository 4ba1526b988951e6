"""The norm in front of a block, as numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from attnc.frontends.transformers.activations import of_transformers
from attnc.program.block import Norm, Numbers

LEAST_EPS = 1e-24  # far above the square of what float32 flushes to zero
_RMS = {
    f"{family}{kind}"
    for kind, families in (
        ("RMSNorm", ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3", "SmolLM3")),
        ("LayerNorm", ("T5", "MT5", "UMT5")),
    )
    for family in families
}
_RMS_ONE_PLUS = {"GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"}


def kind(norm: nn.Module) -> str | None:
    """ "layer", "rms", or None for what is no norm that is known.

    >>> kind(nn.LayerNorm(4)), kind(nn.RMSNorm(4)), kind(nn.BatchNorm1d(4))
    ('layer', 'rms', None)
    """
    if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) and type(norm) in (nn.LayerNorm, nn.RMSNorm):
        flat = len(norm.normalized_shape) == 1
        return {nn.LayerNorm: "layer", nn.RMSNorm: "rms"}[type(norm)] if flat else None
    rms = of_transformers(norm) and type(norm).__name__ in _RMS | _RMS_ONE_PLUS
    return "rms" if rms else None


def problem(norm: nn.Module) -> str | None:
    """Why a norm bounds nothing: without an ε well above what underflows, tiny inputs come out longer than √d."""
    eps = epsilon(norm)
    if eps is not None and not eps >= LEAST_EPS:
        return f"has eps={eps}: at least {LEAST_EPS:.0e} is accepted, as smaller ones leave tiny inputs to rounding"
    return None


def epsilon(norm: nn.Module) -> float | None:
    """The ε under the root; None is torch's default for rms, the dtype's own."""
    value = getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
    return None if value is None else float(value)


def numbers(norm: nn.Module, features: int) -> Norm:
    """Gain and shift, as they are applied. Gemma's gain is 1 + weight, a sum that it takes in float32.

    >>> numbers(nn.LayerNorm(2, elementwise_affine=False), 2)
    Norm(kind='layer', gain=array([1., 1.]), shift=array([0., 0.]))
    """
    named = kind(norm)
    assert named is not None
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if type(norm).__name__ in _RMS_ONE_PLUS and isinstance(weight, Tensor):
        weight = 1.0 + weight.float()
    gain = np.ones(features) if weight is None else as_numbers(weight)
    return Norm(named, gain, np.zeros(features) if bias is None else as_numbers(bias))


def as_numbers(tensor: Tensor) -> Numbers:
    """A copy in float64, which holds every number of the smaller types."""
    return np.array(tensor.detach().to("cpu", torch.float64).numpy())
