"""Of every test process: what collection made is never garbage, so that the collector need not look at it again and again."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Hundreds of thousands of objects live as long as the process: modules, tests, operators of torch."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
