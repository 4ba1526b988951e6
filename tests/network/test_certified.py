"""Certificates for given inputs of heads and networks: never below the error, hardly above it, refused where nothing is known."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor, nn

import attnc
from attnc import Box, functions
from attnc.errors import InputError
from attnc.functions.balls import working
from attnc.network.certified import Certified, distance
from attnc.network.network import Network
from attnc.program.evaluate import exact
from attnc.records.certificate import Certificate
from attnc.records.record import write

WIDE = 400


def mlp(activation: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 9), activation, nn.Linear(9, 3)).to(dtype).eval()


@pytest.fixture(scope="module")
def net() -> Network:
    return attnc.compile(mlp(nn.GELU()), domain=Box(-2, 2, shape=(5,)), eps=1e-3)


def assert_tight(found: Certified, truth: np.ndarray, loose: float = 1.01) -> None:
    """With zero slack: error <= bound <= loose·error."""
    with working(WIDE):
        triples = zip(
            found.value.double().flatten().tolist(), found.bound.flatten().tolist(), truth.flat, strict=True
        )
        for value, bound, ball in triples:
            error = abs(arb(value) - ball)
            assert error <= bound and bound <= loose * error + arb(1e-30)
    assert found.bound.dtype == torch.float64 and found.bound.shape == found.value.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU()], ids=str)
def test_networks_under_attack(activation: nn.Module, dtype: torch.dtype) -> None:
    network = attnc.compile(mlp(activation, dtype), domain=Box(-2, 2, shape=(5,)), eps=1e-3)
    x = 4 * torch.rand(4, 10, 5, dtype=dtype) - 2
    x[0, 0], x[0, 1] = 2.0, 0.0
    found = network.certified(x)
    assert torch.equal(found.value, network(x)) and found.largest <= network.certificate.bound
    assert_tight(found, exact(network.program, x.double().numpy(), WIDE))


@pytest.mark.parametrize("name", ["gelu", "relu", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_heads_under_attack(name: str, dtype: torch.dtype) -> None:
    head = attnc.head(name, domain=(-4, 4), eps=1e-4, dtype=dtype)
    s = torch.cat([torch.linspace(-4, 4, 33, dtype=dtype), 1e-3 * torch.randn(8, dtype=dtype)])
    found = head.certified(s)
    assert torch.equal(found.value, head(s)) and found.largest <= head.certificate.bound
    with working(WIDE):
        truth = np.array([functions.get(name).value(v) for v in s.tolist()], dtype=object)
    assert_tight(found, truth)


def test_a_function_of_your_own() -> None:
    f = attnc.function(lambda s: 1 / (1 + s * s), name="bell", enclosure=lambda x: 1 / (1 + x * x))
    head = attnc.head(f, domain=(-1, 1), eps=1e-3)
    assert head.certified(torch.zeros(2), f).largest <= head.certificate.bound
    with pytest.raises(InputError):
        head.certified(torch.zeros(2))
    with pytest.raises(InputError):
        head.certified(torch.zeros(2), "tanh")


@pytest.mark.parametrize("bad", [2.5, torch.nan, torch.inf])
def test_inputs_outside_are_refused(net: Network, bad: float) -> None:
    head = attnc.head("tanh", domain=(-2, 2), eps=1e-3)
    x = torch.zeros(3, 5)
    x[1, 2] = bad
    for module in (net, head):
        with pytest.raises(InputError):
            module.certified(x)
    with pytest.raises(InputError):
        net.certified(torch.zeros(3, 5, dtype=torch.float64))


def test_arrays_that_the_network_would_round_are_refused(net: Network) -> None:
    """The bound is for x as it is given, with zero slack."""
    x = np.random.default_rng(0).uniform(-2, 2, (4, 5))
    exactly = x.astype(np.float32)
    for wrong in (x, x.astype(np.longdouble), np.full((1, 5), 2**24 + 1) / 2**24):
        with pytest.raises(InputError, match=r"astype\(np\.float32\)"):
            net.certified(wrong)
    for given in (exactly, exactly.astype(np.float64), np.ones((2, 5), dtype=np.int64)):
        found = net.certified(given)
        assert_tight(found, exact(net.program, given.astype(np.float64), WIDE))


def test_changed_and_measured_networks_are_refused(net: Network) -> None:
    changed = copy.deepcopy(net)
    with torch.no_grad():
        next(changed.parameters()).add_(1e-3)
    measured = attnc.compile(torch.i0, domain=Box(-1, 1, shape=(5,)), eps=0.5, method="fit")
    assert measured.certificate.status == "measured"
    hooked = copy.deepcopy(net)
    hooked.register_forward_hook(lambda module, given, out: out + 1)
    for module in (changed, hooked, measured):
        with pytest.raises(InputError):
            module.certified(torch.zeros(1, 5))


def test_nothing_in_nothing_out(net: Network) -> None:
    found = net.certified(torch.zeros(0, 5))
    assert found.bound.shape == (0, 3) and found.largest == 0.0


def test_distances_are_rounded_up() -> None:
    third = np.array([arb(1) / 3, arb.nan()], dtype=object)
    found = distance(torch.zeros(2), third)
    assert arb(float(found[0])) >= third[0] and float(found[0]) <= 1 / 3 + 1e-15 and found[1] == torch.inf
    with pytest.raises(InputError):
        distance(torch.zeros(3), third)


def test_a_layer_of_a_transformer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 200), nn.ReLU(), nn.Linear(200, 96)).eval()
    network = attnc.compile(model, domain=Box(-1, 1, shape=(96,)), eps=1e-2)
    x: Tensor = 2 * torch.rand(2, 96) - 1
    found = network.certified(x)
    assert found.largest < 0.05 * network.certificate.bound
    assert_tight(found, exact(network.program, x.double().numpy(), WIDE))


def _half_of_the_sum(x: Tensor) -> Tensor:
    return 0.5 * x.abs().sum(-1, keepdim=True)


def test_bounds_do_not_rely_on_those_of_a_file(tmp_path: Path) -> None:
    """A file whose certificate was edited and sealed again, of a function that is known at points."""

    def smaller(c: Certificate) -> Certificate:
        kinder = tuple(smaller(child) for child in c.children)
        return replace(c, approximation=1e-9, rounding=1e-9, bound=2e-9, children=kinder)

    honest = attnc.compile(_half_of_the_sum, domain=Box(-1, 1, shape=(2,)), lipschitz=1.0, eps=0.2)
    record = honest.record()
    write(tmp_path / "net", replace(record, certificate=smaller(record.certificate)))
    forged = attnc.load(tmp_path / "net")
    x = 2 * torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) - 1
    for network in (honest, forged):
        value, bound = network.certified(x)
        assert bool(((value.double() - _half_of_the_sum(x.double())).abs() <= bound).all())
        assert bool((bound < 1).all())


def test_torch_that_flushes_subnormal_numbers_is_refused(net: Network) -> None:
    head = attnc.head("identity", domain=(-1, 1), eps=1e-2)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        for module, x in ((head, torch.full((1,), 1e-39)), (net, torch.full((1, 5), 1e-39))):
            with pytest.raises(InputError):
                module.certified(x)
    finally:
        torch.set_flush_denormal(False)
    assert head.certified(torch.full((1,), 1e-39)).largest <= head.certificate.bound


def test_every_thread_of_torch_is_asked_whether_it_flushes_subnormal_numbers() -> None:
    """Threads start with the mode of the thread that starts them, and keep it: this needs a process of its own."""
    code = """if True:
        import sys, torch
        torch.set_num_threads(2)
        able = torch.set_flush_denormal(True)
        torch.ones(1 << 20).exp()
        torch.set_flush_denormal(False)
        from attnc.errors import InputError
        from attnc.network.certified import check_subnormals
        lost = not bool(torch.ones(1 << 20, dtype=torch.int32).view(torch.float32).double().all())
        try:
            check_subnormals()
        except InputError:
            print("refused" if able and lost else "refused without a reason")
        else:
            print("not asked" if lost else "nothing is flushed")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if done.stdout.strip() == "nothing is flushed":
        pytest.skip("the threads of torch do not keep the mode here")
    assert done.stdout.strip() == "refused"
