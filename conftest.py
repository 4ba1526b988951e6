"""Doctests of pages: real digits may differ between processors, and examples that need a missing extra are skipped."""

from __future__ import annotations

import doctest
import re
from importlib.util import find_spec
from typing import Any

import pytest

NEEDS = {
    "transformer_lens": (
        "docs/transformer_lens.md",
        "attnc/exporters/transformer_lens.py",
        "attnc/exporters/token_lens.py",
    )
}
SAME_SIZE = doctest.register_optionflag("SAME_SIZE")  # of the pages' examples: see `same_size`
_STATES_ERROR = re.compile(r"<=|within|error|approximation|rounding|bound|radius")
_NUMBER = re.compile(r"\d+\.\d+(?:e[+-]\d+)?|\d+e[+-]\d+")
_plain = doctest.OutputChecker.check_output


def same_size(want: str, got: str) -> bool:
    """Whether two lines differ at most in errors and bounds, each by less than a factor of ten.

    The search for anchors takes another course on another processor, so these digits change. They are the numbers in lines
    that state an error or a bound, and those in scientific notation; all other text must agree.

    >>> same_size("bound: 3.5e-07 on [-8, 8]", "bound: 9e-07 on [-8, 8]"), same_size("bound: 3.5e-07", "bound: 3e-08")
    (True, False)
    >>> same_size("tensor([0.25])", "tensor([0.26])"), same_size("9 anchors, error 0.2", "8 anchors, error 0.2")
    (False, False)
    """
    loose = _STATES_ERROR.search(want) is not None

    def numbers(line: str) -> list[float]:
        return [float(n) for n in _NUMBER.findall(line) if loose or "e" in n]

    def words(line: str) -> str:
        return " ".join(_NUMBER.sub(lambda m: "#" if loose or "e" in m[0] else m[0], line).split())

    pairs = zip(numbers(want), numbers(got), strict=True)
    return words(want) == words(got) and all(a == b or 0.1 < abs(a / (b or 1e-300)) < 10 for a, b in pairs)


def _check_output(self: Any, want: str, got: str, flags: int) -> bool:
    if _plain(self, want, got, flags) or not flags & SAME_SIZE:
        return _plain(self, want, got, flags)
    wanted, found = want.split("\n"), got.split("\n")
    pairs = zip(wanted, found, strict=False)
    return len(wanted) == len(found) and all(_plain(self, w, g, flags) or same_size(w, g) for w, g in pairs)


doctest.OutputChecker.check_output = _check_output  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.suffix == ".md" and isinstance(item, pytest.DoctestItem):
            for example in item.dtest.examples:
                example.options[SAME_SIZE] = True
    for module, files in NEEDS.items():
        if find_spec(module) is None:
            for item in items:
                if item.path.as_posix().endswith(files):
                    item.add_marker(pytest.mark.skip(reason=f"{module} is not installed"))
