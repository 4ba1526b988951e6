"""Converted models as directories of Hugging Face: read with safetensors alone, without remote code."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from attnc.arguments import checked_engine, checked_strict
from attnc.check.model import Activation, Block, NormNumbers, Part, read_parts, read_record, same_place
from attnc.errors import CertificateError, FileError, InputError
from attnc.extras import optional
from attnc.frontends.transformers import ActivationSite, NormSite, PartSite, Site, find_blocks
from attnc.frontends.transformers.calls import Call, example_call
from attnc.network.head import Head
from attnc.network.norm import Norm
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock, Product
from attnc.pretrained.config import ENGINES
from attnc.pretrained.mapped import MappedModel, NotMappableError, Placeholders, in_memory, laid_out, traced
from attnc.pretrained.report import ConversionReport, model_certificate
from attnc.pretrained.shipped import check_shipped, is_shipped, original_config, remote, why_runs_otherwise
from attnc.pretrained.store import note_parts, part_record, why_not_recorded
from attnc.program.step import Numbers
from attnc.progress import Progress, silent, watched
from attnc.records.certificate import Certificate
from attnc.records.fields import round_up
from attnc.records.files import (
    CONVERTED,
    CONVERTED_INDEX,
    INDEX,
    NOT_QUANTISED,
    WEIGHTS,
    Directory,
    read_json,
)  # fmt: skip
from attnc.records.numbers import TENSORS, HeadNumbers

OTHER_WEIGHTS = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".ot", ".gguf", ".tflite",
}  # fmt: skip


@watched("reading a converted model")
def from_pretrained(
    directory: str | os.PathLike[str], *, engine: str | None = None, strict: bool | None = None
) -> Any:
    """Read back a converted model that `save_pretrained` or `attnc convert` wrote, with its report (`report_of(model)`).

    Nothing in the directory is executed. The heads must be those of their certificates, the weights those that were converted,
    and the modelling file, which transformers executes with trust_remote_code=True, must be attnc's own; otherwise an error is
    raised. `engine` overrides the one it was saved with. `strict` is that of `ConvertConfig`: it is not saved.

    >>> from_pretrained("missing")
    Traceback (most recent call last):
    attnc.errors.FileError: cannot read missing/config.json: No such file or directory
    """
    if not isinstance(directory, (str, os.PathLike)):
        raise InputError(f"a directory is given by its path: got {type(directory).__name__}")
    where, strict = Path(directory), checked_strict(strict)
    record, report = _read_report(where)
    chosen = checked_engine(record["engine"] if engine is None else engine, ENGINES)
    return _restored(where, MappedModel(load_model(where), {}), record, report, chosen, strict)


def map_converted(where: Path) -> MappedModel:
    """The converted model of a directory, as by `from_pretrained`; its matrices stay in their files, if they are stored as the
    model uses them."""
    record, report = _read_report(where)
    try:
        mapped = map_model(where)
    except NotMappableError:
        mapped = MappedModel(load_model(where), {})
    _restored(where, mapped, record, report, record["engine"], None)
    return mapped


def _restored(
    where: Path,
    mapped: MappedModel,
    record: dict[str, Any],
    report: ConversionReport,
    chosen: str,
    strict: bool | None,
) -> Any:
    """The model with its converted parts, rebuilt one by one from the stored numbers."""
    model = mapped.model
    with in_memory(model, mapped.sources, release=True):
        call = example_call(model)
    with laid_out(mapped):
        sites = _sites(where, model, record, call)
    made = []
    stored, files = read_parts(where, report.certificate, record), Directory(where)
    shipped = is_shipped(read_json(where / "config.json"))
    for (site, entry), (_, part) in zip(sites, stored, strict=True):
        with in_memory(model, mapped.of(site)):
            module, claim = _rebuilt(model, site, part, entry, record["engine"], strict)
            if shipped and (reason := why_runs_otherwise(files, model, site, module, entry.get("runs", {}))):
                raise CertificateError(f"{site.name}: {reason}: convert the original model again")
            module.engine = _available(claim, chosen)
            made.append((site, module, claim, part_record(model, site, module)))
    for site, module, *_ in made:
        site.replace(module.eval())
    if chosen != record["engine"]:
        report = _run_by(report, chosen, {claim.name: module.runs for _, module, claim, _ in made})
    for part in model.modules():  # configs of parts are copies of the one that was read
        vars(getattr(part, "config", part)).pop("attnc", None)
    note_parts(model, chosen, report, [entry for *_, entry in made])
    return model


def read_report(where: Path, progress: Progress = silent) -> tuple[ConversionReport, str | None]:
    """The report of a converted directory, and why it does not apply to the numbers that are stored there, or None."""
    record, report = _read_report(where)
    config = read_json(where / "config.json")
    try:
        if is_shipped(config):
            check_shipped(where, config)
        for i, (name, _) in enumerate(read_parts(where, report.certificate, record)):
            progress(name, i, len(record["blocks"]))
    except CertificateError as problem:
        return report, str(problem)
    return report, None


def _read_report(where: Path) -> tuple[dict[str, Any], ConversionReport]:
    _, record = read_record(where)
    try:
        return record, ConversionReport.from_json(record["report"])
    except (KeyError, TypeError, ValueError) as problem:
        raise CertificateError(f"the report in {where / 'config.json'} is damaged: {problem}") from problem


def load_model(where: Path) -> Any:
    """The model of a local directory, in eval mode: by the class that its config names, from safetensors alone."""
    (cls, config), stored = _checked_class(where), Directory(where)  # raises if a file is damaged
    if config is None:
        model = _loaded(where, cls, where)
    else:
        tensors = {name: file.tensor(name).clone() for name, file in stored.files.items()}
        model = _loaded(where, cls, None, config=config, state_dict=tensors)
        _read_generation(model, where)
    stored.check_floats(name for name, _ in model.named_parameters())
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()  # products of numbers that are not aligned round differently
    return model.eval()


def map_model(where: Path) -> MappedModel:
    """The same model, whose matrices stay in their files; NotMappableError if they are not stored as the model uses them."""
    (cls, config), stored = _checked_class(where), Directory(where)
    transformers, given = imported(), Placeholders(stored)
    converted = (
        config is not None
    )  # it has numbers of heads too, in float32 where the model is in half precision
    if config is None:
        with quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(
                where, local_files_only=True, trust_remote_code=False
            )
    if cls is transformers.AutoModel:
        cls = transformers.AutoModel._model_mapping[type(config)]
    held = {t.dtype for t in given.tensors.values() if t.is_floating_point()}
    if (len(held) != 1 and not converted) or getattr(config, "dtype", None) not in (None, *held):
        raise NotMappableError(f"{where} stores numbers of {', '.join(map(str, held))}, and casts them")
    with given:
        model = _loaded(where, cls, None, config=config, state_dict=given.tensors)
    stored.check_floats(name for name, _ in model.named_parameters())
    return traced(model.eval(), given)


def _checked_class(where: Path) -> tuple[Any, Any]:
    """The class of the model, if the directory has weights and asks for no code from elsewhere; and the config of the original of
    a converted model, or None."""
    original, shipped = original_config(where), is_shipped(read_json(where / "config.json"))
    _check_code(where, original)
    others = sorted(p.name for p in where.iterdir() if p.suffix in OTHER_WEIGHTS)
    names = (CONVERTED, CONVERTED_INDEX) if shipped else (WEIGHTS, INDEX)
    if not any((where / name).is_file() for name in names):
        hint = f"; {others[0]} is not read: save the model as safetensors first" if others else ""
        raise FileError(f"{where} has no {names[0]} and no {names[1]}{hint}")
    transformers = imported()
    cls = _model_class(where, original, transformers)
    if not shipped:
        return cls, None
    try:
        with quiet(transformers):
            config = (
                remote("config").AttncConfig.from_pretrained(where, local_files_only=True).original_config()
            )
    except Exception as problem:  # of any kind: it comes from code that is not attnc's
        raise FileError(f"transformers cannot read {where / 'config.json'}: {problem}") from problem
    return (transformers.MODEL_MAPPING[type(config)] if cls is transformers.AutoModel else cls), config


def _read_generation(model: Any, where: Path) -> None:
    """The settings of generation, which transformers reads beside the weights."""
    if model.can_generate() and (where / "generation_config.json").is_file():
        with quiet(imported()):
            model.generation_config = imported().GenerationConfig.from_pretrained(
                where, local_files_only=True
            )


def _loaded(where: Path, cls: Any, *source: object, **options: Any) -> Any:
    """The model from a directory, or from tensors; every tensor that it needs must be there, except for a pooler's."""
    with quiet(imported()):
        model, missing = _loaded_in_part(where, cls, *source, **options)
        if missing and all(name.startswith("pooler.") for name in missing):
            model, missing = _loaded_in_part(where, cls, *source, **options, add_pooling_layer=False)
    if missing:
        what = f"{where} lacks {len(missing)} tensors of a {cls.__name__}, such as {missing[0]}"
        raise FileError(f"{what}, which would be random: save the whole model")
    return model


