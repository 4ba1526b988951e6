"""`save_pretrained` of a converted model. The weights have file names that transformers does not look for, so that no class of
transformers mistakes them for those of the original model."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from pathlib import Path
from typing import Any

from torch import nn

from attnc.pretrained.remote.attention import Activation, GatedBlock, Norm
from attnc.pretrained.remote.config import FILE, converted_config

WEIGHTS, INDEX, CARD = "attnc.safetensors", "attnc.safetensors.index.json", "README.md"
OWN_CARD, ORIGINAL_CARD = (
    "<!-- attnc: the card of the converted model -->",
    "<!-- attnc: the card of the original model -->",
)
_RENAMED = {"model.safetensors": WEIGHTS, "model.safetensors.index.json": INDEX}
_OTHERS = (*_RENAMED, "pytorch_model.bin", "pytorch_model.bin.index.json")


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
    before = read_card(existing) if existing.is_file() else ""
    (where / CARD).write_bytes(merged_card(card, before).encode("utf-8", "surrogateescape"))


def read_card(file: Path) -> str:
    """The text of a card, from which its bytes can be restored."""
    return file.read_bytes().decode("utf-8", "surrogateescape")


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
