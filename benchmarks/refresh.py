"""Run the examples of pages and write their outputs anew: python benchmarks/refresh.py README.md docs/ten_minutes.md

Outputs with "..." stay as they are if they match. Look at the difference before you commit it."""

from __future__ import annotations

import doctest
import sys
import traceback
from pathlib import Path
from typing import Any

from pages import one_thread

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def refreshed(page: str, name: str) -> str:
    """The page with the outputs of its examples."""
    found: dict[int, str] = {}

    class Runner(doctest.DocTestRunner):
        def report_failure(self, out: Any, test: Any, example: Any, got: str) -> None:
            found[id(example)] = got

        def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
            found[id(example)] = (
                "Traceback (most recent call last):\n" + traceback.format_exception_only(*exc_info[:2])[-1]
            )

    parser = doctest.DocTestParser()
    parts = parser.parse(page, name)
    examples = [part for part in parts if isinstance(part, doctest.Example)]
    test = doctest.DocTest(examples, {"__name__": "__main__"}, name, name, 0, page)
    Runner(verbose=False, optionflags=FLAGS).run(test, out=lambda text: None)
    lines = page.splitlines(keepends=True)
    for example in reversed(examples):
        if (got := found.get(id(example))) is not None:
            start = example.lineno + example.source.count("\n")
            got = got.replace("\n\n", "\n<BLANKLINE>\n")
            lines[start : start + example.want.count("\n")] = got.splitlines(keepends=True)
            print(f"{name}:{start + 1}: {len(got.splitlines())} lines written")
    return "".join(lines)


def main() -> None:
    one_thread()
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(refreshed(path.read_text(encoding="utf-8"), name), encoding="utf-8")


if __name__ == "__main__":
    main()
