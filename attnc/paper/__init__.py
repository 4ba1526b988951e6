"""The paper's theorems by name, each as a network with its bound."""

from attnc.paper.truncated import many_heads, one_head
from attnc.paper.universal import MaxAffine, Spline, attention_softmax, relu_network, two_layer

__all__ = ["MaxAffine", "Spline", "attention_softmax", "many_heads", "one_head", "relu_network", "two_layer"]
