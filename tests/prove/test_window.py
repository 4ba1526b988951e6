"""Windows: recognised from a head's numbers, executed on both paths, and within their proved bounds without slack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from flint import arb

from attnc import functions
from attnc.arithmetic import ARITHMETIC, Arithmetic, probe_window
from attnc.domain import Interval
from attnc.errors import FunctionError, InputError
from attnc.functions.balls import working
from attnc.network import engines as engine
from attnc.network.engines import run_window
from attnc.network.head import Head
from attnc.prove.cells import Cell
from attnc.prove.supnorm import SupNorm, supnorm
from attnc.prove.window import _bound_cell, _first_cells, _suffix_sums, _terms, window_bound
from attnc.records.numbers import HeadNumbers
from attnc.records.window_numbers import FUNCTIONS, ClosedForm, Gate, TailForm, Window, closed_form, window_of

LATTICES = [
    ("gelu", 0.5, 0.375, 4.0, "float32"),
    ("gelu", 0.5, 0.375, 4.0, "float64"),
    ("gelu", 1.0, 0.5, 5.0, "float32"),
    ("gelu_tanh", 0.25, 0.25, 7.0, "float64"),
]
Lattice = tuple[str, float, float, float, str]
TAIL, TANH = FUNCTIONS["gelu", "float32"], FUNCTIONS["gelu_tanh", "float32"]
assert isinstance(TAIL, TailForm) and isinstance(TANH, Gate)
each_lattice = pytest.mark.parametrize("lattice", LATTICES, ids=lambda x: f"{x[0]}-{x[1]}-{x[4]}")
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


@cache
def lattice_head(name: str, spacing: float, c: float, reach: float, dtype: str) -> HeadNumbers:
    """max(kΔ, 0) + β_|k|, the bump β fitted to the function on |s| <= reach."""
    bump, margin = round(reach / spacing), math.ceil(math.sqrt(26 / c))
    k = np.arange(-(bump + margin + 24), bump + margin + 25)
    t = np.linspace(-reach - 5, reach + 5, 2001)
    weights = np.exp(-c * (t[:, None] / spacing - k) ** 2)
    weights /= weights.sum(1, keepdims=True)
    columns = [weights[:, np.abs(k) == j].sum(1) for j in range(bump + 1)]
    rest = functions.get(name)(torch.from_numpy(t)).numpy() - weights @ np.maximum(k * spacing, 0)
    beta = np.linalg.lstsq(np.stack(columns, 1), rest, rcond=1e-15)[0]
    last = math.ceil(8 / spacing) + margin
    k = np.arange(-last, last + 1)
    v = np.maximum(k * spacing, 0) + np.where(np.abs(k) <= bump, beta[np.minimum(np.abs(k), bump)], 0)
    key, v = np.stack([2 * c * k, -c * k * k], 1)[None], v.astype(dtype).astype(np.float64)
    return HeadNumbers(np.array([[1 / spacing, 0]]), key, np.stack([0 * v, v], 1)[None], np.ones(1), dtype)


def lattice_window(lattice: Lattice) -> Window:
    window = window_of(lattice_head(*lattice))
    assert isinstance(window, Window)
    return window


def gate_head(slope: float, dtype: str = "float64", first: int = 0) -> HeadNumbers:
    key, value = np.zeros((1, 2, 2)), np.zeros((1, 2, 2))
    key[0, 1 - first, 0], value[0, 1 - first, 0] = slope, 1.0
    return HeadNumbers(np.array([[1.0, 0.0]]), key, value, np.ones(1), dtype)


@cache
def proof_of(window: ClosedForm, name: str, radius: float) -> SupNorm:
    return window_bound(window, functions.get(name), Interval(-radius, radius))


def both_paths(window: ClosedForm, s: torch.Tensor) -> list[torch.Tensor]:
    """In place, and plainly."""
    return [run_window(window, s), run_window(window, s.clone().requires_grad_()).detach()]


def hard_points(window: ClosedForm, radius: float) -> torch.Tensor:
    """Random numbers at all scales, the dtype's neighbours of 0, of lattice points and of the ends, and subnormals."""
    a, rng = ARITHMETIC[window.dtype], np.random.default_rng(5)
    step = 1 / window.slope if isinstance(window, Gate) else getattr(window, "spacing", 1.0) / 4
    edges = np.array([0.0, *(step * np.arange(1, 40)), a.unit, a.tiny, radius])
    scales = radius * 2.0 ** -rng.uniform(0, 40, 100)
    near = step * rng.normal(size=300) * 8
    s = np.concatenate([edges, -edges, scales, -scales, near, [a.tiny / 3, -a.tiny / 3, -0.0]])
    s, far = s.astype(window.dtype), np.array(9e9, window.dtype)
    s = np.concatenate([s, np.nextafter(s, far), np.nextafter(s, -far)])
    return torch.from_numpy(np.clip(s, -radius, radius))


