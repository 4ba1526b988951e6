"""Inputs of converted models: the tensors of a call, its other arguments, and the same call with other tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.frontends.transformers import Call


@dataclass(frozen=True, eq=False)
class Example:
    """The tensors of a call, and a function that calls a model with others in their place."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    axes: tuple[dict[int, str], ...]
    positions: int  # arguments that are given by position
    others: dict[str, Any] = field(default_factory=dict)

    def run(self, model: nn.Module, *tensors: Tensor) -> Any:
        named = dict(zip(self.names[self.positions :], tensors[self.positions :], strict=True))
        return model(*tensors[: self.positions], **named, **self.others)


def example_of(call: Call) -> Example:
    """The first axis of every tensor is the batch. The second is the sequence in token ids and masks, and in tensors (batch,
    tokens, features). Both have at least two entries here: torch.export takes a length of 1 for a constant."""
    if not all(isinstance(x, Tensor) for x in call.args):
        raise InputError(
            "arguments that are not tensors must have names to be exported: give inputs as a mapping"
        )
    named = {f"input_{i + 1}" if len(call.args) > 1 else "input": x for i, x in enumerate(call.args)}
    named |= {name: x for name, x in (call.kwargs or {}).items() if isinstance(x, Tensor)}
    tensors = [x for x in named.values() if isinstance(x, Tensor)]
    if not tensors or any(x.ndim == 0 or len(x) != len(tensors[0]) for x in tensors):
        shapes = {name: tuple(x.shape) for name, x in zip(named, tensors, strict=True)}
        raise InputError(f"the inputs must be tensors whose first axis is the batch: got the shapes {shapes}")
    if len(tensors[0]) == 1:
        tensors = [torch.cat([x, x]) for x in tensors]
    sequence = {id(x) for x in tensors if x.ndim == (3 if x.is_floating_point() else 2) and x.shape[1] > 1}
    axes = tuple({0: "batch"} | ({1: "tokens"} if id(x) in sequence else {}) for x in tensors)
    others = {name: x for name, x in (call.kwargs or {}).items() if not isinstance(x, Tensor)}
    return Example(tuple(named), tuple(tensors), axes, len(call.args), others)


def varied(model: nn.Module, example: Example, count: int, free: Collection[str]) -> tuple[Tensor, ...]:
    """Another batch: random token ids, masks that hide the ends of some sequences, and noise of the size of the example's
    numbers. `free` are the names of the axes of any length: `count` inputs, of a length that depends on the count."""
    source, count = (
        torch.Generator().manual_seed(count),
        count if "batch" in free else len(example.tensors[0]),
    )
    example = _shortened(example, 2 + count % 5) if "tokens" in free else example
    words = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None) or max(words, default=2)
    lengths = torch.randint(
        1,
        max((x.shape[-1] for x in example.tensors if x.ndim == 2), default=1) + 1,
        (count, 1),
        generator=source,
    )
    found = []
    for name, x in zip(example.names, example.tensors, strict=True):
        sizes = (count, *x.shape[1:])
        if x.is_floating_point():
            noise = torch.randn(sizes, generator=source, dtype=torch.float64) * x.double().std()
            found.append(noise.to(x.dtype))
        elif "mask" in name and x.ndim == 2:
            found.append((torch.arange(x.shape[1]) < lengths).to(x.dtype))
        elif name.endswith("ids") or name.startswith("input"):
            largest = (
                vocabulary if name.endswith("input_ids") or name.startswith("input") else int(x.max()) + 1
            )
            found.append(torch.randint(0, int(largest), sizes, generator=source).to(x.dtype))
        else:
            found.append(x[torch.arange(count) % len(x)])
    return tuple(found)


def _shortened(example: Example, length: int) -> Example:
    """The first tokens of the example, at most `length`."""
    pairs = zip(example.tensors, example.axes, strict=True)
    return replace(example, tensors=tuple(x[:, :length] if 1 in axes else x for x, axes in pairs))


def tensors_of(output: Any) -> dict[str, Tensor]:
    """The tensors that a model returns, by name. Caches and other objects are left out."""
    if isinstance(output, Tensor):
        return {"output": output}
    if isinstance(output, Mapping):
        return {str(name): x for name, x in output.items() if isinstance(x, Tensor)}
    if isinstance(output, (tuple, list)):
        return {f"output_{i + 1}": x for i, x in enumerate(output) if isinstance(x, Tensor)}
    return {}
