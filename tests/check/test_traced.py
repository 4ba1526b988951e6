"""Lattice networks for traced functions: what the checker proves, and false claims that it must not prove."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor

import attnc
from attnc.arithmetic import ARITHMETIC
from attnc.check.compose import compose
from attnc.check.network import check_network
from attnc.check.traced import Proof, check_traced, exact_errors, output_range
from attnc.check.values import CheckError, TracedErrors
from attnc.functions.balls import working
from attnc.network.network import Network
from attnc.program import Program, Traced
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up
from attnc.records.layers import Layer, NetworkNumbers

PAIR = attnc.Box(-1, 1, shape=(2, 1))


def wave(x: Tensor) -> Tensor:
    return torch.sin(3 * x[:, :1] * x[:, 1:])


def largest_of_two(x: Tensor) -> Tensor:
    return x.amax(1, keepdim=True)


def bell(x: Tensor) -> Tensor:
    return torch.exp(-(x[:, :1] ** 2)) * x[:, 1:]


SOURCES: dict[str, tuple[Callable[[Tensor], Tensor], float, torch.dtype]] = {
    "wave": (wave, 1e-5, torch.float64),
    "kink": (largest_of_two, 5e-2, torch.float64),
    "bell": (bell, 1e-2, torch.float32),
}


@pytest.fixture(scope="module")
def nets() -> dict[str, Network]:
    made = {}
    for name, (f, eps, dtype) in SOURCES.items():
        made[name] = attnc.compile(f, domain=PAIR, eps=eps, dtype=dtype, tokens=1)
        assert made[name].certificate.proved, name
    return made


def parts(net: Network) -> tuple[Program, NetworkNumbers, Certificate, Layer, Traced]:
    numbers = net.numbers()
    (layer,) = (layer for layer in numbers.layers if layer.kind == "lookup")
    (step,) = (step for step in net.program.steps if isinstance(step, Traced))
    return net.program, numbers, net.certificate, layer, step


def proof(net: Network, claimed: float, step: Traced | None = None, layer: Layer | None = None) -> Proof:
    _, _, _, stored, traced = parts(net)
    return Proof(step or traced, layer or stored, -np.ones(2), np.ones(2), claimed)


def attained(net: Network, points: int = 3000) -> float:
    """The largest error in exact arithmetic that a search finds, corners and edges included: a lower bound, from balls."""
    _, _, _, layer, step = parts(net)
    draw = np.random.default_rng(5)
    x = np.clip(draw.uniform(-1.5, 1.5, (points, 2)), -1, 1)
    x[::2, 1] = x[::2, 0]
    o, key, offset, v = (
        layer.tensors[name].astype(np.float64) for name in ("centre", "key", "offset", "values")
    )
    z = (x - o) @ key.T + offset
    w = np.exp(z - z.max(1, keepdims=True))
    off = np.abs(w @ v / w.sum(1, keepdims=True) - step.approximate(torch.from_numpy(x)).numpy()).max(1)
    best = x[off.argmax()]
    with working(256):
        return float(max(e.lower() for e in exact_errors(step, layer, best)))


@pytest.mark.parametrize("name", SOURCES)
def test_what_compile_proves_is_proved_again(nets: dict[str, Network], name: str, tmp_path: Path) -> None:
    verdict = attnc.verify(nets[name])
    assert verdict.status is Status.PROVED and verdict.cells > 0
    nets[name].save(tmp_path / "net.safetensors")
    assert attnc.verify(tmp_path / "net.safetensors").status is Status.PROVED


@pytest.mark.parametrize("name", SOURCES)
def test_the_bound_holds_at_points_with_zero_slack(nets: dict[str, Network], name: str) -> None:
    """Random points, corners and faces, in 256-bit balls."""
    _, _, certificate, layer, step = parts(nets[name])
    draw = np.random.default_rng(1)
    corners = np.array([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 0.0, 1.0)])
    for x in [*corners, *np.clip(draw.uniform(-1.3, 1.3, (24, 2)), -1, 1)]:
        with working(256):
            assert all(error <= arb(certificate.approximation) for error in exact_errors(step, layer, x))


@pytest.mark.parametrize("name", SOURCES)
def test_the_check_is_sharp(nets: dict[str, Network], name: str) -> None:
    """A claim 8 % above the largest error that is found is proved; one 1 % below it is refuted or unknown."""
    least = attained(nets[name])
    proof(nets[name], 1.08 * least).run()
    with pytest.raises(CheckError):
        proof(nets[name], 0.99 * least).run(20_000, 1 << 24)


def test_a_false_claim_is_refuted_with_an_input(nets: dict[str, Network]) -> None:
    _, _, _, layer, step = parts(nets["wave"])
    with pytest.raises(CheckError) as caught:
        proof(nets["wave"], 0.9 * attained(nets["wave"])).run()
    assert caught.value.input is not None and caught.value.error is not None
    with working(256):
        assert max(exact_errors(step, layer, np.array(caught.value.input))[0], arb(0)) >= arb(
            caught.value.error
        )


def lowered(certificate: Certificate, factor: float) -> Certificate:
    """The certificate with smaller terms, everywhere."""
    terms = {name: round_up(factor * getattr(certificate, name)) for name in ("approximation", "bound")}
    children = tuple(lowered(child, factor) for child in certificate.children)
    return replace(certificate, **terms, children=children)


def test_a_certificate_that_claims_less_is_not_proved(nets: dict[str, Network]) -> None:
    program, numbers, certificate, _, _ = parts(nets["wave"])
    factor = 0.99 * attained(nets["wave"]) / certificate.approximation
    forged = lowered(certificate, factor)
    assert forged.witness is not None
    forged = replace(forged, witness=replace(forged.witness, error=0.0))
    assert check_network(program, numbers, certificate).status is Status.PROVED
    assert check_network(program, numbers, forged).status is not Status.PROVED


def test_claims_that_are_too_small(nets: dict[str, Network]) -> None:
    """Each term by itself, without the attack on the network."""
    _, _, certificate, layer, step = parts(nets["wave"])
    (claim,) = certificate.parts("lookup")
    a, least = ARITHMETIC["float64"], attained(nets["wave"])
    errors, cells = check_traced(step, layer, PAIR, claim, a)
    assert cells > 0 and errors.executed <= claim.bound and errors.approximation <= claim.approximation
    low = 0.99 * least
    for terms in (
        {"approximation": low, "bound": low},
        {"bound": low},
        {"bound": least, "approximation": 1.0},
    ):
        with pytest.raises(CheckError):
            check_traced(step, layer, PAIR, replace(claim, **terms), a)


def test_inputs_outside_the_box(nets: dict[str, Network]) -> None:
    program, numbers, _, layer, _ = parts(nets["wave"])
    wider = attnc.Box(-1, np.nextafter(1.0, 2.0), shape=(2, 1))
    errors = TracedErrors(-np.ones(2), np.ones(2), -np.ones(1), np.ones(1), 1e-5, 1e-5)
    assert compose(program, numbers.layers, PAIR, {layer.value: errors}, "float64")
    for box, given in ((wider, {layer.value: errors}), (PAIR, {})):
        with pytest.raises(CheckError):
            compose(program, numbers.layers, box, given, "float64")


def altered_value(layer: Layer, at: int, by: float) -> Layer:
    values = layer.tensors["values"].copy()
    values[at] += by
    return replace(layer, tensors={**layer.tensors, "values": values})


def test_one_changed_value_is_not_proved(nets: dict[str, Network]) -> None:
    _, _, certificate, layer, _ = parts(nets["wave"])
    middle = len(layer.tensors["values"]) // 2
    proof(nets["wave"], certificate.approximation).run()
    for at in (0, middle):
        with pytest.raises(CheckError):
            proof(nets["wave"], certificate.approximation, layer=altered_value(layer, at, 1.0)).run(
                20_000, 1 << 24
            )


def test_one_changed_operation_is_not_proved(nets: dict[str, Network]) -> None:
    _, _, certificate, _, step = parts(nets["wave"])
    for i, operation in enumerate(step.operations):
        others: list[Any] = {"constant": [("constant", math.nextafter(3.0, 4.0) + 1e-4)], "multiply": [("add", *operation[1:])],
                             "sin": [("cos", operation[1]), ("erf", operation[1])]}[operation[0]]  # fmt: skip
        for other in others:
            operations = (*step.operations[:i], other, *step.operations[i + 1 :])
            changed = Traced(step.input, step.width, operations, step.returned)
            with pytest.raises(CheckError):
                proof(nets["wave"], certificate.approximation, step=changed).run(20_000, 1 << 24)


def test_a_larger_box_is_not_proved(nets: dict[str, Network]) -> None:
    _, _, certificate, layer, step = parts(nets["wave"])
    with pytest.raises(CheckError):
        Proof(step, layer, -np.ones(2), np.array([1.0, 1.1]), certificate.approximation).run(20_000, 1 << 24)


def test_a_limit_of_work_is_not_a_proof(nets: dict[str, Network]) -> None:
    with pytest.raises(CheckError, match="not proved") as caught:
        proof(nets["kink"], parts(nets["kink"])[2].approximation).run(most_cells=40)
    assert caught.value.error is None


@pytest.mark.parametrize(
    "operations",
    [
        (("constant", 0.5), ("add", 0, 2), ("divide", 1, 3)),
        (("log", 0), ("exp", 2), ("add", 1, 1)),
        (("multiply", 0, 1), ("sqrt", 2), ("power", 3, 2)),
        (("power", 0, -1), ("constant", 0.0), ("multiply", 3, 2)),
        (("divide", 0, 1), ("add", 0, 1)),
        (("multiply", 0, 0), ("constant", 1e-30), ("subtract", 2, 3), ("sqrt", 4)),
    ],
)
def test_functions_that_are_not_defined_everywhere(
    operations: tuple[Any, ...], nets: dict[str, Network]
) -> None:
    """Also where the undefined value is multiplied by 0, or not returned."""
    f = Traced(0, 2, operations, (1 + len(operations),))
    with pytest.raises(CheckError):
        output_range(f, -np.ones(2), np.ones(2), 4000)
    with pytest.raises(CheckError):
        proof(nets["wave"], 1e3, step=f).run(4000, 1 << 22)


def test_ranges_contain_the_values_and_are_not_wide() -> None:
    f = Traced(0, 2, (("multiply", 0, 0), ("multiply", 1, 1), ("add", 2, 3), ("sqrt", 4)), (5,))
    low, high = output_range(f, -np.ones(2), np.ones(2))
    assert low <= 0 and math.sqrt(2) <= high <= 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "shape", "eps", "limit"),
    [
        (lambda x: torch.softmax(3 * x, 1), (3, 1), 1e-4, 60),
        (lambda x: torch.sin(x[:, :1] + x[:, 1:2] * x[:, 2:]), (3, 1), 1e-6, 30),
        (lambda x: torch.linalg.inv(x + 3 * torch.eye(2, dtype=x.dtype)), (2, 2), 1e-4, 120),
        (lambda x: x.sort(1).values, (3, 1), 3e-2, 120),
    ],
)
def test_functions_of_three_and_four_variables(
    f: Any, shape: tuple[int, int], eps: float, limit: float
) -> None:
    tokens = f(torch.zeros(1, *shape, dtype=torch.float64)).shape[1]
    net = attnc.compile(f, domain=attnc.Box(-1, 1, shape=shape), eps=eps, dtype=torch.float64, tokens=tokens)
    assert net.certificate.proved
    assert attnc.verify(net).status is Status.PROVED
