"""The paper's theorems by name, each as a network with its bound."""

from attnc.paper.approximators import MaxAffine, Spline, relu_network
from attnc.paper.many_heads import many_heads
from attnc.paper.one_head import one_head

__all__ = ["MaxAffine", "Spline", "many_heads", "one_head", "relu_network"]
