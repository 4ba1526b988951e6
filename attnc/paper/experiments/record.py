"""What a run leaves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from attnc.errors import InputError
from attnc.paper.experiments.settings import Setting


@dataclass(frozen=True)
class Record:
    """The result of one run. All but `seconds` is the same whenever the same versions run the same setting on the same kind of
    processor."""

    setting: Setting
    mse: float  # on the test samples, in the protocol's measure
    largest: float  # the largest |error| of a test token in the target's coordinates
    start: float | None  # test MSE before training
    curve: tuple[float, ...]  # test MSE after each epoch
    bound: float | None  # proved for every input of the box, in the target's coordinates
    theorem: float | None  # the theorem's bound for these sizes
    parameters: int
    anchors: int | None  # of a built network
    spread: float  # the variance of all numbers of the target on the test samples, in the protocol's measure
    constant: float  # the MSE, in that measure, of the output that is always the mean of the training targets
    weights: tuple[tuple[tuple[float, ...], ...], ...] | None  # heat maps: (sample, token, key)
    picked: (
        float | None
    )  # heat maps: the share of test tokens whose heaviest key is the anchor nearest to the target
    cpu: str  # which instructions torch used
    seconds: float  # of one core, to train or to build

    def to_json(self) -> dict[str, Any]:
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**record, "setting": self.setting.to_json()}

    @classmethod
    def from_json(cls, record: Any) -> Record:
        """The record again, tuples and all; raises `InputError` for anything else than `to_json` gives."""
        known = {field.name for field in fields(cls)}
        if not isinstance(record, dict) or set(record) != known:
            raise InputError(f"a record has the fields {', '.join(sorted(known))}")
        setting = Setting.from_json(record["setting"])
        return cls(**{name: _frozen(record[name]) for name in known - {"setting"}}, setting=setting)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value
