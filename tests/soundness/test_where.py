"""Functions with branches: proved where they are continuous, and no Lipschitz constant is claimed across a branch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import attnc
from attnc.check.gradients import check_lipschitz
from attnc.check.values import CheckError
from attnc.frontends.trace import trace
from attnc.prove.gradient import lipschitz_bound
from attnc.prove.lattice_bound import SingularError

BOX = attnc.Box(-1, 1, shape=(1, 1))
ENDS = np.array([-1.0]), np.array([1.0])


def test_a_continuous_branch_is_proved_and_verified() -> None:
    net = attnc.compile(lambda x: torch.where(x > 0, x, 0.5 * x), domain=BOX, eps=0.03, dtype=torch.float64)
    assert net.certificate.status == "proved" and attnc.verify(net).status == "proved"


def test_a_jump_is_not_proved() -> None:
    with pytest.raises(attnc.errors.ConvergenceError):
        attnc.compile(
            lambda x: torch.where(x > 0.3, x, x - 1), domain=BOX, eps=0.05, dtype=torch.float64, time_limit=2
        )


@pytest.mark.parametrize("last", [0.0, 1.0])
def test_no_lipschitz_constant_across_a_branch(last: float) -> None:
    f = trace(lambda x: torch.where(x > 0.3, x, x - last) + 0 * (x > 0).to(x.dtype), BOX)
    if last == 0:
        f = trace(lambda x: (x > 0.3).to(x.dtype), BOX)
    with pytest.raises(SingularError):
        lipschitz_bound(f, *ENDS)
    with pytest.raises(CheckError):
        check_lipschitz(f, *ENDS, 1e6, most=4096)


def test_slope_of_atan() -> None:
    f = trace(lambda x: torch.atan(3 * x), BOX)
    found = lipschitz_bound(f, *ENDS)
    assert 3 <= found.constant <= 3.1 and math.isfinite(found.attained)
    assert check_lipschitz(f, *ENDS, found.constant) > 0


def test_a_branch_on_something_undefined_is_refused() -> None:
    with pytest.raises(attnc.errors.InputError, match="singularity"):
        attnc.compile(lambda x: torch.where(x.log() > -1, x, 0.99 * x), domain=BOX, eps=0.05)


def test_a_branch_on_a_plane_has_no_constant_within_the_time() -> None:
    box = attnc.Box(-1, 1, shape=(1, 2))
    with pytest.raises(attnc.errors.InputError, match="Lipschitz constant"):
        attnc.compile(
            lambda x: torch.where(x[..., :1] > x[..., 1:], x[..., :1] - x[..., 1:], 0.0),
            domain=box,
            eps=0.05,
            method="grid",
            time_limit=1,
        )
