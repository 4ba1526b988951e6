"""Tiny random models of the families of transformers, from their configs, nothing downloaded. `benchmarks/families.py`,
`benchmarks/attacks/families.py` and the tests read this list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Arguments = dict[str, Any]
WORDS: Arguments = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL: Arguments = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
TEXT: Arguments = {**WORDS, **SMALL, "max_position_embeddings": 40}
GROUPED: Arguments = {**TEXT, "num_key_value_heads": 1, "head_dim": 8}
PICTURE: Arguments = {**SMALL, "image_size": 8, "patch_size": 4}
NEO: Arguments = {
    "num_layers": 2,
    "num_heads": 2,
    "attention_types": [[["global", "local"], 1]],
    "hidden_size": 16,
}
T5: Arguments = {
    "vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2,
}  # fmt: skip
OPT: Arguments = {
    **WORDS, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "word_embed_proj_dim": 16,
}  # fmt: skip
BART: Arguments = {
    **WORDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40, "decoder_start_token_id": 2,
}  # fmt: skip
GPT2: Arguments = {**WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
EXPERTS: Arguments = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CLIP_TEXT: Arguments = {**TEXT, "projection_dim": 16}
SPEECH: Arguments = {
    "vocab_size": 50, **SMALL, "conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "mask_feature_prob": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A model class and the arguments of its config."""

    model: str
    config: str
    arguments: Arguments = field(default_factory=dict)
    input: str = "text"  # or "text and text", "picture", "sound", "picture and text"


def _text(name: str, arguments: Arguments = TEXT, **more: Any) -> Family:
    return Family(f"{name}Model", f"{name}Config", {**arguments, **more})


def _picture(name: str, arguments: Arguments = PICTURE, **more: Any) -> Family:
    return Family(f"{name}Model", f"{name}Config", {**arguments, **more}, "picture")


def _both(name: str, arguments: Arguments = BART, **more: Any) -> Family:
    return Family(f"{name}Model", f"{name}Config", {**arguments, **more}, "text and text")


