"""Tables of numbers and words from CSV files, and what to do about the cells that are neither numbers nor classes."""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.domain import Array

LARGEST = 1e100  # the squares of larger numbers overflow
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "+nan", "null", "?"})
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_NAMED = 6  # words of a column, or columns, that a message lists


@dataclass(frozen=True)
class Table:
    """The cells of a CSV file as text, by column. `places` are the places of the rows in the file, the first row being 1."""

    path: Path
    rows: list[dict[str, str]]
    places: list[int]
    separator: str = ","
    decimal: str = "."

    @property
    def names(self) -> list[str]:
        return list(self.rows[0])

    def column(self, name: str) -> list[str]:
        """The cells of a column without the spaces around them, numbers with a decimal point."""
        return [self._plain(row[name].strip()) for row in self.rows]

    def number(self, text: str) -> float:
        """The number that a cell holds, or NaN."""
        pointed = self.decimal == "," and "." in text
        return math.nan if pointed else number(self._plain(text.strip()))

    def _plain(self, text: str) -> str:
        decimal = self.decimal == "," and _DECIMAL_COMMA.fullmatch(text)
        return text.replace(",", ".") if decimal else text

    def more_than(self, other: Table) -> int:
        """How many rows it has that the other has not."""
        return len(self.rows) - len(other.rows)

    def at(self, i: int, name: str) -> str:
        """Where a cell is and what it holds."""
        text = self.rows[i][name].strip()
        return f"{self.path}: row {self.places[i]}, column {name!r} is {text!r}"


def number(text: str) -> float:
    """NaN if the text is not a number; only Python reads 1_0 as 10.

    >>> number(" 2.5 "), number("1_0"), number("1,5")
    (2.5, nan, nan)
    """
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def listed(items: Sequence[str]) -> str:
    """The first of them in quotes, and how many there are."""
    more = f", … ({len(items)})" if len(items) > _NAMED else ""
    return ", ".join(map(repr, items[:_NAMED])) + more


def read_table(path: Path, decimal: str = ".") -> Table:
    """The rows of a CSV file in UTF-8 whose first line names the columns. Blank lines are skipped. Commas, semicolons or tabs
    separate the cells: the first of these that splits every line into the same number of cells, two or more."""
    if decimal not in (".", ","):
        raise InputError(f"decimal={decimal!r}: give . or ,")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            text = file.read()
        separator, lines = _split(text)
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (csv.Error, UnicodeDecodeError) as problem:
        raise FileError(f"{path} is not a CSV file in UTF-8: {problem}") from problem
    if len(lines) < 2:
        raise InputError(f"{path} has no rows: give a line of column names, then rows of numbers")
    names = [name.strip() for name in lines[0]]
    for i, name in enumerate(names):
        if not name or name in names[:i] or np.isfinite([*map(number, names)]).all():
            raise InputError(f"{path}: column {i + 1} is named {name!r}: the first line names every column")
    for i, row in enumerate(lines[1:], 1):
        if len(row) != len(names):
            what = f"{path}: row {i} has {len(row)} cells, not {len(names)}, separated by {_SEPARATORS[separator]}"
            quotes = 'put text with a comma in quotes, "a, b", and write decimals with a point, 1.5'
            raise InputError(f"{what}: {quotes}" if separator == "," and len(row) > len(names) else what)
    rows = [dict(zip(names, row, strict=True)) for row in lines[1:]]
    return Table(path, rows, list(range(1, len(rows) + 1)), separator, decimal)


def _split(text: str) -> tuple[str, list[list[str]]]:
    """The separator, and the cells of every line that is not blank."""
    found: dict[str, list[list[str]]] = {}
    for separator in _SEPARATORS:
        try:
            cells = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
            found[separator] = [row for row in cells if len(row) > 1 or "".join(row).strip()]
        except csv.Error:
            if separator == "," and not re.search(r"[;\t]", text):
                raise
    for separator, lines in found.items():
        if lines and len(lines[0]) > 1 and len({*map(len, lines)}) == 1:
            return separator, lines
    if not found:
        raise csv.Error("a quotation mark is not closed")
    widest = max(found, key=lambda separator: len(found[separator][0]) if found[separator] else 0)
    chosen = "," if "," in found and len((found[","] or [[]])[0]) > 1 else widest
    return chosen, found[chosen]


def check_column(table: Table, name: str, what: str = "column") -> None:
    """Raise unless the table has the column; name the one that was probably meant."""
    if name in table.names:
        return
    plain = {known.casefold(): known for known in table.names}
    near = difflib.get_close_matches(name.strip().casefold(), plain, 1)
    meant = f" (did you mean {plain[near[0]]!r}?)" if near else ""
    raise InputError(f"{table.path} has no {what} {name!r}{meant}: its columns are {listed(table.names)}")


def feature_names(table: Table, target: str, given: Sequence[str] | None) -> list[str]:
    """The columns to learn from: all but the target and those that were dropped."""
    check_column(table, target)
    dropped = given or ()
    for name in dropped:
        check_column(table, name)
    if target in dropped:
        raise InputError(f"{target!r} is the target: it cannot be dropped")
    names = [name for name in table.names if name != target and name not in dropped]
    if not names or len(table.rows) < 2:
        raise InputError(
            f"{table.path} has {len(table.rows)} rows and {len(names)} features besides the target {target!r}: give 2 and 1 "
            "at least"
        )
    return names


