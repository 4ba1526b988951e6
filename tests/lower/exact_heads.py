"""Heads whose exact term is bounded, by the arguments that tests vary."""

from __future__ import annotations

from attnc.domain import Interval
from attnc.functions import Function
from attnc.heads.target import Plan, Progress
from attnc.lower.function_to_head import head_approximating
from attnc.network.head import Head


def activation_head(
    f: Function,
    domain: Interval,
    approximation: float,
    dtype: str,
    design: str = "auto",
    progress: Progress = lambda _: None,
) -> Head:
    return head_approximating(Plan(f, domain, dtype, design, progress=progress), approximation)
