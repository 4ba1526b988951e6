"""Programs over tokens, written in Python in the manner of RASP."""

from attnc.frontends.tokens.builder import ProgramBuilder, program
from attnc.frontends.tokens.variables import Query, Variable, Where

__all__ = ["ProgramBuilder", "Query", "Variable", "Where", "program"]