FAMILIES: dict[str, Family] = {
    # encoders
    "albert": _text("Albert", embedding_size=8, classifier_dropout_prob=0.0),
    "bert": _text("Bert"),
    "camembert": _text("Camembert"),
    "convbert": _text("ConvBert", embedding_size=16),
    "data2vec-text": _text("Data2VecText"),
    "deberta": _text("Deberta"),
    "deberta-v2": _text("DebertaV2"),
    "deberta-v3": _text(
        "DebertaV2", relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type=["p2c", "c2p"],
    ),
    "distilbert": _text(
        "DistilBert", {**WORDS, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 40}
    ),
    "electra": _text("Electra", embedding_size=8),
    "ernie": _text("Ernie"),
    "esm": _text("Esm", mask_token_id=4),
    "flaubert": _text(
        "Flaubert", {**WORDS, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 40, "n_words": 50}
    ),
    "fnet": _text("FNet", tpu_short_seq_length=40, use_tpu_fourier_optimizations=False),
    "layoutlm": _text("LayoutLM"),
    "megatron-bert": _text("MegatronBert"),
    "mobilebert": _text(
        "MobileBert", embedding_size=16, intra_bottleneck_size=8, true_hidden_size=8, num_feedforward_networks=2
    ),
    "modernbert": _text("ModernBert", global_attn_every_n_layers=2, reference_compile=False, cls_token_id=1, sep_token_id=2),
    "mpnet": _text("MPNet"),
    "nomic_bert": _text("NomicBert"),
    "rembert": _text("RemBert", input_embedding_size=8, output_embedding_size=8),
    "roberta": _text("Roberta"),
    "roberta-prelayernorm": _text("RobertaPreLayerNorm"),
    "roformer": _text("RoFormer"),
    "squeezebert": _text("SqueezeBert", embedding_size=16, q_groups=1, k_groups=1, v_groups=1, post_attention_groups=1,
                         intermediate_groups=1, output_groups=1),
    "xlm-roberta": _text("XLMRoberta"),
    "xlm-roberta-xl": _text("XLMRobertaXL"),
    "xlnet": _text("XLNet", {"vocab_size": 50, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}),
    # decoders
    "arcee": _text("Arcee", GROUPED),
    "biogpt": _text("BioGpt"),
    "bitnet": _text("BitNet", GROUPED),
    "bloom": _text("Bloom", {**WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "codegen": _text("CodeGen", {**GPT2, "n_head": 4}, rotary_dim=4),
    "cohere": _text("Cohere", GROUPED),
    "cohere2": _text("Cohere2", GROUPED),
    "ctrl": _text("CTRL", {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "dff": 24, "n_positions": 40}),
    "ernie4_5": _text("Ernie4_5", GROUPED),
    "falcon": _text("Falcon", new_decoder_architecture=False, multi_query=True, ffn_hidden_size=24),
    "falcon 40b": _text("Falcon", new_decoder_architecture=True, num_kv_heads=1, ffn_hidden_size=24),
    "gemma": _text("Gemma", GROUPED),
    "gemma2": _text("Gemma2", GROUPED),
    "gemma3": _text("Gemma3Text", GROUPED),
    "glm": _text("Glm", GROUPED),
    "glm4": _text("Glm4", GROUPED),
    "gpt2": _text("GPT2", GPT2),
    "gpt_bigcode": _text("GPTBigCode", GPT2),
    "gpt_neo": _text("GPTNeo", {**WORDS, **NEO}),
    "gpt_neox": _text("GPTNeoX"),
    "gpt_neox_japanese": _text("GPTNeoXJapanese", intermediate_multiple_size=2),
    "gptj": _text("GPTJ", GPT2, rotary_dim=4),
    "granite": _text("Granite", GROUPED),
    "helium": _text("Helium", GROUPED),
    "llama": _text("Llama", GROUPED),
    "mistral": _text("Mistral", GROUPED),
    "mpt": _text("Mpt", {"vocab_size": 50, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 40, "expansion_ratio": 2}),
    "nemotron": _text("Nemotron", GROUPED),
    "olmo": _text("Olmo", GROUPED),
    "olmo2": _text("Olmo2", GROUPED),
    "olmo3": _text("Olmo3", GROUPED),
    "openai-gpt": _text("OpenAIGPT", GPT2),
    "opt": _text("OPT", OPT),
    "persimmon": _text("Persimmon"),
    "phi": _text("Phi"),
    "phi3": _text("Phi3", GROUPED),
    "qwen2": _text("Qwen2", GROUPED),
    "qwen3": _text("Qwen3", GROUPED),
    "smollm3": _text("SmolLM3", GROUPED),
    "stablelm": _text("StableLm", GROUPED),
    "starcoder2": _text("Starcoder2", GROUPED),
    "xglm": _text("XGLM", {**WORDS, "d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": 2,
                           "max_position_embeddings": 40}),
    # experts
    "deepseek_v3": _text(
        "DeepseekV3", TEXT, moe_intermediate_size=24, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        num_key_value_heads=2, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8,
        first_k_dense_replace=1,
    ),
    "gpt_oss": _text("GptOss", GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "granitemoe": _text("GraniteMoe", GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "mixtral": _text("Mixtral", GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "olmoe": _text("Olmoe", GROUPED, **EXPERTS),
    "phimoe": _text("Phimoe", GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": _text("Qwen2Moe", GROUPED, shared_expert_intermediate_size=24, **EXPERTS),
    "qwen3_moe": _text("Qwen3Moe", GROUPED, **EXPERTS),
    # encoders and decoders
    "bart": _both("Bart"),
    "blenderbot": _both("Blenderbot"),
    "led": _both("LED", attention_window=4, max_encoder_position_embeddings=40, max_decoder_position_embeddings=40),
    "m2m_100": _both("M2M100"),
    "marian": _both("Marian"),
    "mbart": _both("MBart"),
    "mt5": _both("MT5", T5),
    "pegasus": _both("Pegasus"),
    "switch_transformers": Family(
        "SwitchTransformersModel", "SwitchTransformersConfig",
        {**T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}, "text and text, masked",
    ),
    "t5": _both("T5", T5),
    "t5 gated": _both("T5", T5, feed_forward_proj="gated-gelu"),
    "umt5": _both("UMT5", T5),
    # pictures and sound
    "beit": _picture("Beit"),
    "blip": Family("BlipVisionModel", "BlipVisionConfig", PICTURE, "picture"),
    "clip": Family(
        "CLIPModel", "CLIPConfig",
        {"text_config": CLIP_TEXT, "vision_config": {**PICTURE, "projection_dim": 16}, "projection_dim": 16}, "picture and text",
    ),
    "deit": _picture("DeiT"),
    "dinov2": _picture("Dinov2", mlp_ratio=2),
    "dinov2 swiglu": _picture("Dinov2", mlp_ratio=2, use_swiglu_ffn=True),
    "dinov2_with_registers": _picture("Dinov2WithRegisters", mlp_ratio=2),
    "dinov3_vit": _picture("DINOv3ViT"),
    "ijepa": _picture("IJepa"),
    "siglip": Family(
        "SiglipModel", "SiglipConfig", {"text_config": {**TEXT, "projection_size": 16}, "vision_config": PICTURE},
        "picture and text",
    ),
    "swin": Family(
        "SwinModel", "SwinConfig",
        {"image_size": 8, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2}, "picture",
    ),
    "videomae": Family(
        "VideoMAEModel", "VideoMAEConfig", {**PICTURE, "num_frames": 2, "tubelet_size": 1}, "film",
    ),
    "vit": _picture("ViT"),
    "vit_mae": _picture("ViTMAE", mask_ratio=0.0),
    "hubert": Family("HubertModel", "HubertConfig", SPEECH, "sound"),
    "wav2vec2": Family("Wav2Vec2Model", "Wav2Vec2Config", SPEECH, "sound"),
    "whisper": Family(
        "WhisperModel", "WhisperConfig",
        {**BART, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20}, "spectrum",
    ),
}  # fmt: skip


def tiny(name: str, dtype: torch.dtype = torch.float32, seed: int = 1, **changes: Any) -> Any:
    """The model of a family in eval mode, all of its parameters drawn at random, those of norms too."""
    import transformers

    family = FAMILIES[name]
    torch.manual_seed(seed)
    config = getattr(transformers, family.config)(**{**family.arguments, **changes})
    model = getattr(transformers, family.model)(config)
    return randomised(model, seed).to(dtype).eval()


def randomised(model: nn.Module, seed: int = 1) -> nn.Module:
    """Numbers of the size of trained ones: gains around 1, other vectors around 0, matrices of unit gain."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=draw).to(p.dtype)
            gain = p.ndim == 1 and name.endswith("weight")
            p.copy_(gain + 0.2 * noise if p.ndim < 2 else 0.3 * noise)
    return model


def example(name: str, dtype: torch.dtype = torch.float32, seed: int = 2) -> dict[str, Tensor]:
    """Inputs of the model of a family."""
    family, draw = FAMILIES[name], torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 50, (2, 7), generator=draw)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(dtype)

    inputs: dict[str, dict[str, Tensor]] = {
        "text": {"input_ids": ids},
        "text and text": {"input_ids": ids, "decoder_input_ids": ids.flip(1)},
        "text and text, masked": {
            "input_ids": ids,
            "decoder_input_ids": ids.flip(1),
            "attention_mask": torch.ones_like(ids),
            "decoder_attention_mask": torch.ones_like(ids),
        },
        "picture": {"pixel_values": noise(2, 3, 8, 8)},
        "picture and text": {"input_ids": ids, "pixel_values": noise(2, 3, 8, 8)},
        "film": {"pixel_values": noise(2, 2, 3, 8, 8)},
        "sound": {"input_values": noise(2, 64)},
        "spectrum": {"input_features": noise(2, 8, 20), "decoder_input_ids": ids},
    }
    return inputs[family.input]
