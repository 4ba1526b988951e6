"""The formulas of Coq files, evaluated in mpmath: a parser of sums, products and applications."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mpmath as mp

_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?(?:e-?\d+)?|[A-Za-z_]\w*|[-+*/()])")
_APPLIED: dict[str, tuple[int, Callable[..., Any]]] = {
    "exp": (1, mp.exp), "ln": (1, mp.log), "sin": (1, mp.sin), "cos": (1, mp.cos), "tanh": (1, mp.tanh), "sqrt": (1, mp.sqrt),
    "Rabs": (1, abs), "Phi": (1, mp.ncdf), "Rmax": (2, max), "Rmin": (2, min),
}  # fmt: skip


class Formula:
    """The value of a formula at s, by recursive descent."""

    def __init__(self, text: str, s: Any) -> None:
        self.tokens, self.s = _TOKEN.findall(text), s
        assert "".join(self.tokens) == re.sub(r"\s", "", text)
        self.value = self._sum()
        assert not self.tokens

    def _sum(self) -> Any:
        total = -self._product() if self._take("-") else self._product()
        while self.tokens and self.tokens[0] in "+-":
            total = total + self._product() if self.tokens.pop(0) == "+" else total - self._product()
        return total

    def _product(self) -> Any:
        total = self._application()
        while self.tokens and self.tokens[0] in "*/":
            total = total * self._application() if self.tokens.pop(0) == "*" else total / self._application()
        return total

    def _application(self) -> Any:
        if self.tokens[0] not in _APPLIED:
            return self._atom()
        count, function = _APPLIED[self.tokens.pop(0)]
        return function(*(self._atom() for _ in range(count)))

    def _atom(self) -> Any:
        if self._take("("):
            inner = self._sum()
            assert self.tokens.pop(0) == ")"
            return inner
        word = self.tokens.pop(0)
        return self.s if word == "s" else mp.pi if word == "PI" else mp.mpf(word)

    def _take(self, word: str) -> bool:
        if self.tokens[0] == word:
            self.tokens.pop(0)
            return True
        return False
