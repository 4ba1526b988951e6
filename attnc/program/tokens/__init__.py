"""Token programs: the exact meaning of networks from tokens to tokens."""

from attnc.program.tokens.interpret import run
from attnc.program.tokens.nodes import (
    KINDS,
    Count,
    Get,
    Index,
    Linear,
    Map,
    Mean,
    Node,
    Predicate,
    Selection,
    Token,
    Value,
)
from attnc.program.tokens.program import TokenProgram

__all__ = [
    "KINDS", "Count", "Get", "Index", "Linear", "Map", "Mean", "Node", "Predicate", "Selection", "Token", "TokenProgram",
    "Value", "run",
]  # fmt: skip
