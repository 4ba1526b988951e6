"""Reports: one page with picture, statement, certificate and verdict, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attnc
from attnc.errors import InputError
from attnc.records.fields import at_most


class Page(HTMLParser):
    """The tags of a page, which must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "polyline", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def tanh() -> attnc.Head:
    return attnc.head("tanh", domain=(-8, 8), eps=1e-5)


@pytest.fixture(scope="module")
def network() -> attnc.Network:
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2)


@pytest.mark.parametrize("kind", ["tanh", "network"])
def test_a_page_of_its_own(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    x, path = request.getfixturevalue(kind), tmp_path / "page.html"
    assert attnc.plot.report(x, path).status == "proved"
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == 1 and pictures[0]["alt"]
    assert str(pictures[0]["src"]).startswith("data:image/png;base64,iVBOR")
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert re.findall(r"(?:src|href)='(?!data:)", text) == []
    assert at_most(x.certificate.bound) in text and text.count(">proved<") == 2
    assert len(text) < 1_000_000


def test_a_changed_head_and_a_measured_one_are_not_called_proved(tmp_path: Path, tanh: attnc.Head) -> None:
    import copy

    changed, path = copy.deepcopy(tanh), tmp_path / "page.html"
    with torch.no_grad():
        changed.value.add_(1)
    assert not attnc.plot.report(changed, path)
    text = path.read_text(encoding="utf-8")
    assert ">proved<" not in text and "differs from the exact value" not in text

    def bend(s: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(s + 4)

    measured = attnc.head(bend, domain=(-2, 2), eps=1e-2)
    assert not attnc.plot.report(measured, path, f=bend)
    text = path.read_text(encoding="utf-8")
    assert ">proved<" not in text and ">measured<" in text


@pytest.mark.parametrize(("given", "name"), [("head", "page.pdf"), (3, "page.html")])
def test_refusals(given: Any, name: str, tmp_path: Path, tanh: attnc.Head) -> None:
    with pytest.raises(InputError):
        attnc.plot.report(tanh if given == "head" else given, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_page_of_a_learner(loss: str, tmp_path: Path) -> None:
    import attnc.incontext

    learner = attnc.incontext.gradient_descent(loss, features=1, steps=3, step_size=0.5, dtype=torch.float64)
    x, y = torch.tensor([[1.0], [-1.0]], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    path = tmp_path / "learner.html"
    for context, pictures in (None, 0), ((x, y), 1):
        assert attnc.plot.report(learner, path, context=context).status == "proved"
        text = path.read_text(encoding="utf-8")
        assert sum(tag == "img" for tag, _ in Page(text).tags) == pictures
        assert "exact gradient descent" in text and "up to 1,000 examples" in text
    with torch.no_grad():
        learner.reading.value.mul_(2)
    assert not attnc.plot.report(learner, path)
    text = path.read_text(encoding="utf-8")
    assert ">proved<" not in text and "is at most" not in text
