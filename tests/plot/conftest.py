"""Cheap heads of every kind that is drawn differently, and what the tests read from axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnc


@pytest.fixture(scope="session")
def heads() -> dict[str, attnc.Head]:
    return {
        "tanh": attnc.head("tanh", domain=(-8, 8), eps=1e-12, dtype=torch.float64),  # a bound near 1e-15
        # A kink, and many anchors around it, some outside the domain.
        "relu": attnc.head("relu", domain=(-1, 1), anchors=12, design="graded", dtype=torch.float64),
        "three": attnc.head("gelu", domain=(-8, 8), anchors=8, heads=3, dtype=torch.float64),
        # More anchors than the heat map has rows.
        "many": attnc.head(bump, domain=(-3, 3), anchors=600, design="nearest", dtype=torch.float64),
        "measured": attnc.head(log_gamma, domain=(-3, 3), anchors=8, design="smooth"),
    }


def bump(s: torch.Tensor) -> torch.Tensor:
    return torch.exp(-s * s)


def log_gamma(s: torch.Tensor) -> torch.Tensor:
    return torch.lgamma(s + 4)


def picture(figure: Any, at: int = 0) -> Any:
    """The numbers of one image of a figure."""
    return np.asarray([ax.images[0].get_array() for ax in figure.axes if ax.images][at])


def titles(figure: Any) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]


def texts(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]
