"""Selectors: softmax and what is used in its place on the same anchors, landmarks, and one network with many prompts.

python benchmarks/selector_rates.py             everything, about a minute: JSON, the tables and the figure of docs/selectors.md
python benchmarks/selector_rates.py --quick     a smoke test; writes to out/ only
python benchmarks/selector_rates.py --render    tables and figure from the stored numbers

A file selectors.py here would hide the module of that name of Python's library from every script of this folder."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

# p = 4 mod 6: the point at 1/3 of the interval is always an anchor, that at 5/12 always a quarter of a step away from one.
SIZES, QUICK = (4, 10, 16, 22, 28, 34, 46, 64), (4, 10, 16, 22, 28, 34)
# A fit has p from here on and errors above the floor: below it the conditioning of least squares in float64 decides.
FROM = {"power": 22, "exponential": 10, "root": 10}
FLOOR, FLOORS = 1e-12, {"sigmoid": 1e-7}
DOMAINS = {"smooth": (-2.0, 4.0), "kink at an anchor": (-2.0, 4.0), "kink between anchors": (-2.5, 3.5)}
LAWS = {"power": lambda p: math.log(p - 1), "exponential": float, "root": math.sqrt}
SHOWN = {"power": "(p - 1)^-k", "exponential": "exp(-k p)", "root": "exp(-k √p)"}
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)  # 97.5 %, by degrees of freedom
LANDMARKS, QUERIES = (10, 16, 22, 28, 34, 46, 64), 10_000
PROMPTS = {"sin": 1e-9, "tanh": 1e-9, "gelu": 1e-9, "exp": 1e-9, "relu": 1e-4, "abs": 1e-4}
TITLES = {
    "softmax at c = 4": "softmax, the paper's sharpness", "softmax": "softmax, the right sharpness",
    "graded": "softmax, anchors graded towards the kink", "hard": "hard attention", "entmax15": "entmax 1.5",
    "sigmoid": "sigmoid attention", "relu": "ReLU attention", "linear": "linear attention",
}  # fmt: skip
Row = dict[str, Any]


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    results = (
        ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results"
    ) / "selectors.json"
    if not options.render:
        write(results, as_json(run(QUICK if options.quick else SIZES)))
    if not results.exists():
        raise SystemExit(f"{results.name} is not there yet: run python benchmarks/selector_rates.py first")
    stored = json.loads(results.read_text())
    if options.quick:
        print("\n".join(text(stored) for text in SECTIONS.values()))
        return
    page = ROOT / "docs" / "selectors.md"
    for name, text in SECTIONS.items():
        put(page, name, text(stored))
    import selector_figure

    selector_figure.draw(stored, ROOT / "docs" / "img" / "selectors.png")


def functions() -> dict[str, Any]:
    """The case: a function with an enclosure. Both are 1 at 0 and fall off to both sides; one has a kink at 0."""
    import torch

    import attnc

    runge = attnc.function(lambda s: 1 / (1 + s * s), name="runge", enclosure=lambda x: 1 / (1 + x * x))
    sides = (lambda x: x.exp(), lambda x: (-x).exp())
    laplace = attnc.function(lambda s: torch.exp(-s.abs()), name="laplace", enclosure=sides, kinks=(0.0,))
    return {"smooth": runge, "kink at an anchor": laplace, "kink between anchors": laplace}


def run(sizes: Sequence[int]) -> dict[str, Any]:
    from attnc.paper.selectors import SELECTORS

    began = time.process_time()
    rows = []
    for case in DOMAINS:
        for name in (*SELECTORS, "softmax at c = 4", *(() if case == "smooth" else ("graded",))):
            progress(f"{case}: {name}")
            rows.append(measured(case, name, sizes))
    landmarks = nystrom(sizes[-1])
    progress("prompts")
    found = {"rows": rows, "landmarks": landmarks, "prompts": prompts(), "versions": versions()}
    progress("")
    return {**found, "seconds": round(time.process_time() - began, 1)}


def measured(case: str, name: str, sizes: Sequence[int]) -> Row:
    """One selector on one function: the largest error found for each p, in float64 and float32; proved bounds of softmax."""
    import torch

    import attnc
    from attnc.paper.selectors import select

    f, domain = functions()[case], DOMAINS[case]
    row: Row = {"case": case, "selector": name, "sizes": [*sizes]}
    if name == "graded":
        heads = [attnc.head(f, domain=domain, anchors=p, design="graded", dtype=torch.float64) for p in sizes]
        small = [attnc.head(f, domain=domain, anchors=p, design="graded", dtype=torch.float32) for p in sizes]
        row["errors"] = [witnessed(head) for head in heads]
        row["single"] = [witnessed(head) for head in small]
        row["largest value"] = float(heads[-1].value.abs().max())
        proved = heads
    else:
        given = {
            "selector": name.partition(" at ")[0],
            "domain": domain,
            "sharpness": 4.0 if "at" in name else None,
        }
        made = [select(f, anchors=p, **given) for p in sizes]
        row["errors"], row["sharpness"] = [one.error for one in made], [one.sharpness for one in made]
        row["single"] = [select(f, anchors=p, dtype=torch.float32, **given).error for p in sizes]
        row["largest value"] = float(made[-1].values.abs().max())
        proved = [one.head() for one in made] if given["selector"] == "softmax" else []
    if proved:
        row["proved"] = [head.certificate.bound for head in proved if head.certificate.proved]
        row["verified"] = all(bool(attnc.verify(head, f)) for head in proved)
    return row | {law: fit(law, sizes, row["errors"], FLOORS.get(name, FLOOR)) for law in LAWS}


def witnessed(head: Any) -> float:
    """The largest error found: that of the witness, in ball arithmetic."""
    assert head.certificate.proved
    return float(head.certificate.witness.error)


def fit(law: str, sizes: Sequence[int], errors: Sequence[float], floor: float) -> Row | None:
    """log error = log a - k·abscissa by least squares, with the 95 % interval of k by Student's t; None below three points."""
    pairs = [
        (LAWS[law](p), math.log(e))
        for p, e in zip(sizes, errors, strict=True)
        if p >= FROM[law] and e > floor
    ]
    n = len(pairs)
    if n < 3:
        return None
    mean_x, mean_y = (math.fsum(pair[i] for pair in pairs) / n for i in (0, 1))
    width = math.fsum((x - mean_x) ** 2 for x, _ in pairs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs) / width
    rest = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in pairs)
    reach = STUDENT[n - 3] * math.sqrt(rest / (n - 2) / width)
    spread = math.sqrt(rest / n) / math.log(10)
    return {"k": -slope, "low": -slope - reach, "high": -slope + reach, "points": n, "spread": spread}


