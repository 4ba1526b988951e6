"""Tables of lattice networks, their interpolation and what execution adds: against balls, with zero slack."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC
from attnc.check.cell_values import RADII, above, below
from attnc.check.lattice import Lattice, chebyshev, contract, interpolant_size, two_product, two_sum
from attnc.check.lattice_execution import execution
from attnc.check.traced import Proof, exact_errors
from attnc.check.values import CheckError
from attnc.functions.balls import working
from attnc.program import Traced
from attnc.records.layers import Layer

PRECISION = 256


def random_layer(
    draw: np.random.Generator,
    counts: tuple[int, ...],
    outputs: int = 2,
    dtype: str = "float64",
    size: float = 10.0,
) -> Layer:
    """A lattice on [-1, 1]^d with random values, rounded as they are stored."""
    keys, offset, o = [], np.zeros(counts), draw.uniform(-0.1, 0.1, len(counts)).astype(dtype).astype(float)
    for j, g in enumerate(counts):
        points = np.linspace(-1.2, 1.2, g) if g > 1 else np.zeros(1)
        b = draw.uniform(0.2, 1.5) / max((points[1] - points[0]) ** 2 if g > 1 else 1.0, 1e-3)
        keys.append((2 * b * (points - o[j])).astype(dtype))
        offset = offset + (-b * (points - o[j]) ** 2).reshape(
            [-1 if i == j else 1 for i in range(len(counts))]
        )
    key = np.stack(np.meshgrid(*keys, indexing="ij"), -1).reshape(-1, len(counts))
    values = size * draw.normal(size=(len(key), outputs))
    numbers = {"centre": o, "key": key, "offset": offset.ravel(), "values": values}
    return Layer(
        "lookup", (0,), 1, {name: np.ascontiguousarray(x.astype(dtype)) for name, x in numbers.items()}
    )


def test_sums_and_products_lose_nothing() -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=200) * 10.0 ** draw.integers(-8, 8, 200) for _ in range(2))
    for found, exact in ((two_sum(a, b), arb.__add__), (two_product(a, b), arb.__mul__)):
        with working(PRECISION):
            for x, y, high, low in zip(a, b, *found, strict=True):
                assert arb(high) + arb(low) == exact(arb(x), arb(y))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_tables(dtype: str) -> None:
    """Entries at nodes, their largest values on real and complex cells, Jensen's inequality, and interpolants between nodes."""
    draw, degree = np.random.default_rng(1), 6
    net = Lattice(random_layer(draw, (9,), 1, dtype))
    low = draw.uniform(-1, 0.5, 6)
    high = low + 10 ** draw.uniform(-3, -0.3, 6)
    table = net.axis(0, low, high)
    entries, remainder, matrix = table.at_nodes(degree), table.remainder(degree), chebyshev(degree)[2]
    with working(PRECISION):
        for i, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            for t in [arb(1), arb(-1), arb(float(draw.uniform(-1, 1)))]:
                e = _exponentials(net, table, i, (arb(a) + arb(b)) / 2, t)
                assert sum(e, arb(0)) > arb(float(table.least[i])) > 0.9
                tau = [(t.acos() * m).cos() if abs(t) < 1 else t**m for m in range(degree + 1)]
                for k, y in enumerate(e):
                    assert y < arb(float(table.top[i, k]))
                    line = matrix @ entries[i, :, k]
                    made = sum((arb(float(c)) * s for c, s in zip(line, tau, strict=True)), arb(0))
                    room = arb(float(remainder[i, k])) + arb(float(table.top[i, k])) * 2.0**-44
                    assert not abs(made - y) > room
            for r, most in zip(RADII.tolist(), table.reach[:, i].tolist(), strict=True):
                ends = [_exponentials(net, table, i, (arb(a) + arb(b)) / 2, arb(s * r)) for s in (-1, 1)]
                assert all(max(float(p[k].mid()) for p in ends) <= most for k in range(len(ends[0])))
            for n in range(degree + 1):
                node = (arb.pi() * (2 * n + 1) / (2 * degree + 2)).cos()
                for y, found, top in zip(
                    _exponentials(net, table, i, (arb(a) + arb(b)) / 2, node),
                    entries[i, n],
                    table.top[i],
                    strict=True,
                ):
                    assert abs(y - arb(float(found))) <= 8 * 2.0**-53 * arb(float(top))


def _exponentials(net: Lattice, table: object, i: int, middle: arb, t: arb) -> list[arb]:
    """e_k(t) from the stored pairs, whose first parts are compared with the stored keys."""
    score, slope = table.score, table.slope  # type: ignore[attr-defined]
    found = []
    for k, (key, offset) in enumerate(zip(net.key[0].tolist(), net.offset[0].tolist(), strict=True)):
        z = arb(float(score[0][i, k])) + arb(float(score[1][i, k]))
        if k:
            first = arb(float(score[0][i, 0])) + arb(float(score[1][i, 0]))
            true = (
                (arb(key) - arb(float(net.key[0][0]))) * (middle - arb(float(net.centre[0])))
                + arb(offset)
                - arb(float(net.offset[0][0]))
            )
            assert abs(z - first - true) < 2.0**-80
        a = arb(float(slope[0][i, k])) + arb(float(slope[1][i, k]))
        found.append((z + a * t).exp())
    return found


