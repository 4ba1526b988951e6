"""The sections of the benchmark, each a list or a dictionary of plain records."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import head_rates
import torch
from cases import DTYPES, STANDARD, Row, build, has_kinks

import attnc
from attnc.prove.supnorm import supnorm

Step = Callable[[str], None]
Records = list[dict[str, Any]]

# (function, eps, design, dtype, most anchors asked for)
ASKED = (
    ("gelu", 1e-6, "auto", "float64", 32),
    ("tanh", 1e-6, "auto", "float64", 40),
    ("sin", 1e-8, "auto", "float64", 28),
    ("relu", 1e-4, "graded", "float64", 20),
    ("relu", 1e-6, "graded", "float64", 52),
    ("clip(-25,25)", 1e-3, "auto", "float64", 60),
    ("gelu", 1e-4, "auto", "float32", None),
    ("gelu", 1e-6, "smooth", "float64", 32),
    ("tanh", 1e-6, "smooth", "float64", 40),
    ("sin", 1e-8, "smooth", "float64", 28),
    ("clip(-25,25)", 1e-3, "graded", "float64", 60),
)
DESIGN_SIZES = {
    "nearest": (16,),
    "smooth": (16, 32, 64),
    "graded": (17, 33, 65),
    "gated": (2, 3),
    "tuned": (2, 3, 4),
    "auto": (8,),
}
FLOAT32_SIZES = {"auto": (3, 8, 12), "gated": (2,)}
FLOAT32_SIZES_AT_KINKS = {"auto": (3, 10, 13), "gated": (2, 3)}
# (function, design) of `heads=H`, each with the same number of anchors in all
MANY = (("relu", "nearest"), ("relu", "graded"), ("gelu", "smooth"), ("sin", "smooth"))
MANY_HEADS, MANY_ANCHORS = (1, 2, 8), 32
SPEED = (
    ("relu", "auto"),
    ("gelu", "auto"),
    ("tanh", "auto"),
    ("sin", "auto"),
    ("silu", "gated"),
    ("gelu", "smooth"),
)
SPEED_EPS = 1e-4
ELEMENTS = 1_000_000
REPEATS = 7
THREADS = 2
QUICK_FUNCTIONS = ("relu", "gelu", "tanh")


def asked(quick: bool, step: Step) -> Records:
    """The calls with a target: anchors got beside anchors asked."""
    records = []
    for spec, eps, design, dtype, most in ASKED[:: 3 if quick else 1]:
        step(f"{spec} eps={eps:g} {design} {dtype}")
        row, _ = build(spec, eps=eps, design=design, dtype=dtype)
        records.append({**asdict(row), "most_anchors": most})
    return records


def curves(quick: bool, full: bool, step: Step) -> Records:
    """Error against anchors for five functions, with fitted laws."""
    sizes = head_rates.QUICK_SIZES if quick else head_rates.FULL_SIZES if full else head_rates.SIZES
    wanted = QUICK_FUNCTIONS if quick else head_rates.FUNCTIONS
    found = (
        head_rates.curve(
            spec, design, [p for p in sizes[design] if full or p <= 256 or spec in head_rates.RANGES], step
        )
        for spec in wanted
        for design in sizes
    )
    return [asdict(curve) for curve in found if curve is not None]


def designs(quick: bool, step: Step) -> Records:
    """Every function with every design that applies, in float64."""
    records = []
    for spec in QUICK_FUNCTIONS if quick else STANDARD:
        for design, sizes in DESIGN_SIZES.items():
            if design == "graded" and not has_kinks(spec):
                continue
            for p in sizes[:1] if quick else sizes:
                step(f"{spec} {design} p={p}")
                records.append(asdict(build(spec, anchors=p, design=design)[0]))
    return records


def float32(quick: bool, step: Step) -> Records:
    """Every function in float32: small heads, where rounding sets the error."""
    records = []
    for spec in QUICK_FUNCTIONS if quick else STANDARD:
        searched = FLOAT32_SIZES_AT_KINKS if has_kinks(spec) else FLOAT32_SIZES
        for design, sizes in searched.items():
            for p in sizes[-1:] if quick else sizes:
                step(f"{spec} {design} p={p} float32")
                records.append(asdict(build(spec, anchors=p, design=design, dtype="float32")[0]))
    return records


def many(quick: bool, step: Step) -> Records:
    """The same anchors in one head and shared out over several."""
    records = []
    for spec, design in MANY[:1] if quick else MANY:
        for heads in MANY_HEADS[:2] if quick else MANY_HEADS:
            for dtype in DTYPES:
                step(f"{spec} {design} heads={heads} {dtype}")
                p = MANY_ANCHORS if heads == 1 else MANY_ANCHORS // heads + 2
                row, _ = build(spec, anchors=p, design=design, dtype=dtype, heads=heads)
                records.append(asdict(row))
    return records


def floor(records: Records) -> Records:
    """For each function and dtype the record with the lowest proved bound: over anchors alone, and gated."""
    best: dict[tuple[str, str, bool], dict[str, Any]] = {}
    for record in records:
        if record["bound"] is None:
            continue
        slot = (record["function"], record["dtype"], record["design"] == "gated")
        if slot not in best or record["bound"] < best[slot]["bound"]:
            best[slot] = record
    return list(best.values())


def speed(quick: bool, step: Step) -> Records:
    """Forward passes beside torch's own function, and the CPU seconds of the proof and of `verify`."""
    records = []
    count = ELEMENTS // 20 if quick else ELEMENTS
    for spec, design in SPEED[:2] if quick else SPEED:
        step(f"{spec} {design} forward and proof")
        row, head = build(spec, eps=SPEED_EPS, design=design, dtype="float32")
        assert head is not None, row.refused
        wide, narrow = _forward_times(head, spec, count, THREADS), _forward_times(head, spec, count, 1)
        records.append(
            {
                **asdict(row),
                "elements": count,
                "threads": THREADS,
                "forward_seconds": statistics.median(ours for ours, _ in wide),
                "torch_seconds": statistics.median(theirs for _, theirs in wide),
                "ratio": _ratios(wide),
                "ratio_one_thread": _ratios(narrow),
                "proof_seconds": _cpu(lambda head=head, row=row: _prove(head, row)),
                "verify_seconds": _cpu(lambda head=head: _verified(head)),
            }
        )
    return records


