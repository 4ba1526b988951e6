"""Functions whose intermediate values are very large or very small, where squares and powers of them are not floats any more:
models, cells and Lipschitz constants against 256-bit balls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import arb

from attnc.check.cell_operations import Cells
from attnc.check.gradients import DualCells, check_lipschitz
from attnc.check.lattice import chebyshev
from attnc.check.values import CheckError
from attnc.functions.balls import working
from attnc.program.traced import Operation, Traced
from attnc.prove.gradient import lipschitz_bound
from attnc.prove.taylor import monomials
from attnc.prove.taylor_functions import models

CENTRE, HALF = np.array([[0.0], [0.5], [-0.3]]), np.array([[1.0], [0.5], [0.4]])
# what is applied to A(1 + Bx), the exponent of A that undoes it, and scales of A at which something under- or overflows
FORMS: dict[str, tuple[tuple[Operation, ...], float, tuple[float, ...]]] = {
    "log": ((("log", 4),), 0.0, (1e27, 3e28, 1e30, 1e60)),
    "sqrt": ((("sqrt", 4),), -0.5, (1e-117, 2e-88, 1e-64, 1.2e-36, 1e-30)),
    "reciprocal": ((("constant", 1.0), ("divide", 5, 4)), 1.0, (1e-100, 1e23, 1e86, 1e120, 1e160)),
    "real power": ((("power", 4, 1.5),), -1.5, (1e-106, 1e-31, 1e60)),
    "negative power": ((("power", 4, -2),), 2.0, (1e-60, 2e45, 1e90)),
    "kink": ((("absolute", 4), ("absolute", 0), ("multiply", 5, 6), ("divide", 7, 4)), 0.0, (1e160, 1e-160)),
    "kink below": ((("absolute", 0), ("multiply", 5, 3), ("add", 4, 6), ("constant", 1.0), ("divide", 8, 7)), 1.0, (1e94, 1e160)),
}  # fmt: skip
CASES = [
    (name, scale, share) for name, form in FORMS.items() for scale in form[2] for share in (1e-4, 0.3, 0.5)
]


def _function(name: str, scale: float, share: float) -> Traced:
    inner: tuple[Operation, ...] = (
        ("constant", scale * share),
        ("multiply", 0, 1),
        ("constant", scale),
        ("add", 2, 3),
    )
    operations, undone, _ = FORMS[name]
    last = 4 + len(operations)
    outer: tuple[Operation, ...] = (("constant", scale**undone), ("multiply", last, last + 1))
    return Traced(0, 1, (*inner, *operations, *outer), (last + 2,))


@pytest.mark.parametrize(("name", "scale", "share"), CASES)
def test_nothing_is_lost_by_underflow_or_overflow(name: str, scale: float, share: float) -> None:
    f = _function(name, scale, share)
    made = [models(f, monomials(1, n), CENTRE, HALF)[0] for n in (2, 3, 4, 8, 10, 12)]
    cells = DualCells(Cells(CENTRE - HALF, CENTRE + HALF, chebyshev(4)[0]))
    with np.errstate(all="ignore"):
        output = cells.outputs(f)[0]
    low, high, length = (np.broadcast_to(x, 3) for x in (output.value.low, output.value.high, output.length))
    with working(256):
        for i in range(3):
            before = None
            for t in (-1.0, 1.0, 0.0, 0.33, -0.77):
                x = arb(CENTRE[i, 0]) + arb(HALF[i, 0]) * arb(t)
                y = f.exact(np.array([[x]], dtype=object))[0, 0]
                for model in made:
                    if math.isfinite(model.r[i]):
                        p = sum((arb(c) * arb(t) ** k for k, c in enumerate(model.c[:, i].tolist())), arb(0))
                        assert abs(y - p) <= arb(model.r[i])
                if cells.cells.defined[i] and math.isfinite(low[i]) and math.isfinite(high[i]):
                    assert arb(low[i]) <= y <= arb(high[i])
                    if before is not None and math.isfinite(length[i]):
                        assert abs(y - before[1]) <= arb(length[i]) * abs(x - before[0])
                before = x, y


@pytest.mark.parametrize("scale", [1e-180, 1e-160, 1e-100, 1e100, 1e180])
def test_a_slope_is_not_lost(scale: float) -> None:
    f = Traced(
        0, 1, (("constant", scale), ("multiply", 0, 1), ("constant", 1 / scale), ("multiply", 2, 3)), (4,)
    )
    low, high = -np.ones(1), np.ones(1)
    found = lipschitz_bound(f, low, high)
    assert found.attained <= found.constant and 1 - 1e-9 <= found.constant <= 1 + 1e-9
    with pytest.raises(CheckError):
        check_lipschitz(f, low, high, 0.99, most=200)


def test_a_kink_over_a_large_number_is_not_lost() -> None:
    f = Traced(0, 1, (("constant", 1e200), ("absolute", 0), ("divide", 2, 1), ("multiply", 3, 1)), (4,))
    with np.errstate(all="ignore"):
        (output,) = Cells(-np.ones((1, 1)), np.ones((1, 1))).outputs(f)
    assert output.rest[0] >= 0.5