def nystrom(p: int) -> list[Row]:
    """Softmax over p anchors through m landmarks: the errors, and the scores for many queries relative to full attention."""
    from attnc.paper.selectors import select

    full, rows = select(functions()["smooth"], anchors=p, domain=DOMAINS["smooth"]), []
    for m in (m for m in LANDMARKS if m <= p):
        made, own = full.through_landmarks(m), select(full.function, anchors=m, domain=DOMAINS["smooth"])
        cost = (QUERIES * m + m * p + m * m) / (QUERIES * p)
        rows.append(
            {"anchors": p, "m": m, "error": made.error, "own": own.error, "full": full.error, "cost": cost}
        )
    return rows


def prompts() -> list[Row]:
    """One network; a prompt for each function; the proof of what runs, and of the literal matrices with the prompt as tokens."""
    import torch

    import attnc
    from attnc.network.literal.steps import LETTERS
    from attnc.paper import prompted

    net, rows, first = prompted(domain=(-3, 3)), [], None
    for name, eps in PROMPTS.items():
        prompt = net.prompt(name, eps=eps)
        literal = net.as_self_attention(prompt, n=4)
        first = first or literal
        same = all(
            torch.equal(getattr(a, w), getattr(b, w))
            for a, b in [(first.layers[0], literal.layers[0])]
            for w in LETTERS
        )
        row = {"function": name, "tokens": len(prompt.tokens), "bound": prompt.certificate.bound}
        row |= {"found": witnessed(prompt.head), "same": same, "literal": str(attnc.verify(literal).status)}
        rows.append(row | {"verified": str(attnc.verify(prompt.head).status)})
    return rows


def title(name: str) -> str:
    return TITLES.get(name, name)


