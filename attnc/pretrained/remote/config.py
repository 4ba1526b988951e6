"""config.json of a converted model: the config of the original model and the record of the conversion, under a type of model that
transformers does not know."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import transformers
from transformers.models.auto import modeling_auto, tokenization_auto

MODEL_TYPE, FILE = "attnc", "modeling_attnc.py"
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
    """Kernels that transformers would download."""
    for name, value in config.items():
        if "_implementation" in name and "/" in str(value):
            yield name
        if isinstance(value, dict):
            yield from _code_in(value)


def saved_class(original: Mapping[str, Any]) -> Any:
    """The class of transformers that was saved."""
    names = original.get("architectures") or [None]
    found = getattr(_hf, str(names[0]), None) if names[0] else base_class(_config(original))
    if not (isinstance(found, type) and issubclass(found, _hf.PreTrainedModel)):
        raise ValueError(f"transformers {_hf.__version__} has no model {names[0]}")
    return found


def base_class(config: Any) -> Any:
    """The class of transformers without a head, or None."""
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
        "AutoModel" in found or not found.keys() - {"AutoModelForTextEncoding"} or base_class(config) is None
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
