"""Certificates in Coq: every built-in function, other designs, and files that were tampered with.

python benchmarks/coq.py                  JSON and the tables of docs/coq.md; about an hour of CPU time at most
python benchmarks/coq.py --only gelu      some rows anew, by parts of their names; the others are kept
python benchmarks/coq.py --quick          a smoke test; writes to out/ only
python benchmarks/coq.py --render         tables from the stored numbers
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from formats import table
from pages import ROOT, as_json, one_thread, progress, put, versions, write

DOMAINS = {  # [-8, 8] where nothing else is said
    "clip(-1,1)": (-4, 4), "exp": (-2, 2), "gelu_10": (-8, 11), "hardtanh": (-4, 4), "pinball": (-2, 2), "relu2": (-4, 4),
    "soft_threshold": (-4, 4), "softplus": (-6, 6), "square": (-4, 4), "tanh": (-4, 4),
}  # fmt: skip
DESIGNS: tuple[tuple[str, tuple[float, float], dict[str, Any]], ...] = (
    ("relu", (-8, 8), {"design": "gated", "eps": 1e-6}),
    ("clip(-1,1)", (-4, 4), {"design": "gated", "eps": 1e-6}),
    ("sin", (-8, 8), {"design": "smooth", "heads": 4, "anchors": 6}),
    ("silu", (-8, 8), {"design": "smooth", "anchors": 23}),
    ("tanh", (-8, 8), {"design": "nearest", "anchors": 64}),
    ("relu", (-8, 8), {"design": "graded", "anchors": 64}),
    ("sin", (-30, 30), {"design": "smooth", "anchors": 80}),
    ("gelu", (-8, 8), {"eps": 1e-4, "dtype": "float32"}),
)
EPS = 1e-6
MEMORY = 9 << 30  # bytes that coqc may use
TIMEOUT = 1800.0


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    results = (ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results") / "coq.json"
    if not options.render:
        run(results, options.quick, options.only)
    stored = json.loads(results.read_text())
    if options.quick:
        print(functions_table(stored), designs_table(stored), tampered_table(stored), sep="\n")
        return
    put(ROOT / "docs" / "coq.md", "functions", functions_table(stored))
    put(ROOT / "docs" / "coq.md", "designs", designs_table(stored))
    put(ROOT / "docs" / "coq.md", "tampered", tampered_table(stored))


def cases(quick: bool) -> Iterator[tuple[str, str, tuple[float, float], dict[str, Any]]]:
    """Section, function, domain, arguments of `attnc.head`."""
    from attnc import functions

    names = ["clip(-1,1)" if name == "clip" else name for name in functions.names()]
    for name in ("relu",) if quick else names:
        yield "functions", name, DOMAINS.get(name, (-8, 8)), {"eps": EPS}
    for name, domain, arguments in DESIGNS[:1] if quick else DESIGNS:
        yield "designs", name, domain, arguments


def run(results: Path, quick: bool, only: str) -> None:
    """Every row is stored as soon as it is known."""
    from attnc.exporters.coq.checking import LIBRARIES, library, run_coqc

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    stored: dict[str, Any] = json.loads(results.read_text()) if results.exists() and only else {}
    stored = {"functions": [], "designs": [], "tampered": [], **stored}
    stored["versions"] = versions() | {"coqc": coq_version()}

    def keep(section: str, record: dict[str, Any]) -> None:
        others = [one for one in stored[section] if one["name"] != record["name"]]
        stored[section] = [*others, record]
        write(results, as_json(stored))

    with tempfile.TemporaryDirectory() as name:
        work, proved = Path(name), list[str]()
        libraries = {Path(file).stem: library(file) for file in LIBRARIES}
        stored["library"] = run_coqc(libraries, (), native=True, timeout=TIMEOUT, work=work).seconds
        for section, function, domain, arguments in cases(quick):
            if only in f"{section} {function}":
                stem = f"head_{len(proved)}"
                record = case(section, function, domain, arguments, stem, work)
                proved += [f"{stem}.approximation"] if record["status"] == "proved" else []
                keep(section, record)
        for record in tampered(work, 2 if quick else 20) if only in "tampered" else ():
            keep("tampered", record)
        if proved:
            axioms = run_coqc({}, tuple(proved), native=True, timeout=TIMEOUT, work=work)
            if not axioms:
                raise SystemExit(f"the axioms of these files are not those that docs/coq.md lists: {axioms}")
            stored["axioms"] = list(axioms.axioms)
            write(results, as_json(stored))
    progress("")


def coq_version() -> str:
    import subprocess

    said = subprocess.run(["coqc", "--version"], capture_output=True, text=True).stdout
    return said.split("version ")[1].split()[0]


def case(
    section: str, function: str, domain: tuple[float, float], arguments: dict[str, Any], stem: str, work: Path
) -> dict[str, Any]:
    """One head: what attnc generates, and what coqc says."""
    import torch

    import attnc
    from attnc.errors import AttncError, UnsupportedError
    from attnc.exporters.coq.checking import run_coqc
    from attnc.exporters.coq.writer import claim_of, text_of

    shown = ", ".join(f"{key}={value}" for key, value in arguments.items())
    name = function if section == "functions" else f"{function}: {shown}"
    progress(f"{section}: {name}")
    dtype = getattr(torch, arguments.get("dtype", "float64"))
    record: dict[str, Any] = {"name": name, "function": function, "domain": domain, "arguments": shown}
    try:
        head = attnc.head(function, domain=domain, **{**arguments, "dtype": dtype})
    except AttncError as problem:
        return record | {"status": "no head", "reason": str(problem)}
    numbers = head.numbers()
    record |= {
        "design": head.design, "heads": numbers.heads, "anchors": numbers.anchors_per_head,
        "eps": head.certificate.approximation,
    }  # fmt: skip
    began = time.process_time()
    try:
        claim = claim_of(head, True)
        text = text_of(head, claim, stem)
    except UnsupportedError as problem:
        return record | {"status": "refused", "reason": str(problem)}
    record |= {"generated": time.process_time() - began, "stretches": text.count("Lemma on_")}
    found = run_coqc({stem: text}, (), native=True, timeout=TIMEOUT, work=work)
    return record | {"status": found.status, "reason": found.reason, "seconds": found.seconds}


def tampered(work: Path, count: int) -> Iterator[dict[str, Any]]:
    """Files in which a number, eps or the function was changed so that the theorem is false: coqc must reject each."""
    import torch
    from tampering import tamperings

    import attnc
    from attnc.exporters.coq.checking import run_coqc
    from attnc.exporters.coq.writer import claim_of, text_of

    head = attnc.head("exp", domain=(-2, 2), eps=EPS, dtype=torch.float64)
    text = text_of(head, claim_of(head, True), "head")
    for what, changed in chosen(list(tamperings(text)), count):
        progress(f"tampered: {what}")
        found = run_coqc({"tampered": changed}, (), native=True, timeout=TIMEOUT, work=work)
        yield {"name": what, "status": found.status, "seconds": found.seconds, "reason": found.reason}


def chosen(every: list[Any], count: int) -> list[Any]:
    """So many of them, evenly spread over the kinds of change."""
    return [every[i * len(every) // count] for i in range(count)]


def functions_table(stored: dict[str, Any]) -> str:
    """The table of all built-in functions, and its totals."""
    records = sorted(stored["functions"], key=lambda r: r["name"])
    by = {status: [r for r in records if r["status"] == status] for status in {r["status"] for r in records}}
    seconds = [r["seconds"] for r in by.get("proved", [])]
    totals = ", ".join(f"{len(by.get(status, []))} {status}" for status in ("proved", "refused", "failed"))
    median = f"{statistics.median(seconds):.1f}" if seconds else "–"
    rows = [_row(r) for r in records]
    times = f"Median {median} CPU s, largest {max(seconds, default=0):.1f}."
    about = f"Of {len(records)} built-in functions (float64, eps 1e-6): {totals}. {times}"
    listed = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    which = "Seconds are CPU seconds of `coqc` for the file, without the library."
    made = f"Made by `python benchmarks/coq.py` with {listed}. {which}"
    head = "function, on, anchors, eps = approximation term, stretches, coqc, s"
    return f"{about}\n\n{made}\n\n{table(head, rows)}"


def designs_table(stored: dict[str, Any]) -> str:
    rows = [(r["name"], *_row(r)[1:]) for r in stored["designs"]]
    return table("head, on, anchors, eps = approximation term, stretches, coqc, s", rows)


def tampered_table(stored: dict[str, Any]) -> str:
    records = stored["tampered"]
    rejected = sum(r["status"] == "failed" for r in records)
    rows = [(r["name"], "rejected" if r["status"] == "failed" else r["status"]) for r in records]
    return f"{len(records)} tampered files: {rejected} rejected.\n\n{table('what was changed, coqc', rows)}"


def _row(r: dict[str, Any]) -> tuple[Any, ...]:
    on = f"[{r['domain'][0]:g}, {r['domain'][1]:g}]"
    if r["status"] == "no head":
        return r["name"], on, "", "", "", "no head", ""
    size = f"{r['heads']} × {r['anchors']}" if r["heads"] > 1 else r["anchors"]
    seconds = f"{r['seconds']:.1f}" if "seconds" in r else ""
    return r["name"], on, size, f"{r['eps']:.4g}", r.get("stretches", ""), r["status"], seconds


if __name__ == "__main__":
    main()
