"""What is handed on of a head that runs by its window."""

from __future__ import annotations

import pytest

from attnc import functions
from attnc.domain import Interval
from attnc.lower.activation_head import activation_head
from attnc.pretrained.heads import window_rounding
from attnc.prove.window import window_bound, window_of


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "eps"), [("gelu", 1e-4), ("silu", 1e-6)])
def test_both_terms_together_cover_what_the_window_is_off(name: str, eps: float, dtype: str) -> None:
    f = functions.get(name)
    head = activation_head(f, Interval(-8.0, 8.0), eps, dtype)
    window = window_of(head.numbers())
    assert window is not None and head.certificate.proved
    proved = window_bound(window, f, head.certificate.holds_for).bound
    assert proved <= head.certificate.approximation + window_rounding(head, f) <= 1.1 * proved + 1e-12
