"""Chromium, driven by Playwright: for the tests of the explorer, the check of the site, and the measurement of redraws."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def why_missing() -> str | None:
    """None if pages can be opened, else what is not installed."""
    if find_spec("playwright") is None:
        return "playwright is not installed (extra site)"
    if program() is None:
        return f"no browser is installed: looked for {', '.join(PROGRAMS)}"
    return None


def program() -> str | None:
    """The path of an installed browser."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium without access to a network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program(), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


def _left(request: Any) -> bool:
    """Whether a request ended because the page was left."""
    return "ERR_ABORTED" in str(request.failure)


def listen(page: Any) -> list[str]:
    """A list to which errors and warnings of the console, exceptions and failed requests of the page are added."""
    found: list[str] = []
    page.on(
        "console", lambda m: found.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda problem: found.append(f"exception: {problem}"))
    page.on("requestfailed", lambda r: None if _left(r) else found.append(f"failed: {r.url}"))
    return found
