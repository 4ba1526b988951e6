"""Each term of the rounding bound where it is sharp: executed errors use a good part of it, in prover and checker alike.

Were a term dropped, the executed error would exceed what is left: these are the tests that notice.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb

import attnc
from attnc import functions
from attnc.arithmetic import ARITHMETIC, FLOAT32
from attnc.check.cell import ORDER, all_active, cell_error, in_range
from attnc.domain import Interval
from attnc.functions.balls import working
from attnc.prove.cells import Cell, leaves_the_range
from attnc.prove.rounding import score_error
from attnc.prove.supnorm import bound_cell
from attnc.records.numbers import HeadNumbers

from .test_bounds import exact


def head_of(keys, values, dtype: str, gain: float = 1.0, offset: float = 0.0) -> HeadNumbers:
    arrays = [[[gain, offset]], [keys], [[(0.0, v) for v in values]], [1.0]]
    return HeadNumbers(*(np.array(a, dtype=float).astype(dtype).astype(np.float64) for a in arrays), dtype)


def unfused(numbers: HeadNumbers, s: torch.Tensor) -> torch.Tensor:
    """The head as a machine without fused products executes it: each of its roundings is one of those that are counted."""
    query, key, value, output = (torch.from_numpy(a).to(s.dtype) for a in numbers.tensors().values())
    x = query[:, :1] * s + query[:, 1:]
    weights = torch.softmax(key[..., :1] * x.unsqueeze(1) + key[..., 1:], 1)
    return ((weights * (value[..., :1] * s + value[..., 1:])).sum(1) * output[:, None]).sum(0)


def ratios(numbers: HeadNumbers, s: torch.Tensor) -> tuple[float, float]:
    """The largest executed error over the prover's rounding term, and over the checker's."""
    a, branch = ARITHMETIC[numbers.dtype], functions.identity().pieces(-1, 1)[0].branch
    executed = unfused(numbers, s).tolist()
    worst = [0.0, 0.0]
    with working(192, ORDER + 1):
        for at, y in zip(s.tolist(), executed, strict=True):
            end = float(np.nextafter(at, np.inf))
            error = abs(arb(y) - exact(numbers, at))
            proved = bound_cell(numbers, branch, "identity", Cell(at, end), ORDER, a).rounding
            found = cell_error(numbers, at, end, branch, a, all_active(numbers))
            assert found is not None
            _, checked = found
            assert error <= arb(proved)
            assert error <= checked
            worst = [
                max(worst[0], float((error / arb(proved)).mid())),
                max(worst[1], float((error / checked).mid())),
            ]
    return worst[0], worst[1]


def inputs(lo: float, hi: float, dtype: str, count: int = 300) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).uniform(lo, hi, count)).to(getattr(torch, dtype))


# name: keys, values, inputs, gain, offset, the part of the bound that is used at least
SHARP = {
    "the product κx": ([(1e4, -1e4), (0, 0)], [1, -1], (0.9999, 1.0001), 1.0, 0.0, 0.55),
    "the sum κx + c": ([(1, 1e4), (-1, 1e4)], [1, -1], (-1, 1), 1.0, 0.0, 0.55),
    "the mass Σ W|v|": ([(1, 0), (-1, 0)], [1e6, 1e6 + 1], (-1, 1), 1.0, 0.0, 0.1),
    "the gain a·s": ([(3e4, 0), (-3e4, 0)], [1, -1], (0.99999, 1.00001), 1.3, -1.3, 0.3),
    "the query's sum": ([(17003.0, -17003.0 * 1.01), (0, 0)], [1, -1], (0.9099, 0.9101), 1.0, 0.1, 0.55),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("keys", "values", "where", "gain", "offset", "used"), SHARP.values(), ids=SHARP)
def test_terms_are_needed(keys, values, where, gain: float, offset: float, used: float, dtype: str) -> None:
    prover, checker = ratios(head_of(keys, values, dtype, gain, offset), inputs(*where, dtype))
    assert prover > used
    assert checker > used


CELLS = [
    ("gelu", (-8.0, 8.0), {"anchors": 9, "dtype": torch.float64}),
    ("relu", (-1.0, 1.0), {"anchors": 9, "design": "graded", "dtype": torch.float64}),
    ("sin", (-3.0, 3.0), {"anchors": 12, "design": "nearest"}),
    ("silu", (-8.0, 8.0), {"anchors": 3, "design": "gated", "dtype": torch.float64}),
    ("sin", (-3.0, 3.0), {"anchors": 6, "heads": 3, "dtype": torch.float64}),
]


@pytest.mark.parametrize(
    ("spec", "on", "options"), CELLS, ids=[f"{c[0]}-{c[2].get('design', 'auto')}" for c in CELLS]
)
def test_cells_of_any_width_contain_the_truth(
    spec: str, on: tuple[float, float], options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """|g - f| at many points of a cell, in 192 bits, against prover and checker; wide cells are where a remainder counts."""
    head = attnc.head(spec, domain=on, **options)
    numbers, f, a = head.numbers(), functions.get(spec), ARITHMETIC[head.certificate.dtype]
    rng = np.random.default_rng(7)
    finite = loose = 0
    for _ in range(80):
        piece = f.pieces(*on)[rng.integers(len(f.pieces(*on)))]
        lo = float(rng.uniform(piece.lo, piece.hi))
        hi = min(piece.hi, lo + float(10.0 ** rng.uniform(-3, 0.3)))
        for order, judge in ((10, "prover"), (ORDER, "checker"), (2, "prover"), (2, "checker")):
            with working(192, order + 1):
                truth = max(
                    (abs(exact(numbers, s) - f.value(s)) for s in [lo, *rng.uniform(lo, hi, 12), hi]),
                    key=lambda x: float(x.mid()),
                )
                monkeypatch.setattr("attnc.check.cell.ORDER", order)
                if judge == "prover":
                    bound = arb(bound_cell(numbers, piece.branch, spec, Cell(lo, hi), order, a).approximation)
                else:
                    found = cell_error(numbers, lo, hi, piece.branch, a, all_active(numbers))
                    bound = found[0] if found is not None else arb("inf")
                assert truth <= bound or not bound.is_finite()
                finite += bound.is_finite()
                loose += bool(bound.is_finite() and bound < 1.5 * truth)
    assert finite > 80
    assert loose > 10


def test_what_may_overflow_is_seen_by_both() -> None:
    a = ARITHMETIC["float32"]
    domain = Interval(-8, 8)
    sane = head_of([(2, 0), (0, 0)], [1, -1], "float32")
    assert in_range(sane, domain, a)
    assert not leaves_the_range(sane, -8, 8, a)
    wild = {
        "scores": head_of([(2.0**124, 0), (0, 0)], [1, -1], "float32"),
        "intercepts": head_of([(2, 2.0**126), (0, 0)], [1, -1], "float32"),
        "values": head_of([(2, 0), (0, 0)], [2.0**124, 1], "float32"),
        "query": head_of([(2, 0), (0, 0)], [1, -1], "float32", gain=2.0**122),
        "subnormal": head_of([(2.0**-130, 0), (0, 0)], [1, -1], "float32"),
    }
    for name, numbers in wild.items():
        assert not in_range(numbers, domain, a), name
        assert leaves_the_range(numbers, -8, 8, a), name
    heads = HeadNumbers(
        np.tile(sane.query, (2, 1)),
        np.tile(sane.key, (2, 1, 1)),
        np.tile(sane.value * 2.0**60, (2, 1, 1)),
        np.full(2, 2.0**63),
        "float32",
    )
    assert not in_range(heads, domain, a)
    assert leaves_the_range(heads, -8, 8, a)


def test_more_keys_than_the_dtype_can_count_prove_nothing() -> None:
    """(1 + u)^p/(1 - pu) is a bound only for pu < 1."""
    from attnc.prove.rounding import Keys, head_rounding

    one, zero = arb(1), arb(0)
    keys = Keys([zero], [zero], [zero], [zero], [one], [zero], [one], 2**24 + 1, 2**24, one, 60)
    with working(128):
        rounded = head_rounding(ARITHMETIC["float32"], keys, zero, zero, zero, one)
    assert not rounded.is_finite()


@pytest.mark.parametrize(("slope", "intercept"), [(3.0, 0.0), (2.0, 0.3), (3.0, 0.3), (0.7, -5.1)])
def test_the_score_of_a_key_errs_by_no_more_than_is_said(slope: float, intercept: float) -> None:
    """fl(fl(κx) + c) in float32 against rationals, at many x: the bound holds, and is met to half of it somewhere."""
    k, c = np.float32(slope), np.float32(intercept)
    x = np.random.default_rng(0).uniform(1, 2, 4000).astype(np.float32)
    z = k * x + c
    worst = 0.0
    for at, found in zip(x.tolist(), z.tolist(), strict=True):
        exact = Fraction(float(k)) * Fraction(at) + Fraction(float(c))
        off = float(abs(Fraction(found) - exact))
        bound = score_error(FLOAT32, arb(float(k)), arb(float(c)), arb(at), arb(0), arb(float(exact)))
        assert off <= float(bound)
        worst = max(worst, off / float(bound))
    assert worst > 0.5
