"""What makes a directory of a converted model open without attnc: the modelling file, the model card, and their checks."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnc.errors import CertificateError, CertificateWarning, FileError, InputError
from attnc.extras import optional
from attnc.frontends.transformers import PartSite
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained.card import card
from attnc.pretrained.remote import known_digests, modelling_text
from attnc.pretrained.report import ConversionReport
from attnc.pretrained.runs import runs_of, why_runs_differ
from attnc.records.fields import DAMAGE
from attnc.records.files import CONVERTED, CONVERTED_INDEX, INDEX, WEIGHTS, Directory, read_json

MODELLING, CARD = "modeling_attnc.py", "README.md"
MODEL_TYPE = "attnc"
_FIELDS = {"model_type", "architectures", "auto_map", "tokenizer_class", "original", "attnc"}
_CLASSES = ("AttncBaseModel", "AttncConfig", "AttncHeadConfig", "AttncModel")
_SENTENCE_TRANSFORMERS = "sentence_transformers."
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
_ARGUMENTS = ("model_args", "model_kwargs", "config_args", "config_kwargs")  # of sentence_bert_config.json


def remote(file: str) -> Any:
    """A part of the modelling file, as a module of attnc."""
    optional("transformers", "transformers", "model directories")
    return importlib.import_module(f"attnc.pretrained.remote.{file}")


def attach_savers(model: nn.Module, report: ConversionReport, engine: str) -> None:
    """`model.save_pretrained`, and that of its parts, writes a directory that opens as the converted model and as no other."""
    kinds = (Pointwise, GatedBlock, Norm)
    remote("saving").attach_savers(
        model, card(report, engine), modelling_text(), kinds, InputError, CertificateWarning
    )


def write_shipped(
    where: Path, config: Mapping[str, Any], report: ConversionReport, existing: Path
) -> dict[str, Any]:
    """Write the modelling file and the card into a directory, with the card of the original below; returns config.json."""
    remote("saving").write_beside(where, card(report, config["attnc"]["engine"]), modelling_text(), existing)
    try:
        converted: dict[str, Any] = remote("config").converted_config(config)
    except ValueError as problem:
        raise FileError(f"the config of the model is not one that can be written: {problem}") from problem
    return converted


def is_shipped(config: Mapping[str, Any]) -> bool:
    """Whether config.json is that of a converted model with a modelling file; otherwise transformers opens the original."""
    return config.get("model_type") == MODEL_TYPE


def original_config(where: Path) -> dict[str, Any]:
    """config.json of the model in a directory, or of the original of a converted one, whose code must be attnc's."""
    config = read_json(where / "config.json")
    if not is_shipped(config):
        return config
    check_shipped(where, config)
    original = config.get("original")
    if not isinstance(original, dict):
        raise FileError(f"{where / 'config.json'} has no config of the original model")
    return original


def check_shipped(where: Path, config: Mapping[str, Any]) -> None:
    """Raise unless all code that `trust_remote_code=True` would run is attnc's modelling file, and transformers' own classes find
    no weights. Nothing is executed."""
    advice = "do not run its code; convert the original model again"
    for reason in _foreign_code(where, config):
        raise CertificateError(f"{where}: {reason}; {advice}")
    second = (CONVERTED_INDEX,) if (where / CONVERTED).exists() else ()
    for name in (WEIGHTS, INDEX, *_OTHER_WEIGHTS, *second):
        if (where / name).exists():
            raise FileError(
                f"{where} has {name} beside the files of the converted model: remove one of the models"
            )


