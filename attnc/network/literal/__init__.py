"""The literal form: plain self-attention over named tokens and coordinates, without a mask."""

from attnc.network.literal.network import SelfAttentionNetwork
from attnc.network.literal.steps import Embedding, Input, Layout, SelfAttention, SequenceMap, Softmax

__all__ = [
    "Embedding", "Input", "Layout", "SelfAttention", "SelfAttentionNetwork", "SequenceMap", "Softmax",
]  # fmt: skip
