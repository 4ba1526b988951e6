"""The module: shapes, gradients, weights, anchors, its literal form, and what it tells a person."""

from __future__ import annotations

import copy

import pytest
import torch

import attnc
from attnc.errors import InputError
from attnc.records.numbers import HeadNumbers

CASES = [
    ("tanh", (-8, 8), {"eps": 1e-5}),
    ("gelu", (-8, 8), {"anchors": 7, "dtype": torch.float64}),
    ("relu", (-1, 2), {"anchors": 12, "design": "graded"}),
    ("silu", (-8, 8), {"anchors": 2, "design": "gated"}),
    ("clip(-1,2)", (-4, 4), {"anchors": 3, "design": "gated", "dtype": torch.float64}),
    ("sin", (-3, 3), {"anchors": 6, "heads": 3}),
    ("exp", (3, 5), {"anchors": 4, "dtype": torch.float64}),
    ("abs", (-2, 2), {"anchors": 9, "heads": 2, "design": "nearest"}),
]


@pytest.fixture(scope="module", params=CASES, ids=[f"{c[0]}-{c[2].get('design', 'auto')}" for c in CASES])
def head(request: pytest.FixtureRequest) -> attnc.Head:
    spec, on, options = request.param
    return attnc.head(spec, domain=on, **options)


def inputs(head: attnc.Head, *shape: int) -> torch.Tensor:
    domain = head.certificate.holds_for
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (domain.lo + (domain.hi - domain.lo) * u).to(head.key.dtype)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (4, 1, 2, 3)])
def test_any_shape(head: attnc.Head, shape: tuple[int, ...]) -> None:
    s = inputs(head, *shape)
    assert head(s).shape == s.shape
    assert head(s).dtype == s.dtype


def test_it_imitates_its_function(head: attnc.Head) -> None:
    s = inputs(head, 2000)
    f = attnc.functions.get(head.certificate.facts["function"])
    assert float((head(s).double() - f(s.double())).abs().max()) <= head.certificate.bound


def test_chunks_change_nothing(head: attnc.Head, monkeypatch: pytest.MonkeyPatch) -> None:
    s = inputs(head, 7, 11)
    whole = head(s)
    monkeypatch.setattr("attnc.network.head._CHUNK", 50)
    assert torch.allclose(head(s), whole, rtol=0, atol=2 * head.certificate.rounding)
    assert head(s).shape == (7, 11)


def test_gradients_reach_input_and_parameters(head: attnc.Head) -> None:
    wide = copy.deepcopy(head).double()
    for parameter in wide.parameters():
        assert not parameter.requires_grad
        parameter.requires_grad_()
    s = inputs(head, 6).double().requires_grad_()
    assert torch.autograd.gradcheck(wide, (s,))
    wide(s).sum().backward()
    assert all(parameter.grad is not None for parameter in wide.parameters())


