"""ONNX files against torch: differences and times of heads, networks and all-MiniLM-L6-v2, original and converted.

python benchmarks/export.py             JSON and the tables of docs/export.md
python benchmarks/export.py --quick     a smoke test; writes to out/ only
python benchmarks/export.py --render    tables from the stored numbers
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

BATCHES = (1, 7, 200_000)
LONGEST = 64  # tokens: a graph has no chunks, and 64 texts of up to 128 tokens reached 14 GB
SENTENCES, TEXTS_IN_A_BATCH = 100, (1, 7, 64)


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    results = (ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results") / "export.json"
    if not options.render:
        write(results, as_json(run(options.quick)))
    stored = json.loads(results.read_text())
    if options.quick:
        print(small_table(stored), model_table(stored), sep="\n")
        return
    put(ROOT / "docs" / "export.md", "small", small_table(stored))
    put(ROOT / "docs" / "export.md", "models", model_table(stored))


def run(quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        small = [
            small_case(name, dtype, where)
            for name in ("tanh", "gelu", "network")
            for dtype in ("float32", "float64")
        ]
        models = minilm(where, 6 if quick else SENTENCES, TEXTS_IN_A_BATCH[: 2 if quick else None])
    progress("")
    return {"small": small, "models": models, "versions": versions("onnxruntime", "transformers")}


def small_case(name: str, dtype: str, where: Path) -> dict[str, Any]:
    """A head, or a network of 16 tanh neurons: the largest difference over the batches, and the time of the largest batch."""
    import torch

    import attnc

    progress(f"{name}, {dtype}")
    of, shape, reach = (
        getattr(torch, dtype),
        (4,) if name == "network" else (),
        1.0 if name == "network" else 8.0,
    )
    torch.manual_seed(0)
    eps = {"float32": 1e-4, "float64": 1e-8}[dtype]
    if name == "network":
        source = (
            torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).to(of).eval()
        )
        made: Any = attnc.compile(source, domain=attnc.Box(-1, 1, shape=(4,)), eps=eps)
    else:
        made = attnc.head(name, domain=(-8, 8), eps=eps, dtype=of)
    attnc.export(made, where / "case.onnx")
    session = session_of(where / "case.onnx")
    differences, sizes, times = [], [], {}
    for n in BATCHES:
        x = (torch.rand(n, *shape, dtype=of) * 2 - 1) * reach
        y = made(x)
        found = session({session.names[0]: x.numpy()})[0]  # type: ignore[attr-defined]
        differences.append(float(abs(found - y.numpy()).max()))
        sizes.append(float(y.abs().max()))
        times = {
            "torch": timed(lambda x=x: made(x)),
            "onnxruntime": timed(lambda x=x: session({session.names[0]: x.numpy()})),  # type: ignore[attr-defined]
        }
    return {"name": name, "dtype": dtype, "differences": differences, "size": max(sizes), "seconds": times}


def session_of(path: Path) -> Callable[[dict[str, Any]], Any]:
    """The file in onnxruntime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_cpu_mem_arena = 1, False
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def call(given: dict[str, Any]) -> Any:
        return session.run(None, given)

    call.names = [value.name for value in session.get_inputs()]  # type: ignore[attr-defined]
    return call


def timed(work: Callable[[], Any], least: int = 3) -> float:
    """The fastest of some runs."""
    import torch

    best = float("inf")
    with torch.inference_mode():
        for _ in range(least):
            began = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - began)
    return best


