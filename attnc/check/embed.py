"""A row of a table: any of its rows, off by what storing it lost."""

from __future__ import annotations

import numpy as np

from attnc.check.upward import Long, long, up
from attnc.check.values import CheckError, Passing, Value, value
from attnc.program import Embed


def bound(at: Passing) -> Value:
    (ids,), step = at.inputs, at.step
    assert isinstance(step, Embed)
    if not ((ids.lo >= 0) & (ids.hi < len(step.table)) & (ids.error == 0)).all():
        raise CheckError("an id may exceed the table")
    off = np.abs(long(at.layer.tensors["table"]) - long(step.table)).max(0)

    def rows(row: Long) -> Long:
        return long(np.tile(row, (ids.lo.size, 1)))

    lo, hi, none = (rows(long(r)) for r in (step.table.min(0), step.table.max(0), 0 * off))
    return value(lo, hi, np.where(rows(off) > 0, up(rows(off)), none), none)
