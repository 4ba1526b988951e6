"""Optional dependencies."""

from __future__ import annotations

import importlib
from typing import Any

from attnc.errors import MissingExtraError


def optional(module: str, extra: str, who: str) -> Any:
    """Import a module of an extra. If it is not installed, raise `MissingExtraError`, which says what to install; `who` (a
    plural) is what needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        advice = f"{who} need {module} ({problem}): pip install 'attnc[{extra}]'"
        raise MissingExtraError(advice) from problem
