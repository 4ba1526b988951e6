"""attnc's prover against Sollya's certified supnorm: the same heads, bounds and CPU time.

python benchmarks/sollya.py            JSON and the table of docs/arithmetic.md
python benchmarks/sollya.py --quick    a smoke test; writes to out/ only
python benchmarks/sollya.py --render   the table from the stored numbers

Sollya's command `supnorm(p, f, I, absolute, q)` encloses sup |p - f| on I, with a ratio of at most 1 + q between the ends. It
gets p = 0 and f = head - function, which must be analytic: intervals are cut at the kinks, and where anchors take over or fade.
Pieces wider than 1 are halved, since it does not finish some of the heads otherwise.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from formats import table
from pages import ROOT, as_json, one_thread, progress, put, versions, write

EPS = 1e-6
QUALITY = 2.0**-4
TIMEOUT = 300.0
CASES: dict[str, tuple[tuple[float, float], tuple[str, ...]]] = {  # the function in Sollya, by branch
    "exp": ((-2, 2), ("exp(x)",)),
    "sigmoid": ((-8, 8), ("1/(1+exp(-x))",)),
    "tanh": ((-4, 4), ("tanh(x)",)),
    "relu": ((-8, 8), ("0", "x")),
    "clip(-1,1)": ((-4, 4), ("-1", "x", "1")),
    "softplus": ((-6, 6), ("log(1+exp(x))",)),
    "silu": ((-8, 8), ("x/(1+exp(-x))",)),
    "sin": ((-8, 8), ("sin(x)",)),
    "gelu": ((-8, 8), ("x*(1+erf(x/sqrt(2)))/2",)),
}


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    results = (ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results") / "sollya.json"
    if not options.render:
        run(results, options.quick)
    stored = json.loads(results.read_text())
    if options.quick:
        print(as_table(stored))
        return
    put(ROOT / "docs" / "arithmetic.md", "sollya", as_table(stored))


def run(results: Path, quick: bool) -> None:
    """Every row is stored as soon as it is measured."""
    if shutil.which("sollya") is None:
        raise SystemExit("sollya is not installed: apt-get install sollya")
    stored: dict[str, Any] = {"rows": [], "versions": versions() | {"sollya": sollya_version()}}
    for name in ("exp",) if quick else CASES:
        progress(name)
        stored["rows"].append(case(name))
        write(results, as_json(stored))
    progress("")


def sollya_version() -> str:
    said = subprocess.run(["sollya", "--version"], capture_output=True, text=True).stdout
    return said.split("sollya ")[1].split()[0]


def case(name: str) -> dict[str, Any]:
    """One head: the bound and the CPU seconds of both."""
    import torch

    import attnc
    from attnc import functions
    from attnc.prove.supnorm import supnorm

    domain, branches = CASES[name]
    head = attnc.head(name, domain=domain, eps=EPS, dtype=torch.float64)
    numbers, f = head.numbers(), functions.get(name)
    began = time.process_time()
    ours = supnorm(numbers, f, head.certificate.interval, quality=1 + QUALITY, grain=0.0)
    spent = time.process_time() - began
    script = sollya_script(numbers, f, head.certificate, branches)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(["sollya"], input=script, capture_output=True, text=True, timeout=TIMEOUT)
        found = [
            tuple(map(float, line.strip("[]").split(";")))
            for line in done.stdout.split()
            if line.startswith("[")
        ]
        complete = len(found) == script.count("supnorm")
    except subprocess.TimeoutExpired:
        found, complete = [], False
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "name": name, "domain": domain, "anchors": numbers.anchors_per_head, "approximation": head.certificate.approximation,
        "ours": ours.approximation, "seconds": spent, "pieces": script.count("supnorm"),
        "sollya": [max(lo for lo, _ in found), max(hi for _, hi in found)] if complete else None,
        "sollya_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }  # fmt: skip


def sollya_script(numbers: Any, f: Any, certificate: Any, branches: tuple[str, ...]) -> str:
    """One supnorm for each piece; the scores are relative to those of the piece's reference, exactly."""
    from attnc.exporters.coq.stretches import Planner, lines_of

    (lines,) = lines_of(numbers)
    output = Fraction(float(numbers.output[0]))
    domain = certificate.interval
    rows = ["prec=165!;", "display=decimal!;"]
    for stretch in Planner(numbers, f, certificate.approximation).stretches(domain.lo, domain.hi):
        r = lines[stretch.parts[0].reference]
        terms = [
            (
                exact(output * line.value),
                f"exp({exact(line.slope - r.slope)}*x+{exact(line.offset - r.offset)})",
            )
            for line in lines
        ]
        above, below = "+".join(f"{v}*{e}" for v, e in terms), "+".join(e for _, e in terms)
        for lo, hi in cut(stretch.lo, stretch.hi):
            difference = f"({above})/({below})-({branches[stretch.branch]})"
            rows.append(
                f"supnorm(0,{difference},[{exact(Fraction(lo))};{exact(Fraction(hi))}],absolute,2^(-4));"
            )
    return "\n".join(rows) + "\n"


def cut(lo: float, hi: float) -> list[tuple[float, float]]:
    """Halves until no piece is wider than 1."""
    if hi - lo <= 1:
        return [(lo, hi)]
    middle = lo / 2 + hi / 2
    return cut(lo, middle) + cut(middle, hi)


def exact(x: Fraction) -> str:
    return f"({x.numerator}/{x.denominator})"


def as_table(stored: dict[str, Any]) -> str:
    """Bounds and times side by side."""
    rows = []
    for r in stored["rows"]:
        on = f"[{r['domain'][0]:g}, {r['domain'][1]:g}]"
        theirs = f"[{r['sollya'][0]:.4g}, {r['sollya'][1]:.4g}]" if r["sollya"] else "not finished"
        ratio = f"{r['sollya_seconds'] / r['seconds']:.0f}" if r["sollya"] else ""
        times = f"{r['seconds']:.2f}", f"{r['sollya_seconds']:.1f}", ratio
        rows.append((r["name"], on, r["anchors"], f"{r['ours']:.4g}", theirs, r["pieces"], *times))
    listed = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    made = f"Made by `python benchmarks/sollya.py` with {listed}; CPU seconds of one run on one thread."
    head = "head, on, anchors, attnc: sup at most, Sollya: sup between, pieces, attnc s, Sollya s, ratio"
    return f"{made}\n\n{table(head, rows)}"


if __name__ == "__main__":
    main()
