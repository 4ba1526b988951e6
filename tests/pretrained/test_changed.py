"""A converted model with other numbers than those that were certified is saved with a card that states no bound."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attnc.errors import CertificateWarning
from attnc.pretrained import convert_, from_pretrained
from attnc.pretrained.save import save_converted
from tests.frontends.tiny_models import example, tiny
from tests.pretrained.directories import Saved


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    with pytest.MonkeyPatch.context() as patched:
        place = tmp_path_factory.mktemp("modules")
        patched.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(place))
        yield Saved("bert", "closed-form", tmp_path_factory.mktemp("changed"))


def weight(model: Any) -> None:
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.weight[0, 0] += 1


def anchor(model: Any) -> None:
    name, buffer = next((n, b) for n, b in model.named_buffers() if n.endswith("key"))
    assert name.startswith("encoder.layer")
    with torch.no_grad():
        buffer.view(-1)[0] += 1


def half(model: Any) -> None:
    model.half()


def replaced(model: Any) -> None:
    """The file then lacks the tensors of the converted activation, and has those of the linear map before it."""
    model.encoder.layer[0].intermediate.intermediate_act_fn = torch.nn.ReLU()


def replaced_head(model: Any) -> None:
    model.encoder.layer[0].intermediate.intermediate_act_fn[0] = torch.nn.ReLU()


def written(where: Path) -> str:
    card = (where / "README.md").read_text()
    assert card.count("| status |") == 1
    return card


@pytest.mark.parametrize("change", [weight, anchor, half, replaced, replaced_head])
def test_the_card_of_changed_numbers(one: Saved, tmp_path: Path, change: Callable[[Any], None]) -> None:
    models = {"converted": (copy.deepcopy(one.model), CertificateWarning)}
    models["reopened"] = (from_pretrained(one.where), CertificateWarning)
    models["shipped"] = (one.opened(), UserWarning)
    for name, (model, kind) in models.items():
        change(model)
        with pytest.warns(kind, match="does not apply"):
            model.save_pretrained(tmp_path / name)
        card = written(tmp_path / name)
        assert "| status | not certified: " in card
        assert "proved |" not in card and "largest" not in card and "approximation" not in card


def test_the_card_of_the_certified_numbers(one: Saved, tmp_path: Path) -> None:
    """Also if a part that was not converted changes. The card of an original stays below."""
    model = copy.deepcopy(one.model)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[0, 0] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for name, kept in {"a": model, "b": from_pretrained(one.where), "c": one.opened()}.items():
            kept.save_pretrained(tmp_path / name)
            card = written(tmp_path / name)
            assert "| status | proved |" in card and "| largest bound |" in card
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "README.md").write_text("# Mine\n")
    weight(model)
    with pytest.warns(CertificateWarning):
        save_converted(model, tmp_path / "d", tmp_path / "source")
    card = written(tmp_path / "d")
    assert card.endswith("# Mine\n") and "not certified" in card and "largest" not in card


def test_a_cast_of_activations_alone(tmp_path: Path) -> None:
    """Their heads keep their numbers."""
    model = tiny("bert")
    convert_(model, 1e-3, parts="activation", samples=example("bert"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.save_pretrained(tmp_path / "a")
    with pytest.warns(CertificateWarning):
        model.half().save_pretrained(tmp_path / "b")
    assert "| status | proved |" in written(tmp_path / "a") and "not certified" in written(tmp_path / "b")
