"""Two layers of attention, or one and a softmax, for any continuous function of a sequence.

    two_layer            A∘Attn∘A∘Attn∘A
    attention_softmax    A∘Softmax∘A∘Attn∘A

A network of one hidden layer is compiled as it is: each neuron is a head over p anchors, or a token. For a black-box function,
softmax selects points of a lattice in R^{nd}."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from attnc.arguments import checked_choice
from attnc.compiler import compile
from attnc.domain import Box
from attnc.errors import InputError
from attnc.heads.designs import nearest_constant
from attnc.heads.tensor import CONSTANT, SHARPNESS
from attnc.network.literal.parts import Neurons, read
from attnc.network.network import Network
from attnc.program import Lookup, Pointwise
from attnc.records.presentation import Theorem


def two_layer(
    f: Any, domain: Box, *, eps: float, layout: str = "heads", dtype: torch.dtype = torch.float64, **options: Any
) -> Network:  # fmt: skip
    """f, a network of one hidden layer or any function of (batch, n, d), as two layers of attention and affine maps.

    `layout="tokens"` is the paper's: layer 1 applies the activation to N neurons, each of them a token, and layer 2 adds them.
    `layout="heads"`: layer 1 copies the sequence into every token, layer 2 has a head for every neuron, or one head over the
    lattice of a function. The `options` and the error are those of `attnc.compile`.

    >>> import attnc, attnc.paper, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 6),
    ...                             torch.nn.Unflatten(1, (3, 2))).double().eval()
    >>> net = attnc.paper.two_layer(model, attnc.Box(0, 1, shape=(3, 2)), eps=1e-6, layout="tokens")
    >>> net.as_self_attention().kinds, net.certificate.bound <= 1e-6
    (('map', 'attention', 'map', 'attention', 'map'), True)
    """
    checked_choice("layout", layout, ("heads", "tokens"))
    net = compile(f, domain=domain, eps=eps, form="two-layer", dtype=dtype, **options)
    if layout == "tokens" and net.selections:
        reason = (
            "this function was compiled to a lattice, which has none; use layout='heads', or method='fit'"
        )
        raise InputError(f"layout='tokens' applies to neurons: {reason}")
    net.layout, net.theorem = layout, _theorem(net, "two layers of attention")
    return net


def attention_softmax(
    f: Any, domain: Box, *, eps: float, dtype: torch.dtype = torch.float64, **options: Any
) -> Network:
    """f, as for `two_layer`, as one layer of attention, affine maps, and one softmax.

    The scores of the attention are 0, so it is linear: it computes the scores of the softmax, which selects anchors; an affine
    map reads their values.

    >>> import attnc, attnc.paper, torch
    >>> def product(x):
    ...     return x.prod(1, keepdim=True)
    >>> net = attnc.paper.attention_softmax(product, attnc.Box(-1, 1, shape=(2, 1)), eps=1e-3, tokens=1)
    >>> net.as_self_attention().kinds, str(net.certificate.status), net.certificate.error <= 1e-3
    (('map', 'attention', 'map', 'softmax', 'map'), 'measured', True)
    """
    net = compile(f, domain=domain, eps=eps, form="attention-softmax", dtype=dtype, **options)
    net.theorem = _theorem(net, "attention and softmax")
    return net


def _theorem(net: Network, name: str) -> Theorem:
    """The bound that nearest anchors, as many as the network has, are known to reach."""
    body = read(net).body
    if isinstance(body, Neurons) and net.certificate.proved:
        return _of_neurons(net, float(np.abs(body.second).sum(1).max()), name)
    lookup = next((step for step in net.program.steps if isinstance(step, Lookup)), None)
    if lookup is None:
        statement = "such weights exist for every continuous f on the box and every eps; no number of anchors is named"
        return Theorem(f"{name}: universal", statement, None)
    counts = [len(np.unique(column)) for column in lookup.points.T]
    diagonal = math.hypot(*((net.domain.hi - net.domain.lo).ravel() / counts))
    statement = (
        f"in exact arithmetic |net(X) - f(X)| <= K √C₂ · diagonal of a cell, for every f with the Lipschitz constant K = "
        f"{lookup.lipschitz:g}: {len(lookup.points)} grid points, diagonal {diagonal:.4g}, C₂ = {CONSTANT} at c = "
        f"{SHARPNESS:g} (1/4 for a hard choice of the nearest); the certificate includes rounding, and a margin of 1/256"
    )
    bound = lookup.lipschitz * math.sqrt(CONSTANT) * diagonal * (1 + 2.0**-48)
    return Theorem(f"{name}: grid", statement, bound)


def _of_neurons(net: Network, weights: float, name: str) -> Theorem:
    """max_i Σ_j |W2_ij| · Lip(f) C Δ: each neuron by its nearest anchor, the errors added up."""
    (claim,) = net.certificate.parts("layer")
    (step,) = (step for step in net.program.steps if isinstance(step, Pointwise))
    amount = 0.0
    for said, (_, head) in zip(claim.children, net.layers[0].groups, strict=True):
        on, p = said.interval, int(head.key.shape[0] * head.key.shape[1])
        steep = step.function.lipschitz(on.lo, on.hi)
        amount = max(amount, steep * nearest_constant() * on.width / (p - 1))
    statement = (
        "if every neuron took the nearest of as many uniform anchors as it has here, the error would be at most "
        f"max_i Σ_j |W2_ij| · Lip · C Δ = {weights:.4g} · {amount:.4g}; the anchors of this network are placed better, and the "
        "certificate has the proved bound"
    )
    return Theorem(f"{name}: one hidden layer", statement, weights * amount)
