"""Names for the tokens and the coordinates of a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnc.errors import InputError
from attnc.records.numbers import Array


class Layout(dict[str, slice]):
    """The names of a sequence of tokens: a mapping from registers to the coordinates of a token that hold them.

    A register of width 1 is one coordinate of the same name; a wider register has the coordinates "x[0]", "x[1]", …

    >>> layout = Layout({"data": 1, "x": 3}, ["data 0", "anchor 0"])
    >>> layout["x"], layout.coordinates, layout.tokens
    (slice(1, 4, None), ('data', 'x[0]', 'x[1]', 'x[2]'), ('data 0', 'anchor 0'))
    """

    def __init__(self, registers: Mapping[str, int], tokens: Sequence[str] = ()) -> None:
        super().__init__()
        self.width, self.tokens = 0, tuple(tokens)
        for name, size in registers.items():
            self.add(name, size)

    def add(self, name: str, size: int) -> None:
        """Append a register of `size` coordinates."""
        if name in self:
            raise InputError(f"register {name!r} exists already")
        self[name] = slice(self.width, self.width + size)
        self.width += size

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The name of every coordinate."""
        sizes = {name: at.stop - at.start for name, at in self.items()}
        return tuple(
            name if size == 1 else f"{name}[{i}]" for name, size in sizes.items() for i in range(size)
        )

    def form(self, name: str, offset: int = 0) -> Array:
        """(D,): the linear form that reads one coordinate of a register."""
        form = np.zeros(self.width)
        form[self[name].start + offset] = 1.0
        return form

    def marks(self, *names: str) -> Array:
        """(D,): the sum of the forms of registers of width 1."""
        found = np.zeros(self.width)
        found[[self[name].start for name in names]] = 1.0
        return found

    def block(self, name: str) -> Array:
        """(D, width): the linear forms that read all coordinates of a register."""
        at = np.arange(self[name].start, self[name].stop)
        found = np.zeros((self.width, len(at)))
        found[at, np.arange(len(at))] = 1.0
        return found

    def to_json(self) -> dict[str, object]:
        widths = [[name, at.stop - at.start] for name, at in self.items()]
        return {"registers": widths, "tokens": list(self.tokens)}

    def __missing__(self, name: str) -> slice:
        raise InputError(f"no register {name!r}: this sequence has {', '.join(map(repr, self))}")

    def __repr__(self) -> str:
        return ", ".join(f"{name} {at.start}:{at.stop}" for name, at in self.items())


def data_tokens(n: int) -> list[str]:
    return [f"data {i}" for i in range(n)]
