"""Directories of Hugging Face: read with safetensors alone, no remote code; written under a temporary name and renamed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from attnc.errors import CertificateError, FileError, InputError, MissingExtraError
from attnc.frontends.transformers import Site, find_blocks
from attnc.network.inside import checked_strict
from attnc.pretrained.config import ENGINES, VERSION
from attnc.pretrained.report import ConversionReport, model_certificate
from attnc.pretrained.store import note_parts, rebuild
from attnc.records.certificate import Certificate
from attnc.records.fields import round_up, unsealed
from attnc.records.numbers import TENSORS, HeadNumbers

_DIGITS_AND_END = re.compile(r"(?<=\.)\d+(?=\.)|\w+$")  # of layers.0.mlp: 0, mlp
OTHER_WEIGHTS = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".ot", ".gguf", ".tflite",
}  # fmt: skip
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, eq=False)
class Conversion:
    """The record in the config.json of a converted model."""

    engine: str
    report: ConversionReport
    blocks: Mapping[str, Mapping[str, Any]]  # by their names in the model
    record: Mapping[str, Any]  # as it stands there

    def heads(self) -> Iterator[tuple[str, Certificate]]:
        """Where the tensors of each head are stored, and what is certified of them."""
        for name, entry in self.blocks.items():
            gated = entry["square"] is not None
            for kind in ("activation", "square") if gated else ("activation",):
                inside = f"{name}.{kind}" if gated else name
                for g, head in enumerate(entry[kind]):
                    yield f"{inside}.{g}", Certificate.from_json(head["certificate"])


def from_pretrained(
    directory: str | os.PathLike[str], *, engine: str | None = None, strict: bool | None = None
) -> Any:
    """Read back a converted model that `save_pretrained` or `attnc convert` wrote, with its report.

    Nothing in the directory is executed. The heads must be those that their certificates speak of, and the weights those that
    were converted; else nothing is returned. `engine` overrides the one it was saved with. `strict` is that of `ConvertConfig`:
    it is not saved. The directory is one of transformers
    too, which knows nothing of heads: its own from_pretrained gives the original model, feed-forward blocks and all.

    >>> from_pretrained("missing")
    Traceback (most recent call last):
    attnc.errors.FileError: missing is not a directory: give one that holds config.json and model.safetensors
    """
    if not isinstance(directory, (str, os.PathLike)):
        raise InputError(f"a directory is given by its path: got {type(directory).__name__}")
    where = Path(directory)
    known = read_conversion(where)
    chosen = known.engine if engine is None else engine
    if chosen not in ENGINES:
        raise InputError(f"engine={chosen!r}: accepted are {', '.join(map(repr, ENGINES))}")
    model = load_model(where)
    sites = _sites(where, model, known)
    known = replace(known, blocks=dict(sites.values()))
    tensors = dict(_stored(where, known))
    made = [(site, _rebuilt(site, known, tensors, chosen, checked_strict(strict))) for site in sites]
    for site, module in made:
        site.replace(module.eval())
    runs = {site.name: str(getattr(module, "runs", chosen)) for site, module in made}
    report = known.report if chosen == known.engine else _run_by(known.report, chosen, runs)
    for part in model.modules():  # configs of parts are copies of the one that was read
        vars(getattr(part, "config", part)).pop("attnc", None)
    note_parts(model, chosen, report, known.blocks)
    return model


def load_model(where: Path) -> Any:
    """The model of a local directory, in eval mode: by the class that its config names, from safetensors alone."""
    config = read_config(where)
    _check_code(where, config)
    check_safetensors(where)
    transformers = imported()
    cls = _model_class(where, config, transformers)
    with quiet(transformers):
        model, missing = _loaded(cls, where)
        if missing and all(name.startswith("pooler.") for name in missing):
            model, missing = _loaded(cls, where, add_pooling_layer=False)
    if missing:
        raise FileError(
            f"{where} lacks {len(missing)} tensors of a {cls.__name__}, {missing[0]} among them, which would be drawn at "
            "random: save the whole model"
        )
    _copy_from_file(model)
    return model.eval()


def _loaded(cls: Any, where: Path, **options: Any) -> tuple[Any, list[str]]:
    """The model, and the names of its tensors that the files do not hold."""
    try:
        model, about = cls.from_pretrained(
            where, use_safetensors=True, local_files_only=True, trust_remote_code=False, dtype="auto",
            output_loading_info=True, **options,
        )  # fmt: skip
    except Exception as problem:  # of any kind: it comes from code that is not attnc's
        raise FileError(f"transformers cannot load {where}: {type(problem).__name__}: {problem}") from problem
    return model, sorted(about["missing_keys"])


def _copy_from_file(model: nn.Module) -> None:
    """Weights read from safetensors lie in the file, at odd addresses: in memory of their own they no longer follow what
    becomes of the file, and products of matrices round as those of the model that was saved."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def read_conversion(where: Path) -> Conversion:
    """The record of a converted directory, checked: its report, its blocks, the seals of its certificates."""
    record = read_config(where).get("attnc")
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise FileError(
            f"{where} holds no model that attnc converted (its config.json has no 'attnc' record of version {VERSION}): "
            "use transformers to load it, and attnc.convert_ to convert it"
        )
    try:
        blocks = {str(entry["name"]): entry for entry in record["blocks"]}
        report = ConversionReport.from_json(record["report"])
        known = Conversion(str(record["engine"]), report, blocks, record)
        if not all(isinstance(e["digest"], str) and e["activation"] for e in blocks.values()) or not blocks:
            raise ValueError("a block has no heads or no digest")
        list(known.heads())
        unsealed(record, "the record")
    except (KeyError, TypeError, ValueError, AttributeError, CertificateError) as problem:
        raise CertificateError(
            f"the 'attnc' record in {where / 'config.json'} is damaged or edited: {problem}"
        ) from problem
    return known


