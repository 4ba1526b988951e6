"""Data of the protocol, the models it trains, and what is built in their place."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from attnc.errors import InputError
from attnc.paper.experiments import Record, Setting, run, settings
from attnc.paper.experiments.protocol import (
    METHODS,
    PROTOCOL,
    QUICK,
    SWEEPS,
    Attention,
    HeatMapModel,
    SequenceModel,
    Task,
    TruncatedModel,
    make_task,
)
from attnc.paper.experiments.run import (
    build,
    head_to_place,
    place_anchors,
    place_functions,
    square_error,
    target_network,
)

BASE = QUICK.truncated


def task_of(setting: Setting) -> Task:
    return make_task(setting, torch.Generator().manual_seed(setting.seed))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def placed(setting: Setting = BASE) -> tuple[TruncatedModel, torch.Tensor, torch.Tensor]:
    task, model = task_of(setting), TruncatedModel(setting, generator())
    place_anchors(model, head_to_place(replace(setting, method="placed"), task))
    place_functions(model, *task.target)
    return model, task.x_test, task.y_test


def same(one: Record, other: Record) -> bool:
    names = [field.name for field in fields(Record) if field.name != "seconds"]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def test_the_protocol_s_data() -> None:
    task = task_of(PROTOCOL.truncated)
    x, y = task.x_train, task.y_train
    assert x.shape == (800, 50, 10) and y.shape == (800, 50, 1) and len(task.x_test) == 200
    assert -5 <= x.min() < -4.99 and 4.99 < x.max() <= 5
    for i in (0, 17, 49):
        wanted = np.clip(x[3, i].numpy() @ task.target[0][i].numpy() + float(task.target[1][i]), -25, 25)
        assert math.isclose(float(y[3, i, 0]), wanted, rel_tol=1e-12)
    assert y.max() == 25 and y.min() == -25
    assert not torch.equal(task_of(replace(PROTOCOL.truncated, seed=1)).target[0], task.target[0])


def test_the_sequence_s_data() -> None:
    task = task_of(replace(PROTOCOL.few, samples=100))
    x, y = task.x_test, task.y_test
    W1, b1, W2, b2 = (one.numpy() for one in task.target)
    wanted = np.maximum(x[7].numpy().ravel() @ W1.T + b1, 0)
    assert np.allclose(y[7].numpy().ravel(), wanted @ W2.T + b2)
    assert torch.allclose(target_network(task)(x), y)


def test_no_sample_trains_and_tests() -> None:
    data = task_of(BASE)
    seen = {tuple(one.ravel().tolist()) for one in data.x_train}
    assert not any(tuple(one.ravel().tolist()) in seen for one in data.x_test)


def test_attention_is_torch_s_own() -> None:
    """The protocol has multi-head attention with biases and an output map."""
    mine = Attention(16, 4, generator())
    theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    three = (mine.query, mine.key, mine.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([one.weight for one in three]))
        theirs.in_proj_bias.copy_(torch.randn(48))
        for one, bias in zip(three, theirs.in_proj_bias.chunk(3), strict=True):
            one.bias.copy_(bias)
        theirs.out_proj.weight.copy_(mine.output.weight)
    z = torch.randn(2, 7, 16)
    assert torch.allclose(mine(z), theirs(z, z, z, need_weights=False)[0], atol=1e-6)


def test_models_start_as_the_protocol_says() -> None:
    model = TruncatedModel(replace(BASE, p=BASE.n + 3), generator())
    assert torch.equal(model.tokens.modulation, torch.ones(BASE.n, BASE.width))
    assert torch.equal(model.tokens.extra[:, 5], torch.tensor([-1.0, 0.0, 1.0]))
    assert model(torch.zeros(2, BASE.n, BASE.d)).shape == (2, BASE.n, BASE.width)
    few = SequenceModel(QUICK.few, generator())
    assert few(torch.zeros(2, 4, 2)).shape == (2, 4, 2)


def test_models_do_not_draw_from_torch_s_own_generator() -> None:
    before = torch.get_rng_state()
    first = TruncatedModel(BASE, generator())
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    again = TruncatedModel(BASE, generator())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_heat_maps_are_the_weights_that_make_the_output() -> None:
    model = HeatMapModel(QUICK.heat_map, generator())
    x = torch.randn(3, QUICK.heat_map.n, QUICK.heat_map.d)
    weights = model.weights(model.tokens(x))
    assert torch.allclose(weights.sum(-1), torch.ones(3, QUICK.heat_map.n))
    assert torch.allclose(weights @ model.anchors, model(x)[..., :1], atol=1e-6)


def test_the_measure_counts_coordinates_that_the_target_lacks() -> None:
    found = torch.tensor([[[1.0, 2.0, 0.0, 0.0]]])
    assert square_error(found, torch.tensor([[[0.0]]])).item() == (1 + 4) / 4


@pytest.mark.parametrize("heads", [1, 4])
def test_anchors_are_placed_in_the_model_that_is_trained(heads: int) -> None:
    model, x, y = placed(replace(BASE, heads=heads))
    found = model(x)
    assert (found[..., :1] - y).abs().max() < 1e-6
    assert not found[..., 1:].any()
    assert {name: one.shape for name, one in model.named_parameters()} == {
        name: one.shape
        for name, one in TruncatedModel(replace(BASE, heads=heads), generator()).named_parameters()
    }


def test_data_tokens_are_never_picked() -> None:
    model, x, _ = placed()
    z = model.tokens(x)
    weights = torch.softmax(model.attention.query(z) @ model.attention.key(z).transpose(1, 2) / 4, -1)
    assert weights[:, : BASE.n, : BASE.n].sum(-1).max() < 1e-20
    assert weights[:, : BASE.n, BASE.n + 6 :].sum(-1).max() < 1e-20  # extra tokens without an anchor


def test_anchors_alone_leave_the_linear_functions() -> None:
    task, model = task_of(BASE), TruncatedModel(BASE, generator())
    before = model.tokens.projection.weight[: BASE.d].clone()
    head = head_to_place(replace(BASE, method="fine-tuned"), task)
    place_anchors(model, head)
    assert torch.equal(model.tokens.projection.weight[: BASE.d], before.double())
    x = task.x_test
    s = model.tokens(x)[:, : BASE.n, : BASE.d + 1].sum(-1)
    assert torch.allclose(model(x)[..., 0], head(s), atol=1e-9)


@pytest.mark.parametrize("change", [{"p": BASE.n + 5}, {"width": BASE.d + 4}, {"heads": BASE.width}])
def test_what_does_not_fit_is_refused(change: dict[str, int]) -> None:
    head = head_to_place(replace(BASE, method="placed"), task_of(BASE))
    with pytest.raises(InputError, match=r"width=\d+ and heads=\d+"):
        place_anchors(TruncatedModel(replace(BASE, **change), generator()), head)


@pytest.mark.parametrize("experiment, base", [("truncated", BASE), ("seq2seq", QUICK.few)])
def test_runs_are_the_same_whatever_ran_before(experiment: str, base: Setting) -> None:
    for method in ("trained", "from-anchors"):
        setting = replace(base, method=method, epochs=1)
        torch.manual_seed(1)
        one = run(setting)
        torch.manual_seed(2)
        assert same(one, run(setting)), (experiment, method)


def test_training_learns() -> None:
    found = run(replace(BASE, epochs=60, d=2, p=40))
    assert found.start is not None and len(found.curve) == 60 and found.curve[-1] == found.mse
    assert found.mse < 0.5 * found.spread and found.start > 0.9 * found.spread


def test_fine_tuning_starts_from_what_is_built() -> None:
    found = run(replace(BASE, method="fine-tuned", epochs=1))
    assert found.start is not None and found.start < 1e-3 < 0.5 < found.spread
    few = run(replace(QUICK.few, method="fine-tuned"))
    assert few.start is not None and few.start < 1e-4 * few.spread


@pytest.mark.parametrize("method", ["nearest", "smooth", "graded", "many-heads"])
def test_what_is_built_is_within_its_bound(method: str) -> None:
    found = run(replace(BASE, method=method, heads=2))
    assert found.bound is not None and found.largest <= found.bound
    assert found.mse <= found.bound**2 / BASE.width
    assert found.anchors == (2 * BASE.n if method == "many-heads" else BASE.p)
    if method == "nearest":
        assert found.theorem is not None and found.bound <= found.theorem
    if method == "smooth":
        assert found.mse < 0.5 * run(replace(BASE, method="nearest")).mse


@pytest.mark.parametrize("method", ["tokens", "heads", "softmax"])
def test_sequences_are_built_in_each_form(method: str) -> None:
    found = run(replace(QUICK.few, method=method))
    assert found.mse < 1e-10 and found.bound is not None and found.bound <= 1e-5
    net = build(replace(QUICK.few, method=method), task_of(QUICK.few))
    softmax = ("map", "attention", "map", "softmax", "map")
    wanted = softmax if method == "softmax" else ("map", "attention", "map", "attention", "map")
    assert net.as_self_attention().kinds == wanted
    if method != "softmax":
        assert net.layout == method


@pytest.mark.slow
def test_built_at_the_protocol_s_size() -> None:
    """One head: below 1e-8 at p = 60, below 1e-12 at p = 120; trained, the protocol's is 0.144 and 0.0043."""
    base = replace(PROTOCOL.truncated, samples=200)
    assert run(replace(base, method="graded")).mse < 1e-8
    assert run(replace(base, method="placed")).mse < 1e-12
    assert run(replace(base, method="graded", p=120)).mse < 1e-12


