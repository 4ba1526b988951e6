"""Opening directories of converted models: transformers loads the original model by its own class, and attention takes the places
that config.json records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import hub

from attnc.pretrained.remote.attention import Activation, Anchors, GatedBlock, Norm, Product, TwoKeySum
from attnc.pretrained.remote.config import MODEL_TYPE, AttncConfig, base_class, saved_class
from attnc.pretrained.remote.saving import CARD, INDEX, WEIGHTS, attach_savers, read_card

_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_UNUSED = (
    "trust_remote_code", "code_revision", "adapter_kwargs", "use_safetensors", "variant", "weights_only", "_from_auto",
    "_from_pipeline", "_commit_hash",
)  # fmt: skip
_HEAD, _QUADRATIC = ("query", "key", "value", "output"), ("slope", "intercept", "value")
_SETTINGS = ("activation_relu_or_gelu", "use_nested_tensor")  # of torch's encoder layers


class AttncModel:
    """Opens a directory as the model that was saved; `AttncBaseModel` as the model without its head."""

    base = False

    @classmethod
    def from_pretrained(cls, name: Any, *args: Any, config: Any = None, **options: Any) -> Any:
        where = {key: options.pop(key) for key in _HUB if key in options}
        options = {key: value for key, value in options.items() if key not in _UNUSED}
        if getattr(config, "model_type", None) != MODEL_TYPE:
            config = AttncConfig.from_pretrained(name, **where)
        original, saved = config.original_config(), saved_class(config.original)
        made = (base_class(original) if cls.base else None) or saved
        tensors, blocks = _tensors(name, where), config.attnc["blocks"]
        prefix = saved.base_model_prefix
        parts = [(entry["runs"], taken_tensors(entry["runs"], tensors, prefix)) for entry in blocks]
        wanted = options.pop("output_loading_info", False)
        model, info = _loaded(made, original, tensors, args, options)
        for runs, own in parts:
            replace_part(model, runs, own, prefix, made is not saved)
        if model.can_generate() and _file(name, "generation_config.json", where):
            model.generation_config = transformers.GenerationConfig.from_pretrained(name, **where)
        card = _file(name, CARD, where)
        attach_savers(model, read_card(Path(card)) if card else "", Path(__file__).read_text("utf-8"))
        return (model, info) if wanted else model

    @classmethod
    def _from_config(cls, config: Any, **options: Any) -> Any:
        raise ValueError(
            "the numbers of attention are in the files of a converted model: use from_pretrained"
        )

    from_config = _from_config

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """transformers calls it."""


class AttncBaseModel(AttncModel):
    base = True


def _file(name: Any, file: str, where: Mapping[str, Any]) -> str | None:
    found: str | None = hub.cached_file(
        name, file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False, **where
    )  # fmt: skip
    return found


def _tensors(name: Any, where: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every stored tensor, in memory that torch allocated: numbers that are not aligned may round differently."""
    index = None if _file(name, WEIGHTS, where) else _file(name, INDEX, where)
    listed = (
        [WEIGHTS]
        if index is None
        else sorted(set(json.loads(Path(index).read_text("utf-8"))["weight_map"].values()))
    )
    if any(os.path.basename(file) != file or not file.endswith(".safetensors") for file in listed):
        raise ValueError(f"{INDEX} must list names of safetensors files in the same directory")
    paths = [str(hub.cached_file(name, file, **where)) for file in listed]
    return {key: tensor.clone() for path in paths for key, tensor in load_file(path).items()}


def _variants(name: str, prefix: str) -> tuple[str, ...]:
    """The names of a part in the model that was converted, in its base model, and in a model around it."""
    return (name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}") if prefix else (name,)


