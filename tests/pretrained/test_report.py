"""The report of a conversion: what it counts, and that text, JSON and HTML say the same."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import attnc
from attnc.errors import CertificateError
from attnc.frontends.transformers import Skipped
from attnc.pretrained import ConversionReport, convert_, report_of
from attnc.pretrained.report import holds_for, model_certificate
from attnc.records.fields import at_most, round_up
from tests.frontends.tiny_models import TEXT, example, hf, randomised

NASTY = "<b onclick='x'>&\"é"


class Nasty(nn.Module):
    """A block without a norm under a name that is no name, one behind a norm, and activations beside them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.add_module(NASTY, nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4)))
        self.normed = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.last = nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {
            NASTY: self.last(self.normed(self.get_submodule(NASTY)(x))),
            "ids": torch.zeros(1, dtype=torch.int64),
        }


@pytest.fixture(scope="module")
def report() -> ConversionReport:
    x = [torch.randn(3, 4), (torch.randn(1, 4),), {"x": torch.randn(2, 4)}]
    return convert_(Nasty().eval(), approximation=1e-3, config={"calibration": x}, samples=x)


def test_what_it_counts(report: ConversionReport) -> None:
    first, second = report.blocks
    assert (first.name, second.name) == (f"{NASTY}.1", "normed.2") and report.converted == 2
    assert (first.facts["neurons"], first.facts["heads"], second.facts["neurons"], second.facts["heads"]) == (
        5,
        5,
        6,
        6,
    )
    assert (first.status, second.status) == ("measured", "proved") and not report.proved
    assert (
        first.bound == round_up(first.approximation + first.rounding) >= first.approximation + first.rounding
    )
    assert (
        first.rounding == first.facts["roundings"]["closed-form"]
        and 0 < first.facts["products"] <= first.rounding
    )
    assert [(one.name, one.reason) for one in report.skipped] == [
        ("last", "sigmoid, in no feed-forward block")
    ]
    assert (
        report.parameters
        == sum(p.numel() for p in Nasty().parameters())
        == 4 * 5 + 5 + 5 * 4 + 4 + 8 + 30 + 28
    )
    (measured,) = report.measured
    assert (measured.output, measured.numbers, report.samples) == (NASTY, 6 * 4, 3)
    assert 0 <= measured.median <= measured.largest < 2e-3
    assert report.certificate.versions["attnc"] and report.seconds > 0 and report.approximation == 1e-3


def test_numbers_added_are_those_of_the_state_dict() -> None:
    for name in ("BertModel", "LlamaModel"):
        model = randomised(
            getattr(hf, name)(
                getattr(hf, name.replace("Model", "Config"))(**{**TEXT, "num_hidden_layers": 1})
            )
        )
        before = sum(t.numel() for t in model.state_dict().values())
        report = convert_(model, approximation=1e-3)
        assert report.parameters_added == sum(t.numel() for t in model.state_dict().values()) - before
        assert report.blocks[0].facts["heads"] == (3 if name == "LlamaModel" else 1) * 24


def test_text(report: ConversionReport) -> None:
    text = str(report)
    assert text.startswith("Nasty: 2 feed-forward blocks converted to attention in ")
    assert (
        "each within 0.001 in exact arithmetic" in text
        and f"parameters added to {report.parameters:,}" in text
    )
    assert "measured on 3 samples, converted against original" in text
    assert "skipped: last (sigmoid, in no feed-forward block)" in text
    for block in report.blocks:
        assert block.name in text and at_most(block.approximation) in text and holds_for(block) in text


def test_json_is_read_back(report: ConversionReport) -> None:
    written = json.dumps(report.to_json(), allow_nan=False)
    assert ConversionReport.from_json(json.loads(written)) == report
    record = json.loads(written)
    blocks = record["certificate"]["children"]
    assert [b["status"] for b in blocks] == ["measured", "proved"] and blocks[0]["bound"] == report.blocks[
        0
    ].bound


def changed(record: dict[str, Any], *path: Any, drop: bool = False) -> dict[str, Any]:
    copy = json.loads(json.dumps(record))
    at = copy
    for step in path[:-1]:
        at = at[step]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = 1
    return dict(copy)


def test_what_is_no_report_is_refused(report: ConversionReport) -> None:
    record, bad = json.loads(json.dumps(report.to_json())), object()
    for bad in (
        None, [], {}, changed(record, "samples", drop=True), changed(record, "more"),
        changed(record, "certificate", "children", 0, "more"),
        changed(record, "certificate", "children", 1, "bound"), changed(record, "skipped", 0, "reason", drop=True),
    ):  # fmt: skip
        with pytest.raises(CertificateError):
            ConversionReport.from_json(bad)


