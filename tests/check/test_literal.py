"""The checker of literal networks: it proves what the matrices encode, and does not prove what they do not."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnc
import attnc.paper
from attnc.check.literal import check_literal, encoding_error
from attnc.errors import AttncError
from attnc.incontext import gradient_descent
from attnc.network.literal import SelfAttentionNetwork
from attnc.records.certificate import Status
from attnc.records.record import LiteralRecord
from tests.sampled import every

f64 = torch.float64


def mlp() -> nn.Module:
    """4 tokens of 3 → 1 token of 8: neurons in tokens, a reshape, a residual sum, a normalisation."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(8, 4), nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)
            self.norm.running_mean = torch.linspace(-0.5, 0.5, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.b(torch.tanh(self.a(x)).flatten(1))
            y: Tensor = self.norm(h - 0.5 * self.c(torch.tanh(h)))
            return y

    return Model()


def wave(x: Tensor) -> Tensor:
    return x.sum(1, keepdim=True).sin()


@cache
def literal(name: str) -> SelfAttentionNetwork:
    torch.manual_seed(0)
    if name in ("tanh", "silu", "sin"):
        options = {"silu": {"design": "gated"}, "sin": {"design": "nearest", "heads": 2}}.get(name, {})
        return attnc.head(name, domain=(-2, 3), anchors=5, dtype=f64, **options).as_self_attention(2)
    box, square = attnc.Box(0, 1, shape=(4, 3)), attnc.Box(-1, 1, shape=(2, 1))
    W, t = torch.randn(5, 3, dtype=f64), torch.randn(5, dtype=f64)
    if name == "layers":
        net = attnc.compile(mlp().eval().double(), domain=box, eps=1e-3, dtype=f64)
    elif name == "one token":
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
        return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=3e-2).as_self_attention(2)
    elif name == "one-head":
        net = attnc.paper.one_head(W, t, -4, 4, anchors=9, domain=(-1, 1))
    elif name == "many-heads":
        net = attnc.paper.many_heads(W, t, -4, 4, heads=2, domain=(-1, 1))
    elif name == "lookup":
        net = attnc.paper.two_layer(wave, square, eps=0.5, lipschitz=math.sqrt(2), tokens=1)
    else:
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, 4), nn.Unflatten(1, (2, 2))
        )
        form, _, layout = name.partition(", ")
        net = attnc.compile(model.eval().double(), domain=box, eps=1e-3, dtype=f64)
        net.form, net.layout = form, layout
    return net.as_self_attention()


NAMES = [
    *("tanh", "silu", "sin", "layers", "one token", "one-head", "many-heads", "lookup"),
    *("two-layer, tokens", "two-layer, heads", "attention-softmax"),
]


@pytest.mark.parametrize("name", every(2, NAMES))
def test_the_approximation_term_is_proved(name: str, tmp_path: Path) -> None:
    net = literal(name)
    certificate = net.certificate
    (source,) = certificate.children
    verdict = attnc.verify(net)
    assert verdict.status is Status.PROVED and verdict.bound == certificate.approximation, verdict.reason
    assert source.approximation <= certificate.approximation <= source.approximation * (1 + 1e-6) + 1e-12
    assert certificate.status is Status.UNKNOWN and certificate.bound == certificate.rounding == math.inf
    assert set(certificate.digests) == {*net.state_dict(), "structure"}
    net.save(tmp_path / "net.safetensors")
    assert attnc.verify(tmp_path / "net.safetensors").status is Status.PROVED
    again = attnc.load(tmp_path / "net.safetensors")
    assert isinstance(again, SelfAttentionNetwork) and again.certificate == certificate
    shape = [size for size in net.inputs[0].shape if size is not None]
    x = torch.rand(3, *shape, dtype=net.fixed.dtype)
    assert torch.equal(again(x), net(x)) and again.layouts.keys() == net.layouts.keys()
    assert again.coordinates == net.coordinates and again.tokens == net.tokens