def errors_table(stored: dict[str, Any]) -> str:
    lines = []
    for case in DOMAINS:
        rows = [row for row in stored["rows"] if row["case"] == case]
        on = ", ".join(f"{x:g}" for x in DOMAINS[case])
        f = "1/(1 + s²)" if case == "smooth" else "exp(-|s|)"
        lines += [f"**{f} on [{on}]**" + ("" if case == "smooth" else f", {case}"), ""]
        lines += [f"| selector | {' | '.join(f'p = {p}' for p in rows[0]['sizes'])} |"]
        lines += ["|---" * (len(rows[0]["sizes"]) + 1) + "|"]
        for row in sorted(rows, key=lambda row: -row["errors"][-1]):
            lines.append(f"| {title(row['selector'])} | {' | '.join(f'{e:.1e}' for e in row['errors'])} |")
        lines.append("")
    proved = [row for row in stored["rows"] if "proved" in row]
    ratio = max(b / e for row in proved for b, e in zip(row["proved"], row["errors"], strict=True))
    again = (
        "and `attnc.verify` proved all of them again"
        if all(row["verified"] for row in proved)
        else "**not verified**"
    )
    count = sum(len(row["proved"]) for row in proved)
    lines += [
        f"All {count} errors of softmax have a proved bound, rounding included, at most {ratio:.2f} times as large, {again}."
    ]
    made = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    return "\n".join(
        [*lines, f"{stored['seconds']} CPU s on one core for all tables of this page; {made}.", ""]
    )


def law_of(case: str, selector: str) -> str:
    """The law that the theorems suggest; the stored numbers have all three."""
    analytic = case == "smooth" and selector in ("softmax", "sigmoid")
    return "exponential" if analytic else "root" if selector == "graded" else "power"


def rates_table(stored: dict[str, Any]) -> str:
    price = "largest \\|v\\| at p = 64 | smallest error in float32"
    lines = [f"| function | selector | law | k, 95 % interval | proved for the best values | {price} |"]
    lines += ["|---" * 7 + "|"]
    for row in sorted(stored["rows"], key=lambda row: ([*DOMAINS].index(row["case"]), -row["errors"][-1])):
        law = law_of(row["case"], row["selector"])
        known = KNOWN.get((row["case"], row["selector"]), "—")
        last = [known, f"{row['largest value']:.0e}", f"{min(row['single']):.0e}"]
        cells = [row["case"], title(row["selector"])]
        cells += [SHOWN[law], "{k:.2f} [{low:.2f}, {high:.2f}]".format(**row[law]).replace("-0.00", "0.00")]
        lines.append(f"| {' | '.join([*cells, *last])} |")
    return "\n".join([*lines, ""])


KNOWN = {
    ("smooth", "hard"): "k = 1, and no better", ("smooth", "relu"): "k = 2, and no better",
    ("smooth", "sparsemax"): "k = 2, and no better", ("smooth", "linear"): "does not fall", ("smooth", "softmax"): "exponential",
    ("smooth", "sigmoid"): "exponential", ("smooth", "softmax at c = 4"): "k >= 1", ("smooth", "entmax15"): "k >= 1",
    ("kink at an anchor", "sparsemax"): "k = 2, and no better", ("kink at an anchor", "relu"): "k = 2, and no better",
    **{(case, name): "k = 1, and no better" for case in ("kink at an anchor", "kink between anchors") for name in ("hard",)},
    **{(case, name): "k >= 1" for case in ("kink at an anchor", "kink between anchors") for name in
       ("softmax", "softmax at c = 4", "entmax15")},
    ("kink between anchors", "sparsemax"): "1 <= k <= 2", ("kink between anchors", "relu"): "1 <= k <= 2",
    ("kink at an anchor", "linear"): "does not fall", ("kink between anchors", "linear"): "does not fall",
}  # fmt: skip


def landmarks_table(stored: dict[str, Any]) -> str:
    first = stored["landmarks"][0]
    lines = [
        f"| landmarks m | error through m landmarks | error of m anchors, fitted | scores for {QUERIES:,} queries, relative |"
    ]
    lines += ["|---|---|---|---|"]
    for row in stored["landmarks"]:
        lines.append(f"| {row['m']} | {row['error']:.1e} | {row['own']:.1e} | {row['cost']:.2f} |")
    return "\n".join(
        [*lines, "", f"Full attention over {first['anchors']} anchors has the error {first['full']:.1e}.", ""]
    )


def prompts_table(stored: dict[str, Any]) -> str:
    lines = [
        "| prompt | tokens | proved bound | largest error found | `verify(prompt.head)` | literal form | same matrices |"
    ]
    lines += ["|---" * 7 + "|"]
    for row in stored["prompts"]:
        cells = [
            row["function"],
            row["tokens"],
            f"{row['bound']:.3g}",
            f"{row['found']:.3g}",
            row["verified"],
            row["literal"],
        ]
        lines.append(f"| {' | '.join(map(str, cells))} | {'yes' if row['same'] else '**no**'} |")
    return "\n".join([*lines, ""])


SECTIONS = {
    "errors": errors_table,
    "rates": rates_table,
    "landmarks": landmarks_table,
    "prompts": prompts_table,
}


if __name__ == "__main__":
    main()
