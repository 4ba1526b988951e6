"""Rates: what is collected, its slope, and what is refused."""

from __future__ import annotations

import pytest
import torch

import attnc
from attnc import progress as module
from attnc.errors import InputError
from attnc.paper import Rates, rates


def test_a_power_law_has_its_slope() -> None:
    found = Rates((2, 4, 8), (None,) * 3, (1.0, 0.25, 0.0625), (None,) * 3)
    assert found.slope == pytest.approx(-2)
    measured = Rates((2, 4), (0.5, 0.25), (None, 0.1), (None, None))
    assert measured.slope == pytest.approx(-1)


def test_the_error_found_and_the_bound_have_slopes_of_their_own() -> None:
    found = Rates((2, 4, 8), (1.0, 0.5, 0.25), (2.0, 0.5, 0.125), (None,) * 3)
    assert found.slopes == {"largest error found": pytest.approx(-1), "proved bound": pytest.approx(-2)}
    assert "largest error found -1.00, proved bound -2.00" in str(found)
    assert "-1.00" in attnc.plot.rates(found).axes[0].get_title(loc="left")
    assert list(Rates((2, 4), (0.5, 0.25), (None, 0.1), (None, None)).slopes) == ["largest error found"]


def test_heads_and_networks() -> None:
    heads = rates(lambda p: attnc.head("relu", domain=(-1, 1), anchors=p, design="nearest"), (8, 16, 32))
    assert heads.theorem == (None,) * 3 and all(
        f <= b for f, b in zip(heads.found, heads.proved, strict=True)
    )
    assert heads.slope == pytest.approx(-1, abs=0.15)
    W, t = torch.ones(2, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    nets = rates(lambda p: attnc.paper.one_head(W, t, -1, 1, anchors=p, domain=(-2, 2)), (9, 17))
    assert all(b <= t for b, t in zip(nets.proved, nets.theorem, strict=True))
    lines = str(nets).splitlines()
    assert len(lines) == 4 and lines[0].split()[0] == "size"
    assert all(f"{name} {slope:.2f}" in lines[-1] for name, slope in nets.slopes.items())


def test_measured_errors_have_no_bound() -> None:
    def head(p: int) -> attnc.Head:
        return attnc.head(lambda s: torch.lgamma(s + 4), domain=(-2, 2), anchors=p, design="smooth")

    found = rates(head, (3, 5))
    assert found.proved == (None, None) and found.found[1] < found.found[0] and found.slope < 0


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    rates(
        lambda p: attnc.head("tanh", domain=(-1, 1), anchors=p),
        (2, 3),
        progress=lambda *given: heard.append(given),
    )
    assert ("size 2", 0, 2) in heard and ("size 3", 1, 2) in heard
    assert module.current() is module.silent


@pytest.mark.parametrize("sizes", [(), (4,), (4, 4), (0, 4), (2.5, 4)])
def test_sizes_that_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        rates(lambda p: attnc.head("tanh", domain=(-1, 1), anchors=p), sizes)


def test_other_objects_are_refused() -> None:
    with pytest.raises(InputError, match="int"):
        rates(lambda p: p, (2, 3))


def test_sizes_are_counts_and_the_error_says_how_to_use_eps() -> None:
    with pytest.raises(InputError, match=r"size=0\.1.*eps=1/g"):
        rates(lambda eps: attnc.head("relu", domain=(-1, 1), eps=eps), (0.1, 0.01))  # type: ignore[arg-type]
