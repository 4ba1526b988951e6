"""`save_pretrained` of a converted model. The weights have file names that transformers does not look for, so that no class of
transformers mistakes them for those of the original model."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from attnc.pretrained.remote.attention import Activation, GatedBlock, Norm
from attnc.pretrained.remote.config import FILE, converted_config

WEIGHTS, INDEX, CARD = "attnc.safetensors", "attnc.safetensors.index.json", "README.md"
OWN_CARD, ORIGINAL_CARD = (
    "<!-- attnc: the card of the converted model -->",
    "<!-- attnc: the card of the original model -->",
)
BOUNDS = "## What is claimed"  # of a card: from here on it is about bounds
_RENAMED = {"model.safetensors": WEIGHTS, "model.safetensors.index.json": INDEX}
_OTHERS = (*_RENAMED, "pytorch_model.bin", "pytorch_model.bin.index.json")


class Saver:
    """`save_pretrained` of a converted model: the directory opens as this model, and as no other. Its card states no bound if the
    numbers are not those of the certificate."""

    def __init__(
        self, model: Any, card: str, source: str, error: type[Exception], warning: type[Warning]
    ) -> None:
        self.model, self.card, self.source, self.error, self.warning = model, card, source, error, warning

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
        card, reason = self.card, why_other_numbers(self.model, config["attnc"], temporary)
        if reason is not None:
            card = lapsed_card(card, reason)
            about = f"the certificate does not apply to what is saved ({reason}): README.md says so"
            warnings.warn(
                f"{about}. Convert the original again with the new numbers.", self.warning, stacklevel=3
            )
        write_beside(temporary, card, self.source, where / CARD)
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


def why_other_numbers(model: Any, record: Mapping[str, Any], where: Path) -> str | None:
    """Why the saved numbers of the converted parts are not those of the record, by their SHA-256; None if they are. Tensors that
    share their memory are saved under one name, and compared as the model holds them."""
    listed = (model.named_parameters, model.named_buffers)
    held = dict(named for every in listed for named in every(remove_duplicate=False))
    prefix, dtypes = getattr(model, "base_model_prefix", ""), {_short(p.dtype) for p in model.parameters()}
    claims, changed, found = record["report"]["certificate"]["children"], [], 0
    with _Stored(where) as stored:
        for entry in record["blocks"]:
            claim = _claim(entry["name"], claims)
            for role, name, known in (*_recorded_tensors(entry), *_recorded_heads(entry, claim)):
                names = (name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}")
                n = next((n for n in names if n in stored.files or n in held), None)
                if n is None:  # another module is in the place of the converted one
                    return f"the model has no {name}"
                found += 1
                if _digest(role, stored(n) if n in stored.files else held[n]) != known:
                    changed.append(name)
            if claim and not entry["tensors"] and claim["dtype"] not in {*dtypes, "mixed"}:
                return f"{entry['name']} was certified in {claim['dtype']}, and the model is in {_short(model.dtype)}"
    more = f" and {len(changed) - 3} more of {found} tensors" * (len(changed) > 3)
    return f"changed since it was converted: {', '.join(changed[:3])}{more}" if changed else None


class _Stored:
    """The tensors of a directory by name, read one at a time."""

    def __init__(self, where: Path) -> None:
        open_files: list[Any] = [safe_open(file, "pt") for file in sorted(where.glob("*.safetensors"))]
        self.files = {name: file for file in open_files for name in file.keys()}  # noqa: SIM118

    def __enter__(self) -> _Stored:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.clear()

    def __call__(self, name: str) -> Tensor:
        found: Tensor = self.files[name].get_tensor(name)
        return found


def _claim(name: str, claims: list[Any]) -> Mapping[str, Any] | None:
    """The certificate of a part, which may have been converted in a larger model."""
    ends = [c for c in claims if c["name"] == name]
    ends = ends or [c for c in claims if c["name"].endswith(f".{name}") or name.endswith(f".{c['name']}")]
    return ends[0] if len(ends) == 1 else None


def _recorded_tensors(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Role, name and SHA-256 of the tensors of a part."""
    yield from ((role, name, known) for role, (name, known) in entry["tensors"].items())


def _recorded_heads(
    entry: Mapping[str, Any], claim: Mapping[str, Any] | None
) -> Iterator[tuple[str, str, str]]:
    """The same of its heads: those of an activation in their order, and last the square of a product."""
    runs = entry["runs"]
    inside, count = "activation." if runs["kind"] == "gated" else "", len(runs.get("forms", ()))
    for g, head in enumerate(claim["children"] if claim and runs["kind"] != "norm" else ()):
        path = f"{inside}{g}" if g < count else "product.square.0"
        for role, known in head["digests"].items():
            yield from ((role, f"{place}.{path}.{role}", known) for place in runs["places"])


def _digest(role: str, tensor: Tensor) -> str:
    """SHA-256 of role, dtype, shape and little-endian bytes; bfloat16 as float32."""
    stored = tensor.detach().cpu().resolve_neg()
    array = (stored.float() if stored.dtype == torch.bfloat16 else stored).contiguous().numpy()
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    found = hashlib.sha256(f"{role} {array.dtype.name} {array.shape} ".encode())
    found.update(little.reshape(-1).view("uint8").data)
    return found.hexdigest()


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def lapsed_card(card: str, reason: str) -> str:
    """A card of attnc for numbers that are not those of the certificate: without bounds. What is below it stays."""
    own, mark, below = card.partition(f"\n{ORIGINAL_CARD}\n")
    lines = own.partition(f"\n{BOUNDS}\n")[0].splitlines()
    lines = [f"| status | not certified: {reason} |" if x.startswith("| status |") else x for x in lines]
    kept = [line for line in lines if not line.startswith(("| largest ", "| requested "))]
    about = f"Nothing. These numbers are not those that attnc converted and certified: {reason}.\nThe record in `config.json` is "
    about += "about the earlier numbers."
    return "\n".join([*kept, BOUNDS, "", about, ""]) + mark + below


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
    warning: type[Warning] = UserWarning,
) -> None:
    """Give the model, and each part of it that can be saved and holds attention, the method `save_pretrained` above."""
    for part in model.modules():
        if hasattr(type(part), "save_pretrained") and any(
            isinstance(inner, kinds) for inner in part.modules()
        ):
            vars(part)["save_pretrained"] = Saver(part, card, source, error, warning)