def _forward_times(head: attnc.Head, spec: str, count: int, threads: int) -> list[tuple[float, float]]:
    """Seconds of head and of torch, in turn so that both meet the same machine; the first pair warms up."""
    lo, hi = STANDARD[spec]
    own = attnc.functions.get(spec).torch_form
    s = torch.rand(count, generator=torch.Generator().manual_seed(0)) * (hi - lo) + lo
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [(_wall(lambda: head(s)), _wall(lambda: own(s))) for _ in range(REPEATS + 1)][1:]
    finally:
        torch.set_num_threads(before)


def _ratios(pairs: list[tuple[float, float]]) -> list[float]:
    """Lowest, median and highest: how far they lie apart says what the number is worth."""
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    return [ratios[0], statistics.median(ratios), ratios[-1]]


def _prove(head: attnc.Head, row: Row) -> None:
    proof = supnorm(head.numbers(), attnc.functions.get(row.function), attnc.Interval(row.lo, row.hi))
    assert proof.bound < float("inf")


def _verified(head: attnc.Head) -> None:
    verdict = attnc.verify(head)
    if not verdict:
        raise SystemExit(f"verify does not confirm a head it should: {verdict}")


def _wall(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _cpu(run: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def warm_up() -> None:
    """What is loaded and probed once must not be charged to the first call."""
    for dtype in DTYPES.values():
        attnc.verify(attnc.head("tanh", domain=(-1, 1), anchors=2, dtype=dtype))
