"""The feed-forward blocks of transformers, read from the operations that the model executes."""

from attnc.frontends.transformers.calls import Call, example_call
from attnc.frontends.transformers.find import BlockList, find_blocks, read_sites
from attnc.frontends.transformers.sites import ActivationSite, NormSite, PartSite, Site, SkipCause, Skipped

__all__ = [
    "ActivationSite",
    "BlockList",
    "Call",
    "NormSite",
    "PartSite",
    "Site",
    "SkipCause",
    "Skipped",
    "example_call",
    "find_blocks",
    "read_sites",
]
