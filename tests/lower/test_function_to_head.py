"""attnc.head: what is asked is proved, the designs choose well, and bad input is refused with advice."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

import attnc
from attnc.errors import (
    AttncError,
    ConvergenceError,
    FunctionError,
    InputError,
    PrecisionError,
    UnknownFunctionError,
)
from tests.sampled import every, only

DTYPES = [torch.float32, torch.float64]
FLOAT64 = torch.float64
ASKED = [
    ("gelu", (-8, 8), 1e-6, "auto", 32),
    ("tanh", (-8, 8), 1e-6, "auto", 40),
    ("sin", (-8, 8), 1e-8, "auto", 28),
    ("relu", (-1, 1), 1e-4, "graded", 20),
    ("relu", (-1, 1), 1e-6, "graded", 52),
    ("clip(-25,25)", (-80, 80), 1e-3, "auto", 60),
]


@pytest.mark.parametrize(("spec", "on", "eps", "design", "most"), ASKED)
def test_sizes_asked_for(spec: str, on: tuple[float, float], eps: float, design: str, most: int) -> None:
    head = attnc.head(spec, domain=on, eps=eps, design=design, dtype=FLOAT64)
    certificate = head.certificate
    assert head.key.shape[1] <= most
    assert certificate.bound <= eps
    assert certificate.rounding < certificate.approximation or certificate.bound < 1e-13
    assert (
        certificate.quality <= (3 if design == "graded" else 1.5)
        or certificate.rounding > certificate.approximation
    )
    assert attnc.verify(head)


@pytest.mark.parametrize(("spec", "p", "asked"), [("gelu", 27, 1e-6), ("tanh", 44, 1e-6), ("sin", 20, 1e-8)])
def test_quality_of_smooth(spec: str, p: int, asked: float) -> None:
    certificate = attnc.head(spec, domain=(-8, 8), anchors=p, design="smooth", dtype=FLOAT64).certificate
    assert certificate.bound <= asked
    assert certificate.quality <= 1.5
    assert certificate.rounding < 0.1 * certificate.approximation


def test_float32_with_rounding_included() -> None:
    head = attnc.head("gelu", domain=(-8, 8), eps=1e-4)
    assert head.key.dtype == torch.float32
    assert head.certificate.bound <= 1e-4
    assert head.certificate.rounding > 1e-7
    assert attnc.verify(head)


SPECS = [n for n in attnc.functions.names() if n != "clip"] + ["clip(-1,2)"]
EITHER = [(spec, dtype) for i, spec in enumerate(SPECS) for dtype in (DTYPES if i % 2 else DTYPES[::-1])]


@pytest.mark.parametrize(("spec", "dtype"), every(2, EITHER))  # every function, in one dtype or the other
def test_every_function_is_proved_on_a_usual_interval(spec: str, dtype: torch.dtype) -> None:
    head = attnc.head(spec, domain=(-4, 4), eps=5e-3, dtype=dtype)
    assert head.certificate.bound <= 5e-3


INTERVALS = [(0, 2), (-2, 0), (0.5, 2), (-3, -1), (-1e-3, 1e3), (-1e3, 1e-3)]


@pytest.mark.parametrize(
    ("spec", "on"),
    only(
        [*product(["relu"], INTERVALS), ("clip(0,2)", (0, 2))],
        product(["relu", "clip(0,2)", "abs"], INTERVALS),
    ),
)
def test_kinks_inside_outside_and_on_the_edge(spec: str, on: tuple[float, float]) -> None:
    eps = 1e-3 * max(map(abs, on))
    head = attnc.head(spec, domain=on, eps=eps, dtype=FLOAT64)
    assert head.certificate.bound <= eps


def test_smallest_means_that_one_fewer_was_not_enough() -> None:
    head = attnc.head("softplus", domain=(-6, 6), eps=1e-4, design="smooth", dtype=FLOAT64)
    p = head.key.shape[1]
    assert (
        attnc.head(
            "softplus", domain=(-6, 6), anchors=p - 1, design="smooth", dtype=FLOAT64
        ).certificate.bound
        > 0.9e-4
    )


@pytest.mark.slow
def test_more_anchors_are_better() -> None:
    bounds = [
        attnc.head("gelu", domain=(-6, 6), anchors=p, dtype=FLOAT64).certificate.bound for p in (3, 6, 12)
    ]
    assert bounds[0] > 10 * bounds[1] > 100 * bounds[2]


@pytest.mark.slow
def test_auto_is_at_least_as_good_as_each_design() -> None:
    auto = attnc.head("relu", domain=(-2, 2), anchors=9, dtype=FLOAT64).certificate.bound
    for design in ("nearest", "smooth", "graded", "tuned"):
        assert (
            auto
            <= 1.2
            * attnc.head("relu", domain=(-2, 2), anchors=9, design=design, dtype=FLOAT64).certificate.bound
        )


@pytest.mark.slow
def test_auto_picks_by_what_works() -> None:
    assert attnc.head("tanh", domain=(-8, 8), eps=1e-6, dtype=FLOAT64).design == "tuned"
    assert attnc.head("sin", domain=(-1, 1), anchors=60, dtype=FLOAT64).design == "smooth"
    assert attnc.head("relu", domain=(-1, 1), anchors=80, dtype=FLOAT64).design == "graded"


def test_auto_meets_what_smooth_meets_where_tuned_values_cancel() -> None:
    """A tuned head of SiLU has values near 1e6 in float64, whose rounding exceeds eps."""
    head = attnc.head("silu", domain=(-8, 8), eps=1e-12, dtype=FLOAT64)
    assert head.certificate.facts["design"] == "smooth" and head.certificate.bound <= 1e-12
    assert head.value.abs().max() < 100


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("spec", ["gelu", "clip(-2,2)"])
def test_many_heads_are_proved_too(spec: str, heads: int) -> None:
    head = attnc.head(spec, domain=(-4, 4), eps=2e-2, heads=heads)
    assert head.key.shape[0] == heads
    assert head.certificate.bound <= 2e-2
    assert attnc.verify(head)


@pytest.mark.slow
def test_float32_heads_gain_from_company() -> None:
    """Nearest anchors in one head drown in rounding; the same anchors in many heads do not."""
    alone = attnc.head("sin", domain=(-3, 3), anchors=120, design="nearest").certificate
    shared = attnc.head("sin", domain=(-3, 3), anchors=5, heads=40, design="nearest").certificate
    assert shared.rounding < alone.rounding / 4


def test_a_bare_callable_is_measured_and_says_so() -> None:
    head = attnc.head(lambda s: torch.lgamma(s + 4), domain=(-3, 3), eps=1e-4)
    assert not head.certificate.proved
    assert head.certificate.error <= 1e-4
    assert head.certificate.facts["points"] > 10_000
    assert "not proved" in repr(head)


def test_a_function_with_an_enclosure_is_proved() -> None:
    runge = attnc.function(
        lambda s: 1 / (1 + 25 * s * s), name="runge", enclosure=lambda x: 1 / (1 + 25 * x * x)
    )
    head = attnc.head(runge, domain=(-1, 1), eps=1e-4, dtype=FLOAT64)
    assert head.certificate.bound <= 1e-4
    assert attnc.verify(head, function=runge)


def test_declared_kinks_of_a_user_s_function() -> None:
    tent = attnc.function(
        lambda s: 1 - (s - 0.3).abs(),
        name="tent",
        kinks=(0.3,),
        enclosure=(lambda x: x + 1 - attnc_arb(0.3), lambda x: 1 + attnc_arb(0.3) - x),
    )
    head = attnc.head(tent, domain=(-1, 1), eps=1e-4, dtype=FLOAT64)
    assert head.certificate.bound <= 1e-4


def attnc_arb(x: float):
    from flint import arb

    return arb(x)


@pytest.mark.parametrize("wish", [{"eps": 1e-3}, {"anchors": 16}])
def test_undeclared_kinks_are_noticed(wish: dict) -> None:
    with pytest.raises(ConvergenceError, match=r"0\.3.*kinks="):
        attnc.head(lambda s: (s - 0.3).abs() + 0 * torch.lgamma(s + 4), domain=(-1, 1), **wish)


def test_kinks_of_torch_operations_are_found() -> None:
    head = attnc.head(lambda s: (s - 0.3).abs(), domain=(-1, 1), eps=1e-3)
    assert head.certificate.proved and head.certificate.facts["operations"]["kinks"] == [0.3]


def test_undeclared_kinks_behind_an_enclosure_are_noticed() -> None:
    sly = attnc.function(torch.abs, name="sly", enclosure=lambda x: x if x[0].mid() > 0 else -x)
    with pytest.raises(AttncError, match="kink"):
        attnc.head(sly, domain=(-1, 1.7), eps=1e-3)


def test_progress_is_told() -> None:
    told: list[str] = []
    attnc.head("tanh", domain=(-1, 1), eps=1e-4, progress=told.append)
    assert any("proving" in line for line in told)


BAD = {
    "eps of zero": ({"eps": 0}, InputError, "positive"),
    "eps negative": ({"eps": -1e-3}, InputError, "positive"),
    "eps NaN": ({"eps": math.nan}, InputError, "positive"),
    "eps infinite": ({"eps": math.inf}, InputError, "positive"),
    "eps in words": ({"eps": "small"}, InputError, "positive"),
    "eps and anchors": ({"eps": 1e-3, "anchors": 5}, InputError, "either"),
    "neither eps nor anchors": ({}, InputError, "eps=None"),
    "one anchor": ({"anchors": 1}, InputError, "from 2"),
    "no anchor": ({"anchors": 0}, InputError, "from 2"),
    "half an anchor": ({"anchors": 2.5}, InputError, "anchors=2.5"),
    "too many anchors": ({"anchors": 10**6}, InputError, "8192"),
    "an empty interval": ({"eps": 1e-3, "domain": (1, 1)}, InputError, "empty"),
    "a reversed interval": ({"eps": 1e-3, "domain": (1, -1)}, InputError, "reversed"),
    "an infinite interval": ({"eps": 1e-3, "domain": (0, math.inf)}, InputError, "not finite"),
    "a NaN interval": ({"eps": 1e-3, "domain": (math.nan, 1)}, InputError, "not finite"),
    "an interval of three": ({"eps": 1e-3, "domain": (1, 2, 3)}, InputError, "lo, hi"),
    "an interval of one": ({"eps": 1e-3, "domain": 3}, InputError, "lo, hi"),
    "an unknown design": ({"eps": 1e-3, "design": "clever"}, InputError, "nearest"),
    "an unknown dtype": ({"eps": 1e-3, "dtype": torch.float16}, InputError, "float64"),
    "a dtype in words": ({"eps": 1e-3, "dtype": "single"}, InputError, "torch.float32"),
    "no heads": ({"eps": 1e-3, "heads": 0}, InputError, "heads"),
    "many gated heads": ({"eps": 1e-3, "heads": 2, "design": "gated"}, InputError, "one head"),
    "two anchors in several heads": ({"anchors": 2, "heads": 2}, InputError, "sentinels"),
    "graded without a kink": ({"eps": 1e-3, "design": "graded"}, InputError, "kink"),
}


@pytest.mark.parametrize(("options", "kind", "words"), BAD.values(), ids=BAD)
def test_bad_input(options: dict, kind: type[AttncError], words: str) -> None:
    with pytest.raises(kind, match=words):
        attnc.head("tanh", **{"domain": (-1, 1), **options})


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=pytest.mark.slow) for d in (torch.float32, torch.float64)]
)
def test_eps_below_the_dtype_says_what_it_can_hold(dtype: torch.dtype) -> None:
    with pytest.raises(PrecisionError) as caught:
        attnc.head("gelu", domain=(-4, 4), eps=1e-18, dtype=dtype)
    holds = float(str(caught.value).split("eps >= ")[1])
    assert attnc.head("gelu", domain=(-4, 4), eps=1.5 * holds, dtype=dtype).certificate.bound <= 1.5 * holds


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownFunctionError, match="'gelu'"):
        attnc.head("gellu", domain=(-1, 1), eps=1e-3)


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda s: s.sum(), "shape"),
        (lambda s: s[:1], "shape"),
        (lambda s: s.to(torch.float32), "torch.float32"),
        (lambda s: s > 0, "torch.bool"),
        (lambda s: s.tolist(), "torch.Tensor"),
        (lambda s: s.log(), "nan|inf"),
        (lambda s: 1 / (s - s), "inf|nan"),
    ],
    ids=["sum", "slice", "float32", "bool", "list", "nan", "inf"],
)
def test_misbehaving_callables(f, words: str) -> None:
    with pytest.raises(FunctionError, match=words):
        attnc.head(f, domain=(-1, 1), eps=1e-3)


@pytest.mark.parametrize("f", [3, None, ["gelu"]])
def test_what_is_not_a_function(f: object) -> None:
    with pytest.raises(InputError):
        attnc.head(f, domain=(-1, 1), eps=1e-3)  # type: ignore[arg-type]


def test_a_machine_that_breaks_the_assumptions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnc.arguments.probe", lambda dtype: "exp is off")
    with pytest.raises(PrecisionError):
        attnc.head("tanh", domain=(-1, 1), eps=1e-3)


def test_a_function_with_many_bends_is_followed() -> None:
    """Twelve turns: small sizes bring nothing, which is no reason to give up."""
    head = attnc.head("sin", domain=(-16, 22), eps=2e-4, dtype=torch.float64)
    assert head.certificate.proved and head.certificate.bound <= 2e-4
    assert head.key.shape[1] <= 32


def test_a_wide_gelu_in_float64_gets_a_lattice() -> None:
    """The tuned heads reach 1e-7 on this interval; what is reported as reachable is met."""
    head = attnc.head("gelu", domain=(-56, 72), eps=1e-9, dtype=torch.float64)
    assert head.design == "lattice" and head.certificate.proved
    assert head.certificate.witness.error <= head.certificate.bound <= 1e-9
    assert attnc.verify(head)
