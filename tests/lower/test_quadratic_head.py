"""attnc.quadratic_head: completely monotone functions of a quadratic form, their bounds, files and refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flint import arb
from torch import Tensor

import attnc
from attnc.errors import AttncError, DomainWarning, InputError, PrecisionError
from attnc.functions.balls import working
from attnc.network.norm import QuadraticHead
from attnc.records.certificate import Certificate, Status
from tests.network.executed import impurities
from tests.sampled import every

EXACT = {"rsqrt": lambda u: 1 / u.sqrt(), "reciprocal": lambda u: 1 / u, "exp": lambda u: (-u).exp()}
CASES = [
    ("rsqrt", 8, (1e-5, 1e6), 1e-2, torch.float32),
    ("rsqrt", 3, (1e-12, 1e4), 1e-4, torch.float32),
    ("rsqrt", 48, (1e-5, 1e6), 1e-10, torch.float64),
    ("reciprocal", 1, (1e-5, 1e6), 1e-4, torch.float32),
    ("reciprocal", 8, (1e-3, 1e3), 1e-12, torch.float64),
    ("exp", 8, (0.0, 50.0), 1e-4, torch.float32),
    ("exp", 5, (0.5, 20.0), 1e-10, torch.float64),
]


def built(case: int) -> QuadraticHead:
    f, features, domain, eps, dtype = CASES[case]
    return attnc.quadratic_head(f, features=features, domain=domain, eps=eps, dtype=dtype)


def tokens(head: QuadraticHead, count: int = 400) -> Tensor:
    """From far inside to the end of the domain, in every size."""
    radius = head.certificate.holds_for.radius
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(count, head.dim, generator=draw, dtype=torch.float64)
    sizes = torch.exp(
        torch.linspace(math.log(1e-8), math.log(radius * (1 - 1e-6)), count, dtype=torch.float64)
    )
    return (z / z.norm(dim=-1, keepdim=True) * sizes[:, None]).to(head.slope.dtype)


def error(head: QuadraticHead, z: Tensor, y: Tensor) -> float:
    f = EXACT[head.certificate.facts["function"]]
    with working(256):
        found = arb(0)
        for row, value in zip(z.double().tolist(), y.double().tolist(), strict=True):
            u = sum((arb(x) ** 2 for x in row), arb(0)) / head.dim + arb(head.offset)
            found = found.max(abs(arb(value) / f(u) - 1))
        return float(found.upper())


@pytest.mark.parametrize("case", every(2, range(len(CASES))))
def test_no_token_exceeds_the_bound_and_the_checker_proves_it(case: int, tmp_path: Path) -> None:
    head, eps = built(case), CASES[case][3]
    z = tokens(head)
    y = head(z, strict=True)
    worst = error(head, z, y)
    assert worst <= head.certificate.bound <= eps
    assert attnc.verify(head).status is Status.PROVED
    assert impurities(head, z) == []
    weights = head.weights(z)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    torch.testing.assert_close((weights[..., 0] * head.value).sum(-1), y)
    head.save(tmp_path / "head.safetensors")
    again = attnc.load(tmp_path / "head.safetensors")
    assert torch.equal(again(z), y) and attnc.verify(tmp_path / "head.safetensors").status is Status.PROVED


@pytest.mark.parametrize("case", [0, 2, 4, 6])
def test_bounds_in_exact_arithmetic_are_sharp(case: int) -> None:
    """Those of heads whose approximation is most of the bound."""
    head = built(case)
    z = tokens(head, 3000)
    assert error(head, z, head(z)) >= 0.02 * head.certificate.bound


@pytest.mark.parametrize("case", [0, 3, 5])
def test_forged_certificates_are_not_proved(case: int) -> None:
    head = built(case)
    known = head.certificate
    forgeries: list[Certificate] = [
        replace(known, approximation=known.approximation / 8, rounding=known.bound),
        replace(known, bound=known.approximation / 8, rounding=0.0, approximation=known.approximation / 8),
        replace(known, holds_for=replace(known.holds_for, radius=1e3 * known.holds_for.radius)),
        replace(known, holds_for=replace(known.holds_for, centred=True)),
        replace(known, facts={**known.facts, "offset": known.facts["offset"] + 1.0}),
        replace(known, facts={**known.facts, "function": "rsqrt" if case else "reciprocal"}),
        replace(known, facts={**known.facts, "relative": False}),
    ]
    for forged in forgeries:
        head.certificate = forged
        assert attnc.verify(head).status is not Status.PROVED
    head.certificate = known
    with torch.no_grad():
        head.value[0] *= 1.01
    assert head.why_not_certified() is not None and attnc.verify(head).status is not Status.PROVED


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "head.safetensors"
    built(0).save(path)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    about = json.loads(raw[8 : 8 + size])["__metadata__"]
    save_file({"slope": load_file(path)["slope"]}, path, about)
    with pytest.raises(AttncError):
        attnc.load(path)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"f": "sin"}, InputError),
        ({"features": 0}, InputError),
        ({"domain": (0.0, 1.0)}, InputError),
        ({"domain": (-1.0, 1.0), "f": "exp"}, InputError),
        ({"domain": (2.0, 1.0)}, InputError),
        ({"eps": 0.0}, InputError),
        ({"eps": 1e-12}, PrecisionError),
        ({"dtype": torch.float16}, InputError),
    ],
)
def test_refusals(change: dict[str, Any], kind: type[AttncError]) -> None:
    given: dict[str, Any] = {
        "f": "rsqrt",
        "features": 4,
        "domain": (1e-5, 1e3),
        "eps": 1e-3,
        "dtype": torch.float32,
    }
    with pytest.raises(kind) as raised:
        attnc.quadratic_head(**{**given, **change})
    if kind is PrecisionError:
        assert 1e-7 < raised.value.reachable < 1e-4


def test_tokens_outside_warn_or_raise() -> None:
    head = built(0)
    far = torch.full((1, head.dim), 1e4)
    with pytest.warns(DomainWarning):
        head(far)
    with pytest.raises(InputError):
        head(far, strict=True)
