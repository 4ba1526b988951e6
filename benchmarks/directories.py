"""Benchmark of `attnc convert` on a large directory: a random model of Llama's shape in bfloat16, in several files.

python benchmarks/directories.py            4 GB in the temporary directory, some twenty minutes: CSV, table in docs/pretrained.md
python benchmarks/directories.py --quick    a smoke test with a small model; writes to out/ only
python benchmarks/directories.py --at DIR   another place for the model, which is deleted afterwards

Memory is the peak of the resident memory of the process (of each process, with several jobs) minus that of a process which only
imports attnc, torch and transformers. The process is killed at random times and started again; the bytes of the result must be
those of a run without a kill, except for the report, which has the time and the memory of the run.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from formats import table
from pages import ROOT, progress, put, versions, write
from safetensors.torch import save_file

FULL = {"hidden": 2048, "inner": 5632, "layers": 30, "shards": 6, "vocab": 128000}
MIDDLE = {"hidden": 512, "inner": 1408, "layers": 12, "shards": 4, "vocab": 8000}
QUICK = {"hidden": 64, "inner": 128, "layers": 4, "shards": 2, "vocab": 100}
_IMPORTS = "import attnc.pretrained.convert_directory, torch; from transformers import LlamaForCausalLM"
_PEAK = "from attnc.pretrained.alone import peak_memory; print(peak_memory())"


@dataclass(frozen=True)
class Row:
    what: str
    found: str
    asked: str = ""


def generate(where: Path, sizes: Mapping[str, int]) -> int:
    """A random directory, file by file; its size in bytes."""
    hidden, inner, vocab = sizes["hidden"], sizes["inner"], sizes["vocab"]
    heads = max(1, hidden // 128)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": sizes["layers"], "vocab_size": vocab,
        "num_attention_heads": heads, "tie_word_embeddings": False,
    }  # fmt: skip
    where.mkdir(parents=True)
    (where / "config.json").write_text(json.dumps(config, indent=2))
    torch.manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02)

    def ones() -> torch.Tensor:
        return torch.empty(hidden, dtype=torch.bfloat16).normal_(1, 0.1)

    weight_map: dict[str, str] = {}
    total, per_file = 0, -(-sizes["layers"] // sizes["shards"])
    for shard in range(sizes["shards"]):
        tensors = {"model.embed_tokens.weight": matrix(vocab, hidden)} if shard == 0 else {}
        if shard == sizes["shards"] - 1:
            tensors |= {"lm_head.weight": matrix(vocab, hidden), "model.norm.weight": ones()}
        for i in range(shard * per_file, min((shard + 1) * per_file, sizes["layers"])):
            at = f"model.layers.{i}"
            tensors |= {
                f"{at}.self_attn.q_proj.weight": matrix(hidden, hidden), f"{at}.self_attn.k_proj.weight": matrix(hidden, hidden),
                f"{at}.self_attn.v_proj.weight": matrix(hidden, hidden), f"{at}.self_attn.o_proj.weight": matrix(hidden, hidden),
                f"{at}.mlp.gate_proj.weight": matrix(inner, hidden), f"{at}.mlp.up_proj.weight": matrix(inner, hidden),
                f"{at}.mlp.down_proj.weight": matrix(hidden, inner), f"{at}.input_layernorm.weight": ones(),
                f"{at}.post_attention_layernorm.weight": ones(),
            }  # fmt: skip
        name = f"model-{shard + 1:05d}-of-{sizes['shards']:05d}.safetensors"
        save_file(tensors, where / name, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(t.nbytes for t in tensors.values())
        progress(f"generated {name}")
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (where / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def command(source: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "attnc", "convert", str(source), "-o", str(out), "--json", *options]


def convert(source: Path, out: Path, *options: str) -> tuple[float, int]:
    """Seconds, and the peak memory of a process as the report has it, in bytes."""
    began = time.perf_counter()
    subprocess.run(
        command(source, out, *options), check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - began
    return seconds, int(json.loads((out / "attnc_report.json").read_text())["memory"])


def imports() -> int:
    """The peak memory of a process that imports what a conversion imports, in bytes."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{_IMPORTS}; {_PEAK}"], check=True, capture_output=True, text=True
    )
    return int(ran.stdout.split()[-1])


