"""Examples in pages and docstrings that need an extra which `dev` does not contain are skipped where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NEEDS = {
    "transformer_lens": (
        "docs/transformer_lens.md",
        "attnc/exporters/transformer_lens.py",
        "attnc/exporters/token_lens.py",
    )
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module, files in NEEDS.items():
        if find_spec(module) is None:
            for item in items:
                if item.path.as_posix().endswith(files):
                    item.add_marker(pytest.mark.skip(reason=f"{module} is not installed"))
