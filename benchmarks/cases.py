"""What is measured: functions on standard intervals, and one head with everything its certificate says."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache

import torch

import attnc

# every function of the library, with the interval on which it is measured
STANDARD: dict[str, tuple[float, float]] = {
    "identity": (-8, 8),
    "relu": (-1, 1),
    "leaky_relu": (-1, 1),
    "abs": (-1, 1),
    "clip(-25,25)": (-80, 80),
    "hardtanh": (-4, 4),
    "soft_threshold": (-4, 4),
    "gelu": (-8, 8),
    "gelu_tanh": (-8, 8),
    "silu": (-8, 8),
    "sigmoid": (-8, 8),
    "tanh": (-8, 8),
    "softplus": (-8, 8),
    "elu": (-8, 8),
    "mish": (-8, 8),
    "softsign": (-8, 8),
    "sin": (-8, 8),
    "cos": (-8, 8),
    "exp": (-4, 4),
    "square": (-4, 4),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Row:
    """One head: what was asked, what was proved, and the CPU seconds it took to build with its proof."""

    function: str
    lo: float
    hi: float
    dtype: str
    asked: str  # the design asked for
    eps: float | None
    design: str | None = None  # the design got
    anchors: int | None = None
    heads: int = 1
    bound: float | None = None
    approximation: float | None = None
    rounding: float | None = None
    measured: float | None = None  # the witness: executed in the dtype, compared in high precision
    quality: float | None = None
    cells: int | None = None
    seconds: float = 0.0
    refused: str | None = None


@cache
def build(
    spec: str,
    *,
    eps: float | None = None,
    anchors: int | None = None,
    design: str = "auto",
    dtype: str = "float64",
    heads: int = 1,
) -> tuple[Row, attnc.Head | None]:
    """Build and prove one head. A refusal is a result too, and is kept with its reason.

    The same head is built once in a run, whichever sections ask for it.
    """
    lo, hi = STANDARD[spec]
    asked = {
        "function": spec,
        "lo": lo,
        "hi": hi,
        "dtype": dtype,
        "asked": design,
        "eps": eps,
        "heads": heads,
    }
    start = time.process_time()
    try:
        head = attnc.head(
            spec, domain=(lo, hi), eps=eps, anchors=anchors, design=design, dtype=DTYPES[dtype], heads=heads
        )
    except attnc.AttncError as refusal:
        seconds = time.process_time() - start
        return Row(
            **asked, anchors=anchors, seconds=seconds, refused=f"{type(refusal).__name__}: {refusal}"
        ), None
    seconds = time.process_time() - start
    c = head.certificate
    assert c.proved and c.witness is not None
    return Row(
        **asked,
        design=head.design,
        anchors=head.key.shape[1],
        bound=c.bound,
        approximation=c.approximation,
        rounding=c.rounding,
        measured=c.witness.error,
        quality=c.quality if math.isfinite(c.quality) else None,
        cells=c.facts["cells"],
        seconds=seconds,
    ), head


def has_kinks(spec: str) -> bool:
    """Whether the function has a kink inside its standard interval."""
    lo, hi = STANDARD[spec]
    return any(lo < k < hi for k in attnc.functions.get(spec).kinks)


def largest_value(spec: str) -> float:
    """max |f| over the interval, from a sample: the scale against which errors are read."""
    lo, hi = STANDARD[spec]
    s = torch.linspace(lo, hi, 4001, dtype=torch.float64)
    return float(attnc.functions.get(spec)(s).abs().max())


def check_complete() -> None:
    """Every function of the library has a standard interval here."""
    known = {spec.partition("(")[0] for spec in STANDARD}
    missing = sorted(set(attnc.functions.names()) - known)
    if missing:
        raise SystemExit(f"benchmarks/cases.py: give a standard interval to {', '.join(missing)}")
