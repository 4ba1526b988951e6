"""What the benchmarks share: a model, stored results, tables in a page, one line of progress."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def one_thread() -> None:
    """To be called before numpy and torch are loaded."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"


def versions(*more: str) -> dict[str, str]:
    """What the numbers were made with."""
    from importlib.metadata import version

    import attnc

    packages = ("torch", "numpy", "python-flint", *more)
    return {
        "attnc": attnc.__version__,
        "Python": platform.python_version(),
        **{p: version(p) for p in packages},
    }


def as_json(stored: dict[str, Any]) -> str:
    """JSON with a line for each record, so that a change shows as a line."""
    parts = []
    for name, value in sorted(stored.items()):
        records = value if isinstance(value, list) else [value]
        lines = ",\n".join(json.dumps(record, sort_keys=True, allow_nan=False) for record in records)
        parts.append(f'"{name}": ' + (f"[\n{lines}\n]" if isinstance(value, list) else lines))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(path: Path, text: str) -> None:
    """All of it or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def put(page: Path, name: str, text: str) -> None:
    """The text between the page's markers of that name."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page.name} must hold the markers {begin} and {end}")
    write(page, f"{before}{begin}\n\n{text}\n{end}{after}")


def progress(what: str) -> None:
    """One line that is written over, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def llama_config(hidden: int, intermediate: int) -> Any:
    """Four layers of Llama's shape."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=1000, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, pad_token_id=0,
    )  # fmt: skip
