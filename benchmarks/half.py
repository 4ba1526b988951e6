"""all-MiniLM-L6-v2 in bfloat16 and float16: what is proved, and embeddings against those of the float32 original.

python benchmarks/half.py            writes the table into docs/families.md
"""

from __future__ import annotations

import argparse
import importlib
import sys
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
    parser.add_argument("--sentences", type=int, default=200)
    count = parser.parse_args().sentences
    torch.set_num_threads(1)
    cases = [(dtype, parts) for dtype in ("bfloat16", "float16") for parts in ("feed-forward", "all")]
    records = [measure(dtype, count, parts) for dtype, parts in cases]
    rows = [
        (
            r["dtype"], r["parts"], f"{r['blocks']} blocks, {r['norms']} norms", rounded_up(r["approximation"]), r["verify"],
            *(f"{r[f'{who}, {what}']:.6f}" for who in ("original", "converted") for what in ("least", "mean")),
        )
        for r in records
    ]  # fmt: skip
    head = "dtype, parts, converted, approximation, verify (approximation)"
    head += ", original: least cosine, mean, converted: least cosine, mean"
    write(STORED, as_json({"half": records}))
    put(PAGE, "half", table(head, rows) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
