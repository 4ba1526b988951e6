"""Tiny models of the families under attack, and where the parts of their feed-forward block stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.frontends.tiny_models import randomised, tiny

D, M = 16, 24  # features and neurons of every family


@dataclass(frozen=True)
class Layout:
    """Paths of the parts of one block. `entry` is the module that is called with the block's input, `exit` the one whose output
    is the block's output; `owner` holds the activation as `act`, and `inner` is the module between the two maps, if any."""

    family: str
    make: Callable[[], nn.Module]
    layer: str
    norm: str
    entry: str
    exit: str
    owner: str
    act: str
    first: str
    second: str
    up: str | None = None
    inner: str | None = None  # a dropout between the activation and the second map
    tokens: int = 12  # how many tokens a sequence has
    residual_last: bool = False  # the layer's output is its input plus the block: errors reach it one to one

    def build(self, dtype: torch.dtype = torch.float64, gain: float = 1.0) -> Model:
        """The model of this family; `gain` multiplies the weight of the norm in front of the block."""
        made = Model(self, self.make().to(dtype).eval())
        if gain != 1.0:
            with torch.no_grad():
                made.norm.weight.mul_(gain)
        return made


@dataclass
class Model:
    """A model, and its parts by what they are."""

    layout: Layout
    module: Any

    def part(self, path: str) -> Any:
        return self.module.get_submodule(path) if path else self.module

    @property
    def layer(self) -> Any:
        return self.part(self.layout.layer)

    @property
    def norm(self) -> Any:
        return self.part(self.layout.norm)

    @property
    def owner(self) -> Any:
        return self.part(self.layout.owner)

    @property
    def first(self) -> Any:
        return self.part(self.layout.first)

    @property
    def second(self) -> Any:
        return self.part(self.layout.second)

    @property
    def act(self) -> Any:
        return getattr(self.owner, self.layout.act)

    @act.setter
    def act(self, value: Any) -> None:
        self.put(f"{self.layout.owner}.{self.layout.act}".strip("."), value)

    def put(self, path: str, value: Any) -> None:
        """Replace the part at a path, a module by a function too."""
        where, _, name = path.rpartition(".")
        parent = self.part(where)
        if isinstance(parent, (nn.Sequential, nn.ModuleList)):
            parent[int(name)] = value if isinstance(value, nn.Module) else Called(value)
            return
        if name in parent._modules and not isinstance(value, nn.Module):
            delattr(parent, name)
        setattr(parent, name, value)

    def run(self, batch: int, tokens: int) -> Any:
        """Run the whole model on sequences of a size; what it is given hardly matters, as hooks force what is attacked."""
        family, dtype = self.layout.family, self.dtype
        ids = torch.arange(batch * tokens).reshape(batch, tokens) % 47 + 3
        if family == "vit":
            return self.module(
                pixel_values=torch.linspace(-1, 1, batch * 192).reshape(batch, 3, 8, 8).to(dtype)
            )
        if family.startswith("t5"):
            return self.module(input_ids=ids, decoder_input_ids=ids)
        if family.startswith(("encoder", "sequential")):
            return self.module(
                torch.linspace(-2, 2, batch * tokens * D).reshape(batch, tokens, D).sin().to(dtype)
            )
        if family == "bare":
            return self.module(torch.linspace(-1, 1, batch * tokens * D).reshape(batch, tokens, D).to(dtype))
        return self.module(
            input_ids=ids, **({"use_cache": False} if family in ("gpt2", "llama", "gpt_neox") else {})
        )

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.module.parameters() if p.is_floating_point())


class Called(nn.Module):
    """A function, where only a module can stand."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.function(x)
        return y


class Stack(nn.Module):
    """nn.TransformerEncoderLayers, one after another, without the fast path of nn.TransformerEncoder."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(D, 2, M, batch_first=True, **options)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(7)
        module: nn.Module = randomised(make())
        return module

    return made


def _sequential() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, M), nn.GELU(), nn.Linear(M, D))


