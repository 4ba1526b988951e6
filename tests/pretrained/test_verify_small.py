"""attnc.verify of a small converted block: each of its checks finds what only it can see."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import attnc
from attnc.errors import CertificateError
from attnc.pretrained import convert_
from attnc.records.certificate import Witness


@cache
def _converted(kind: type[nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), kind(), nn.Linear(6, 4)).double().eval()
    convert_(model, approximation=1e-2)
    return model


def converted(kind: type[nn.Module] = nn.GELU) -> Any:
    return copy.deepcopy(_converted(kind))


def test_what_was_converted_is_proved() -> None:
    assert attnc.verify(converted()).status == "proved"


@pytest.mark.parametrize("part", [0, 1, 3])
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook"])
def test_a_hook_of_a_map_or_a_norm(part: int, kind: str) -> None:
    """It changes nothing that is recorded, and who knows what it does later."""
    model = converted()
    getattr(model[part], f"register_{kind}")(lambda *given: None)
    assert attnc.verify(model).status == "unknown"


def test_what_is_wrong_with_a_block() -> None:
    model = converted()
    model[0].eps = 0.0
    assert attnc.verify(model).status == "unknown"


def test_the_fused_operation_is_off() -> None:
    torch.manual_seed(0)
    model: Any = nn.TransformerEncoderLayer(8, 2, 16, activation="relu", batch_first=True).eval()
    convert_(model, approximation=1e-2)
    assert attnc.verify(model).status == "proved"
    model.activation_relu_or_gelu = 1
    assert attnc.verify(model).status == "unknown"


def test_other_code_of_the_activation() -> None:
    model = converted()
    model[2][0].register_forward_hook(lambda *given: None)
    assert attnc.verify(model).status == "unknown"


def test_a_head_of_another_function() -> None:
    model = converted()
    model[2] = converted(nn.SiLU)[2]
    verdict = attnc.verify(model)
    assert verdict.status == "unknown" and verdict.error is None


def test_weights_that_were_changed() -> None:
    model = converted()
    with torch.no_grad():
        model[3].weight.mul_(1.5)
    assert attnc.verify(model).status == "unknown"


@pytest.mark.parametrize(
    "facts", [{"norm": "another"}, {"anchors": [1]}, {"neurons": 5}, {"interval": [-1e-3, 1e-3]}]
)
def test_facts_of_a_block(facts: dict[str, Any]) -> None:
    model = converted()
    report = model._attnc_report
    (block,) = report.blocks
    other = replace(block, facts={**block.facts, **facts})
    model._attnc_report = replace(report, certificate=replace(report.certificate, children=(other,)))
    assert attnc.verify(model).status == "unknown"


def test_a_block_has_no_witness() -> None:
    (block,) = converted()._attnc_report.blocks
    with pytest.raises(CertificateError):
        replace(block, witness=Witness((1.0,), 0, 1e9))
