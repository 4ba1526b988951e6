"""in_context_gradient_descent: attention with fixed weights that runs gradient descent on the examples in its context."""

from __future__ import annotations

from typing import Any

import torch

from attnc.functions import Function
from attnc.incontext import Learner, Loss, gradient_descent


def in_context_gradient_descent(
    loss: str | Loss | Function = "squared",
    *,
    features: int,
    steps: int,
    dtype: torch.dtype | str = torch.float64,
    **options: Any,
) -> Learner:
    """T steps of gradient descent on the examples of a context, by attention with fixed weights: three layers a step.

    The weights do not depend on the number of examples. `loss` and the `options` are those of
    `attnc.incontext.gradient_descent`, which this calls. `learner.theorem.bound` is the theorem's, in exact arithmetic;
    `learner.certificate.bound` is proved for the executed numbers.

    >>> import attnc.paper, torch
    >>> learner = attnc.paper.in_context_gradient_descent("squared", features=2, steps=20, step_size=0.5)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    >>> y, w = x @ torch.tensor([1.0, -2.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    >>> for _ in range(20):
    ...     w = w - 0.5 * (x @ w - y) @ x / len(x)
    >>> error = (learner.coefficients(x, y) - w).norm().item()
    >>> error <= learner.certificate.bound, learner.theorem.bound <= learner.certificate.bound
    (True, True)
    >>> learner.theorem.name
    'in-context gradient descent'
    """
    return gradient_descent(loss, features=features, steps=steps, dtype=dtype, **options)
