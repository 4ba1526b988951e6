"""Every feed-forward block of every family, its numbers against what the model computes; and what is refused."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnc import function, functions
from attnc.errors import AttncError, InputError
from attnc.frontends.transformers import BlockList, Call, Site, SkipCause, find_blocks
from attnc.frontends.transformers.expressions import expression_of, function_of
from tests.feed_forward import FeedForward, feed_forward
from tests.frontends.tiny_models import (
    EVERY_FAMILY,
    FAMILIES,
    Odd,
    Perceptron,
    Residual,
    Strided,
    caught,
    example,
    randomised,
    tiny,
)

GATED = {"t5 gated", "mt5", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"}


def output(block: FeedForward, x: Tensor) -> Tensor:
    W1, b1, W2, b2 = map(torch.from_numpy, (block.W1, block.b1, block.W2, block.b2))
    inner = functions.get(block.activation)(x @ W1.T + b1)
    if block.U is not None and block.c is not None:
        inner = inner * (x @ torch.from_numpy(block.U).T + torch.from_numpy(block.c))
    return inner @ W2.T + b2


def normed(block: FeedForward, z: Tensor, eps: float) -> Tensor:
    norm = block.norm
    assert norm is not None
    if norm.kind == "layer":
        z = z - z.mean(-1, keepdim=True)
    y = z / (z.square().mean(-1, keepdim=True) + eps).sqrt()
    return torch.from_numpy(norm.gain) * y + torch.from_numpy(norm.shift)


def check_numbers(model: nn.Module, found: BlockList, run: Any, rms: float = 1e-10) -> None:
    """The norm's output is what its numbers make of its input, and the last map's output is what the block's numbers make of
    the norm's output. rms: transformers computes these norms in float32, whatever the model's dtype."""
    for site in found.blocks:
        assert site.norm is not None
        norm = model.get_submodule(site.norm.name)
        seen = caught(model, {"norm": norm, "first": site.first.module, "last": site.second.module}, run)
        (z, x), (into, _), (_, y) = seen["norm"], seen["first"], seen["last"]
        block = feed_forward(site)
        assert block.norm is not None
        eps = site.norm.eps
        assert eps is not None
        torch.testing.assert_close(into.reshape(x.shape), x, rtol=0, atol=0)
        tolerance = 1e-10 if block.norm.kind == "layer" else rms
        torch.testing.assert_close(normed(block, z, eps), x, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(output(block, x).reshape(y.shape), y, rtol=1e-10, atol=1e-10)


@functools.cache
def found_in(name: str) -> tuple[nn.Module, BlockList]:
    """A model of a family and its blocks, which tests leave as they are."""
    model = tiny(name)
    return model, find_blocks(model)


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_the_numbers_are_what_the_model_computes(name: str) -> None:
    (model, found), inputs = found_in(name), example(name)
    assert len(found.blocks) == 2
    for site in found.blocks:
        assert site.family.replace("-", "") == name.split()[0]
        assert site.activation == FAMILIES[name][3]
        assert site.norm_name is not None and site.norm_name.endswith(FAMILIES[name][4])
        assert site.dtype == torch.float64 and site.remarks == () and site.also == ()
        assert site.gated == (name in GATED)
        assert site.replaced is functools.reduce(getattr, site.name.split("."), model)
    check_numbers(model, found, lambda: model(**inputs), rms=1e-6)


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_what_is_put_at_the_place_is_what_runs(name: str) -> None:
    """An activation of zeros, or a block of zeros, makes the last map's output its bias, or is the output."""

    class Zeros(nn.Module):
        def __init__(self, site: Site) -> None:
            super().__init__()
            self.calls, self.site = 0, [site]

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            assert x.shape[-1] == self.site[0].first.sizes[1 if self.site[0].gated else 0]
            return x * 0

    (model, found), inputs = found_in(name), example(name)
    with torch.no_grad():
        before = model(**inputs)[0]
        made = [Zeros(site).eval() for site in found.blocks]
        undo = [site.replace(new) for site, new in zip(found.blocks, made, strict=True)]
        during = model(**inputs)[0]
        for back in undo:
            back()
        assert torch.equal(model(**inputs)[0], before)
    assert all(new.calls > 0 for new in made) and not torch.equal(before, during)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_torchs_own_layers(kind: str, norm_first: bool) -> None:
    arguments: dict[str, Any] = {"activation": "gelu", "batch_first": True, "norm_first": norm_first}
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    if kind == "encoder":
        layer: nn.Module = nn.TransformerEncoderLayer(8, 2, 12, **arguments)
        model = randomised(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        given: tuple[Tensor, ...] = (x,)
    else:
        layer = nn.TransformerDecoderLayer(8, 2, 12, **arguments)
        model, given = randomised(nn.TransformerDecoder(layer, 2)), (x, x.flip(1))  # type: ignore[arg-type]
    found = find_blocks(model)
    assert [site.name for site in found.blocks] == ["layers.0.activation", "layers.1.activation"]
    check_numbers(model, found, lambda: model(*given))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fused_operation_is_switched_off_and_on_again() -> None:
    """In eval mode without gradients it would go past whatever stands at `activation`."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", batch_first=True)
    model = randomised(nn.TransformerEncoder(layer, 1))
    x, padding = torch.randn(2, 5, 8, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    (site,) = find_blocks(model).blocks
    assert "nested" in site.remarks[0] and site.settings
    with torch.no_grad():
        before = model(x, src_key_padding_mask=padding)
        undo = site.replace(nn.Tanh())
        changed = model(x, src_key_padding_mask=padding)
        undo()
        undo_same = site.replace(Strided())
        same = model(x, src_key_padding_mask=padding)
        undo_same()
        assert torch.equal(model(x, src_key_padding_mask=padding), before)
    assert before[padding].eq(0).all() and not same[padding].eq(0).any()  # as the remark says
    assert not torch.allclose(changed[~padding], before[~padding])
    torch.testing.assert_close(same[~padding], before[~padding])
    assert site.replaced is F.gelu


@pytest.mark.parametrize("d, m", [(6, 9), (6, 6)])
@pytest.mark.parametrize("activation", [nn.GELU(), F.silu, nn.ReLU(inplace=True)])
def test_a_module_of_two_maps_and_an_activation(activation: Any, d: int, m: int) -> None:
    model = randomised(nn.Sequential(nn.LayerNorm(d), Perceptron(activation, d, m)))
    (site,) = find_blocks(model).blocks
    x = torch.randn(4, d, dtype=torch.float64)
    assert (site.name, site.family, site.first.name, site.norm_name) == ("1.act", "Perceptron", "1.up", "0")
    torch.testing.assert_close(output(feed_forward(site), x), model[1](x))


def test_a_residual_around_a_block_changes_nothing_in_it() -> None:
    found = find_blocks(nn.Sequential(Residual(nn.GELU()), Perceptron(nn.GELU())).eval())
    assert [site.name for site in found.blocks] == ["0.act", "1.act"]


class Functional(Perceptron):
    """Calls its activation by name."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(x)))
        return result


def test_an_activation_that_is_no_attribute_is_left_alone_and_named() -> None:
    found = find_blocks(nn.Sequential(Functional(None), Perceptron(nn.GELU())).eval())
    assert [site.name for site in found.blocks] == ["1.act"]
    assert found.skipped[0].name == "0" and "gelu" in found.skipped[0].reason


def test_a_sequence_with_a_norm_in_front() -> None:
    parts = (
        nn.LayerNorm(6),
        nn.Dropout(),
        nn.Linear(6, 9),
        nn.Tanh(),
        nn.Dropout(),
        nn.Linear(9, 4),
        nn.ReLU(),
    )
    model = randomised(nn.Sequential(*parts, nn.Linear(4, 4), nn.Sigmoid()))
    found = find_blocks(model)
    assert [(site.name, site.norm_name) for site in found.blocks] == [("3", "0")]
    assert [s.name for s in found.skipped] == [
        "6",
        "8",
    ]  # 9 → 4 → 4 numbers behind no norm, and an activation at the end
    x = torch.randn(4, 6, dtype=torch.float64)
    check_numbers(model, BlockList(found.blocks[:1], (), found.call), lambda: model(x))


def test_activations_outside_of_blocks_are_listed() -> None:
    found = find_blocks(tiny("bert"))
    assert [(s.name, s.reason) for s in found.skipped] == [
        ("pooler.activation", "tanh, in no feed-forward block")
    ]
    assert find_blocks(tiny("llama")).skipped == ()


def test_the_filter_sees_every_block_and_what_it_leaves_out_is_listed() -> None:
    found = find_blocks(tiny("bert"), lambda site: "layer.1" in site.name)
    assert [site.name for site in found.blocks] == ["encoder.layer.1.intermediate.intermediate_act_fn"]
    assert found.skipped[0].name.startswith("encoder.layer.0") and found.skipped[0].cause is SkipCause.FILTER
    with pytest.raises(InputError):
        find_blocks(tiny("bert"), lambda site: False)
    with pytest.raises(InputError, match="filter_fn"):
        find_blocks(tiny("bert"), "layer.1")  # type: ignore[arg-type]


def test_where_one_of_two_norms_makes_the_input_none_is_named() -> None:
    found = find_blocks(tiny("bert", is_decoder=True, add_cross_attention=True))
    assert [site.norm for site in found.blocks] == [None, None]
    assert "encoder.layer.0.crossattention" in found.blocks[0].remarks[0]


def test_a_sample_that_runs_cross_attention_says_which_norm_makes_the_input() -> None:
    model = tiny("bert", is_decoder=True, add_cross_attention=True)
    hidden = torch.randn(2, 5, 16, dtype=torch.float64)
    call = Call((), {**example("bert"), "encoder_hidden_states": hidden, "use_cache": False})
    names = [site.norm_name for site in find_blocks(model, call=call).blocks]
    assert names == [f"encoder.layer.{i}.crossattention.output.LayerNorm" for i in (0, 1)]


def test_tied_layers_are_one_block() -> None:
    model = tiny("bert")
    model.encoder.layer[1] = model.encoder.layer[0]
    (site,) = find_blocks(model).blocks
    assert site.also == ("encoder.layer.1.intermediate.intermediate_act_fn",) and len(site.places) == 1


def test_a_tied_gated_block_is_replaced_at_both_places() -> None:
    model = tiny("llama")
    first, second = model.model.layers
    second.mlp, second.post_attention_layernorm = first.mlp, first.post_attention_layernorm
    (site,) = find_blocks(model).blocks
    new = nn.Identity()
    undo = site.replace(new)
    assert first.mlp is new and second.mlp is new
    undo()
    assert first.mlp is second.mlp is site.replaced


def test_nothing_is_known_of_a_tied_block_behind_two_norms() -> None:
    model = tiny("gpt2")
    model.transformer.h[1].mlp = model.transformer.h[0].mlp
    (site,) = find_blocks(model).blocks
    assert site.norm is None and "2 times" in site.remarks[0]


def with_dense(part: nn.Module) -> nn.Module:
    model = tiny("bert")
    model.encoder.layer[0].intermediate.dense = part.eval()
    return model


def with_activation(part: nn.Module) -> nn.Module:
    model = tiny("bert")
    model.encoder.layer[0].intermediate.intermediate_act_fn = part.eval()
    return model


def partly_training() -> nn.Module:
    model = tiny("bert")
    model.encoder.layer[1].train()
    return model


def test_a_hook_behind_the_norm_is_seen() -> None:
    model = tiny("bert")
    model.encoder.layer[0].attention.output.register_forward_hook(lambda part, given, out: out * 100)
    assert next(site.norm_name for site in find_blocks(model).blocks) is None


def test_a_block_that_does_not_run_is_not_found() -> None:
    model = tiny("gpt2")
    model.transformer.h[1].mlp.forward = lambda x: x
    assert [site.name for site in find_blocks(model).blocks] == ["transformer.h.0.mlp.act"]


def with_observer() -> nn.Module:
    model = tiny("gpt2")
    model.transformer.h[0].mlp.act.register_forward_hook(lambda part, given, out: None)
    return model


def with_number(value: float) -> nn.Module:
    model = tiny("vit")
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if n.endswith("fc1.weight"))[0, 0] = value
    return model


