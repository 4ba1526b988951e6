"""Odd but legal input is served, and what cannot be is refused with an error of attnc's own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import attnc
from attnc.errors import AttncError, FileError, FunctionError, InputError

LEGAL = {
    "a tiny interval": ("gelu", (1.0, 1.0 + 1e-12), {"anchors": 3, "dtype": torch.float64}),
    "a far interval": ("sin", (1e6, 1e6 + 1), {"anchors": 5, "dtype": torch.float64}),
    "a far interval in float32": ("identity", (1e6, 1e6 + 64), {"anchors": 4}),
    "ends that float32 does not hold": ("tanh", (-0.1, 0.3), {"anchors": 2}),
    "kinks side by side": ("clip(0,1e-9)", (-1, 1), {"anchors": 7, "dtype": torch.float64}),
    "exp where it is large": ("exp", (80, 88), {"anchors": 6, "dtype": torch.float64}),
    "seven heads of three": ("softplus", (-5, 5), {"anchors": 3, "heads": 7}),
    "two anchors": ("square", (-1, 1), {"anchors": 2}),
    "an eps of numpy's": ("square", (-1, 1), {"eps": np.float64(1e-3)}),
    "a wide interval": ("gelu", (-1e6, 1e6), {"anchors": 8, "dtype": torch.float64}),
}


@pytest.mark.parametrize(("spec", "on", "options"), LEGAL.values(), ids=LEGAL)
def test_odd_but_legal(spec: str, on: tuple[float, float], options: dict) -> None:
    head = attnc.head(spec, domain=on, **options)
    assert math.isfinite(head.certificate.bound)
    assert attnc.verify(head).status == "proved"


def test_close_kinks_do_not_spoil_the_best() -> None:
    assert attnc.head("clip(0,1e-9)", domain=(-1, 1), anchors=7, dtype=torch.float64).certificate.bound < 1e-3


@pytest.mark.parametrize(
    "f", [lambda s: s * 0, lambda s: s * 0 + 3, lambda s: s, lambda s: 1e6 * torch.sin(s)]
)
@pytest.mark.parametrize("on", [(-1, 1), (1000, 1001)])
def test_plain_callables_are_served(f, on: tuple[float, float]) -> None:
    head = attnc.head(f, domain=on, anchors=4, dtype=torch.float64)
    assert attnc.verify(head).status == "proved"
    assert head.certificate.error <= head.certificate.bound < 1e-3


REFUSED = {
    "an interval of subnormals": lambda: attnc.head("relu", domain=(-1e-40, 1e-40), eps=1e-3),
    "an interval beyond float32": lambda: attnc.head("identity", domain=(-1e35, 1e35), eps=1e30),
    "a callable that raises": lambda: attnc.head(lambda s: s.no_such_thing, domain=(-1, 1), eps=1e-3),
    "a slope that overflows": lambda: attnc.head("leaky_relu(1e308)", domain=(-1, 1), eps=1e-3),
    "a parameter in words": lambda: attnc.functions.leaky_relu("a"),
    "bounds in words": lambda: attnc.functions.clip("a", "b"),
    "a parameter beyond floats": lambda: attnc.functions.clip(0, 10**400),
    "loading nothing": lambda: attnc.load(None),
    "loading a number": lambda: attnc.load(3),
    "a path with a zero byte": lambda: attnc.load("a\0b"),
    "saving to nothing": lambda: attnc.head("tanh", domain=(-1, 1), anchors=2).save(None),
    "saving to a path with a zero byte": lambda: attnc.head("tanh", domain=(-1, 1), anchors=2).save("a\0b"),
    "verifying against a number": lambda: attnc.verify(
        attnc.head("tanh", domain=(-1, 1), anchors=2), function=3
    ),
    "another dtype for the literal form": lambda: attnc.head(
        "tanh", domain=(-1, 1), anchors=2
    ).as_self_attention(3)(torch.zeros(3).double()),
    "a list for the literal form": lambda: attnc.head("tanh", domain=(-1, 1), anchors=2).as_self_attention(3)(
        [0, 0, 0]
    ),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused(call) -> None:
    with pytest.raises(AttncError):
        call()


def test_an_enclosure_that_fails_far_away_is_the_function_s_fault() -> None:
    def enclosure(x):
        if x[0].mid() > 3:
            raise RuntimeError("no further")
        return x.sin()

    f = attnc.function(torch.sin, name="shy", enclosure=enclosure)
    with pytest.raises(FunctionError):
        attnc.head(f, domain=(-4, 4), anchors=5)


@pytest.mark.slow
def test_an_enclosure_that_never_says_anything_is_not_a_proof() -> None:
    f = attnc.function(torch.sin, name="mute", enclosure=lambda x: x.sin() + _anything())
    with pytest.raises(AttncError, match="proved"):
        attnc.head(f, domain=(-1, 1), eps=1e-3)


def _anything():
    from flint import arb

    return arb(0, 1e9)


def test_numpy_numbers_are_parameters() -> None:
    assert attnc.functions.leaky_relu(np.float32(0.25)).label == "leaky_relu(0.25)"
    assert attnc.functions.clip(0, 2**60 + 1).kinks[1] == float(2**60)


def test_verify_takes_a_name() -> None:
    head = attnc.head("tanh", domain=(-1, 1), anchors=2)
    assert attnc.verify(head, function="tanh").status == "proved"
    assert attnc.verify(head, function="sin").status == "unknown"


def test_mixed_dtypes_are_told() -> None:
    head = attnc.head("tanh", domain=(-1, 1), anchors=2)
    head.value.data = head.value.data.double()
    assert "float64" in (head.why_not_certified() or "")
    assert "not certified" in repr(head)
    assert attnc.verify(head).status == "unknown"


def test_refusals_leave_no_file(tmp_path: Path) -> None:
    head = attnc.head("tanh", domain=(-1, 1), anchors=2)
    with pytest.raises((FileError, InputError)):
        head.save(tmp_path / "missing" / "x.safetensors")
    assert list(tmp_path.iterdir()) == []
