"""The paper's theorems by name, each as a network with its bound."""

from attnc.paper.approximators import MaxAffine, Spline, relu_network
from attnc.paper.truncated import many_heads, one_head
from attnc.paper.universal import attention_softmax, two_layer

__all__ = ["MaxAffine", "Spline", "attention_softmax", "many_heads", "one_head", "relu_network", "two_layer"]
