"""The test MSE of the networks that the paper's public code trains, run on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan

from attnc.paper.experiments.settings import FIRST_SEED, PROTOCOL, Setting


@dataclass(frozen=True)
class Baseline:
    """The paper's test MSE in one setting of the protocol: the mean of three seeds, in experiment 3 of one. NaN: not known."""

    mse: float = nan
    low: float = nan  # over the seeds, where they differ much
    high: float = nan
    variance: float = nan  # of all numbers of the target
    least: float = nan  # our MSE divided by the paper's must lie between these limits
    most: float = nan


_BASE, _FEW, _MANY = PROTOCOL.truncated, PROTOCOL.few, PROTOCOL.many
_HEADS = {1: 0.1438, 2: 0.0601, 4: 0.0308, 8: 0.0193, 16: 0.0149}
_RANGE = {10.0: 0.0087, 20.0: 0.0430, 30.0: 0.0795, 40.0: 0.1166}  # 50 is the first of the heads
_KEYS, _SEQ_KEYS = {100: 0.0059, 120: 0.0043}, {10: 15.4, 14: 15.6, 20: 15.7}
_SEQ_HEADS = {1: 123.5, 8: 35.3, 32: 52.2}
BASELINES = {
    **{replace(_BASE, heads=h): Baseline(mse, least=0.65, most=1.35) for h, mse in _HEADS.items()},
    **{replace(_BASE, a=-w / 2, b=w / 2): Baseline(mse, least=0.65, most=1.35) for w, mse in _RANGE.items()},
    replace(_BASE, p=80): Baseline(0.049, low=0.005, high=0.117),  # unstable: no limits
    **{replace(_BASE, p=p): Baseline(mse, least=0.5, most=2.0) for p, mse in _KEYS.items()},
    **{replace(_FEW, p=p): Baseline(mse, variance=55.3) for p, mse in _SEQ_KEYS.items()},
    **{replace(_MANY, heads=h): Baseline(mse, variance=256.6) for h, mse in _SEQ_HEADS.items()},
}


def baseline(setting: Setting) -> Baseline:
    """The paper's result for a trained network of this setting, with any seed; NaN if the paper's code was not run with it.

    >>> baseline(PROTOCOL.truncated).mse
    0.1438
    """
    return BASELINES.get(replace(setting, seed=FIRST_SEED), Baseline())
