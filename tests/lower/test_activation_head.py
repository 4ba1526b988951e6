"""Heads for activations: within eps in exact arithmetic, proved beside their rounding, made once."""

from __future__ import annotations

import math
import random

import pytest
import torch
from flint import arb

import attnc
from attnc import functions
from attnc.domain import Interval
from attnc.errors import InputError, PrecisionError
from attnc.functions.balls import working
from attnc.lower.function_to_head import ladder
from attnc.lower.product import square_head
from attnc.prove.supnorm import SupNorm
from attnc.records.numbers import HeadNumbers
from tests.lower.exact_heads import activation_head

REQUESTS = [
    ("gelu", 7.0, 1e-4, "float32", "lattice"),
    ("gelu_tanh", 5.0, 1e-6, "float32", "lattice"),
    ("gelu", 3.0, 1e-8, "float64", "lattice"),
    ("silu", 4.0, 1e-6, "float32", "gated"),
    ("quick_gelu", 2.0, 1e-6, "float32", "gated"),
    ("relu", 6.0, 7e-5, "float32", "gated"),
    ("relu", 32.0, 1e-6, "float32", "gated"),
    ("relu", 8.0, 1e-9, "float64", "gated"),
    ("tanh", 4.0, 1e-5, "float32", "tuned"),
]
each_request = pytest.mark.parametrize(("name", "radius", "eps", "dtype", "design"), REQUESTS)


def made(name: str, radius: float, eps: float, dtype: str):
    return activation_head(functions.get(name), Interval(-radius, radius / 2), eps, dtype)


def exact(numbers: HeadNumbers, s: float) -> arb:
    """The function that the numbers define, from the formula of `HeadNumbers`."""
    x = arb(numbers.query[0, 0]) * arb(s) + arb(numbers.query[0, 1])
    e = [(arb(k) * x + arb(c)).exp() for k, c in numbers.key[0]]
    v = [arb(own) * arb(s) + arb(c) for own, c in numbers.value[0]]
    return sum((a * b for a, b in zip(e, v, strict=True)), arb(0)) / sum(e, arb(0))


def points(reach: float, dtype: str, count: int = 60) -> torch.Tensor:
    source = random.Random(7)
    drawn = [source.uniform(-1, 1) * reach * source.choice([1, 0.3, 1e-3, 1e-8]) for _ in range(count)]
    return torch.tensor([*drawn, -reach, reach, 0.0], dtype=getattr(torch, dtype))


@each_request
def test_both_promises_hold_at_points(name: str, radius: float, eps: float, dtype: str, design: str) -> None:
    head, f = made(name, radius, eps, dtype), functions.get(name)
    c, numbers = head.certificate, head.numbers()
    assert c.approximation <= eps and c.bound <= (c.approximation + c.rounding) * (1 + 2**-8)
    assert c.interval == Interval(-ladder(radius), ladder(radius))
    assert head.design == c.facts["design"] == design
    s = points(c.interval.hi, dtype)
    with working(256):
        for at, executed in zip(s.tolist(), head(s).tolist(), strict=True):
            truth = f.value(at)
            assert abs(exact(numbers, at) - truth) <= arb(c.approximation), at
            assert abs(arb(executed) - truth) <= arb(c.bound), at


@each_request
def test_the_checker_agrees(name: str, radius: float, eps: float, dtype: str, design: str) -> None:
    assert attnc.verify(made(name, radius, eps, dtype)).status == "proved"


@pytest.mark.parametrize("name", ["gelu", "silu", "relu"])
def test_the_approximation_is_sharp(name: str) -> None:
    """At most a sixth above what is attained (of silu nothing is, and 2^-50 of the radius is claimed)."""
    f, head = functions.get(name), made(name, *{w[0]: w[1:4] for w in REQUESTS[::-1]}[name])
    steep = 1 / float(head.key[0, 1, 0]) if name == "relu" else 1.0
    with working(256):
        seen = max(
            float(abs(exact(head.numbers(), i / 100 * steep) - f.value(i / 100 * steep)).mid())
            for i in range(-300, 300, 3)
        )
    assert head.certificate.approximation <= (1e-14 if name == "silu" else 1.17 * seen)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_square_head(dtype: str) -> None:
    head = square_head(dtype)
    assert (
        head.certificate == square_head(dtype).certificate and head.certificate.facts["function"] == "square"
    )
    assert head.certificate.approximation < 1e-15
    assert head.certificate.bound < {"float32": 1e-5, "float64": 2e-14}[dtype]
    assert attnc.verify(head).status == "proved"
    s = points(1.0, dtype)
    with working(256):
        for at, executed in zip(s.tolist(), head(s).tolist(), strict=True):
            assert abs(exact(head.numbers(), at) - arb(at) ** 2) <= arb(head.certificate.approximation)
            assert abs(arb(executed) - arb(at) ** 2) <= arb(head.certificate.bound)


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_saved_heads_come_back(name: str, tmp_path) -> None:
    head = made(name, {"gelu": 7.0, "silu": 4.0}[name], {"gelu": 1e-4, "silu": 1e-6}[name], "float32")
    head.save(tmp_path / "head.safetensors")
    again = attnc.load(tmp_path / "head.safetensors")
    s = torch.linspace(-4, 4, 33)
    assert torch.equal(head(s), again(s)) and again.design == head.design
    assert attnc.verify(tmp_path / "head.safetensors").status == "proved"
    assert head.design in repr(again)
    literal = head.as_self_attention(33)(s)
    assert (literal - head(s)).abs().max() <= 2 * head.certificate.rounding


