"""One network, many functions: the prompt is the function, its certificate covers what runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attnc
from attnc.errors import InputError
from attnc.network.literal.steps import LETTERS
from attnc.paper import prompted
from attnc.paper.prompts import TOP

DOMAIN = (-3.0, 3.0)


def grid(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.linspace(*DOMAIN, 4001, dtype=dtype)


@pytest.mark.parametrize("dtype, eps", [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_another_prompt_is_another_function(dtype: torch.dtype, eps: float) -> None:
    net, s = prompted(domain=DOMAIN, dtype=dtype), grid(dtype)
    before = {name: x.clone() for name, x in net.state_dict().items()}
    for name, f in (("sin", torch.sin), ("gelu", torch.nn.functional.gelu), ("abs", torch.abs)):
        made = net.prompt(name, eps=eps if name != "abs" else 1e-2)
        assert made.certificate.proved and attnc.verify(made.head)
        out = net(s, made)
        assert float((out.double() - f(s.double())).abs().max()) <= made.certificate.bound
        assert torch.equal(out, made.head(s))  # the executed arithmetic is that of the certificate
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


def test_the_literal_form_has_the_same_matrices_for_every_prompt() -> None:
    net = prompted(domain=DOMAIN)
    made = [net.prompt("sin", anchors=9), net.prompt("relu", anchors=6, design="graded")]
    first, second = (net.as_self_attention(p, n=3) for p in made)
    for letter in LETTERS:
        assert torch.equal(getattr(first.layers[0], letter), getattr(second.layers[0], letter))
    assert torch.equal(first.embeddings[0].W, second.embeddings[0].W)
    assert first.fixed.shape != second.fixed.shape  # the prompts have different lengths
    x = torch.tensor([[-2.5, 0.1, 2.0]], dtype=torch.float64)
    for literal, p in ((first, made[0]), (second, made[1])):
        assert attnc.verify(literal) and torch.allclose(literal(x), net(x, p), atol=1e-12)
    first.fixed = torch.nn.Parameter(
        second.fixed.detach().clone(), requires_grad=False
    )  # another prompt, nothing else
    assert torch.equal(first(x), second(x))


def test_tokens_from_anywhere_are_proved_and_differentiable() -> None:
    net, x = prompted(domain=(-1, 1)), torch.linspace(-1, 1, 9, dtype=torch.float64)
    tokens = torch.stack([128 * x, -64 * x**2, x.sin()], 1).requires_grad_()  # nearest anchors, c = 4
    made = net.certify(tokens, "sin")
    assert made.certificate.proved and made.certificate.bound <= 0.25 * 0.52
    net(x, tokens).sum().backward()
    assert tokens.grad is not None and bool((tokens.grad != 0).any())
    assert attnc.verify(made.head) and not made.tokens.requires_grad


def test_a_prompt_of_another_function_is_not_certified_as_this_one() -> None:
    net = prompted(domain=DOMAIN)
    wave = net.prompt("sin", anchors=12)
    assert net.certify(wave.tokens, "cos").certificate.bound > 0.9


def test_the_head_of_a_prompt_is_saved_and_verified_from_the_file(tmp_path: Path) -> None:
    made = prompted(domain=DOMAIN).prompt("tanh", anchors=8)
    made.head.save(tmp_path / "prompt.safetensors")
    assert attnc.verify(tmp_path / "prompt.safetensors")
    assert attnc.load(tmp_path / "prompt.safetensors").certificate == made.certificate


def test_inputs_outside_the_domain() -> None:
    net = prompted(domain=DOMAIN)
    wave, far = net.prompt("sin", anchors=6), torch.tensor([3.5], dtype=torch.float64)
    with pytest.warns(attnc.DomainWarning):
        net(far, wave)
    with pytest.raises(InputError):
        net(far, wave, strict=True)
    net(far, wave, strict=False)
    with pytest.raises(InputError):
        net(far.float(), wave)


def test_bad_prompts_are_refused() -> None:
    net = prompted(domain=DOMAIN)
    for tokens in (
        torch.zeros(4, 2).double(),
        torch.zeros(0, 3).double(),
        torch.zeros(4, 3),
        [[0.0, 0.0, 1.0]],
    ):
        with pytest.raises(InputError):
            net(torch.zeros(2).double(), tokens)
    steep = torch.tensor([[TOP, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    with pytest.raises(InputError):
        net.certify(steep, "sin")
    with pytest.raises(InputError):
        net.certify(torch.full((2, 3), float("nan"), dtype=torch.float64), "sin")
    with pytest.raises(InputError):
        net.prompt("silu", anchors=2, design="gated")
    with pytest.raises(InputError):
        net.as_self_attention(torch.zeros(4, 3), n=2)  # type: ignore[arg-type]


def test_a_python_function_is_proved_from_its_operations_or_says_why_not() -> None:
    net = prompted(domain=(-1, 1))
    made = net.prompt(lambda s: torch.relu(torch.sin(s)), eps=1e-3)
    assert made.certificate.proved and attnc.verify(made.head)
    opaque = net.prompt(lambda s: torch.from_numpy(s.numpy() ** 2), eps=1e-3)
    assert opaque.certificate.status == "measured" and "numpy()" in str(opaque.certificate)


class Changing:
    """A function that is another one from its thirteenth call on: a head of it is measured."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, s: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return s.sin() + (1e-3 if self.calls > 12 else 0)


def test_what_no_head_is_proved_of_no_prompt_is_proved_of() -> None:
    """The prompt read the function again, when its state had come to rest, and was proved."""
    head = attnc.head(Changing(), domain=(-1, 1), anchors=9, dtype=torch.float64)
    made = prompted(domain=(-1, 1)).prompt(Changing(), anchors=9)
    assert head.certificate.status == made.certificate.status == "measured"
    assert "reason" in made.certificate.facts


def test_changed_tokens_lose_the_claim() -> None:
    made = prompted(domain=(-1, 1)).prompt("sin", anchors=5)
    assert "does not apply" not in str(made.certificate)
    made.tokens[0, 2] += 1
    assert made.certificate.why_lapsed() is not None and "does not apply" in str(made.certificate)
    made.tokens[0, 2] -= 1
    other = prompted(domain=(-1, 1)).prompt("sin", anchors=5)
    with torch.no_grad():
        other.head.value.mul_(2)
    assert "does not apply" in str(other.certificate)


def test_nothing_is_certified_of_a_network_whose_matrices_changed() -> None:
    net = prompted(domain=(-1, 1))
    tokens = net.prompt("sin", anchors=5).tokens
    with torch.no_grad():
        net.head.output.mul_(2)
    with pytest.raises(InputError):
        net.certify(tokens, "sin")
    hooked = prompted(domain=(-1, 1))
    hooked.head.register_forward_hook(lambda module, given, out: 2 * out)
    with pytest.raises(InputError):
        hooked.prompt("sin", anchors=5)