def _loaded_in_part(where: Path, cls: Any, *source: object, **options: Any) -> tuple[Any, list[str]]:
    """The model, and the names of its tensors that the files do not hold."""
    try:
        model, about = cls.from_pretrained(
            *source, use_safetensors=True, local_files_only=True, trust_remote_code=False, dtype="auto",
            output_loading_info=True, ignore_mismatched_sizes=True, **options,
        )  # fmt: skip
    except Exception as problem:  # of any kind: it comes from code that is not attnc's
        raise FileError(f"transformers cannot load {where}: {type(problem).__name__}: {problem}") from problem
    for name, stored, expected in sorted(about["mismatched_keys"]):
        shapes = f"{tuple(stored)}, and a {cls.__name__} of this config.json needs {tuple(expected)}"
        raise FileError(f"{where}: {name} has the shape {shapes}: save the model again with its config")
    return model, sorted(about["missing_keys"])


def _check_code(where: Path, config: Mapping[str, Any]) -> None:
    """Refuse what asks for code from elsewhere, or for weights that are not here or quantised."""
    if config.get("quantization_config"):
        raise FileError(f"{where} is quantised (quantization_config in config.json): {NOT_QUANTISED}")
    if config.get("auto_map"):
        raise FileError(f"{where} needs code of its own (auto_map in config.json), which attnc does not run")
    for name in code_named(config):
        what = f"code from elsewhere ({name} in config.json)"
        raise FileError(f"{where} needs {what}, which attnc does not run")
    if (where / "adapter_config.json").exists():
        advice = "merge it by model.merge_and_unload() and save that"
        raise FileError(f"{where} holds an adapter of peft (adapter_config.json): {advice}")


