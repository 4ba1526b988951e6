"""Functions of several variables, proved from their operations: figures, Lipschitz constants, an attack.

python benchmarks/taylor.py             everything, about ten minutes: JSON and the tables of docs/functions.md
python benchmarks/taylor.py --quick     a smoke test; writes to out/ only
python benchmarks/taylor.py --only figures|fits|lipschitz|attack
python benchmarks/taylor.py --render    tables from the stored numbers

Times are CPU seconds of one thread (time.process_time)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

PARTS = ("figures", "fits", "lipschitz", "attack")
FUNCTIONS, INPUTS, BITS = 64, 1_000_000, 256
EVERY = 5  # of the functions that are attacked is fitted
Row = dict[str, Any]


def main() -> None:
    one_thread()
    sys.path[:0] = [str(ROOT)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    place = ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results"
    results = place / "taylor.json"
    for part in () if options.render else (options.only,) if options.only else PARTS:
        for found in MEASURED[part](options.quick):
            write(results, as_json({**_stored(results), part: found, "versions": versions()}))
    progress("")
    stored = _stored(results)
    tables = {part: SECTIONS[part](stored[part]) for part in PARTS if part in stored}
    if options.quick:
        print("\n\n".join(tables.values()))
        return
    for part, text in tables.items():
        put(ROOT / "docs" / "functions.md", part, text)


def _stored(results: Path) -> dict[str, Any]:
    return json.loads(results.read_text()) if results.exists() else {}


def figures(quick: bool) -> Iterator[list[Row]]:
    """The rows so far, after each case."""
    from traced_functions import CASES

    rows = []
    for case in CASES[:2] if quick else CASES:
        for eps in case.eps[:1] if quick else case.eps:
            net, row = _compiled(case, eps)
            facts = net.certificate.children[0].facts if net.certificate.children else {}
            rows.append({**row, "anchors": facts.get("anchors"), "cells": facts.get("cells")})
            yield rows


def fits(quick: bool) -> Iterator[list[Row]]:
    """The same for networks of tanh neurons that were fitted."""
    from traced_functions import FITS

    rows = []
    for case in FITS[:1] if quick else FITS:
        net, row = _compiled(case, case.eps[0], method="fit")
        facts, neurons = net.certificate.facts, net.program.shapes[net.program.layers[0] + 1][-1]
        rows.append(
            {**row, "neurons": neurons, "distance": facts.get("distance"), "cells": facts.get("cells")}
        )
        yield rows


def _compiled(case: Any, eps: float, **options: Any) -> tuple[Any, Row]:
    """The network of a case, and what is measured of any of them."""
    import torch

    import attnc

    torch.set_num_threads(1)
    progress(f"{case.title}, {eps:g}")
    began = time.process_time()
    box = attnc.Box(-1, 1, shape=case.shape)
    net = attnc.compile(case.f, domain=box, eps=eps, dtype=torch.float64, time_limit=1200, **options)
    compiled = time.process_time() - began
    file = ROOT / "out" / "bench" / "traced.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    net.save(file)
    began = time.process_time()
    verdict = attnc.verify(file)
    checked = time.process_time() - began
    c, seen = net.certificate, _largest(net, case.f, case.shape)
    row = {
        "case": case.title, "eps": eps, "status": str(c.status), "bound": c.bound, "rounding": c.rounding,
        "found": max(seen, c.error or 0.0), "seconds": compiled, "verdict": str(verdict.status), "check": checked,
    }  # fmt: skip
    return net, row


def _largest(net: Any, f: Any, shape: tuple[int, int], count: int = 60_000) -> float:
    """The largest error in float64 at random inputs, on faces and at corners."""
    import numpy as np
    import torch

    x = torch.from_numpy(_inputs(np.random.default_rng(9), count, shape))
    with torch.no_grad():
        parts = [(net(part) - f(part)).abs().max().item() for part in torch.split(x, 2048)]
    return float(max(parts))


def _inputs(draw: Any, count: int, shape: tuple[int, ...]) -> Any:
    """A third inside [-1, 1]^…, a third on faces and edges, a third near corners or at them."""
    import numpy as np

    x = draw.uniform(-1, 1, (count, *shape))
    third = count // 3
    x[:third] = np.where(draw.random((third, *shape)) < 0.4, np.sign(x[:third]), x[:third])
    corners = np.sign(x[third : 2 * third])
    x[third : 2 * third] = corners * (
        1 - np.where(draw.random((third, *shape)) < 0.5, 0.0, 10 ** draw.uniform(-9, -1, (third, *shape)))
    )
    return x


def lipschitz(quick: bool) -> Iterator[list[Row]]:
    import numpy as np
    import torch
    from traced_functions import CASES

    import attnc
    from attnc.frontends.trace import trace
    from attnc.prove.gradient import lipschitz_bound

    rows = []
    for case in CASES[:2] if quick else CASES:
        progress(f"Lipschitz: {case.title}")
        box = attnc.Box(-1, 1, shape=case.shape)
        traced = trace(case.f, box)
        began = time.process_time()
        found = lipschitz_bound(traced, box.lo.ravel(), box.hi.ravel())
        seconds = time.process_time() - began
        x = torch.from_numpy(_inputs(np.random.default_rng(3), 30_000, case.shape)).requires_grad_()
        y, slope = case.f(x).flatten(1), 0.0
        for o in range(y.shape[1]):
            (gradient,) = torch.autograd.grad(y[:, o].sum(), x, retain_graph=True)
            slope = max(slope, float(gradient.flatten(1).norm(dim=1).max()))
        rows.append({
            "case": case.title, "constant": found.constant, "found": max(slope, found.attained), "cells": found.cells,
            "seconds": seconds,
        })  # fmt: skip
        yield rows


def attack(quick: bool, seed: int = 0) -> Iterator[Row]:
    """Random functions, each compiled and executed at many inputs, against the traced function in balls of 256 bits."""
    import numpy as np
    import torch
    from traced_functions import random_function

    import attnc
    from attnc.errors import AttncError

    torch.set_num_threads(1)
    wanted = 4 if quick else FUNCTIONS
    inputs = 2000 if quick else -(-INPUTS // FUNCTIONS)
    found: Row = {
        "functions": 0,
        "inputs": 0,
        "above": 0,
        "refused": 0,
        "unproved": 0,
        "kinked": 0,
        "fits": 0,
        "float32": 0,
        "largest": 0.0,
    }
    while found["functions"] < wanted:
        draw, seed = np.random.default_rng(seed), seed + 1
        f, d, title = random_function(draw)
        progress(f"attack {found['functions']}: {title}")
        eps, dtype = (
            float(10 ** draw.uniform(-3.5, -1.2)),
            (torch.float64, torch.float32)[int(draw.random() < 0.3)],
        )
        method = "fit" if seed % EVERY == 0 else "auto"
        eps = max(eps, 5e-3) if dtype == torch.float32 or method == "fit" else eps
        box = attnc.Box(-1, 1, shape=(1, d))
        try:
            net = attnc.compile(f, domain=box, eps=eps, dtype=dtype, method=method, time_limit=10)
        except AttncError:
            found["refused"] += 1
            continue
        if net.certificate.status != "proved":
            found["unproved"] += 1
            continue
        above, share = _against_balls(net, _inputs(draw, inputs, (1, d)))
        found["functions"] += 1
        found["inputs"] += inputs
        found["above"] += above
        found["kinked"] += _traced(net).has_kinks
        found["fits"] += method == "fit"
        found["float32"] += dtype == torch.float32
        found["largest"] = max(found["largest"], share)
        yield found


def _traced(net: Any) -> Any:
    """The function that the certificate is about."""
    from attnc.records.fitted import meaning

    (traced,) = (step for step in meaning(net.program, net.certificate).steps if step.kind == "traced")
    return traced


def _against_balls(net: Any, x: Any) -> tuple[int, float]:
    """How many executed outputs are farther from f than the bound, and the largest error over the bound."""
    import torch
    from flint import arb

    from attnc.functions.balls import working
    from attnc.program.traced import BALLS

    traced = _traced(net)
    given = torch.from_numpy(x).to(next(net.parameters()).dtype)
    with torch.no_grad():
        made = torch.cat([net(part) for part in torch.split(given, 2048)]).double().flatten(1).tolist()
    above, share = 0, 0.0
    with working(BITS):
        bound = arb(net.certificate.bound)
        for row, outputs in zip(given.double().flatten(1).tolist(), made, strict=True):
            meant = traced.interpret([arb(s) for s in row], BALLS, arb)
            for y, ball in zip(outputs, meant, strict=True):
                off = abs(arb(y) - ball)
                above += not off <= bound
                share = max(share, float(off.mid()) / net.certificate.bound)
    return above, share


def _figures(rows: list[Row]) -> str:
    lines = [
        "| f on [-1, 1]^d | eps | anchors | proved bound | rounding | error found | quotient | cells | compile, s | check | s |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        lines.append(
            f"| {r['case']} | {r['eps']:g} | {r['anchors']} | {r['bound']:.3g} | {r['rounding']:.1e} | {r['found']:.3g} | "
            f"{r['bound'] / r['found']:.2f} | {r['cells']:,} | {r['seconds']:.1f} | {r['verdict']} | {r['check']:.1f} |"
        )
    return "\n".join(lines)


def _fits(rows: list[Row]) -> str:
    lines = [
        "| f on [-1, 1]^d | eps | neurons | status | bound | error found | quotient | cells | compile, s | check | s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = "" if r["cells"] is None else f"{r['cells']:,}"
        lines.append(
            f"| {r['case']} | {r['eps']:g} | {r['neurons']} | {r['status']} | {r['bound']:.3g} | {r['found']:.3g} | "
            f"{r['bound'] / r['found']:.2f} | {cells} | {r['seconds']:.1f} | {r['verdict']} | {r['check']:.1f} |"
        )
    return "\n".join(lines)


def _lipschitz(rows: list[Row]) -> str:
    lines = [
        "| f on [-1, 1]^d | proved constant | largest slope found | quotient | cells | s |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        quotient = r["constant"] / r["found"]
        lines.append(
            f"| {r['case']} | {r['constant']:.6g} | {r['found']:.6g} | {quotient:.4f} | {r['cells']:,} | {r['seconds']:.2f} |"
        )
    return "\n".join(lines)


def _attack(r: Row) -> str:
    kinds = f"{r['kinked']} with kinks, {r['float32']} in float32, {r['fits']} by fitted networks"
    return (
        f"{r['functions']} random functions ({kinds}), {r['inputs']:,} inputs, a third of them on faces and edges, a third at "
        f"corners or near them: {r['above']} outputs above the bound. The largest error is {r['largest']:.3f} of the bound."
    )


MEASURED: dict[str, Any] = {"figures": figures, "fits": fits, "lipschitz": lipschitz, "attack": attack}
SECTIONS: dict[str, Any] = {"figures": _figures, "fits": _fits, "lipschitz": _lipschitz, "attack": _attack}

if __name__ == "__main__":
    main()
