"""Views: arrangements of values, as steps where they need one, and refused where they mix tokens or inputs of a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from attnc.frontends.activations import RefusedError
from attnc.frontends.attention import attend, scores
from attnc.frontends.views import SequenceBuilder, View, plain
from attnc.program import Affine
from attnc.program.evaluate import approximate

N, D, BATCH = 4, 6, 2
Arrange = Callable[[Tensor], Tensor]


def start() -> tuple[SequenceBuilder, View, Tensor]:
    """A builder, the view of the input, and numbers of its shape."""
    b = SequenceBuilder((N, D), np.dtype(np.float64), BATCH, ids=False)
    return b, plain(b.input, BATCH), torch.randn(BATCH, N, D, dtype=torch.float64)


def values(b: SequenceBuilder, view: View, x: Tensor) -> Tensor:
    """The tensor that a view stands for."""
    found = torch.from_numpy(approximate(b.program(view.value), x.numpy())).reshape(-1)
    return found[view.index] * view.signs


def arranged(view: View, how: Arrange) -> View:
    return View(view.value, how(view.index), how(view.signs))


KEPT: dict[str, Arrange] = {
    "heads": lambda x: x.unflatten(-1, (2, 3)).transpose(1, 2),
    "features": lambda x: x.roll(1, -1)[..., :5],
    "tokens": lambda x: x[:, 1:3],
    "one token": lambda x: x[:, 0],
    "repeated": lambda x: x.unsqueeze(2).expand(-1, -1, 3, -1),
    "batch in the middle": lambda x: x.transpose(0, 1),
}
MIXED: dict[str, Arrange] = {
    "tokens": lambda x: x.transpose(1, 2).reshape(BATCH, N, D)[:, :, :1],
    "one input": lambda x: x[:1],
    "other tokens of each input": lambda x: torch.stack([x[0, :2], x[1, 2:]]),
    "other features of each token": lambda x: torch.stack([x[:, i].roll(i, -1) for i in range(N)], 1),
}


@pytest.mark.parametrize("how", KEPT.values(), ids=KEPT)
def test_an_ordered_view_is_the_same_tensor(how: Arrange) -> None:
    b, view, x = start()
    found = b.ordered(arranged(view, how))
    assert torch.equal(values(b, found, x), how(x))
    assert b.is_whole(found)


@pytest.mark.parametrize("how", MIXED.values(), ids=MIXED)
def test_what_mixes_tokens_or_inputs_is_refused(how: Arrange) -> None:
    b, view, _ = start()
    with pytest.raises(RefusedError):
        b.ordered(arranged(view, how))


def test_features_of_an_affine_map_are_rows_of_it() -> None:
    b, view, x = start()
    weight = np.arange(18.0).reshape(3, D)
    mapped = b.by_vector(view, lambda value: b.add(Affine, value, weight=weight, bias=np.ones(3)))
    turned = View(mapped.value, mapped.index.flip(-1), -mapped.signs)
    found = b.ordered(turned)
    assert torch.allclose(values(b, found, x), -(x @ torch.from_numpy(weight).T + 1).flip(-1))
    assert len(b.program(found.value).steps) == 1


def test_pairs_and_constants_follow_the_order_of_the_tensor() -> None:
    b, view, x = start()
    split, flipped = (arranged(view, how) for how in (KEPT["heads"], lambda t: KEPT["heads"](t).flip(1)))
    left, right, index = b.pair(split, flipped)
    both = View(b.combine([left, right], [1.0, 2.0]), index)
    assert torch.equal(values(b, both, x), KEPT["heads"](x) + 2 * KEPT["heads"](x).flip(1))
    constant = torch.randn(2, N, 3, dtype=torch.float64)
    scaled = b.scale(split, constant, None)
    assert torch.equal(values(b, scaled, x), KEPT["heads"](x) * constant)
    with pytest.raises(RefusedError):
        b.pair(view, arranged(view, lambda t: t.flip(1)))
    with pytest.raises(RefusedError):
        b.scale(view, torch.randn(BATCH, 1, 1), None)


@pytest.mark.parametrize(("how", "dim"), [(KEPT["heads"], -1), (KEPT["heads"], 2), (lambda x: x, -1)])
def test_joined_values(how: Arrange, dim: int) -> None:
    b, view, x = start()
    double = View(b.scaled(view.value, 2.0), view.index)
    found = b.joined([arranged(double, how), arranged(view, how)], dim)
    assert torch.equal(values(b, found, x), torch.cat([how(2 * x), how(x)], dim))


def test_attention_of_heads_that_share_keys() -> None:
    b, view, x = start()
    split: Arrange = KEPT["heads"]
    shared: Arrange = lambda t: split(t)[:, :1].expand(-1, 2, -1, -1)  # noqa: E731
    q, k = arranged(view, split), arranged(view, shared)
    found = attend(b, scores(q, View(k.value, k.index.mT)).times(0.5).softmax(-1), k)
    wanted = torch.softmax(0.5 * split(x) @ shared(x).mT, -1) @ shared(x)
    assert torch.allclose(values(b, found, x), wanted, rtol=0, atol=1e-14)
    step = b.step(found.value)
    assert (step.heads, step.kv_heads) == (2, 1)  # type: ignore[union-attr]
