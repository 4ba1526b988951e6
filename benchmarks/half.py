"""all-MiniLM-L6-v2 in bfloat16 and float16: what is proved, and embeddings against those of the float32 original.

python benchmarks/half.py            writes the table into docs/families.md
python benchmarks/half.py --page     the table again, from what is stored

A case that is stored with as many sentences is not measured again; with --seconds, no case begins after that time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples"), str(ROOT)]
PAGE, STORED = ROOT / "docs" / "families.md", ROOT / "benchmarks" / "results" / "half.json"


def measure(dtype: str, count: int, parts: str) -> dict[str, Any]:
    """One conversion: its approximation, what `verify` says, and cosines with the float32 original before and after."""
    import torch

    import attnc

    minilm = importlib.import_module("minilm")
    model, tokenizer = minilm.read(torch.float32)
    texts = minilm.sentences(count, tokenizer)
    reference = minilm.embed(model, tokenizer, texts)
    model = model.to(getattr(torch, dtype))
    before = minilm.embed(model, tokenizer, texts)
    report = attnc.convert_(model, 1e-4, parts=parts)
    after = minilm.embed(model, tokenizer, texts)
    verdict = attnc.verify(model)
    cosine = {
        name: (reference * found).sum(1) for name, found in (("original", before), ("converted", after))
    }
    return {
        "dtype": dtype, "parts": parts, "sentences": len(texts), "blocks": len(report.blocks), "norms": len(report.norms),
        "approximation": report.certificate.approximation, "status": str(report.certificate.status),
        "verify": str(verdict.status), "nan": int(after.isnan().sum()),
        **{f"{name}, least": float(found.min()) for name, found in cosine.items()},
        **{f"{name}, mean": float(found.mean()) for name, found in cosine.items()},
    }  # fmt: skip


def main() -> int:
    from formats import rounded_up, table
    from pages import as_json, one_thread, put, write

    one_thread()
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--page", action="store_true", help="write the table from what is stored")
    given = parser.parse_args()
    torch.set_num_threads(1)
    records: list[dict[str, Any]] = json.loads(STORED.read_text())["half"] if STORED.exists() else []
    cases = [(dtype, parts) for dtype in ("bfloat16", "float16") for parts in ("feed-forward", "all")]
    done, began = {(r["dtype"], r["parts"], r.get("sentences")) for r in records}, time.perf_counter()
    for dtype, parts in () if given.page else cases:
        if (dtype, parts, given.sentences) in done or time.perf_counter() - began > given.seconds:
            continue
        new = measure(dtype, given.sentences, parts)
        records = [r for r in records if (r["dtype"], r["parts"]) != (dtype, parts)] + [new]
        write(STORED, as_json({"half": records}))
    rows = [
        (
            r["dtype"], r["parts"], r["sentences"], f"{r['blocks']} blocks, {r['norms']} norms",
            rounded_up(r["approximation"]), r["verify"],
            *(f"{r[f'{who}, {what}']:.6f}" for who in ("original", "converted") for what in ("least", "mean")),
        )
        for r in records
    ]  # fmt: skip
    head = "dtype, parts, sentences, converted, approximation, verify (approximation)"
    head += ", original: least cosine, mean, converted: least cosine, mean"
    put(PAGE, "half", table(head, rows) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