def assert_within(window: ClosedForm, name: str, radius: float) -> float:
    """|executed - f| <= bound in 192 bits at every hard point, on both paths; the largest difference over the bound."""
    proof, f, worst = proof_of(window, name, radius), functions.get(name), 0.0
    assert math.isfinite(proof.bound)
    s = hard_points(window, radius)
    results = [y.tolist() for y in both_paths(window, s)]
    with working(192):
        for i, x in enumerate(s.tolist()):
            exact = f.value(x)
            for y in results:
                off = abs(arb(y[i]) - exact)
                assert off <= arb(proof.bound), (x, y[i], exact.str(20), proof)
                worst = max(worst, float(off) / proof.bound)
    return worst


@each_lattice
def test_a_lattice_head_has_the_window_that_the_identity_says(lattice: Lattice) -> None:
    numbers, window = lattice_head(*lattice), lattice_window(lattice)
    _, spacing, c, _, dtype = lattice
    K, zero = round(window.lead / (2 * c)), numbers.anchors_per_head // 2
    assert (window.spacing, window.sharpness, window.dtype) == (spacing, c, dtype)
    v = numbers.value[0, :, 1]
    assert np.flatnonzero(v)[0] == zero - K
    k = np.arange(len(window.coefficients)) - K
    wanted = math.sqrt(c / math.pi) * v[zero + k] * np.exp(-c * k * k)
    assert np.allclose(window.coefficients, wanted, rtol=4 * ARITHMETIC[dtype].unit, atol=0)
    dropped = np.arange(k[-1] + 1, zero + 1)
    assert (v[zero + dropped] * np.exp(-c * dropped * dropped)).sum() < ARITHMETIC[dtype].unit / 4


@pytest.mark.parametrize("first", [0, 1])
@each_dtype
def test_gates_are_recognised_in_either_order(first: int, dtype: str) -> None:
    assert window_of(gate_head(4.0, dtype, first)) == Gate(4.0, dtype)


Change = tuple[str, tuple[int, ...], Callable[[float], float]]


def changed(numbers: HeadNumbers, change: Change) -> HeadNumbers:
    name, at, to = change
    array = getattr(numbers, name).copy()
    array[at] = to(array[at])
    return replace(numbers, **{name: array})


def ulp(x: float) -> float:
    return float(np.nextafter(np.float32(x), np.float32(1e9)))


