"""Tables of numbers and words from CSV files, and what to do about the cells that are neither numbers nor classes."""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    """The cells of a CSV file as text, by column. `places` are the lines of the file at which the rows begin."""

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
        return f"{self.path}: line {self.places[i]}, column {name!r} is {text!r}"


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
        separator, lines, places = _split(text)
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise FileError(f"{path} is not text in UTF-8 ({problem}): save it as UTF-8") from problem
    except csv.Error as problem:
        raise FileError(f"{path} is not a CSV file: {problem}") from problem
    if len(lines) < 2:
        raise InputError(f"{path} has no rows: give a line of column names, then rows of numbers")
    names = [name.strip() for name in lines[0]]
    for i, name in enumerate(names):
        if name and name in names[:i]:
            raise InputError(
                f"{path}: columns {names.index(name) + 1} and {i + 1} are both named {name!r}: give each its own name"
            )
        if not name or np.isfinite([*map(number, names)]).all():
            raise InputError(f"{path}: column {i + 1} is named {name!r}: the first line names every column")
    for row, place in zip(lines[1:], places[1:], strict=True):
        if len(row) != len(names):
            what = f"{path}: line {place} has {counted(len(row), 'cell')} and not {len(names)}, by {_SEPARATORS[separator]}"
            quotes = 'put text with a comma in quotes, "a, b", and write decimals with a point, 1.5'
            raise InputError(f"{what}: {quotes}" if separator == "," and len(row) > len(names) else what)
    rows = [dict(zip(names, row, strict=True)) for row in lines[1:]]
    return Table(path, rows, places[1:], separator, decimal)


def counted(number: int, word: str) -> str:
    """1 row, 2 rows."""
    return f"{number} {word}{'s' * (number != 1)}"


def _split(text: str) -> tuple[str, list[list[str]], list[int]]:
    """The separator, the cells of every row that is not blank, and the line at which it begins."""
    found: dict[str, list[list[str]]] = {}
    begins: dict[str, list[int]] = {}
    for separator in _SEPARATORS:
        try:
            cells = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
            placed, before = list[tuple[list[str], int]](), 0
            for row in cells:  # a cell in quotes may go over several lines
                if len(row) > 1 or "".join(row).strip():
                    placed.append((row, before + 1))
                before = cells.line_num
            found[separator], begins[separator] = [row for row, _ in placed], [at for _, at in placed]
        except csv.Error:
            if separator == "," and not re.search(r"[;\t]", text):
                raise
    for separator, lines in found.items():
        if lines and len(lines[0]) > 1 and len({*map(len, lines)}) == 1:
            return separator, lines, begins[separator]
    if not found:
        raise csv.Error("a quotation mark is not closed")
    widest = max(found, key=lambda separator: len(found[separator][0]) if found[separator] else 0)
    chosen = "," if "," in found and len((found[","] or [[]])[0]) > 1 else widest
    return chosen, found[chosen], begins[chosen]


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
    if not names:
        raise InputError(f"{table.path} leaves 0 features besides the target {target!r}: keep at least one")
    if len(table.rows) < 2:
        raise InputError(f"{table.path} has {counted(len(table.rows), 'row')} of data: give at least 2")
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
        first = f"{table.rows[0][words[0]].strip()!r} in line {table.places[0]}"
        which = f"column {words[0]!r} holds" if len(words) == 1 else f"columns {listed(words)} hold"
        options = " ".join(f"--drop {name!r}" if " " in name else f"--drop {name}" for name in words[:_NAMED])
        raise InputError(
            f"{table.path}: {which} words ({first}), and features must be numbers: use {options}, or write the words as "
            "numbers, such as 0 and 1"
        )
    for i, j in np.argwhere(~(np.abs(found) <= LARGEST)).tolist():
        raise bad_cell(table, i, names[j])
    return found


def bad_cell(table: Table, i: int, name: str, is_target: bool = False) -> InputError:
    """The error about a cell that is not a number of reasonable size. A target cannot be left out."""
    where, text = table.at(i, name), table.rows[i][name].strip()
    if not math.isnan(table.number(text)):
        return InputError(f"{where}: give a number of at most {LARGEST:g} in size")
    if _DECIMAL_COMMA.fullmatch(text):
        point = text.replace(",", ".")
        return InputError(f"{where}: write decimals with a point, {point}, or use --decimal , for such files")
    if table.decimal == "," and not math.isnan(number(text)):
        return InputError(f"{where}: write 1,5, not 1.5, or leave out --decimal ,")
    other = "delete the row" if is_target else f"leave the column out with --drop {name!r}"
    return InputError(f"{where}, which is not a number: correct it, or {other}")


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
        raise bad_cell(table, (odd or words)[0], target, is_target=True)
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
        count = Counter(cells)
        rarest = min(range(len(cells)), key=lambda i: count[cells[i]])
        raise InputError(
            f"{where} has {len(classes)} different words: {listed(spellings)}; the rarest, {cells[rarest]!r}, is in line "
            f"{table.places[rarest]}. attnc learn takes numbers or two classes; in "
            "Python, attnc.incontext.InContextClassifier takes more classes"
        )


def write_predictions(path: Path | None, table: Table, added: Mapping[str, Sequence[float | str]]) -> None:
    """The rows of the table and the added columns, with the separator and the decimals of the table."""
    if path is None:
        return
    from attnc.records.files import replacing

    check_added(table, added)
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n", delimiter=table.separator)
        writer.writerow([*table.names, *added])
        for row, *values in zip(table.rows, *added.values(), strict=True):
            cells = (v if isinstance(v, str) else repr(v).replace(".", table.decimal) for v in values)
            writer.writerow([*row.values(), *cells])


def check_added(table: Table, added: Iterable[str]) -> None:
    """Raise if the table has a column of a name that is added."""
    for name in added:
        if name in table.names:
            raise InputError(f"{table.path} has a column {name!r}, which --predictions adds: rename it")