def changed(name: str, tensor: str, at: Any, to: float | None = None) -> LiteralRecord:
    """The record with one number changed, by one unit in the last place or to a given number."""
    record = literal(name).record()
    array = record.tensors[tensor].copy()
    array[at] = np.nextafter(array[at], np.inf, dtype=array.dtype) if to is None else to
    assert not np.array_equal(array, record.tensors[tensor])
    return replace(record, tensors={**record.tensors, tensor: array})


def coordinate(name: str, register: str) -> int:
    return int(literal(name).layout[register].start)


CHANGES: list[tuple[str, str, Any, float | None]] = [
    ("tanh", "fixed", (1, "head: slope"), None),  # a key
    ("tanh", "fixed", (1, "head: offset"), None),
    ("tanh", "fixed", (1, "head: value"), None),  # a value
    ("tanh", "embeddings.0.W", (0, "x"), None),
    ("tanh", "embeddings.0.start", (0, "y"), 1e-9),
    ("tanh", "steps.0.W_Q", (0, "x", 0), None),
    ("tanh", "steps.0.W_Q", (0, "data", 2), 0.0),  # an open gate
    ("tanh", "steps.0.W_K", (0, "data", 2), 0.0),
    ("silu", "steps.0.W_K", (0, "data", 0), 1e-9),  # the own key
    ("silu", "steps.0.W_V", (0, "x", 0), None),
    ("tanh", "steps.0.W_O", (0, 0, "y"), None),
    ("layers", "steps.0.W_Q", (0, "x", 0), None),
    ("layers", "steps.1.W_Q", (0, "position", 0), 0.0),  # the gate of a reshape
    ("two-layer, heads", "steps.1.W_V", (0, 0, 0), 12.5),
    ("two-layer, tokens", "steps.0.core", (0, 0), None),
    ("attention-softmax", "steps.2.bias", (0,), None),
]


@pytest.mark.parametrize(("name", "tensor", "at", "to"), CHANGES)
def test_a_changed_number_is_not_proved(name: str, tensor: str, at: Any, to: float | None) -> None:
    index = tuple(coordinate(name, i) if isinstance(i, str) else i for i in at)
    assert check_literal(changed(name, tensor, index, to)).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("tensor", "at"), [("fixed", (1, "y")), ("steps.0.W_V", (0, "x", 0)), ("steps.0.W_K", (0, "data", 0))]
)
def test_a_changed_number_that_no_output_depends_on_is_proved(tensor: str, at: tuple[Any, ...]) -> None:
    """The result of an anchor is not read; the keys and values of data tokens have the weight 0."""
    index = tuple(coordinate("tanh", i) if isinstance(i, str) else i for i in at)
    assert check_literal(changed("tanh", tensor, index, 1e-9)).status is Status.PROVED


def test_a_claim_that_is_too_small_is_not_proved() -> None:
    record = literal("attention-softmax").record()
    assert record.source is not None
    error = encoding_error(record, record.source)
    assert 0 < error <= record.encoding
    assert check_literal(replace(record, encoding=error)).status is Status.PROVED
    assert check_literal(replace(record, encoding=error * 0.99)).status is Status.UNKNOWN


def test_a_source_that_is_not_proved() -> None:
    record = literal("tanh").record()
    assert record.source is not None
    smaller = replace(record.source.certificate, bound=1e-30, approximation=1e-30, rounding=1e-30)
    verdict = check_literal(replace(record, source=replace(record.source, certificate=smaller)))
    assert verdict.status in (Status.UNKNOWN, Status.REFUTED)
    assert check_literal(replace(record, source=None)).status is Status.UNKNOWN


def test_a_module_that_was_altered_is_not_proved() -> None:
    net = attnc.head("tanh", domain=(-2, 2), anchors=3).as_self_attention(1)
    assert attnc.verify(net)
    handle = net.layers[0].pattern.register_forward_hook(lambda module, scores, pattern: pattern)
    assert attnc.verify(net).status is Status.UNKNOWN and "pattern" in str(net.why_not_certified())
    handle.remove()
    with torch.no_grad():
        net.layers[0].W_Q[0, 0, 0] += 1
    assert attnc.verify(net).status is Status.UNKNOWN and "W_Q" in str(net.why_not_certified())


