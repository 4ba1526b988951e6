"""Tiny random models of every family, from their configs, nothing downloaded; and parts to put into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

hf: Any = pytest.importorskip("transformers")

Inputs = dict[str, Tensor]
WORDS = {"vocab_size": 50}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {**WORDS, **SMALL, "max_position_embeddings": 40}
GROUPED = {**TEXT, "num_key_value_heads": 1, "head_dim": 8}
GPT_NEO = {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "hidden_size": 16}
T5 = {**WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
OPT = {
    **WORDS,
    "hidden_size": 16,
    "ffn_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "word_embed_proj_dim": 16,
}
PICTURE = {**SMALL, "image_size": 8, "patch_size": 4}

# name → (model, config, its arguments, activation, norm in front)
FAMILIES: dict[str, tuple[str, str, dict[str, Any], str, str]] = {
    "bert": ("BertModel", "BertConfig", TEXT, "gelu", "attention.output.LayerNorm"),
    "roberta": ("RobertaModel", "RobertaConfig", TEXT, "gelu", "attention.output.LayerNorm"),
    "camembert": ("CamembertModel", "CamembertConfig", TEXT, "gelu", "attention.output.LayerNorm"),
    "xlmroberta": ("XLMRobertaModel", "XLMRobertaConfig", TEXT, "gelu", "attention.output.LayerNorm"),
    "electra": ("ElectraModel", "ElectraConfig", {**TEXT, "embedding_size": 8}, "gelu", "attention.output.LayerNorm"),
    "distilbert": (
        "DistilBertModel", "DistilBertConfig",
        {**WORDS, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 40},
        "gelu", "sa_layer_norm",
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2}, "gelu_tanh", "ln_2"),
    "gpt_neo": ("GPTNeoModel", "GPTNeoConfig", {**WORDS, **GPT_NEO}, "gelu_tanh", "ln_2"),
    "opt": ("OPTModel", "OPTConfig", OPT, "relu", "final_layer_norm"),
    "opt after": ("OPTModel", "OPTConfig", {**OPT, "do_layer_norm_before": False}, "relu", "self_attn_layer_norm"),
    "opt bare": (
        "OPTModel", "OPTConfig", {**OPT, "layer_norm_elementwise_affine": False, "enable_bias": False}, "relu",
        "final_layer_norm",
    ),
    "gpt_neox": ("GPTNeoXModel", "GPTNeoXConfig", TEXT, "gelu", "post_attention_layernorm"),
    "gpt_neox serial": (
        "GPTNeoXModel", "GPTNeoXConfig", {**TEXT, "use_parallel_residual": False}, "gelu", "post_attention_layernorm",
    ),
    "t5": ("T5Model", "T5Config", {**T5, "feed_forward_proj": "relu"}, "relu", "layer_norm"),
    "t5 gated": ("T5Model", "T5Config", {**T5, "feed_forward_proj": "gated-gelu"}, "gelu_tanh", "layer_norm"),
    "mt5": ("MT5Model", "MT5Config", T5, "gelu_tanh", "layer_norm"),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**GROUPED, "mlp_bias": True}, "silu", "post_attention_layernorm"),
    "mistral": ("MistralModel", "MistralConfig", GROUPED, "silu", "post_attention_layernorm"),
    "qwen2": ("Qwen2Model", "Qwen2Config", GROUPED, "silu", "post_attention_layernorm"),
    "qwen3": ("Qwen3Model", "Qwen3Config", GROUPED, "silu", "post_attention_layernorm"),
    "gemma": ("GemmaModel", "GemmaConfig", GROUPED, "gelu_tanh", "post_attention_layernorm"),
    "gemma2": ("Gemma2Model", "Gemma2Config", GROUPED, "gelu_tanh", "pre_feedforward_layernorm"),
    "vit": ("ViTModel", "ViTConfig", PICTURE, "gelu", "layernorm_after"),
    "deit": ("DeiTModel", "DeiTConfig", PICTURE, "gelu", "layernorm_after"),
}  # fmt: skip


_LIKE_ANOTHER = (
    "roberta",
    "camembert",
    "xlmroberta",
    "electra",
    "opt bare",
    "gpt_neox serial",
    "mt5",
    "mistral",
    "qwen2",
    "deit",
    "opt after",
    "gpt_neo",
    "gemma",
)
EVERY_FAMILY = [
    pytest.param(name, marks=pytest.mark.slow) if name in _LIKE_ANOTHER else name for name in FAMILIES
]


def tiny(name: str, **changes: Any) -> Any:
    """The model of a family, in eval mode and float64, all of its numbers drawn at random, the gains too."""
    model, config, arguments, _, _ = FAMILIES[name]
    torch.manual_seed(1)
    made = getattr(hf, model)(getattr(hf, config)(**{**arguments, **changes}))
    return randomised(made)


def randomised(model: nn.Module) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape))
    return model.double().eval()


def example(name: str) -> Inputs:
    """An input for the model of a family."""
    torch.manual_seed(2)
    if name in ("vit", "deit"):
        return {"pixel_values": torch.randn(2, 3, 8, 8, dtype=torch.float64)}
    ids = torch.randint(3, 50, (2, 7))
    both = {"decoder_input_ids": ids} if "t5" in name else {}
    return {"input_ids": ids, **both}


def caught(
    model: nn.Module, parts: dict[str, nn.Module], run: Callable[[], object]
) -> dict[str, tuple[Tensor, Tensor]]:
    """(input, output) of parts of a model, in one run of it."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> Callable[..., None]:
        return lambda part, given, out: seen.update({name: (given[0].detach(), out.detach())})

    handles = [part.register_forward_hook(hook(name)) for name, part in parts.items()]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return seen


class Perceptron(nn.Module):
    """A block of no known family."""

    def __init__(self, activation: Any, d: int = 6, m: int = 9) -> None:
        super().__init__()
        self.down, self.up, self.act = nn.Linear(m, d), nn.Linear(d, m), activation

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.act(self.up(x)))
        return result


class Residual(Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Odd(nn.Module):
    def forward(self, s: Tensor) -> Tensor:
        return s * s.sin()


class Strided(nn.GELU):
    """An activation that cannot take nested tensors."""

    def forward(self, input: Tensor) -> Tensor:
        assert not input.is_nested
        return super().forward(input)
