"""attnc.convert_ on tiny models of every family: what is converted, what stays, how far outputs move, how it runs."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc import functions
from attnc.domain import Normed
from attnc.frontends.transformers import find_blocks
from attnc.functions import registry
from attnc.lower.pointwise import executed_error
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained import blocks, convert, convert_, report_of
from attnc.records.certificate import Status
from tests.feed_forward import FeedForward, feed_forward
from tests.frontends.tiny_models import EVERY_FAMILY, Perceptron, caught, example, tiny
from tests.prove.blocks import reach

EPS = 1e-5
pytestmark = pytest.mark.usefixtures("few_heads")


@pytest.fixture
def few_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of eps are rounded down to powers of 16: the models here meet the same heads, and each is proved once."""
    genuine = blocks._share
    monkeypatch.setattr(blocks, "_share", lambda *given: 16.0 ** math.floor(math.log(genuine(*given), 16)))


def arguments_of(name: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in example(name).items()}


def run(model: Any, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**given)[0]
    return found


def block_of(ff: FeedForward, x: Tensor) -> Tensor:
    """The original block, from its numbers, in float64."""
    f, W1, b1, W2, b2 = functions.get(ff.activation), *map(torch.tensor, (ff.W1, ff.b1, ff.W2, ff.b2))
    h = f(x.double() @ W1.T + b1)
    if ff.U is not None and ff.c is not None:
        h = h * (x.double() @ torch.tensor(ff.U).T + torch.tensor(ff.c))
    return h @ W2.T + b2


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_every_family_is_converted_and_moves_within_its_bounds(name: str) -> None:
    model, given = tiny(name), arguments_of(name)
    sites = {site.name: site for site in find_blocks(model).blocks}
    numbers = {name: feed_forward(site) for name, site in sites.items()}
    tensors = dict(model.state_dict(keep_vars=True))
    kept = {key: tensor.detach().clone() for key, tensor in tensors.items()}
    before, kind, form = run(model, given), type(model), inspect.signature(model.forward)
    settings = model.config.to_dict()

    report = convert_(model, approximation=EPS, samples=given)

    assert [block.name for block in report.blocks] == [*sites]
    assert all(b.approximation <= EPS and isinstance(b.holds_for, Normed) for b in report.blocks)
    assert all(b.proved and b.facts["norm"] for b in report.blocks)
    after = model.state_dict(keep_vars=True)
    assert all(after[key] is tensor and torch.equal(tensor, kept[key]) for key, tensor in tensors.items())
    assert type(model) is kind and inspect.signature(model.forward) == form
    assert {k: v for k, v in model.config.to_dict().items() if k != "attnc"} == settings
    for block in report.blocks:
        site, ends = (
            sites[block.name],
            {"first": sites[block.name].first.module, "second": sites[block.name].second.module},
        )
        assert isinstance(site.replaced, GatedBlock if site.gated else Pointwise)
        seen = caught(model, ends, lambda: model(**given))
        moved = (seen["second"][1].double() - block_of(numbers[block.name], seen["first"][0])).abs().max()
        assert moved <= block.bound + 1e-12  # what float64 rounds in block_of
    moved = (run(model, given) - before).abs().max()
    assert moved <= 100 * EPS and moved == report.measured[0].largest
    assert report_of(model) is report


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generation_goes_on_as_before(name: str) -> None:
    model = tiny(name)
    ids = torch.randint(3, 50, (2, 5))
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    before = model.generate(ids, **options)
    convert_(model, approximation=EPS)
    assert torch.equal(model.generate(ids, **options), before)


def test_a_copy_is_converted_and_the_model_is_not() -> None:
    model, given = tiny("bert"), arguments_of("bert")
    before, parts = run(model, given), dict(model.named_modules())
    made = convert(model, approximation=EPS)
    assert all(model.get_submodule(name) is part for name, part in parts.items()) and not hasattr(
        model.config, "attnc"
    )
    assert torch.equal(run(model, given), before)
    assert report_of(made).converted == 2 and 0 < (run(made, given) - before).abs().max() < 100 * EPS
    with pytest.raises(attnc.errors.InputError, match="BertModel"):
        report_of(model)
    again = copy.deepcopy(made)
    assert torch.equal(run(again, given), run(made, given)) and report_of(again) == report_of(made)


