"""The theorems' networks, literally: affine maps of the whole sequence and plain self-attention, without a residual stream."""

from attnc.network.forms.build import literal_form
from attnc.network.forms.steps import ColumnSoftmax, SequenceMap
from attnc.network.forms.theorem_network import TheoremNetwork

__all__ = ["ColumnSoftmax", "SequenceMap", "TheoremNetwork", "literal_form"]
