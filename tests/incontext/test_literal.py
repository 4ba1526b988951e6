"""The literal network of a learner: plain self-attention that computes what the learner computes, register by register."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor

import attnc
from attnc.errors import InputError
from attnc.incontext import Learner, gradient_descent
from attnc.incontext.literal import literal_learner, plain_numbers, registers_of
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.purity import SOFTMAX
from tests.incontext.exact import descend
from tests.network.executed import impurities, operations

KINDS = ("weight", "bos", "data", "query", "anchor+", "anchor-", "threshold")
LOSSES = ("squared", "ridge(0.1)", "logistic", "huber(0.5)", "lasso(0.05)")
OTHERS = ("poisson", "quantile(0.3)")
D, STEPS = 3, 5


@functools.cache
def learner(loss: str, intercept: bool = False, dtype: torch.dtype = torch.float64) -> Learner:
    size = None if loss in OTHERS else 0.3
    return gradient_descent(
        loss, features=D, steps=STEPS, step_size=size, radius=3.0, intercept=intercept, dtype=dtype
    )


@functools.cache
def literal(loss: str) -> SelfAttentionNetwork:
    return literal_learner(learner(loss))


def trajectory(net: SelfAttentionNetwork, x: Tensor, y: Tensor) -> Tensor:
    """w before the first and after every gradient step."""
    streams, last = net.sequences(x, y), net.order[-2 if "predict: B" in net.layouts else -1][0]
    assert last == "predict: A"
    kept = {name.split(":")[0]: stream for name, stream in streams.items() if name.startswith("step")}
    return torch.cat([net.read(stream, "w", of="weight") for stream in (net.embed(x, y), *kept.values())])


def end(net: SelfAttentionNetwork, step: int) -> str:
    """The name of the last layer of a gradient step."""
    return [name for name in net.layouts if name.startswith(f"step {step}:")][-1]


def data(loss: str, n: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    made = np.random.default_rng(seed)
    x, y = made.uniform(-1.5, 1.5, (n, D)), made.uniform(-2.5, 2.5, n)
    if loss == "logistic":
        y = (y > 0) * 1.0
    if loss == "poisson":
        y = np.floor(np.abs(y))
    return torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)


@pytest.mark.parametrize("loss", LOSSES + OTHERS)
def test_the_trajectory_is_the_learners(loss: str) -> None:
    x, y = data(loss)
    wanted = learner(loss).trajectory(x, y)
    assert float(wanted[-1].abs().min()) > 1e-6  # there is something to agree on
    assert float((trajectory(literal(loss), x, y) - wanted).abs().max()) < 1e-10


@pytest.mark.parametrize("loss", LOSSES)
def test_the_trajectory_is_that_of_gradient_descent(loss: str) -> None:
    x, y = data(loss, seed=1)
    found = trajectory(literal(loss), x, y)
    for t in range(STEPS + 1):
        wanted = descend(loss, x.numpy(), y.numpy(), t, 0.3)
        assert float(np.abs(found[t].numpy() - wanted).max()) < 1e-7


@pytest.mark.parametrize("loss", LOSSES + OTHERS)
def test_predictions_stand_in_the_query_tokens(loss: str) -> None:
    (x, y), query = data(loss), data(loss, n=4, seed=2)[0]
    found, wanted = literal(loss)(x, y, query), learner(loss)(x, y, query)
    assert found.shape == (4,)
    assert float((found - wanted).abs().max()) < 1e-10


def test_an_intercept_is_a_feature_that_every_token_holds() -> None:
    for loss in ("ridge(0.1)", "logistic"):
        made = learner(loss, intercept=True)
        net, (x, y), query = literal_learner(made), data(loss), data(loss, n=2, seed=3)[0]
        assert float((trajectory(net, x, y) - made.trajectory(x, y)).abs().max()) < 1e-10
        assert float((net(x, y, query) - made(x, y, query)).abs().max()) < 1e-10
        signs = torch.tensor([1.0] * 7 + [-1.0] * 7).double()
        assert torch.equal(net.read(net.embed(x, y), "tx", of="data")[:, -1], signs)


@pytest.mark.parametrize("loss", ("squared", "logistic"))
def test_float32_stays_near_gradient_descent(loss: str) -> None:
    x, y = data(loss, dtype=torch.float32)
    found = trajectory(literal_learner(learner(loss, dtype=torch.float32)), x, y)[-1]
    assert found.dtype == torch.float32
    assert float(np.abs(found.numpy() - descend(loss, x.numpy(), y.numpy(), STEPS, 0.3)).max()) < 1e-3


@pytest.mark.parametrize("loss", LOSSES + OTHERS)
def test_after_every_step_u_and_g_are_zero_and_nothing_but_w_has_changed(loss: str) -> None:
    (x, y), query, net = data(loss), data(loss, n=2, seed=4)[0], literal(loss)
    start, streams = net.embed(x, y, query), net.sequences(x, y, query)
    w = torch.zeros_like(start, dtype=torch.bool)
    w[:, net.layout["w"]] = start[:, net.layout["weight"]] == 1
    for step in range(1, STEPS + 1):
        stream = streams[end(net, step)]
        for name in {"u", "g"} & set(net.layout):
            assert (net.read(stream, name) == 0).all()
        assert torch.equal(stream[~w], start[~w])
        assert (stream[w] != start[w]).all()
        assert torch.equal(net.stream(x, y, query, after=end(net, step)), stream)


def test_within_a_step_the_registers_hold_what_their_names_say() -> None:
    for loss in ("logistic", "huber(0.5)"):
        (x, y), net = data(loss), literal(loss)
        stream = net.stream(x, y, after=end(net, 2))
        w, sign = net.read(stream, "w", of="weight")[0], net.read(stream, "tau", of="data")[:, 0]
        assert torch.equal(sign, torch.tensor([1.0] * 7 + [-1.0] * 7).double())
        stream = net.stream(x, y, after="step 3: A")
        u = torch.cat([x @ w, x @ w])
        assert float((net.read(stream, "u", of="data")[:, 0] - sign * u).abs().max()) < 1e-9
        stream = net.stream(x, y, after="step 3: B")
        psi = torch.sigmoid(u) if loss == "logistic" else (u - torch.cat([y, y])).clamp(-0.5, 0.5)
        assert float((net.read(stream, "g", of="data")[:, 0] - sign * psi).abs().max()) < 1e-7
        assert torch.equal(net.read(stream, "w", of="weight")[0], w)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_same_matrices_serve_every_length(loss: str) -> None:
    net = literal(loss)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for n in (1, 5, 9):
        x, y = data(loss, n=n, seed=n)
        wanted = learner(loss).trajectory(x, y)
        assert float((trajectory(net, x, y) - wanted).abs().max()) < 1e-10
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize(
    "loss",
    [s if s == "logistic" else pytest.param(s, marks=pytest.mark.slow) for s in LOSSES],
)
def test_attention_and_affine_maps_alone(loss: str) -> None:
    made = gradient_descent(loss, features=D, steps=2, step_size=0.1, radius=3.0, dtype=torch.float64)
    net = literal_learner(made)
    (x, y), query = data(loss, n=3), data(loss, n=2, seed=5)[0]
    run = functools.partial(net.forward, strict=False)
    assert impurities(run, x, y, query) == []
    layers = 2 * len(net.layers) + (2 if loss == "logistic" else 1)
    assert sum(name in SOFTMAX for name in operations(run, x, y, query)) == layers == len(net.order)


@pytest.mark.parametrize("loss", LOSSES)
def test_who_attends_to_whom(loss: str) -> None:
    (x, y), net = data(loss), literal(loss)
    tokens, flags = net.embed(x, y), [name for name in net.layout if name in KINDS]
    kinds = [flags[int(row.argmax())] for row in tokens[:, : len(flags)]]
    assert [int(row.sum()) for row in tokens[:, : len(flags)]] == [1] * len(tokens)
    tau, found = net.read(tokens, "tau")[:, 0].tolist(), net.attention(x, y)
    for layer, weights in found.items():
        if layer.startswith(("step 1:", f"step {STEPS}:")):
            names = net.step(layer).heads
            assert weights.shape == (len(names), len(kinds), len(kinds))
            for name, rows in zip(names, weights, strict=True):
                for i, row in enumerate(rows):
                    allowed = expected(name, kinds[i], tau[i])
                    assert all(float(row[j]) == 0.0 for j, kind in enumerate(kinds) if kind not in allowed)
                    assert {kinds[j] for j in row.nonzero()[:, 0].tolist()} <= allowed
                    assert float(row.sum()) == pytest.approx(1, abs=1e-12)


def expected(head: str, kind: str, tau: float) -> set[str]:
    """The kinds of tokens that one of a kind attends to, head by head, as the construction says."""
    if " u: " in head:
        return {"weight", "bos"} if kind == "data" else {"data"}
    if " g: " in head and kind == "data":
        return {"anchor+" if tau > 0 else "anchor-"}
    if kind != "weight" or " g: " in head:
        return {"bos"}
    return {"gather": {"data"}, "ridge": {"weight"}, "threshold": {"threshold"}}[head.split()[0]]


def test_layer_a_looks_at_both_of_its_keys() -> None:
    (x, y), net = data("squared"), literal("squared")
    weights = net.attention(x, y)["step 2: A"][:, :14]
    assert net.tokens == ("weight", "bos")
    assert float(weights[..., 14:].min()) > 0.4
    assert torch.equal(weights[..., :14], torch.zeros_like(weights[..., :14]))


def test_registers_are_listed_and_read_by_name() -> None:
    net, (x, y) = literal("logistic"), data("logistic")
    listed = [
        "weight",
        "bos",
        "data",
        "query",
        "anchor+",
        "anchor-",
        "x",
        "tx",
        "y",
        "ty",
        "tau",
        "w",
        "u",
        "g",
    ]
    assert list(net.layout) == [*listed, "kappa", "c", "v"]
    covered = [i for at in net.layout.values() for i in range(at.start, at.stop)]
    assert covered == list(range(len(net.coordinates)))
    tokens = net.embed(x, y, x[:2])
    assert tokens.shape == (7 + 7 + 2 + len(net.tokens), len(net.coordinates))
    assert net.tokens[:3] == ("weight", "bos", "anchor+ 0") and [e.name for e in net.embeddings] == [
        "example", "twin", "query"
    ]  # fmt: skip
    assert torch.equal(net.read(tokens, "x", of="data"), torch.cat([x, x]))
    assert torch.equal(net.read(tokens, "tx", of="data"), torch.cat([x, -x]))
    assert torch.equal(net.read(tokens, "ty", of="data")[:, 0], torch.cat([y, -y]))
    head = learner("logistic").activation
    assert head is not None
    assert torch.equal(net.read(tokens, "v", of="anchor-"), -head.value[..., 1].T)
    assert "threshold v" in literal("lasso(0.05)").layout and "g" not in literal("squared").layout


def test_the_matrices_of_a_layer() -> None:
    a, c = literal("ridge(0.1)").layers
    width, heads = registers_of(D).width, 3 + learner("ridge(0.1)").reading.heads
    assert [tuple(m.shape) for m in (c.W_Q, c.W_K, c.W_V, c.W_O)] == [
        (heads, width, D + 2), (heads, width, D + 2), (heads, width, D), (heads, D, width)
    ]  # fmt: skip
    assert not c.W_Q[0, :, 3:].any() and not c.W_V[3, :, 1:].any()  # filled up with 0
    assert torch.equal(c.W_O[3], -a.W_O[0]) and c.heads[3] == "clear u: head 0"


def test_what_is_refused() -> None:
    net, (x, y) = literal("logistic"), data("logistic")
    bad = x.clone()
    bad[2, 1] = float("nan")
    refused = [
        (lambda: net(x, y, x.float()), "query_x.*float64"),
        (lambda: net(x, y[:-1], x), r"context_y.*\(6,\)"),
        (lambda: net(x[:, :2], y, x), "context_x"),
        (lambda: net(x, y, x[:0]), "query_x"),
        (lambda: net(bad, y, x), "context_x.*nan"),
        (lambda: net(x, y, bad), "query_x.*nan"),
        (lambda: net.stream(4 * x, y), "context_x.* 3:"),
        (lambda: net.stream(x, y + 0.5), "context_y.*labels 0 and 1"),
        (lambda: net(x, y), "query_x"),
        (lambda: net.stream(x, y, after=f"step {STEPS + 1}: A"), f"step {STEPS + 1}: A"),
        (lambda: net.read(net.embed(x, y), "z"), "'z'"),
        (lambda: net.read(net.embed(x, y), "w", of="mask"), "'mask'"),
    ]
    for call, message in refused:
        with pytest.raises(InputError, match=message):
            call()


def test_w_beyond_the_radius_is_refused() -> None:
    made = gradient_descent("squared", features=1, steps=30, step_size=0.5, radius=2.0)
    x, y = torch.tensor([[0.5], [-0.5]]).double(), torch.tensor([2.0, -2.0]).double()
    net = literal_learner(made)
    with pytest.raises(InputError, match=r"\|w\|"):
        net(x, y, x)
    assert net(x, y, x, strict=False).shape == (2,)


def test_a_head_that_attends_to_itself_is_refused() -> None:
    gated = attnc.head("silu", domain=(-4, 4), eps=1e-6, dtype=torch.float64, design="gated")
    with pytest.raises(InputError):
        plain_numbers("activation", gated)
