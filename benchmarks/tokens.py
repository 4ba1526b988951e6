"""Token networks: every sequence, certificates at length, mutants of the stored weights. Results: results/tokens.json.

python benchmarks/tokens.py                     everything, about 20 minutes
python benchmarks/tokens.py --only mutants      one part: sequences, length or mutants
python benchmarks/tokens.py --only lens         all sequences in TransformerLens, in an environment that has it (make test-lens)
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from pages import as_json, one_thread, progress, versions, write  # noqa: E402

one_thread()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from attnc.check.tokens import prove_tokens  # noqa: E402
from attnc.check.values import CheckError  # noqa: E402
from attnc.pretrained.verify import verify  # noqa: E402
from attnc.records.tokens import MATRICES, TokenNumbers  # noqa: E402
from attnc.tokens import TokenNetwork  # noqa: E402
from attnc.zoo.token_tasks import TASKS  # noqa: E402
from tests.zoo.references import REFERENCES, all_sequences, answers, batches, wrong  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "tokens.json"
LENGTHS = (("histogram", 8, 32), ("parity", 2, 64), ("induction", 8, 16), ("sort", 4, 16))
DTYPES = (torch.float32, torch.float64)
SMALL = {"dyck-1": (2, 7), "parity": (2, 7), "add-mod-7": (7, 2), "random-table": (6, 3), "dyck-2": (4, 4)}
FACTORS = (-1.0, 0.0, 0.5, 0.75, 1.25, 2.0)


def sequences() -> Iterator[dict[str, Any]]:
    """All sequences up to the length of each task."""
    for name, task in TASKS.items():
        for dtype in DTYPES:
            p, output = task.program()
            net = p.compile(output, dtype)
            began, total, bad = time.process_time(), 0, 0
            for X in batches(task.vocabulary, task.length):
                total, bad = total + len(X), bad + wrong(net, REFERENCES[name], X)
            seconds = round(time.process_time() - began, 1)
            record = {"task": name, "dtype": str(dtype).removeprefix("torch."), "vocabulary": task.vocabulary}
            record |= {"length": task.length, "sequences": total, "wrong": bad, "seconds": seconds}
            record |= {"heads": net.certificate.facts["layers"], "d_model": len(net.coordinates)}
            nonzero = sum(int((t != 0).sum()) for t in net.state_dict().values())
            record |= {"nonzero": nonzero, "numbers": sum(t.numel() for t in net.state_dict().values())}
            progress(f"{name} {dtype}: {bad} of {total:,} wrong, {seconds} s")
            yield record | {"margin": net.certificate.facts["margin"]}


def at_length() -> Iterator[dict[str, Any]]:
    """Certificates for many sequences, checked again; and some random sequences."""
    for name, size, length in LENGTHS:
        for dtype in DTYPES:
            p, output = TASKS[name].program(size, length)
            began = time.process_time()
            net = p.compile(output, dtype)
            compiled = time.process_time()
            verdict = verify(net)
            checked = time.process_time()
            X = np.random.default_rng(1).integers(0, size, (2000, length))
            record = {
                "task": name,
                "dtype": str(dtype).removeprefix("torch."),
                "vocabulary": size,
                "length": length,
            }
            record |= {"status": str(verdict.status), "pairs": verdict.cells}
            record |= {"compiled": round(compiled - began, 2), "checked": round(checked - compiled, 2)}
            progress(f"{name} V={size} n={length} {dtype}: {verdict.status}, {record['checked']} s")
            yield record | {"random": len(X), "wrong": wrong(net, REFERENCES[name], X)}


def mutated(numbers: TokenNumbers, draw: random.Random, gap: float) -> TokenNumbers:
    """One stored number, or one row or column, changed."""
    places = ["tokens", "positions", "unembedding"] + [
        (i, m) for i in range(len(numbers.layers)) for m in MATRICES
    ] * 3
    place = draw.choice(places)
    array = getattr(numbers, place) if isinstance(place, str) else getattr(numbers.layers[place[0]], place[1])
    changed, nonzero = array.copy(), np.argwhere(array)
    kind = draw.choice(("scale", "scale", "scale", "add", "swap", "row"))
    at = tuple(draw.choice(nonzero.tolist()))
    if kind == "scale":
        changed[at] *= draw.choice(FACTORS)
    elif kind == "add":
        changed[tuple(draw.randrange(n) for n in array.shape)] += draw.choice((1, -1, gap, -gap, 3 * gap))
    elif kind == "swap":
        other = tuple(draw.randrange(n) for n in array.shape)
        changed[at], changed[other] = array[other], array[at]
    else:
        changed[at[:-1]] *= draw.choice(FACTORS)
    changed = changed.astype(numbers.dtype).astype(np.float64)
    if isinstance(place, str):
        return replace(numbers, **{place: changed})
    layers = list(numbers.layers)
    layers[place[0]] = replace(layers[place[0]], **{place[1]: changed})
    return replace(numbers, layers=tuple(layers))


def mutants(each: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Random changes of the weights: which the checker accepts, and which give a wrong output for some sequence."""
    for name in TASKS:
        if name == "add-mod-113":
            continue
        size, length = SMALL.get(name, (3, 4))
        p, output = TASKS[name].program(size, length)
        net = p.compile(output)
        program, numbers, draw = net.program, net.numbers(), random.Random(seed)
        counts = {"mutants": 0, "same": 0, "accepted": 0, "really wrong": 0, "wrong and accepted": 0}
        for _ in range(each):
            other = mutated(numbers, draw, 128.0)
            if other.digests() == numbers.digests():
                counts["same"] += 1
                continue
            try:
                prove_tokens(program, other)
                accepted = True
            except CheckError:
                accepted = False
            broken = TokenNetwork(other, program, None)
            bad = any(wrong(broken, REFERENCES[name], all_sequences(size, n)) for n in range(1, length + 1))
            counts["mutants"] += 1
            counts["accepted"] += accepted
            counts["really wrong"] += bad
            counts["wrong and accepted"] += accepted and bad
        progress(f"{name}: {counts}")
        yield {"task": name, "vocabulary": size, "length": length, **counts}


