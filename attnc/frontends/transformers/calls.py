"""Calls: the arguments with which a model runs when it is read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnc.errors import InputError

_ROWS, _TOKENS = 2, 7
_SIZES = ("in_features", "embed_dim", "d_model", "num_features")


@dataclass(frozen=True, eq=False)
class Call:
    """Arguments to run a model with."""

    args: tuple[object, ...] = ()
    kwargs: dict[str, object] | None = None

    def __str__(self) -> str:
        named = {**{f"argument {i + 1}": a for i, a in enumerate(self.args)}, **(self.kwargs or {})}
        shapes = {name: f"{name} {tuple(x.shape)}" for name, x in named.items() if isinstance(x, Tensor)}
        return ", ".join(shapes.get(name, f"{name}={x!r:.40}") for name, x in named.items()) or "no arguments"


def example_call(model: nn.Module) -> Call:
    """Inputs with which the model runs: from the config of a transformers model, else tensors that fit its first layers."""
    problem = ""
    for call in _candidates(model):
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                model(*call.args, **(call.kwargs or {}))
            return call
        except Exception as failure:  # of any kind: it comes from the model
            problem = problem or f" ({type(failure).__name__}: {str(failure).partition(chr(10))[0]})"
    advice = "pass inputs of the model, e.g. samples={'input_ids': ids}"
    raise InputError(f"attnc found no inputs with which {type(model).__name__} runs{problem}: {advice}")


def _candidates(model: nn.Module) -> Iterator[Call]:
    config: Any = getattr(model, "config", None)
    if isinstance(getattr(config, "model_type", None), str) and (found := _by_config(model, config)):
        yield Call((), found)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    required = sum(p.kind in kinds and p.default is p.empty for p in parameters)
    for tensor in _tensors(model):
        yield Call((tensor,) * max(1, required), {})


def _by_config(model: nn.Module, config: Any) -> dict[str, object]:
    """A model of transformers names its main input, and its config has the size."""
    like = next(iter(model.parameters()), torch.zeros(0))
    accepted = inspect.signature(model.forward).parameters
    found: dict[str, object] = {}
    main = str(getattr(model, "main_input_name", "input_ids"))
    text = getattr(config, "text_config", config)
    positions = getattr(text, "max_position_embeddings", None)
    tokens = min(_TOKENS, positions) if isinstance(positions, int) and positions > 0 else _TOKENS
    ids = torch.arange(3, 3 + _ROWS * tokens, device=like.device).reshape(_ROWS, tokens)
    ids = ids % max(1, int(getattr(text, "vocab_size", 1)))
    if "input_ids" in accepted:
        found["input_ids"] = ids
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        found["decoder_input_ids"] = ids
    if "pixel_values" in (main, *accepted):
        vision = getattr(config, "vision_config", config)
        sides = getattr(vision, "image_size", None)
        height, width = sides if isinstance(sides, (list, tuple)) else (sides, sides)
        if isinstance(height, int) and isinstance(width, int):
            channels = int(getattr(vision, "num_channels", 3))
            found["pixel_values"] = _noise((_ROWS, channels, height, width), like)
    if main == "input_features":
        length = 2 * int(getattr(config, "max_source_positions", 1500))
        found["input_features"] = _noise((_ROWS, int(getattr(config, "num_mel_bins", 80)), length), like)
    if getattr(config, "use_cache", False) and "use_cache" in accepted:
        found["use_cache"] = False
    return found


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """Tokens of the smallest embedding, then vectors as long as the inputs of the parts, in their order."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(0))
    words = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]
    if words:
        yield torch.arange(_ROWS * _TOKENS, device=like.device).reshape(_ROWS, _TOKENS) % min(words)
    sizes: list[object] = []
    for part in model.modules():
        shape = getattr(part, "normalized_shape", None)
        sizes += shape[-1:] if isinstance(shape, tuple) else ()
        sizes += [getattr(part, name, None) for name in _SIZES]
    for size in dict.fromkeys(size for size in sizes if isinstance(size, int)):
        yield _noise((_ROWS, _TOKENS, size), like)
        yield _noise((_ROWS, size), like)


def _noise(shape: tuple[int, ...], like: Tensor) -> Tensor:
    source = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=source, dtype=torch.float64).to(like.device, like.dtype)
