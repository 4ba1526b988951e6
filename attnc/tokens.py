"""Programs over tokens as attention-only transformers that are exactly right, and proved so.

>>> from attnc import tokens
>>> p = tokens.program("abcd", max_len=9)
>>> histogram = p.count(p.tokens == p.tokens.q)
>>> net = p.compile(histogram)
>>> net.run("abca"), net.certificate.proved
([2, 1, 1, 2], True)
"""

from attnc.frontends.tokens import ProgramBuilder, Query, Variable, Where, program
from attnc.network.tokens import TokenNetwork
from attnc.program.tokens import TokenProgram

__all__ = ["ProgramBuilder", "Query", "TokenNetwork", "TokenProgram", "Variable", "Where", "program"]
