"""convert_directory: a model directory of any size is converted block by block; memory holds one layer, not the model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attnc.arguments import checked_eps, checked_jobs
from attnc.domain import Box
from attnc.errors import AttncError, FileError, InputError
from attnc.extras import optional
from attnc.frontends.transformers import BlockList, PartSite, Site, example_call, find_blocks
from attnc.parallel import as_completed
from attnc.pretrained.alone import (
    Converted,
    Layers,
    Task,
    convert_alone,
    part_converted,
    peak_memory,
    plan_part,
)
from attnc.pretrained.blocks import PlannedPart
from attnc.pretrained.config import ConvertConfig, checked_config, checked_parts
from attnc.pretrained.convert import check_dtypes, convert_, differences
from attnc.pretrained.directory import converted_module, load_model, map_model
from attnc.pretrained.guard import check_reached
from attnc.pretrained.inputs import Entering, entering, outputs, removed
from attnc.pretrained.mapped import MappedModel, NotMappableError, in_memory, laid_out
from attnc.pretrained.report import ConversionReport, model_certificate
from attnc.pretrained.save import check_new, copy_beside, save_converted, write_report
from attnc.pretrained.shipped import CARD, write_shipped
from attnc.pretrained.store import conversion_record
from attnc.pretrained.work import ANCHORS, Work, work_directory, write_json
from attnc.progress import Progress, silent
from attnc.records.certificate import Certificate
from attnc.records.domains import domain_to_json
from attnc.records.fields import versions
from attnc.records.files import Directory, read_json

Filter = Callable[[Any], bool]


@dataclass(frozen=True, eq=False)
class DirectoryRead:
    """A directory as it was read: its model without matrices, the blocks and what enters them."""

    mapped: MappedModel
    found: BlockList
    domains: list[Entering]

    @property
    def model(self) -> nn.Module:
        model: nn.Module = self.mapped.model
        return model

    @property
    def others(self) -> list[PartSite]:
        """The norms, and then the activations outside of blocks, that are converted."""
        others = [site for site in self.found.sites if not isinstance(site, Site)]
        return sorted(others, key=lambda site: site.part, reverse=True)


def convert_directory(
    source: Path,
    out: Path,
    approximation: float,
    config: ConvertConfig | Mapping[str, Any] | None = None,
    filter_fn: Filter | None = None,
    *,
    parts: str | Collection[str] = "feed-forward",
    check: bool = True,
    jobs: int = 1,
    progress: Progress = silent,
) -> ConversionReport:
    """Convert the feed-forward blocks of a model directory, and write the result as a new directory; `parts` are those of
    `convert_`.

    The operations of the model are recorded once. Then each block is planned, proved and tested in the layer that holds it,
    whose weights are mapped from the files. joblib runs the blocks: `jobs` is its `n_jobs`, and `joblib.parallel_config` selects
    its backend. The original files are linked. If the process ends, the same call resumes the work. With `check` the model runs
    before and after on an example input, layer by layer, and the report compares the outputs. Norms and activations outside of
    blocks take seconds, so a later run converts them again."""
    began = time.perf_counter()
    approximation, config = checked_eps(approximation, "approximation"), checked_config(config)
    jobs, kinds = checked_jobs(jobs), checked_parts(parts)
    finished = work_directory(out).exists() and out.exists()  # ended between its last two steps
    if not finished:
        check_new(out)
    check_original(source)
    progress(f"reading {source}")
    try:
        read = read_directory(source, config, filter_fn, kinds)
    except NotMappableError as problem:
        warnings.warn(f"{problem}: the whole model is loaded into memory", stacklevel=2)
        return _convert_whole(source, out, approximation, config, filter_fn, kinds, check, progress)
    work = Work(out.absolute(), _plan(source, read, approximation, config, check))
    if finished:
        if not work.is_own():
            check_new(out)
        work.discard()
        return ConversionReport.from_json(read_json(out / "config.json")["attnc"]["report"])
    with work.opened():
        before, done = _convert_blocks(read, work, approximation, config, jobs, progress)
        others = [plan_part(read.model, site, approximation, config) for site in read.others]
        done |= {plan.site.name: part_converted(read.model, plan) for plan in others}
        progress("comparing the outputs")
        after = _outputs_after(read, done, others, config) if check or others else None
        after = after if check else None
        report = _report(read, done, approximation, before, after)
        progress(f"writing {out}")
        _write(source, read, work, done, config, report)
        memory = max([peak_memory(), *(one.memory for one in done.values())])
        report = replace(report, seconds=round(time.perf_counter() - began, 3), memory=memory)
        write_report(work.model, report)
        work.finish()
    return report


def check_original(source: Path) -> None:
    """Refuse a directory without a model, a model that is converted, and one that has a file of the name that the anchors get."""
    if not source.is_dir():
        raise FileError(
            f"{source} is not a directory here: give a directory with config.json and safetensors, not the id of a model on "
            "a hub; huggingface_hub.snapshot_download(id) returns one"
        )
    if not (source / "config.json").is_file():
        what = f"{source.resolve()} is no model directory of Hugging Face: it has no config.json"
        raise FileError(f"{what}. Give a directory with config.json and safetensors")
    if (source / ANCHORS).exists():
        raise FileError(
            f"{source} has a file {ANCHORS}, the name of attnc's own: rename it, in the index too"
        )
    if "attnc" in read_json(source / "config.json"):
        raise InputError(f"{source} is already converted: give the original model")


def read_directory(
    source: Path, config: ConvertConfig, filter_fn: Filter | None, parts: Collection[str]
) -> DirectoryRead:
    """The model of a directory without its matrices, and its blocks."""
    # absolute: workers that joblib reuses keep the directory in which they were started
    return read_model(map_model(source.absolute()), config, filter_fn, parts)


def read_model(
    mapped: MappedModel, config: ConvertConfig, filter_fn: Filter | None, parts: Collection[str]
) -> DirectoryRead:
    """The blocks of a model, and what enters them."""
    with in_memory(mapped.model, mapped.sources, release=True):
        call = example_call(mapped.model)
    with laid_out(mapped):
        found = find_blocks(mapped.model, filter_fn, call=call, parts=parts)
    check_dtypes(found)
    with in_memory(mapped.model, mapped.sources, release=True):  # for calibration
        domains = entering(mapped.model, found.blocks, config)
    return DirectoryRead(mapped, found, domains)


def _convert_whole(
    source: Path,
    out: Path,
    approximation: float,
    config: ConvertConfig,
    filter_fn: Filter | None,
    parts: Collection[str],
    check: bool,
    progress: Progress,
) -> ConversionReport:
    model = load_model(source)
    call = example_call(model)
    samples = (call.kwargs or call.args) if check else None
    report = convert_(
        model, approximation, config, filter_fn, parts=parts, samples=samples, progress=progress
    )
    progress(f"writing {out}")
    save_converted(model, out, source)
    return report


def _plan(
    source: Path, read: DirectoryRead, approximation: float, config: ConvertConfig, check: bool
) -> dict[str, Any]:
    """What the result depends on: the same plan yields the same bytes."""
    files = {name: (source / name).stat() for name in ("config.json", *Directory(source).names)}
    return {
        "source": str(source.resolve()),
        "files": {name: [about.st_size, about.st_mtime_ns] for name, about in files.items()},
        "approximation": approximation,
        "engine": config.engine,
        "design": config.design,
        "blocks": [site.name for site in read.found.blocks],
        "others": [site.name for site in read.others],
        "inputs": [domain_to_json(one.domain) for one in read.domains if isinstance(one.domain, Box)],
        "check": check,
        "versions": versions(),
    }


def _convert_blocks(
    read: DirectoryRead,
    work: Work,
    approximation: float,
    config: ConvertConfig,
    jobs: int,
    progress: Progress,
) -> tuple[list[dict[str, Tensor]], dict[str, Converted]]:
    """The outputs of the original, and every converted block by its name; each result is stored as soon as it is there."""
    sites, call = read.found.blocks, read.found.call
    names = [site.name for site in sites]
    done = work.finished(names)
    layers = Layers(read.model, sites)
    with in_memory(read.model, read.mapped.sources, release=True), removed(layers.hooks()):
        before = outputs(read.model, [call])
    tasks = [
        layers.task(read.mapped, site, domain, approximation, config)
        for site, domain in zip(sites, read.domains, strict=True)
        if site.name not in done
    ]
    progress("converting", len(done), len(sites))
    for name, converted in _results(tasks, jobs):
        work.store(names.index(name), converted)
        done[name] = converted
        progress(name, len(done), len(sites))
    return before, {name: done[name] for name in names}


def _attempt(task: Task) -> tuple[str, Converted]:
    return task.site.name, convert_alone(task)


def _results(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[str, Converted]]:
    """Each result as soon as it is known; a failure stops the rest."""
    joblib = optional("joblib", "transformers", "model directories")
    calls = (joblib.delayed(_attempt)(task) for task in tasks)
    try:
        yield from as_completed(joblib, calls, jobs)
    except (AttncError, OSError):
        raise
    except Exception as problem:
        lost = f"{type(problem).__name__}: {problem}"
        raise OSError(f"a worker process was lost ({lost}); fewer jobs need less memory") from problem


def _outputs_after(
    read: DirectoryRead, done: Mapping[str, Converted], others: Sequence[PlannedPart], config: ConvertConfig
) -> list[dict[str, Tensor]]:
    """The outputs of the converted model, which must execute the parts that were not tested alone; the original parts are put
    back."""
    undo = []
    try:
        for site in read.found.blocks:
            claim = Certificate.from_json(done[site.name].about["certificate"])
            module = converted_module(site, claim, done[site.name].tensors, config.engine)
            undo.append(site.replace(module))
        undo += [plan.site.replace(plan.module) for plan in others]
        with in_memory(read.model, read.mapped.sources, release=True):
            if others:
                check_reached(read.model, read.found.call, others)
            return outputs(read.model, [read.found.call])
    finally:
        for put_back in reversed(undo):
            put_back()


def _report(
    read: DirectoryRead,
    done: Mapping[str, Converted],
    approximation: float,
    before: list[dict[str, Tensor]],
    after: list[dict[str, Tensor]] | None,
) -> ConversionReport:
    """The report without time and memory, which are not the same in every run."""
    name, converted = type(read.model).__name__, list(done.values())
    parts = [Certificate.from_json(one.about["certificate"]) for one in converted]
    return ConversionReport(
        certificate=model_certificate(name, approximation, parts),
        skipped=read.found.skipped,
        parameters=sum(p.numel() for p in read.model.parameters()),
        parameters_added=sum(one.about["parameters_added"] for one in converted),
        seconds=0.0,
        measured=() if after is None else differences(before, after),
        samples=0 if after is None else 1,
        read=str(read.found.call),
    )


def _write(
    source: Path,
    read: DirectoryRead,
    work: Work,
    done: Mapping[str, Converted],
    config: ConvertConfig,
    report: ConversionReport,
) -> None:
    anchors = {f"{name}.{key}": array for name, one in done.items() for key, array in one.tensors.items()}
    work.write_weights(Directory(source), source, anchors)
    copy_beside(source, work.model)
    record = conversion_record(config.engine, report, [one.about["record"] for one in done.values()])
    original = {**read_json(source / "config.json"), "attnc": record}
    write_json(work.model / "config.json", write_shipped(work.model, original, report, source / CARD))
