"""The paper's experiments: networks trained by its protocol, and networks built, on the same data, in the same measure."""

from attnc.paper.experiments.backends import SweepError
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.results import Results
from attnc.paper.experiments.run import run
from attnc.paper.experiments.settings import SWEEPS, Setting, settings
from attnc.paper.experiments.sweep import sweep

__all__ = ["SWEEPS", "Record", "Results", "Setting", "SweepError", "run", "settings", "sweep"]