def test_weights_are_attention_weights(head: attnc.Head) -> None:
    s = inputs(head, 3, 4)
    weights = head.weights(s)
    several = (head.heads,) if head.heads > 1 else ()
    assert weights.shape == (3, 4, *several, head.key.shape[1])
    assert torch.allclose(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    values = head.value[..., 1] + s[..., None, None] * head.value[..., 0]
    by_hand = ((weights if several else weights.unsqueeze(-2)) * values).sum(-1) @ head.output
    assert torch.allclose(by_hand, head(s), atol=1e-4)


def test_an_anchor_wins_where_it_stands_or_is_heaviest_there(head: attnc.Head) -> None:
    wide = copy.deepcopy(head).double()
    anchors = wide.anchors.reshape(head.heads, -1)
    assert torch.isfinite(anchors).all()
    for h in range(head.heads):
        for k, s in enumerate(anchors[h].tolist()):
            near = torch.tensor([s, s - 0.05, s + 0.05], dtype=torch.float64)
            weights = wide.weights(near).reshape(3, head.heads, -1)[:, h]
            wins = float(weights[0, k]) >= float(weights[0].max()) * (1 - 1e-6)
            assert wins or float(weights[0, k]) >= float(weights[:, k].max()) * (1 - 1e-6)


def test_lattice_anchors_are_its_points() -> None:
    head = attnc.head("sin", domain=(-3, 3), anchors=13, design="nearest", dtype=torch.float64)
    assert torch.allclose(head.anchors, torch.linspace(-3, 3, 13, dtype=torch.float64))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_plain_self_attention_agrees(head: attnc.Head, n: int) -> None:
    literal = head.as_self_attention(n)
    s = inputs(head, 40, n)
    assert torch.allclose(literal(s), head(s), rtol=0, atol=4 * head.certificate.rounding)
    f = attnc.functions.get(head.certificate.facts["function"])
    assert float((literal(s).double() - f(s.double())).abs().max()) <= 2 * head.certificate.bound


def test_the_literal_form_is_plain_softmax_of_query_times_key(head: attnc.Head) -> None:
    """No mask, no hidden step: the four matrices give the output, and no weight falls on another data token."""
    literal = head.as_self_attention(4)
    s = inputs(head, 4)
    x, layer = literal.embed(s), literal.layers[0]
    out = torch.zeros(4, dtype=s.dtype)
    for h in range(head.heads):
        q, k, v = x @ layer.W_Q[h], x @ layer.W_K[h], x @ layer.W_V[h]
        weights = torch.softmax(q @ k.T, -1)
        out += (weights @ v @ layer.W_O[h])[:4, literal.coordinates.index("y")]
        assert (weights[:4, :4] - torch.diag(weights[:4, :4].diagonal())).abs().max() == 0
        if head.design != "gated":
            assert weights[:4, :4].abs().max() == 0
    assert torch.allclose(out, literal(s), rtol=1e-5, atol=1e-6)


def test_tokens_do_not_disturb_each_other(head: attnc.Head) -> None:
    literal = head.as_self_attention(3)
    s = inputs(head, 3)
    other = s.clone()
    other[1:] = inputs(head, 2).flip(0)
    assert torch.equal(literal(s)[0], literal(other)[0])


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3"])
def test_number_of_tokens_is_checked(n: object) -> None:
    head = attnc.head("tanh", domain=(-1, 1), anchors=2)
    with pytest.raises(InputError):
        head.as_self_attention(n)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        head.as_self_attention(3)(torch.zeros(4))


@pytest.mark.parametrize(
    "s", [0.5, [1.0], None, torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)]
)
def test_inputs_are_never_cast(s: object) -> None:
    head = attnc.head("tanh", domain=(-1, 1), anchors=2)
    for call in (head, head.weights):
        with pytest.raises(InputError):
            call(s)


def test_repr_tells_what_it_is(head: attnc.Head) -> None:
    text = repr(head)
    for part in (head.certificate.facts["function"], "anchors=", "proved", f"{head.certificate.bound:.4g}"):
        assert part in text


def test_repr_of_a_measured_head_says_measured() -> None:
    head = attnc.head(lambda s: torch.lgamma(s + 4), domain=(-1, 1), anchors=4)
    assert "not proved" in repr(head)
    assert "at most" not in repr(head)


def test_it_is_a_module(head: attnc.Head) -> None:
    assert set(head.state_dict()) == {"query", "key", "value", "output"}
    twin = copy.deepcopy(head)
    assert torch.equal(twin(inputs(head, 9)), head(inputs(head, 9)))
    assert twin.certificate == head.certificate


def test_a_head_needs_no_certificate_to_run() -> None:
    import numpy as np

    numbers = HeadNumbers(
        np.array([[1.0, 0.0]]), np.zeros((1, 1, 2)), np.array([[[0.0, 3.0]]]), np.ones(1), "float32"
    )
    head = attnc.Head(numbers, "constant")
    assert torch.equal(head(torch.zeros(2)), torch.full((2,), 3.0))
    assert "unknown" in repr(head)
    assert head.as_self_attention(2)(torch.zeros(2)).tolist() == [3.0, 3.0]