@pytest.mark.slow
def test_many_heads_fall_with_the_square() -> None:
    base = replace(PROTOCOL.truncated, method="many-heads", samples=200)
    errors = [run(replace(base, heads=h)).mse for h in (1, 2, 4)]
    slope = np.polyfit(np.log([1, 2, 4]), np.log(errors), 1)[0]
    assert abs(slope + 2) < 0.15


def test_attention_of_the_built_heat_map_picks_the_nearest_anchor() -> None:
    found = run(replace(QUICK.heat_map, method="nearest"))
    assert found.picked == 1.0 and found.weights is not None
    assert np.allclose(np.sum(found.weights, -1), 1, atol=1e-4) and np.shape(found.weights) == (3, 12, 12)
    assert build(replace(QUICK.heat_map, method="nearest"), task_of(QUICK.heat_map)).certificate.proved


def test_what_says_nothing_can_learn_to_speak() -> None:
    """Heads and coordinates beside the anchors' are not read, and have a gradient all the same."""
    setting = replace(BASE, heads=4)
    task, model = task_of(setting), TruncatedModel(setting, generator())
    place_anchors(model, head_to_place(replace(setting, method="fine-tuned"), task))
    place_functions(model, *task.target)
    assert not model.attention.output.weight[1:].any() and not model.attention.output.weight[:, 1:].any()
    square_error(model(task.x_train[:32]), task.y_train[:32]).backward()
    assert (model.attention.output.weight.grad[0] != 0).all()
    assert (model.attention.query.weight.grad[2:4] != 0).any()  # the first head's other coordinates


