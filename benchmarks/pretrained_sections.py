"""What is measured of converted transformers: blocks, time, memory, attacks on the intervals, a model of Llama's shape."""

from __future__ import annotations

import copy
import gc
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pages import ROOT, llama_config, progress
from torch import Tensor, nn

import attnc
from attnc.frontends.transformers import Site, find_blocks
from attnc.lower.layers import lower_steps
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained import ConversionReport, report_of
from attnc.prove.compose import compose
from attnc.records.fields import round_up
from tests.feed_forward import FeedForward, attainable, feed_forward

THREADS = 2
ENGINES = ("closed-form", "softmax")


@dataclass(frozen=True)
class Settings:
    """How large everything is."""

    approximation: float = 1e-5
    batch: int = 32
    tokens: int = 128
    repeats: int = 7
    dense_repeats: int = 1
    sentences: int = 50
    attacks: int = 60  # rows of 512 tokens
    steps: int = 40  # of ascent on embeddings
    hidden: int = 512
    intermediate: int = 1376
    decoded: int = 64


QUICK = Settings(
    batch=2, tokens=16, repeats=2, dense_repeats=1, sentences=8, attacks=2, steps=3, hidden=64,
    intermediate=96, decoded=8,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    section: str
    case: str
    quantity: str
    value: str
    asked: str = ""


@dataclass(frozen=True, eq=False)
class Pair:
    """The original, the converted model with its report, and the sites of the original."""

    original: nn.Module
    converted: nn.Module
    tokenizer: Any
    report: ConversionReport
    sites: tuple[Site, ...]

    def activations(self) -> list[Pointwise]:
        return [self.converted.get_submodule(site.name) for site in self.sites]  # type: ignore[misc]

    def use(self, engine: str) -> None:
        for activation in self.activations():
            activation.engine = engine


def minilm(settings: Settings) -> Pair:
    original, tokenizer = example().read(torch.float32)
    sites = find_blocks(original).blocks
    converted = copy.deepcopy(original)
    report = attnc.convert_(
        converted,
        approximation=settings.approximation,
        progress=lambda text, i=0, n=0, /: progress(f"{i} of {n}: {text}"),
    )
    return Pair(original, converted, tokenizer, report, sites)


def example() -> Any:
    spec = importlib.util.spec_from_file_location("minilm", ROOT / "examples" / "minilm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["minilm"] = module
    spec.loader.exec_module(module)
    return module


def blocks(pair: Pair, settings: Settings) -> Iterator[Row]:
    """What is proved of each block, and the largest difference that sentences show."""
    report = pair.report
    share = report.parameters_added / report.parameters
    yield Row("conversion", "conversion, float32", "seconds", f"{report.seconds:.1f}", "< 20")
    yield Row("conversion", "conversion, float32", "blocks converted", f"{report.converted}", "6")
    yield Row("conversion", "conversion, float32", "numbers added", f"{100 * share:.3f} %", "< 0.1 %")
    seen = {engine: _differences(pair, engine, settings) for engine in ENGINES}
    for i, block in enumerate(report.blocks):
        (lo, hi), facts = block.facts["interval"], block.facts
        found = {
            "interval": f"[{math.floor(10 * lo) / 10}, {math.ceil(10 * hi) / 10}]",
            "anchors": ", ".join(map(str, facts["anchors"])),
            "approximation": f"{round_up(block.approximation, 3):.3g}",
            **{f"rounding, {engine}": f"{round_up(facts['roundings'][engine], 3):.3g}" for engine in ENGINES},
            "rounding, were gelu exact": f"{round_up(facts['products'], 3):.3g}",
            **{f"largest seen, {engine}": f"{seen[engine][i]:.2g}" for engine in ENGINES},
        }
        for quantity, value in found.items():
            yield Row("blocks", f"block {i + 1}", quantity, value)


def _differences(pair: Pair, engine: str, settings: Settings) -> list[float]:
    """Of each block: |converted - original|, both executed on the same pre-activations, those of sentences."""
    texts = example().sentences(settings.sentences if engine == "closed-form" else 4, pair.tokenizer)
    most = [0.0] * len(pair.sites)
    batch = pair.tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
    pair.use("closed-form")
    with torch.no_grad():
        found = entering(pair, batch)
    for i, s in enumerate(found):
        second, activation = pair.sites[i].second.module, pair.activations()[i]
        with torch.no_grad():
            difference = second(activation(s, engine=engine)) - second(nn.functional.gelu(s))
        most[i] = float(difference.abs().max())
    return most


def entering(pair: Pair, arguments: Any) -> list[Tensor]:
    """The pre-activations of each block of the converted model, (tokens, neurons)."""
    found: list[Tensor] = []
    hooks = [
        part.register_forward_pre_hook(lambda _, given: found.append(given[0].flatten(0, -2)))
        for part in pair.activations()
    ]
    pair.converted(**arguments)
    for hook in hooks:
        hook.remove()
    return found


def times(pair: Pair, settings: Settings) -> Iterator[Row]:
    """One forward pass, original and converted in turn."""
    ids = _random_ids(settings.batch, settings.tokens, 0)
    case = f"time, {settings.batch} × {settings.tokens} tokens, {THREADS} threads"
    _seconds(pair.original, ids)
    for engine, repeats, asked in (
        ("closed-form", settings.repeats, "<= 2, 1.2 if possible"),
        ("softmax", settings.dense_repeats, ""),
    ):
        pair.use(engine)
        if engine == "closed-form":
            _seconds(pair.converted, ids)
        both = []
        for i in range(repeats):
            progress(f"time: {engine}, {i + 1} of {repeats}")
            both.append((_seconds(pair.original, ids), _seconds(pair.converted, ids)))
        ratios = sorted(ours / theirs for theirs, ours in both)
        theirs, ours = (statistics.median(column) for column in zip(*both, strict=True))
        yield Row("time", case, f"original, beside {engine}", f"{theirs:.3f} s")
        yield Row("time", case, engine, f"{ours:.3f} s")
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        yield Row("time", case, f"{engine} / original", spread, asked)
    pair.use("closed-form")


def _random_ids(batch: int, tokens: int, seed: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 30522, (batch, tokens), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _seconds(model: nn.Module, arguments: dict[str, Tensor]) -> float:
    began = time.perf_counter()
    with torch.inference_mode():
        model(**arguments)
    return time.perf_counter() - began


def memory(pair: Pair, settings: Settings) -> Iterator[Row]:
    """What a forward pass takes above the loaded model, each in a process of its own."""
    case = f"memory, {settings.batch} × {settings.tokens} tokens, {THREADS} threads"
    with tempfile.TemporaryDirectory() as directory:
        pair.converted.save_pretrained(directory)  # type: ignore[operator]
        added, held = {}, {}
        for engine in ("original", *ENGINES):
            progress(f"memory: {engine}")
            command = [
                sys.executable,
                str(Path(__file__).with_name("pretrained.py")),
                "--child",
                directory,
                engine,
                str(settings.batch),
                str(settings.tokens),
            ]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            added[engine], held[engine] = found["added"], found["peak"]
    for engine in added:
        yield Row("memory", case, f"{engine}, above the loaded model", f"{added[engine]:.0f} MiB")
    for engine in ENGINES:
        yield Row(
            "memory", case, f"{engine} / original", f"{added[engine] / added['original']:.2f}", "<= 1.5"
        )
        yield Row(
            "memory", case, f"{engine} / original, whole process", f"{held[engine] / held['original']:.2f}"
        )


def child(directory: str, engine: str, batch: str, tokens: str) -> None:
    """Load, run something small, then measure; prints one JSON object."""
    from network_child import forget_peak, peak, resident

    torch.set_num_threads(THREADS)
    model = (
        example().read(torch.float32)[0]
        if engine == "original"
        else attnc.from_pretrained(directory, engine=engine)
    )
    _seconds(model, _random_ids(1, 8, 0))
    ids = _random_ids(int(batch), int(tokens), 0)
    gc.collect()
    forget_peak()
    before = resident()
    _seconds(model, ids)
    print(json.dumps({"added": peak() - before, "peak": peak()}))


def _reach(ff: FeedForward) -> tuple[Any, Any]:
    """The interval of every pre-activation."""
    assert ff.norm is not None
    program = ff.program("float32")
    known = compose(program, lower_steps(program, "float32")[:1], ff.norm.domain(), {}, "float32")
    return known[1].reach


def attack(pair: Pair, settings: Settings) -> Iterator[Row]:
    """How much of its proved interval any neuron reaches, as |s - middle| / half of the width: it must stay below 1."""
    forwards = [feed_forward(site) for site in pair.sites]
    ends = [_reach(ff) for ff in forwards if ff.norm is not None]
    middle = [torch.from_numpy((lo + hi) / 2) for lo, hi in ends]
    half = [torch.from_numpy((hi - lo) / 2) for lo, hi in ends]

    def share(s: list[Tensor]) -> list[Tensor]:
        return [
            torch.maximum((x.amax(0).double() - m) / h, (m - x.amin(0).double()) / h).max()
            for x, m, h in zip(s, middle, half, strict=True)
        ]

    def worst(tries: Iterator[Any]) -> str:
        with torch.no_grad():
            return f"{max(float(f) for arguments in tries for f in share(entering(pair, arguments))):.3f}"

    pair.use("closed-form")
    progress("attack: tokens")
    rows = settings.attacks
    random = worst(_every_token(rows))
    yield Row("attack", f"attack: every token in random order, {rows} × 512", "share", random, "< 1")
    progress("attack: embeddings")
    noise = torch.randn(8, 64, 384, generator=torch.Generator().manual_seed(0))
    scales = [10.0**k for k in range(-6, 13, 3)]
    far = worst({"inputs_embeds": noise * scale} for scale in scales)
    yield Row("attack", "attack: random embeddings, scaled by 1e-6 to 1e12", "share", far, "< 1")
    sought = _ascended(pair, share, settings.steps)
    near = worst({"inputs_embeds": sought * scale} for scale in scales)
    yield Row(
        "attack", f"attack: embeddings by {settings.steps} steps of ascent, scaled", "share", near, "< 1"
    )
    norms = [pair.original.get_submodule(str(site.norm_name)) for site in pair.sites]
    at_norm = max(_at_the_norm(*given) for given in zip(pair.sites, norms, middle, half, strict=True))
    yield Row(
        "attack", "attack: the worst that can enter the norm in front", "share", f"{at_norm:.5f}", "< 1"
    )


def _every_token(rows: int) -> Iterator[dict[str, Tensor]]:
    """Rows of full length; 60 of them hold the whole vocabulary."""
    ids = torch.randperm(30522, generator=torch.Generator().manual_seed(0)).repeat(2)
    for part in ids[: rows * 512].reshape(-1, 512).split(8):
        yield {"input_ids": part}


def _ascended(pair: Pair, share: Callable[[list[Tensor]], list[Tensor]], steps: int) -> Tensor:
    """Embeddings that take some neuron of each block as far as steps of Adam can."""
    x = torch.randn(2, 8, 384, generator=torch.Generator().manual_seed(1)).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (-torch.stack(share(entering(pair, {"inputs_embeds": x}))).sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return x.detach()


def _at_the_norm(site: Site, norm: nn.Module, middle: Tensor, half: Tensor) -> float:
    """The vector that takes a neuron to the end of its interval, put into the norm itself: the intervals are tight."""
    ff = feed_forward(site)
    assert ff.norm is not None
    z = torch.from_numpy(attainable(ff.W1, ff.norm.domain())).float()
    found = []
    with torch.no_grad():
        for scale in (1.0, -1.0, 1e3, -1e3, 1e6):
            s = site.first.module(norm(scale * z)).double()
            found.append(float(((s - middle).abs() / half).max()))
    return max(found)


def llama(settings: Settings) -> Iterator[Row]:
    """A random model of Llama's shape in float64: blocks against their bounds, logits, greedy decoding."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    original = LlamaForCausalLM(llama_config(settings.hidden, settings.intermediate)).double().eval()
    progress("llama")
    converted = attnc.convert(original, approximation=1e-8)
    report = report_of(converted)
    case = f"Llama's shape, hidden {settings.hidden}, 4 layers, float64"
    ids = torch.randint(0, 1000, (2, 16), generator=torch.Generator().manual_seed(0))
    yield Row("llama", case, "blocks converted", f"{report.converted} in {report.seconds:.1f} s", "4")
    yield Row("llama", case, "proved of each block", f"{max(b.bound for b in report.blocks):.2g}", "")
    yield Row(
        "llama",
        case,
        "largest difference of a block",
        f"{_gated_difference(original, converted, ids):.2g}",
        "<= proved",
    )
    with torch.no_grad():
        logits = float((original(ids).logits - converted(ids).logits).abs().max())
    yield Row("llama", case, "largest difference of a logit", f"{logits:.2g}")
    made = [
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=settings.decoded, do_sample=False
        )
        for model in (original, converted)
    ]
    same = "identical" if torch.equal(*made) else "different"
    yield Row("llama", case, f"greedy decoding of {settings.decoded} tokens, 2 prompts", same, "identical")


def _gated_difference(original: nn.Module, converted: nn.Module, ids: Tensor) -> float:
    """|converted block - original block| on what enters the converted one."""
    found = []
    hooks = [
        part.register_forward_hook(
            lambda _, given, out, name=name: found.append(
                float((original.get_submodule(name)(given[0]) - out).abs().max())
            )
        )
        for name, part in converted.named_modules()
        if isinstance(part, GatedBlock)
    ]
    with torch.no_grad():
        converted(ids)
    for hook in hooks:
        hook.remove()
    return max(found)
