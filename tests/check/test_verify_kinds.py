"""`attnc.verify` names the type of an object that it cannot check."""

from __future__ import annotations

import pytest
from torch import nn

import attnc
from attnc.errors import InputError


@pytest.mark.parametrize("given", [nn.Linear(2, 1), [1, 2], None, attnc.Head], ids=lambda g: type(g).__name__)
def test_other_objects_are_refused(given: object) -> None:
    with pytest.raises(InputError, match=type(given).__name__):
        attnc.verify(given)  # type: ignore[arg-type]
