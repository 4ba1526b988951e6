"""The checker of windows: sound against an adversary and against what runs, in agreement with the prover, and never fooled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from flint import arb

from attnc import functions
from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.check import window as checker
from attnc.check.values import CheckError
from attnc.check.window import gate_rounding, tail_rounding, window_error, window_rounding
from attnc.domain import Interval
from attnc.functions.balls import working
from attnc.lower.pointwise import ROOM
from attnc.prove.window import window_bound
from attnc.records.window_numbers import FUNCTIONS, ClosedForm, Gate, TailForm, Window
from tests.prove.test_window import (
    LATTICES,
    TAIL,
    TANH,
    both_paths,
    exact_window,
    hard_points,
    lattice_window,
    perturbed,
    proof_of,
)  # fmt: skip
from tests.sampled import only

Case = tuple[ClosedForm, str, float]
CASES: dict[str, Callable[[], Case]] = {
    "gelu float32": lambda: (lattice_window(LATTICES[0]), "gelu", 8.0),
    "gelu float64": lambda: (lattice_window(LATTICES[1]), "gelu", 8.0),
    "gelu wide": lambda: (lattice_window(LATTICES[2]), "gelu", 100.0),
    "gelu_tanh float64": lambda: (lattice_window(LATTICES[3]), "gelu_tanh", 1.5),
    "silu float32": lambda: (Gate(1.0, "float32"), "silu", 300.0),
    "silu float64": lambda: (Gate(1.0, "float64"), "silu", 8.0),
    "quick_gelu float32": lambda: (Gate(float(np.float32(1.702)), "float32"), "quick_gelu", 8.0),
    "relu float32": lambda: (Gate(2.0**20, "float32"), "relu", 64.0),
    "relu float64": lambda: (Gate(2.0**40, "float64"), "relu", 64.0),
    "tail of gelu": lambda: (TAIL, "gelu", 100.0),
    "gelu_tanh itself": lambda: (TANH, "gelu_tanh", 8.0),
    "gelu_tanh itself, float64": lambda: (FUNCTIONS["gelu_tanh", "float64"], "gelu_tanh", 1e4),
    "gelu_fast itself": lambda: (FUNCTIONS["gelu_fast", "float32"], "gelu_fast", 30.0),
}
each_case = pytest.mark.parametrize("case", CASES)


@each_case
def test_it_agrees_with_the_prover_and_holds_where_it_runs(case: str) -> None:
    window, name, radius = CASES[case]()
    f, on, prover = functions.get(name), Interval(-radius, radius), proof_of(window, name, radius).bound
    found, worst = window_error(window, f, on), 0.0
    assert found <= 1.01 * prover
    s = hard_points(window, radius)
    with working(192):
        for results in both_paths(window, s):
            for x, y in zip(s.tolist(), results.tolist(), strict=True):
                off = abs(arb(y) - f.value(x))
                assert off <= arb(found), (x, y)
                worst = max(worst, float(off.mid()))
    assert worst <= found <= 40 * worst


class Careless:
    """Arithmetic that errs by all that is assumed, in directions of its own."""

    def __init__(self, a: Arithmetic, push: Callable[[], int]) -> None:
        self.a, self.push = a, push

    def rounded(self, x: arb, exact: bool = False) -> arb:
        off = 0 if exact else self.push() * arb(self.a.unit)
        return (x * (1 + off)).mid()

    def exp(self, x: arb) -> arb:
        return (x.exp() * (1 + self.push() * self.a.window_exp_units * arb(self.a.unit))).mid()

    def window(self, window: Window, s: float) -> arb:
        x, c = abs(arb(s)) / arb(window.spacing), arb(window.sharpness)
        power = math.frexp(window.sharpness)[0] == 0.5
        w = self.exp(self.rounded(-2 * c * x, power))
        inner = self.rounded(self.rounded(-c * x, power) + arb(window.lead), window.lead == 0)
        return self.sum(window, self.exp(self.rounded(x * inner)), w, s)

    def tail(self, tail: TailForm, s: float) -> arb:
        d = self.rounded(1 + self.rounded(abs(arb(s)) * arb(tail.rate)))
        exponent = self.rounded(self.rounded(arb(s) * arb(s)) * -arb(tail.kappa))
        return self.sum(tail, self.exp(exponent * arb(2).log()), self.rounded(1 / d), s)

    def sum(self, window: Window | TailForm, G: arb, w: arb, s: float) -> arb:
        N = arb(window.coefficients[-1])
        for C in reversed(window.coefficients[:-1]):
            N = self.rounded(self.rounded(N * w) + arb(C))
        product = self.rounded(G * N)
        if s <= 0:
            return product
        total = self.rounded(arb(s) + product)
        return total if abs(total - arb(s) - product) <= abs(product) else arb(s)

    def gate(self, gate: Gate, s: float) -> arb:
        if gate.cubic == 0:
            z = self.rounded(arb(s) * arb(gate.slope), math.frexp(gate.slope)[0] == 0.5)
        else:
            square = self.rounded(self.rounded(arb(s) * arb(s)) * arb(gate.cubic))
            z = self.rounded(self.rounded(square + arb(gate.slope)) * arb(s))
        units = (self.a.window_exp_units / (1 + z.exp()) + 3) * arb(self.a.unit)
        sigma = 1 / (1 + (-z).exp()) * (1 + self.push() * units.min(3 * (-z).exp()))
        return self.rounded(arb(s) * sigma.mid())


@each_case
def test_no_adversary_leaves_it(case: str) -> None:
    """At points, and over cells around them: an adversary with the assumed arithmetic, in 400 bits."""
    window, _, radius = CASES[case]()
    a, draw, near = ARITHMETIC[window.dtype], np.random.default_rng(2), 0.0
    steps = (
        (4 if window.cubic else 12 / window.slope)
        if isinstance(window, Gate)
        else 12 * getattr(window, "spacing", 0.4)
    )
    scale = min(radius, steps)
    exact = Careless(a, lambda: 0)
    with working(400):
        for s in draw.uniform(-scale, scale, 40).tolist():
            cell = arb(s) + arb(0, 2.0**-9 * scale * draw.uniform())
            if isinstance(window, Gate):
                allowed, truth = gate_rounding(window, cell, a), exact_window(window, s)
            elif isinstance(window, TailForm):
                allowed, truth = tail_rounding(window, abs(cell), s > 0, a), exact.tail(window, s)
            else:
                allowed, truth = window_rounding(window, abs(cell), s > 0, a), exact.window(window, s)
            assert allowed is not None
            for push in (lambda: 1, lambda: -1, lambda: int(draw.integers(0, 2)) * 2 - 1):
                careless = Careless(a, push)
                run = {Gate: careless.gate, TailForm: careless.tail, Window: careless.window}[type(window)]
                y = run(window, s)
                assert abs(y - truth) <= allowed, s
                near = max(near, float((abs(y - truth) / allowed).mid()))
    assert near > 0.6


@pytest.mark.parametrize("s", [-3.1, -1.7, -0.4, 0.3, 0.9, 2.2])
def test_the_worst_machine_stays_within_the_rounding_of_the_tail(s: float) -> None:
    """Every operation of the tail errs in the direction that does harm."""
    a, none = ARITHMETIC["float32"], [0.0] * 40
    with working(256):
        exact, count = perturbed(TAIL, s, none, a)
        alone = [[float(i == j) for j in range(len(none))] for i in range(count)]
        worst = [1.0 if perturbed(TAIL, s, one, a)[0] > exact else -1.0 for one in alone]
        reached = abs(perturbed(TAIL, s, worst + none[count:], a)[0] - exact)
        allowed = tail_rounding(TAIL, abs(arb(s)), s > 0, a)
        assert allowed is not None and arb(0.6) * allowed <= reached <= allowed


def test_a_changed_coefficient_is_noticed() -> None:
    window, name, radius = CASES["gelu float32"]()
    assert isinstance(window, Window)
    claimed, on = proof_of(window, name, radius).bound, Interval(-radius, radius)
    middle = round(window.lead / (2 * window.sharpness))
    for j in (middle - 2, middle, middle + 1):
        C = list(window.coefficients)
        C[j] = float(np.float32(C[j] * (1 + 1e-4)))
        changed = replace(window, coefficients=tuple(C))
        assert window_error(changed, functions.gelu(), on) > 1.02 * claimed
    claimed = proof_of(TAIL, name, radius).bound
    for field in ("rate", "kappa"):
        changed = replace(TAIL, **{field: float(np.float32(getattr(TAIL, field) * (1 + 1e-4)))})
        assert window_error(changed, functions.gelu(), on) > 1.02 * claimed


def test_what_cannot_be_proved_says_why() -> None:
    window, _, _ = CASES["gelu float32"]()
    assert isinstance(window, Window)
    gelu, on = functions.gelu(), Interval(-8, 8)

    def said(window: ClosedForm, f: functions.Function = gelu, on: Interval = on) -> str:
        with pytest.raises(CheckError) as problem:
            window_error(window, f, on)
        return str(problem.value)

    assert "jumps" in said(window, functions.get("step")) if "step" in functions.names() else True
    assert "float32 cannot" in said(replace(window, coefficients=(0.1, 0.2)))
    assert "subnormal" in said(replace(window, coefficients=(1.0, 2.0**-140)))
    assert "not finite" in said(replace(window, coefficients=(1.0, math.nan)))
    assert "float32 cannot" in said(replace(window, spacing=0.75))
    assert "range" in said(window, on=Interval(-(2.0**70), 1))
    assert "range" in said(Gate(2.0**100, "float32"), on=Interval(-(2.0**30), 1))
    assert "float16" in said(replace(window, dtype="float16"))
    assert "float32 cannot" in said(replace(TAIL, rate=0.4))
    assert "range" in said(replace(TAIL, rate=-0.25))
    assert "range" in said(replace(TAIL, kappa=-0.25))
    assert "range" in said(TAIL, on=Interval(-1e19, 1))
    assert "range" in said(TANH, on=Interval(-1e13, 1))
    assert "range" in said(replace(TANH, cubic=-0.5))


@pytest.mark.parametrize(
    "window",
    [lattice_window(LATTICES[0]), Gate(1.75, "float32"), TAIL, TANH],
    ids=["window", "gate", "tail", "tanh"],
)
@pytest.mark.parametrize("order", [1, 2, 5])
def test_cells_of_any_width_contain_the_truth(
    window: ClosedForm, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """|window - sin| at many points of a cell: wide cells and low orders are where a remainder counts."""
    monkeypatch.setattr(checker, "ORDER", order)
    f, a, draw, finite = functions.get("sin"), ARITHMETIC["float32"], np.random.default_rng(order), 0
    branch = f.pieces(-1, 1)[0].branch
    for _ in range(30):
        lo = float(draw.uniform(0, 3)) * float(draw.choice([-1, 1]))
        hi = lo + float(10.0 ** draw.uniform(-2, 0))
        cell = checker._Cell(lo, 0.0 if lo < 0 < hi else hi, branch)
        with working(192, order + 1):
            found = checker._error(window, cell, a)
            for s in np.linspace(cell.lo, cell.hi, 9).tolist():
                assert found is None or abs(exact_window(window, s) - f.value(s)) <= found
            finite += found is not None
    assert finite > 20


@pytest.mark.parametrize(
    "window",
    [lattice_window(LATTICES[0]), Gate(1.75, "float32"), TAIL, TANH],
    ids=["window", "gate", "tail", "tanh"],
)
@pytest.mark.parametrize(("lo", "hi"), [(-8.0, 8.0), (-3.3, 0.1), (0.07, 1000.0), (-1.0, 0.0)])
def test_cells_cover_the_domain_and_none_reaches_over_zero(window: ClosedForm, lo: float, hi: float) -> None:
    for name in ("gelu", "relu", "clip(-0.3,0.7)"):
        found = checker._first_cells(window, functions.get(name), Interval(lo, hi))
        cells = sorted((cell.lo, cell.hi) for cell in found)
        assert cells[0][0] == lo and cells[-1][1] == hi
        assert all(before[1] == after[0] for before, after in pairwise(cells))
        assert not any(a < 0 < b for a, b in cells)


def test_a_search_that_is_given_up_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    window, name, radius = CASES["gelu float32"]()
    monkeypatch.setattr(checker, "MOST_CELLS", 3)
    with pytest.raises(CheckError):
        window_error(window, functions.get(name), Interval(-radius, radius))


def test_exponents_beyond_what_is_assumed_of_exp_are_refused() -> None:
    """exp(x(lead - cx)) reaches lead²/4c: beyond 80 nothing is assumed of float32."""
    window, _, _ = CASES["gelu float32"]()
    assert isinstance(window, Window)
    a, c = ARITHMETIC["float32"], window.sharpness
    with working(128):
        for x, fits in ((14.5, True), (14.75, False)):
            assert (c * x * x < a.exp_limit) == fits
            found = window_rounding(replace(window, lead=2 * c * x), arb(x * window.spacing), True, a)
            assert (found is not None) == fits


RADII = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 16.0, 96.0, 1024.0, 2.0**20)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "slope"),
    only(
        [("silu", 1.0), ("quick_gelu", 1.702), ("relu", 1.0), ("relu", 2.0**16), ("relu", 2.0**40)],
        [("silu", 1.0), ("quick_gelu", 1.702), *(("relu", 2.0**k) for k in (0, 1, 4, 9, 16, 24, 32, 40))],
    ),
)
def test_of_every_gate_the_checker_proves_what_a_block_claims(name: str, slope: float, dtype: str) -> None:
    """A converted block claims ROOM times what the prover finds of its gates; the checker must not need more."""
    f, gate = functions.get(name), Gate(float(np.asarray(slope, dtype)), dtype)
    for radius in RADII:
        claimed = ROOM * window_bound(gate, f, Interval(-radius, radius)).bound
        assert window_error(gate, f, Interval(-radius, radius)) <= claimed
