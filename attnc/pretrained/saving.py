"""A converted model as a directory of Hugging Face: written under a temporary name and renamed, all of it or none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from attnc.errors import FileError, InputError
from attnc.pretrained.directory import OTHER_WEIGHTS, imported, quiet
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


def save_converted(model: nn.Module, out: Path, source: Path | None = None) -> None:
    """Model, report (JSON and HTML) and the other files of the source (tokenizer …), in a new directory: all of it or none."""
    report = report_of(model)
    save = getattr(model, "save_pretrained", None)
    if save is None:
        raise InputError(
            f"{type(model).__name__} has no save_pretrained: a directory is written for models of transformers"
        )
    check_new(out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        temporary.mkdir()
        if source is not None:
            _copy_beside(source, temporary)
        with quiet(imported()):
            save(temporary)
        (temporary / REPORT).write_text(report.to_text(), encoding="utf-8")
        (temporary / REPORT).with_suffix(".html").write_text(report.to_html(), encoding="utf-8")
        for file in temporary.glob("*.safetensors"):  # written for the owner's eyes alone
            file.chmod(temporary.stat().st_mode & 0o666)
        temporary.rename(out)
    except (OSError, SafetensorError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise FileError(f"cannot write {out}: {reason}; nothing was written") from problem
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_beside(source: Path, out: Path) -> None:
    """Tokenizer and the like: every file that is no weight and that saving does not write, and the modules that
    sentence-transformers puts behind the model."""
    behind = _modules_behind(source)
    for file in sorted(source.iterdir()):
        if file.is_dir() and file.name in behind:
            shutil.copytree(file, out / file.name)
        weight = file.suffix in OTHER_WEIGHTS or "index.json" in file.name
        skipped = weight or file.name.startswith(".") or file.name in {"config.json", "README.md", REPORT}
        if file.is_file() and not skipped:
            shutil.copyfile(file, out / file.name)


def _modules_behind(source: Path) -> set[str]:
    try:
        listed = json.loads((source / "modules.json").read_text(encoding="utf-8"))
        return {Path(module["path"]).parts[0] for module in listed if module["path"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return set()
