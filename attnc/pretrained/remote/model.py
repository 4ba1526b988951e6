"""Directories of converted models: transformers loads the original model by its own class, and attention takes the places that
config.json records. The weights have file names that transformers does not look for, so that no class of transformers mistakes
them for those of the original model."""

from __future__ import annotations

import copy
import inspect
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.models.auto import modeling_auto, tokenization_auto
from transformers.utils import hub

from attnc.pretrained.remote.attention import Activation, Anchors, GatedBlock, Norm, Product, TwoKeySum

MODEL_TYPE, FILE, CARD = "attnc", "modeling_attnc.py", "README.md"
WEIGHTS, INDEX = "attnc.safetensors", "attnc.safetensors.index.json"
OWN_CARD, ORIGINAL_CARD = (
    "<!-- attnc: the card of the converted model -->",
    "<!-- attnc: the card of the original model -->",
)
_RENAMED = {"model.safetensors": WEIGHTS, "model.safetensors.index.json": INDEX}
_OTHERS = (*_RENAMED, "pytorch_model.bin", "pytorch_model.bin.index.json")
_OWN = (
    "original",
    "attnc",
    "auto_map",
    "architectures",
    "dtype",
    "model_type",
    "name_or_path",
    "_name_or_path",
)
_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_UNUSED = (
    "trust_remote_code", "code_revision", "adapter_kwargs", "use_safetensors", "variant", "weights_only", "_from_auto",
    "_from_pipeline", "_commit_hash",
)  # fmt: skip
_HEAD, _QUADRATIC = ("query", "key", "value", "output"), ("slope", "intercept", "value")
_SETTINGS = ("activation_relu_or_gelu", "use_nested_tensor")  # of torch's encoder layers
_hf: Any = transformers


