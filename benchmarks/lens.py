"""TransformerLens models against literal forms: sizes, and the largest differences of results and attention patterns in float64.

python benchmarks/lens.py             JSON and the table of docs/transformer_lens.md; needs the extra `transformer-lens`
python benchmarks/lens.py --quick     a smoke test; writes to out/ only
python benchmarks/lens.py --render    the table from the stored numbers
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from pages import ROOT, as_json, one_thread, progress, put, versions, write

INPUTS, CONTEXTS, EXAMPLES = 200, 50, 20


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    results = (ROOT / "out" / "bench" if options.quick else ROOT / "benchmarks" / "results") / "lens.json"
    if not options.render:
        write(results, as_json(run(options.quick)))
    stored = json.loads(results.read_text())
    if options.quick:
        print(table(stored))
        return
    put(ROOT / "docs" / "transformer_lens.md", "sizes", table(stored))


def run(quick: bool) -> dict[str, Any]:
    chosen = list(CASES.items())[: 2 if quick else None]
    found = [measured(name, make) for name, make in chosen]
    progress("")
    return {"cases": found, "versions": versions("transformer-lens")}


def measured(name: str, make: Callable[[], tuple[Any, tuple[Any, ...]]]) -> dict[str, Any]:
    """Inputs are random, inside the domain; the patterns are those of the first 8."""
    import torch

    progress(name)
    torch.manual_seed(0)
    literal, inputs = make()
    began = time.perf_counter()
    lens = literal.to_transformer_lens()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        y, z = lens(*inputs), literal(*inputs)
        few = tuple(x[:8] for x in inputs)
        _, cache = lens.run_with_cache(*few)
        apart = [0.0]
        for step, own in literal.attention(*few).items():
            heads, tokens = own.shape[-3], own.shape[-1]
            pattern = cache["pattern", lens.block(step)][:, :heads, :tokens, :tokens]
            apart.append(float((pattern - own.reshape(pattern.shape)).abs().max()))
    cfg = lens.bridge.cfg
    sizes = {key: getattr(cfg, key) for key in ("d_model", "d_head", "n_heads", "n_layers")}
    return {
        "name": name, "difference": max(float((y - z).abs().max()), lens.difference), "allowed": lens.allowed,
        "pattern": max(apart), "size": float(z.abs().max()), "tokens": len(lens.tokens(*few)), "seconds": seconds, **sizes,
    }  # fmt: skip


def head(name: str) -> Any:
    import torch

    import attnc

    literal = attnc.head(name, domain=(-8, 8), eps=1e-6, dtype=torch.float64).as_self_attention(3)
    return literal, (torch.rand(INPUTS, 3, dtype=torch.float64) * 16 - 8,)


def network() -> Any:
    import torch
    from torch import nn

    import attnc

    hidden = nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU()
    model = nn.Sequential(*hidden, nn.Linear(16, 2)).double().eval()
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-6)
    return net.as_self_attention(3), (torch.rand(INPUTS, 3, 4, dtype=torch.float64) * 2 - 1,)


def theorem(layout: str) -> Any:
    import torch
    from torch import nn

    import attnc

    layers = nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), nn.Unflatten(1, (4, 2))
    model = nn.Sequential(*layers).double().eval()
    net = attnc.paper.two_layer(model, attnc.Box(0, 1, shape=(4, 3)), eps=1e-6, layout=layout)
    return net.as_self_attention(), (torch.rand(INPUTS, 4, 3, dtype=torch.float64),)


def learner(loss: str, radius: float) -> Any:
    import torch

    from attnc import incontext

    made = incontext.gradient_descent(
        loss, features=3, steps=10, step_size=0.3, radius=radius, dtype=torch.float64
    )
    x, query = (torch.rand(CONTEXTS, n, 3, dtype=torch.float64) - 0.5 for n in (EXAMPLES, 4))
    return made.as_self_attention(), (x, (x[..., 0] > 0).double(), query)


def bert() -> Any:
    """One layer, random weights, four token ids."""
    import torch
    from transformers import BertConfig, BertModel

    import attnc

    config = BertConfig(
        vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=8,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval().double()
    net = attnc.compile(model, domain=attnc.Tokens(6, 4), approximation=1e-3)
    return net.as_self_attention(), (torch.randint(0, 6, (INPUTS, 4)),)


def converted() -> Any:
    """The norm of a converted block."""
    import torch
    from torch import nn

    import attnc

    parts = nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
    model: Any = attnc.convert(nn.Sequential(*parts).eval().double(), approximation=1e-3, parts="all")
    return model[0].as_self_attention(3), (torch.randn(INPUTS, 3, 8, dtype=torch.float64),)


CASES: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "head of tanh": lambda: head("tanh"),
    "head of gelu": lambda: head("gelu"),
    "network 4-16-16-2, GELU": network,
    "theorem, two layers, neurons as tokens": lambda: theorem("tokens"),
    "theorem, two layers, neurons as heads": lambda: theorem("heads"),
    "logistic regression, 10 steps, radius 1": lambda: learner("logistic", 1.0),
    "logistic regression, 10 steps, radius 5": lambda: learner("logistic", 5.0),
    "least squares, 10 steps, radius 1": lambda: learner("squared", 1.0),
    "least squares, 10 steps, radius 5": lambda: learner("squared", 5.0),
    "BERT, 1 layer of width 8, compiled": bert,
    "LayerNorm of a converted block": converted,
}


def table(stored: dict[str, Any]) -> str:
    lines = [
        "| | d_model | d_head | heads | layers | tokens | largest output | difference | rounding explains | of patterns |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in stored["cases"]:
        sizes = " | ".join(str(case[key]) for key in ("d_model", "d_head", "n_heads", "n_layers", "tokens"))
        found = " | ".join(f"{case[key]:.1e}" for key in ("difference", "allowed", "pattern"))
        lines.append(f"| {case['name']} | {sizes} | {case['size']:.2g} | {found} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
