"""Learners of these tests run in float64 unless a test says otherwise."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def float64_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
