"""Network → the network of its theorem, with every matrix to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnc.errors import InputError
from attnc.network.forms import attention_softmax, single, two_layer
from attnc.network.forms.builder import Builder
from attnc.network.forms.parts import Lookup, Neurons, Parts, read
from attnc.network.forms.steps import Step
from attnc.network.forms.theorem_network import TheoremNetwork

if TYPE_CHECKING:
    from attnc.network.network import Network

_NEURONS: dict[tuple[str, str], Callable[[Builder, Parts, Neurons], list[Step]]] = {
    ("one-head", ""): single.one_head,
    ("many-heads", ""): single.many_heads,
    ("two-layer", "tokens"): two_layer.neurons_as_tokens,
    ("two-layer", "heads"): two_layer.neurons_as_heads,
    ("attention-softmax", ""): attention_softmax.neurons,
}
_LOOKUPS: dict[str, Callable[[Builder, Parts, Lookup], list[Step]]] = {
    "two-layer": two_layer.lookup,
    "attention-softmax": attention_softmax.lookup,
}


def literal_form(net: Network) -> TheoremNetwork:
    """The network as the composition that its form names, exactly the theorem's layers.

        form                 steps
        one-head             Attn∘A                one head; n data tokens, p anchor tokens for each output coordinate
        many-heads           Attn∘A                H heads; no tokens but the n data tokens
        two-layer, tokens    A∘Attn∘A∘Attn∘A       anchors, then scores 0: adds the neurons up
        two-layer, heads     A∘Attn∘A∘Attn∘A       scores 0: gathers vec(X), then anchors, a head for every neuron
        attention-softmax    A∘Softmax∘A∘Attn∘A    scores 0, then softmax over anchors

    A lookup has no neurons, and so one network for the form two-layer: it gathers, then one head attends to the K anchors.

    >>> import torch
    >>> from attnc.compiler import compile
    >>> from attnc.domain import Box
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
    >>> net = compile(model, domain=Box(-1, 1, shape=(3, 2)), eps=1e-3)
    >>> net.form, net.layout = "two-layer", "tokens"
    >>> literal = literal_form(net)
    >>> x = torch.rand(5, 3, 2)
    >>> literal.kinds, torch.allclose(literal(x), net(x), atol=1e-5)
    (('map', 'attention', 'map', 'attention', 'map'), True)
    >>> literal.layers[0].W_Q.shape, literal.maps[1].matrix.shape
    (torch.Size([1, 6, 3]), torch.Size([144, 14]))
    """
    forms = list(dict.fromkeys(form for form, _ in _NEURONS))
    if net.form not in forms:
        raise InputError(
            f"form={net.form!r}: the forms of theorems are {', '.join(map(repr, forms))}; a network of the form "
            "'layers' is written by LiteralNetwork"
        )
    parts, layout = read(net), net.layout if net.form == "two-layer" else ""
    make = Builder(net.form, parts.dtype)
    if isinstance(parts.body, Lookup):
        if net.form not in _LOOKUPS:
            raise InputError(
                f"form {net.form!r} is for neurons, each a function of one number: this network is a lookup of the whole input; "
                f"use {' or '.join(f'form={form!r}' for form in _LOOKUPS)}"
            )
        layout, steps = "", _LOOKUPS[net.form](make, parts, parts.body)
    else:
        if (net.form, layout) not in _NEURONS:
            raise InputError(
                f"layout={net.layout!r}: the form 'two-layer' lays its neurons out as 'tokens' or as 'heads'"
            )
        steps = _NEURONS[net.form, layout](make, parts, parts.body)
    found = TheoremNetwork(net.form, layout, steps, parts.shape, parts.result)
    return found.to(next(net.parameters()).device)