ONE = {"num_hidden_layers": 1}
B, G, L, OPT = "encoder.layer.0", "transformer.h.0", "model.layers.0", "decoder.layers.0"
T, N, V, S = "encoder.block.0.layer.1", "layers.0", "layers.0", "layers.0"
LAYOUTS = {
    layout.family: layout
    for layout in (
        Layout(
            "bert", lambda: tiny("bert", **ONE), B, f"{B}.attention.output.LayerNorm", f"{B}.intermediate", f"{B}.output.dense",
            f"{B}.intermediate", "intermediate_act_fn", f"{B}.intermediate.dense", f"{B}.output.dense",
        ),
        Layout(
            "gpt2", lambda: tiny("gpt2", n_layer=1, bos_token_id=1, eos_token_id=2), G, f"{G}.ln_2", f"{G}.mlp", f"{G}.mlp",
            f"{G}.mlp", "act", f"{G}.mlp.c_fc", f"{G}.mlp.c_proj", residual_last=True,
        ),
        Layout(
            "llama", lambda: tiny("llama", **ONE), L, f"{L}.post_attention_layernorm", f"{L}.mlp", f"{L}.mlp", f"{L}.mlp",
            "act_fn", f"{L}.mlp.gate_proj", f"{L}.mlp.down_proj", f"{L}.mlp.up_proj", residual_last=True,
        ),
        Layout(
            "t5 gated", lambda: tiny("t5 gated"), T, f"{T}.layer_norm", f"{T}.DenseReluDense", f"{T}.DenseReluDense",
            f"{T}.DenseReluDense", "act", f"{T}.DenseReluDense.wi_0", f"{T}.DenseReluDense.wo", f"{T}.DenseReluDense.wi_1",
            f"{T}.DenseReluDense.dropout", residual_last=True,
        ),
        Layout(
            "t5", lambda: tiny("t5"), T, f"{T}.layer_norm", f"{T}.DenseReluDense", f"{T}.DenseReluDense", f"{T}.DenseReluDense",
            "act", f"{T}.DenseReluDense.wi", f"{T}.DenseReluDense.wo", None, f"{T}.DenseReluDense.dropout", residual_last=True,
        ),
        Layout(
            "opt", lambda: tiny("opt", **ONE), OPT, f"{OPT}.final_layer_norm", f"{OPT}.fc1", f"{OPT}.fc2", OPT, "activation_fn",
            f"{OPT}.fc1", f"{OPT}.fc2", residual_last=True,
        ),
        Layout(
            "gpt_neox", lambda: tiny("gpt_neox", **ONE), N, f"{N}.post_attention_layernorm", f"{N}.mlp", f"{N}.mlp", f"{N}.mlp",
            "act", f"{N}.mlp.dense_h_to_4h", f"{N}.mlp.dense_4h_to_h", residual_last=True,
        ),
        Layout(
            "distilbert", lambda: tiny("distilbert", n_layers=1), "transformer.layer.0", "transformer.layer.0.sa_layer_norm",
            "transformer.layer.0.ffn", "transformer.layer.0.ffn", "transformer.layer.0.ffn", "activation",
            "transformer.layer.0.ffn.lin1", "transformer.layer.0.ffn.lin2",
        ),
        Layout(
            "vit", lambda: tiny("vit", **ONE), V, f"{V}.layernorm_after", f"{V}.mlp", f"{V}.mlp", f"{V}.mlp", "activation_fn",
            f"{V}.mlp.fc1", f"{V}.mlp.fc2", tokens=5, residual_last=True,
        ),
        Layout(
            "encoder first", seeded(lambda: Stack(activation="gelu", norm_first=True)), S, f"{S}.norm2", f"{S}.linear1",
            f"{S}.linear2", S, "activation", f"{S}.linear1", f"{S}.linear2", None, f"{S}.dropout", residual_last=True,
        ),
        Layout(
            "encoder", seeded(lambda: Stack(activation="relu")), S, f"{S}.norm1", f"{S}.linear1", f"{S}.linear2", S,
            "activation", f"{S}.linear1", f"{S}.linear2", None, f"{S}.dropout",
        ),
        Layout("sequential", seeded(_sequential), "", "0", "1", "3", "", "2", "1", "3"),
    )
}  # fmt: skip
GATED = tuple(name for name, layout in LAYOUTS.items() if layout.up)
