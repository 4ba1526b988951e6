"""Univariate functions: torch form, ball-arithmetic form, kinks, Lipschitz constant."""

from attnc.functions import library
from attnc.functions.function import Function, Piece, function
from attnc.functions.library import *  # noqa: F403
from attnc.functions.registry import get, meaning, names, register, signature

__all__ = ["Function", "Piece", "function", "get", "meaning", "names", "register", "signature"]
__all__ += library.__all__