def test_equal_requests_share_one_head() -> None:
    gelu = functions.gelu()
    head = activation_head(gelu, Interval(-7.0, 3.0), 1e-4, "float32")
    said: list[str] = []
    same = activation_head(functions.gelu(), Interval(-1.0, 8.0), 1.04e-4, "float32", progress=said.append)
    assert not said and same is not head and same.certificate == head.certificate
    assert activation_head(gelu, Interval(-2.1, 3.0), 1e-4, "float32").certificate != head.certificate


def test_a_function_of_the_user_s_is_not_taken_for_its_namesake() -> None:
    for k in (1, 2):
        f = functions.Function(
            "mine", lambda s, k=k: k * s.tanh(), (lambda x, k=k: k - 2 * k / ((2 * x).exp() + 1),)
        )
        head = activation_head(f, Interval(-2.0, 2.0), 1e-3, "float32")
        assert abs(float(head(torch.tensor([2.0]))) - k * math.tanh(2)) <= 1.1e-3


def test_the_ladder_is_the_least_step_above() -> None:
    steps = [ladder(r) for r in (0.0, 1.0, 1.2, 1.6, 2.1, 3.5, 5.0, 8.0, 8.1, 12.5, 23.0, 33.0, 50.0)]
    assert steps == [1, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 48, 64]
    for r in (math.nextafter(8.0, 9.0), 1e5, 2.0**60):
        assert r <= ladder(r) <= 1.5 * r


def test_designs_that_cannot_serve_say_which_can() -> None:
    wide = Interval(-8.0, 8.0)
    for name, design, words in [
        ("gelu", "gated", "'auto' or 'lattice' or 'tuned'"),
        ("mish", "lattice", "'auto' or 'tuned'"),
        ("relu", "lattice", "'auto' or 'gated' or 'tuned'"),
        ("gelu", "smooth", "'auto' or 'lattice'"),
    ]:
        with pytest.raises(InputError, match=words):
            activation_head(functions.get(name), wide, 1e-4, "float32", design)
    with pytest.raises(InputError, match="float32"):
        activation_head(functions.gelu(), wide, 1e-4, "bfloat16")
    with pytest.raises(InputError, match="approximation"):
        activation_head(functions.gelu(), wide, 0.0, "float32")
    with pytest.raises(InputError):
        activation_head(functions.gelu(), Interval(-1e9, 1.0), 1e-4, "float32")
    with pytest.raises(InputError):
        activation_head(attnc.function(torch.sin), wide, 1e-4, "float32")


def test_eps_below_the_dtype_says_what_is_reached() -> None:
    with pytest.raises(PrecisionError, match="float64") as caught:
        activation_head(functions.gelu(), Interval(-2.0, 2.0), 1e-11, "float32")
    reachable = caught.value.reachable
    assert 1e-9 < reachable < 2e-8
    head = activation_head(functions.gelu(), Interval(-2.0, 2.0), 1.5 * reachable, "float32")
    assert head.certificate.approximation <= 1.5 * reachable


@pytest.mark.parametrize(("name", "reach", "design"), [("silu", 5.0, "gated"), ("gelu", 64.0, "lattice")])
def test_a_proof_that_was_given_up_promises_nothing(
    name: str, reach: float, design: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said of the cells before it was given up does not hold on the others, however many anchors there are."""

    def given_up(numbers: HeadNumbers, *_: object, **__: object) -> SupNorm:
        bound = math.inf if numbers.dtype == "float32" else 1e-9
        return SupNorm(bound, 1e-9, 1e-9, 0.0, 0.0, 1)

    monkeypatch.setattr("attnc.heads.exact_term.supnorm", given_up)
    with pytest.raises(PrecisionError) as caught:
        activation_head(functions.get(name), Interval(-reach, reach), 1.1e-3, "float32", design)
    assert caught.value.reachable is None


def test_progress_is_told() -> None:
    told: list[str] = []
    activation_head(
        functions.gelu(),
        Interval(-2.7, 3.1),
        1.7e-4,  # no other test asks for it
        "float64",
        progress=told.append,
    )
    assert any("proving" in line for line in told)
