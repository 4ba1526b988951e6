"""Attack the claims of every family of transformers: in float32 by both engines, in bfloat16 and in float16.

python benchmarks/family_attacks.py            every family, some hours of one core; table in docs/families.md
python benchmarks/family_attacks.py bert phi3  some families, printed
python benchmarks/family_attacks.py --page     the table again, from what is stored
python benchmarks/family_attacks.py --seconds 400    the same as without, but no configuration begins after that time

Each configuration is stored as soon as it was attacked, and a later run goes on from there: delete
benchmarks/results/family_attacks.json to begin again. The exit status is 1 if a claim was false or a case crashed.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
PAGE, STORED = ROOT / "docs" / "families.md", ROOT / "benchmarks" / "results" / "family_attacks.json"
SETTINGS = (
    ("float32", "softmax"),
    ("float32", "closed-form"),
    ("bfloat16", "softmax"),
    ("float16", "softmax"),
)
VERDICTS = ("refused", "converted", "measured", "false", "crashed")
Record = dict[str, Any]


def attacked(name: str, dtype: str, engine: str, seed: int) -> Record:
    """One configuration; an error that is not attnc's counts as a crash."""
    import torch
    from attacks.families import attack_family
    from attacks.tally import Outcome, plain

    try:
        outcome = attack_family(name, getattr(torch, dtype), seed, engine=engine)
    except Exception as problem:
        outcome = Outcome("families", name, "crashed", note=f"{type(problem).__name__}: {problem}"[:300])
    about = plain(outcome)
    kept = ("verdict", "ratio", "claimed", "measured", "inputs", "note", "seconds")
    return {
        "family": name, "dtype": dtype, "engine": engine, "seed": seed, **{key: about[key] for key in kept},
    }  # fmt: skip


def page(records: list[Record]) -> str:
    """The table of docs/families.md: a row for each dtype and engine."""
    from formats import table
    from pages import versions

    made = ", ".join(f"{name} {version}" for name, version in versions("transformers").items())
    rows = []
    for dtype, engine in SETTINGS:
        own = [r for r in records if (r["dtype"], r["engine"]) == (dtype, engine)]
        if not own:
            continue
        count = {v: sum(r["verdict"] == v for r in own) for v in VERDICTS}
        claimed = count["converted"] + count["false"]
        ratio = max((r["ratio"] for r in own if r["ratio"] is not None), default=0.0)
        inputs, left = sum(r["inputs"] for r in own), count["refused"] + count["measured"]
        rows.append(
            (dtype, engine, claimed, left, f"{inputs:,}", f"{ratio:.3f}", count["false"], count["crashed"])
        )
    head = "dtype, engine, attacked, refused or not attacked, inputs, largest error / bound, false, crashed"
    return f"Made with {made}.\n\n{table(head, rows)}\n"


def stored() -> list[Record]:
    return list(json.loads(STORED.read_text())["attacks"]) if STORED.exists() else []


def main() -> int:
    from pages import as_json, one_thread, progress, put, write

    one_thread()
    import torch
    from family_models import FAMILIES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", help="by default all of them, and the page is written")
    parser.add_argument("--page", action="store_true", help="write the table from what is stored")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # inputs outside of the domain are part of the attack
    records = [] if given.families else stored()
    done = {(r["family"], r["dtype"], r["engine"], r["seed"]) for r in records}
    cases = [(name, *setting) for setting in SETTINGS for name in given.families or FAMILIES]
    began = time.perf_counter()
    for case in () if given.page else cases:
        if (*case, given.seed) in done:
            continue
        if time.perf_counter() - began > given.seconds:
            break
        progress(", ".join(case))
        records.append(attacked(*case, given.seed))
        if given.families:
            print(json.dumps(records[-1], indent=1))
        else:
            write(STORED, as_json({"attacks": records}))
    if not given.families:
        put(PAGE, "family attacks", page(records))
    return int(any(r["verdict"] in ("false", "crashed") for r in records))


if __name__ == "__main__":
    raise SystemExit(main())
