"""Converted models are written as new directories: all of one or nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from torch import nn

from attnc.errors import FileError, InputError
from attnc.pretrained.directory import OTHER_WEIGHTS, imported, quiet
from attnc.pretrained.report import ConversionReport
from attnc.pretrained.shipped import CARD, attach_savers
from attnc.pretrained.store import report_of

REPORT = "attnc_report.json"


def check_new(out: Path) -> None:
    """Refuse a directory that exists, or that could not be made: before any work, and before writing."""
    if os.path.lexists(out):
        raise FileError(f"{out} exists and is left as it is: give the name of a new directory")
    if not out.parent.is_dir():
        raise FileError(f"cannot write {out}: the directory {out.parent} does not exist; make it first")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise FileError(f"cannot write {out}: nothing may be written into {out.parent}")


def save_converted(
    model: nn.Module, out: str | os.PathLike[str], source: str | os.PathLike[str] | None = None
) -> None:
    """Model, report (JSON and HTML) and the other files of the source (tokenizer …), in a new directory: all of it or none. The
    model card of the source is kept below that of the conversion."""
    report, record = report_of(model), getattr(getattr(model, "config", None), "attnc", None)
    if not hasattr(model, "save_pretrained") or record is None:
        what = f"{type(model).__name__} has no save_pretrained, or no config with the record of a conversion"
        raise InputError(
            f"{what}: directories are written for models of transformers. Write an ONNX file, attnc.export(model, 'model.onnx'), "
            "or save the state_dict of the original with safetensors, load it, and convert the model again"
        )
    out, source = Path(out), None if source is None else Path(source)
    check_new(out)
    if "save_pretrained" not in vars(model):  # a part of it was converted
        attach_savers(model, report, str(record["engine"]))
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        temporary.mkdir()
        if source is not None:
            copy_beside(source, temporary)
        if source is not None and (source / CARD).is_file():
            shutil.copyfile(source / CARD, temporary / CARD)
        with quiet(imported()):
            cast(Any, model).save_pretrained(temporary)
        write_report(temporary, report)
        for file in temporary.glob("*.safetensors"):  # written for the owner's eyes alone
            file.chmod(temporary.stat().st_mode & 0o666)
        temporary.rename(out)
    except (OSError, SafetensorError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise FileError(f"cannot write {out}: {reason}; nothing was written") from problem
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_report(where: Path, report: ConversionReport) -> None:
    """The report as JSON and as HTML."""
    text = json.dumps(report.to_json(), indent=2, allow_nan=False)
    (where / REPORT).write_text(text, encoding="utf-8")
    (where / REPORT).with_suffix(".html").write_text(report.to_html(), encoding="utf-8")


def copy_beside(source: Path, out: Path) -> None:
    """Tokenizer and the like: every file that is no weight, no code and that saving does not write, and the modules that
    sentence-transformers puts behind the model."""
    behind = _modules_behind(source)
    for file in sorted(source.iterdir()):
        if file.is_dir() and file.name in behind:
            shutil.copytree(file, out / file.name, dirs_exist_ok=True)
        weight = file.suffix in {*OTHER_WEIGHTS, ".py"} or "index.json" in file.name
        skipped = weight or file.name.startswith(".") or file.name in {"config.json", CARD, REPORT}
        if file.is_file() and not skipped:
            shutil.copyfile(file, out / file.name)


def _modules_behind(source: Path) -> set[str]:
    try:
        listed = json.loads((source / "modules.json").read_text(encoding="utf-8"))
        return {Path(module["path"]).parts[0] for module in listed if module["path"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return set()