def changed_heads(where: Path, known: Conversion) -> tuple[str, ...]:
    """The heads in the files that are not those of their certificates; nothing is loaded but their own tensors."""
    tensors, changed = dict(_stored(where, known)), []
    for prefix, certificate in known.heads():
        missing = [name for name in TENSORS if f"{prefix}.{name}" not in tensors]
        if missing:
            raise FileError(f"the tensor {prefix}.{missing[0]} is missing: convert the original model anew")
        own = {name: tensors[f"{prefix}.{name}"].double().numpy() for name in TENSORS}
        try:
            same = HeadNumbers(**own, dtype=certificate.dtype).digests() == certificate.digests
        except InputError:  # such as a NaN
            same = False
        if not same:
            changed.append(prefix)
    return tuple(changed)


def read_config(where: Path) -> dict[str, Any]:
    """config.json of a directory."""
    if not where.is_dir():
        raise FileError(f"{where} is not a directory: give one that holds config.json and {WEIGHTS}")
    found = _json(
        where / "config.json", f"{where} has no config.json: it is not a model directory of Hugging Face"
    )
    if not isinstance(found, dict):
        raise FileError(f"{where / 'config.json'} is not a JSON object")
    return found


def check_safetensors(where: Path) -> dict[Path, list[str]]:
    """The files that hold the weights and the names of their tensors; a truncated file is noticed."""
    return {file: _names(file) for file in _weight_files(where)}


def _weight_files(where: Path) -> list[Path]:
    if (where / WEIGHTS).is_file():
        return [where / WEIGHTS]
    if (where / INDEX).is_file():
        found = _json(where / INDEX, "")
        shards = found.get("weight_map") if isinstance(found, dict) else None
        names = set(map(str, shards.values())) if isinstance(shards, dict) else set()
        if not names or any(Path(name).name != name for name in names):
            raise FileError(f"{where / INDEX} does not say which files of {where} hold the weights")
        return [where / name for name in sorted(names)]
    others = sorted(p.name for p in where.iterdir() if p.suffix in OTHER_WEIGHTS)
    hint = (
        f"; {others[0]} is not read, as only safetensors are: save the model as such first" if others else ""
    )
    raise FileError(f"{where} has no {WEIGHTS} and no {INDEX}{hint}")


def _json(file: Path, missing: str) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as problem:
        raise FileError(missing) from problem
    except (OSError, ValueError, RecursionError) as problem:
        raise FileError(f"{file} cannot be read: {problem}") from problem


def _check_code(where: Path, config: Mapping[str, Any]) -> None:
    """Refuse what asks for code from elsewhere, or for weights that are not here."""
    if config.get("auto_map"):
        raise FileError(f"{where} needs code of its own (auto_map in config.json), which attnc does not run")
    for name in ("attn_implementation", "_attn_implementation"):
        if "/" in str(config.get(name, "")):
            raise FileError(
                f"{where} needs code from elsewhere ({name} in config.json), which attnc does not run"
            )
    if (where / "adapter_config.json").exists():
        raise FileError(
            f"{where} holds an adapter of peft (adapter_config.json): merge it by model.merge_and_unload() and save that"
        )


