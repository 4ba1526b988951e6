"""Saved converted models of every family, as transformers opens them without attnc: the outputs must be the same bits.

python benchmarks/huggingface_families.py --python PATH     every family, in both engines; PATH is the interpreter that opens them
python benchmarks/huggingface_families.py bert t5           some families
python benchmarks/huggingface_families.py --render          the sentence of docs/huggingface.md from the stored numbers

By default this interpreter opens them, in a process in which attnc cannot be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

STORED = ROOT / "benchmarks" / "results" / "huggingface_families.json"
ENGINES = ("closed-form", "softmax")
BATCH = 8  # families for each process without attnc
CHILD = """
import json, sys
if {blocked}:
    sys.modules["attnc"] = None
try:
    import attnc
    raise SystemExit("attnc can be imported")
except ImportError:
    pass
import torch, transformers
from safetensors.torch import load_file
torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if hasattr(value, "values") else value if isinstance(value, (tuple, list)) else []
    return [t for one in values for t in tensors(one)]


for where in sys.argv[1:]:
    try:
        try:
            transformers.AutoModel.from_pretrained(where, trust_remote_code=False)
            refused = False
        except (OSError, ValueError):
            refused = True
        model = transformers.AutoModel.from_pretrained(where, trust_remote_code=True, dtype="auto")
        given, expected = load_file(where + ".given"), load_file(where + ".expected")
        torch.manual_seed(0)
        with torch.no_grad():
            found = tensors(model(**given))
        same = len(found) == len(expected) and all(torch.equal(t, expected[str(i)]) for i, t in enumerate(found))
        ours = sorted({{type(p).__name__ for p in model.modules() if "modeling_attnc" in type(p).__module__}})
        about = {{"refused without trust": refused, "same": same, "outputs": len(found), "modules": ours}}
    except Exception as problem:
        about = {{"error": f"{{type(problem).__name__}}: {{problem}}"[:300]}}
    with open(where + ".json", "w") as file:
        json.dump(about, file)
"""


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*")
    parser.add_argument("--python", default="")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    if not options.render:
        run(options.families, options.python)
    put(ROOT / "docs" / "huggingface.md", "families", sentence(json.loads(STORED.read_text())))


def run(families: list[str], python: str) -> None:
    """Families that are stored are not run again, unless they are named. Each batch is stored."""
    from family_models import FAMILIES

    stored = json.loads(STORED.read_text()) if STORED.exists() else {"rows": []}
    done = {row["family"] for row in stored["rows"]} - set(families)
    left = [name for name in families or FAMILIES if name not in done]
    for at in range(0, len(left), BATCH):
        names = left[at : at + BATCH]
        with tempfile.TemporaryDirectory() as directory:
            rows = batch(names, python, Path(directory))
        kept = [row for row in stored["rows"] if row["family"] not in names]
        order = list(FAMILIES)
        stored["rows"] = sorted([*kept, *rows], key=lambda row: order.index(row["family"]))
        stored["about"] = {"another environment": bool(python)}
        stored["versions"] = versions("transformers", "safetensors")
        write(STORED, as_json(stored))
    progress("")


def batch(names: list[str], python: str, folder: Path) -> list[dict[str, Any]]:
    """Convert and save the models of some families, then open them in one process without attnc."""
    rows, saved = [], {}
    for name in names:
        for engine in ENGINES:
            progress(f"{name}, {engine}")
            row: dict[str, Any] = {"family": name, "engine": engine}
            rows.append(row)
            where = folder / f"{len(rows)}"
            problem = save(name, engine, where)
            if problem is not None:
                row["refused by attnc"] = problem
            else:
                saved[where] = row
    progress(f"{', '.join(names)}: without attnc")
    command = [python or sys.executable, "-c", CHILD.format(blocked=not python), *map(str, saved)]
    around = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        command, check=True, cwd=folder, env={**around, "HF_MODULES_CACHE": str(folder / "modules")}
    )
    for where, row in saved.items():
        row |= json.loads(Path(f"{where}.json").read_text())
    return rows


def save(name: str, engine: str, where: Path) -> str | None:
    """Save the converted model with inputs and outputs beside it; the reason if it is not converted."""
    import torch
    from family_models import example, tiny
    from safetensors.torch import save_file

    import attnc
    from attnc.errors import AttncError

    model, given = tiny(name), example(name)
    options = [{"engine": engine}, {"engine": engine, "calibration": [given]}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for config in options:
            try:
                attnc.convert_(
                    model, 1e-2, config, parts="all", samples=given if config is options[0] else None
                )
                break
            except AttncError as problem:
                if config is options[1] or "there is no norm in front" not in str(problem):
                    return str(problem).partition("\n")[0][:300]
        model.save_pretrained(where)
        torch.manual_seed(0)
        with torch.no_grad():
            found = tensors(model(**given))
    save_file({key: t.contiguous() for key, t in given.items()}, f"{where}.given")
    save_file({str(i): t.contiguous().clone() for i, t in enumerate(found)}, f"{where}.expected")
    return None


def tensors(value: Any) -> list[Any]:
    """The tensors of an output, those of caches left out."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if hasattr(value, "values") else value if isinstance(value, (tuple, list)) else []
    return [t for one in values for t in tensors(one)]


def sentence(stored: dict[str, Any]) -> str:
    rows = stored["rows"]
    opened = [row for row in rows if "same" in row]
    families = {row["family"] for row in opened}
    same = sum(row["same"] for row in opened)
    left = sorted({row["family"] for row in rows} - families)
    failed = sorted(
        {
            f"{row['family']} ({row['engine']})"
            for row in rows
            if not row.get("same") and row["family"] in families
        }
    )
    where = (
        "in an environment without attnc"
        if stored["about"]["another environment"]
        else "with attnc's import blocked"
    )
    text = f"Of the {len({row['family'] for row in rows})} configurations of [families.md](families.md), {len(families)} were "
    text += f'converted with `parts="all"`, saved and opened by `AutoModel` {where}: {same} of {len(opened)} models (2 engines) '
    text += "return the same bits in every output, and "
    text += f"{sum(row['refused without trust'] for row in opened)} raise without trust. "
    text += f"Different: {', '.join(failed)}. " if failed else ""
    text += f"Not converted: {', '.join(left)}. " if left else ""
    made = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    return f"{text}Made with {made}.\n"


if __name__ == "__main__":
    main()