class AttncConfig(_hf.PretrainedConfig):  # type: ignore[misc]
    """`original` is the config of the original model, `attnc` the record of the conversion. Other attributes are read from the
    original config; those that are set are passed on to it."""

    model_type = MODEL_TYPE

    def __init__(self, original: Any = None, attnc: Any = None, **others: Any) -> None:
        common = vars(_hf.PretrainedConfig())
        known = {k: v for k, v in (original or {}).items() if k in common and k not in _OWN}
        super().__init__(**{**known, **others})
        self.original, self.attnc = dict(original or {}), dict(attnc or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not vars(self).get("original"):
            raise AttributeError(name)
        return getattr(_config(self.original), name)

    def original_config(self) -> Any:
        """The config of the original model, with the attributes that were set on this one."""
        config, before = _config(self.original), vars(type(self)(original=self.original))
        for name, value in vars(self).items():
            if name not in _OWN and (name not in before or before[name] != value):
                setattr(config, name, value)
        config.attnc = self.attnc
        return config


class AttncHeadConfig(AttncConfig):
    """Of a model with a head. transformers remembers one class for each automatic class and class of configs."""

    def __init__(self, original: Any = None, attnc: Any = None, **others: Any) -> None:
        super().__init__(original=original, attnc=attnc, **others)


def _config(original: Mapping[str, Any]) -> Any:
    kind = original.get("model_type")
    if kind == MODEL_TYPE or kind not in _hf.CONFIG_MAPPING:
        raise ValueError(f"transformers {_hf.__version__} has no model of the type {kind!r}")
    if (code := next(_code_in(original), None)) is not None:
        raise ValueError(f"config.json names code from elsewhere ({code}), which is not run")
    return _hf.CONFIG_MAPPING[kind].from_dict(copy.deepcopy(dict(original)))


def _code_in(config: Any) -> Iterator[str]:
    """Kernels that transformers would download, and other modelling files."""
    for name, value in config.items():
        if name == "auto_map" or ("_implementation" in name and "/" in str(value)):
            yield name
        if isinstance(value, dict):
            yield from _code_in(value)


def saved_class(original: Mapping[str, Any]) -> Any:
    """The class of transformers that was saved."""
    names = original.get("architectures") or [None]
    found = getattr(_hf, str(names[0]), None) if names[0] else _base_class(_config(original))
    if not (isinstance(found, type) and issubclass(found, _hf.PreTrainedModel)):
        raise ValueError(f"transformers {_hf.__version__} has no model {names[0]}")
    return found


def _base_class(config: Any) -> Any:
    found = _hf.MODEL_MAPPING.get(type(config), None)
    return found[0] if isinstance(found, (list, tuple)) else found


def _auto_map(original: Mapping[str, Any]) -> dict[str, str]:
    """The classes of this file by which transformers' automatic classes open the model that was saved; AutoModel opens it without
    its head."""
    saved, config, found = saved_class(original), _config(original), dict[str, str]()
    for name in (n for n in vars(modeling_auto) if n.startswith("AutoModel")):
        mapping = getattr(getattr(modeling_auto, name), "_model_mapping", {})
        listed = mapping.get(type(config), None)
        if listed is saved or (isinstance(listed, (list, tuple)) and saved in listed):
            found[name] = "AttncModel"
    whole = (
        "AutoModel" in found or not found.keys() - {"AutoModelForTextEncoding"} or _base_class(config) is None
    )
    found["AutoModel"] = "AttncModel" if whole else "AttncBaseModel"
    found["AutoConfig"] = "AttncConfig" if whole else "AttncHeadConfig"
    return {name: f"{FILE.removesuffix('.py')}.{found[name]}" for name in sorted(found)}


def converted_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a converted model, from that of the original with the record `attnc`. Its model type is not known to
    transformers, which therefore loads nothing unless it is allowed to run the modelling file."""
    original = {name: value for name, value in config.items() if name not in ("attnc", "auto_map")}
    tokenizer: Any = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(str(original.get("model_type")))
    tokenizer = next(filter(None, tokenizer), None) if isinstance(tokenizer, (list, tuple)) else tokenizer
    named = {"tokenizer_class": tokenizer} if tokenizer else {}
    own = {
        "model_type": MODEL_TYPE,
        "architectures": ["AttncModel"],
        "auto_map": _auto_map(original),
        **named,
    }
    return {**own, "original": original, "attnc": config["attnc"]}


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
        made = (_base_class(original) if cls.base else None) or saved
        tensors, blocks = _tensors(name, where), config.attnc["blocks"]
        prefix = saved.base_model_prefix
        parts = [(entry["runs"], _taken(entry["runs"], tensors, prefix)) for entry in blocks]
        wanted = options.pop("output_loading_info", False)
        model, info = _loaded(made, original, tensors, args, options)
        for runs, own in parts:
            _replace(model, runs, own, prefix, made is not saved)
        if model.can_generate() and _file(name, "generation_config.json", where):
            model.generation_config = _hf.GenerationConfig.from_pretrained(name, **where)
        card = _file(name, CARD, where)
        attach_savers(model, Path(card).read_text("utf-8") if card else "", Path(__file__).read_text("utf-8"))
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


def _taken(runs: Mapping[str, Any], tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
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


def _replace(model: nn.Module, runs: Mapping[str, Any], own: Any, prefix: str, some: bool) -> None:
    """Put a part into its places; with `some`, places may be missing that are in the head of the model that was saved."""
    found = [place for name in runs["places"] for place in _places(model, name, prefix)]
    if not found and not some:
        raise ValueError(f"{type(model).__name__} has no part {runs['places'][0]}")
    if found:
        owner, attribute = found[0]
        device = next((p.device for part in (owner, model) for p in part.parameters()), None)
        module = _module(runs, own, getattr(owner, attribute)).to(device).eval()
        for owner, attribute in found:
            setattr(owner, attribute, module)
    for name, attribute, value in runs.get("settings", ()):
        if attribute in _SETTINGS:
            setattr(model.get_submodule(name), attribute, value)


def _places(model: nn.Module, name: str, prefix: str) -> Iterator[tuple[nn.Module, str]]:
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


def _module(runs: Mapping[str, Any], own: Mapping[str, Tensor], held: Any) -> nn.Module:
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


class Saver:
    """`save_pretrained` of a converted model: the directory opens as this model, and as no other."""

    def __init__(self, model: Any, card: str, source: str, error: type[Exception]) -> None:
        self.model, self.card, self.source, self.error = model, card, source, error

    def __call__(self, save_directory: Any, *args: Any, **options: Any) -> None:
        save, where = type(self.model).save_pretrained, Path(save_directory)
        accepted = [*inspect.signature(save).parameters]
        options |= dict(zip(accepted[2:], args))  # noqa: B905
        if options.pop("push_to_hub", False) or options.pop("variant", None):
            raise self.error("save to a directory first, without variant, and upload that")
        if not options.pop("safe_serialization", True):
            raise self.error("a converted model is saved as safetensors alone")
        if not hasattr(self.model.config, "attnc"):
            raise self.error("save the model that this part belongs to: it has the record of the conversion")
        clash = [name for name in _OTHERS if (where / name).exists()]
        if clash:
            raise self.error(f"{where} has the weights of a model ({clash[0]}): give another directory")
        if "save_original_format" in accepted:
            options["save_original_format"] = False  # tensors as the model has them
        where.mkdir(parents=True, exist_ok=True)
        temporary = where / f".attnc.{os.getpid()}.part"
        try:
            save(self.model, temporary, **options)
            if (temporary / "config.json").is_file():  # else another process writes
                self._finish(temporary, where)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _finish(self, temporary: Path, where: Path) -> None:
        """Change what transformers wrote into the directory of a converted model; config.json is moved last."""
        for name, other in _RENAMED.items():
            if (temporary / name).exists():
                (temporary / name).rename(temporary / other)
        if not any((temporary / name).exists() for name in (WEIGHTS, INDEX)):
            raise self.error("transformers saved no weights of the model: merge its adapters first")
        try:
            config = converted_config(json.loads((temporary / "config.json").read_text("utf-8")))
        except ValueError as problem:
            raise self.error(f"this model cannot be saved: {problem}") from problem
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        write_beside(temporary, self.card, self.source, where / CARD)
        before, after = _weight_files(where), _weight_files(temporary)
        for file in sorted(temporary.iterdir(), key=lambda file: file.name == "config.json"):
            os.replace(file, where / file.name)
        for name in before - after:
            (where / name).unlink(missing_ok=True)


def _weight_files(where: Path) -> set[str]:
    if not (where / INDEX).is_file():
        return {WEIGHTS}
    listed = json.loads((where / INDEX).read_text("utf-8"))["weight_map"].values()
    return {INDEX, *(file for file in listed if os.path.basename(file) == file)}


def write_beside(where: Path, card: str, source: str, existing: Path) -> None:
    """The modelling file and the model card; a card that is there stays below, and its metadata on top."""
    (where / FILE).write_bytes(source.encode())
    before = existing.read_bytes().decode("utf-8", "surrogateescape") if existing.is_file() else ""
    (where / CARD).write_bytes(merged_card(card, before).encode("utf-8", "surrogateescape"))


def merged_card(card: str, before: str) -> str:
    """A card with another below it. Metadata (YAML between lines of ---) are those of the other, if it has any."""
    (own, text), (other, below) = _metadata(card), _metadata(before)
    if OWN_CARD in below:  # a card of attnc: what it was written above stays
        below = below.partition(ORIGINAL_CARD)[2].lstrip("\n")
    if OWN_CARD in text:  # that of the directory that was opened
        text, _, kept = text.partition(OWN_CARD)[2].lstrip("\n").partition(f"\n{ORIGINAL_CARD}\n\n")
        below = below or kept
    first = f"{other or own}{OWN_CARD}\n{text.strip()}\n"
    return f"{first}\n{ORIGINAL_CARD}\n\n{below}" if below.strip() else first


def _metadata(text: str) -> tuple[str, str]:
    lines = text.splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if line.rstrip() == "---"]
    if len(ends) < 2 or ends[0] != 0:
        return "", text
    return "".join(lines[: ends[1] + 1]), "".join(lines[ends[1] + 1 :])


def attach_savers(
    model: nn.Module,
    card: str,
    source: str,
    kinds: tuple[type, ...] = (Activation, GatedBlock, Norm),
    error: type[Exception] = ValueError,
) -> None:
    """Give the model, and each part of it that can be saved and holds attention, the method `save_pretrained` above."""
    for part in model.modules():
        if hasattr(type(part), "save_pretrained") and any(
            isinstance(inner, kinds) for inner in part.modules()
        ):
            vars(part)["save_pretrained"] = Saver(part, card, source, error)
