"""The test MSE of the networks that the paper's public code trains, run on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnc.paper.experiments.settings import FIRST_SEED, PROTOCOL, Setting


@dataclass(frozen=True)
class Baseline:
    """The paper's test MSE in one setting of the protocol: the mean of three seeds, in experiment 3 of one."""

    mse: float
    low: float | None = None  # over the seeds, where they differ much
    high: float | None = None
    variance: float | None = None  # of all numbers of the target, where it is known
    limits: tuple[float, float] | None = None  # our MSE divided by the paper's must lie between them


_CLOSE, _TWICE = (0.65, 1.35), (0.5, 2.0)
_BASE, _FEW, _MANY = PROTOCOL.truncated, PROTOCOL.few, PROTOCOL.many
_HEADS = {1: 0.1438, 2: 0.0601, 4: 0.0308, 8: 0.0193, 16: 0.0149}
_RANGE = {10.0: 0.0087, 20.0: 0.0430, 30.0: 0.0795, 40.0: 0.1166}  # 50 is the first of the heads
BASELINES = {
    **{replace(_BASE, heads=h): Baseline(mse, limits=_CLOSE) for h, mse in _HEADS.items()},
    **{replace(_BASE, a=-w / 2, b=w / 2): Baseline(mse, limits=_CLOSE) for w, mse in _RANGE.items()},
    replace(_BASE, p=80): Baseline(0.049, low=0.005, high=0.117),  # unstable: no limits
    replace(_BASE, p=100): Baseline(0.0059, limits=_TWICE),
    replace(_BASE, p=120): Baseline(0.0043, limits=_TWICE),
    **{replace(_FEW, p=p): Baseline(mse, variance=55.3) for p, mse in {10: 15.4, 14: 15.6, 20: 15.7}.items()},
    **{
        replace(_MANY, heads=h): Baseline(mse, variance=256.6)
        for h, mse in {1: 123.5, 8: 35.3, 32: 52.2}.items()
    },
}


def baseline(setting: Setting) -> Baseline | None:
    """The paper's result for these sizes, whatever the method and the seed; None if the paper's code was not run with them.

    >>> baseline(PROTOCOL.truncated).mse
    0.1438
    """
    return BASELINES.get(replace(setting, method="trained", seed=FIRST_SEED))
