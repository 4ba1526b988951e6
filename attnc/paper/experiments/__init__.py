"""The paper's experiments: networks trained with its protocol, and networks built for the same data.

`run` and `sweep` need the extra `reproduce` (joblib, pandas, scipy)."""

from attnc.paper.experiments.protocol import SWEEPS, Setting, settings
from attnc.paper.experiments.run import Record, run
from attnc.paper.experiments.sweeps import SweepError, frame, sweep

__all__ = ["SWEEPS", "Record", "Setting", "SweepError", "frame", "run", "settings", "sweep"]
