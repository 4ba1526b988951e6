"""Benchmark of `attnc convert` on a large directory: a random model of Llama's shape in bfloat16, in several files.

python benchmarks/directories.py            4 GB in the temporary directory, about an hour; table in docs/pretrained.md
python benchmarks/directories.py --quick    a smoke test with a small model; writes to out/ only
python benchmarks/directories.py --at DIR   another place for the model, which is deleted afterwards
python benchmarks/directories.py --at DIR --only kills      one stage; the model and its conversion stay in DIR
python benchmarks/directories.py --page     the table again, from what is stored

Memory is the peak of the resident memory of the process (of each process, with several jobs), mapped files included, minus that
of a process which only imports attnc, torch and transformers. Each process computes with one thread; the time of the processor
does not depend on what else the machine does, wall-clock times do. The process is killed at random times and started again; the
bytes of the result must be those of a run without a kill, except for the report, which has the time and the memory of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from formats import table
from pages import ROOT, as_json, one_thread, progress, put, versions, write
from safetensors.torch import save_file

FULL = {"hidden": 2048, "inner": 5632, "layers": 30, "shards": 6, "vocab": 128000}
MIDDLE = {**FULL, "layers": 10, "shards": 2, "vocab": 8000}
QUICK = {"hidden": 64, "inner": 128, "layers": 4, "shards": 2, "vocab": 100}
_RUN = """
import atexit, runpy, sys, time
from attnc.pretrained.alone import peak_memory
atexit.register(lambda: print(peak_memory(), time.process_time(), file=sys.stderr))
runpy.run_module("attnc", run_name="__main__", alter_sys=True)
"""
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


@dataclass(frozen=True)
class Run:
    """A command of attnc that ended: wall-clock time and time of the processor in seconds, and its peak memory in bytes."""

    wall: float
    cpu: float
    memory: int
    out: str


def run(*arguments: object, alone: bool = True) -> Run:
    """Run a command in a process of its own. With several jobs (`alone` is false) the time of the workers is not counted."""
    began = time.perf_counter()
    ran = subprocess.run(command(*arguments), check=False, capture_output=True, text=True)
    wall = time.perf_counter() - began
    if ran.returncode not in (0, 1):
        raise SystemExit(f"{arguments}: {ran.stderr[-2000:]}")
    *_, memory, cpu = ran.stderr.split()
    return Run(wall, float(cpu) if alone else math.nan, int(memory), ran.stdout)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", _RUN, *map(str, arguments)]


def convert(source: Path, out: Path, *options: str) -> Run:
    done = run("convert", source, "-o", out, "--json", *options, alone="--jobs" not in options)
    return replace(done, memory=json.loads((out / "attnc_report.json").read_text())["memory"])


def imports() -> int:
    """The peak memory of a process that imports what a conversion imports, in bytes."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{_IMPORTS}; {_PEAK}"], check=True, capture_output=True, text=True
    )
    return int(ran.stdout.split()[-1])


def digest(where: Path) -> str:
    """The SHA-256 of the names and the bytes of all files but the report."""
    files = [file for file in sorted(where.iterdir()) if not file.name.startswith("attnc_report")]
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            found.update(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()} ".encode())
    return found.hexdigest()


def killed(source: Path, out: Path, kills: int, layers: int) -> tuple[list[int], int]:
    """Start the command and kill it, again and again, then let it end. Most kills come at a random time while blocks are
    converted; the last one comes when all of them are finished, while the result is written. Returns how many blocks were
    finished at each kill, and how many runs were not killed because they ended by themselves."""
    chance, blocks, finished, ended = (
        random.Random(0),
        out.with_name(f".{out.name}.attnc") / "blocks",
        list[int](),
        0,
    )

    def count() -> int:
        return sum(not file.name.startswith(".") for file in blocks.glob("*")) if blocks.is_dir() else 0

    while len(finished) < kills and not out.exists():
        last, before = len(finished) == kills - 1, count()
        wanted = layers if last else min(layers, before + chance.choice((0, 1, 1, 2)))
        process = subprocess.Popen(
            command("convert", source, "-o", out, "--json"), start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while process.poll() is None and count() < wanted:
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, 6 if wanted > before else 20))
            ended += 1
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        finished.append(count())
        said(f"killed {len(finished)} times, {finished[-1]} blocks finished")
    if not out.exists():
        convert(source, out)
    return finished, ended


