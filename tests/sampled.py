"""Long lists of cases: some in `make test`, all in `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """The cases 0, step, 2·step, … as they are, and those between as slow."""
    return [case if i % step == 0 else _slow(case) for i, case in enumerate(cases)]


def only(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases in `kept` as they are, and the others as slow."""
    cases = list(cases)
    assert kept and all(case in cases for case in kept)
    return [case if case in kept else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
