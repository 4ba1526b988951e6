"""Univariate functions: torch form, ball-arithmetic form, kinks, Lipschitz constant."""

from attnc.functions.function import Function, Piece, function
from attnc.functions.library import (
    abs,
    celu,
    clip,
    cos,
    elu,
    exp,
    gelu,
    gelu_10,
    gelu_fast,
    gelu_tanh,
    hardsigmoid,
    hardswish,
    hardtanh,
    identity,
    leaky_relu,
    mish,
    quick_gelu,
    relu,
    relu2,
    selu,
    sigmoid,
    silu,
    sin,
    soft_threshold,
    softplus,
    softsign,
    square,
    tanh,
)
from attnc.functions.registry import get, meaning, names, register, signature

__all__ = [
    "Function", "Piece", "abs", "celu", "clip", "cos", "elu", "exp", "function", "gelu", "gelu_10", "gelu_fast",
    "gelu_tanh", "get", "hardsigmoid", "hardswish", "hardtanh", "identity", "leaky_relu", "meaning",
    "mish", "names", "quick_gelu", "register", "relu", "relu2", "selu", "sigmoid", "signature", "silu", "sin",
    "soft_threshold", "softplus", "softsign", "square", "tanh",
]  # fmt: skip
