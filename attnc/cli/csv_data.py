"""Numbers from a CSV file with a header, on a common scale, and predictions written back beside their rows."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnc.domain import Array
from attnc.errors import FileError, InputError
from attnc.incontext import Loss

PREDICTION = "prediction"  # the column that is added
_MISSING = ("", "na", "n/a", "nan", "null", "none", "?", ".", "-")


@dataclass(frozen=True)
class Table:
    """The cells of a file as they stand there, a row for every line with anything in it."""

    path: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]  # at which a row ends, counted from 1

    def numbers(self, names: Sequence[str]) -> Array:
        """(rows, names): the named columns as float64. What is no finite number is refused, with its row and column."""
        at = [self.column(name) for name in names]
        found = np.empty((len(self.rows), len(at)))
        for i, row in enumerate(self.rows):
            for j, column in enumerate(at):
                found[i, j] = self._number(row[column], i, names[j])
        return found

    def column(self, name: str) -> int:
        """Where a column stands."""
        if name not in self.names:
            raise InputError(
                f"{self.path} has no column {name!r}: its header has {', '.join(map(repr, self.names))}"
            )
        return self.names.index(name)

    def _number(self, text: str, i: int, name: str) -> float:
        word = text.strip()
        where = f"{self.path}: row {i + 1} (line {self.lines[i]}), column {name!r}"
        if word.lower() in _MISSING:
            given = f"has no value ({word!r})" if word else "has no value"
            raise InputError(f"{where} {given}: fill it in, or leave out the row or the column")
        try:
            number = float(word.replace("_", "?"))
        except ValueError:
            raise InputError(
                f"{where} holds {word!r}, which is no number: numbers are accepted, with a point (1.5); encode text as numbers, "
                "or leave out the column"
            ) from None
        if not math.isfinite(number):
            raise InputError(f"{where} holds {word}: finite numbers are accepted")
        return number


def read_table(path: Path) -> Table:
    """The cells of a CSV file whose first line names the columns; commas between them, UTF-8, blank lines left out.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "data.csv"
    >>> _ = file.write_text("a,y\\n1,2\\n3,4\\n")
    >>> read_table(file).numbers(["y", "a"])
    array([[2., 1.],
           [4., 3.]])
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            read = [(tuple(row), reader.line_num) for row in reader]
    except OSError as problem:
        raise FileError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (csv.Error, UnicodeDecodeError) as problem:
        raise FileError(f"{path} is not a CSV file in UTF-8: {problem}") from problem
    read = [(row, line) for row, line in read if any(cell.strip() for cell in row) or len(row) > 1]
    if not read:
        raise InputError(
            f"{path} is empty: a line with the names of the columns is expected, then rows of numbers"
        )
    names = _names(path, read[0][0])
    for i, (row, line) in enumerate(read[1:], 1):
        if len(row) != len(names):
            raise InputError(
                f"{path}: row {i} (line {line}) has {len(row)} cells, where the header has {len(names)} columns"
            )
    if not read[1:]:
        raise InputError(f"{path} has a header and no row: rows of numbers are expected below it")
    return Table(str(path), names, tuple(row for row, _ in read[1:]), tuple(line for _, line in read[1:]))


def _names(path: Path, header: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in header)
    if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
        raise InputError(f"{path}: the header {names[0]!r} has no comma: columns are separated by commas")
    for i, name in enumerate(names):
        if not name:
            raise InputError(f"{path}: column {i + 1} has no name: the first line names every column")
        if name in names[:i]:
            raise InputError(f"{path}: two columns are called {name!r}: give every column a name of its own")
    if all(_is_number(name) for name in names):
        raise InputError(
            f"{path}: the first line holds numbers: a line with the names of the columns is expected"
        )
    return names


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Scale:
    """z = (x - centre)/size, column by column; a column that is constant becomes 0."""

    centre: Array  # (d,)
    size: Array  # (d,), positive
    constant: tuple[int, ...] = ()

    def to(self, x: Array) -> Array:
        """From the file's units to the learner's."""
        scaled: Array = (x - self.centre) / self.size
        scaled[..., list(self.constant)] = 0
        return scaled

    def back(self, z: Array) -> Array:
        """From the learner's units to the file's."""
        return z * self.size + self.centre


def unscaled(d: int) -> Scale:
    """The numbers as they are.

    >>> unscaled(2).to(np.array([3.0, 4.0]))
    array([3., 4.])
    """
    return Scale(np.zeros(d), np.ones(d))