def taken_tensors(runs: Mapping[str, Any], tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The numbers of a part, removed from the tensors, which are then those of the original model."""
    inside, count = "activation." if runs["kind"] == "gated" else "", len(runs.get("forms", ()))
    keys = [f"{inside}{g}.{part}" for g in range(count) for part in _HEAD]
    keys += [f"{inside}neurons_{g}" for g in range(count) if count > 1]
    keys += [f"product.square.0.{part}" for part in _HEAD] if inside else []
    keys += ["product.scale", "product.radius"] if inside else []
    keys += [f"heads.{part}" for part in _QUADRATIC] if runs["kind"] == "norm" else []
    found = {}
    for key in keys:
        names = [variant for place in runs["places"] for variant in _variants(f"{place}.{key}", prefix)]
        stored = [tensors.pop(name) for name in dict.fromkeys(names) if name in tensors]
        if not stored:
            raise ValueError(f"the tensor {names[0]} is missing")
        found[key] = stored[0]
    return found


def _loaded(made: Any, config: Any, state: dict[str, Tensor], args: Any, options: Any) -> tuple[Any, Any]:
    """The original model from its tensors; a pooler that was not saved is left out, other tensors must be there."""
    given = {**options, "config": config, "output_loading_info": True}
    model, info = made.from_pretrained(None, *args, state_dict=dict(state), **given)
    missing = sorted(info["missing_keys"])
    if missing and all(name.startswith("pooler.") for name in missing):
        model, info = made.from_pretrained(
            None, *args, state_dict=dict(state), add_pooling_layer=False, **given
        )
        missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(f"{len(missing)} tensors of {made.__name__} are missing, such as {missing[0]}")
    return model, info


def replace_part(model: nn.Module, runs: Mapping[str, Any], own: Any, prefix: str, some: bool) -> None:
    """Put a part into its places; with `some`, places may be missing that are in the head of the model that was saved."""
    found = [place for name in runs["places"] for place in find_places(model, name, prefix)]
    if not found and not some:
        raise ValueError(f"{type(model).__name__} has no part {runs['places'][0]}")
    if found:
        owner, attribute = found[0]
        device = next((p.device for part in (owner, model) for p in part.parameters()), None)
        module = built_module(runs, own, getattr(owner, attribute)).to(device).eval()
        for owner, attribute in found:
            setattr(owner, attribute, module)
    for name, attribute, value in runs.get("settings", ()):
        if attribute in _SETTINGS:
            setattr(model.get_submodule(name), attribute, value)


def find_places(model: nn.Module, name: str, prefix: str) -> Iterator[tuple[nn.Module, str]]:
    """The module and the attribute of a name: a submodule, or a function that is an attribute of the instance."""
    for variant in _variants(name, prefix):
        path, _, attribute = variant.rpartition(".")
        try:
            owner = model.get_submodule(path)
        except AttributeError:
            continue
        kept = vars(owner).get(attribute)
        if owner._modules.get(attribute) is not None or (callable(kept) and not attribute.startswith("_")):
            yield owner, attribute
            return


def built_module(runs: Mapping[str, Any], own: Mapping[str, Tensor], held: Any) -> nn.Module:
    """The module of a part, from what it runs, its numbers, and the part of the original that it takes the place of."""
    if runs["kind"] == "norm":
        heads = TwoKeySum(
            {part: own[f"heads.{part}"] for part in _QUADRATIC}, int(runs["dim"]), runs["epsilon"]
        )
        return Norm(heads, held, bool(runs["centred"]), runs["one_plus"])

    def group(inside: str, forms: Any) -> Activation:
        heads = [Anchors({p: own[f"{inside}{g}.{p}"] for p in _HEAD}) for g in range(len(forms))]
        neurons = [own[f"{inside}neurons_{g}"] for g in range(len(forms)) if len(forms) > 1]
        return Activation(heads, neurons, forms)

    if runs["kind"] == "activation":
        return group("", runs["forms"])
    square = group("product.square.", [None])
    product = Product(square, own["product.scale"], own["product.radius"], bool(runs["multiplied"]))
    maps = {name: held.get_submodule(name) for name in runs["maps"]}
    return GatedBlock(maps, group("activation.", runs["forms"]), product, runs["rows"])
