"""Random token programs: what is proved agrees with the interpreter on every sequence."""

from __future__ import annotations

import itertools

import pytest
import torch

from attnc.errors import NotExactError
from attnc.program.tokens import run
from tests.soundness.token_programs import random_program

pytestmark = pytest.mark.filterwarnings(
    "ignore::attnc.errors.ConditionWarning"
)  # random conditions may never hold


def _agrees(seed: int) -> bool | None:
    """Whether network and interpreter agree everywhere; None if the program is refused."""
    p, output = random_program(seed)
    program = p.program(output)
    try:
        net = p.compile(output, (torch.float32, torch.float64)[seed % 2])
    except NotExactError:
        return None
    for length in range(1, program.length + 1):
        for sequence in itertools.product(program.vocabulary, repeat=length):
            if net.run(sequence) != run(program, sequence):
                return False
    return True


def test_proved_programs_are_exact() -> None:
    found = [_agrees(seed) for seed in range(60)]
    assert False not in found
    assert found.count(True) > 45


@pytest.mark.slow
def test_more_programs() -> None:
    found = [_agrees(seed) for seed in range(60, 1000)]
    assert False not in found
    assert found.count(True) > 700