def _model_class(where: Path, config: Mapping[str, Any], transformers: Any) -> Any:
    names = config.get("architectures")
    if not names:
        return transformers.AutoModel
    name = str(names[0]) if isinstance(names, list) else str(names)
    cls = getattr(transformers, name, None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise FileError(
            f"{where} is a {name} (architectures in config.json): transformers {transformers.__version__} has no such model"
        )
    return cls


def _sites(where: Path, model: nn.Module, known: Conversion) -> dict[Site, tuple[str, Mapping[str, Any]]]:
    """Each block of the record with its name in this model: a part may have been converted and the whole saved, or the other way
    round, so that one name may be the end of the other."""
    try:
        sites = find_blocks(
            model, lambda site: any(_same_place(site.name, name) for name in known.blocks)
        ).blocks
    except InputError as problem:
        raise FileError(f"{where} records blocks that its model does not have: {problem}") from problem
    found: dict[Site, tuple[str, Mapping[str, Any]]] = {}
    for name, entry in known.blocks.items():
        places = [site for site in sites if _same_place(site.name, name)]
        exact = [site for site in places if site.name == name] or places
        if len(exact) != 1:
            raise FileError(f"{where} records {name}, and its model has {len(exact) or 'no'} such block")
        found[exact[0]] = (exact[0].name, entry)
    return found


def _same_place(one: str, other: str) -> bool:
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _rebuilt(
    site: Site, known: Conversion, tensors: Mapping[str, Tensor], engine: str, strict: bool | None
) -> nn.Module:
    """The module of a block, with heads that are those of their certificates and of the dtype of the model."""
    dtype = str(site.dtype).removeprefix("torch.")
    for prefix, certificate in known.heads():
        if prefix.startswith(f"{site.name}.") and certificate.dtype != dtype:
            raise CertificateError(f"{prefix} is certified for {certificate.dtype}: the model is {dtype}")
    try:
        return rebuild(site, known.blocks[site.name], tensors, engine, strict)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as problem:
        raise CertificateError(f"what is stored of {site.name} is damaged or edited: {problem}") from problem


def _stored(where: Path, known: Conversion) -> Iterator[tuple[str, Tensor]]:
    """The tensors of heads, and those that say which neurons are whose, by their names in the model."""
    parts = ("activation.", "square.", "scale", "radius")  # of a gated block, besides its maps
    files = check_safetensors(where)
    places = _places([name for names in files.values() for name in names], known)
    inside = {
        f"{place}.{part}": f"{block}.{part}"
        for block, place in places.items()
        for part in (parts if known.blocks[block]["square"] is not None else ("",))
    }
    for file, names in files.items():
        with safe_open(file, "pt") as opened:
            for name in names:
                for stored in (start for start in inside if name.startswith(start)):
                    yield inside[stored] + name[len(stored) :], opened.get_tensor(name)


def _places(names: list[str], known: Conversion) -> dict[str, str]:
    """Under what name each block is stored: its own, or, as transformers renames some models when it saves them
    (layers.0.mlp of ViT is encoder.layer.0.mlp in files), the only one of the same numbers that ends alike."""
    found = {}
    for block, entry in known.blocks.items():
        tail = ".0.query" if entry["square"] is None else ".activation.0.query"
        stored = [name.removesuffix(tail) for name in names if name.endswith(tail)]
        alike = [name for name in stored if _DIGITS_AND_END.findall(name) == _DIGITS_AND_END.findall(block)]
        found[block] = alike[0] if block not in stored and len(alike) == 1 else block
    return found


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, "pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError, ValueError) as problem:
        raise FileError(f"{file} is missing, damaged or cut off: {problem}") from problem


def _run_by(report: ConversionReport, engine: str, runs: Mapping[str, str]) -> ConversionReport:
    """The report for another engine: with the rounding of that engine, and without measured differences."""
    blocks = []
    for block in report.blocks:
        roundings = block.facts["roundings"]
        rounding = roundings.get(engine, roundings["softmax"])
        facts = {**block.facts, "engine": runs.get(block.name, engine)}
        bound = round_up(block.approximation + rounding)
        blocks.append(replace(block, rounding=rounding, bound=bound, facts=facts))
    certificate = model_certificate(report.model, report.approximation, blocks, report.certificate.versions)
    return replace(report, certificate=certificate, measured=(), samples=0)


def imported() -> Any:
    try:
        import transformers
    except ImportError as problem:
        raise MissingExtraError(
            "model directories are read by transformers, which is not installed: pip install 'attnc[transformers]'"
        ) from problem
    return transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Without transformers' bars and its list of tensors that the original model does not know."""
    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
