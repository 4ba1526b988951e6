"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from formats import median_and_range, plain, ratio, rounded_up, seconds, table, terms, two_decimals, where

Record = dict[str, Any]
REACH = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)


def markdown(results: dict[str, Any]) -> str:
    """Every section that is present, in reading order."""
    parts = [_versions(results["versions"])]
    sections = {
        "asked": _asked,
        "rates": _rates,
        "designs": _designs,
        "floor": _floor,
        "many": _many,
        "speed": _speed,
    }
    for name, section in sections.items():
        if results.get(name):
            parts.append(section(results[name]))
        if name == "floor" and results.get("float32"):
            parts.append(_searched(results["float32"]))
    return "\n\n".join(parts) + "\n"


def _versions(versions: dict[str, str]) -> str:
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Made by `python benchmarks/heads.py` with {listed}. Seconds are CPU seconds of one run on one "
        "thread; every number is in `benchmarks/results/heads.json`."
    )


def _asked(records: Sequence[Record]) -> str:
    rows = [
        (
            *where(r),
            r["dtype"],
            r["asked"],
            plain(r["eps"]),
            r["most_anchors"] or "",
            r["anchors"],
            r["design"],
            *terms(r),
            seconds(r["seconds"]),
        )
        for r in records
    ]
    head = (
        "function, on, dtype, design, eps, anchors allowed, used, design used, bound, approximation, rounding, "
        "u/l, s"
    )
    return (
        "### The smallest head for an error\n\n"
        "These heads come from `attnc.head(function, domain=…, eps=…, design=…, dtype=…)`. *Anchors allowed* is the target "
        "size of the benchmark. *u/l* is the proved bound divided by the error at the witness.\n\n"
        + table(head, rows)
    )


def _rates(curves: Sequence[Record]) -> str:
    rows = []
    for c in curves:
        fit = c["fit"]
        law = f"{fit['law'].replace('k', two_decimals(fit['k']), 1)}" if fit else ""
        used = f"{fit['first']} to {fit['last']}" if fit else ""
        spread = two_decimals(fit["spread"]) if fit else ""
        proved = [r for r in c["rows"] if r["bound"] is not None]
        reach = [min((r["anchors"] for r in proved if r["bound"] <= eps), default="–") for eps in REACH]
        lowest = min(proved, key=lambda r: r["bound"])
        rows.append(
            (
                c["function"],
                c["design"],
                law,
                used,
                spread,
                *reach,
                f"{rounded_up(lowest['bound'])} ({lowest['anchors']})",
            )
        )
    head = (
        "function, design, fitted law, p of the fit, spread, "
        + ", ".join(map(plain, REACH))
        + ", lowest bound (p)"
    )
    return (
        "### How the error falls with the anchors\n\n"
        "All heads are float64. The laws are least-squares fits to the logarithms of the proved bounds. A fit uses the p "
        "that resolve the function (error below half of max |f|; for `nearest` p from 32 on), whose bound is above "
        "rounding (above 1e-10 of max |f| and ten times its rounding term) and still decreases. This range of p "
        "was chosen after looking at the curves, so k depends on it. *Spread* is the root mean square of the "
        "residuals of the fit, in decades. The columns 0.1 to 1e-08 give the smallest p of the run whose *proved* "
        "bound is at most that number (– if there is none). No law is fitted for `tuned`.\n\n"
        + table(head, rows)
        + "\n\n![Proved bound against anchors](img/rates.png)\n\n"
        + _against_paper([c for c in curves if c["design"] == "nearest"])
    )


def _against_paper(curves: Sequence[Record]) -> str:
    """`nearest` beside the hard limit and beside the theorem's bound."""
    sizes = max(([r["anchors"] for r in c["rows"]] for c in curves), key=len)
    rows = []
    for c in curves:
        bounds = [r["bound"] for r in c["rows"]]
        rows.append((c["function"], "bound / hard limit", *map(ratio, bounds, c["paper"])))
        rows.append((c["function"], "bound / KΔC(4)", *map(ratio, bounds, c["theorem"])))
    return (
        "The next table compares `nearest` with the hard limit (b-a)/(2(p-1)) = Δ/2 of Range (and so of ReLU), and"
        " with the theorem's bound KΔC(4), which holds for every Lipschitz f. [a, b] is the interval of the "
        "anchors. A ratio of at most 1 means that the proved bound is at most the other bound.\n\n"
        + table("function, ratio, " + ", ".join(f"p={p}" for p in sizes), rows)
    )


