"""The feed-forward blocks of transformers, read from the operations that the model executes."""

from attnc.frontends.transformers.blocks import NormRead
from attnc.frontends.transformers.find import BlockList, Call, example_call, find_blocks, read_sites
from attnc.frontends.transformers.norm_sites import NormSite
from attnc.frontends.transformers.sites import Site, SkipCause, Skipped

__all__ = [
    "BlockList",
    "Call",
    "NormRead",
    "NormSite",
    "Site",
    "SkipCause",
    "Skipped",
    "example_call",
    "find_blocks",
    "read_sites",
]
