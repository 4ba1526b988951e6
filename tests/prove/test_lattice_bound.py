"""The bound of lattice networks: models of the network, the bound on the box, rounding; all against balls."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array
from attnc.functions.balls import upper, working
from attnc.heads.tensor import Lattice
from attnc.heads.tensor_search import tensor_lattice
from attnc.lower.function_to_network import selection
from attnc.program import Traced
from attnc.prove.lattice import LatticeNetwork, NoLatticeError
from attnc.prove.lattice_bound import Effort, SingularError, check_defined, grid, lattice_bound, split
from attnc.prove.lattice_rounding import lattice_rounding
from attnc.prove.taylor import monomials
from attnc.records.layers import Layer
from tests.prove.traced_functions import BITS, corner_or_inside, exact_values, in_cell, model_value

PRODUCT = Traced(0, 2, (("constant", 3.0), ("multiply", 0, 1), ("multiply", 2, 3), ("sin", 4)), (5, 3))
LARGER = Traced(0, 2, (("maximum", 0, 1),), (2,))
LO, HI = np.array([-1.0, -0.5]), np.array([1.0, 2.0])


def fitted(f: Traced, eps: float, dtype: str) -> tuple[Lattice, Layer]:
    values = lambda x: f.approximate(torch.from_numpy(np.ascontiguousarray(x))).numpy()  # noqa: E731
    lattice = tensor_lattice(values, LO, HI, eps, dtype).lattice
    return lattice, selection(lattice, LO / 2 + HI / 2, dtype)


def exact_network(layer: Layer, point: list[arb]) -> list[arb]:
    """Σ softmax v in balls."""
    key, offset, values, centre = (
        layer.tensor(n).astype(np.float64).tolist() for n in ("key", "offset", "values", "centre")
    )
    at = [x - arb(o) for x, o in zip(point, centre, strict=True)]
    scores = [
        sum((arb(k) * x for k, x in zip(row, at, strict=True)), arb(c))
        for row, c in zip(key, offset, strict=True)
    ]
    weights = [z.exp() for z in scores]
    total = sum(weights, arb(0))
    return [
        sum((w * arb(v) for w, v in zip(weights, column, strict=True)), arb(0)) / total
        for column in zip(*values, strict=True)
    ]


@pytest.mark.parametrize(("eps", "dtype"), [(1e-5, "float64"), (1e-2, "float32")])
@pytest.mark.parametrize(("degree", "table", "cells"), [(5, 8, 6), (3, 3, 3)])
def test_models_of_the_network_are_contained(
    eps: float, dtype: str, degree: int, table: int, cells: int
) -> None:
    _, layer = fitted(PRODUCT, eps, dtype)
    assert LatticeNetwork.of(layer).shifted == (dtype == "float32")
    check_models(layer, degree, table, cells)


def test_offsets_that_are_no_sums_over_the_axes() -> None:
    _, layer = fitted(PRODUCT, 1e-5, "float64")
    offset = layer.tensor("offset") + np.random.default_rng(0).uniform(
        -0.01, 0.01, len(layer.tensor("offset"))
    )
    check_models(Layer(layer.kind, layer.inputs, layer.value, {**layer.tensors, "offset": offset}), 8, 12, 8)


def check_models(layer: Layer, degree: int, table: int, cells: int) -> None:
    """N = (network)·D at points of cells."""
    network, x = LatticeNetwork.of(layer), monomials(2, degree)
    centre, half = grid(LO, HI, cells)
    above, below = network.models(x, centre, half, table)
    draw = np.random.default_rng(0)
    for _ in range(20):
        cell, t = int(draw.integers(len(centre))), corner_or_inside(draw, 2)
        with working(BITS):
            d = model_value(below, cell, t) + arb(0, float(below.r[cell]))
            for y, model in zip(
                exact_network(layer, in_cell(centre[cell], half[cell], t)), above, strict=True
            ):
                n = model_value(model, cell, t) + arb(0, float(model.r[cell]))
                assert (n - y * d).contains(0)
            assert d.upper() * (1 + 4 * network.delta) >= 1


@pytest.mark.parametrize(
    ("f", "eps", "dtype"),
    [(PRODUCT, 1e-4, "float64"), (PRODUCT, 1e-2, "float32"), (LARGER, 6e-2, "float64")],
)
def test_the_bound_holds_and_is_sharp(f: Traced, eps: float, dtype: str) -> None:
    _, layer = fitted(f, eps, dtype)
    effort = Effort.for_target(2, eps, f.has_kinks)
    found = lattice_bound(f, LatticeNetwork.of(layer), LO, HI, 1.6 * eps, effort)
    assert found.finished and found.bound <= 1.6 * eps
    draw, largest = np.random.default_rng(1), 0.0
    with working(BITS):
        for _ in range(60):
            point = in_cell(LO / 2 + HI / 2, HI / 2 - LO / 2, corner_or_inside(draw, 2))
            for y, z in zip(exact_network(layer, point), exact_values(f, point), strict=True):
                assert abs(y - z) <= arb(found.bound)
                largest = max(largest, upper(abs(y - z)))
    assert found.bound <= 8 * largest
    tight = lattice_bound(f, LatticeNetwork.of(layer), LO, HI, largest / 4, effort)
    assert not tight.finished and tight.refuted is not None and tight.where is not None
    with working(BITS):
        at = [arb(x) for x in tight.where.tolist()]
        errors = [abs(y - z) for y, z in zip(exact_network(layer, at), exact_values(f, at), strict=True)]
        assert max(upper(e) for e in errors) >= tight.refuted > largest / 4


def test_an_altered_value_is_refuted() -> None:
    _, layer = fitted(PRODUCT, 1e-4, "float64")
    values = layer.tensor("values").copy()
    values[len(values) // 2] *= 1 + 1e-3
    altered = Layer(layer.kind, layer.inputs, layer.value, {**layer.tensors, "values": values})
    found = lattice_bound(
        PRODUCT, LatticeNetwork.of(altered), LO, HI, 1.6e-4, Effort.for_target(2, 1e-4, False)
    )
    assert not found.finished and found.refuted is not None


def test_no_time_leaves_a_bound_that_holds() -> None:
    _, layer = fitted(LARGER, 6e-2, "float64")
    network = LatticeNetwork.of(layer)
    effort = Effort.for_target(2, 0.06, True)
    whole = lattice_bound(LARGER, network, LO, HI, 0.1, effort)
    none = lattice_bound(LARGER, network, LO, HI, 0.1, Effort(effort.degree, effort.table, effort.cells, 0.0))
    assert whole.finished and not none.finished and none.bound >= whole.bound


def test_a_singularity_is_named_with_its_cell() -> None:
    f = Traced(0, 2, (("constant", 1.0), ("add", 0, 1), ("divide", 2, 3)), (4,))
    _, layer = fitted(LARGER, 6e-2, "float64")
    with pytest.raises(SingularError) as caught:
        lattice_bound(f, LatticeNetwork.of(layer), LO, HI, 1e9, Effort.for_target(2, 0.1, False))
    assert (caught.value.lo.sum() <= 0) and (caught.value.hi.sum() >= 0)


def test_functions_are_defined_or_not() -> None:
    check_defined(PRODUCT, LO, HI)
    check_defined(Traced(0, 2, (("constant", 1.001), ("add", 0, 2), ("log", 3)), (4,)), LO, HI)
    for operation in (("log", 1), ("sqrt", 0), ("power", 0, -1), ("divide", 0, 1)):
        with pytest.raises(SingularError) as caught:
            check_defined(Traced(0, 2, (operation,), (2,)), LO, HI)
        assert (caught.value.lo <= 0).any()


def test_keys_that_are_no_lattice_are_refused() -> None:
    _, layer = fitted(LARGER, 6e-2, "float64")
    key = layer.tensor("key").copy()
    key[0, 0] += 1.0
    with pytest.raises(NoLatticeError):
        LatticeNetwork.of(Layer(layer.kind, layer.inputs, layer.value, {**layer.tensors, "key": key}))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_bounded(dtype: str) -> None:
    """Executed outputs against the exact ones: at most the bound, and within a factor that many anchors explain."""
    _, layer = fitted(PRODUCT, 1e-2 if dtype == "float32" else 1e-6, dtype)
    a = ARITHMETIC[dtype]
    bound = lattice_rounding(layer, LO, HI, np.full(2, -2.0), np.full(2, 2.0), a)
    draw = np.random.default_rng(2)
    x = np.stack([LO / 2 + HI / 2 + (HI / 2 - LO / 2) * corner_or_inside(draw, 2) for _ in range(80)]).astype(
        dtype
    )
    key, offset, values, centre = (
        torch.from_numpy(layer.tensor(n)) for n in ("key", "offset", "values", "centre")
    )
    made = (torch.softmax((torch.from_numpy(x) - centre) @ key.T + offset, -1) @ values).double().numpy()
    largest = np.zeros(2)
    with working(BITS):
        for row, y in zip(x.astype(np.float64).tolist(), made.tolist(), strict=True):
            off = [
                abs(arb(v) - z) for v, z in zip(y, exact_network(layer, [arb(s) for s in row]), strict=True)
            ]
            assert all(e <= arb(b) for e, b in zip(off, bound.tolist(), strict=True))
            largest = np.maximum(largest, [upper(e) for e in off])
    assert (bound < 20 * len(key) * largest).all()


def covered(centre: Array, half: Array, x: Array) -> bool:
    return bool((np.abs(x - centre) <= half).all(1).any())


def test_cells_cover_the_box_also_after_splits() -> None:
    lo, hi = np.array([0.1, -1e3]), np.array([0.7, 1e3 / 3])
    centre, half = grid(lo, hi, 3)
    draw = np.random.default_rng(0)
    for _ in range(4):
        for x in (lo, hi, *(lo + draw.random((50, 2)) * (hi - lo)), *centre, *np.clip(centre + half, lo, hi)):
            assert covered(centre, half, x)
        centre, half = split(centre, half)
    assert math.isclose(float(half[:, 0].max()), 0.6 / 3 / 2**5, rel_tol=1e-6)
