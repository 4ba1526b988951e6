"""The paper's experiments: networks trained by its protocol, and networks built, on the same data, in the same measure."""

from attnc.paper.experiments.record import Record
from attnc.paper.experiments.settings import SWEEPS, Setting, settings

__all__ = ["SWEEPS", "Record", "Setting", "settings"]
