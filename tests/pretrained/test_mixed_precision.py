"""Norms that are written out, whose parts see different roundings, are no norms: their outputs are not normalised."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.errors import UnsupportedError


def _root(z: Tensor, eps: float = 1e-5) -> Tensor:
    return torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + eps)


def _rooted(mean: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rsqrt((mean + 1e-12).to(dtype).float())


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


FORMS = {
    "the variance in bfloat16": lambda x, w: w * (_centred(x) * _root(_centred(x.bfloat16().float()))),
    "the variance in float32": lambda x, w: w * (_centred(x) * _root(_centred(x.float()))),
    "squares of float16": lambda x, w: w * (x * _root(x.half().float(), 1e-20)),
    "squares cast to float16": lambda x, w: w * (x * _rooted(x.pow(2).half().float().mean(-1, keepdim=True))),
    "a mean square in float16": lambda x, w: (
        w * (x * _rooted(x.pow(2).mean(-1, keepdim=True).half().float()))
    ),
    "a sum in bfloat16": lambda x, w: w * (x * _rooted(x.pow(2).mean(-1, keepdim=True), torch.bfloat16)),
    "a vector times its gain in float16": lambda x, w: (w * x).half().float() * _root(x, 1e-20),
    "a root times its gain in float16": lambda x, w: (w * _root(x, 1e-20)).half().float() * x,
    "a root in float16": lambda x, w: w * (x * _root(x).half()),
    "a gain in bfloat16": lambda x, w: (1 + w.bfloat16().float()) * (x * _root(x)),
    "a mean in float32": lambda x, w: w * ((x - x.float().mean(-1, keepdim=True)) * _root(_centred(x))),
    "in float32 from the start": lambda x, w: w * (lambda h: _centred(h) * _root(_centred(h)))(x.float()),
}
SOUND = {
    "LayerNorm": lambda x, w: w * (_centred(x) * _root(_centred(x))),
    "a normalised vector in float16": lambda x, w: w * (x * _root(x)).half().float(),
    "RMSNorm of Llama": lambda x, w: w * (x.float() * _root(x.float())).to(x.dtype),
}


class Written(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.weight = form, nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return ({**FORMS, **SOUND}[self.form](x, self.weight)).to(self.weight.dtype)


def model(form: str) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(Written(form), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval()
    return made.double() if "float32" in form else made


@pytest.mark.parametrize("form", FORMS)
def test_parts_with_other_roundings_are_no_norm(form: str) -> None:
    with pytest.raises(UnsupportedError):
        attnc.convert_(model(form), 1e-3)


@pytest.mark.parametrize("form", SOUND)
def test_one_rounding_for_all_parts_is_a_norm(form: str) -> None:
    (block,) = attnc.convert_(model(form), 1e-3).blocks
    assert isinstance(block.holds_for, attnc.domain.Normed)


class Centred32(nn.Module):
    """A LayerNorm without a shift that is written out, in float32 whatever enters it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        z = _centred(x.float())
        return self.weight * (z * _root(z)).to(x.dtype)


def test_a_mean_that_float32_subtracts_in_a_float64_model_bounds_nothing() -> None:
    """x - mean(x) of a constant token is all rounding, and its direction is any: the block behind must allow for that."""
    model = nn.Sequential(Centred32(12), nn.Linear(12, 2), nn.GELU(), nn.Linear(2, 1)).double().eval()
    with torch.no_grad():
        for value, tensor in zip(
            (-1.0, 0.5, 1.0, 0.0), (*model[1].parameters(), *model[3].parameters()), strict=True
        ):
            tensor.fill_(value)
    (block,) = attnc.convert_(model, approximation=1e-4).blocks
    x = 1e8 * torch.rand(500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).expand(
        -1, 12
    )
    s = model[1](model[0](x.contiguous())).detach()
    lo, hi = block.facts["interval"]
    assert float(s.abs().max()) > 10 and lo <= float(s.min()) and float(s.max()) <= hi
    with pytest.raises(UnsupportedError):
        attnc.convert(model, approximation=1e-4, parts="all")