def digests(where: Path) -> dict[str, str]:
    """The SHA-256 of every file but the report."""
    files = [file for file in sorted(where.iterdir()) if not file.name.startswith("attnc_report")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def killed(source: Path, out: Path, kills: int, seconds: float) -> int:
    """Start the command and kill it at random times, then let it end; how often it was killed."""
    source_of_times, count = random.Random(0), 0
    while count < kills:
        process = subprocess.Popen(
            command(source, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(timeout=source_of_times.uniform(0.4, 1.0) * seconds)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            count += 1
            said(f"killed {count} times")
    if not out.exists():
        convert(source, out)
    return count


def measured(at: Path, sizes: Mapping[str, int], smaller: Mapping[str, int], kills: int) -> list[Row]:
    source, gib = at / "llama", 2.0**30
    total, base = generate(source, sizes), imports()
    rows = [
        Row("numbers stored in bfloat16", f"{total / 1e9:.2f} GB in {sizes['shards']} files", ">= 4 GB"),
        Row("memory of the imports", f"{base / gib:.2f} GiB"),
    ]
    one, most = convert(source, at / "one")
    said(f"converted in {one:.0f} s with {(most - base) / gib:.2f} GiB")
    rows += [
        Row("memory above the imports, 1 job", f"{(most - base) / gib:.2f} GiB", "< 1.5 GB"),
        Row("time, 1 job", f"{one:.0f} s, {one / total * 1e9:.0f} s per GB"),
    ]
    two, most = convert(source, at / "two", "--jobs", "2")
    said(f"converted by 2 jobs in {two:.0f} s")
    same = digests(at / "one") == digests(at / "two")
    rows += [
        Row("time, 2 jobs", f"{two:.0f} s, {two / total * 1e9:.0f} s per GB"),
        Row("speed-up, 2 jobs", f"{one / two:.2f}"),
        Row("memory of a process above the imports, 2 jobs", f"{(most - base) / gib:.2f} GiB", "< 1.5 GB"),
        Row("bytes, 2 jobs against 1", "same" if same else "different", "same"),
    ]
    for name in ("two", "one", "llama"):
        shutil.rmtree(at / name)
    return [*rows, *_of_smaller(at, smaller, kills)]


def _of_smaller(at: Path, sizes: Mapping[str, int], kills: int) -> list[Row]:
    """Kills and `attnc verify`, on a smaller model."""
    source, out = at / "small", at / "killed"
    total = generate(source, sizes)
    seconds, _ = convert(source, at / "whole")
    count = killed(source, out, kills, seconds)
    same, size = digests(at / "whole") == digests(out), f"{total / 1e6:.0f} MB"
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-m", "attnc", "verify", str(out)], check=False, capture_output=True, text=True
    )
    status = next(
        (line.split()[1] for line in ran.stdout.splitlines() if line.startswith("status")), "failed"
    )
    return [
        Row(f"{size}: bytes after {count} kills at random times", "same" if same else "different", "same"),
        Row(f"{size}: time of convert, without kills", f"{seconds:.0f} s"),
        Row(f"{size}: verify", f"{status} in {time.perf_counter() - began:.0f} s", "proved"),
    ]


def said(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def as_csv(rows: list[Row]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["what", "found", "asked"])
    writer.writerows((row.what, row.found, row.asked) for row in rows)
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--at", type=Path)
    given = parser.parse_args()
    at = Path(tempfile.mkdtemp(dir=given.at))
    try:
        rows = measured(at, QUICK, QUICK, 2) if given.quick else measured(at, FULL, MIDDLE, 10)
    finally:
        shutil.rmtree(at, ignore_errors=True)
    made = ", ".join(f"{name} {version}" for name, version in versions("transformers", "joblib").items())
    text = f"Made with {made}.\n\n{table('what, found, asked', [(r.what, r.found, r.asked) for r in rows])}\n"
    print(text)
    write(ROOT / ("out/bench" if given.quick else "benchmarks/results") / "directories.csv", as_csv(rows))
    if not given.quick:
        put(ROOT / "docs" / "pretrained.md", "directories", text)


if __name__ == "__main__":
    main()