def code_named(config: Mapping[str, Any]) -> Iterator[str]:
    """Kernels that transformers would download, named anywhere in a config."""
    for name, value in config.items():
        if "_implementation" in name and "/" in str(value):
            yield name
        if isinstance(value, Mapping):
            yield from code_named(value)


def _model_class(where: Path, config: Mapping[str, Any], transformers: Any) -> Any:
    names = config.get("architectures")
    if not names:
        return transformers.AutoModel
    name = str(names[0]) if isinstance(names, list) else str(names)
    cls = getattr(transformers, name, None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        version = f"transformers {transformers.__version__}"
        raise FileError(f"{where} is a {name} (architectures in config.json): {version} has no such model")
    return cls


def _sites(
    where: Path, model: nn.Module, record: Mapping[str, Any], call: Call
) -> list[tuple[Site | PartSite, Mapping[str, Any]]]:
    """Each part of the record with its place in this model. A part may have been converted and the whole saved, or the other
    way round: then one name is the end of the other."""
    names = [entry["name"] for entry in record["blocks"]]
    kinds = {"layer": "norm", "rms": "norm", "activation": "activation"}
    wanted = {kinds.get(entry.get("kind"), "feed-forward") for entry in record["blocks"]}

    def recorded(site: Any) -> bool:
        return any(same_place(site.name, name) for name in names)

    try:
        sites = find_blocks(model, recorded, call=call, parts=sorted(wanted)).sites
    except InputError as problem:
        raise FileError(f"{where} records blocks that its model does not have: {problem}") from problem
    found = []
    for entry in record["blocks"]:
        places = [site for site in sites if same_place(site.name, entry["name"])]
        places = [site for site in places if site.name == entry["name"]] or places
        if len(places) != 1:
            raise FileError(f"{where} records {entry['name']}, and its model has {len(places)} such blocks")
        found.append((places[0], entry))
    return found


def _rebuilt(
    model: nn.Module,
    site: Site | PartSite,
    found: Part,
    entry: Mapping[str, Any],
    engine: str,
    strict: bool | None,
) -> tuple[Pointwise | GatedBlock | Norm, Certificate]:
    """The module of a converted part from its stored numbers, and its certificate."""
    claim, kinds = found.claim, {Block: Site, NormNumbers: NormSite, Activation: ActivationSite}
    engine = _available(claim, engine)
    if not isinstance(site, kinds[type(found)]):
        raise CertificateError(f"{site.name} is not the kind of part that was converted")
    dtype, activation = str(site.dtype).removeprefix("torch."), getattr(site, "activation", None)
    if (claim.dtype, claim.facts.get("activation")) != (dtype, activation):
        was = f"{claim.facts.get('activation', claim.subject)} in {claim.dtype}"
        raise CertificateError(f"{site.name} was converted with {was}: the model has {activation} in {dtype}")
    module: Pointwise | GatedBlock | Norm
    if isinstance(found, NormNumbers):
        assert isinstance(site, NormSite)
        norm, most = site.norm, float(entry["most"])
        module = Norm(
            found.numbers, norm.kind == "layer", norm.weight, norm.bias, one_plus=norm.one_plus, most=most, engine=engine,
            strict=strict,
        )  # fmt: skip
    else:
        heads = found.heads if isinstance(found, Block) else [(None, found.numbers)]
        certified = zip(heads, claim.children, strict=False)
        groups = [(neurons, _head(numbers, certificate)) for (neurons, numbers), certificate in certified]
        module = pointwise = Pointwise(groups, engine, strict)
        if isinstance(found, Block) and found.square is not None:
            assert isinstance(site, Site) and found.scale is not None and found.radius is not None
            square = Product(_head(found.square, claim.children[-1]), found.scale, found.radius, engine)
            module = GatedBlock({m.attribute: m.module for m in site.maps()}, pointwise, square, site.rows)
    reason = module.why_not_certified() or why_not_recorded(model, site, module, entry)
    if reason is not None:
        raise CertificateError(f"{site.name}: {reason}: convert the original model again")
    return module, claim


def _available(claim: Certificate, engine: str) -> str:
    """The engine that runs a part: softmax, if no rounding is proved for the one that was asked for."""
    roundings = claim.facts["roundings"]
    return engine if engine in roundings or not roundings else "softmax"


def converted_module(
    site: Site, claim: Certificate, tensors: Mapping[str, Numbers], engine: str
) -> Pointwise | GatedBlock:
    """The module of a converted block from its numbers, by their names in it."""
    inside, count = "activation." if site.gated else "", len(claim.children) - site.gated

    def head(prefix: str, certificate: Certificate) -> Head:
        arrays = {name: tensors[f"{prefix}.{name}"] for name in TENSORS}
        return _head(HeadNumbers.of(arrays, certificate.dtype), certificate)

    own = enumerate(claim.children[:count])
    groups = [(tensors.get(f"{inside}neurons_{g}"), head(f"{inside}{g}", known)) for g, known in own]
    activation = Pointwise(groups, engine)
    if not site.gated:
        return activation.eval()
    square = head("product.square.0", claim.children[-1])
    product = Product(square, tensors["product.scale"], tensors["product.radius"], engine)
    return GatedBlock({m.attribute: m.module for m in site.maps()}, activation, product, site.rows).eval()


def _head(numbers: HeadNumbers, certificate: Certificate) -> Head:
    return Head(numbers, str(certificate.facts["design"]), certificate)


def _run_by(report: ConversionReport, engine: str, runs: Mapping[str, str]) -> ConversionReport:
    """The report for another engine: with the rounding of that engine, and without measured differences."""
    blocks = []
    for block in report.certificate.children:
        roundings = block.facts["roundings"]  # none in half precision
        rounding = roundings.get(engine, roundings.get("softmax", math.inf))
        facts = {**block.facts, "engine": runs.get(block.name, engine)}
        bound = round_up(block.approximation + rounding) if roundings else math.inf
        blocks.append(replace(block, rounding=rounding, bound=bound, facts=facts))
    certificate = model_certificate(report.model, report.approximation, blocks, report.certificate.versions)
    return replace(report, certificate=certificate, measured=(), samples=0)


def imported() -> Any:
    return optional("transformers", "transformers", "model directories")


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
