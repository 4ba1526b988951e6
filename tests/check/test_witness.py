"""A witness may claim the error that its input is seen to have, and no more, however large the other terms are said to be."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flint import arb
from torch import nn

import attnc
from attnc import functions
from attnc.check.execution import ROOM, attained, execute_network, execute_one, head_error, network_errors
from attnc.check.head import check_head as check
from attnc.check.network import check_network
from attnc.errors import CertificateError
from attnc.functions.balls import working
from attnc.records.certificate import Certificate, Witness

HEADS = [
    ("relu", (-8, 8), torch.float32), ("tanh", (-8, 8), torch.float32), ("gelu", (-8, 8), torch.float64),
    ("silu", (-8, 8), torch.float32), ("identity", (-3, 5), torch.float32), ("sin", (-3, 3), torch.float64),
]  # fmt: skip


def made(name: str, on: tuple[float, float], dtype: torch.dtype) -> attnc.Head:
    return attnc.head(name, domain=on, eps=2e-3, dtype=dtype)


@pytest.mark.parametrize(("name", "on", "dtype"), HEADS)
def test_a_heads_witness_is_attained_and_no_more_is_believed(
    name: str, on: tuple[float, float], dtype: torch.dtype
) -> None:
    head = made(name, on, dtype)
    known = head.certificate
    assert known is not None and attnc.verify(head).status == "proved"
    seen = attained(head_error(head.numbers(), functions.get(name), known.witness.input[0]))
    assert known.witness.error <= ROOM * seen
    executed = float(head(torch.tensor(known.witness.input, dtype=dtype)))
    with working(192):
        own = abs(arb(executed) - functions.get(name).value(known.witness.input[0]))
        assert arb(known.witness.error) <= own
    for claim in (math.nextafter(seen, math.inf), 2 * seen, 35 * seen, max(0.99 * known.bound, 1.01 * seen)):
        for terms in ({}, {"rounding": known.bound}, {"rounding": 1e3 * known.bound}):
            false = replace(known, witness=replace(known.witness, error=claim), **terms)
            assert check(head.numbers(), false).status != "proved", claim / seen
    exactly = replace(known, witness=replace(known.witness, error=seen))
    assert check(head.numbers(), exactly).status == "proved"


def test_a_witness_is_a_finite_number_of_the_domain_that_the_dtype_holds() -> None:
    head = made("relu", (-8, 8), torch.float32)
    known = head.certificate
    assert known is not None
    for at in (9.0, -8.000001, 0.1, 1e300):
        assert check(head.numbers(), replace(known, witness=Witness((at,), 0, 0.0))).status == "unknown"
    for at, error in ((math.nan, 0.0), (0.0, math.inf), (0.0, -1.0)):
        with pytest.raises(CertificateError):
            Witness((at,), 0, error)


def network(dtype: torch.dtype, activation: nn.Module) -> attnc.Network:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 24), activation, nn.Linear(24, 16), activation, nn.Linear(16, 2)).to(
        dtype
    )
    return attnc.compile(model.eval(), domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-2, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU()], ids=["tanh", "relu"])
def test_a_networks_witness_is_attained_and_no_more_is_believed(
    dtype: torch.dtype, activation: nn.Module, tmp_path: Path
) -> None:
    net = network(dtype, activation)
    known = net.certificate
    assert isinstance(known, Certificate) and attnc.verify(net).status == "proved"
    net.save(tmp_path / "net.safetensors")
    assert attnc.verify(tmp_path / "net.safetensors").status == "proved"
    at = np.array(known.witness.input)
    seen = attained(network_errors(net.program, net.numbers(), at)[known.witness.output])
    assert 0 < known.witness.error <= ROOM * seen
    for factor in (1 + 2.0**-50, 1.01, 2.0, 35.0):
        claim = min(factor * seen, known.bound)
        for terms in ({}, {"rounding": known.bound}):
            false = replace(known, witness=replace(known.witness, error=claim), **terms)
            judged = check_network(net.program, net.numbers(), false)
            assert claim > seen and judged.status == "unknown" and "witness" in judged.reason
    exactly = replace(known, witness=replace(known.witness, error=seen))
    assert check_network(net.program, net.numbers(), exactly).status == "proved"


def test_a_rounding_said_to_be_as_large_as_the_bound_does_not_shield_a_witness() -> None:
    """What was found: with the term of rounding at the bound, resealed, the witness could be anything up to it."""
    net = network(torch.float64, nn.ReLU())
    known = net.certificate
    assert known is not None
    witness = replace(known.witness, error=0.999 * known.bound)
    false = Certificate.from_json(replace(known, rounding=known.bound, witness=witness).to_json())
    assert check_network(net.program, net.numbers(), false).status == "unknown"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_input_is_executed_the_same_on_every_run(dtype: torch.dtype) -> None:
    net = network(dtype, nn.Tanh())
    numbers, x = net.numbers(), np.array([0.25, -0.5, 1.0])
    first = execute_one(net.program, numbers, x)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert np.array_equal(execute_one(net.program, numbers, x.copy()), first)
    finally:
        torch.set_num_threads(threads)
    together = execute_network(net.program, numbers, torch.tensor(x, dtype=dtype)[None])[0].numpy()
    assert np.abs(first - together).max() <= 2 * net.certificate.rounding


def test_a_lookups_witness_is_possible() -> None:
    """Of a black box values and a Lipschitz constant are stored: a witness that no such function has is false."""
    net = attnc.compile(
        lambda x: x.abs().sum(-1, keepdim=True),
        domain=attnc.Box(-1, 1, shape=(2,)),
        eps=0.25,
        lipschitz=2.0,
        dtype=torch.float64,
    )
    known = net.certificate
    assert isinstance(known, Certificate) and known.parts("lookup") and attnc.verify(net).status == "proved"
    at = np.array(known.witness.input)
    most = attained(network_errors(net.program, net.numbers(), at)[0], known=False)
    assert known.witness.error <= ROOM * most
    false = replace(known, witness=replace(known.witness, error=math.nextafter(most, math.inf)))
    assert check_network(net.program, net.numbers(), false).status == "unknown"