Found = dict[str, Any]


def convert_once(at: Path, sizes: Mapping[str, int], turns: int) -> Found:
    """One job; the result stays."""
    out = at / "one"
    shutil.rmtree(out, ignore_errors=True)
    return {"imports": imports(), **_about(convert(_source(at, sizes), out)), "digest": digest(out)}


def show_once(at: Path, sizes: Mapping[str, int], turns: int) -> Found:
    """`attnc show` of what one job wrote."""
    return _read("show", at)


def verify_once(at: Path, sizes: Mapping[str, int], turns: int) -> Found:
    """`attnc verify` of it."""
    return _read("verify", at)


def _read(command: str, at: Path) -> Found:
    done = run(command, at / "one", "--json")
    return {**_about(done), "status": json.loads(done.out)["status"]}


def convert_by_two(at: Path, sizes: Mapping[str, int], turns: int) -> Found:
    """Two jobs."""
    out = at / "two"
    found = {**_about(convert(_source(at, sizes), out, "--jobs", "2")), "digest": digest(out)}
    shutil.rmtree(out)
    return found


def convert_killed(at: Path, sizes: Mapping[str, int], turns: int) -> Found:
    """Killed again and again."""
    out = at / "killed"
    finished, ended = killed(_source(at, sizes), out, 2 * turns, sizes["layers"])
    found = {"finished": finished, "ended": ended, "digest": digest(out)}
    shutil.rmtree(out)
    return found


def _about(run: Run) -> Found:
    said(f"{run.wall:.0f} s, of the processor {run.cpu:.0f} s, {run.memory / 2**30:.2f} GiB")
    return {"wall": run.wall, "cpu": None if math.isnan(run.cpu) else run.cpu, "memory": run.memory}


def _source(at: Path, sizes: Mapping[str, int]) -> Path:
    """The model, generated once."""
    source = at / f"llama-{sizes['hidden']}-{sizes['layers']}"
    if not source.exists():
        temporary = source.with_name(f".{source.name}.{os.getpid()}")
        generate(temporary, sizes)
        temporary.rename(source)
    return source


def rows_of(stored: Mapping[str, Found]) -> list[Row]:
    """The table, with the stages that are stored."""
    rows = [_size(stored["model"])]
    if "one" in stored:
        rows += _once(stored)
    digest = stored.get("one", {}).get("digest")
    if "two" in stored and digest:
        two = stored["two"]
        memory = f"{(two['memory'] - stored['one']['imports']) / 2**30:.2f} GiB"
        rows.append(Row("convert, 2 jobs: memory of a process above the imports", memory, "< 1.5 GB"))
        rows.append(
            Row("convert, 2 jobs: bytes against those of 1 job", _same(two["digest"], digest), "same")
        )
    if "kills" in stored and digest:
        kills = stored["kills"]
        count, ended = len(kills["finished"]), kills["ended"]
        found = f"{_same(kills['digest'], digest)}; blocks finished at the kills: {', '.join(map(str, kills['finished']))}"
        found += f"; {ended} runs ended before their kill" if ended else ""
        rows.append(Row(f"convert, killed {count} times: bytes", found, "same"))
    return rows + (_speed_up(stored["speed-up"]) if "speed-up" in stored else [])


def _size(model: Found) -> Row:
    found = f"{model['bytes'] / 1e9:.2f} GB in {model['shards']} files"
    return Row("numbers stored in bfloat16", found, ">= 4 GB")


def _once(stored: Mapping[str, Found]) -> list[Row]:
    """Memory and time of convert, show and verify."""
    imports, size = stored["one"]["imports"], stored["model"]["bytes"]
    rows = [Row("memory of the imports", f"{imports / 2**30:.2f} GiB")]
    runs = {"convert": "one", "show": "show", "verify": "verify"}
    for name, run in ((name, stored[stage]) for name, stage in runs.items() if stage in stored):
        status = f"; {run['status']}" if name == "verify" else ""
        time = f"{run['cpu']:.0f} s, {run['cpu'] / size * 1e9:.0f} s per GB; wall clock {run['wall']:.0f} s"
        memory = f"{(run['memory'] - imports) / 2**30:.2f} GiB"
        rows.append(Row(f"{name}: memory above the imports", memory, "< 1.5 GB"))
        rows.append(Row(f"{name}: time of the processor", time + status))
    return rows