def without_missing(table: Table, names: Sequence[str], drop: bool, least: int = 1) -> Table:
    """The table without the rows in which one of these columns has no value; unless `drop`, such a row is an error."""
    for name in names:
        check_column(table, name)
    bad = [
        next((name for name in names if row[name].strip().casefold() in _MISSING), None) for row in table.rows
    ]
    kept = [i for i, name in enumerate(bad) if name is None]
    if len(kept) == len(bad):
        return table
    if not drop:
        i = next(i for i, name in enumerate(bad) if name is not None)
        count = len(bad) - len(kept)
        others = f" ({count} of {len(bad)} rows have one)" if count > 1 else ""
        raise InputError(
            f"{table.at(i, str(bad[i]))}: the value is missing{others}. Fill it, delete the row, or use --missing drop, which "
            "leaves such rows out"
        )
    if len(kept) < least:
        raise InputError(
            f"{table.path}: {len(kept)} of {len(bad)} rows have no missing value, and --missing drop must leave {least} at "
            "least: fill the others"
        )
    return replace(table, rows=[table.rows[i] for i in kept], places=[table.places[i] for i in kept])


def numbers(table: Table, names: Sequence[str]) -> Array:
    """The named columns as float64, (rows, names). A cell that is not a number, or too large, is refused."""
    for name in names:
        check_column(table, name)
    found = np.array([[table.number(row[name]) for name in names] for row in table.rows])
    words = [
        name
        for name, column in zip(names, found.T, strict=True)
        if np.isnan(column).all() and not any(map(_DECIMAL_COMMA.fullmatch, table.column(name)))
    ]
    if words:
        first = f"{table.rows[0][words[0]].strip()!r} in row {table.places[0]}"
        which = f"column {words[0]!r} holds" if len(words) == 1 else f"columns {listed(words)} hold"
        options = " ".join(f"--drop {name!r}" if " " in name else f"--drop {name}" for name in words[:_NAMED])
        raise InputError(
            f"{table.path}: {which} words ({first}), and features must be numbers: use {options}, or write the words as "
            "numbers, such as 0 and 1"
        )
    for i, j in np.argwhere(~(np.abs(found) <= LARGEST)).tolist():
        raise bad_cell(table, i, names[j])
    return found


def bad_cell(table: Table, i: int, name: str) -> InputError:
    """The error about a cell that is not a number of reasonable size."""
    where, text = table.at(i, name), table.rows[i][name].strip()
    if not math.isnan(table.number(text)):
        return InputError(f"{where}: give a number of at most {LARGEST:g} in size")
    if _DECIMAL_COMMA.fullmatch(text):
        point = text.replace(",", ".")
        return InputError(f"{where}: write decimals with a point, {point}, or use --decimal , for such files")
    if table.decimal == "," and not math.isnan(number(text)):
        return InputError(f"{where}: write 1,5, not 1.5, or leave out --decimal ,")
    return InputError(
        f"{where}, which is not a number: correct it, or leave the column out with --drop {name!r}"
    )


def two_classes(cells: Sequence[str]) -> tuple[str, str] | None:
    """The two values of a target that has two: words, or whole numbers. The second one counts as 1.

    >>> two_classes(["yes", "no", "yes"]), two_classes(["2", "1", "1.0"])
    (('no', 'yes'), ('1', '2'))
    >>> two_classes(["2", "1.5"]) is None
    True
    """
    values = {class_of(cell) for cell in cells}
    found = [number(value) for value in values]
    words = all(map(math.isnan, found))
    if len(values) != 2 or not (words or all(size.is_integer() and abs(size) < 100 for size in found)):
        return None
    zero, one = sorted(
        values, key=lambda cell: (cell == "+", cell.casefold()) if words else (False, number(cell))
    )
    return zero, one


def class_of(text: str) -> str:
    """A cell without spaces; equal numbers are equal."""
    value = number(text)
    return text.strip() if math.isnan(value) else f"{value:.17g}"


def check_classes(table: Table, target: str) -> None:
    """Raise if the target is of words that are not two classes, or of words and numbers."""
    cells = table.column(target)
    words = [i for i, row in enumerate(table.rows) if math.isnan(table.number(row[target]))]
    if not words:
        return
    odd = [i for i in words if _DECIMAL_COMMA.fullmatch(cells[i])]
    if odd or len(words) < len(cells):
        raise bad_cell(table, (odd or words)[0], target)
    where, spellings = f"{table.path}: the target {target!r}", sorted({*cells})
    classes: dict[str, list[str]] = {}
    for word in spellings:
        classes.setdefault(" ".join(word.casefold().split()), []).append(word)
    several = next((same for same in classes.values() if len(same) > 1), None)
    if several is not None:
        raise InputError(f"{where} has the spellings {listed(several)}: write each class in one way")
    if len(classes) == 1:
        raise InputError(f"{where} is {spellings[0]!r} in every row: give examples of two classes")
    if len(classes) > 2:
        raise InputError(
            f"{where} has {len(classes)} different words: {listed(spellings)}. attnc learn takes numbers or two classes; in "
            "Python, attnc.incontext.InContextClassifier takes more classes"
        )
