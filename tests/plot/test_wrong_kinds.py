"""Whatever is given to a picture or to verify that it cannot take, the error says what was given and what to give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import attnc
import attnc.incontext
import attnc.plot
from attnc.errors import InputError

X = torch.zeros(2, 1)


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).eval()
    return {
        "head": attnc.head("tanh", domain=(-1, 1), eps=1e-2),
        "network": attnc.compile(model, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2),
        "learner": attnc.incontext.gradient_descent("squared", features=1, steps=2, step_size=0.5),
        "model": model,
        "list": [1, 2],
        "None": None,
        "name": "tanh",
        "class": attnc.Head,
    }


PICTURES = {
    "head": (attnc.plot.head, {"head"}),
    "function": (attnc.plot.function, {"head"}),
    "error": (attnc.plot.error, {"head"}),
    "attention": (attnc.plot.attention, {"head", "network"}),
    "network": (attnc.plot.network, {"network"}),
    "rates": (attnc.plot.rates, set()),
    "slices": (lambda net: attnc.plot.slices(net, torch.sin), {"network"}),
    "tokens_and_anchors": (attnc.plot.tokens_and_anchors, {"network"}),
    "learning": (lambda learner: attnc.plot.learning(learner, X, X[:, 0]), {"learner"}),
    "anchors_used": (lambda model: attnc.plot.anchors_used(model, X), set()),
}


def test_every_public_picture_is_tried() -> None:
    assert set(PICTURES) == set(attnc.plot.__all__)


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_of_something_else(picture: str, things: dict[str, Any]) -> None:
    draw, accepted = PICTURES[picture]
    for name in things.keys() - accepted:
        with pytest.raises(InputError) as refused:
            draw(things[name])
        assert type(things[name]).__name__ in str(refused.value)


@pytest.mark.parametrize("name", ["learner", "model", "list", "None", "class"])
def test_verify_of_something_else(name: str, things: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        attnc.verify(things[name])
    text = str(refused.value)
    assert type(things[name]).__name__ in text and "attnc.compile" in text and "query" not in text
    assert ("proved when they are made" in text) == (name == "learner")


@pytest.mark.parametrize("given", [[[1.0]], None, "x"])
def test_examples_that_are_no_tensors(given: object, things: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="tensor"):
        attnc.plot.learning(things["learner"], given, X[:, 0])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tensor"):
        attnc.plot.learning(things["learner"], X, given)  # type: ignore[arg-type]