def _same(found: str, expected: str) -> str:
    return "same" if found == expected else "different"


def _speed_up(small: Found) -> list[Row]:
    paths = [min(small[jobs]) for jobs in ("1", "2")]
    model = f"{small['bytes'] / 1e9:.2f} GB, {small['layers']} layers"
    what = f"{model}: time of the processor on the longest path, 1 and 2 jobs"
    found = f"{paths[0]:.0f} s and {paths[1]:.0f} s"
    return [Row(what, found), Row(f"{model}: speed-up of 2 jobs by this time", f"{paths[0] / paths[1]:.2f}")]


def speed_up(at: Path, sizes: Mapping[str, int], turns: int) -> Found:
    """1 job and 2 jobs, on a model of fewer layers: the time of the processor that the first process takes, and after it the
    worker that takes most. Two free cores need as long; on a busy machine, wall-clock times say nothing."""
    smaller = MIDDLE if sizes is FULL else QUICK
    source, paths = _source(at, smaller), dict[str, list[float]]()
    for _ in range(turns):
        for jobs in ("1", "2"):
            out = at / f"small-{jobs}"
            first, *workers = processor_times("convert", source, "-o", out, "--jobs", jobs)
            paths.setdefault(jobs, []).append(first + max(workers, default=0.0))
            said(f"{jobs} jobs: {first:.0f} s, workers {', '.join(f'{w:.0f} s' for w in workers)}")
            shutil.rmtree(out)
    return {**paths, "bytes": _bytes(source), "layers": smaller["layers"]}


def processor_times(*arguments: object) -> list[float]:
    """Run a command in a session of its own: the seconds of the processor that it and each of its workers took, as last seen."""
    process = subprocess.Popen(
        command(*arguments), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    seen, tick = {process.pid: 0.0}, os.sysconf("SC_CLK_TCK")
    while process.poll() is None:
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ended
                fields = file.read_text().rpartition(")")[2].split()
                if int(fields[3]) == process.pid:
                    seen[int(file.parent.name)] = (int(fields[11]) + int(fields[12])) / tick
        time.sleep(0.2)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return list(seen.values())


STAGES = {
    "one": convert_once, "show": show_once, "verify": verify_once, "two": convert_by_two, "kills": convert_killed,
    "speed-up": speed_up,
}  # fmt: skip


def _bytes(source: Path) -> int:
    return int(json.loads((source / "model.safetensors.index.json").read_text())["metadata"]["total_size"])


def said(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def page(stored: Mapping[str, Any]) -> str:
    made = ", ".join(f"{name} {version}" for name, version in versions("transformers", "joblib").items())
    rows = [(row.what, row.found, row.asked) for row in rows_of(stored)]
    return f"Made with {made}.\n\n{table('what, found, asked', rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--at", type=Path)
    parser.add_argument("--only", choices=STAGES)
    parser.add_argument("--turns", type=int, help="of the speed-up; the command is killed twice as often")
    parser.add_argument("--page", action="store_true", help="write the table from what is stored")
    given = parser.parse_args()
    one_thread()
    where = ROOT / ("out/bench" if given.quick else "benchmarks/results") / "directories.json"
    sizes, turns = (QUICK, given.turns or 1) if given.quick else (FULL, given.turns or 5)
    if given.page:
        put(ROOT / "docs" / "pretrained.md", "directories", page(json.loads(where.read_text())))
        return
    at = Path(tempfile.mkdtemp(dir=given.at)) if given.only is None else given.at
    try:
        for name in STAGES if given.only is None else [given.only]:
            found = STAGES[name](at, sizes, turns)
            size = {"bytes": _bytes(_source(at, sizes)), "shards": sizes["shards"]}
            stored = json.loads(where.read_text()) if where.exists() else {}
            write(where, as_json({**stored, "model": size, name: found}))
    finally:
        if given.only is None:
            shutil.rmtree(at, ignore_errors=True)
    text = page(json.loads(where.read_text()))
    print(text)
    if not given.quick:
        put(ROOT / "docs" / "pretrained.md", "directories", text)


if __name__ == "__main__":
    main()
