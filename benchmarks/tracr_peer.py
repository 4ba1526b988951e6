"""tracr on programs of its own library, all sequences: results/tracr.json. Needs tracr and jax, in their own environment.

python benchmarks/tracr_peer.py      about ten minutes; PYTHONPATH must have tracr's sources
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tracr.compiler import compiling, lib
from tracr.rasp import rasp

RESULTS = Path(__file__).resolve().parent / "results" / "tracr.json"
COMMIT = "9ce2b8c"
# by the name in attnc's zoo: program, vocabulary, length
PROGRAMS = {
    "copy-previous": (lambda n: lib.shift_by(1, rasp.tokens), "abcd", 4),
    "reverse": (lambda n: lib.make_reverse(rasp.tokens), "abcd", 4),
    "histogram": (lambda n: lib.make_hist(), "abcd", 4),
    "sort": (lambda n: lib.make_sort(rasp.tokens, rasp.tokens, max_seq_len=n, min_key=1), (1, 2, 3, 4), 4),
    "dyck-1": (lambda n: lib.make_shuffle_dyck(["()"]), "()", 6),
}


def equal(found: Any, expected: Any) -> bool:
    """Numbers count as equal if they round to the same."""
    numbers = (int, float, np.floating, np.integer)
    if isinstance(expected, numbers) and isinstance(found, numbers):
        return round(float(found)) == round(float(expected))
    return bool(found == expected)


def measured(name: str) -> dict[str, Any]:
    build, vocabulary, length = PROGRAMS[name]
    program = build(length)
    model = compiling.compile_rasp_to_model(program, set(vocabulary), length, compiler_bos="BOS")
    total = wrong = wrong_values = 0
    for n in range(1, length + 1):
        for sequence in itertools.product(vocabulary, repeat=n):
            pairs = list(
                zip(model.apply(["BOS", *sequence]).decoded[1:], program(list(sequence)), strict=True)
            )
            total += 1
            wrong += not all(equal(found, expected) for found, expected in pairs)
            wrong_values += not all(equal(f, e) for f, e in pairs if e is not None)
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(model.params))
    config = model.model_config
    return {
        "program": name, "vocabulary": len(vocabulary), "length": length, "sequences": total, "wrong": wrong,
        "wrong without None": wrong_values, "layers": config.num_layers, "heads": config.num_heads,
        "mlp": config.mlp_hidden_size, "numbers": numbers,
    }  # fmt: skip


if __name__ == "__main__":
    found = {"commit": COMMIT, "jax": jax.__version__, "programs": [measured(name) for name in PROGRAMS]}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