def standard(x: Array, centred: bool, names: Sequence[str], path: str) -> Scale:
    """Mean 0 and standard deviation 1; where not `centred`, the mean stays and the mean square becomes 1.

    >>> standard(np.array([[1.0, 5.0], [3.0, 5.0]]), True, ["a", "b"], "data.csv").to(np.array([[2.0, 5.0], [4.0, 9.0]]))
    array([[0., 0.],
           [2., 0.]])
    """
    # By the largest number first: its square is then finite, and not 0 where the number is small.
    largest = np.abs(x).max(0)
    unit = np.where(largest > 0, largest, 1.0)
    centre = (x / unit).mean(0) if centred else np.zeros(x.shape[1])
    size = np.sqrt(((x / unit - centre) ** 2).mean(0)) * unit
    flat = (x == x[0]).all(0) if centred else largest == 0
    size, centre = np.where(flat, 1.0, size), np.where(flat, x[0] if centred else 0.0, centre * unit)
    bad = ~((size > 0) & (largest / np.where(size > 0, size, 1.0) < 1e12))
    if bad.any():
        j = int(np.argmax(bad))
        raise InputError(
            f"{path}: column {names[j]!r} varies by {size[j]:.3g} about {centre[j]:.6g}, which is below what float64 "
            "can tell apart: subtract the part that is constant, or leave out the column"
        )
    return Scale(centre, size, tuple(int(j) for j in np.flatnonzero(flat)))


@dataclass(frozen=True)
class Context:
    """The examples and the queries in the learner's units."""

    table: Table
    asked: Table | None
    names: tuple[str, ...]
    target: str
    x: Array  # (n, d)
    y: Array  # (n,)
    query: Array  # (m, d); m = 0 where nothing is asked
    x_scale: Scale
    y_scale: Scale
    intercept: bool
    notes: tuple[str, ...]

    @property
    def rows(self) -> Table:
        """What is predicted: the queries, or else the examples."""
        return self.table if self.asked is None else self.asked

    def wide(self, x: Array) -> Array:
        """x with the column of the intercept."""
        return np.hstack([x, np.ones((len(x), 1))]) if self.intercept else x

    def original(self, w: Array) -> tuple[Array, float | None]:
        """Coefficients and intercept in the units of the file: w_j s_y/s_j, and m_y + s_y(b - Σ w_j m_j/s_j)."""
        d = len(self.names)
        size, shift = float(self.y_scale.size[0]), float(self.y_scale.centre[0])
        slopes = w[:d] / self.x_scale.size
        slopes[list(self.x_scale.constant)] = 0
        if not self.intercept:
            return size * slopes, None
        return size * slopes, shift + size * (float(w[d]) - float(slopes @ self.x_scale.centre))


def read_context(
    data: Path, target: str, query: Path | None, loss: Loss, intercept: bool, standardise: bool
) -> Context:
    """Both files, checked; standardised where asked, the target only where the loss is not of labels or counts."""
    table = read_table(data)
    table.column(target)
    names = tuple(name for name in table.names if name != target)
    if not names:
        raise InputError(f"{data} has no column but the target {target!r}: at least one feature is needed")
    if len(table.rows) < 2:
        raise InputError(f"{data} has one row: at least two examples are needed to learn from")
    raw, labels = table.numbers(names), table.numbers([target])
    loss.check_labels(labels[:, 0])
    asked = None if query is None else read_table(query)
    new = np.empty((0, len(names))) if asked is None else asked.numbers(names)
    of_numbers = standardise and loss.name not in ("logistic", "poisson")
    x_scale = standard(raw, intercept, names, table.path) if standardise else unscaled(len(names))
    y_scale = standard(labels, intercept, [target], table.path) if of_numbers else unscaled(1)
    x, y = x_scale.to(raw), y_scale.to(labels)[:, 0]
    if not intercept and not x.any():
        raise InputError(f"every feature of {data} is 0 in every row: nothing can be learnt from them")
    notes = [loss.note] if loss.note else []
    if standardise:
        what = "features and target" if of_numbers else "features"
        how = "mean 0, standard deviation 1" if intercept else "mean square 1, not centred: no intercept"
        notes.append(f"{what} standardised ({how}); --no-standardise leaves them as they are")
    if x_scale.constant:
        constant = ", ".join(repr(names[j]) for j in x_scale.constant)
        notes.append(f"constant, so set to 0 and nothing is learnt of it: {constant}")
    if y_scale.constant:
        notes.append(f"the target {target!r} is constant")
    if asked is not None:
        notes += [f"not used of {query}: column {name!r}" for name in asked.names if name not in names]
    scales = (x_scale, y_scale)
    return Context(table, asked, names, target, x, y, x_scale.to(new), *scales, intercept, tuple(notes))


def check_no_prediction(table: Table) -> None:
    """The column that is added must not be there."""
    if PREDICTION in table.names:
        raise InputError(
            f"{table.path} has a column {PREDICTION!r}, which -o adds: give that column another name"
        )


def write_predictions(path: Path, table: Table, predictions: Array) -> None:
    """The rows of the table with one column more, to a temporary name and then renamed: a failure leaves what was there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*table.names, PREDICTION])
            for row, prediction in zip(table.rows, predictions.tolist(), strict=True):
                writer.writerow([*row, repr(prediction)])
        temporary.replace(path)
    except OSError as problem:
        raise FileError(f"cannot write {path}: {problem.strerror or problem}") from problem
    finally:
        temporary.unlink(missing_ok=True)
