"""Inputs of converted models: the tensors of a call, its other arguments, and the same call with other tensors."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.frontends.transformers import Call
from attnc.incontext.base import InContext
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.pretrained.report import ConversionReport
from attnc.pretrained.store import report_of

_IDS, _MASK = "input_ids", "attention_mask"  # ends of the names of arguments


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


def masks_missing(model: nn.Module, call: Call) -> tuple[str, ...]:
    """The attention masks that the model's forward accepts by name for the token ids of a call, and that the call leaves out:
    `attention_mask` for `input_ids`, `decoder_attention_mask` for `decoder_input_ids`."""
    given, accepted = call.kwargs or {}, inspect.signature(model.forward).parameters
    ids = [name for name, x in given.items() if isinstance(x, Tensor) and x.ndim == 2]
    masks = [name.removesuffix(_IDS) + _MASK for name in ids if name.endswith(_IDS)]
    return tuple(name for name in masks if name in accepted and given.get(name) is None)


def with_masks(model: nn.Module, call: Call) -> Call:
    """The call with the attention masks that it leaves out: 1 for every token, which changes nothing."""
    given = call.kwargs or {}
    ids = {name: given[name.removesuffix(_MASK) + _IDS] for name in masks_missing(model, call)}
    ones = {name: torch.ones_like(x) for name, x in ids.items() if isinstance(x, Tensor)}
    return Call(call.args, {**given, **ones})


def unmasked_note(names: Sequence[str]) -> str:
    """What a file without attention masks means for its users."""
    which = " and ".join(names)
    return f"{which}: not an input of this file, so it takes padding for tokens; batch only sequences of equal length"


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


def exported_report(model: nn.Module) -> ConversionReport:
    """The report of a converted model; of a module around one of attnc's, an error that names that one."""
    try:
        return report_of(model)
    except InputError as problem:
        kinds = (Head, Network, InContext)
        inner = next((name for name, part in model.named_modules() if isinstance(part, kinds)), None)
        if inner is None:
            raise
        what = (
            f"{type(model).__name__} is not a module of attnc, but holds one, model.get_submodule({inner!r})"
        )
        raise InputError(
            f"{what}: export that one, and compute what is around it outside of the file"
        ) from problem