def in_lens() -> Iterator[dict[str, Any]]:
    """All sequences in TransformerLens: wrong tokens, and how far its logits are from ours."""
    for name, task in TASKS.items():
        for dtype in DTYPES:
            p, output = task.program()
            net = p.compile(output, dtype)
            lens, total, bad, worst = net.to_transformer_lens(), 0, 0, 0.0
            for X in batches(task.vocabulary, task.length, 2048):
                ids, expected = torch.from_numpy(X), answers(net, X)
                with torch.no_grad():
                    logits, ours = lens(ids), net(ids)
                worst = max(worst, float((logits - ours).abs().max()))
                known = expected == REFERENCES[name](X)
                same = (logits.argmax(-1) == ours.argmax(-1)).numpy()
                total, bad = total + len(X), bad + int((~(known & same)).any(1).sum())
            record = {"task": name, "dtype": str(dtype).removeprefix("torch."), "sequences": total}
            progress(f"{name} {dtype} in TransformerLens: {bad} of {total:,} wrong, difference {worst}")
            yield record | {"wrong": bad, "difference": worst}


PARTS = {"sequences": sequences, "length": at_length, "mutants": lambda: mutants(100)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=[*PARTS, "lens"])
    chosen = parser.parse_args().only
    for name, part in {**PARTS, "lens": in_lens}.items():
        if chosen == name or (chosen is None and name in PARTS):
            found = []
            for row in part():  # stored at once
                found.append(row)
                stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
                write(RESULTS, as_json({**stored, name: found, "versions": versions()}))


if __name__ == "__main__":
    main()