def test_contractions() -> None:
    draw = np.random.default_rng(2)
    numbers, tables = draw.normal(size=(2, 3, 4, 5)), [draw.normal(size=(6, 2, g)) for g in (3, 4, 5)]
    index = draw.integers(0, 6, (40, 3))
    found = contract(numbers, tables, index)
    for i, (a, b, c) in enumerate(index):
        wanted = np.einsum("oabc,pa,qb,rc->opqr", numbers, tables[0][a], tables[1][b], tables[2][c])
        assert np.allclose(found[i], wanted)


def test_the_sum_of_coefficients_bounds_a_polynomial() -> None:
    draw, degree = np.random.default_rng(3), 5
    coefficients = draw.normal(size=(4, 6, 6))
    theta = np.arccos(chebyshev(degree)[0])
    basis = np.cos(np.outer(np.arange(6), theta))
    size, spectrum = interpolant_size(np.einsum("mab,ap,bq->mpq", coefficients, basis, basis), degree)
    assert np.allclose(spectrum, np.abs(coefficients)) and (size >= np.abs(coefficients).sum((1, 2))).all()
    assert (size <= np.abs(coefficients).sum((1, 2)) * (1 + 1e-8)).all()


@pytest.mark.parametrize(
    ("counts", "dtype"),
    [((7,), "float64"), ((6, 5), "float32"), ((4, 3, 3), "float64"), ((3, 2, 3, 2), "float64")],
)
def test_bounds_of_cells_hold_at_points(counts: tuple[int, ...], dtype: str) -> None:
    """A network with any values, a function that it does not approximate: the bound of each cell, at its corners and inside."""
    draw, d = np.random.default_rng(len(counts)), len(counts)
    layer = random_layer(draw, counts, 2, dtype, 0.2)
    operations = [("multiply", 0, d - 1), ("sin", d), ("exp", d + 1), ("absolute", d), ("maximum", d + 3, 0)]
    f = Traced(0, d, tuple(operations), (d + 2, d + 4))
    low = draw.uniform(-1, 0.7, (30, d))
    high = low + 10 ** draw.uniform(-3, -0.6, (30, d))
    bound, _, rest = Proof(f, layer, -np.ones(d), np.ones(d), math.inf).bounds(low, high, 4)
    assert (rest > 0).any() and (rest == 0).any()
    tight = []
    for cell in range(len(low)):
        largest = 0.0
        for _ in range(6):
            t = np.where(draw.random(d) < 0.5, draw.integers(0, 2, d), draw.random(d))
            x = np.clip(low[cell] + t * (high[cell] - low[cell]), low[cell], high[cell])
            with working(PRECISION):
                errors = exact_errors(f, layer, x)
                assert all(error <= arb(float(bound[cell])) for error in errors)
            largest = max(largest, *(float(error.mid()) for error in errors))
        tight.append(bound[cell] / largest)
    assert np.median(tight) < 1.2


@pytest.mark.parametrize(
    ("counts", "dtype"), [((9,), "float32"), ((8, 7), "float64"), ((5, 4, 4), "float32")]
)
def test_execution_stays_within_its_bound(counts: tuple[int, ...], dtype: str) -> None:
    draw, d = np.random.default_rng(7), len(counts)
    layer = random_layer(draw, counts, 2, dtype, 100.0)
    values = layer.tensors["values"].astype(np.float64)
    ends = below(values.min(0)), above(values.max(0))
    bound = execution(layer, -np.ones(d), np.ones(d), ends, ARITHMETIC[dtype])
    finer = execution(layer, -np.ones(d), np.ones(d), ends, ARITHMETIC[dtype], 2)
    assert (finer <= bound).all()
    x = np.clip(draw.uniform(-1.3, 1.3, (400, d)), -1, 1).astype(dtype)
    o, key, offset, v = (
        torch.from_numpy(layer.tensors[name].copy()) for name in ("centre", "key", "offset", "values")
    )
    executed = (torch.softmax((torch.from_numpy(x) - o) @ key.T + offset, -1) @ v).double().numpy()
    zero, largest = Traced(0, d, (("constant", 0.0),), (d, d)), np.zeros(2)
    for point, found in zip(x.astype(np.float64)[:60], executed, strict=False):
        with working(PRECISION):
            scores = exact_errors(zero, layer, point)  # |network|
            for i, (y, size) in enumerate(zip(found.tolist(), scores, strict=True)):
                off = abs(abs(arb(y)) - size)
                assert off <= arb(float(finer[i]))
                largest[i] = max(largest[i], float(off.mid()))
    assert (largest > 0).all()