def test_a_filter_chooses_and_the_rest_is_named() -> None:
    model = tiny("bert")
    report = convert_(model, approximation=EPS, filter_fn=lambda site: "layer.1" in site.name)
    assert [block.name for block in report.blocks] == ["encoder.layer.1.intermediate.intermediate_act_fn"]
    assert type(model.encoder.layer[0].intermediate.intermediate_act_fn).__name__ == "GELUActivation"
    left = {one.name: one.reason for one in report.skipped}
    assert left["encoder.layer.0.intermediate.intermediate_act_fn"] == "left out by filter_fn"
    assert left["pooler.activation"] == "tanh, in no feed-forward block"
    convert_(model, approximation=EPS, filter_fn=lambda site: "layer.0" in site.name)  # the rest, later on
    assert sorted(b.name for b in report_of(model).blocks) == [
        f"encoder.layer.{i}.intermediate.intermediate_act_fn" for i in range(2)
    ]
    assert all(isinstance(layer.intermediate.intermediate_act_fn, Pointwise) for layer in model.encoder.layer)


def test_progress_counts_the_blocks() -> None:
    calls: list[tuple[str, int, int]] = []
    convert_(tiny("bert"), approximation=EPS, progress=lambda *call: calls.append(call))
    assert calls[0] == ("encoder.layer.0.intermediate.intermediate_act_fn", 0, 2)
    assert calls[-1] == ("done", 2, 2)
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_encoders_of_torch(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, activation=activation, batch_first=True, norm_first=norm_first
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).double().eval()
    x, padded = torch.randn(3, 6, 8, dtype=torch.float64), torch.arange(6) >= torch.tensor([[6], [4], [2]])
    with torch.no_grad():
        before = model(x), model(x, src_key_padding_mask=padded)
    report = convert_(model, approximation=EPS, samples=x)
    assert [b.facts["norm"] for b in report.blocks] == [f"layers.{i}.norm{1 + norm_first}" for i in range(2)]
    with torch.no_grad():
        after = model(x), model(x, src_key_padding_mask=padded)
    assert all(isinstance(part.activation, Pointwise) for part in model.layers)
    whole, masked = (new - old for old, new in zip(before, after, strict=True))
    assert whole.abs().max() < 10 * EPS and masked[~padded].abs().max() < 10 * EPS
    assert (
        activation == "relu" or whole.abs().max() > 0
    )  # the fused operation, with its own activation, does not run


def test_blocks_of_no_known_family() -> None:
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 9), nn.GELU(), nn.Dropout(), nn.Linear(9, 6))
        .double()
        .eval()
    )
    (block,) = convert_(model, approximation=EPS).blocks
    assert (block.name, block.facts["family"], block.facts["norm"]) == ("2", "Sequential", "0")
    assert isinstance(block.holds_for, Normed)
    box = attnc.Box(-2, 2, shape=(6,))
    other = nn.Sequential()
    other.add_module("mlp", Perceptron(nn.GELU()))
    other.double().eval()
    (block,) = convert_(other, approximation=EPS, config={"inputs": {"mlp.act": box}}).blocks
    assert (block.name, block.facts["norm"], block.holds_for, block.proved) == ("mlp.act", None, box, True)


def test_inputs_without_a_norm_are_measured_on_calibration() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)).double().eval()
    seen = [torch.randn(20, 4, dtype=torch.float64), 3 * torch.randn(4, 4, dtype=torch.float64)]
    (block,) = report_of(convert(model, approximation=EPS, config={"calibration": seen})).blocks
    assert block.status is Status.MEASURED and not block.proved
    entered = torch.cat([model[0](x) for x in seen]).detach()
    least, most = block.facts["interval"]
    assert least <= entered.min() and entered.max() <= most
    low, high = torch.cat(seen).amin(0).numpy(), torch.cat(seen).amax(0).numpy()
    room = 0.25 * (high - low)  # a quarter of what was seen, on each side
    W, b = (tensor.detach().numpy() for tensor in model[0].parameters())
    lo, hi = reach(W, b, attnc.Box(low - room, high + room), "float64")
    assert (least, most) == (lo.min(), hi.max())
    assert block.holds_for == attnc.Box(low - room, high + room)


@pytest.fixture
def half_swish() -> Iterator[type[nn.Module]]:
    class HalfSwish(nn.Module):
        def forward(self, s: Tensor) -> Tensor:
            return s * torch.sigmoid(s / 2)

    yield HalfSwish
    registry._FACTORIES.pop("HalfSwish", None)


