"""Univariate functions: torch form, ball-arithmetic form, kinks, Lipschitz constant."""

from attnc.functions.function import Function, Piece, function
from attnc.functions.library import (
    abs,
    clip,
    cos,
    elu,
    exp,
    gelu,
    gelu_tanh,
    hardtanh,
    identity,
    leaky_relu,
    mish,
    relu,
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
    "Function", "Piece", "abs", "clip", "cos", "elu", "exp", "function", "gelu", "gelu_tanh", "get", "hardtanh", "identity",
    "leaky_relu", "meaning", "mish", "names", "register", "relu", "sigmoid", "signature", "silu", "sin", "soft_threshold",
    "softplus", "softsign", "square", "tanh",
]  # fmt: skip
