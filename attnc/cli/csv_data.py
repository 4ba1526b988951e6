"""CSV files of numbers: reading them, and writing predictions."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.domain import Array

PREDICTION = "prediction"  # the column that -o adds
_LARGEST = 1e100  # the squares of larger numbers overflow


@dataclass(frozen=True)
class Table:
    """The cells of a CSV file as text."""

    path: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]  # the line of the file where each row ends, from 1

    def numbers(self, names: Sequence[str]) -> Array:
        """The named columns as float64, (rows, names). A cell that is not a number is refused."""
        missing = [name for name in names if name not in self.names]
        if missing:
            known = ", ".join(map(repr, self.names))
            raise InputError(f"{self.path} has no column {missing[0]!r}: its columns are {known}")
        columns = [self.names.index(name) for name in names]
        return np.array([[self._number(i, j) for j in columns] for i in range(len(self.rows))])

    def _number(self, i: int, j: int) -> float:
        text = self.rows[i][j].strip()
        if not _is_number(text) or abs(float(text)) > _LARGEST:
            raise InputError(
                f"{self.path}: row {i + 1} (line {self.lines[i]}), column {self.names[j]!r} is {text!r}: give a number such as "
                f"1.5, at most {_LARGEST:g} in size, or leave out the row or the column"
            )
        return float(text)


def _is_number(text: str) -> bool:
    try:
        return "_" not in text and math.isfinite(float(text))  # only Python reads 1_0 as 10
    except ValueError:
        return False


def read_table(path: Path) -> Table:
    """Read a CSV file in UTF-8, separated by commas, whose first line names the columns. Blank lines are skipped."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            lines = [(tuple(row), reader.line_num) for row in reader if len(row) > 1 or "".join(row).strip()]
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (csv.Error, UnicodeDecodeError) as problem:
        raise FileError(f"{path} is not a CSV file in UTF-8: {problem}") from problem
    if len(lines) < 2:
        raise InputError(f"{path} has no rows: give a line of column names, then rows of numbers")
    names = tuple(name.strip() for name in lines[0][0])
    for i, name in enumerate(names):
        if not name or name in names[:i] or all(map(_is_number, names)):
            raise InputError(f"{path}: column {i + 1} is named {name!r}: the first line names every column")
    for i, (row, line) in enumerate(lines[1:], 1):
        if len(row) != len(names):
            raise InputError(f"{path}: row {i} (line {line}) has {len(row)} cells, not {len(names)}")
    rows, ends = zip(*lines[1:], strict=True)
    return Table(str(path), names, rows, ends)


def check_spread(x: Array, names: Sequence[str], path: str) -> None:
    """Refuse a column that varies, but too little for float64 to standardise it."""
    fine = (x == x[0]).all(0) | (x.std(0) > 1e-12 * np.abs(x).max(0))
    if not fine.all():
        j = int(np.argmin(fine))
        raise InputError(
            f"{path}: column {names[j]!r} varies by {np.ptp(x[:, j]):.3g} around {x[0, j]:.6g}, too little for float64: "
            "subtract the constant part, or leave out the column"
        )


def write_predictions(path: Path, table: Table, predictions: Sequence[float]) -> None:
    """Write the rows with their predictions under a temporary name, then rename: a failure leaves an old file intact."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*table.names, PREDICTION])
            writer.writerows([*row, repr(value)] for row, value in zip(table.rows, predictions, strict=True))
        temporary.replace(path)
    except OSError as problem:
        raise FileError(f"cannot write {path}: {problem.strerror or problem}") from problem
    finally:
        temporary.unlink(missing_ok=True)
