"""The feed-forward blocks of transformers, read from the operations that the model executes."""

from attnc.frontends.transformers.calls import Call
from attnc.frontends.transformers.find import BlockList, find_blocks, read_sites
from attnc.frontends.transformers.sites import Site, SkipCause, Skipped

__all__ = ["BlockList", "Call", "Site", "SkipCause", "Skipped", "find_blocks", "read_sites"]
