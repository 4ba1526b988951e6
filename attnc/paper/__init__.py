"""The paper's theorems by name, each as a network with its bound; and what softmax has beside other selectors."""

from attnc.paper import selectors
from attnc.paper.learning import in_context_gradient_descent
from attnc.paper.prompts import Prompt, PromptedNetwork, prompted
from attnc.paper.rates import Rates, rates
from attnc.paper.truncated import many_heads, one_head
from attnc.paper.universal import MaxAffine, Spline, attention_softmax, relu_network, two_layer

__all__ = [
    "MaxAffine", "Prompt", "PromptedNetwork", "Rates", "Spline", "attention_softmax", "in_context_gradient_descent", "many_heads",
    "one_head", "prompted", "rates", "relu_network", "selectors", "two_layer",
]  # fmt: skip
