"""plan_directory: what `attnc convert` would do, and the memory that it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnc.frontends.transformers import Skipped
from attnc.pretrained.alone import Layers
from attnc.pretrained.config import ConvertConfig, checked_config, checked_parts
from attnc.pretrained.convert_directory import Filter, check_original, read_directory, read_model
from attnc.pretrained.directory import load_model
from attnc.pretrained.mapped import MappedModel, NotMappableError
from attnc.pretrained.report import shortened
from attnc.progress import Progress, silent
from attnc.records.files import Directory

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_PER_WEIGHT = 28  # bytes for each weight of a block, while it is planned and tested


@dataclass(frozen=True)
class PlannedConversion:
    """What `convert_directory` would convert, and what it needs; nothing was proved yet."""

    model: str
    files: int
    size: int  # of the files, in bytes
    blocks: tuple[
        Mapping[str, Any], ...
    ]  # name, activation, neurons, features, norm, size and memory of each
    skipped: tuple[Skipped, ...]
    memory: int  # an estimate for each job, in bytes, beside some 0.6 GB of the libraries
    others: tuple[str, ...] = ()  # norms, and activations outside of blocks, that would be converted
    whole: str = ""  # why the whole model would be loaded into memory, if it would be

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """One row for all blocks of the same sizes."""
        groups: dict[object, list[Mapping[str, Any]]] = {}
        for block in self.blocks:
            groups.setdefault(tuple(block[key] for key in block if key not in ("name", "norm")), []).append(
                block
            )
        rows = [["block", "activation", "neurons", "features", "behind", "size", "memory"]]
        for first, *others in groups.values():
            name = first["name"] + (f" and {len(others)} more" if others else "")
            sizes = [_size(first[key]) for key in ("size", "memory")]
            about = [str(first[key]) for key in ("activation", "neurons", "features")]
            rows.append([name, *about, first["norm"] or "no norm", *sizes])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        left = shortened([(one.name, one.reason) for one in self.skipped])
        notes = [f"{self.whole}: the whole model would be loaded into memory, by one job"] * bool(self.whole)
        notes += [f"norms and activations outside of blocks, too: {len(self.others)}"] * bool(self.others)
        notes += ["nothing was proved yet, and the numbers of the matrices were not looked at"]
        notes += [f"left: {name} ({reason})" for name, reason in left]
        return "\n".join([self.headline(), "", *lines, "", *notes])

    def headline(self) -> str:
        """One line: how much would be converted, and the memory that it needs."""
        share = sum(block["size"] for block in self.blocks) / max(1, self.size)
        count = f"{self.files} file{'s' * (self.files != 1)}"
        return (
            f"{self.model}: {len(self.blocks)} feed-forward blocks would be converted, {share:.0%} of "
            f"{_size(self.size)} in {count}; each job needs about {_size(self.memory)} of memory beside that of the libraries"
        )


def _size(count: int) -> str:
    """Bytes in words."""
    return next(f"{count / n:,.1f} {unit}" for n, unit in _UNITS if count >= n or unit == "KiB")


def plan_directory(
    source: Path,
    config: ConvertConfig | Mapping[str, Any] | None = None,
    filter_fn: Filter | None = None,
    *,
    parts: str | Collection[str] = "feed-forward",
    progress: Progress = silent,
) -> PlannedConversion:
    """Read what a model directory executes, and say what `convert_directory` would do. Nothing is written."""
    check_original(source)
    progress(f"reading {source}")
    config, stored, whole, kinds = checked_config(config), Directory(source), "", checked_parts(parts)
    try:
        read = read_directory(source, config, filter_fn, kinds)
    except NotMappableError as problem:
        whole = str(problem)
        read = read_model(MappedModel(load_model(source), {}), config, filter_fn, kinds)
    layers = Layers(read.model, read.found.blocks)
    blocks: list[dict[str, Any]] = []
    for site in read.found.blocks:
        weights = [m.weight for m in {id(m.weight): m for m in site.maps()}.values()]
        path = "" if whole else next(iter(layers.around[site.name]))
        around = read.model.get_submodule(path)
        held = sum(p.nbytes for p in around.parameters())
        blocks.append({
            "name": site.name, "activation": site.activation, "neurons": site.first.sizes[0],
            "features": site.first.sizes[1], "norm": site.norm_name, "size": sum(w.nbytes for w in weights),
            "memory": held + _PER_WEIGHT * sum(w.numel() for w in weights),
        })  # fmt: skip
    size = sum((source / name).stat().st_size for name in stored.names)
    largest = max((block["memory"] for block in blocks), default=0)
    others = tuple(site.name for site in read.others)
    return PlannedConversion(
        type(read.model).__name__,
        len(stored.names),
        size,
        tuple(blocks),
        read.found.skipped,
        largest,
        others,
        whole,
    )
