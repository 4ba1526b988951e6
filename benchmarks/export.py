"""ONNX files against torch: differences and times of heads, networks and all-MiniLM-L6-v2, original and converted.

python benchmarks/export.py                 JSON and the tables of docs/export.md
python benchmarks/export.py --only softmax  some rows anew, by parts of their names; the others are kept
python benchmarks/export.py --only small    heads and networks anew
python benchmarks/export.py --quick         a smoke test; writes to out/ only
python benchmarks/export.py --render        tables from the stored numbers
"""

from __future__ import annotations

import argparse
import copy
import json
import operator
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

FUNCTIONS = (
    "tanh", "sigmoid", "gelu", "gelu on [-4, 4]", "gelu, gated", "silu", "silu, gated", "mish", "softplus",
    "elu", "elu, gated", "relu", "relu, gated", "sin",
)  # fmt: skip
EPS = {"float32": 1e-4, "float64": 1e-12}
LARGER = dict.fromkeys(("elu", "relu", "sin", "gelu, gated", "elu, gated", "relu, gated"), 1e-8)  # in float64
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
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    results = (ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results") / "export.json"
    if not options.render:
        run(results, options.quick, options.only)
    stored = json.loads(results.read_text())
    if options.quick:
        print(small_table(stored), model_table(stored), sep="\n")
        return
    put(ROOT / "docs" / "export.md", "small", small_table(stored))
    put(ROOT / "docs" / "export.md", "models", model_table(stored))


def run(results: Path, quick: bool, only: str) -> None:
    """Every row is stored as soon as it is measured."""
    stored: dict[str, Any] = json.loads(results.read_text()) if results.exists() and only else {}
    stored = {"small": [], "models": [], **stored}
    stored["versions"] = versions("onnxruntime", "transformers")

    def keep(section: str, record: dict[str, Any], order: Sequence[tuple[Any, ...]]) -> None:
        key = operator.itemgetter("name", "dtype")
        others = [one for one in stored[section] if key(one) != key(record) and key(one) in order]
        stored[section] = sorted([*others, record], key=lambda one: order.index(key(one)))
        write(results, as_json(stored))

    functions = ("tanh", "gelu") if quick else FUNCTIONS
    cases = [(name, dtype) for name in (*functions, "network") for dtype in EPS]
    models = [(name, "float32") for name in ("original", "converted, closed-form", "converted, softmax")]
    with tempfile.TemporaryDirectory() as directory:
        for name, dtype in cases:
            if only in f"small {name} {dtype}":
                keep("small", small_case(name, dtype, Path(directory)), cases)
        for name, _ in models:
            if only in f"MiniLM {name}":
                texts = (6, TEXTS_IN_A_BATCH[:2]) if quick else (SENTENCES, TEXTS_IN_A_BATCH)
                keep("models", minilm(name, Path(directory), *texts), models)
    progress("")


def small_case(name: str, dtype: str, where: Path) -> dict[str, Any]:
    """A head, or a network of 16 tanh neurons: the largest difference over the batches, how far torch and onnxruntime are from
    the same numbers in extended precision, and the time of the largest batch."""
    import torch

    import attnc

    progress(f"{name}, {dtype}")
    of, network = getattr(torch, dtype), name == "network"
    eps = LARGER.get(name, EPS[dtype]) if dtype == "float64" else EPS[dtype]
    shape, reach = ((4,), 1.0) if network else ((), 4.0 if "[-4, 4]" in name else 8.0)
    torch.manual_seed(0)
    if network:
        layers = torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        source = torch.nn.Sequential(*layers).to(of).eval()
        made: Any = attnc.compile(source, domain=attnc.Box(-1, 1, shape=(4,)), eps=eps)
    else:
        function, _, design = name.removesuffix(" on [-4, 4]").partition(", ")
        made = attnc.head(function, domain=(-reach, reach), eps=eps, dtype=of, design=design or "auto")
    attnc.export(made, where / "case.onnx")
    session = session_of(where / "case.onnx")
    differences, sizes, times, apart = [], [], {}, {}
    for n in BATCHES:
        x = (torch.rand(n, *shape, dtype=of) * 2 - 1) * reach
        y, found = made(x).numpy(), session({session.names[0]: x.numpy()})[0]  # type: ignore[attr-defined]
        differences.append(float(abs(found - y).max()))
        sizes.append(float(abs(y).max()))
        times = {
            "torch": timed(lambda x=x: made(x)),
            "onnxruntime": timed(lambda x=x: session({session.names[0]: x.numpy()})),  # type: ignore[attr-defined]
        }
        if not network:
            exact = extended(made.numbers(), x.numpy())
            apart = {"torch": float(abs(y - exact).max()), "onnxruntime": float(abs(found - exact).max())}
    about = {} if network else {"anchors": made.key.shape[1], "rounding": made.certificate.rounding}
    return {
        "name": name, "dtype": dtype, "eps": eps, "differences": differences, "size": max(sizes), "seconds": times,
        "exact": apart, **about,
    }  # fmt: skip


def extended(numbers: Any, s: Any) -> Any:
    """A head in extended precision, 64 bits of mantissa."""
    import numpy as np

    s, total = s.astype(np.longdouble), np.zeros(len(s), np.longdouble)
    for query, key, value, out in zip(numbers.query, numbers.key, numbers.value, numbers.output, strict=True):
        q, k, v = (part.astype(np.longdouble) for part in (query, key, value))
        scores = (q[0] * s + q[1])[:, None] * k[:, 0] + k[:, 1]
        weights = np.exp(scores - scores.max(1, keepdims=True))
        total += out * (weights * (v[:, 0] * s[:, None] + v[:, 1])).sum(1) / weights.sum(1)
    return total


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
    """The CPU seconds of the fastest of some runs."""
    import torch

    best = float("inf")
    with torch.inference_mode():
        for _ in range(least):
            began = time.process_time()
            work()
            best = min(best, time.process_time() - began)
    return best


def minilm(name: str, where: Path, count: int, batches: tuple[int, ...]) -> dict[str, Any]:
    """The original or a converted model, torch and ONNX, on the same sentences."""
    import torch

    import attnc

    sys.path.insert(0, str(ROOT / "examples"))
    from minilm import read, sentences

    progress(f"MiniLM, {name}")
    model, tokenizer = read(torch.float32)
    texts = sorted(sentences(count, tokenizer), key=len)
    example = dict(tokenizer(["A tired nurse sold the bridge.", "Nobody"], padding=True, return_tensors="pt"))
    path, about = where / "model.onnx", {}
    if name == "original":
        export_original(model, example, path)
    else:
        engine = name.removeprefix("converted, ")
        attnc.convert_(model, approximation=1e-5, config={"engine": engine}, parts="all")
        done = attnc.export(model, path, engine=engine, inputs=example)
        about = {"nonlinear": [op for op in done.operations if op in NONLINEAR]}
    return {
        "name": name,
        "dtype": "float32",
        **compare(name, model, tokenizer, path, texts, batches),
        **about,
    }


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
    """The largest differences between onnxruntime, torch, and torch in float64 with the same numbers, in the last hidden state of
    every token that is not padding and in the embeddings; and the time of all texts, in batches of 7."""
    import torch

    session, times = session_of(path), {"torch": 0.0, "onnxruntime": 0.0}
    reference, worst = copy.deepcopy(model).double(), {}
    for size in batches:
        for at in range(0, len(texts), size):
            if (size == 1 and at % 10) or (size == 64 and at):
                continue  # every tenth text alone; the 64 shortest together
            cut = {"padding": True, "truncation": True, "max_length": LONGEST}
            given = dict(tokenizer(texts[at : at + size], return_tensors="pt", **cut))
            arrays = {key: given[key].numpy() for key in session.names}  # type: ignore[attr-defined]
            began = time.process_time()
            with torch.inference_mode():
                y = model(**given).last_hidden_state
            middle = time.process_time()
            z = torch.from_numpy(session(arrays)[0])
            if size == 7:
                times["torch"] += middle - began
                times["onnxruntime"] += time.process_time() - middle
            with torch.inference_mode():
                exact = reference(**given).last_hidden_state
            mask = given["attention_mask"]
            for key, a, b in (("difference", y, z), ("torch", y, exact), ("onnxruntime", z, exact)):
                pairs = [(a[mask == 1], b[mask == 1]), (embeddings(a, mask), embeddings(b, mask))]
                apart = [float((one.double() - other.double()).abs().max()) for one, other in pairs]
                worst[key] = [max(pair) for pair in zip(apart, worst.get(key, apart), strict=True)]
            progress(f"MiniLM, {name}, batches of {size}: {at}")
    return {"sentences": len(texts), "batches": list(batches), **worst, "seconds": times}


def embeddings(hidden: Any, mask: Any) -> Any:
    """The mean over the tokens, scaled to length 1, in the dtype of the model: what users of MiniLM compare."""
    import torch

    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def small_table(stored: dict[str, Any]) -> str:
    rows = [
        "| | dtype | eps | largest output | difference, batch 1 | 7 | 200,000 | relative | torch to exact | onnxruntime to exact "
        "| torch, 200,000 | onnxruntime |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in stored["small"]:
        gaps = " | ".join(
            f"{gap:.1e}" for gap in (*case["differences"], max(case["differences"]) / case["size"])
        )
        exact = " | ".join(
            f"{case['exact'][key]:.1e}" if case["exact"] else "" for key in ("torch", "onnxruntime")
        )
        times = " | ".join(f"{1e3 * case['seconds'][key]:.0f} ms" for key in ("torch", "onnxruntime"))
        title = case["name"] if case["name"] == "network" else f"head of {case['name']}"
        known = f"{title} | {case['dtype']} | {case['eps']:.0e} | {case['size']:.2g}"
        rows.append(f"| {known} | {gaps} | {exact} | {times} |")
    return "\n".join(rows) + "\n"


def model_table(stored: dict[str, Any]) -> str:
    rows = [
        "| model | | onnxruntime to torch | torch to float64 | onnxruntime to float64 | functions in the graph | torch "
        "| onnxruntime |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in stored["models"]:
        times = " | ".join(f"{case['seconds'][key]:.1f} s" for key in ("torch", "onnxruntime"))
        for i, what in enumerate(("last hidden state", "embeddings")):
            gaps = " | ".join(f"{case[key][i]:.1e}" for key in ("difference", "torch", "onnxruntime"))
            rest = f"{', '.join(case.get('nonlinear', ['not read']))} | {times}" if i == 0 else " | |"
            rows.append(f"| {case['name'] if i == 0 else ''} | {what} | {gaps} | {rest} |")
    first = stored["models"][0]
    said = f"{first['sentences']} sentences of up to {LONGEST} tokens in batches of 7, every tenth alone, and the 64 shortest in "
    said += "one batch; times are CPU times of the batches of 7"
    return "\n".join(rows) + f"\n\n{said}, on one thread.\n"


if __name__ == "__main__":
    main()