def test_the_constant_is_the_mean_of_the_training_targets() -> None:
    found, data = run(replace(QUICK.few, method="heads")), task_of(QUICK.few)
    errors = [
        (data.y_test[:, i, j] - data.y_train[:, i, j].mean()).square().mean().item()
        for i in range(4)
        for j in range(2)
    ]
    assert math.isclose(found.constant, sum(errors) / 8, rel_tol=1e-12) and found.constant < found.spread


def test_results_do_not_hang_on_the_default_dtype() -> None:
    setting = replace(BASE, epochs=1)
    first = run(setting)
    torch.set_default_dtype(torch.float64)
    try:
        assert same(first, run(setting))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "tokens"}, {"experiment": "other"}, {"p": 11}, {"heads": 3}, {"samples": 4}, {"batch": 0}, {"n": 0},
        {"a": 9.0}, {"a": math.nan}, {"b": math.inf}, {"epochs": -1}, {"epochs": True}, {"seed": -1}, {"n": 12.0}, {"a": -8},
        {"experiment": "heat-map"},
    ],
)  # fmt: skip
def test_settings_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(BASE, **change)


@pytest.mark.parametrize("quick", [False, True])
def test_sweeps_have_what_they_promise(quick: bool) -> None:
    every = settings("all", 3, quick)
    assert len({one.key for one in every}) == len(every) == len(set(every))
    assert set(every) == {one for name in SWEEPS for one in settings(name, 3, quick)}
    for name, methods in METHODS.items():
        assert {one.method for one in every if one.experiment == name} == set(methods)
    assert {one.seed for one in every} == {1234, 1235, 1236}
    assert all(Setting(**asdict(one)) == one for one in every[:20])


@pytest.mark.parametrize("sweep, seeds", [("head", 3), ("heads", 0), ("heads", True), ("all", 1001)])
def test_sweeps_that_are_none(sweep: str, seeds: int) -> None:
    with pytest.raises(InputError):
        settings(sweep, seeds)


def test_keys_do_not_mix_up_sizes() -> None:
    assert replace(BASE, a=-2.5).key != replace(BASE, a=-2.0).key
    assert replace(BASE, a=-2.0000001).key != replace(BASE, a=-2.0).key
