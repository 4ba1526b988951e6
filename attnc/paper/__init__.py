"""The paper's theorems by name, each as a network with its bound."""

from attnc.paper.approximators import MaxAffine, Spline, relu_network
from attnc.paper.many_heads import many_heads
from attnc.paper.one_head import one_head
from attnc.paper.rates import Rates, Series, rates
from attnc.paper.universal import attention_softmax, two_layer

__all__ = [
    "MaxAffine", "Rates", "Series", "Spline", "attention_softmax", "many_heads", "one_head", "rates", "relu_network", "two_layer",
]  # fmt: skip