def test_an_activation_of_the_users_own(half_swish: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 5), half_swish(), nn.Linear(5, 3)).double().eval()
    x = torch.randn(7, 4, dtype=torch.float64)
    before = model(x)
    with pytest.raises(
        attnc.errors.UnsupportedError,
    ):
        convert_(model, approximation=EPS)
    functions.register(
        attnc.function(
            lambda s: s * torch.sigmoid(s / 2), name="HalfSwish", enclosure=lambda x: x / (1 + (-x / 2).exp())
        )
    )
    (block,) = convert_(model, approximation=EPS).blocks
    assert block.facts["activation"] == "HalfSwish" and block.proved
    assert isinstance(model[2], Pointwise) and (model(x) - before).abs().max() <= block.bound


@pytest.mark.parametrize(
    ("name", "dtype"), [("bert", torch.float32), ("bert", torch.float64), ("gemma", torch.float64)]
)
def test_engines_agree_within_what_is_proved_of_them(name: str, dtype: torch.dtype) -> None:
    model, given = tiny(name).to(dtype), arguments_of(name, dtype)
    (block, *_) = convert_(
        model, approximation=EPS if dtype is torch.float64 else 2e-3, config={"engine": "softmax"}
    ).blocks
    part = model.get_submodule(block.name)
    roundings = block.facts["roundings"]
    assert block.facts["engine"] == part.runs == "softmax" and block.rounding == roundings["softmax"]
    dense = run(model, given)
    for one in (m for m in model.modules() if isinstance(m, Pointwise)):
        for neurons, head in one.groups:
            assert head.certificate.proved
            f, limit = functions.get(head.certificate.facts["function"]), head.certificate.holds_for.hi
            s = torch.linspace(-limit, limit, 301, dtype=dtype)[:, None].expand(-1, one.neurons or 1)
            with torch.no_grad():
                gap = (one(s, "softmax", strict=False) - one(s, "closed-form", strict=False)).abs()
            executed = executed_error(head, f, "closed-form")
            assert (
                gap[:, slice(None) if neurons is None else neurons].max() <= head.certificate.bound + executed
            )
        one.engine = "closed-form"
    assert (run(model, given) - dense).abs().max() <= 100 * block.bound
    assert roundings["closed-form"] != roundings["softmax"]


def test_gradients_flow_through_a_converted_model() -> None:
    model, made = tiny("bert"), convert(tiny("bert"), approximation=EPS)
    embedded = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 5, 16, dtype=torch.float64)
    slopes = []
    for one in (model, made):
        (slope,) = torch.autograd.grad((one(inputs_embeds=embedded)[0] * weights).sum(), embedded)
        slopes.append(slope)
    # an error of E with the wave number 2π/Δ of a lattice has a slope of 2πE/Δ, Δ >= 1/4
    assert 0 < (slopes[1] - slopes[0]).abs().max() <= 8 * math.pi * EPS < 0.01 * slopes[0].abs().max()
    step = 1e-6 * torch.randn_like(embedded)
    with torch.no_grad():
        risen = sum(
            sign * (made(inputs_embeds=embedded + sign * step)[0] * weights).sum() for sign in (1, -1)
        )
    assert abs(risen / 2 - (slopes[1] * step).sum()) <= 1e-6 * step.norm() * slopes[1].norm()


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_batches_of_any_shape(name: str) -> None:
    model = tiny(name)
    convert_(model, approximation=EPS, config={"strict": False})
    ids = torch.randint(3, 50, (4, 9))
    together = run(model, {"input_ids": ids})
    alone = torch.cat([run(model, {"input_ids": row[None]}) for row in ids])
    turned = run(model, {"input_ids": ids.T.contiguous().T})
    assert (together - alone).abs().max() < 1e-12 and torch.equal(turned, together)
    layer = model.encoder.layer[0].intermediate if name == "bert" else model.model.layers[0].mlp
    x = torch.randn(3, 2, 16, dtype=torch.float64)
    with torch.no_grad():
        rows = layer(x)
        assert torch.allclose(layer(x.transpose(0, 1)), rows.transpose(0, 1), atol=1e-13)
        assert torch.allclose(layer(x[0, 0]), rows[0, 0], atol=1e-13)
        assert layer(x[:0]).shape == (0, *rows.shape[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.filterwarnings("ignore")
def test_torch_compile(name: str) -> None:
    model = tiny(name)
    convert_(model, approximation=EPS)
    part = (
        model if name == "bert" else model.model.layers[0].mlp
    )  # the rest of Llama computes in float32 now and then
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    given = {"inputs_embeds": x} if name == "bert" else {"x": x}
    assert (run(torch.compile(part), given) - run(part, given)).abs().max() < 1e-11
