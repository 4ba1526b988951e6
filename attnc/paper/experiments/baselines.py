"""What the paper's public experiment code gives: the test MSE of its trained networks, run on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnc.paper.experiments.settings import FIRST_SEED, PROTOCOL, Setting


@dataclass(frozen=True)
class Baseline:
    """The test MSE of the paper's code in one setting of the protocol."""

    setting: Setting  # trained, with the first of the seeds
    mse: float  # the mean over the seeds
    seeds: int = 3  # 1234, 1235, …
    low: float | None = None  # of the seeds, where they are far apart
    high: float | None = None
    variance: float | None = None  # of all numbers of the target, where it was noted
    factors: tuple[float, float] | None = (
        None  # within which ours, divided by it, is to lie; None where none is set
    )

    def holds(self, mse: float) -> bool | None:
        """Whether a test MSE lies within the factors; None where none are set.

        >>> BASELINES[0].holds(0.16), BASELINES[0].holds(0.2)
        (True, False)
        """
        return None if self.factors is None else self.factors[0] <= mse / self.mse <= self.factors[1]


CLOSE = (0.65, 1.35)  # heads and range: ±35 %
_TWICE = (0.5, 2.0)
_HEADS = {1: 0.1438, 2: 0.0601, 4: 0.0308, 8: 0.0193, 16: 0.0149}
_RANGE = {10.0: 0.0087, 20.0: 0.0430, 30.0: 0.0795, 40.0: 0.1166}  # 50 is the first of the heads
_ANCHORS = (  # 80 is unstable: its seeds are far apart, and no factors are set
    Baseline(replace(PROTOCOL.truncated, p=80), 0.049, low=0.005, high=0.117),
    Baseline(replace(PROTOCOL.truncated, p=100), 0.0059, factors=_TWICE),
    Baseline(replace(PROTOCOL.truncated, p=120), 0.0043, factors=_TWICE),
)
_FEW = {10: 15.4, 14: 15.6, 20: 15.7}
_MANY = {1: 123.5, 8: 35.3, 32: 52.2}

_base = PROTOCOL.truncated
BASELINES = (
    *(Baseline(replace(_base, heads=heads), mse, factors=CLOSE) for heads, mse in _HEADS.items()),
    *(Baseline(replace(_base, a=-w / 2, b=w / 2), mse, factors=CLOSE) for w, mse in _RANGE.items()),
    *_ANCHORS,
    *(Baseline(replace(PROTOCOL.few, p=p), mse, seeds=1, variance=55.3) for p, mse in _FEW.items()),
    *(Baseline(replace(PROTOCOL.many, heads=h), mse, seeds=1, variance=256.6) for h, mse in _MANY.items()),
)
_KNOWN = {one.setting: one for one in BASELINES}


def baseline(setting: Setting) -> Baseline | None:
    """What the paper's code gives for this data and this size, whatever the method and the seed; None where it was not run.

    >>> from attnc.paper.experiments import settings
    >>> baseline(settings("heads", seeds=1)[0]).mse
    0.1438
    >>> baseline(settings("heads", seeds=1, quick=True)[0]) is None
    True
    """
    return _KNOWN.get(replace(setting, method="trained", seed=FIRST_SEED))
