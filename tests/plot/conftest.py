"""Cheap heads of every kind that is drawn differently."""

from __future__ import annotations

import pytest
import torch

import attnc


@pytest.fixture(scope="session")
def tanh() -> attnc.Head:
    """float64, with a bound near 1e-15."""
    return attnc.head("tanh", domain=(-8, 8), eps=1e-12, dtype=torch.float64)


@pytest.fixture(scope="session")
def relu() -> attnc.Head:
    """A kink, and anchors that crowd around it, some outside the domain."""
    return attnc.head("relu", domain=(-1, 1), anchors=12, design="graded", dtype=torch.float64)


@pytest.fixture(scope="session")
def three_heads() -> attnc.Head:
    return attnc.head("gelu", domain=(-8, 8), anchors=8, heads=3, dtype=torch.float64)


@pytest.fixture(scope="session")
def crowd() -> attnc.Head:
    """More anchors than the heat map has rows; measured, because that is quick."""
    return attnc.head(bump, domain=(-3, 3), anchors=600, design="nearest", dtype=torch.float64)


@pytest.fixture(scope="session")
def measured() -> attnc.Head:
    return attnc.head(bump, domain=(-3, 3), anchors=8, design="smooth")


def bump(s: torch.Tensor) -> torch.Tensor:
    return torch.exp(-s * s)


@pytest.fixture
def bump_function() -> object:
    return bump
