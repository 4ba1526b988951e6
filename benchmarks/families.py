"""Convert tiny random models of the families of transformers, and write docs/families.md: what is converted and what is left.

python benchmarks/families.py                 every family, and the page
python benchmarks/families.py bert phi3       some families, printed
python benchmarks/families.py --update bert   some families anew, and the page
python benchmarks/families.py --page          the page again, from what is stored
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
PAGE, STORED = ROOT / "docs" / "families.md", ROOT / "benchmarks" / "results" / "families.json"
Record = dict[str, Any]


def convert_family(name: str, parts: str, dtype: str = "float32") -> Record:
    """What becomes of the model of a family: counts of parts, what is left, or why it is refused. A block whose input no norm
    bounds is converted for inputs as in calibration."""
    import torch
    from family_models import example, tiny

    import attnc
    from attnc.errors import AttncError

    began, kind = time.perf_counter(), getattr(torch, dtype)
    model, inputs = tiny(name, kind), example(name, kind)
    try:
        report, how = attnc.convert_(model, 1e-2, parts=parts, samples=inputs), "every input"
    except AttncError as problem:
        if "there is no norm in front" not in str(problem):
            return {"family": name, "parts": parts, "refused": str(problem)}
        try:
            report = attnc.convert_(model, 1e-2, {"calibration": [inputs]}, parts=parts)
        except AttncError as other:
            return {"family": name, "parts": parts, "refused": str(other)}
        how = "inputs as in calibration"
    subjects = Counter(part.subject for part in report.certificate.children)
    left = Counter(f"{one.reason.partition(',')[0]}" for one in report.skipped)
    return {
        "family": name, "parts": parts, "dtype": dtype, **{k: subjects[k] for k in ("block", "norm", "activation")},
        "activations": sorted({block.facts["activation"] for block in report.blocks}),
        "experts": max([_experts(model, block) for block in report.blocks], default=0),
        "status": str(report.certificate.status), "holds for": how, "left": dict(left),
        "approximation": report.certificate.approximation, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def _experts(model: Any, block: Any) -> int:
    return int(next((r.split()[1] for r in block.facts["remarks"] if " experts share heads" in r), 0))


def row(feed_forward: Record, everything: Record) -> tuple[str, ...]:
    """A line of the table."""
    if "refused" in feed_forward:
        return feed_forward["family"], "no", "", "", _reason(feed_forward["refused"])
    functions = ", ".join(feed_forward["activations"])
    experts = f", {feed_forward['experts']} experts each" if feed_forward["experts"] else ""
    blocks = f"{feed_forward['block']} ({functions}{experts})"
    more = "no: " + _reason(everything["refused"]) if "refused" in everything else _more(everything)
    left = everything if "refused" not in everything else feed_forward
    what = "; ".join(f"{count} × {reason}" for reason, count in left["left"].items())
    if left.get("experts"):
        what = "; ".join(filter(None, (what, "router and its choice, products of experts")))
    what = "norms" if "refused" in everything and not what else what or "no activation, no norm"
    return feed_forward["family"], blocks, feed_forward["holds for"], more, what


def _more(record: Record) -> str:
    extra = f", {record['activation']} other activations" if record["activation"] else ""
    return f"{record['norm']} norms{extra}"


def _reason(refusal: str) -> str:
    """The first reason, without the names of parts."""
    lines = [line.strip(" -") for line in refusal.splitlines()]
    first = lines[1] if len(lines) > 1 else lines[0]
    return first.partition(": ")[2].split("; ")[0].partition(": use ")[0] or first


def page(records: list[Record]) -> str:
    """The table of docs/families.md."""
    from formats import table
    from pages import versions

    by_parts = {p: {r["family"]: r for r in records if r["parts"] == p} for p in ("feed-forward", "all")}
    rows = [row(r, by_parts["all"][name]) for name, r in by_parts["feed-forward"].items()]
    made = ", ".join(f"{name} {version}" for name, version in versions("transformers").items())
    whole = sum("refused" not in r for r in by_parts["all"].values())
    refused = [r for r in rows if r[1] == "no"]
    counts = f"{len(rows) - len(refused)} of {len(rows)} configurations convert their blocks; "
    counts += f'with `parts="all"`, {whole} convert blocks or norms.'
    head = 'family, feed-forward blocks, holds for, parts="all" adds, left as it is, or why not'
    return f"Made with {made}. {counts}\n\n" + table(head.replace(", or why", " or why"), rows) + "\n"


def main() -> int:
    from pages import as_json, one_thread, progress, put, write

    one_thread()
    import torch
    from family_models import FAMILIES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", help="by default all of them, and the page is written")
    parser.add_argument("--page", action="store_true", help="write the page from what is stored")
    parser.add_argument("--update", action="store_true", help="put the given families into what is stored")
    options = parser.parse_args()
    given = options.families
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    kept = options.page or options.update
    records = json.loads(STORED.read_text())["families"] if kept else []
    for name in () if options.page else given or FAMILIES:
        for parts in ("feed-forward", "all"):
            progress(f"{name}, {parts}")
            new = convert_family(name, parts)
            at = [i for i, r in enumerate(records) if (r["family"], r["parts"]) == (name, parts)]
            records = [*records[: at[0]], new, *records[at[0] + 1 :]] if at else [*records, new]
            if given:
                print(json.dumps(new, indent=1))
    if not given or options.update:
        if not options.page:
            write(STORED, as_json({"families": records}))
        put(PAGE, "families", page(records))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