class Page(HTMLParser):
    """The tags in order, and the texts between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open += [] if tag == "meta" else [tag]
        self.cells += [""] if tag == "td" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["td"]:
            self.cells[-1] += data


def test_html_is_whole_and_escapes_names(report: ConversionReport) -> None:
    page = Page(report.to_html())
    assert not page.open and "b" not in page.tags and "script" not in page.tags
    assert len(page.cells) == 18 and page.cells[0] == f"{NASTY}.1" and page.cells[9] == "normed.2"
    card = Page(report._repr_html_())
    assert not card.open and "script" not in card.tags and card.cells == page.cells
    assert NASTY not in report._repr_html_()


def test_one_sample_and_one_block_are_singular() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)).eval()
    text = str(convert_(model, approximation=1e-3, samples=torch.randn(2, 4)))
    assert "1 feed-forward block converted" in text and "measured on 1 sample," in text


def test_the_config_of_a_model_carries_the_report() -> None:
    model = randomised(hf.BertModel(hf.BertConfig(**{**TEXT, "num_hidden_layers": 1})))
    report = convert_(model, approximation=1e-3, samples=example("bert"))
    assert ConversionReport.from_json(json.loads(model.config.to_json_string())["attnc"]["report"]) == report
    assert report_of(model) is report


def test_many_blocks_are_shown_by_kind(report: ConversionReport) -> None:
    first, second = report.blocks
    exact = 2 * first.approximation
    worse = replace(second, bound=exact + first.rounding, approximation=exact, rounding=first.rounding)
    others = [replace(second, name=f"normed.{i}") for i in range(3, 40)]
    left = tuple(Skipped(f"part.{i}", "left out by filter_fn") for i in range(50))
    blocks = [first, *others, replace(worse, name="worst")]
    many = replace(report, certificate=model_certificate("Many", 1e-3, blocks), skipped=left)
    lines = str(many).splitlines()
    assert lines[3].startswith("worst and 37 more") and at_most(worse.approximation) in lines[3]
    assert lines[4].startswith(f"{NASTY}.1 ") and lines[5] == ""
    assert sum("filter_fn" in line for line in lines) == 1 and "part.0 and 49 more" in str(many)
    page = many.to_html()
    assert all(f"<td>{block.name}</td>" in page for block in others)
    assert ConversionReport.from_json(json.loads(json.dumps(many.to_json()))) == many


def test_a_report_without_memory_is_read(report: ConversionReport) -> None:
    record = report.to_json()
    del record["memory"]
    assert ConversionReport.from_json(record) == report
    assert "GiB" not in str(report) and "2.00 GiB" in str(replace(report, memory=2**31))


def test_it_says_that_the_model_changed() -> None:
    """Numbers of the converted parts and their code; what is beside them has no certificate that could lapse."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, activation="gelu", batch_first=True).eval()
    report = convert_(layer, approximation=1e-3, parts="all")
    shown = str(report)
    assert report.certificate.why_lapsed() is None and "as it is now" not in shown
    twin = copy.deepcopy(layer)
    for part, name in ((layer.linear1, "linear1.weight"), (layer.norm1, "norm1.weight")):
        before = part.weight.detach().clone()
        part.weight.data.view(-1)[0] += 0.25
        assert name in (report.certificate.why_lapsed() or "") and name in str(report.certificate)
        assert "as it is now" in str(report) and ">proved<" not in report._repr_html_()
        assert report_of(twin).certificate.why_lapsed() is None, "a copy has a report of its own"
        part.weight.data.copy_(before)
    assert report.certificate.why_lapsed() is None and str(report) == shown
    layer.self_attn.in_proj_weight.data.add_(1)
    assert report.certificate.why_lapsed() is None
    activation = layer.get_submodule(report.blocks[0].name)
    handle = activation.register_forward_hook(lambda m, given, out: out + 1)
    assert "hook" in (report.certificate.why_lapsed() or "")
    handle.remove()
    layer.norm2 = nn.LayerNorm(8)
    assert "norm2" in (report.certificate.why_lapsed() or "")
    assert ConversionReport.from_json(report.to_json()).certificate.why_lapsed() is None


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("norm1.heads.offset", 0.5, "epsilon"), ("norm1.centred", False, "centred"), ("norm1.engine", "softmax", "epsilon"),
        ("activation.engine", "softmax", "forms"),
    ],
)  # fmt: skip
def test_it_says_that_settings_changed(name: str, value: object, seen: str) -> None:
    """What a part runs besides its tensors: the report states the bound of one ε and of one engine."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, activation="gelu", batch_first=True).eval()
    report = convert_(layer, 1e-3, {"engine": "closed-form"}, parts="all")
    assert report.certificate.why_lapsed() is None
    place, _, attribute = name.rpartition(".")
    setattr(layer.get_submodule(place), attribute, value)
    assert seen in (report.certificate.why_lapsed() or "") and not attnc.verify(layer)