def _designs(records: Sequence[Record]) -> str:
    order = ("nearest", "smooth", "graded", "gated", "tuned", "auto")
    columns = sorted({(order.index(r["asked"]), r["asked"], r["anchors"]) for r in records})
    by_cell = {(r["function"], r["asked"], r["anchors"]): r for r in records}
    rows = []
    for spec in dict.fromkeys(r["function"] for r in records):
        cells = [by_cell.get((spec, design, p)) for _, design, p in columns]
        rows.append((spec, *(rounded_up(cell["bound"]) if cell and cell["bound"] else "" for cell in cells)))
    return (
        "### Every function, every design\n\n"
        "The table gives the proved bound in float64 for each design and number of anchors, with each function on its standard "
        "interval (see the next table). The JSON file has the measured error, the quality and the seconds of each head.\n\n"
        + table("function, " + ", ".join(f"{design} {p}" for _, design, p in columns), rows)
    )


def _floor(records: Sequence[Record]) -> str:
    best = {(r["function"], r["dtype"], r["design"] == "gated"): r for r in records}
    slots = [(dtype, gated) for dtype in ("float32", "float64") for gated in (False, True)]
    rows = []
    for spec in dict.fromkeys(r["function"] for r in records):
        cells = [best.get((spec, *slot)) for slot in slots]
        some = next(cell for cell in cells if cell)
        rows.append((*where(some), *(_lowest(cell) for cell in cells)))
    return (
        "### The lowest error that can be proved\n\n"
        "The table gives the smallest proved bound among the heads that the benchmark built, with their design and size. It is "
        "an eps that the dtype can reach, not a lower limit for all heads. Gated heads, which need a "
        "token to attend to itself, have their own columns.\n\n"
        + table("function, on, float32, float32 gated, float64, float64 gated", rows)
        + "\n\n![Lowest proved bound of each function](img/floor.png)"
    )


def _searched(records: Sequence[Record]) -> str:
    """The sizes that were tried, for functions are not all tried with the same."""
    tried: dict[str, list[str]] = {}
    for spec in dict.fromkeys(r["function"] for r in records):
        sizes = ", ".join(f"{r['asked']} {r['anchors']}" for r in records if r["function"] == spec)
        tried.setdefault(sizes, []).append(spec)
    listed = "; ".join(f"{sizes} for {', '.join(specs)}" for sizes, specs in tried.items())
    return (
        f"The benchmark built these heads in float32: {listed}. In float64 it built the columns of the previous table. "
        "Other sizes may give smaller bounds."
    )


def _lowest(cell: Record | None) -> str:
    return f"{rounded_up(cell['bound'])} ({cell['design']} {cell['anchors']})" if cell else "–"


def _many(records: Sequence[Record]) -> str:
    """One row a function and design and dtype, one column a number of heads."""
    counts = sorted({r["heads"] for r in records})
    by_cell = {(r["function"], r["asked"], r["dtype"], r["heads"]): r for r in records}
    rows = []
    for kind in dict.fromkeys((r["function"], r["asked"], r["dtype"]) for r in records):
        cells = [by_cell.get((*kind, count)) for count in counts]
        rows.append(
            (*kind, *(f"{rounded_up(c['bound'])} ({rounded_up(c['rounding'])})" if c else "–" for c in cells))
        )
    sizes = [next(r["anchors"] for r in records if r["heads"] == count) for count in counts]
    head = [f"{count} × {p} keys" for count, p in zip(counts, sizes, strict=True)]
    return (
        "### One head or several\n\n"
        "The table compares the same number of anchors in one head and divided among several heads (of the p keys of each of "
        "several heads, p - 2 are anchors). It gives the proved bound, with its rounding term in brackets.\n\n"
        + table("function, design, dtype, " + ", ".join(head), rows)
    )


def _speed(records: Sequence[Record]) -> str:
    first = records[0]
    rows = [
        (
            r["function"],
            f"{r['design']} {r['anchors']}",
            f"{1e3 * r['forward_seconds']:.1f}",
            f"{1e3 * r['torch_seconds']:.2f}",
            median_and_range(r["ratio"]),
            median_and_range(r["ratio_one_thread"]),
            seconds(r["seconds"]),
            seconds(r["proof_seconds"]),
            seconds(r["verify_seconds"]),
        )
        for r in records
    ]
    return (
        "### Speed\n\n"
        f"The heads are float32 with eps {plain(first['eps'])}. The table compares a forward pass over "
        f"{first['elements']:,} elements on {first['threads']} threads with torch's own function; the two run "
        "alternately. Times are medians, and the ratio is "
        "the median (lowest to highest pair). The last columns are the CPU seconds to find and prove the head, to prove it "
        "alone, and to verify it. This was one run on a machine with other load: the ratios are orders "
        "of magnitude.\n\n"
        + table(
            "function, head, forward ms, torch ms, ratio, ratio on one thread, build s, proof s, verify s",
            rows,
        )
    )
