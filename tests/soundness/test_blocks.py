"""Converted feed-forward blocks under attack: no neuron leaves its interval, no output its bound. Zero slack, by balls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, arb_mat
from torch import Tensor, nn

from attnc.frontends.transformers import find_blocks
from attnc.functions.balls import working
from attnc.lower.product import square_errors, square_head
from attnc.network.head import Head
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained import blocks, convert_
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import compose
from attnc.records.certificate import Certificate
from attnc.records.layers import Layer
from tests.feed_forward import FeedForward, attainable, feed_forward
from tests.frontends.tiny_models import tiny
from tests.sampled import every

# family → the number of its layers in its config, its first map, norm and second map, eps in float64 and float32
ONE = {"num_hidden_layers": 1}
CASES: dict[str, tuple[dict[str, Any], str, str, str, float, float]] = {
    "bert": (
        ONE, "encoder.layer.0.intermediate.dense", "encoder.layer.0.attention.output.LayerNorm",
        "encoder.layer.0.output.dense", 1e-5, 2e-3,
    ),
    "gpt2": (
        {"n_layer": 1}, "transformer.h.0.mlp.c_fc", "transformer.h.0.ln_2", "transformer.h.0.mlp.c_proj", 1e-5, 2e-3,
    ),
    "opt": (ONE, "decoder.layers.0.fc1", "decoder.layers.0.final_layer_norm", "decoder.layers.0.fc2", 1e-5, 2e-3),
    "llama": (
        ONE, "model.layers.0.mlp.gate_proj", "model.layers.0.post_attention_layernorm", "model.layers.0.mlp.down_proj",
        1e-9, 1e-5,
    ),
    "gemma": (
        ONE, "layers.0.mlp.gate_proj", "layers.0.post_attention_layernorm", "layers.0.mlp.down_proj", 1e-5, 2e-3,
    ),
}  # fmt: skip
DTYPES = ("float64", "float32")
TOKENS = 40
BITS = 160


@dataclass(frozen=True, eq=False)
class Claim:
    """The errors that were claimed of the heads of each neuron, on [lo, hi], and of its squares."""

    lo: np.ndarray
    hi: np.ndarray
    heads: HeadErrors
    squares: HeadErrors | None
    product: Layer | None


@dataclass(frozen=True, eq=False)
class Case:
    """A model of one converted layer, and what was claimed on the way to its bound."""

    model: nn.Module
    ff: FeedForward
    report: Certificate
    module: Pointwise | GatedBlock
    claimed: dict[str, Claim]  # by engine
    first: nn.Module
    norm: nn.Module
    second: nn.Module

    @property
    def activation(self) -> Pointwise:
        return self.module.activation if isinstance(self.module, GatedBlock) else self.module


@cache
def case(name: str, dtype: str) -> Case:
    changes, first, norm, second, *eps = CASES[name]
    model = tiny(name, **changes).to(getattr(torch, dtype))
    said: list[Claim] = []

    def noting(program: Any, layers: Any, domain: Any, heads: Any, dtype: str) -> dict[int, ValueBounds]:
        known = compose(program, layers, domain, heads, dtype)
        if len(program.steps) in known and heads:  # the bounds of the whole block, under one engine
            product = next((layer for layer in layers if layer.kind == "product"), None)
            said.append(Claim(*known[1].reach, heads[2], heads.get(4), product))
        return known

    (site,) = find_blocks(model).blocks
    ff = feed_forward(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "compose", noting)
        (report,) = convert_(model, approximation=eps[DTYPES.index(dtype)]).blocks
    module = model.get_submodule(report.name)
    assert isinstance(module, (Pointwise, GatedBlock)) and [*report.facts["roundings"]] == [
        "softmax",
        "closed-form",
    ]
    parts = (model.get_submodule(path) for path in (first, norm, second))
    return Case(
        model,
        ff,
        report,
        module,
        dict(zip(report.facts["roundings"], said, strict=True)),
        *parts,
    )


def attacks(ff: FeedForward) -> Tensor:
    """What may enter the norm: of every scale, without variance, of one number, and what drives a neuron to its ends."""
    assert ff.norm is not None
    draw, d = np.random.default_rng(5), ff.W1.shape[1]
    ends = attainable(ff.W1, ff.norm.domain())
    if ff.U is not None:
        ends = np.concatenate([ends[:12], attainable(ff.U, ff.norm.domain())[:12]])
    ends = ends[draw.permutation(len(ends))[:12]]
    random = draw.standard_normal((6, d))
    rows = [
        random[:2], 1e4 * random[2:4], 1e-3 * random[4:], 1e-8 * random[:1], np.zeros((1, d)), np.ones((1, d)),
        np.full((1, d), -3.0), 100 * np.eye(d)[:4], -100 * np.eye(d)[4:6], 1e3 * ends, -1e3 * ends,
    ]  # fmt: skip
    found = np.concatenate(rows)[:TOKENS]
    return torch.tensor(np.concatenate([found, draw.standard_normal((TOKENS - len(found), d))]))


def attacked(made: Case, engine: str) -> tuple[Tensor, Tensor, Tensor]:
    """(what entered the block, its pre-activations, its outputs), in a run of the model whose norm is given the attacks."""
    z = attacks(made.ff).to(next(made.first.parameters()).dtype).reshape(2, TOKENS // 2, -1)
    seen: dict[str, Tensor] = {}
    handles = [
        made.norm.register_forward_pre_hook(lambda _, given: (z.reshape(given[0].shape),)),
        made.first.register_forward_hook(lambda _, given, out: seen.update(x=given[0], s=out)),
        made.second.register_forward_hook(lambda _, given, out: seen.update(y=out)),
    ]
    made.module.engine = engine
    with torch.no_grad():
        made.model(input_ids=torch.randint(3, 50, (2, TOKENS // 2)))
    for handle in handles:
        handle.remove()
    x, s, y = (seen[key].double().reshape(TOKENS, -1) for key in ("x", "s", "y"))
    return x, s, y


def exactly(x: np.ndarray | Tensor) -> arb_mat:
    return arb_mat([[arb(float(t)) for t in row] for row in x])


def affine(W: np.ndarray, b: np.ndarray, x: arb_mat) -> arb_mat:
    """Rows x ↦ x Wᵀ + b."""
    shift = arb_mat([[arb(float(t)) for t in b]] * x.nrows())
    return x * exactly(W).transpose() + shift


def f(name: str, s: arb) -> arb:
    if name == "relu":
        return s.max(arb(0))
    if name == "silu":
        return s / (1 + (-s).exp())
    if name == "gelu":
        return s / 2 * (1 + (s / arb(2).sqrt()).erf())
    assert name == "gelu_tanh"
    return s / 2 * (1 + ((2 / arb.pi()).sqrt() * (s + arb("0.044715") * s**3)).tanh())


def original(ff: FeedForward, x: arb_mat) -> arb_mat:
    s = affine(ff.W1, ff.b1, x)
    inner = [[f(ff.activation, s[i, j]) for j in range(s.ncols())] for i in range(s.nrows())]
    if ff.U is not None and ff.c is not None:
        t = affine(ff.U, ff.c, x)
        inner = [[h * t[i, j] for j, h in enumerate(row)] for i, row in enumerate(inner)]
    return affine(ff.W2, ff.b2, arb_mat(inner))


def softmax_head(head: Head, s: arb) -> arb:
    """The function that the stored numbers define."""
    n = head.numbers()
    x = arb(float(n.query[0, 0])) * s + arb(float(n.query[0, 1]))
    scores = [arb(float(k)) * x + arb(float(c)) for k, c in n.key[0]]
    top = max(scores, key=lambda z: float(z.mid()))
    weights = [(z - top).exp() for z in scores]
    values = [arb(float(v)) * s + arb(float(c)) for v, c in n.value[0]]
    mixed = sum((w * v for w, v in zip(weights, values, strict=True)), arb(0))
    return mixed / sum(weights, arb(0)) * arb(float(n.output[0]))


def converted(made: Case, x: arb_mat) -> arb_mat:
    """The converted block in exact arithmetic."""
    ff, s = made.ff, affine(made.ff.W1, made.ff.b1, x)
    heads = [
        next(head for where, head in made.activation.groups if where is None or j in where.tolist())
        for j in range(len(ff.b1))
    ]
    inner = [[softmax_head(heads[j], s[i, j]) for j in range(s.ncols())] for i in range(s.nrows())]
    if isinstance(made.module, GatedBlock):
        assert ff.U is not None and ff.c is not None
        t = affine(ff.U, ff.c, x)
        inner = [
            [product(made.module, j, h, t[i, j]) for j, h in enumerate(row)] for i, row in enumerate(inner)
        ]
    return affine(ff.W2, ff.b2, arb_mat(inner))


def product(gate: GatedBlock, j: int, h: arb, t: arb) -> arb:
    power, radius = (arb(2) ** int(k[j]) for k in (gate.product.scale, gate.product.radius))
    square = gate.product.square.groups[0][1]
    above, below = (
        radius**2 * softmax_head(square, z / radius) for z in (h / power + power * t, h / power - power * t)
    )
    return (above - below) / 4


def worst(a: arb_mat, b: arb_mat) -> Iterator[arb]:
    return (abs(a[i, j] - b[i, j]) for i in range(a.nrows()) for j in range(a.ncols()))


BOTH = [(n, d) for i, n in enumerate(CASES) for d in (DTYPES[::-1] if i % 2 else DTYPES)]
each = pytest.mark.parametrize(("name", "dtype"), every(2, BOTH))  # every family, in one dtype or the other


@each
def test_executed_blocks_stay_within_exact_plus_rounding(name: str, dtype: str) -> None:
    made = case(name, dtype)
    for engine, rounding in made.report.facts["roundings"].items():
        x, _, y = attacked(made, engine)
        with working(BITS):
            allowed = arb(made.report.approximation) + arb(rounding)
            lost = list(worst(exactly(y), original(made.ff, exactly(x))))
            assert all(gap <= allowed for gap in lost)
        assert max(float(gap) for gap in lost) > 0
        assert y.isfinite().all() and y.abs().max() > 100 * float(allowed)


@each
def test_converted_blocks_stay_within_exact_without_rounding(name: str, dtype: str) -> None:
    made = case(name, dtype)
    x, _, _ = attacked(made, "softmax")
    with working(BITS):
        kept = exactly(x[:: 5 if made.ff.gated else 2])
        lost = list(worst(converted(made, kept), original(made.ff, kept)))
        assert all(gap <= arb(made.report.approximation) for gap in lost)


@each
def test_no_neuron_leaves_its_interval(name: str, dtype: str) -> None:
    made = case(name, dtype)
    assert made.ff.norm is not None
    lo, hi = made.claimed["softmax"].lo, made.claimed["softmax"].hi
    _, s, _ = attacked(made, "closed-form")
    low, high = s.numpy().min(0), s.numpy().max(0)
    assert (lo <= low).all() and (high <= hi).all()
    assert made.report.facts["interval"][0] <= low.min() and high.max() <= made.report.facts["interval"][1]
    near = np.maximum((high - lo) / (hi - lo), (hi - low) / (hi - lo))
    assert np.sort(near)[-5:].min() > 0.99  # the attack is one: neurons come to the ends
    for neurons, head in made.activation.groups:
        where = slice(None) if neurons is None else neurons.numpy()
        assert head.certificate.proved
        domain = head.certificate.holds_for
        assert domain.lo <= lo[where].min() and hi[where].max() <= domain.hi


@each
def test_what_is_claimed_of_every_head_is_true_of_the_module(name: str, dtype: str) -> None:
    """Neuron by neuron, on its own interval, for the engine that the claim is about."""
    made, kept = case(name, dtype), getattr(torch, dtype)
    for engine, claim in made.claimed.items():
        parts = torch.linspace(0, 1, 33, dtype=torch.float64)[:, None].numpy()
        s = torch.tensor(claim.lo + parts * (claim.hi - claim.lo)).to(kept)
        with torch.no_grad():
            executed = made.activation(s, engine=engine).double()
        with working(BITS):
            for i, j in np.ndindex(*s.shape):
                allowed = arb(float(claim.heads.error[j]))
                exact = f(made.ff.activation, arb(float(s[i, j])))
                assert abs(arb(float(executed[i, j])) - exact) <= allowed
    dense, window = (made.claimed[engine].heads for engine in ("softmax", "closed-form"))
    for neurons, head in made.activation.groups:
        where = slice(None) if neurons is None else neurons.numpy()
        terms = np.nextafter(head.certificate.approximation + head.certificate.rounding, np.inf)
        assert (dense.error[where] == min(head.certificate.bound, terms)).all()
        assert (dense.approximation[where] == head.certificate.approximation).all()
    assert (window.approximation == dense.approximation).all()
    assert (window.error != dense.error).any() or (dense.error == dense.approximation).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_what_is_claimed_of_every_product_is_true_of_the_module(name: str, dtype: str) -> None:
    """ρ²·head(ζ/ρ) against ζ², executed, for every neuron's own ρ, up to the ends; the closed form multiplies."""
    made = case(name, dtype)
    assert isinstance(made.module, GatedBlock)
    square = made.module.product.square
    for engine, claim in made.claimed.items():
        assert claim.squares is not None and claim.product is not None
        assert claim.squares.multiplied == (engine == "closed-form")
        assert (claim.product.tensor("scale") == made.module.product.scale.numpy()).all()
        assert (claim.product.tensor("radius") == made.module.product.radius.numpy()).all()
        if claim.squares.multiplied:
            continue
        square.engine = engine
        parts = torch.linspace(-1, 1, 41, dtype=torch.float64)[:, None]
        zeta = (parts * torch.tensor(2.0 ** claim.product.tensor("radius"))).to(getattr(torch, dtype))
        radius = torch.tensor(2.0 ** claim.product.tensor("radius")).to(zeta.dtype)
        with torch.no_grad():
            executed = (square(zeta / radius) * radius**2).double()
        with working(BITS):
            for i, j in np.ndindex(*zeta.shape):
                allowed = arb(float(claim.squares.error[j]))
                lost = abs(arb(float(executed[i, j])) - arb(float(zeta[i, j])) ** 2)
                assert lost <= allowed
        lost_most = (executed - zeta.double() ** 2).abs().amax(0).numpy()
        assert (claim.squares.error < 2000 * lost_most).all()  # in proportion to ρ²


def test_products_of_far_larger_numbers_than_one_are_claimed_in_proportion() -> None:
    """ρ from 2⁻⁸ to 2⁸: what is claimed holds, and grows as ρ²."""
    radius = np.exp2(np.arange(-8, 9, dtype=np.float64))
    for dtype in DTYPES:
        head = square_head(dtype)
        exponents = np.arange(-8, 9, dtype=np.int8)
        layer = Layer("product", (0, 0), 1, {"scale": 0 * exponents, "radius": exponents})
        found = square_errors(layer, head, "softmax", dtype)
        kept = getattr(torch, dtype)
        zeta = (torch.linspace(-1, 1, 301, dtype=torch.float64)[:, None] * torch.tensor(radius)).to(kept)
        rho = torch.tensor(radius).to(kept)
        with torch.no_grad():
            executed = (head(zeta / rho) * rho**2).double()
        lost = (
            (executed - zeta.double() ** 2).abs().amax(0).numpy()
        )  # exact in float64 but for float64's own squares
        allowed = found.error
        assert (lost <= allowed + 2.0**-52 * radius**2).all() and (allowed < 2000 * lost).all()
