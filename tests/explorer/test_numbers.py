"""What the page computes against Python's values: differences of at most 1e-12."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from explorer_parts import SURFACES

import attnc
from attnc import functions, zoo
from attnc.incontext import Radius, gradient_descent
from attnc.incontext.losses import exact_trajectory
from attnc.network.norm import two_key_sum
from attnc.records.numbers import HeadNumbers

LIMIT = 1e-12
POINTS = 201


def rebuilt(stored: dict[str, Any]) -> attnc.Head:
    """The torch module of a stored head, in float64."""
    p = len(stored["slope"])
    gain = stored["gain"] or [0.0] * p
    return attnc.Head(
        HeadNumbers(
            np.array([stored["query"]]),
            np.array([list(zip(stored["slope"], stored["offset"], strict=True))]),
            np.array([list(zip(gain, stored["value"], strict=True))]),
            np.array([stored["output"]]),
            "float64",
        ),
        "stored",
        strict=False,
    )


def grid(lo: float, hi: float) -> torch.Tensor:
    return torch.linspace(lo, hi, POINTS, dtype=torch.float64)


def far(one: Any, other: Any) -> float:
    """The largest difference; NaN counts as infinite."""
    found = np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float))
    assert found.size > 0
    return float(np.where(np.isnan(found), np.inf, found).max())


def test_functions(page: Any, data: Any) -> None:
    for stored in data["heads"]:
        s = grid(stored["lo"], stored["hi"])
        made = page.evaluate(
            "([name, s]) => s.map(attncExplorer.FUNCTIONS[name])", [stored["name"], s.tolist()]
        )
        assert far(made, functions.get(stored["name"]).torch_form(s)) <= LIMIT


def test_every_head(page: Any, data: Any) -> None:
    """Value and weights of each exported head, and the error below its bound."""
    for stored in data["heads"]:
        s = grid(stored["lo"], stored["hi"])
        exact = functions.get(stored["name"]).torch_form(s)
        for sizes in stored["designs"].values():
            for numbers in sizes.values():
                values, weights = page.evaluate(
                    "([h, s]) => [s.map((x) => attncExplorer.headValue(h, x)), "
                    "s.filter((_, i) => i % 20 === 0).map((x) => [...attncExplorer.headWeights(h, x)])]",
                    [numbers, s.tolist()],
                )
                head = rebuilt(numbers)
                assert far(values, head(s)) <= LIMIT
                assert far(weights, head.weights(s[::20])) <= LIMIT
                assert far(values, exact) <= numbers["bound"]


def test_altered_head(page: Any, data: Any) -> None:
    """A moved anchor of a lattice has the key of an anchor at that place, scores -b(x - a)²; the sharpness multiplies scores."""
    stored = next(f for f in data["heads"] if f["name"] == "gelu")["designs"]["nearest"]["16"]
    made = page.evaluate("(h) => attncExplorer.alteredHead(h, {5: 0.3}, 2)", stored)
    a, b = stored["query"]
    anchors = [a * x + b for x in stored["anchors"]]
    width = (stored["slope"][6] - stored["slope"][4]) / (anchors[6] - anchors[4]) / 2
    moved = anchors[5] + 0.3 * a
    assert made["slope"][5] == pytest.approx(2 * (stored["slope"][5] + 2 * width * 0.3 * a), rel=1e-12)
    shift = stored["offset"][5] + width * anchors[5] ** 2  # offsets are this minus width·anchor²
    assert made["offset"][5] == pytest.approx(2 * (shift - width * moved**2), rel=1e-9)
    assert made["slope"][4] == 2 * stored["slope"][4]
    assert made["anchors"][5] == pytest.approx(stored["anchors"][5] + 0.3)


def test_two_tokens(page: Any, data: Any) -> None:
    """Outputs and patterns of the literal form, of networks that are compiled anew."""
    x = 2 * torch.rand(9, 2, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    box = attnc.Box(-1, 1, shape=(2, 1))
    for surface, stored in zip(SURFACES, data["two_tokens"], strict=True):
        exact = surface.function(x)
        formula = page.evaluate(
            "([name, xs]) => xs.map((x) => attncExplorer.SURFACES[name](...x))",
            [surface.label, x[..., 0].tolist()],
        )
        assert far(formula, exact[:, 0, 0]) <= LIMIT
        for options, network in zip(surface.options, stored["networks"], strict=True):
            literal = attnc.compile(
                surface.function, domain=box, dtype=torch.float64, **options
            ).as_self_attention()
            found = page.evaluate(
                "([n, xs]) => xs.map((x) => { const y = attncExplorer.twoTokens(n, x);"
                " return {y: [...y.y], gather: y.gather.map((w) => [...w]), anchors: y.anchors.map((w) => [...w])}; })",
                [network, x[..., 0].tolist()],
            )
            patterns = literal.attention(x)
            assert far([one["y"] for one in found], literal(x)[..., 0]) <= LIMIT
            assert far([one["gather"] for one in found], patterns["gather"][:, 0]) <= LIMIT
            assert far([one["anchors"] for one in found], patterns["anchors"][:, 0, :2]) <= LIMIT


@pytest.mark.parametrize("which", [0, 1])
def test_learners(page: Any, data: Any, which: int) -> None:
    """All steps, on the examples of the page and on random ones; and exact gradient descent beside them."""
    stored = data["learners"][which]
    learner = gradient_descent(
        stored["loss"],
        features=stored["features"] - 1,
        steps=stored["steps"],
        step_size=stored["stepSize"],
        intercept=True,
        radius=Radius(**stored["radius"]),
        dtype=torch.float64,
    )
    draw = torch.Generator().manual_seed(which)
    random = torch.rand(12, 3, generator=draw, dtype=torch.float64) * 2 - 1
    for examples in (torch.tensor(stored["examples"], dtype=torch.float64), random):
        columns = 2 if stored["plane"] else 1
        x, y = examples[:, :columns], examples[:, columns]
        y = (y > 0.5).double() if stored["plane"] else y
        rows = torch.cat([x, torch.ones(12, 1, dtype=torch.float64)], 1)
        made, exact = page.evaluate(
            "([l, x, y]) => [attncExplorer.learnerTrajectory(l, x, y).map((s) => s.w), attncExplorer.exactTrajectory(l, x, y)]",
            [stored, rows.tolist(), y.tolist()],
        )
        assert far(made, learner.trajectory(x, y)) <= LIMIT
        reference = exact_trajectory(
            learner.loss, rows.numpy(), y.numpy(), learner.steps, learner.step_size, True
        )
        assert far(exact, reference) <= LIMIT
        assert np.linalg.norm(np.array(made) - np.array(exact), axis=1).max() <= stored["bound"]


def test_transformer(page: Any, data: Any) -> None:
    """The heads of MiniLM at the inputs of all neurons that are shown, and the norm, both in float64."""
    stored = data["transformer"]
    for sentence in stored["sentences"]:
        for block, neurons in zip(stored["blocks"], sentence["neurons"], strict=True):
            for neuron in neurons:
                numbers = stored["heads"][block["groups"][neuron["group"]]["head"]]
                values = page.evaluate(
                    "([h, s]) => s.map((x) => attncExplorer.headValue(h, x))", [numbers, neuron["input"]]
                )
                inputs = torch.tensor(neuron["input"], dtype=torch.float64)
                assert far(values, rebuilt(numbers)(inputs)) <= LIMIT
                assert far(values, torch.nn.functional.gelu(inputs)) <= block["approximation"]
    norm = stored["norm"]
    squares = torch.logspace(-6, 6, 49, dtype=torch.float64)
    made = page.evaluate("([n, q]) => q.map((x) => attncExplorer.normValue(n, x))", [norm, squares.tolist()])
    slope, intercept, value = (
        torch.tensor(norm[k], dtype=torch.float64) for k in ("slope", "intercept", "value")
    )
    python = two_key_sum(squares * norm["dim"], slope, intercept, value)
    assert far(np.array(made) / python.numpy(), 1.0) <= LIMIT
    assert far(np.array(made) * (squares + norm["offset"]).sqrt().numpy(), 1.0) <= 1e-5


@pytest.mark.parametrize("index", range(9))
def test_token_programs(page: Any, data: Any, index: int) -> None:
    """Patterns, logits and outputs, whole and with each head broken."""
    stored = data["token_programs"][index]
    net = zoo.load(stored["name"], dtype=torch.float64)
    draw = np.random.default_rng(index)
    lengths = (1, 2, stored["length"])
    sequences = [draw.integers(len(stored["vocabulary"]), size=n).tolist() for n in lengths]
    for ids in sequences:
        tensor = torch.tensor(ids)
        found = page.evaluate(
            "([m, ids]) => { const r = attncExplorer.runTokens(m, ids); return {outputs: r.outputs, "
            "logits: r.logits.map((l) => [...l]), patterns: r.patterns.flat().map((p) => p.map((w) => [...w]))}; }",
            [stored, ids],
        )
        tokens = [net.vocabulary[i] for i in ids]
        words = {True: "yes", False: "no"}
        assert found["outputs"] == [words[o] if o is True or o is False else str(o) for o in net.run(tokens)]
        assert far(found["logits"], net(tensor)) <= LIMIT
        assert far(found["patterns"], torch.stack(list(net.attention(tensor).values()))) <= LIMIT
    layer = len(net.layers) - 1
    with torch.no_grad():
        net.layers[layer].output[0].zero_()
    made = page.evaluate(
        "([m, ids, key]) => attncExplorer.runTokens(m, ids, new Set([key])).logits.map((l) => [...l])",
        [stored, sequences[-1], f"{layer}.0"],
    )
    assert far(made, net(torch.tensor(sequences[-1]))) <= LIMIT