def why_runs_otherwise(
    stored: Directory, model: Any, site: PartSite, module: nn.Module, recorded: Mapping[str, Any]
) -> str | None:
    """Why the modelling file would run something else than the module that attnc built for a part, or None: what it runs, the
    places that it would take in the model, and the tensors that it would read."""
    code, prefix = remote("model"), getattr(model, "base_model_prefix", "")
    try:
        reason = why_runs_differ(runs_of(model, site, module), recorded, prefix)
        found = [place for name in recorded["places"] for place in code.find_places(model, name, prefix)]
        taken = code.taken_tensors(recorded, {name: name for name in stored.files}, prefix)
    except (ValueError, *DAMAGE) as problem:
        return f"the modelling file cannot build it: {problem}"
    if reason is None and [(id(m), name) for m, name in found] != [(id(m), name) for m, name in site.places]:
        return f"the modelling file would put it into other places: {', '.join(recorded['places'])}"
    state = module.state_dict()
    for key, name in taken.items() if reason is None else ():
        held, tensor = state[key].cpu(), stored.files[name].tensor(name)
        if held.dtype != tensor.dtype or not torch.equal(held, tensor):
            return f"the modelling file would read other numbers: {name}"
    return reason


def _foreign_code(where: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """What may run code that is not attnc's."""
    try:
        digest = hashlib.sha256((where / MODELLING).read_bytes()).hexdigest()
    except OSError as problem:
        yield f"{MODELLING} cannot be read: {problem.strerror or problem}"
        return
    if digest not in known_digests():
        yield f"{MODELLING} was edited, or written by another version of attnc (its SHA-256 is {digest[:16]}…)"
    stem, named = MODELLING.removesuffix(".py"), config.get("auto_map")
    allowed = {f"{stem}.{name}" for name in _CLASSES}
    if not isinstance(named, dict) or not all(isinstance(v, str) and v in allowed for v in named.values()):
        yield f"auto_map in config.json names other code than {MODELLING}: {named!r}"
    unknown = sorted(config.keys() - _FIELDS)
    if unknown:
        yield f"config.json has fields that attnc did not write: {', '.join(unknown)}"
    others = [file for file in where.rglob("*.py") if file != where / MODELLING]
    if others:
        yield f"it has code that attnc did not write: {others[0].relative_to(where)}"
    linked = [path for path in where.rglob("*") if path.is_symlink() and path.is_dir()]
    if linked:
        yield f"{linked[0].relative_to(where)} is a link to another directory"
    for file in sorted(where.rglob("*.json")):
        if reason := _names_code(file, where):
            yield reason


def _names_code(file: Path, where: Path) -> str | None:
    """Whether a JSON file names code, or another model: of a tokenizer, or of a module of sentence-transformers."""
    name = str(file.relative_to(where))
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        return f"{name} cannot be read: {problem}"
    top = {} if name != "config.json" or not isinstance(found, dict) else {"auto_map": None}
    if _has_map({**found, **top} if top else found):
        return f"{name} names code of its own (auto_map)"
    if isinstance(found, dict) and name != "config.json" == file.name and "model_type" in found:
        return f"{name} is the config of another model"
    if file.name.startswith("sentence_") and isinstance(found, dict):
        given = next((key for key in _ARGUMENTS if found.get(key)), None)
        return None if given is None else f"{name} changes how the model is opened ({given})"
    if file.name == "modules.json":
        return next((f"{name} {reason}" for reason in _modules(found)), None)
    return None


def _has_map(found: object) -> bool:
    """Whether an `auto_map` is anywhere inside."""
    if isinstance(found, dict):
        return bool(found.get("auto_map")) or any(map(_has_map, found.values()))
    return isinstance(found, list) and any(map(_has_map, found))


def _modules(found: object) -> Iterator[str]:
    """What is wrong with the modules of sentence-transformers: the model is that of this directory, the others are inside."""
    modules = found if isinstance(found, list) else [found]
    for module in (module for module in modules if isinstance(module, dict)):
        kind, path = str(module.get("type", _SENTENCE_TRANSFORMERS)), str(module.get("path", ""))
        if not kind.startswith(_SENTENCE_TRANSFORMERS):
            yield f"names code of its own ({kind})"
        elif path and (kind.endswith(".Transformer") or Path(path).name != path or path == ".."):
            yield f"opens {path!r} as {kind}: the model is that of the directory itself"