def minilm(where: Path, count: int, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """The original and the converted model, torch and ONNX, on the same sentences."""
    import torch

    import attnc

    sys.path.insert(0, str(ROOT / "examples"))
    from minilm import read, sentences

    model, tokenizer = read(torch.float32)
    texts = sorted(sentences(count, tokenizer), key=len)
    found = []
    example = dict(tokenizer(["A tired nurse sold the bridge.", "Nobody"], padding=True, return_tensors="pt"))
    progress("MiniLM, original")
    export_original(model, example, where / "original.onnx")
    found.append(compare("original", model, tokenizer, where / "original.onnx", texts, batches))
    for engine in ("closed-form", "softmax"):
        progress(f"MiniLM, {engine}")
        made, _ = read(torch.float32)
        attnc.convert_(made, approximation=1e-5, config={"engine": engine}, parts="all")
        began = time.perf_counter()
        done = attnc.export(made, where / "made.onnx", engine=engine, inputs=example)
        record = compare(f"converted, {engine}", made, tokenizer, where / "made.onnx", texts, batches)
        nonlinear = [name for name in done.operations if name in NONLINEAR]
        size = (where / "made.onnx").stat().st_size
        found.append(
            {**record, "export_seconds": time.perf_counter() - began, "nonlinear": nonlinear, "bytes": size}
        )
    return found


NONLINEAR = (
    "Erf",
    "Exp",
    "Gelu",
    "LayerNormalization",
    "Pow",
    "Reciprocal",
    "Sigmoid",
    "Softmax",
    "Sqrt",
    "Tanh",
)


def export_original(model: Any, example: dict[str, Any], path: Path) -> None:
    import torch
    from torch.export import Dim

    shapes = {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in example}
    program = torch.onnx.export(
        model, (), kwargs=example, dynamo=True, dynamic_shapes=shapes, verbose=False, external_data=False
    )
    program.save(path)  # type: ignore[union-attr]


def compare(
    name: str, model: Any, tokenizer: Any, path: Path, texts: list[str], batches: tuple[int, ...]
) -> dict[str, Any]:
    """|onnx - torch| in the last hidden state of every token that is not padding, and in the embeddings; and the time of all
    texts, in batches of 7."""
    import torch

    session, worst, embedded = session_of(path), 0.0, 0.0
    times = {"torch": 0.0, "onnxruntime": 0.0}
    for size in batches:
        for at in range(0, len(texts), size):
            if (size == 1 and at % 10) or (size == 64 and at):
                continue  # every tenth text alone; the 64 shortest together
            given = dict(
                tokenizer(
                    texts[at : at + size],
                    padding=True,
                    truncation=True,
                    max_length=LONGEST,
                    return_tensors="pt",
                )
            )
            arrays = {key: given[key].numpy() for key in session.names}  # type: ignore[attr-defined]
            began = time.perf_counter()
            with torch.inference_mode():
                y = model(**given).last_hidden_state
            middle = time.perf_counter()
            z = session(arrays)[0]
            if size == 7:
                times["torch"] += middle - began
                times["onnxruntime"] += time.perf_counter() - middle
            mask = given["attention_mask"]
            worst = max(worst, float(abs(z - y.numpy())[mask.numpy() == 1].max()))
            pair = (embeddings(hidden, mask) for hidden in (torch.from_numpy(z), y))
            embedded = max(embedded, float(next(pair).sub(next(pair)).abs().max()))
            progress(f"MiniLM, {name}, batches of {size}: {at}")
    return {
        "name": name,
        "sentences": len(texts),
        "batches": list(batches),
        "difference": worst,
        "embeddings": embedded,
        "seconds": times,
    }


def embeddings(hidden: Any, mask: Any) -> Any:
    """The mean over the tokens, scaled to length 1, in the dtype of the model: what users of MiniLM compare."""
    import torch

    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def small_table(stored: dict[str, Any]) -> str:
    rows = [
        "| | dtype | largest output | difference, batch 1 | 7 | 200,000 | torch, 200,000 | onnxruntime |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in stored["small"]:
        gaps = " | ".join(f"{gap:.1e}" for gap in case["differences"])
        times = " | ".join(f"{1e3 * case['seconds'][key]:.0f} ms" for key in ("torch", "onnxruntime"))
        title = case["name"] if case["name"] == "network" else f"head of {case['name']}"
        rows.append(f"| {title} | {case['dtype']} | {case['size']:.2g} | {gaps} | {times} |")
    return "\n".join(rows) + "\n"


def model_table(stored: dict[str, Any]) -> str:
    rows = [
        "| model | last hidden state | embeddings | functions in the graph | torch | onnxruntime |",
        "|---|---|---|---|---|---|",
    ]
    for case in stored["models"]:
        times = " | ".join(f"{case['seconds'][key]:.1f} s" for key in ("torch", "onnxruntime"))
        gaps = " | ".join(f"{case[key]:.1e}" if key in case else "" for key in ("difference", "embeddings"))
        rows.append(
            f"| {case['name']} | {gaps} | {', '.join(case.get('nonlinear', ['not read']))} | {times} |"
        )
    first = stored["models"][0]
    said = f"{first['sentences']} sentences of up to {LONGEST} tokens in batches of 7, every tenth alone, and the 64 shortest in "
    said += "one batch; times are those of the batches of 7"
    return "\n".join(rows) + f"\n\n{said}, on one thread.\n"


if __name__ == "__main__":
    main()
