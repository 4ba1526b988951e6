"""Run the examples of pages and write their outputs anew: python benchmarks/refresh.py README.md docs/ten_minutes.md

A "..." stays where it stands for words, whole numbers or times; errors and bounds are written out, since the tests of pages
allow them to differ between processors (conftest.py). Look at the difference before you commit it."""

from __future__ import annotations

import doctest
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from pages import one_thread

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
DIGITS = re.compile(r"\d*\.?\d*(e[+-]\d+)?")


def with_digits(want: str, got: str) -> str:
    """The lines of `want` whose "..." stand for digits of errors alone, as in `got`; the others as they are.

    >>> with_digits("bound: <= ... (... cells)\\nerror: 2...e-05\\n", "bound: <= 1.5e-3 (31 cells)\\nerror: 2.25e-05\\n")
    'bound: <= ... (... cells)\\nerror: 2.25e-05\\n'
    """
    wanted, found = want.splitlines(keepends=True), got.splitlines(keepends=True)
    if len(wanted) != len(found):
        return want
    return "".join(map(_line_with_digits, wanted, found))


def _line_with_digits(want: str, got: str) -> str:
    parts = [r"\s+".join(map(re.escape, part.split())) for part in want.split("...")]
    pattern = r"\s*(.*?)\s*".join(parts)
    match = re.fullmatch(r"\s*" + pattern + r"\s*", got)
    if (
        "..." not in want
        or match is None
        or not all(DIGITS.fullmatch(g) and "." in g + want for g in match.groups())
    ):
        return want
    whole = any(
        re.fullmatch(r"\d+", g) and not re.search(r"\d\.\.\.|\.\.\.e|\.\.\.\d", want) for g in match.groups()
    )
    return want if whole else got


def refreshed(page: str, name: str) -> str:
    """The page with the outputs of its examples."""
    found: dict[int, str] = {}

    class Runner(doctest.DocTestRunner):
        def report_success(self, out: Any, test: Any, example: Any, got: str) -> None:
            if example.exc_msg is None and (better := with_digits(example.want, got)) != example.want:
                found[id(example)] = better.replace("\n\n", "\n<BLANKLINE>\n")

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