REFUSED: dict[str, Change] = {
    "a slope": ("key", (0, 3, 0), ulp),
    "an intercept": ("key", (0, 3, 1), ulp),
    "a value on the right tail": ("value", (0, -2, 1), ulp),
    "a value on the left tail": ("value", (0, 2, 1), ulp),
    "a value of the bump": ("value", (0, 27, 1), lambda v: v + 2.0**-10),
    "an own value": ("value", (0, 9, 0), lambda v: 1.0),
    "the query's gain": ("query", (0, 0), ulp),
    "the query's sign": ("query", (0, 0), lambda q: -q),
    "the query's offset": ("query", (0, 1), lambda q: 1.0),
    "the output": ("output", (0,), ulp),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_head_that_is_off_in_one_number_has_no_window(what: str) -> None:
    numbers = lattice_head("gelu", 0.5, 0.375, 4.0, "float32")
    assert window_of(numbers) is not None
    assert window_of(changed(numbers, REFUSED[what])) is None


@pytest.mark.parametrize(
    ("name", "at", "to"),
    [("key", (0, 0, 1), 1.0), ("key", (0, 0, 0), 0.5), ("value", (0, 0, 0), 1.0), ("value", (0, 1, 1), 1e-9),
     ("value", (0, 1, 0), 2.0), ("query", (0, 0), 2.0), ("key", (0, 1, 0), -4.0)],
)  # fmt: skip
def test_a_gate_that_is_off_in_one_number_has_no_window(name: str, at: tuple[int, ...], to: float) -> None:
    assert window_of(changed(gate_head(4.0), (name, at, lambda _: to))) is None


def test_other_heads_have_no_window() -> None:
    good = lattice_head("gelu", 0.5, 0.375, 4.0, "float32")
    assert window_of(replace(good, key=good.key[:, 30:], value=good.value[:, 30:])) is None, "0 is no anchor"
    twice = {name: np.repeat(getattr(good, name), 2, axis=0) for name in ("query", "key", "value", "output")}
    assert window_of(replace(good, **twice)) is None
    wide = lattice_head("gelu_tanh", 0.25, 0.25, 7.0, "float32")
    assert window_of(wide) is None, "exp(cK²) is beyond float32"


@pytest.mark.parametrize("radius", [8.0, 30.0, 1e4])
@pytest.mark.parametrize("lattice", LATTICES[:2], ids=["float32", "float64"])
def test_what_a_window_returns_is_within_its_bound(lattice: Lattice, radius: float) -> None:
    assert assert_within(lattice_window(lattice), lattice[0], radius) > 0.05


@each_dtype
@pytest.mark.parametrize(
    ("name", "slope", "radius"),
    [
        ("silu", 1.0, 30.0),
        ("silu", 1.5, 8.0),
        ("relu", 3.25, 8.0),
        ("relu", 2.0**10, 1e4),
        ("relu", 2.0**60, 1e4),
    ],
)
def test_what_a_gate_returns_is_within_its_bound(dtype: str, name: str, slope: float, radius: float) -> None:
    assert assert_within(Gate(slope, dtype), name, radius) > 0.05


@pytest.mark.parametrize("radius", [0.75, 8.0, 30.0, 1e4, 1e12])
@pytest.mark.parametrize(("name", "dtype"), FUNCTIONS, ids="-".join)
def test_what_the_closed_form_of_a_function_returns_is_within_its_bound(
    name: str, dtype: str, radius: float
) -> None:
    assert assert_within(FUNCTIONS[name, dtype], name, radius) > 0.05


@pytest.mark.parametrize(
    ("window", "least"), [(lattice_window(LATTICES[0]), 1e-7), (TAIL, 5e-8)], ids=["window", "tail"]
)
def test_float32_numbers_by_the_million_are_within_the_bound(window: ClosedForm, least: float) -> None:
    s = torch.arange(0, 1 << 31, 1531, dtype=torch.int64).to(torch.int32).view(torch.float32)
    s = s[s <= 30]
    s = torch.cat([s, -s])
    off = (run_window(window, s).double() - torch.nn.functional.gelu(s.double())).abs().max().item()
    assert least < off <= proof_of(window, "gelu", 30.0).bound < 1e-6
    assert proof_of(window, "gelu", 1e4).bound < 1e-6


@each_lattice
def test_bounds_are_tight(lattice: Lattice) -> None:
    proof = proof_of(lattice_window(lattice), lattice[0], 30.0)
    assert proof.approximation <= 1.11 * proof.attained
    assert proof.rounding < 48 * ARITHMETIC[lattice[4]].unit
    assert proof.bound <= proof.approximation + proof.rounding


@each_dtype
@pytest.mark.parametrize("slope", [3.25, 2.0**20, 2.0**60])
def test_relu_is_met_up_to_its_known_distance(dtype: str, slope: float) -> None:
    proof = proof_of(Gate(slope, dtype), "relu", 1e4)
    assert proof.attained * slope > 0.2781
    assert proof.bound * slope <= 0.27847


def test_a_wrong_function_is_told_by_the_bound() -> None:
    """gelu's window against relu: sup |s|Φ(-|s|), with a kink at 0."""
    proof = window_bound(lattice_window(LATTICES[1]), functions.relu(), Interval(-8, 8))
    assert 0.165 < proof.attained <= proof.bound < 0.18


def test_a_wrong_tail_is_told_by_the_bound() -> None:
    """The tail of gelu against its tanh approximation, from which it is 4.7e-4 away, and with one coefficient that is off."""
    proof = window_bound(TAIL, functions.get("gelu_tanh"), Interval(-8, 8))
    assert 4.7e-4 < proof.attained <= proof.bound < 4.8e-4
    off = replace(TAIL, coefficients=(*TAIL.coefficients[:-1], TAIL.coefficients[-1] + 2.0**-16))
    assert window_bound(off, functions.gelu(), Interval(-8, 8)).bound > 2e-6


def test_only_certified_heads_of_a_function_run_its_closed_form() -> None:
    numbers = lattice_head("gelu", 0.5, 0.375, 4.0, "float32")
    assert closed_form(numbers, "gelu") == TAIL and closed_form(numbers, "gelu_tanh") == TANH
    assert closed_form(numbers, None) == closed_form(numbers, "sin") == window_of(numbers)
    assert closed_form(changed(numbers, REFUSED["a slope"]), "gelu") is None
    assert closed_form(gate_head(4.0, "float32"), "gelu") == Gate(4.0, "float32")
    assert isinstance(closed_form(lattice_head("gelu", 0.5, 0.375, 4.0, "float64"), "gelu"), Window)


def perturbed(window: Window | TailForm, s: float, delta: list[float], a: Arithmetic) -> tuple[arb, int]:
    """The program with every operation's result times 1 + its share of `delta`, and how many there are."""
    used = iter(delta)

    def rounded(x: arb, units: int = 1) -> arb:
        return x * (1 + arb(a.unit) * units * arb(next(used)))

    if isinstance(window, TailForm):
        w = rounded(1 / rounded(1 + rounded(abs(arb(s)) * arb(window.rate))))
        exponent = rounded(rounded(-arb(window.kappa) * arb(s)) * arb(s))
        G = rounded((exponent * arb(2).log()).exp(), a.window_exp_units)
    else:
        c, x = arb(window.sharpness), abs(arb(s)) / arb(window.spacing)
        power, product = -2 * c * x, -c * x
        if window.sharpness == 0.375:  # no power of two
            power, product = rounded(power), rounded(product)
        w = rounded(power.exp(), a.window_exp_units)
        G = rounded(rounded(rounded(product + arb(window.lead)) * x).exp(), a.window_exp_units)
    N = arb(window.coefficients[-1])
    for C in reversed(window.coefficients[:-1]):
        N = rounded(rounded(N * w) + arb(C))
    bump = rounded(G * N)
    if s > 0:
        bump += arb(s) + abs(bump).min(arb(a.unit) * abs(arb(s) + bump)) * arb(next(used))
    return bump, len(delta) - len(list(used))


@each_lattice
@pytest.mark.parametrize("s", [-6.3, -3.1, -1.7, -0.4, -1e-3, 1e-3, 0.3, 0.9, 2.2, 4.6])
def test_the_worst_conforming_machine_is_within_the_rounding_term(lattice: Lattice, s: float) -> None:
    """Every operation errs as much as it may, in the direction that does harm: no rounding term may be left out."""
    assert_worst(lattice_window(lattice), lattice[0], s)


@pytest.mark.parametrize("s", [-6.3, -3.1, -1.7, -0.4, -1e-3, 1e-3, 0.3, 0.9, 2.2, 4.6])
def test_the_worst_conforming_machine_is_within_the_rounding_term_of_the_tail(s: float) -> None:
    assert_worst(TAIL, "gelu", s)


def assert_worst(window: Window | TailForm, name: str, s: float) -> None:
    a = ARITHMETIC[window.dtype]
    proof = window_bound(window, functions.get(name), Interval(s - 1e-7 * abs(s), s + 1e-7 * abs(s)))
    with working(256):
        none = [0.0] * (2 * len(window.coefficients) + 20)
        exact, count = perturbed(window, s, none, a)
        worst = none.copy()
        for i in range(count):
            alone = [float(i == j) for j in range(len(none))]
            worst[i] = 1.0 if perturbed(window, s, alone, a)[0] > exact else -1.0
        reached = abs(perturbed(window, s, worst, a)[0] - exact)
        assert arb(0.6) * arb(proof.rounding) <= reached <= arb(proof.rounding)


@each_dtype
@pytest.mark.parametrize("slope", [1.0, 1.75])
@pytest.mark.parametrize("s", [-9.5, -2.0, -0.25, 1e-3, 0.75, 3.0, 9.0])
def test_the_worst_conforming_sigmoid_is_within_the_rounding_term(dtype: str, slope: float, s: float) -> None:
    a, gate = ARITHMETIC[dtype], Gate(slope, dtype)
    proof = window_bound(gate, functions.silu(), Interval(s - 1e-7 * abs(s), s + 1e-7 * abs(s)))
    with working(256):
        u, z = arb(a.unit), arb(slope) * arb(s)
        exact, worst = arb(s) / (1 + (-z).exp()), arb(0)
        for way in (1, -1):
            moved = z + (0 if slope == 1 else way * u * abs(z))
            weight = 1 / (1 + (-moved).exp())
            units = ((a.window_exp_units / (1 + moved.exp()) + 3) * u).min(3 * (-moved).exp())
            worst = worst.max(abs(arb(s) * weight * (1 + way * units) * (1 + way * u) - exact))
        assert arb(0.6) * arb(proof.rounding) <= worst <= arb(proof.rounding)


@each_dtype
@pytest.mark.parametrize("s", [-4.1, -2.0, -0.25, 1e-3, 0.75, 3.0, 4.0])
def test_the_worst_conforming_cubic_gate_is_within_the_rounding_term(dtype: str, s: float) -> None:
    a, gate = ARITHMETIC[dtype], FUNCTIONS["gelu_tanh", dtype]
    assert isinstance(gate, Gate)
    proof = window_bound(gate, functions.get("gelu_tanh"), Interval(s - 1e-7 * abs(s), s + 1e-7 * abs(s)))
    with working(256):
        u, exact, worst = arb(a.unit), exact_window(gate, s), arb(0)
        for way in (1, -1):
            one = 1 + way * u
            z = (arb(gate.slope) + arb(gate.cubic) * arb(s) ** 2 * one**2) * one * arb(s) * one
            weight = 1 / (1 + (-z).exp())
            units = ((a.window_exp_units / (1 + z.exp()) + 3) * u).min(3 * (-z).exp())
            for side in (1, -1):
                worst = worst.max(abs(arb(s) * weight * (1 + side * units) * (1 + side * u) - exact))
        assert arb(0.6) * arb(proof.rounding) <= worst <= arb(proof.rounding)


def test_nothing_is_claimed_where_the_assumptions_do_not_reach() -> None:
    window, gelu, domain = lattice_window(LATTICES[0]), functions.gelu(), Interval(-8, 8)
    assert math.isfinite(window_bound(window, gelu, domain).bound)
    strange = [
        replace(window, coefficients=(0.1, *window.coefficients)),  # no number of float32
        replace(window, coefficients=(2.0**-140, *window.coefficients)),  # subnormal
        replace(window, coefficients=(2.0**125, *window.coefficients)),
        replace(window, spacing=0.75),
        replace(window, lead=12.0),  # exp(96)
        Gate(0.0, "float32"),
        Gate(0.1, "float32"),
        Gate(1.0, "float32", 0.1),
        Gate(1.0, "float32", -0.5),
        replace(TAIL, rate=0.4),
        replace(TAIL, rate=-0.25),
        replace(TAIL, kappa=-0.25),
        replace(TAIL, kappa=2.0**-140),
        replace(TAIL, coefficients=(0.1, *TAIL.coefficients)),
        replace(TAIL, coefficients=(2.0**125, *TAIL.coefficients)),
    ]
    assert all(window_bound(w, gelu, domain).bound == math.inf for w in strange)
    assert window_bound(window, gelu, Interval(-1e30, 1e30)).bound == math.inf
    assert window_bound(TAIL, gelu, Interval(-1e19, 1)).bound == math.inf
    assert window_bound(TANH, functions.get("gelu_tanh"), Interval(-1e13, 1)).bound == math.inf
    assert window_bound(Gate(2.0**60, "float32"), functions.relu(), Interval(-1e25, 1)).bound == math.inf
    step = functions.function(
        lambda s: torch.where(s < 0, -1.0, 1.0).to(s),
        enclosure=[lambda x: x * 0 - 1, lambda x: x * 0 + 1],
        kinks=[0.0],
    )
    with pytest.raises(FunctionError, match="jumps"):
        window_bound(window, step, domain)


@each_dtype
def test_window_and_dense_head_differ_by_no_more_than_both_bounds(dtype: str) -> None:
    numbers = lattice_head("gelu", 0.5, 0.375, 4.0, dtype)
    window, s = window_of(numbers), torch.linspace(-6, 6, 2001, dtype=getattr(torch, dtype))
    assert window is not None
    dense = supnorm(numbers, functions.gelu(), Interval(-6, 6), quality=1.5)
    off = (run_window(window, s).double() - Head(numbers, "lattice")(s).double()).abs().max().item()
    assert off <= proof_of(window, "gelu", 6.0).bound + dense.bound


@each_dtype
@pytest.mark.parametrize(("name", "units"), [("exp", 8), ("sigmoid", 12), ("exp2", 8), ("reciprocal", 4)])
def test_the_probe_notices_a_coarser_function(
    dtype: str, name: str, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe_window(dtype) is None
    exact, factor = getattr(torch, name), 1 + units * ARITHMETIC[dtype].unit
    monkeypatch.setattr(torch, name, lambda x, **rest: exact(x, **rest).mul_(factor))
    assert f"torch.{name} gave" in (probe_window.__wrapped__(dtype) or "")


WINDOWS = [
    (lattice_window(LATTICES[0]), "gelu"), (lattice_window(LATTICES[3]), "gelu_tanh"),
    (Gate(1.0, "float32"), "silu"), (Gate(1.0, "float64"), "silu"),
    (TAIL, "gelu"), (TANH, "gelu_tanh"), (FUNCTIONS["gelu_tanh", "float64"], "gelu_tanh"),
]  # fmt: skip
each_window = pytest.mark.parametrize(("window", "name"), WINDOWS, ids=lambda x: getattr(x, "dtype", x))


@each_window
def test_first_and_second_derivatives_are_the_functions(window: ClosedForm, name: str) -> None:
    s = torch.tensor([-3.0, -0.7, -0.0, 0.0, 0.4, 2.5, 40.0], dtype=getattr(torch, window.dtype))
    allowed = 2e-4 if window.dtype == "float32" else 1e-10
    found = []
    for form in (lambda x: run_window(window, x), functions.get(name)):
        x = s.clone().requires_grad_()
        (first,) = torch.autograd.grad(form(x).sum(), x, create_graph=True)
        found.append((first, torch.autograd.grad(first.sum(), x)[0]))
    for mine, wanted in zip(*found, strict=True):
        assert (mine - wanted).abs().max() < allowed
    assert abs(found[0][0][3].item() - 0.5) < 2e-6


@each_window
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (3, 0, 2), (2, 5, 7), (engine.CHUNK + 3,), (2, engine.CHUNK)]
)
def test_shapes_are_kept_and_chunks_join(window: ClosedForm, name: str, shape: tuple[int, ...]) -> None:
    s = torch.randn(shape, dtype=getattr(torch, window.dtype), generator=torch.Generator().manual_seed(1)) * 3
    before = s.clone()
    fast, plain = both_paths(window, s)
    assert fast.shape == plain.shape == s.shape
    assert fast.dtype == plain.dtype == s.dtype
    assert torch.equal(s, before)
    assert torch.allclose(fast, plain, rtol=0, atol=16 * ARITHMETIC[window.dtype].unit)


