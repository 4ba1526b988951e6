"""Heads whose exact term is bounded, by the arguments that tests vary."""

from __future__ import annotations

from attnc.domain import Interval
from attnc.functions import Function
from attnc.heads.target import Progress
from attnc.lower.heads import HeadRequest, build_head
from attnc.network.head import Head


def activation_head(
    f: Function,
    domain: Interval,
    approximation: float,
    dtype: str,
    design: str = "auto",
    progress: Progress = lambda _: None,
) -> Head:
    request = HeadRequest(f, domain, dtype, approximation=approximation, design=design)
    return build_head(request, progress)
