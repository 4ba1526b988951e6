"""Cards: every result has one; the tags are closed, the text is escaped, and only what is proved is called so."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

import attnc
import attnc.incontext
from attnc.records.certificate import Status, Verdict
from tests.plot.test_report import Page


def results() -> dict[str, Any]:
    head = attnc.head("gelu", domain=(-4, 4), eps=1e-2)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2)
    encoder = nn.TransformerEncoderLayer(8, 2, 8, activation="gelu", batch_first=True).eval()
    report = attnc.convert_(encoder, approximation=1e-3)
    program = attnc.tokens.program("ab", max_len=3)
    learner = attnc.incontext.gradient_descent("lasso", features=2, steps=2, dtype=torch.float64)
    solver = attnc.incontext.ridge_regression(features=2, ridge=0.1, dtype=torch.float64)
    return {
        "head": head, "certificate": net.certificate, "verdict": attnc.verify(head), "network": net,
        "literal": net.as_self_attention(2), "literal head": head.as_self_attention(2), "report": report,
        "verdict of parts": attnc.verify(encoder), "tokens": program.compile(program.tokens), "learner": learner,
        "solver": solver,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return results()


def test_every_result_has_a_card(made: dict[str, Any]) -> None:
    for name, x in made.items():
        text = x._repr_html_()
        page = Page(text)
        assert not {"script", "style", "html", "link"} & {tag for tag, _ in page.tags}, name
        assert text.count(">proved<") >= (not name.startswith("literal")), name
        assert len(text) < 60_000, name
    assert "<svg" in made["head"]._repr_html_() and "aria-label" in made["head"]._repr_html_()
    for word in ("W_Q", "named coordinates", ">unknown<"):
        assert word in made["literal"]._repr_html_()
    for word in ("every example", "clip(w"):
        assert word in made["learner"]._repr_html_()


def test_what_changed_is_not_called_proved(made: dict[str, Any]) -> None:
    for name in ("head", "network", "tokens", "learner", "literal"):
        changed = copy.deepcopy(made[name])
        with torch.no_grad():
            next(p for p in changed.parameters() if p.numel()).add_(1)
        for text in (changed._repr_html_(), changed.certificate._repr_html_().partition("<details")[0]):
            assert ">not certified<" in text and not {">proved<", ">unknown<"} & set(
                re.findall(">[^<]+<", text)
            ), name


def test_text_is_escaped() -> None:
    text = Verdict(Status.UNKNOWN, "a < b & <script>", name="<i>")._repr_html_()
    Page(text)
    assert "<script>" not in text and "&lt;script&gt;" in text and "<i>" not in text


def test_a_head_says_how_many_anchors_its_picture_leaves_out() -> None:
    head = attnc.head("gelu", domain=(-8, 8), anchors=6, design="tuned", dtype=torch.float64)
    beyond = sum(not -8 <= float(a) <= 8 for a in head.anchors)
    text = head._repr_html_()
    assert beyond > 0 and text.count("<circle") == 6 - beyond and f"({beyond} of 6 " in text
    whole = attnc.head(
        "gelu", domain=(-8, 8), anchors=16, design="nearest", dtype=torch.float64
    )._repr_html_()
    assert whole.count("<circle") == 16 and " of 16 " not in whole