@each_window
def test_strides_infinities_and_nan(window: ClosedForm, name: str) -> None:
    dtype, atol = getattr(torch, window.dtype), 16 * ARITHMETIC[window.dtype].unit
    grid = torch.linspace(-4, 4, 60, dtype=dtype).view(6, 10)
    for s in (grid.T, grid[:, ::3], grid[None, :1].expand(4, 1, 10)):
        assert torch.allclose(run_window(window, s), run_window(window, s.contiguous()), rtol=0, atol=atol)
    odd = torch.tensor([math.inf, -math.inf, math.nan, 3e38, -3e38], dtype=dtype)
    for y in both_paths(window, odd):
        assert y[2].isnan()
        assert y[[0, 1, 3, 4]].tolist() == [math.inf, 0, odd[3], 0]
    with pytest.raises(InputError, match="float16"):
        run_window(window, grid.half())


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch's own, in jvp
@pytest.mark.parametrize(
    "window", [WINDOWS[0][0], WINDOWS[2][0], TAIL, TANH], ids=["window", "gate", "tail", "tanh"]
)
def test_compilers_and_transforms_see_plain_operations(window: ClosedForm) -> None:
    s = torch.linspace(-4, 4, 12, dtype=getattr(torch, window.dtype))
    wanted, atol = run_window(window, s), 16 * ARITHMETIC[window.dtype].unit
    compiled = torch.compile(lambda x: run_window(window, x), fullgraph=True, backend="eager")
    assert torch.allclose(compiled(s), wanted, rtol=0, atol=atol)
    assert torch.allclose(torch.func.vmap(lambda x: run_window(window, x))(s), wanted, rtol=0, atol=atol)
    slope = torch.func.vmap(torch.func.grad(lambda x: run_window(window, x)))(s)
    _, along = torch.func.jvp(lambda x: run_window(window, x), (s,), (torch.ones_like(s),))
    assert torch.allclose(slope, along, rtol=0, atol=1e-4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(s, torch.ones_like(s))
        tangent = torch.autograd.forward_ad.unpack_dual(run_window(window, dual)).tangent
    assert torch.equal(tangent, along)


@each_lattice
def test_partial_sums_are_bounded_over_the_whole_cell(lattice: Lattice) -> None:
    """|G w^j (C_j + C_{j+1} w + …)| at both ends of a wide cell, where the middle alone would say too little."""
    assert_partial_sums(lattice_window(lattice))
    assert_partial_sums(TAIL)


def assert_partial_sums(window: Window | TailForm) -> None:
    cell = Cell(0.5, 1.5)
    with working(128, 11):
        r, middle = cell.radius(), arb(cell.middle)
        sums = _suffix_sums(_terms(window, middle, cell), _terms(window, middle + arb(0, r), cell), r)
        for s in (0.5, 0.75, 1.5):
            terms = [term[0] for term in _terms(window, arb(s), cell)]
            for j, bound in enumerate(sums):
                assert abs(sum(terms[j:], arb(0))) <= bound


def test_a_window_of_one_anchor() -> None:
    window, s = Window(1.0, 0.5, 0.0, (-0.4,), "float32"), torch.linspace(-3, 3, 101)
    for found in both_paths(window, s):
        torch.testing.assert_close(found, s.clamp(min=0) - 0.4 * torch.exp(-0.5 * s * s))


def test_a_gate_reads_the_token_as_it_is() -> None:
    numbers = gate_head(1.0)
    assert isinstance(window_of(numbers), Gate)
    assert window_of(replace(numbers, query=np.array([[2.0, 0.0]]))) is None


def exact_window(window: ClosedForm, s: float) -> arb:
    if isinstance(window, Gate):
        return arb(s) / (1 + (-(arb(window.slope) + arb(window.cubic) * arb(s) * arb(s)) * arb(s)).exp())
    if isinstance(window, TailForm):
        t, N = 1 / (1 + arb(window.rate) * abs(arb(s))), arb(0)
        for C in reversed(window.coefficients):
            N = N * t + arb(C)
        return (arb(s) if s > 0 else arb(0)) + (-arb(window.kappa) * arb(2).log() * arb(s) ** 2).exp() * N
    x, c = abs(arb(s)) / arb(window.spacing), arb(window.sharpness)
    w, total = (-2 * c * x).exp(), arb(0)
    for C in reversed(window.coefficients):
        total = total * w + arb(C)
    return (arb(s) if s > 0 else arb(0)) + (x * (arb(window.lead) - c * x)).exp() * total


@pytest.mark.parametrize(
    "window",
    [lattice_window(LATTICES[0]), Gate(1.75, "float32"), TAIL, TANH],
    ids=["window", "gate", "tail", "tanh"],
)
@pytest.mark.parametrize("order", [1, 2, 5])
def test_cells_of_any_width_contain_the_truth(window: ClosedForm, order: int) -> None:
    """|window - sin| at many points of a cell: wide cells and low orders are where a remainder counts."""
    f, a, draw, finite = functions.get("sin"), ARITHMETIC["float32"], np.random.default_rng(order), 0
    branch = f.pieces(-1, 1)[0].branch
    for _ in range(30):
        lo = float(draw.uniform(0, 3)) * float(draw.choice([-1, 1]))
        hi = lo + float(10.0 ** draw.uniform(-2, 0))
        if lo < 0 < hi:
            hi = 0.0
        with working(192, order + 1):
            found = _bound_cell(window, f, branch, Cell(lo, hi), order, a)
            for s in np.linspace(lo, hi, 9).tolist():
                assert abs(exact_window(window, s) - f.value(s)) <= arb(found.approximation)
            finite += math.isfinite(found.approximation)
    assert finite > 20


@pytest.mark.parametrize(
    "window",
    [lattice_window(LATTICES[0]), Gate(1.75, "float32"), TAIL, TANH],
    ids=["window", "gate", "tail", "tanh"],
)
@pytest.mark.parametrize(("lo", "hi"), [(-8.0, 8.0), (-3.3, 0.1), (0.07, 1000.0), (-1.0, 0.0)])
def test_cells_cover_the_domain_and_none_reaches_over_zero(window: ClosedForm, lo: float, hi: float) -> None:
    for name in ("gelu", "relu", "clip(-0.3,0.7)"):
        cells = sorted(
            (cell.a, cell.b) for cell, _ in _first_cells(window, functions.get(name), Interval(lo, hi))
        )
        assert cells[0][0] == lo and cells[-1][1] == hi
        assert all(before[1] == after[0] for before, after in pairwise(cells))
        assert not any(a < 0 < b for a, b in cells)


@each_dtype
@pytest.mark.parametrize("slope", [2.0**20, 2.0**10 * 1.5])
def test_relu_is_farthest_from_a_gate_where_it_is_said_to_be(dtype: str, slope: float) -> None:
    """t/(1 + e^t) is largest at t = 1.2784645427610738: the bound near there is at least the value there."""
    at = 1.2784645427610738 / slope
    near = Interval(at * (1 - 1e-9), at * (1 + 1e-9))
    proof = window_bound(Gate(slope, dtype), functions.relu(), near)
    with working(192):
        truth = arb(at) / (1 + (arb(slope) * arb(at)).exp())
        assert truth <= arb(proof.approximation)
        assert arb(proof.approximation) <= truth * (1 + arb(1e-6))