def test_a_learner_is_saved_and_loaded_but_not_proved(tmp_path: Path) -> None:
    net = gradient_descent("logistic", features=2, steps=2, step_size=0.1, dtype=f64).as_self_attention()
    net.save(tmp_path / "net.safetensors")
    again = attnc.load(tmp_path / "net.safetensors")
    assert isinstance(again, SelfAttentionNetwork)
    x, y = torch.rand(5, 2, dtype=f64), torch.tensor([0.0, 1, 1, 0, 1], dtype=f64)
    assert torch.equal(again(x, y, x), net(x, y, x)) and again.tokens == net.tokens
    assert attnc.verify(net).status is Status.UNKNOWN


@pytest.mark.parametrize("edit", ["structure", "tensor", "source"])
def test_damaged_records_are_refused(edit: str, tmp_path: Path) -> None:
    from attnc.records.files import read_file, write_file

    path = tmp_path / "net.safetensors"
    literal("tanh").save(path)
    about, tensors = read_file(path)
    if edit == "structure":
        about["structure"]["form"] = "layers"
    elif edit == "source":
        about["source"]["certificate"]["bound"] = 0.0
    else:
        tensors["fixed"] = tensors["fixed"] * math.nan
    write_file(path, tensors, about)
    for read in (attnc.load, attnc.verify):
        with pytest.raises(AttncError):
            read(path)


@pytest.mark.parametrize(
    "edit",
    [
        {"domain": {"kind": "box", "lo": -99.0, "hi": 99.0, "shape": [2, 3]}},
        {"domain": None},
        {"output": ["y", [3, 2], 0]},
        {"output": ["y", [6], 0]},
    ],
    ids=str,
)
def test_shapes_and_the_domain_are_those_of_the_source(edit: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).eval()
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(2, 3)), eps=1e-2)
    record = net.as_self_attention().record()
    assert check_literal(record).status == "proved"
    assert check_literal(replace(record, structure={**record.structure, **edit})).status == "unknown"


def test_the_certificate_and_the_verdict_say_the_same() -> None:
    """In exact arithmetic it is proved, as executed nothing is: the status, the words and `exact` agree on that."""
    net = literal("tanh")
    verdict, certificate = attnc.verify(net), net.certificate
    assert verdict.exact and verdict.bound == certificate.approximation < certificate.bound == math.inf
    assert certificate.status is Status.UNKNOWN and certificate.status_text.endswith("unknown as executed")
    for text in (str(certificate), str(verdict), verdict._repr_html_(), certificate._repr_html_()):
        assert "proved in exact arithmetic" in text
    assert str(net.record().source.certificate.status) == net.record().source.certificate.status_text


def test_a_literal_form_of_what_is_not_proved_claims_nothing() -> None:
    head = attnc.head(lambda s: torch.lgamma(s + 4), domain=(-1, 1), eps=1e-2)
    literal_form = head.as_self_attention(1)
    assert literal_form.certificate.status_text == "unknown"
    assert attnc.verify(literal_form).status is Status.UNKNOWN and "exact" not in str(
        attnc.verify(literal_form)
    )


@pytest.mark.parametrize("kind", ["head", "network"])
def test_a_literal_form_of_changed_numbers_claims_nothing(kind: str) -> None:
    """Its matrices are those of the numbers as they are now, and the certificate of the source is not about these."""
    made = source(kind)
    before, x = literal_of(made), torch.rand(3, 1, dtype=torch.float64)
    given = x[:, 0] if kind == "head" else x
    result = before(given)
    with torch.no_grad():
        next(p for name, p in made.named_parameters() if name.endswith("value"))[..., 1] += 1
    certificate = literal_of(made).certificate
    assert certificate.approximation == math.inf and not certificate.children
    assert certificate.status_text == "unknown" and "exact arithmetic" not in str(certificate)
    assert before.certificate.why_lapsed() is None and attnc.verify(before).status is Status.PROVED
    assert torch.equal(before(given), result), "matrices and source of the earlier one are its own"


def source(kind: str) -> Any:
    if kind == "head":
        return attnc.head("tanh", domain=(-4, 4), anchors=8, dtype=torch.float64)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double().eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(1,)), eps=1e-2)


def literal_of(made: Any) -> Any:
    return made.as_self_attention(3)