def negative_eps() -> nn.Module:
    model = tiny("gpt2")
    model.transformer.h[0].ln_2.eps = -1e-5
    return model


def partly_half() -> nn.Module:
    model = tiny("gpt2").float()
    model.transformer.h[0].mlp.bfloat16()
    return model


REFUSED: dict[str, tuple[Any, str]] = {
    "training": (lambda: tiny("bert").train(), "model.eval"),
    "a part in training": (partly_training, r"encoder\.layer\.1 .*model\.eval"),
    "meta": (lambda: tiny("llama").to("meta"), "meta"),
    "partly half": (lambda: partly_half(), r"mlp\.c_fc.*another dtype|samples="),
    "mixed": (lambda: with_dense(nn.Linear(16, 24)), "samples="),
    "adapter": (lambda: with_dense(nn.Bilinear(1, 1, 1)), "samples="),
    "sizes": (lambda: with_dense(nn.Linear(16, 23).double()), "samples="),
    "unknown": (lambda: with_activation(Odd()), r"aten\.sin.*register\(attnc.function"),
    "unknown in a pattern": (lambda: Perceptron(Odd()).eval(), r"act: .*aten\.sin"),
    "laplace": (lambda: tiny("bert", hidden_act="laplace"), r"aten\.erf"),
    "hook that only looks": (with_observer, r"h\.0\.mlp\.act: .*hooks"),
    "nan": (lambda: with_number(float("nan")), r"fc1\.weight: .*NaN"),
    "eps": (negative_eps, r"ln_2: has eps=-1e-05"),
    "nothing": (lambda: nn.Linear(3, 3).eval(), "Linear"),
    "nothing of use": (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), "Sequential"),
    "no module": (lambda: "bert", "str"),
    "compiled": (lambda: torch.compile(tiny("gpt2"), backend="eager"), "OptimizedModule"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_and_left_as_it_was(name: str) -> None:
    make, message = REFUSED[name]
    model = make()
    before = parts(model)
    with pytest.raises(AttncError, match=message):
        find_blocks(model)
    assert parts(model) == before


def parts(model: object) -> list[tuple[str, int]]:
    return [(name, id(part)) for name, part in model.named_modules()] if isinstance(model, nn.Module) else []


def test_a_refused_block_may_be_left_out() -> None:
    model = with_activation(Odd())
    assert len(find_blocks(model, lambda site: site.activation == "gelu").blocks) == 1


def test_a_registered_function_is_known_by_its_operations() -> None:
    try:
        functions.register(
            function(lambda s: s * torch.sin(s), name="odd_one", enclosure=lambda x: x * x.sin())
        )
        assert read(Odd()) == "odd_one"
        functions.register(function(torch.sin, name="odd_one", enclosure=lambda x: x.sin()))
        assert read(Odd()) is None
    finally:
        functions.registry._FACTORIES.pop("odd_one", None)


def read(activation: Any) -> str | None:
    return function_of(expression_of(activation))


def test_every_activation_of_transformers_is_read_or_refused() -> None:
    from transformers.activations import ACT2CLS, ACT2FN

    names = {name: read(ACT2FN[name]) for name in ACT2CLS if name not in ("xielu", "prelu", "linear")}
    assert {name: known for name, known in names.items() if known is not None} == {
        "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_python_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh", "leaky_relu": "leaky_relu(0.01)",
        "mish": "mish", "relu": "relu", "relu6": "clip(0,6)", "sigmoid": "sigmoid", "silu": "silu", "swish": "silu",
        "tanh": "tanh", "quick_gelu": "quick_gelu", "gelu_fast": "gelu_fast", "gelu_10": "gelu_10", "relu2": "relu2",
        "hardswish": "hardswish",
    }  # fmt: skip


TORCH_FORMS: list[Any] = [
    nn.ELU(0.5), nn.Hardtanh(-0.5, 3), nn.Softshrink(0.25), nn.Softplus(2.0, float("inf")), nn.Softsign(), F.relu6, F.elu,
    F.leaky_relu, F.mish, torch.sigmoid, functools.partial(F.gelu, approximate="tanh"), nn.CELU(0.5), nn.SELU(), nn.Hardswish(),
    nn.Hardsigmoid(), F.celu, F.selu, F.hardswish, F.hardsigmoid,
]  # fmt: skip


def shown(activation: object) -> str:
    """Without the address, which differs from process to process."""
    return re.sub(r" at 0x\w+", "", repr(activation))


@pytest.mark.parametrize("activation", TORCH_FORMS, ids=shown)
def test_torchs_activations_are_read(activation: Any) -> None:
    name = read(activation)
    s = torch.linspace(-5, 5, 101, dtype=torch.float64)
    assert name is not None
    np.testing.assert_allclose(functions.get(name)(s), activation(s), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "activation", [nn.Softplus(), lambda s: s, lambda s: F.gelu(s).clamp(max=40)], ids=shown
)
def test_what_is_another_function_is_not_taken_for_a_known_one(activation: Any) -> None:
    assert read(activation) is None


@pytest.mark.parametrize("activation", [nn.PReLU(), nn.Hardshrink(), lambda s: s.cumsum(-1)], ids=shown)
def test_what_is_no_elementwise_arithmetic_is_refused(activation: Any) -> None:
    with pytest.raises(AttncError):
        read(activation)


def test_hooks_of_transformers_itself_are_no_obstacle() -> None:
    """Asked for hidden states and attentions, a model keeps recorders on its parts."""
    model = tiny("bert", attn_implementation="eager")
    with torch.no_grad():
        model(**example("bert"), output_hidden_states=True, output_attentions=True)
    assert len(find_blocks(model).blocks) == 2