def test_coarse_cells() -> None:
    """8x⁴ - 8x² + 1 is 0 at the four nodes of degree 3, and 1 between them: the bound of a cell has more than its interpolant."""
    draw, missed = np.random.default_rng(11), 0
    layer = random_layer(draw, (5, 4), 1, "float64", 1e-3)
    operations = [
        ("power", 0, 2),
        ("constant", 8.0),
        ("multiply", 2, 3),
        ("constant", 1.0),
        ("subtract", 2, 5),
        ("multiply", 4, 6),
    ]
    f = Traced(0, 2, (*operations, ("add", 7, 5)), (8,))
    low, high = np.array([[-1.0, -1.0], [-1.0, 0.0]]), np.array([[1.0, 1.0], [1.0, 0.5]])
    proof = Proof(f, layer, -np.ones(2), np.ones(2), math.inf)
    bound, _, _ = proof.bounds(low, high, 3)
    sizes = proof._sizes(low, high)
    alone = bound - proof._remainders(sizes, 3)[0] / sizes.least
    for cell in range(len(low)):
        for x in low[cell] + draw.random((40, 2)) * (high[cell] - low[cell]):
            with working(PRECISION):
                (error,) = exact_errors(f, layer, x)
                assert error <= arb(float(bound[cell]))
                missed += bool(error > arb(float(alone[cell])))
    assert missed > 20


def test_sums_over_anchors() -> None:
    """Numerators at nodes, whose terms are much larger than their sums, against balls: within the stated rounding."""
    draw, degree = np.random.default_rng(12), 4
    net = Lattice(random_layer(draw, (8,), 1, "float64", 1e6))
    table = net.axis(0, np.array([-0.7, 0.1]), np.array([-0.2, 0.6]))
    index = np.arange(2)[:, None]
    sums = contract(net.numbers, [table.at_nodes(degree)], index)
    scale = contract(net.sizes, [table.top[:, None]], index)[:, :, 0]
    seen = 0.0
    with working(PRECISION):
        for i in range(2):
            middle = (arb([-0.7, 0.1][i]) + arb([-0.2, 0.6][i])) / 2
            for n in range(degree + 1):
                e = _exponentials(net, table, i, middle, (arb.pi() * (2 * n + 1) / (2 * degree + 2)).cos())
                for o in range(2):
                    exact = sum((arb(float(v)) * y for v, y in zip(net.numbers[o], e, strict=True)), arb(0))
                    off = abs(exact - arb(float(sums[i, o, n])))
                    assert off <= arb(net.rounding) * arb(float(scale[i, o]))
                    seen = max(seen, float(off.mid()) / float(scale[i, o]))
    assert net.rounding < 1000 * seen


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_execution_is_at_least_its_formula_at_points(dtype: str) -> None:
    """Each of its terms at points, from the formula for one input: the bound of the grid is above it, by less than a half."""
    draw, u, a = (
        np.random.default_rng(13),
        {"float64": 2.0**-53, "float32": 2.0**-24}[dtype],
        ARITHMETIC[dtype],
    )
    layer = random_layer(draw, (9, 8), 1, dtype, 50.0)
    o, key, offset, v = (
        layer.tensors[name].astype(np.float64) for name in ("centre", "key", "offset", "values")
    )
    ends = v.min(0), v.max(0)
    (bound,) = execution(layer, -np.ones(2), np.ones(2), ends, a, 2)
    x = np.clip(draw.uniform(-1.2, 1.2, (4000, 2)), -1, 1)
    z = (x - o) @ key.T + offset
    w = np.exp(z - z.max(1, keepdims=True))
    w /= w.sum(1, keepdims=True)
    size = np.abs(v - (ends[0] + ends[1]) / 2)[:, 0] + (ends[1] - ends[0]) / 2
    eta = 4 * u * (np.abs(x - o) @ np.abs(key).T + np.abs(offset))
    moved = (w * (eta + u * np.maximum(1, -np.log(np.maximum(w, 1e-300))) + a.exp_units * u)) @ size
    passed = (len(v) + 4) * u * (w @ np.abs(v))[:, 0]
    formula = float((moved + len(v) * u * np.abs(v).max() + passed).max())
    assert formula * 0.999 <= bound <= 1.5 * formula


def test_a_kink_alone() -> None:
    """|x| on [-1, ½] is 1 at an end, where the middle of its chord is ⅔."""
    layer = random_layer(np.random.default_rng(3), (4,), 1, "float64", 1e-6)
    for operations in ([("absolute", 0)], [("negate", 0), ("maximum", 0, 1)]):
        f = Traced(0, 1, tuple(operations), (len(operations),))
        bound, _, rest = Proof(f, layer, -np.ones(1), np.ones(1), math.inf).bounds(
            np.array([[-1.0]]), np.array([[0.5]]), 4
        )
        assert 0.33 < rest[0] < 0.34 and 1 <= bound[0] < 1.3


def test_other_keys_are_refused() -> None:
    layer = random_layer(np.random.default_rng(0), (4, 3))
    changed = {name: layer.tensors[name].copy() for name in ("key", "offset")}
    changed["key"][[0, 1]] = changed["key"][[1, 0]]
    changed["offset"][5] += 1.0
    for name, numbers in changed.items():
        with pytest.raises(CheckError):
            Lattice(Layer("lookup", (0,), 1, {**layer.tensors, name: numbers}))
