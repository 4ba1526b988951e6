"""The examples do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_digits_are_decided_alike() -> None:
    pytest.importorskip("sklearn")
    example = runpy.run_path(str(EXAMPLES / "digits.py"))
    results = list(example["run"]())
    assert len(results) == 4
    for result in results:
        found = result.agreement
        assert found.accuracy > 0.96, result
        assert found.bound == result.net.certificate.bound <= example["EPS"][result.dtype]
        assert found.ratio < 1 / 10
        assert found.decided_alike == found.decided > 0.9 * found.images
        assert found.different <= found.images - found.decided
        for word in ("size", "accuracy", "bound", "margin", "agreement"):
            assert f"  {word} " in str(result)
